"""What all tabs share: the desk, the language, the runs as folded so far, and the guard around every handler."""

from __future__ import annotations

import html
import inspect
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from studio.core.codec import from_json, to_json
from studio.core.errors import RecipeError, StudioError
from studio.core.migrate import lift
from studio.core.recipe import Recipe
from studio.core.text import Catalogue, Text, load_catalogue, text
from studio.host.failures import refuse_system
from studio.host.settings import change_settings, write_json
from studio.ui.gate import Keys
from studio.ui.live import LiveView, fold


class Context:
    """One studio's window: `desk` does the work, everything else here is about showing it."""

    def __init__(self, desk: Any, workspace: Any, keys: Keys, language: str) -> None:
        self.desk = desk
        self.workspace = workspace
        self.keys = keys
        self.words: Catalogue = load_catalogue(language)
        self.turn = threading.Lock()
        """Held while the window is built anew."""
        self._views: dict[str, LiveView] = {}
        self._lock = threading.Lock()

    @property
    def language(self) -> str:
        """The language that the window speaks."""
        return self.words.language

    def say(self, message: Text | str, /, **values: object) -> str:
        """Return the words of a Text, or of the text with that id and `values`."""
        return self.words.say(text(message, **values) if isinstance(message, str) else message)

    def speak(self, language: str) -> None:
        """Change the language and remember it in the settings."""
        self.words = load_catalogue(language)
        change_settings(self.workspace, language=self.language)

    def view(self, run: str) -> LiveView:
        """Return the run as it stands now; only events that are new since the last call are read."""
        with self._lock:
            before = self._views.get(run, LiveView())
            after = fold(before, self.desk.events(run, after=before.seq))
            self._views[run] = after
        return after

    def draft(self) -> Recipe:
        """Return the recipe as the person left the form, else the demo's; an unreadable draft counts as none."""
        try:
            data = json.loads((self.workspace.root / "draft.json").read_text(encoding="utf-8"))
            return from_json(Recipe, lift("recipe", data))
        except (OSError, ValueError, AttributeError, TypeError, StudioError):
            return self.desk.demo_recipe()

    def keep_draft(self, recipe: Recipe) -> None:
        """Remember the form's recipe, so that a reload shows it again."""
        write_json(self.workspace.root / "draft.json", to_json(recipe))

    def owner(self, request: gr.Request) -> bool:
        """Return whether the owner asks; the one place that knows roles (guests join with sharing)."""
        return request is not None and self.keys.admits(request.cookies)

    def on(
        self,
        event: Callable,
        work: Callable,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Bind `work` to a Gradio event: the caller is checked, refusals become messages, no progress veil."""
        options = {
            "show_progress": "hidden",
            "concurrency_limit": None,
            "api_visibility": "private",
        } | options
        return event(self._guarded(work), list(inputs), list(outputs), **options)

    def _guarded(self, work: Callable) -> Callable:
        if inspect.isgeneratorfunction(work):

            def stream(request: gr.Request, *values: Any):
                self._check_owner(request)
                try:
                    yield from work(*values)
                except StudioError as error:
                    raise self.refusal(error) from error
                except OSError as error:  # a full disk, a folder that may not be read
                    raise self.refusal(refuse_system(error)) from error

            return stream

        def answer(request: gr.Request, *values: Any) -> Any:
            self._check_owner(request)
            try:
                return work(*values)
            except StudioError as error:
                raise self.refusal(error) from error
            except OSError as error:
                raise self.refusal(refuse_system(error)) from error

        return answer

    def _check_owner(self, request: gr.Request) -> None:
        if not self.owner(request):
            raise gr.Error(self.say("ui.gate.401"), print_exception=False)

    def refusal(self, error: StudioError) -> gr.Error:
        """Return the message that shows `error`; its words are escaped, because Gradio shows messages as HTML."""
        parts = [error.what, error.why, error.fix]
        if isinstance(error, RecipeError) and len(error.problems) > 1:
            parts = [part for problem in error.problems for part in (problem.message, problem.fix)]
        message = "<br>".join(html.escape(self.say(part)) for part in parts)
        return gr.Error(message, duration=12, print_exception=False)
