"""A Python script or notebook read by its syntax tree: which calls it makes, and with what; never run or imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import read_words
from studio.services.other_tools.script_values import Call, Dotted, NamedValues, Values
from studio.services.other_tools.written import TextPlace, Unresolved

MOST_MODULES, LARGEST_MODULE_BYTES = 20, 200_000


def read_cells(content: str, name: str) -> list[tuple[int, str]]:
    """Return a notebook's code cells as (number from 1, source), magic lines blanked; a script is cell 0.

    Raises StudioError for a notebook that is none.
    """
    if not name.endswith(".ipynb"):
        return [(0, content)]
    book = read_words(content, name)
    cells = book.get("cells", []) if isinstance(book, dict) else []
    found, number = [], 0
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        number += 1
        source = cell.get("source", "")
        words = "".join(map(str, source)) if isinstance(source, list) else str(source)
        if words.lstrip().startswith("%%") and not words.lstrip().startswith(("%%capture", "%%time")):
            continue  # a cell in another language
        lines = ["pass" if line.lstrip().startswith(("!", "%", "?")) else line for line in words.splitlines()]
        kept = [
            " " * (len(old) - len(old.lstrip())) + new if new == "pass" else new
            for old, new in zip(words.splitlines(), lines, strict=True)
        ]
        found.append((number, "\n".join(kept)))
    return found


class Script:
    """The calls of a script in the order in which it would make them, as far as that is plain."""

    def __init__(self, cells: Iterable[tuple[int, str]], name: str, folder: Path | None = None) -> None:
        """`folder`: where modules of its own lie, whose settings it imports. Raises StudioError with the line."""
        self.calls: list[Call] = []
        self.names: dict[str, Any] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self._sites: dict[str, ast.Call] = {}
        self._options: dict[str, Any] = {}
        self._entered: set[str] = set()
        self._cell = 0
        self._imported: set[str] = set()
        self._folder = folder
        self._opened: set[Path] = set()
        parsed = [(number, _parse(source, number, name)) for number, source in cells]
        for _, tree in parsed:
            self._collect(tree)
        for number, tree in parsed:
            self._cell = number
            self._walk(tree.body)
        for function in list(self._functions.values()):  # what nobody calls by name, such as a method
            self._enter(function, None)

    def find(self, *names: str) -> Call | None:
        """Return the first call of one of `names`."""
        return next((call for call in self.calls if call.name in names), None)

    def imports(self, *libraries: str) -> bool:
        """Return whether the script imports one of `libraries`."""
        return any(name.split(".")[0] in libraries for name in self._imported)

    def _collect(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                self._imported.add(node.module or "")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._functions.setdefault(node.name, node)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if name == "add_argument":
                    self._add_option(node)
                else:
                    self._sites.setdefault(name, node)

    # Statements -----------------------------------------------------------------------------------------------------

    def _walk(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._open_own(node)
            elif isinstance(node, ast.ClassDef):
                self._declare(node)
            elif isinstance(node, ast.Assign):
                value = self._read(node.value)
                for target in node.targets:
                    self._assign(target, value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, self._read(node.value))
            elif isinstance(node, ast.AugAssign):
                self._assign(node.target, Unresolved(ast.unparse(node)))
            elif isinstance(node, (ast.Expr, ast.Return)):
                self._read(node.value)
            elif isinstance(node, ast.If):
                test = self._read(node.test)
                known = isinstance(test, (bool, int, str, type(None)))
                if not known or test:
                    self._walk(node.body)
                if not known or not test:
                    before = set(self.names)
                    held = dict(self.names)
                    self._walk(node.orelse)
                    if not known:  # the first way is the one that is told
                        self.names |= {name: held[name] for name in before}
            elif isinstance(node, (ast.For, ast.While)):
                self._walk(node.body)
            elif isinstance(node, ast.With):
                for item in node.items:
                    self._read(item.context_expr)
                self._walk(node.body)
            elif isinstance(node, ast.Try):
                self._walk([*node.body, *node.orelse, *node.finalbody])

    def _open_own(self, node: ast.Import | ast.ImportFrom) -> None:
        """Take the plain values of a module that lies beside the script: its settings are often there."""
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        if isinstance(node, ast.ImportFrom) and self._folder is not None:
            folder = self._folder.joinpath(*(node.module or "").split("."))
            for alias in node.names:  # from configs import training
                if (folder / f"{alias.name}.py").is_file():
                    values = self._read_module(folder / f"{alias.name}.py")
                    self.names[alias.asname or alias.name] = NamedValues(values)
        for name in names if self._folder is not None else ():
            file = self._folder.joinpath(*name.split(".")).with_suffix(".py")
            if file in self._opened or len(self._opened) >= MOST_MODULES or not file.is_file():
                continue
            self._opened.add(file)
            values = self._read_module(file)
            if isinstance(node, ast.Import):
                held = next((alias.asname for alias in node.names if alias.name == name), None) or name
                self.names[held] = NamedValues(values)
            elif node.names[0].name == "*":
                self.names |= values
            else:
                kept = {alias.asname or alias.name: values.get(alias.name) for alias in node.names}
                self.names |= {key: value for key, value in kept.items() if value is not None}

    def _read_module(self, file: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if file.stat().st_size > LARGEST_MODULE_BYTES:
            return values
        reader = Values(values, lambda call, _: Unresolved(str(call)), self._place)
        for one in _parse(file.read_text(encoding="utf-8", errors="replace"), 0, file.name).body:
            if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None:
                read = reader.read(one.value)
                for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                    if isinstance(target, ast.Name):
                        values[target.id] = read
        return values

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for i, one in enumerate(target.elts):
                if isinstance(value, list) and len(value) == len(target.elts):
                    self._assign(one, value[i])
                else:  # model, tokenizer = from_pretrained(...)
                    self._assign(one, value if i == 0 and isinstance(value, Call) else Unresolved(_name(one)))
        elif isinstance(target, (ast.Name, ast.Attribute)):
            holder = self.names.get(_name(target.value)) if isinstance(target, ast.Attribute) else None
            if isinstance(holder, Call):  # args.max_length = 512 after args = DPOConfig(...)
                holder.arguments[target.attr], holder.places[target.attr] = value, self._place(target)
            self.names[_name(target)] = value
        elif isinstance(target, ast.Subscript) and isinstance(held := self._read(target.value), dict):
            key = self._read(target.slice)
            if isinstance(key, str):
                held[key] = value

    def _declare(self, node: ast.ClassDef) -> None:
        """Keep a class's own values, as data classes of settings have them."""
        values = {}
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                value = self._read(one.value) if one.value is not None else Unresolved(one.target.id)
                if isinstance(value, Call) and value.name == "field":
                    value = value.arguments.get("default", Unresolved(one.target.id))
                values[one.target.id] = value
            elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                values[one.targets[0].id] = self._read(one.value)
        if values:
            self.names[node.name] = NamedValues(values)

    # Calls ----------------------------------------------------------------------------------------------------------

    def _read(self, node: ast.expr | None) -> Any:
        return Values(self.names, self._called, self._place).read(node)

    def _called(self, call: Call, node: ast.Call) -> Any:
        if call.name in ("parse_args", "parse_known_args") and self._options:
            return NamedValues(dict(self._options))
        if call.name.startswith(("parse_args_into", "parse_args_and")) or call.name == "parse_json_file":
            return self._parse_classes(call)
        if isinstance(held := self.names.get(call.path), NamedValues):  # a data class of settings
            return NamedValues({**held.values, **call.arguments})
        function = self._functions.get(call.name)
        own = call.receiver is None or _is_self(call.receiver)
        if function is not None and own and call.name not in self._entered:
            return self._enter(function, call)
        if function is not None and own:
            return self.names.get(f"{call.name}()", Unresolved(str(call)))
        if call.name in self.classes and self.classes[call.name].bases:
            call.name = _base_name(self.classes[call.name]) or call.name
        self.calls.append(call)
        return call

    def _enter(self, function: ast.FunctionDef, call: Call | None) -> Any:
        """Walk through a function of the script with the arguments of its call; return what it returns."""
        if function.name in self._entered:
            return self.names.get(f"{function.name}()")
        self._entered.add(function.name)
        spec = function.args
        names = [one.arg for one in (*spec.posonlyargs, *spec.args)]
        if names[:1] in (["self"], ["cls"]):
            names = names[1:]
        defaults = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=False))
        pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        defaults |= {one.arg: value for one, value in pairs if value is not None}
        if call is None and function.name in self._sites:
            site = self._sites[function.name]
            given = {word.arg: self._read(word.value) for word in site.keywords if word.arg}
            given |= dict(zip(names, map(self._read, site.args), strict=False))
        else:
            given = {**dict(zip(names, call.positional, strict=False)), **call.arguments} if call else {}
        before = dict(self.names)
        for name in (*names, *(one.arg for one in spec.kwonlyargs)):
            if name in given:
                self.names[name] = given[name]
            elif name in defaults:
                self.names[name] = self._read(defaults[name])
            else:
                self.names[name] = Unresolved(name)
        self._walk(function.body)
        returned = None
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                recorded = len(self.calls)
                returned = self._read(node.value)
                del self.calls[recorded:]
        inner = {name: value for name, value in self.names.items() if "." in name or name not in before}
        self.names.clear()
        self.names |= before | {name: value for name, value in inner.items() if name.startswith("self.")}
        self.names[f"{function.name}()"] = returned
        return returned if returned is not None else Unresolved(f"{function.name}()")

    def _parse_classes(self, call: Call) -> Any:
        """Return what HfArgumentParser gives where nothing is said on the command line: the defaults of each class."""
        maker = call.receiver
        given = list(maker.positional) if isinstance(maker, Call) else []
        if isinstance(maker, Call):
            given += [
                maker.arguments[key]
                for key in ("dataclass_types", "dataclass_type")
                if key in maker.arguments
            ]
        given = given[0] if given and isinstance(given[0], list) else given
        return [
            one if isinstance(one, (NamedValues, Call)) else Unresolved(str(one)) for one in given
        ] or Unresolved("the command line")

    def _add_option(self, node: ast.Call) -> None:
        """Keep an option of argparse with its default."""
        plain = Values(self.names, lambda call, _: Unresolved(str(call)), self._place)
        flags = [one for one in map(plain.read, node.args) if isinstance(one, str)]
        words = {one.arg: one.value for one in node.keywords if one.arg}
        if not flags:
            return
        longest = max(flags, key=len)
        name = plain.read(words["dest"]) if "dest" in words else longest.lstrip("-").replace("-", "_")
        if "default" in words:
            self._options[str(name)] = plain.read(words["default"])
        elif "action" in words:
            self._options[str(name)] = plain.read(words["action"]) != "store_true"
        else:
            self._options[str(name)] = Unresolved(f"{longest} of the command line")

    def _place(self, node: ast.AST) -> TextPlace:
        return TextPlace(getattr(node, "lineno", 0), self._cell)


def _parse(source: str, cell: int, name: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = str(TextPlace(getattr(error, "lineno", 0) or 0, cell))
        why = text(
            "imported.script.line", place=place, reason=literal(str(getattr(error, "msg", error))[:200])
        )
        raise StudioError(text("imported.unreadable", name=name), why, text("imported.script.fix")) from error


def _name(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):
        return "…"


def _is_self(value: Any) -> bool:
    return isinstance(value, Dotted) and value.name in ("self", "cls") or isinstance(value, Unresolved)


def _base_name(node: ast.ClassDef) -> str:
    base = _name(node.bases[0]).split(".")[-1]
    return base if base.endswith(("Trainer", "Config", "Arguments")) else ""
