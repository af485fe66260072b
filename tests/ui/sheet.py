"""What a tab is drawn into when a test calls its handlers itself: Gradio's Blocks without a server."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import gradio as gr
from gradio.blocks import BlockContext
from gradio.context import Context, set_render_context


class Sheet(gr.Blocks):
    """A window that is never served: Gradio's own makes its hundred routes twice, 0.2 s each time."""

    def __init__(self) -> None:
        super().__init__(analytics_enabled=False)

    def queue(self, *_: object, **__: object) -> Self:
        """Do nothing: who calls handlers needs no queue."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None = None, *_: BaseException | TracebackType | None
    ) -> None:
        """Do as Gradio does, but for the server and its page."""
        if kind is None:
            BlockContext.fill_expected_parents(self)
            self.default_config.attach_load_events()
        set_render_context(self.parent)
        Context.root_block = None
