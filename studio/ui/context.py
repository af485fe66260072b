"""What all tabs share: the desk, the language, the runs as folded so far, and the guard around every handler."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import gradio as gr
from markupsafe import Markup

from studio.core.atomic_files import write_json
from studio.core.codec import from_json, to_json
from studio.core.errors import RecipeError, StudioError
from studio.core.i18n import Catalogue, Text, literal, load_catalogue, text
from studio.core.json_file import read_json
from studio.core.migrate import lift
from studio.core.recipe import Recipe, change_recipe
from studio.machine.failures import refuse_system
from studio.machine.settings import change_settings, read_settings
from studio.machine.workspace import refuse_gone
from studio.services.process_renewal import IdleRestart
from studio.ui.auth.middleware import CALLER, ROLE
from studio.ui.auth.owner import Keys
from studio.ui.completions.switch import AddressSwitch
from studio.ui.guest.cards import GuestRedactor
from studio.ui.run_state import LiveView, fold
from studio.ui.shell.blocks import scope_of

if TYPE_CHECKING:
    from studio.services.desk import Desk

ASKING: ContextVar[tuple[str, str]] = ContextVar("asking", default=("owner", ""))
"""Role and name of the page whose handler is at work. Outside of any it is the studio itself that asks."""

KEPT_VIEWS = 8
"""So many runs stay in memory as they were last shown; any other is made anew from its events."""


class Context:
    """One studio's window: `desk` does the work, everything else here is about showing it."""

    def __init__(self, desk: Desk, workspace: Any, keys: Keys, language: str) -> None:
        self.desk = desk
        self.renewal = IdleRestart(desk)
        self.address = AddressSwitch(desk, lambda: self.language)
        self.workspace = workspace
        self.keys = keys
        self.words: Catalogue = load_catalogue(language)
        self.turn = threading.Lock()
        """Held while the window is built anew."""
        self.editing = threading.RLock()
        """Held from reading the draft to keeping it, so that two edits at once both count."""
        self.on_draft: Callable[[], None] = lambda: None
        """Called when another draft is kept."""
        self._views: dict[str, LiveView] = {}
        """Of the last runs that were asked for, the newest at the end."""
        self._lock = threading.Lock()

    @property
    def language(self) -> str:
        """The language that the window speaks."""
        return self.words.language

    def say(self, message: Text | str, /, **values: object) -> str:
        """Return the words of a Text, or of the text with that id and `values`."""
        return self.words.say(text(message, **values) if isinstance(message, str) else message)

    def say_error(self, error: BaseException) -> str:
        """Return what is told of a job's failure in its own place: what happened, why, and what helps."""
        if isinstance(error, OSError):
            error = self.refuse_system(error)
        if not isinstance(error, StudioError):
            words = f"{type(error).__name__}: {error}"[:300]
            error = StudioError(text("ui.job.failed"), literal(words), text("ui.job.failed.fix"))
        return " ".join(self.say(part) for part in (error.what, error.why, error.fix))

    def refuse_system(self, error: OSError) -> StudioError:
        """Return what is told of a refusal of the system's."""
        return refuse_gone(self.workspace, error) or refuse_system(error)

    def speak(self, language: str) -> None:
        """Change the language and remember it in the settings."""
        words = load_catalogue(language)
        change_settings(self.workspace, language=words.language)
        self.words = words

    def theme(self) -> str:
        """Return the colours that the person chose: light, dark, "" for the system's."""
        return read_settings(self.workspace).get("theme", "")

    def view(self, run: str) -> LiveView:
        """Return the run as it stands now; only events that are new since the last call are read."""
        with self._lock:
            # Taken out first: of a run that is gone none is kept, since events() refuses it.
            before = self._views.pop(run, LiveView())
            after = fold(before, self.desk.runs.events(run, after=before.seq))
            self._views[run] = after
            if len(self._views) > KEPT_VIEWS:
                del self._views[next(iter(self._views))]
        return after

    def draft(self) -> Recipe:
        """Return the recipe as the person left the form, else the demo's; an unreadable draft counts as none."""
        try:
            return from_json(Recipe, lift("recipe", read_json(self.workspace.root / "draft.json")))
        except StudioError:
            return self.desk.recipes.demo()

    def typed(self) -> dict[str, Any]:
        """Return what the form's fields hold as typed, by path, where the draft does not say it: `1e-`, nothing."""
        try:
            data = read_json(self.workspace.root / "draft.typed.json")
        except StudioError:
            return {}
        items = data.items() if isinstance(data, dict) else ()
        return {path: value for path, value in items if isinstance(value, str)}

    def edit(self, changes: Mapping[str, Any], typed: Mapping[str, Any] | None = None) -> Recipe:
        """Change the draft at the paths of `changes` alone and return it: every other edit stays, a half-typed one too.

        `typed` is what changed fields hold where the draft does not say it. A change that depends on the draft is made
        under `editing`.
        """
        with self.editing:
            recipe = change_recipe(self.draft(), dict(changes))
            others = {path: words for path, words in self.typed().items() if path not in changes}
            self.keep_draft(recipe, others | dict(typed or {}))
        return recipe

    def keep_draft(self, recipe: Recipe, typed: Mapping[str, Any] | None = None) -> None:
        """Put `recipe` in the draft's place as a whole, with what fields hold that it does not say; see edit()."""
        with self.editing:
            write_json(self.workspace.root / "draft.typed.json", dict(typed or {}))
            write_json(self.workspace.root / "draft.json", to_json(recipe))
        self.on_draft()

    def role(self, request: gr.Request) -> str:
        """Return `owner` or `viewer`, as the gate wrote it into the request's scope by its port; "" for a stranger."""
        return str(scope_of(request).get(ROLE, ""))

    def owner(self, request: gr.Request) -> bool:
        """Return whether the owner asks."""
        return self.role(request) == "owner"

    @property
    def owner_asks(self) -> bool:
        """Whether the handler that is at work now serves the owner."""
        return ASKING.get()[0] == "owner"

    @property
    def caller(self) -> str:
        """The name of the browser whose handler is at work now, as far as its first step."""
        return ASKING.get()[1]

    def on(
        self,
        event: Callable,
        work: Callable,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        role: str = "owner",
        **options: Any,
    ) -> Any:
        """Bind `work` to a Gradio event: the caller is checked, refusals become messages, no progress veil.

        `role` is the only one that is served: `viewer` for the guests' page, `owner` for all else.
        """
        options = {
            "show_progress": "hidden",
            "concurrency_limit": None,
            "api_visibility": "private",
        } | options
        return event(self.guarded(work, role), list(inputs), list(outputs), **options)

    def guarded(self, work: Callable, role: str = "owner") -> Callable:
        """Return `work` as a handler of Gradio: it takes the request first, serves `role` alone, and refuses in words.

        For what is no event, such as server functions; events go through on().
        """
        if inspect.isgeneratorfunction(work):

            def stream(request: gr.Request, *values: Any):
                self._check(request, role)
                try:
                    yield from work(*values)
                except Exception as error:  # noqa: BLE001 - told, see _explain
                    raise self._explain(error, role) from error

            return stream

        def answer(request: gr.Request, *values: Any) -> Any:
            self._check(request, role)
            try:
                return work(*values)
            except Exception as error:  # noqa: BLE001 - told, see _explain
                raise self._explain(error, role) from error

        return answer

    def _explain(self, error: Exception, role: str) -> gr.Error:
        """Return the message for whatever a handler raised: a page may send anything, and Gradio tells nothing.

        What nobody foresaw goes to the log with its traceback.
        """
        if isinstance(error, gr.Error):
            return error
        if isinstance(error, OSError):  # a full disk, a folder that may not be read
            error = self.refuse_system(error)
        if isinstance(error, StudioError):
            return self.refusal(error, role)
        told = self.refusal(refuse_unforeseen(error), role)
        told.print_exception = True
        return told

    def _check(self, request: gr.Request, role: str) -> None:
        asking = self.role(request)
        if asking != role:
            raise gr.Error(self.say("ui.gate.401"), print_exception=False)
        ASKING.set((asking, str(scope_of(request).get(CALLER, ""))))

    def refusal(self, error: StudioError, role: str = "owner") -> gr.Error:
        """Return the message that shows `error`; its words are escaped, because Gradio shows messages as HTML.

        For guests without paths, names of accounts and secrets.
        """
        say = self.say if role == "owner" else GuestRedactor(self.workspace, self.say).say
        parts = [error.what, error.why, error.fix]
        if isinstance(error, RecipeError) and len(error.problems) > 1:
            parts = [part for problem in error.problems for part in (problem.message, problem.fix)]
        message = str(Markup("<br>").join(say(part) for part in parts))
        return gr.Error(message, duration=12, print_exception=False)


def refuse_unforeseen(error: Exception) -> StudioError:
    """Return what is told of an error that no code here expects: its kind alone, as its words may hold anything."""
    return StudioError(
        text("ui.unforeseen"), text("ui.unforeseen.why", kind=type(error).__name__), text("ui.unforeseen.fix")
    )
