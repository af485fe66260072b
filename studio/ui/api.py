"""The studio for programs: named endpoints for gradio_client, JSON in and out, for the owner only."""

import inspect
from collections.abc import Callable
from typing import Any

import gradio as gr

from studio.core.codec import from_json, to_json
from studio.core.errors import Problem, RecipeError, StudioError
from studio.core.i18n import text
from studio.core.migrate import lift
from studio.core.recipe import Recipe
from studio.services.queue import QueueItem
from studio.services.recipes import fit_length
from studio.ui.context import Context, refuse_unforeseen

LONGEST_WAIT_S = 60.0
"""A program asks again after that: an answer that comes later is lost with the connection of some networks."""
NAMES = {dict: "object", str: "string", int: "integer", float: "number", bool: "boolean"}
"""JSON's words for the types of the endpoints' values."""
MOST_EVENTS = 5000
"""In one answer; `more` says that there are others."""


class Api:
    """One endpoint a method: its name, its parameters and their types are what a program sees.

    Every answer is an object; a refusal is {"error": {"what", "why", "fix"}}, in the window's language. A recipe is
    the object that recipe.json holds; local paths in it are full ones.
    """

    def __init__(self, context: Context) -> None:
        """Make the endpoints; inside a gr.Blocks, before anything that could take one of their names."""
        self.context = context
        with gr.Row(visible=False):  # Gradio counts the values of endpoints among the page's parts
            for work in (
                *(self.list, self.check, self.plan, self.start, self.resume, self.status, self.events),
                *(self.stop, self.pause, self.unpause),
                *(self.queue, self.queue_add, self.queue_move, self.queue_drop, self.queue_hold),
            ):
                # Not limited: an `events` that waits must not keep a `stop` waiting.
                gr.api(self._guarded(work), api_name=work.__name__, concurrency_limit=None)

    # Runs -------------------------------------------------------------------------------------------------------

    def list(self) -> dict:
        """Return {"runs": [...]}, newest first; `resumable` says whether a run can go on, and why or why not."""
        entries = self.context.desk.library.entries()
        return {
            "runs": [
                self._record(entry.record)
                | {"size_bytes": entry.size_bytes, "took_s": entry.took_s, "resumable": entry.resumable}
                for entry in entries
            ]
        }

    def check(self, recipe: dict) -> dict:
        """Return {"ok", "problems": [{"field", "severity", "message", "fix"}]}; nothing is started."""
        try:
            problems = self.context.desk.recipes.check(_read_recipe(recipe))
        except RecipeError as error:
            problems = error.problems
        return {
            "ok": not any(_is_error(each) for each in problems),
            "problems": list(map(_problem, problems)),
        }

    def plan(self, recipe: dict) -> dict:
        """Return {"plan"}: every choice that a run of `recipe` would make on this machine, each with its reason."""
        return {"plan": self.context.desk.recipes.plan(_read_recipe(recipe))}

    def start(self, recipe: dict) -> dict:
        """Check `recipe`, start it now and return {"run"}; refused while another run is on (see queue_add)."""
        return {"run": self.context.desk.queue.start(_read_recipe(recipe))}

    def resume(self, run: str) -> dict:
        """Go on with a run that stopped, failed or was cut off; return {"run"}."""
        self.context.desk.queue.resume(run)
        return {"run": run}

    def status(self, run: str = "") -> dict:
        """Return how `run` stands, the one that is on when "": state, phase, step, losses, seconds left, diagnosis.

        {"run": null} when none is named and none is on.
        """
        desk = self.context.desk
        run = run or desk.runs.active or ""
        if not run:
            return {"run": None}
        view, record = self.context.view(run), desk.runs.read(run)
        state = view.state if record.state == "running" else record.state
        return self._record(record) | {
            "state": "running" if state in ("waiting", "stopped") and desk.runs.active == run else state,
            "phase": view.phase,
            "step": view.step,
            "total_steps": view.total_steps or record.total_steps,
            "loss": record.loss if view.loss is None else view.loss,
            "eval_loss": record.eval_loss if view.eval_loss is None else view.eval_loss,
            "eval_reward": record.eval_reward if view.eval_reward is None else view.eval_reward,
            "metrics": dict(record.metrics),
            "left_s": view.left_s,
            "seq": view.seq,
            "diagnosis": record.diagnosis,
        }

    def events(self, run: str, after: int = 0, wait_s: float = 0.0) -> dict:
        """Return {"events", "cursor", "active", "more"}: those with `seq` above `after`, oldest first.

        Waits up to `wait_s` (at most 60) for the first. Ask again with after=cursor until `active` is false and `more`
        too; reading takes nothing away from other readers.
        """
        desk = self.context.desk
        active = desk.runs.active == run  # asked first: events that come between the two are not lost
        wait_s = min(max(wait_s, 0.0), LONGEST_WAIT_S) if active else 0.0
        found = desk.runs.events(run, after, wait_s)
        told = found[:MOST_EVENTS]
        return {
            "events": [to_json(event) for event in told],
            "cursor": told[-1].seq if told else after,
            "active": active,
            "more": len(found) > len(told),
        }

    def stop(self, run: str) -> dict:
        """Ask the run to end after its step with a checkpoint; return {"run", "stopping"} at once."""
        desk = self.context.desk
        desk.runs.read(run)
        active = desk.runs.active == run
        desk.runs.stop(run)
        return {"run": run, "stopping": active}

    def pause(self, run: str) -> dict:
        """Ask the run to hold after its step; return {"run", "paused"} at once."""
        desk = self.context.desk
        desk.runs.read(run)
        desk.runs.pause(run)
        return {"run": run, "paused": desk.runs.active == run}

    def unpause(self, run: str) -> dict:
        """Let a paused run go on; return {"run", "paused"}."""
        desk = self.context.desk
        desk.runs.read(run)
        desk.runs.unpause(run)
        return {"run": run, "paused": False}

    # The queue --------------------------------------------------------------------------------------------------

    def queue(self) -> dict:
        """Return {"items", "held", "reason", "keep_going"}: what runs, what waits in its order, what has ended."""
        queue = self.context.desk.queue
        return {
            "items": [_item(item) for item in queue.items()],
            "held": queue.held,
            "reason": queue.reason,
            "keep_going": queue.keep_going,
        }

    def queue_add(self, recipe: dict) -> dict:
        """Check `recipe` and put it at the end of the queue; return {"item"}. It begins at once when nothing is on."""
        read = _read_recipe(recipe)
        errors = tuple(each for each in self.context.desk.recipes.check(read) if _is_error(each))
        if errors:
            raise RecipeError(errors)
        return {"item": _item(self.context.desk.queue.add(read))}

    def queue_move(self, item: str, steps: int) -> dict:
        """Let a waiting item come `steps` places later, earlier when negative; return the queue."""
        self.context.desk.queue.move(item, steps)
        return self.queue()

    def queue_drop(self, item: str) -> dict:
        """Take a waiting or ended item out of the queue; return the queue."""
        self.context.desk.queue.drop(item)
        return self.queue()

    def queue_hold(self, on: bool) -> dict:
        """Begin nothing more, or go on; return the queue."""
        self.context.desk.queue.hold(on)
        return self.queue()

    # Inside -----------------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable) -> Callable:
        """Return `work` with the caller checked before, refusals as data, and every Text in its answer said."""
        signature, context = inspect.signature(work), self.context
        types = {name: part.annotation for name, part in signature.parameters.items()}

        def answer(request: gr.Request, *values: Any) -> dict:
            if not context.owner(request):
                return self._refusal(
                    StudioError(text("ui.gate.401"), text("ui.api.owner"), text("ui.gate.401.fix"))
                )
            context.renewal.note_presence()
            try:
                _check_types(types, values)
                return to_json(context.words.say_all(work(*values)))
            except StudioError as error:
                return self._refusal(error)
            except OSError as error:  # a full disk, a folder that may not be read
                return self._refusal(self.context.refuse_system(error))
            except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
                return self._refusal(refuse_unforeseen(error))

        # Gradio reads names and types from the signature and hands in the request by its type.
        asking = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
        parts = [asking, *signature.parameters.values()]
        answer.__signature__ = signature.replace(parameters=parts)
        answer.__annotations__ = {part.name: part.annotation for part in parts} | {"return": dict}
        answer.__doc__, answer.__name__ = work.__doc__, work.__name__
        return answer

    def _refusal(self, error: StudioError) -> dict:
        say = self.context.say
        refusal = {"what": say(error.what), "why": say(error.why), "fix": say(error.fix)}
        if isinstance(error, RecipeError):
            refusal["problems"] = self.context.words.say_all([_problem(each) for each in error.problems])
        return {"error": refusal}

    def _record(self, record: Any) -> dict:
        names = ("run", "name", "state", "created_s", "ended_s", "steps", "total_steps", "loss", "eval_loss")
        return {name: getattr(record, name) for name in (*names, "eval_reward", "base", "artifact")}


def _check_types(types: dict[str, type], values: tuple) -> None:
    """Raise StudioError for a value of another type than its endpoint says: a program may send anything."""
    for (name, kind), value in zip(types.items(), values, strict=True):
        number = kind in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool)
        # No NaN, and nothing so large that other numbers could not be added to it.
        sound = not number or (abs(value) < 2**53 and kind(value) == value)
        if not (sound and (number or isinstance(value, kind))) or (kind is int and isinstance(value, bool)):
            raise StudioError(
                text("ui.api.value", name=name),
                text("ui.api.value.why", kind=NAMES[kind]),
                text("ui.api.value.fix"),
            )


def _read_recipe(data: dict) -> Recipe:
    return fit_length(from_json(Recipe, lift("recipe", data)), data)


def _is_error(problem: Problem) -> bool:
    return problem.severity == "error"


def _problem(problem: Problem) -> dict:
    return {name: getattr(problem, name) for name in ("field", "severity", "message", "fix")}


def _item(item: QueueItem) -> dict:
    names = ("id", "name", "state", "run", "added_s", "ended_s", "problem")
    return {name: getattr(item, name) for name in names} | {"recipe": to_json(item.recipe)}
