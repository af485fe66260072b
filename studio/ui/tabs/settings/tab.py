"""The Settings tab: what holds for the studio as a whole, each setting with when it counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import LANGUAGES, text
from studio.ui.cards import heading
from studio.ui.context import Context
from studio.ui.quantities import size_words
from studio.ui.share.card import SharePart
from studio.ui.shell.html_events import make_voice, read_said
from studio.ui.shell.scripts import read_script
from studio.ui.tabs.settings.cards import SettingsState, settings_body
from studio.ui.templates import render

ANSWER_S = 1.0
CARDS = {"theme": "look", "window": "look", "gpu": "machine", "kernels": "machine", "memory_share": "machine"}
"""Choices with a few values -> the card that they stand in."""


class SettingsTab:
    """Components and handlers. What a page says is checked where it is kept (studio/services/preferences.py)."""

    def __init__(self, context: Context) -> None:
        self.context = context
        say = context.say
        gr.HTML(
            heading(say("ui.preferences.title"), say("ui.preferences.lead")),
            elem_id="settings-head",
        )
        with gr.Column(elem_id="settings-cards"):
            script = read_script("tabs/settings/script.js")
            self.body = gr.HTML("", js_on_load=script, elem_id="settings-body")
            self.voice = make_voice("#settings-cards", "settings-said")
        self.share = SharePart(context)

    def bind(self, tab: gr.Tab, change_language: Callable[[str], None]) -> None:
        """Draw when the tab is opened, and after each wish."""
        self._change_language = change_language
        on = self.context.on
        # A keyring may take its time: all else is there at once.
        shown = on(tab.select, lambda: self.draw(wait=False), [], [self.body])
        on(shown.then, self.draw, [], [self.body])
        # What was said is forgotten with the answer: it may have been a token.
        on(self.voice.said, self.hear, [self.voice], [self.body, self.voice], trigger_mode="multiple")
        self.share.bind(tab)
        gr.HTML(
            render("tabs/settings/second_window.html", self.context.say),
            js_on_load=read_script("tabs/settings/second_window.js"),
            elem_id="second-window",
        )

    def draw(self, card: str = "", said: str = "", *, wait: bool = True, **changes: Any) -> str:
        """Return the cards as the settings stand; `said` is what came of a wish, shown in `card`.

        Without `wait` what is not known of the token is left open.
        """
        desk, preferences = self.context.desk, self.context.desk.settings
        if desk.restarting and not said:  # whoever else draws must not wipe it off
            card, said = "machine", self.context.say("ui.doctor.restarting")
        state = SettingsState(
            language=self.context.language,
            choices=preferences.read(),
            cards=preferences.cards(),
            fixed=preferences.fixed(),
            restart_waits=preferences.restart_waits(),
            workspace=self.context.workspace.root,
            parts=preferences.parts(),
            model_folders=preferences.model_folders(),
            exports_folder=preferences.chosen_exports_folder(),
            token=preferences.token(wait=wait),
            token_variable=preferences.token_variable(),
            mirror=desk.machine.mirror(),
            versions=preferences.versions(),
            paths=preferences.paths(),
            working=desk.working(),
            said=(card, said),
            **changes,
        )
        return settings_body(state, self.context.say)

    def hear(self, said: object) -> tuple[str, dict]:
        """Do what a part of the tab was used for; return the tab anew, and nothing as what was said."""
        do, value, form = read_said(said)
        field = {name: str(words) for name, words in form.items()}
        return self._do(do, value, field), {}

    def _do(self, do: str, value: str, field: dict[str, str]) -> str:
        desk, say = self.context.desk, self.context.say
        preferences = desk.settings
        kept = say("ui.preferences.kept")
        if do == "language" and value in LANGUAGES:
            self._change_language(value)
            return self.draw("look", kept)
        if do in CARDS:
            preferences.choose(do, _read_share(value) if do == "memory_share" else value)
            return self.draw(CARDS[do], kept)
        if do == "offline":
            preferences.choose(do, value == "true")
            return self.draw("machine", kept)
        if do == "restart":
            if not desk.restart():
                raise StudioError(
                    text("ui.doctor.restart.alone"),
                    text("ui.doctor.restart.alone.why"),
                    text("ui.doctor.restart.alone.fix"),
                )
            return self.draw()
        if do == "keep-token":
            preferences.keep_token(field.get("token", ""))
            return self.draw("hub", kept)
        if do == "drop-token":
            preferences.keep_token("")
            return self.draw("hub", say("ui.preferences.token.gone"))
        if do == "mirror":
            desk.machine.set_mirror(field.get("mirror", ""))
            return self.draw("hub", say("ui.preferences.mirror.kept"))
        if do == "mirror_token":
            desk.machine.allow_token(value == "true")
            return self.draw("hub", kept)
        if do == "add-folder":
            preferences.add_model_folder(field.get("folder", ""))
            return self.draw("folders", kept)
        if do == "drop-folder":
            preferences.drop_model_folder(value)
            return self.draw("folders", kept)
        if do == "exports":
            preferences.set_exports_folder(field.get("exports", ""))
            return self.draw("folders", kept)
        if do == "empty":
            freed = preferences.empty_caches()
            return self.draw("folders", say("ui.preferences.emptied", size=size_words(freed)))
        return self._quit(do)

    def _quit(self, do: str) -> str:
        """Ask first while something is on that ends with it; the answer to that, or a wish without, ends the studio."""
        desk = self.context.desk
        if do == "quit" and desk.working():
            return self.draw(quitting=True)
        if do in ("quit", "quit-now"):
            # The answer is to reach the page before the server ends.
            threading.Timer(ANSWER_S, desk.quit).start()
            return self.draw(ended=True)
        return self.draw()


def _read_share(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0
