"""The plan of the house, checked in the source: floors, circles, names, sizes, habits."""

from __future__ import annotations

import ast
import dataclasses
import importlib.machinery
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {
    "launch": 10,
    "studio.cli": 9,
    "studio.supervisor": 8,
    "studio.ui": 7,
    "studio.services": 6,
    "studio.engine": 5,
    "studio.planning": 4,
    "studio.models": 3,
    "studio.data": 3,
    "studio.machine": 3,
    "studio.hub": 2,
    "studio.installer": 2,
    "studio.core": 1,
    "studio_kernels": 1,
}
BEFORE_VENV = (
    "launch.py",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "studio" / "installer").glob("[!_]*.py"))),
    "studio/core/atomic_files.py",
    "studio/core/lock_file.py",
)
HEAVY = {
    "torch",
    "transformers",
    "datasets",
    "trl",
    "peft",
    "accelerate",
    "bitsandbytes",
    "safetensors",
    "triton",
}
BROAD_EXCEPT = {
    "studio/engine/trainer.py": "raised again unless the hook knows a way on",
    "studio/engine/preflight.py": "raised again, with words where the catalogue has none",
    "studio/engine/run.py": "whatever ends a run becomes a diagnosis",
    "studio/engine/rollouts/drawing.py": "raised again unless memory is short or the hook knows a way on",
    "studio/engine/training_answers.py": "raised again unless the hook knows a way on",
    "studio/engine/guarded_code/child.py": "an error of a person's code is an answer",
    "studio/engine/guarded_code/programs/run_tests.py": "an error of a model's code is a test that failed",
    "studio/services/worker.py": "the Future carries it to whoever asked",
    "studio/machine/probes/call_timeout.py": "raised again in the thread that asked",
    "studio/services/runs.py": "a failure that the engine itself could not tell becomes one that it can",
    "studio/services/answer_queue.py": "raised again in the threads that asked",
    "studio/ui/shell/blocks.py": "raised again, without a traceback when there were many",
    "studio/ui/context.py": "raised again as a message",
}
OWN_JSON = {
    **dict.fromkeys(BEFORE_VENV, "plain Python, before anything is installed"),
    "studio/core/json_file.py": "here it is read",
    "studio/core/i18n.py": "our own words, of which refusals are made",
    "studio/data/containers/json_text.py": "rows of data, with codes of their own",
    "studio/data/shards.py": "rows that json_text.py has read and we have written",
}
"""Where Python's own parser of JSON is called; everywhere else it is studio/core/json_file.py."""
FOREIGN_STATE = {
    "studio/ui/shell/blocks.py": ["BuildContext.id = 0"],
    "studio/engine/guarded_code/programs/run_tests.py": [
        "sys.stdin = io.StringIO(str(given))",
        "sys.stdin = before",
    ],
}
"""Gradio numbers its components from there: windows in two languages must have the same numbers. Tests of code that a
model wrote give it something to read, in a process of its own.
"""
LINE_LIMIT = 420
LIGHT = ("studio_kernels.op", "studio_kernels.ce_chunks", "studio.models.decoder.structure")
"""Modules of heavy rooms that load no heavy library: the planner reads the decoder and the kernels through them."""
SEVERAL = {
    "ROOT": "where a program finds the others of its folder",
    "ASSETS": "likewise",
    "LAUNCHER": "likewise",
    "T": "a type variable",
    "KNOBS": "derived from the recipe",
    "GIB": "a unit",
    "MIB": "a unit",
    "VERSION": "each file has its own",
    "DTYPES": "each op says what it takes",
    "MAX_WIDTH": "each op says what it takes",
    "ELEMENTS": "each kernel has its own block",
    "WIDTH": "of different things",
    "TOKENS": "of different things",
    "MANIFEST": "of different folders",
    "TRIES": "of different downloads",
    "PAUSE_S": "of different downloads",
    "OWN": "a value of different choices",
}
"""Constants that may stand in several modules with one value, and why."""
BEHAVIOUR = re.compile(r"_S$|^LOOKED_AT$|^LEAST|^LONGER$|_ROWS$|_BYTES$|_WORDS$|_TOKENS$")
"""How long a loop waits, how much a reader looks at: each reader's own, but not in DESCRIBING."""
DESCRIBING = ("studio.planning.", "studio.models.decoder.", "studio.engine.", "studio_kernels.")
"""Rooms whose limits are those of the decoder, its kernels and its memory."""


# Reading the source --------------------------------------------------------------------------------------------------


@cache
def tracked_files() -> tuple[Path, ...]:
    """The files of the product; what tools and installs leave beside them has a dot or is ignored by git."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            n for n in folders if n == ".ci" or not n.startswith(".") and n not in ("__pycache__", "shared")
        ]
        found += [
            Path(folder, name)
            for name in names
            if not name.endswith((".pyc", ".log")) and name != ".git"  # of a further work tree
        ]
    return tuple(sorted(found))


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    paths = tuple(path for path in tracked_files() if path.suffix == ".py")
    inside = tuple(path for path in paths if name_of(path).split("/")[0] in folders)
    return inside if folders else paths


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    parts = (
        path.relative_to(ROOT / "kernels" if path.is_relative_to(ROOT / "kernels") else ROOT)
        .with_suffix("")
        .parts
    )
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in (ROOT / "launch.py", *python_files("studio", "kernels"))}


def imports_of(path: Path, *, top_only: bool = False) -> list[tuple[str, int]]:
    """Every module that `path` imports, with its line; also inside functions unless `top_only`."""
    return [(target, line) for target, line, inner in read_imports(path) if not (top_only and inner)]


@cache
def read_imports(path: Path) -> tuple[tuple[str, int, bool], ...]:
    """Every module that `path` imports, with its line and whether it is imported inside a function."""
    found: list[tuple[str, int, bool]] = []
    waiting: list[tuple[ast.AST, bool]] = [(parse(path), False)]
    while waiting:
        node, inner = waiting.pop()
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, inner) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name_of(path)}:{node.lineno} imports relatively"
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.append((deeper if deeper in modules() else node.module, node.lineno, inner))
        elif not isinstance(node, ast.expr):  # an expression holds no import
            inner = inner or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
    return tuple(found)


def floor_of(module: str) -> tuple[int, str]:
    """The floor of one of our modules and its room on it; (0, "") for a library."""
    for name, floor in FLOORS.items():
        if module == name or module.startswith(name + "."):
            return floor, name
    return 0, ""


def report(found) -> None:
    lines = list(found)
    assert not lines, "\n" + "\n".join(lines)


# Floors --------------------------------------------------------------------------------------------------------------


def test_every_module_stands_on_a_floor():
    report(name for name in modules() if name != "studio" and not floor_of(name)[0])


def test_imports_run_downward():
    def wrong():
        for module, path in modules().items():
            floor, room = floor_of(module)
            for target, line in imports_of(path):
                below, other = floor_of(target)
                if other and other != room and below >= floor:
                    yield f"{name_of(path)}:{line} (floor {floor}) imports {target} (floor {below})"

    report(wrong())


def test_no_circle_among_modules():
    arrows = {
        name: sorted({target for target, _ in imports_of(path) if target in modules() and target != name})
        for name, path in modules().items()
    }
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in arrows[name]:
                walk(target, (*trail, name))
            done.add(name)

    for name in arrows:
        walk(name, ())


def test_only_the_window_imports_gradio():
    report(
        f"{name_of(path)}:{line}"
        for path in python_files("studio", "kernels", "launch.py")
        for target, line in imports_of(path)
        if target.split(".")[0].startswith("gradio") and "studio/ui/" not in name_of(path)
    )


def test_core_is_standard_library_only():
    report(
        f"{name_of(path)}:{line} imports {target}"
        for path in (ROOT / "studio" / "core").rglob("*.py")
        for target, line in imports_of(path)
        if target.split(".")[0] not in sys.stdlib_module_names and not target.startswith("studio.core")
    )


def test_kernels_know_torch_and_triton_only():
    allowed = sys.stdlib_module_names | {"torch", "triton", "studio_kernels"}
    report(
        f"{name_of(path)}:{line} imports {target}"
        for path in python_files("kernels")
        for target, line in imports_of(path)
        if target.split(".")[0] not in allowed
        or (target.split(".")[0] == "triton" and path.name not in ("_triton.py", "_probe.py"))
    )


def test_heavy_libraries_are_imported_late():
    """At module level only in the engine and in studio/models (but for the catalogue, which the window uses)."""

    def may(name: str) -> bool:
        return name.startswith(("studio/engine/", "studio/models/")) and not name.endswith("/catalog.py")

    report(
        f"{name_of(path)}:{line} imports {target}"
        for path in python_files("studio")
        for target, line in imports_of(path, top_only=True)
        if target.split(".")[0] in HEAVY | {"studio_kernels"}
        and not target.startswith(LIGHT)
        and not may(name_of(path))
    )


def test_what_the_planner_reads_of_heavy_rooms_is_light():
    """A window opens without torch; asked of a process of its own, which shows what imports bring along."""
    words = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'kernels')]}; import {', '.join(LIGHT)}"
    words += "; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert HEAVY.isdisjoint(loaded.split())


def test_no_constant_is_copied():
    """What two modules need is imported: copies of the decoder's limits once parted from it in silence."""
    places: dict[tuple[str, str], set[str]] = {}
    for name, path in modules().items():
        for node in parse(path).body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for one, value in pairs:
                    if isinstance(one, ast.Name) and one.id.isupper():
                        places.setdefault((one.id, ast.unparse(value)), set()).add(name)
    report(
        f"{name} = {value[:40]} in {', '.join(sorted(found))}"
        for (name, value), found in places.items()
        if len(found) > 1
        and name not in SEVERAL
        and not (BEHAVIOUR.search(name) and sum(one.startswith(DESCRIBING) for one in found) < 2)
    )


@pytest.mark.parametrize("name", BEFORE_VENV)
def test_what_runs_before_the_venv_is_plain_and_old_python(name):
    path = ROOT / name
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    among = {module_of(ROOT / each) for each in BEFORE_VENV}
    report(
        f"{name}:{line} imports {target}"
        for target, line in imports_of(path)
        if target.split(".")[0] not in sys.stdlib_module_names and target not in among
    )


def test_the_name_kernels_stays_free_for_the_package_that_transformers_imports():
    assert not (ROOT / "kernels" / "__init__.py").exists()
    spec = importlib.machinery.PathFinder.find_spec("kernels", [str(ROOT), str(ROOT / "kernels")])
    assert spec is None or spec.origin is None, "kernels/ shadows the PyPI package of that name"
    assert not (ROOT / "kernels" / "kernels.py").exists()


# Files ---------------------------------------------------------------------------------------------------------------


def test_every_file_opens_with_a_docstring():
    def wrong():
        for path in python_files():
            words = ast.get_docstring(parse(path))
            if not words or len(words.splitlines()[0]) > 120 or words.splitlines()[0][-1] not in ".:;":
                yield name_of(path)

    report(wrong())


@pytest.mark.parametrize("name", ["studio/__init__.py", "studio/machine/__init__.py"])
def test_package_holds_a_docstring_only(name):
    assert [type(node) for node in parse(ROOT / name).body] == [ast.Expr]


def test_no_grab_bags():
    report(
        name_of(path)
        for path in python_files()
        if path.stem in ("utils", "util", "helpers", "misc", "common")
    )


def test_files_stay_small():
    lengths = {
        name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in python_files("studio", "kernels")
    }
    report(f"{name}: {length} lines" for name, length in lengths.items() if length > LINE_LIMIT)


def text_files():
    for path in tracked_files():
        if path.is_relative_to(ROOT / "tests" / "data" / "fixtures"):  # data in every encoding, and in none
            continue
        if path.suffix not in (".safetensors", ".png", ".jpg", ".ico", ".woff2", ".gz", ".parquet", ".gguf"):
            yield path, path.read_text(encoding="utf-8")


def test_no_file_names_a_package_registry_or_a_folder_of_some_machine():
    # Put together here, so that this file does not name them itself.
    registries = (
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "deb.debian" + ".org",
        "npmjs" + ".org",
        "npmjs" + ".com",
    )
    homes = re.compile(
        "/" + r"work/(?:main|dev|shared)\b|/" + r"home/\w+/\w|/" + r"Users/\w+/\w|/" + r"root/\w"
    )

    def wrong():
        for path, words in text_files():
            for number, line in enumerate(words.splitlines(), 1):
                if any(name in line for name in registries) or homes.search(line):
                    yield f"{name_of(path)}:{number}: {line.strip()[:120]}"

    report(wrong())


def test_every_recipe_field_is_a_knob():
    from studio.core.i18n import load_catalogue
    from studio.core.knob import UNITS, knobs_of
    from studio.core.recipe import Recipe

    def fields(cls, prefix=""):
        for part in dataclasses.fields(cls):
            inner = part.default_factory if dataclasses.is_dataclass(part.default_factory) else None
            if part.name in ("model", "data") and not prefix:
                inner = {"model": "ModelChoice", "data": "DatasetSpec"}[part.name]
                inner = getattr(sys.modules["studio.core.recipe"], inner)
            yield from fields(inner, f"{prefix}{part.name}.") if inner else [f"{prefix}{part.name}"]

    knobs = {knob.path: knob for knob in knobs_of(Recipe)}
    assert set(fields(Recipe)) - set(knobs) == {"version", "rewards"}
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        report(
            k.path
            for k in knobs.values()
            if not (words.has(k.label.id) and words.has(k.help.id) and k.unit in UNITS)
        )


# Habits --------------------------------------------------------------------------------------------------------------


def test_no_failure_is_swallowed():
    def wrong():
        for path in python_files("studio", "kernels", "launch.py"):
            for node in ast.walk(parse(path)):
                if not isinstance(node, ast.ExceptHandler):
                    continue
                if isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None:
                    continue  # cleans up and passes it on
                kinds = (
                    {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
                    if node.type
                    else {"all"}
                )
                if kinds & {"all", "Exception", "BaseException"} and name_of(path) not in BROAD_EXCEPT:
                    yield f"{name_of(path)}:{node.lineno} catches {', '.join(sorted(kinds))}"

    report(wrong())


def test_json_is_read_in_one_place():
    """Deep nesting ends Python's own parser with a RecursionError, which no caller thinks of."""

    def wrong():
        for path in python_files("studio", "launch.py"):
            for node in ast.walk(parse(path)):
                called = dotted(node.func) if isinstance(node, ast.Call) else ""
                if called in ("json.load", "json.loads", "loads") and name_of(path) not in OWN_JSON:
                    yield f"{name_of(path)}:{node.lineno} calls {called}"

    report(wrong())


def test_no_shell():
    def wrong():
        for path in python_files():
            for node in ast.walk(parse(path)):
                if not isinstance(node, ast.Call):
                    continue
                shell = any(
                    k.arg == "shell" and getattr(k.value, "value", True) is not False for k in node.keywords
                )
                if shell or dotted(node.func) in ("os.system", "os.popen"):
                    yield f"{name_of(path)}:{node.lineno}"

    report(wrong())


def test_nothing_imported_is_patched():
    """No assignment to an attribute of an imported module or class, by `=` or by setattr."""

    def wrong():
        for path in python_files("studio", "kernels", "launch.py"):
            tree = parse(path)
            imported = {
                (alias.asname or alias.name).split(".")[0]
                for node in ast.walk(tree)
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for alias in node.names
            }
            for node in ast.walk(tree):
                targets = []
                if isinstance(node, (ast.Assign, ast.Delete)):
                    targets = [
                        part for target in node.targets for part in getattr(target, "elts", None) or [target]
                    ]
                elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
                    targets = [node.target]
                elif isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "delattr"):
                    targets = [ast.Attribute(value=node.args[0], attr="")]
                for target in targets:
                    if not isinstance(target, ast.Attribute) or root_name(target) not in imported:
                        continue
                    if ast.unparse(node) not in FOREIGN_STATE.get(name_of(path), ()):
                        yield f"{name_of(path)}:{node.lineno}: {ast.unparse(node)[:100]}"

    report(wrong())


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` of an expression that is a name and its attributes, "" of any other."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def root_name(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_no_module_works_when_it_is_imported():
    """At module level: no call for its effect, no setting of the environment or of the search path."""
    effects = ("os.environ", "sys.path", "sys.modules", "sys.meta_path")

    def wrong():
        for path in python_files("studio", "kernels"):
            for node in parse(path).body:
                calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
                targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
                if calls or any(ast.unparse(target).startswith(effects) for target in targets):
                    yield f"{name_of(path)}:{node.lineno}: {ast.unparse(node)[:100]}"

    report(wrong())


def test_no_public_class_has_the_name_of_another():
    """A name that two rooms use is looked up twice, and imported wrongly once."""
    places: dict[str, set[str]] = {}
    for name, path in modules().items():
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(name)
    report(f"{name} in {', '.join(sorted(found))}" for name, found in places.items() if len(found) > 1)
