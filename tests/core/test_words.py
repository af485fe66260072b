"""Every text that the program says has words, and no words lie about that nothing says."""

import ast
import json
import re
from functools import cache
from itertools import chain
from pathlib import Path

from jinja2 import nodes

from studio.core.i18n import LOCALES
from studio.ui.templates import environment

ROOT = Path(__file__).resolve().parents[2]
WORDS = json.loads((LOCALES / "en.json").read_text(encoding="utf-8"))
CHINESE = json.loads((LOCALES / "zh-CN.json").read_text(encoding="utf-8"))
SAYERS = ("text", "say", "refuse", "Text")
"""Functions whose string with dots in it is a text's id."""
ID = re.compile(r"[a-z_]+(?:\.[A-Za-z0-9_-]+)+")
SUFFIX = re.compile(r"(?:\.[a-z_]+)+")


def pattern_of(node: ast.JoinedStr) -> str:
    """An f-string as a regular expression: `f"download.{kind}.why"` is `download\\..+\\.why`."""
    return "".join(re.escape(p.value) if isinstance(p, ast.Constant) else ".+" for p in node.values)


@cache
def sources() -> dict[str, ast.Module]:
    paths = [ROOT / "launch.py", *(ROOT / "studio").rglob("*.py")]
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


@cache
def templates() -> dict[str, nodes.Template]:
    paths = (ROOT / "studio" / "ui").rglob("*.html")
    return {str(p.relative_to(ROOT)): environment().parse(p.read_text(encoding="utf-8")) for p in paths}


def shape(node: nodes.Expr) -> str:
    """What a template says by an expression, as a regular expression: `"ui.tab." ~ name` is `ui\\.tab\\..+`."""
    if isinstance(node, nodes.Const):
        return re.escape(str(node.value))
    if isinstance(node, nodes.Concat):
        return "".join(map(shape, node.nodes))
    return ".+"


def said_in_templates():
    """Yield (place, regular expression) of every id that a template says by `t`."""
    for name, tree in templates().items():
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "t" and call.args:
                first = call.args[0]
                ways = [first.expr1, first.expr2] if isinstance(first, nodes.CondExpr) else [first]
                yield from ((f"{name}:{call.lineno}", shape(way)) for way in ways if way is not None)


def calls():
    """Yield (place, first string or f-string) of every call of a sayer."""
    for name, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                given = [*node.args, *(word.value for word in node.keywords if word.arg == "id")]
                strings = [arg for arg in given if isinstance(arg, (ast.Constant, ast.JoinedStr))]
                if called in SAYERS and strings:
                    yield f"{name}:{node.lineno}", strings[0]


def test_every_id_that_is_said_has_words():
    missing = []
    for place, said in calls():
        if isinstance(said, ast.JoinedStr):
            pattern = pattern_of(said)
            known = pattern.strip(".+") == "" or any(re.fullmatch(pattern, id) for id in WORDS)
        else:
            pattern = said.value
            known = (
                not (isinstance(pattern, str) and ID.fullmatch(pattern))
                or pattern in WORDS
                or pattern == "literal"
            )
        if not known:
            missing.append(f"{place}: {pattern}")
    missing += [
        f"{place}: {pattern}"
        for place, pattern in said_in_templates()
        if not any(re.fullmatch(pattern, id) for id in WORDS)
    ]
    assert not missing, "\n".join(missing)


def test_all_words_are_used():
    literals, patterns = set(), set()
    for node in chain.from_iterable(ast.walk(tree) for tree in sources().values()):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            literals.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            patterns.add(pattern_of(node))
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add)
            and isinstance(node.left, ast.Constant)
        ):
            patterns.add(f"{re.escape(str(node.left.value))}.+")
    for tree in templates().values():
        literals |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        patterns |= {shape(node) for node in tree.find_all(nodes.Concat)}
    # What ends an id on its own, as in f"{id}.why", f"{id}{part}" with part ".fix".
    suffixes = {word for word in literals if SUFFIX.fullmatch(word)}
    suffixes |= {
        p.removeprefix(".+").replace("\\", "") for p in patterns if re.fullmatch(r"\.\+(\\\.[a-z_]+)+", p)
    }
    begun = [re.compile(pattern) for pattern in patterns if re.match(r"[a-z_]+\\\.", pattern)]
    others = "".join(
        path.read_text(encoding="utf-8")
        for path in ROOT.rglob("assets/*")
        if path.suffix in (".js", ".html", ".py")
    )

    def used(id: str) -> bool:
        return id in literals or id in others or any(pattern.fullmatch(id) for pattern in begun)

    def used_as_part(id: str) -> bool:
        return any(id.endswith(suffix) and used(id.removesuffix(suffix)) for suffix in suffixes)

    assert not [id for id in WORDS if not used(id) and not used_as_part(id)]


def blanks_of(words: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", words))


def test_both_languages_say_the_same_with_the_same_blanks():
    assert set(WORDS) == set(CHINESE)
    wrong = [id for id in WORDS if blanks_of(WORDS[id]) != blanks_of(CHINESE[id])]
    assert not wrong, wrong
    empty = [id for id in WORDS if bool(WORDS[id].strip()) != bool(CHINESE[id].strip())]
    assert not empty, empty


def test_no_english_sentence_is_left_in_chinese():
    """Names, commands and units stay; three plain English words in a row are a sentence that nobody translated."""

    def is_left(english: str, chinese: str) -> bool:
        plain = re.sub(r"\{\w+\}|`[^`]*`|https?://\S+|\S*[/\\_=]\S*|\S*[.\-]\w\S*", " ", chinese)
        same = english == chinese and len(re.findall(r"\b[a-z]{3,}\b", plain)) > 2
        return same or bool(re.search(r"\b[a-z]{2,}(?: [a-z]{2,}){3,}\b", plain))

    assert is_left("It was saved there.", "It was saved there.") and not is_left("LoRA", "LoRA")
    left = [f"{id}: {CHINESE[id]}" for id in WORDS if is_left(WORDS[id], CHINESE[id])]
    assert not left, "\n".join(left)


def test_tabs_and_numbers_have_one_name():
    """A tab that is named otherwise is looked for in vain, and a loss with two names is taken for two numbers."""
    for words, tab, other in (
        (WORDS, r"\bthe ([A-Z]\w+) tab\b", r"(?i)\beval(uation|\.)? (loss|data)\b"),
        (CHINESE, r"“([^”]+)”页", "评估损失|评估数据|“诊断”"),
    ):
        tabs = {said for id, said in words.items() if re.fullmatch(r"ui\.tab\.\w+", id)}
        for id, said in words.items():
            assert set(re.findall(tab, said)) <= tabs and not re.search(other, said), id


def phases() -> set[str]:
    """Return the names of the phases that a run can enter, as they stand in the code that enters them."""
    found = set()
    for tree in sources().values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr == "phase":
                found |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
            elif getattr(node.func, "id", "") == "PhaseStarted":
                given = [word.value for word in node.keywords if word.arg == "phase"]
                found |= {value.value for value in given if isinstance(value, ast.Constant)}
    return found


def test_every_phase_has_a_name_in_the_terminal_and_in_the_window():
    assert {"wait", "download", "compile", "sample", "train"} <= phases()
    assert {f"{place}.{phase}" for phase in phases() for place in ("phase", "ui.phase")} <= WORDS.keys()


TRANSLATED = re.compile(
    r"\b(shall|stands?|goes before|counts? (at once|from)|holds? for|set right|at hand|meanwhile|who answers"
    r"|which state|run on show|take it with you|talks?|surroundings|further sources|become free|better of two"
    r"|reading on)\b",
    re.IGNORECASE,
)
"""Words that the window had said before and that read like a translation, most of them named by readers."""


def test_the_window_speaks_plain_english():
    words = json.loads((LOCALES / "en.json").read_text(encoding="utf-8"))
    shown = {
        id: said for id, said in words.items() if id.partition(".")[0] in ("ui", "knob", "plain", "preset")
    }
    assert len(shown) > 800
    assert {id: said for id, said in shown.items() if TRANSLATED.search(said)} == {}


def test_every_place_in_a_text_is_given_a_value():
    """A name that nobody gives would be shown in its braces."""
    open_places = []
    for name, tree in sources().items():
        for node in ast.walk(tree):
            called = getattr(node, "func", None)
            called = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if called not in ("text", "say") or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            given = {word.arg for word in node.keywords}
            wanted = {*re.findall(r"{(\w+)", WORDS.get(node.args[0].value, ""))}
            if None not in given and wanted - given:
                open_places.append(f"{name}:{node.lineno}: {node.args[0].value} lacks {wanted - given}")
    assert not open_places, "\n" + "\n".join(open_places)
