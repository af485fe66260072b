"""What a window is made of, where Gradio offers no way of its own: numbers of parts, values in the page, words."""

from __future__ import annotations

import sys
import traceback
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


def quote_fault(error: Exception, letters: int) -> str:
    """Return the end of an error's traceback in lines of a mark of their own, without any control sign.

    What a guest sent stands in it: it must not colour the owner's terminal or look like a line of the log.
    """
    lines = "".join(traceback.format_exception(error))[-letters:].splitlines()
    plain = ("".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line) for line in lines)
    return "".join(f"| {line}\n" for line in plain)


class TerseBlocks(gr.Blocks):
    """An app that writes no more tracebacks than a log's disk can take: Gradio writes one for whatever a page sends."""

    faults, most_faults, fault_letters = 0, 20, 4000
    """So many go to the log, and so much of the end of each: Gradio quotes what was sent, up to 64 KB."""

    async def process_api(self, *parts: Any, **options: Any) -> dict[str, Any]:
        """Do as Gradio does, with `most_faults` tracebacks at most."""
        try:
            return await super().process_api(*parts, **options)
        except Exception as error:  # whatever a guest's words make Gradio or a handler stumble over
            told = error if isinstance(error, gr.Error) else gr.Error("", visible=False)
            self.faults += told.print_exception
            if told.print_exception and self.faults <= self.most_faults:
                print(quote_fault(error, self.fault_letters), end="", file=sys.stderr, flush=True)
            told.print_exception = False
            raise told from error.__cause__ if told is error else error
