"""No words for a person stand in the code of the window: they are in assets/locales, in every language."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    "Finetune Studio",
    "English",
    "Python",
    "https://hf-mirror.com",
    "http://127.0.0.1:8080/v1",
    "×",
    "UTF-8",
    "GiB",
    "MiB",
}
"""What is the same in every language."""
SPOKEN = ("label", "info", "placeholder", "title", "description", "submit_btn", "stop_btn", "message")
WORD = re.compile(r"[A-Za-z]{2,}|[\u3400-\u9fff]")
BETWEEN_TAGS = re.compile(r">([^<>]+)<")
SAID_BY_TAGS = re.compile(r"""\b(?:aria-label|aria-description|title|placeholder|alt)=(["'])(.*?)\1""")
BLANK = "\N{REPLACEMENT CHARACTER}"
"""Stands for what is put into a string when it is said."""
JS_SAID = re.compile(
    r"""(?:\.(?:textContent|innerText|innerHTML|title|ariaLabel|placeholder|alt)\s*\+?=(?!=)\s*|"""
    r"""\b(?:alert|prompt|confirm|Notification|createTextNode)\(\s*|"""
    r"""setAttribute\(\s*["'](?:aria-label|aria-description|title|placeholder|alt)["']\s*,\s*)"""
    r"""(["'`])((?:\\.|(?!\1).)*)\1"""
)


@cache
def python_files() -> tuple[Path, ...]:
    return tuple(
        path for part in ("ui", "services") for path in sorted((ROOT / "studio" / part).rglob("*.py"))
    )


def is_words(said: str) -> bool:
    """Whether a string would be read by a person: letters that are no name, no blank, no entity."""
    left = re.sub(r"&#?\w+;", "", said.replace(BLANK, " ")).strip()
    return bool(WORD.search(left)) and left not in NAMES


def whole(node: ast.expr) -> str:
    """Return the words of a string or f-string, with BLANK for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else BLANK for part in node.values)
    return ""


def html_words(text: str):
    """Yield what a piece of HTML says by itself."""
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    for found in BETWEEN_TAGS.findall(text):
        yield found
    for _, found in SAID_BY_TAGS.findall(text):
        yield found


def words_in_python(source: str):
    """Yield (line, words) that a file's components or HTML say by themselves."""
    tree = ast.parse(source)
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("gr."):
            spoken = [word.value for word in node.keywords if word.arg in SPOKEN]
            if ast.unparse(node.func) in (
                "gr.Button",
                "gr.Tab",
                "gr.Accordion",
                "gr.Markdown",
                "gr.Info",
                "gr.Error",
            ):
                spoken += node.args[:1] + [word.value for word in node.keywords if word.arg == "value"]
            yield from ((node.lineno, whole(one)) for one in spoken if is_words(whole(one)))
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in documents | inside:
            for found in html_words(whole(node)):
                if is_words(found):
                    yield node.lineno, found.strip()


def words_in_script(source: str):
    """Yield the words that a script shows by itself."""
    for _, said in JS_SAID.findall(source):
        plain = re.sub(r"\$\{[^}]*\}", BLANK, said)
        if is_words(re.sub(r"<[^>]*>", "", plain)):
            yield said


def words_in_page(source: str):
    """Yield the words that a page says by itself; {{blanks}} are said elsewhere."""
    for script in re.findall(r"<script>(.*?)</script>", source, re.S):
        yield from words_in_script(script)
    page = re.sub(r"<(script|style)>.*?</\1>", "", source, flags=re.S)
    page = re.sub(r"\{#.*?#\}|\{%.*?%\}", "", page, flags=re.S)
    page = re.sub(r"\{\{.*?\}\}", BLANK, page, flags=re.S)
    yield from (found.strip() for found in html_words(page) if is_words(found))


def test_no_component_and_no_card_has_words_of_its_own():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in python_files()
        for line, words in words_in_python(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_script_and_no_page_has_words_of_its_own():
    folders = (ROOT / "assets", ROOT / "studio" / "ui")
    found = [
        f"{path.name}: {one}"
        for path in sorted(path for folder in folders for path in folder.rglob("*.js"))
        for one in words_in_script(path.read_text(encoding="utf-8"))
    ]
    found += [
        f"{path.name}: {one}"
        for path in sorted(path for folder in folders for path in folder.rglob("*.html"))
        for one in words_in_page(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'gr.Button("Start")',
        'gr.Textbox(label="Name")',
        'gr.Dropdown(info=f"At most {n} rows")',
        'x = f"<p>{say(1)} of 3 rows</p>"',
        """x = '<button aria-label="Close">x</button>'""",
        'x = "<b>训练</b>"',
    ],
)
def test_hard_words_in_python_are_found(source):
    assert list(words_in_python(f"import gradio as gr\n{source}"))


@pytest.mark.parametrize(
    "source",
    [
        'gr.Button(say("ui.run.start"), elem_id="run-start")',
        'x = f"<p class=\\"soft\\">{say(1)} · {size} &nbsp;</p>"',
        '"""A docstring with <b>words</b>."""',
        'x = "<h1>Finetune Studio</h1>"',
        "x = a > 3 and b < 4",
    ],
)
def test_what_is_said_by_id_is_not(source):
    assert not list(words_in_python(source))


def test_hard_words_in_scripts_and_pages_are_found():
    assert list(words_in_script('part.textContent = "Saved";')) and list(words_in_script("alert('No way')"))
    assert list(words_in_script("a.title = `${n} rows`")) and not list(
        words_in_script("a.title = `${n} · ${m}`")
    )
    assert not list(words_in_script('if (a.textContent === "x") b.dataset.name = "Saved"'))
    assert list(words_in_page("<p>Wait</p>")) == ["Wait"]
    assert not list(words_in_page("<p>{{NOTE}}</p><style>p { color: red; }</style>"))
    assert list(words_in_page("{% if a %}<p>Wait {{ b }}</p>{% endif %}")) and not list(
        words_in_page('<p {% if a > 3 %}id="x"{% endif %}>{# some words #}{{ t("x") }}</p>')
    )
