"""What a window is made of, where Gradio offers no way of its own: numbers of parts, values in the page, words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.context import Context as BuildContext


def count_from_nought() -> None:
    """Let Gradio number the parts of the next window from 0, so that the same one in another language has the same."""
    BuildContext.id = 0


def fill_values(blocks: gr.Blocks, values: Mapping[str, Any]) -> None:
    """Put `values`, by elem_id, into what a page is made of: no event is needed to bring them."""
    for part in blocks.config["components"]:
        name = part["props"].get("elem_id")
        if name in values:
            part["props"]["value"] = values[name]


def take_words(blocks: gr.Blocks, twin: gr.Blocks) -> None:
    """Let the pages of `blocks` be made of what `twin` says, the same window in another language, not launched.

    Only what a page is made of is replaced, the server's state stays. The ids stay those of `blocks`: every update of
    an open page counts Gradio's own counter on.
    """
    twin.theme, twin.css, twin.js, twin.head = blocks.theme, blocks.css, blocks.js, blocks.head
    pairs = zip(blocks.config["components"], twin.get_config_file()["components"], strict=True)
    blocks.config = blocks.config | {"components": [new | {"id": old["id"]} for old, new in pairs]}


def scope_of(request: Any) -> Mapping[str, Any]:
    """Return the scope of a handler's request: a server function gets the bare one, an event one that holds it."""
    return getattr(getattr(request, "request", request), "scope", None) or {}


class TerseBlocks(gr.Blocks):
    """An app that writes no more tracebacks than a log's disk can take: Gradio writes one for whatever a page sends."""

    faults, most_faults = 0, 20

    async def process_api(self, *parts: Any, **options: Any) -> dict[str, Any]:
        """Do as Gradio does, with `most_faults` tracebacks at most."""
        try:
            return await super().process_api(*parts, **options)
        except Exception as error:  # whatever a guest's words make Gradio or a handler stumble over
            told = error if isinstance(error, gr.Error) else gr.Error("", visible=False)
            self.faults += told.print_exception
            told.print_exception = told.print_exception and self.faults <= self.most_faults
            raise told from error.__cause__ if told is error else error
