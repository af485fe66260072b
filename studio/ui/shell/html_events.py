"""How the buttons inside of a screen's cards reach the server: one unseen component a screen, with the event `said`."""

from __future__ import annotations

import gradio as gr

from studio.ui.shell.scripts import read_script


def make_voice(screen: str, elem_id: str) -> gr.HTML:
    """Return the component that hears every `data-do` of buttons, selects, inputs and textareas below `screen`.

    `screen` is a CSS selector of an element around the component, such as `#tab-runs`. Its event `said` comes with the
    value {do, value, form, number}: `do` and `value` as the part's data-do and data-value say (a select's or a field's
    own value), `form` the fields with a name in the part's closest [data-form]. What a page sends is to be checked like
    any input.
    `data-confirm` on a button is a question that must be answered with yes first; `data-focus` names a part that keeps
    the focus when its card is drawn anew.
    """
    return gr.HTML(
        {},
        html_template=f'<i data-screen="{screen}"></i>',
        js_on_load=read_script("shell/html_events.js"),
        elem_id=elem_id,
        elem_classes=["unseen"],
    )


def make_escape(screen: str, elem_id: str) -> gr.HTML:
    """Return the component by which Escape presses the Stop button below `screen`."""
    return gr.HTML(
        "",
        html_template=f'<i data-screen="{screen}"></i>',
        js_on_load=read_script("shell/escape_stops.js"),
        elem_id=elem_id,
        elem_classes=["unseen"],
    )


def read_said(said: object) -> tuple[str, str, dict[str, object]]:
    """Return (do, value, form) of what a page said; empty ones for whatever is not of that form."""
    if not isinstance(said, dict):
        return "", "", {}
    do, value, form = said.get("do"), said.get("value"), said.get("form")
    fields = form.items() if isinstance(form, dict) else ()
    cleaned = {name: whole(part) if isinstance(part, str) else part for name, part in fields}
    return whole(str(do or "")), whole(str(value or "")), cleaned


def whole(words: str) -> str:
    """Return `words` with ? for each half of a character: a page can cut an emoji in two, no file could keep it."""
    return words.encode("utf-8", "replace").decode("utf-8")
