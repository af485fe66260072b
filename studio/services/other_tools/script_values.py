"""What expressions of a Python script come to, as far as that is plain without running it."""

from __future__ import annotations

import ast
import operator
import os.path
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from studio.services.other_tools.written import TextPlace, Unresolved

ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
LARGEST = 10_000
"""Length of a text or list, and digits of a number, that arithmetic of a script may come to."""


@dataclass(frozen=True, slots=True)
class Dotted:
    """A name of a library, such as `torch.bfloat16`."""

    name: str

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(slots=True)
class Call:
    """A call of something that this script does not define: its name, what it is called on, and its arguments."""

    name: str
    """Of its last part: `from_pretrained`."""
    path: str
    """As it is written: `AutoModelForCausalLM.from_pretrained`."""
    place: TextPlace
    receiver: Any = None
    positional: list[Any] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    places: dict[str, TextPlace] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return how it is written, without its arguments."""
        return f"{self.path}(…)"


@dataclass(slots=True)
class NamedValues:
    """Settings under names, as argparse or a data class of a script holds them."""

    values: MutableMapping[str, Any]


class Values:
    """Evaluates expressions over `names`; calls are reported to `called` and come to themselves."""

    def __init__(self, names: MutableMapping[str, Any], called: Any, place: Any) -> None:
        self.names = names
        self._called = called
        self._place = place

    def read(self, node: ast.expr | None) -> Any:
        """Return the value of an expression; Unresolved where only a run would tell."""
        if node is None:
            return None
        reader = getattr(self, f"_{type(node).__name__.lower()}", None)
        found = reader(node) if reader is not None else None
        return Unresolved(_show(node)) if found is None and reader is None else found

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        return self.names.get(node.id, Dotted(node.id))

    def _attribute(self, node: ast.Attribute) -> Any:
        dotted = _show(node)
        if dotted in self.names:
            return self.names[dotted]
        inner = self.read(node.value)
        if isinstance(inner, NamedValues):
            return inner.values.get(node.attr, Unresolved(dotted))
        if isinstance(inner, Dotted):
            return Dotted(f"{inner.name}.{node.attr}")
        if isinstance(inner, Call):
            return inner.arguments.get(node.attr, Unresolved(dotted))
        return Unresolved(dotted)

    def _subscript(self, node: ast.Subscript) -> Any:
        inner, key = self.read(node.value), self.read(node.slice)
        if isinstance(inner, NamedValues):
            inner = inner.values
        try:
            if isinstance(inner, (Mapping, list, tuple, str)):
                return inner[key]
        except (KeyError, IndexError, TypeError):
            return Unresolved(_show(node))
        if isinstance(inner, Call):  # dataset["train"]
            return Call("[]", f"{inner.path}[…]", self._place(node), inner, [key])
        return Unresolved(_show(node))

    def _slice(self, node: ast.Slice) -> Any:
        return slice(self.read(node.lower), self.read(node.upper), self.read(node.step))

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        found = []
        for one in node.elts:
            value = self.read(one.value if isinstance(one, ast.Starred) else one)
            found += value if isinstance(one, ast.Starred) and isinstance(value, list) else [value]
        return found

    _tuple = _set = _list

    def _dict(self, node: ast.Dict) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            said = self.read(value)
            if key is None:
                found |= said if isinstance(said, dict) else {}
            elif isinstance(name := self.read(key), (str, int, float, bool)):
                found[name] = said
        return found

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        parts = []
        for part in node.values:
            value = self.read(part.value if isinstance(part, ast.FormattedValue) else part)
            if not isinstance(value, (str, int, float)):
                return Unresolved(_show(node))
            parts.append(str(value))
        return "".join(parts)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.read(node.operand)
        if isinstance(value, (int, float)):
            return (
                not value
                if isinstance(node.op, ast.Not)
                else -value
                if isinstance(node.op, ast.USub)
                else value
            )
        return Unresolved(_show(node))

    def _binop(self, node: ast.BinOp) -> Any:
        before, after = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Div) and isinstance(before, str) and isinstance(after, str):
            return f"{before.rstrip('/')}/{after}"  # Path("a") / "b"
        plain = isinstance(before, (int, float, str, list)) and isinstance(after, (int, float, str, list))
        large = any(isinstance(one, (str, list)) and len(one) > LARGEST for one in (before, after))
        grows = isinstance(node.op, ast.Mult) and any(isinstance(one, (str, list)) for one in (before, after))
        huge = any(isinstance(one, (int, float)) and abs(one) > 1e15 for one in (before, after))
        if plain and not (large or grows or huge) and type(node.op) in ARITHMETIC:
            try:
                return ARITHMETIC[type(node.op)](before, after)
            except (TypeError, ZeroDivisionError, ValueError):
                return Unresolved(_show(node))
        return Unresolved(_show(node))

    def _boolop(self, node: ast.BoolOp) -> Any:
        wants = isinstance(node.op, ast.Or)
        for one in node.values:
            value = self.read(one)
            if isinstance(value, (Unresolved, Dotted, Call)):
                return Unresolved(_show(node))
            if bool(value) == wants:
                return value
        return value

    def _compare(self, node: ast.Compare) -> Any:
        before, after = self.read(node.left), self.read(node.comparators[0])
        tests = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt}
        tests |= {
            ast.LtE: operator.le,
            ast.GtE: operator.ge,
            ast.Is: operator.is_,
            ast.IsNot: operator.is_not,
        }
        known = all(isinstance(one, (str, int, float, bool, type(None))) for one in (before, after))
        if len(node.ops) > 1 or not known or type(node.ops[0]) not in tests:
            return Unresolved(_show(node))
        if isinstance(node.left, ast.Name) and node.left.id == "__name__":
            return True
        try:
            return tests[type(node.ops[0])](before, after)
        except TypeError:
            return Unresolved(_show(node))

    def _ifexp(self, node: ast.IfExp) -> Any:
        test = self.read(node.test)
        if isinstance(test, (Unresolved, Dotted, Call)):
            return Unresolved(_show(node))
        return self.read(node.body if test else node.orelse)

    def _call(self, node: ast.Call) -> Any:
        path = _show(node.func)
        positional = [self.read(one) for one in node.args]
        arguments: dict[str, Any] = {}
        places: dict[str, TextPlace] = {}
        for one in node.keywords:
            value = self.read(one.value)
            if one.arg is None:
                spread = value.values if isinstance(value, NamedValues) else value
                for name, inner in spread.items() if isinstance(spread, Mapping) else ():
                    arguments[str(name)], places[str(name)] = inner, self._place(one.value)
            else:
                arguments[one.arg], places[one.arg] = value, self._place(one.value)
        plain = _compute(path, positional, arguments)
        if plain is not None:
            return plain
        receiver = self.read(node.func.value) if isinstance(node.func, ast.Attribute) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else path
        if isinstance(receiver, (dict, NamedValues)) and name == "get" and positional:
            held = receiver.values if isinstance(receiver, NamedValues) else receiver
            return held.get(positional[0], positional[1] if len(positional) > 1 else None)
        call = Call(name, path, self._place(node), receiver, positional, arguments, places)
        return self._called(call, node)


def _compute(path: str, positional: list[Any], arguments: Mapping[str, Any]) -> Any:
    """Return what a few harmless calls come to; None for all others."""
    known = all(isinstance(one, (str, int, float, bool)) for one in positional)
    if path in ("os.environ.get", "os.getenv", "environ.get", "getenv") and positional:
        return positional[1] if len(positional) > 1 else Unresolved(f"{path}({positional[0]!r})")
    if path in ("os.path.join", "path.join") and known and positional:
        return os.path.join(*map(str, positional)).replace(os.sep, "/")
    if (
        path in ("Path", "str", "pathlib.Path", "os.path.expanduser", "os.path.abspath")
        and known
        and positional
    ):
        return str(positional[0])
    if path in ("int", "float") and known and len(positional) == 1:
        try:
            return int(float(positional[0])) if path == "int" else float(positional[0])
        except (ValueError, OverflowError):
            return None
    if path in ("max", "min") and positional and all(isinstance(one, (int, float)) for one in positional):
        return max(positional) if path == "max" else min(positional)
    if path == "dict":
        return dict(arguments)
    if path == "range" and known and positional and all(isinstance(one, int) for one in positional):
        return range(*positional[:3])
    return None


def _show(node: ast.AST) -> str:
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):
        return "…"
