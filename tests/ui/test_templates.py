"""HTML from templates: values stay words, line breaks are layout, and what is compiled is kept and never trusted."""

from __future__ import annotations

import subprocess
import sys

import pytest
from jinja2 import DictLoader, UndefinedError
from markupsafe import Markup

from studio.ui import templates
from studio.ui.templates import UI, Compiled, environment, render, write_attributes

EVIL = "<img src=x onerror=alert(1)>\"'"
NAMES = sorted(path.relative_to(UI).as_posix() for path in UI.rglob("*.html"))


def show(source: str, **values: object) -> str:
    """Render `source` as a template of ours."""
    made = environment().overlay(loader=DictLoader({"it": source}), bytecode_cache=None, cache_size=0)
    return made.get_template("it").render(values)


@pytest.mark.parametrize("name", NAMES)
def test_every_template_compiles(name):
    assert environment().get_template(name).name == name


def test_a_value_is_never_html():
    shown = render("macros.html") + render("cards/note.html", words=EVIL, kind=EVIL, status=False)
    assert "<img" not in shown and "&lt;img" in shown and "\"'" not in shown
    shown = str(write_attributes({"value": EVIL, "id": EVIL}))
    assert "<img" not in shown and shown.count('"') == 4


def test_a_name_that_nobody_gave_is_refused():
    with pytest.raises(UndefinedError):
        show("<p>{{ words }}</p>")
    with pytest.raises(UndefinedError):
        show("<p>{{ run.nmae }}</p>", run={"name": "a"})


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("<div>\n  <p>a</p>\n  <p>b</p>\n</div>\n", "<div><p>a</p><p>b</p></div>"),
        ('<a id="x"\n   href="y">\n  {{ words }}\n</a>', '<a id="x" href="y">a\nb</a>'),
        ("<b>x</b> <i>{{ words }}</i>", "<b>x</b> <i>a\nb</i>"),
        ("<a\n{% if words %}\nhidden\n{% endif %}\n>x</a>", "<a  hidden  >x</a>"),
    ],
)
def test_line_breaks_lay_out_the_template_and_not_the_page(source, html):
    assert show(source, words="a\nb") == html


def test_attributes_are_written_when_they_say_something():
    given = {
        "do": "open",
        "value": 0,
        "id": "x",
        "aria_label": "a",
        "disabled": True,
        "confirm": "",
        "mark": None,
    }
    assert write_attributes(given) == ' data-do="open" data-value="0" id="x" aria-label="a" disabled'


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "UI", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path / "__pycache__"


def compile_once(source: str, kept) -> tuple[str, bool]:
    """Return what a template shows, and whether it was compiled for it."""
    before = {file: file.stat().st_mtime_ns for file in kept.glob("*")}
    made = environment().overlay(loader=DictLoader({"it": source}), bytecode_cache=Compiled(), cache_size=0)
    shown = made.get_template("it").render(a=1)
    return shown, before != {file: file.stat().st_mtime_ns for file in kept.glob("*")}


def test_what_was_compiled_is_taken_again_until_something_of_it_changes(kept):
    assert compile_once("<p>{{ a }}</p>", kept) == ("<p>1</p>", True)
    assert compile_once("<p>{{ a }}</p>", kept) == ("<p>1</p>", False)
    assert compile_once("<b>{{ a }}</b>", kept) == ("<b>1</b>", True)
    (file,) = kept.glob("*.template")
    for damaged in (b"", file.read_bytes()[:-9], file.read_bytes()[:40] + b"x" + file.read_bytes()[41:]):
        file.write_bytes(damaged)
        assert compile_once("<b>{{ a }}</b>", kept) == ("<b>1</b>", True)


def test_a_program_that_may_only_be_read_works(kept):
    kept.write_text("no folder", encoding="utf-8")
    assert compile_once("<p>{{ a }}</p>", kept)[0] == "<p>1</p>"


def test_importing_compiles_and_reads_nothing():
    code = "import studio.ui.templates as t, sys; print(t.environment.cache_info().currsize, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=UI.parents[1], check=True
    )
    assert done.stdout.split() == ["0", "False"]


def test_markup_within_a_template_stays_markup():
    assert show("{{ a }}{{ b }}", a=Markup("<b>x</b>"), b="<b>") == "<b>x</b>&lt;b&gt;"
