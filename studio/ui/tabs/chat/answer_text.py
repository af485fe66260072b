"""An answer of a model as HTML: every character escaped; code, bold, lists and headings shown, thoughts folded.

What a model writes is not to be trusted: no link can be clicked, no image is ever loaded, and of HTML nothing comes
through. The only tags in the result are those written here: by hand, as a template took four times as long.
"""

from __future__ import annotations

import re
from html import escape

from markupsafe import Markup

THOUGHT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
FENCE = re.compile(
    r"^[ ]{0,3}(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ ]{0,3}\1[`~]*[ \t]*$\n?|\Z)", re.DOTALL | re.MULTILINE
)
HEADING = re.compile(r"#{1,6} +(\S.*)")
BULLET = re.compile(r" {0,8}[-*+] +(\S.*)")
NUMBER = re.compile(r" {0,8}(\d{1,9})[.)] +(\S.*)")
CODE = re.compile(r"(`{1,3})(?!`)(.{1,500}?)(?<!`)\1(?!`)")
BOLD = re.compile(r"\*\*(?=\S)(.{1,500}?)(?<=\S)\*\*")


def show_answer(words: str, thought: str) -> Markup:
    """Return `words` as HTML; `thought` is what the folded part between <think> and </think> is called."""
    parts, at = [], 0
    if "<think>" not in words and "</think>" in words:  # the template wrote the opening itself
        words = f"<think>{words}"
    for found in THOUGHT.finditer(words):
        parts.append(_show_blocks(words[at : found.start()]))
        if found[1].strip():
            inner = escape(found[1].strip())
            parts.append(
                f'<details class="thought"><summary>{escape(thought)}</summary><p>{inner}</p></details>'
            )
        at = found.end()
    parts.append(_show_blocks(words[at:]))
    return Markup("".join(parts))


def _show_blocks(words: str) -> str:
    parts, at = [], 0
    for found in FENCE.finditer(words):
        parts.append(_show_lines(words[at : found.start()]))
        parts.append(f'<pre tabindex="0"><code>{escape(found[2].rstrip(chr(10)))}</code></pre>')
        at = found.end()
    parts.append(_show_lines(words[at:]))
    return "".join(parts)


def _show_lines(words: str) -> str:
    """Return lines as paragraphs, headings and lists; blank lines part paragraphs."""
    out: list[str] = []
    kind, open_lines = "", []

    def close() -> None:
        nonlocal kind
        if kind == "p":
            out.append(f"<p>{'<br>'.join(open_lines)}</p>")
        elif kind:
            out.append(f"<{kind}>{''.join(open_lines)}</{kind}>")
        kind = ""
        open_lines.clear()

    def add(wanted: str, line: str) -> None:
        nonlocal kind
        if kind != wanted:
            close()
            kind = wanted
        open_lines.append(line)

    for line in words.splitlines():
        if not line.strip():
            close()
        elif found := HEADING.fullmatch(line):
            close()
            out.append(f'<p class="heading"><strong>{_show_words(found[1])}</strong></p>')
        elif found := BULLET.fullmatch(line):
            add("ul", f"<li>{_show_words(found[1])}</li>")
        elif found := NUMBER.fullmatch(line):
            add("ol", f'<li value="{int(found[1])}">{_show_words(found[2])}</li>')
        else:
            add("p", _show_words(line))
    close()
    return "".join(out)


def _show_words(line: str) -> str:
    """Return a line with `code` and **bold**; what stands in code stays as it is."""
    parts, at = [], 0
    for found in CODE.finditer(line):
        parts.append(_embolden(line[at : found.start()]))
        parts.append(f"<code>{escape(found[2].strip())}</code>")
        at = found.end()
    parts.append(_embolden(line[at:]))
    return "".join(parts)


def _embolden(words: str) -> str:
    return BOLD.sub(r"<strong>\1</strong>", escape(words))
