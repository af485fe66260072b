"""Sharing in Settings: the switch, the link and its phrase, who is connected, and the end of it all."""

from __future__ import annotations

from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.services.share_files import ROLES, WAYS
from studio.services.sharing import HOURS
from studio.ui.context import Context
from studio.ui.share.view import share_card
from studio.ui.shell.html_events import make_voice, read_said

LOOK_S = 3.0
"""How often a page looks while something is shared: for the link, for who comes and goes. An idle page does not."""


class SharePart:
    """Component and handlers; place it inside the Settings tab, then call bind()."""

    def __init__(self, context: Context) -> None:
        self.context = context
        with gr.Column(elem_id="share-part"):
            self.card = gr.HTML("", elem_id="share-card")
            self.voice = make_voice("#share-part", "share-said")

    def bind(self, tab: gr.Tab | None = None) -> None:
        """Draw on every page load, when `tab` is opened, after every press, and every LOOK_S while shared."""
        on = self.context.on
        self.seen = gr.State(-1)
        self.timer = gr.Timer(LOOK_S, active=False)
        outputs = [self.card, self.seen, self.timer]

        def load(*given: Any, **options: Any) -> Any:
            return gr.on(None, *given, **options)

        on(load, self.draw, [], outputs)
        if tab is not None:
            on(tab.select, self.draw, [], outputs)
        on(self.timer.tick, self.look, [self.seen], outputs)
        on(self.voice.said, self.hear, [self.voice], outputs, trigger_mode="multiple")

    def draw(self) -> list[Any]:
        """Return the card, its number, and the timer's state as things stand."""
        view, say = self.context.desk.sharing.view(), self.context.say
        return [share_card(view, say), view.number, gr.Timer(active=view.on)]

    def look(self, seen: int) -> list[Any]:
        """Return what has changed since `seen`; nothing at all when nothing has."""
        if self.context.desk.sharing.view().number == seen:
            return [gr.skip()] * 3
        return self.draw()

    def hear(self, said: object) -> list[Any]:
        """Do what a button says. Raises StudioError."""
        do, value, form = read_said(said)
        sharing = self.context.desk.sharing
        if do == "open":
            way, hours = str(form.get("way", "")), str(form.get("hours", ""))
            if way not in WAYS or hours not in map(str, HOURS):
                raise StudioError(text("share.choice"), text("share.choice.why"), text("share.choice.fix"))
            sharing.open(way, hours=int(hours))
        elif do == "close":
            sharing.close(value if value in ROLES else "")
        elif do == "renew" and value in ROLES:
            sharing.renew_phrase(value)
        elif do == "disconnect":
            sharing.disconnect(value)
        return self.draw()
