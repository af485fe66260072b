"""HTML from Jinja2 templates: every value escaped, a name that nobody gave refused, texts said by `t`.

A template lies beside the code that fills it and is named by its path below studio/ui. Its line breaks lay out the
file, not the page: outside of a tag they are nothing, inside of one a space. A space to be seen stands within a line.
"""

from __future__ import annotations

import hashlib
import marshal
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket, bc_magic
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from markupsafe import Markup, escape

from studio.core.atomic_files import write_file
from studio.ui.quantities import count_words, size_words

UI = Path(__file__).resolve().parent
ICONS = UI.parents[1] / "assets" / "icons"
MARK_BYTES = 32
BREAK = re.compile(r"[ \t]*\n\s*")
PLAIN = ("id", "title", "disabled", "hidden", "checked", "name")
"""Attributes that are written as they are called; others of a part are its data-."""


def render(template: str, say: Callable[..., str] | None = None, /, **values: object) -> Markup:
    """Return the HTML of a template, such as "tabs/runs/table.html"; in it `t` is `say`, others are `values`."""
    return Markup(environment().get_template(template).render(values, t=say))


@cache
def environment() -> Environment:
    """Return the one set of templates, each read when it is rendered first, and compiled when it has changed."""
    made = Environment(
        loader=FileSystemLoader(UI),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=[LineBreaks],
        bytecode_cache=Compiled(),
        auto_reload=False,
        cache_size=-1,
    )
    made.filters |= {
        "attributes": write_attributes,
        "size": size_words,
        "short": count_words,
        "thousands": "{:,}".format,
        "share": "{:.0%}".format,
        "gib": lambda size_bytes: f"{size_bytes / 2**30:.1f}",
    }
    made.globals["icon"] = read_icon
    return made


@cache
def read_icon(name: str) -> Markup:
    """Return a picture of assets/icons as SVG, for the page itself."""
    return Markup((ICONS / f"{name}.svg").read_text(encoding="utf-8"))


def write_attributes(values: Mapping[str, object]) -> Markup:
    """Return ` name="value"` of each: PLAIN ones and aria_ as they are called, all others as data-.

    What is None, False or "" is left out; True stands alone.
    """
    parts = []
    for name, value in values.items():
        if value is None or value is False or value == "":
            continue
        name = name.replace("_", "-")
        name = name if name in PLAIN or name.startswith("aria-") else f"data-{name}"
        parts.append(f" {name}" if value is True else f' {name}="{escape(value)}"')
    return Markup("".join(parts))


class LineBreaks(Extension):
    """Takes the line breaks out of a template's own HTML; values are never touched."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        inside = False
        for token in stream:
            if token.type != "data":
                yield token
                continue
            lines = []
            for number, line in enumerate(BREAK.split(token.value)):
                lines.append(" " if number and inside else "")
                lines.append(line)
                if "<" in line or ">" in line:
                    inside = line.rfind("<") > line.rfind(">")
            yield Token(token.lineno, "data", "".join(lines))


class Compiled(BytecodeCache):
    """Keeps compiled templates beside Python's own compiled files: to compile one takes 2 to 20 ms, to load it 0.2.

    Each file begins with a hash of all that made it: damaged, or of another source, Jinja or Python, it is not read.
    """

    def __init__(self) -> None:
        self._maker = bc_magic + Path(__file__).read_bytes()

    def load_bytecode(self, bucket: Bucket) -> None:
        file = self._file(bucket)
        content = file.read_bytes() if file.is_file() else b""
        mark, code = content[:MARK_BYTES], content[MARK_BYTES:]
        if mark == self._mark(bucket, code):
            bucket.code = marshal.loads(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        code, file = marshal.dumps(bucket.code), self._file(bucket)
        if sys.dont_write_bytecode:
            return
        try:
            file.parent.mkdir(exist_ok=True)
            write_file(file, self._mark(bucket, code) + code)
        except OSError:
            return  # a program that may only be read: Python leaves its own files unwritten, too

    def _mark(self, bucket: Bucket, code: bytes) -> bytes:
        return hashlib.sha256(self._maker + bucket.checksum.encode() + code).digest()

    def _file(self, bucket: Bucket) -> Path:
        return UI / "__pycache__" / f"{bucket.key}.template"
