"""How the studio says no: one error with what, why and fix, and Problems that are collected before a start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from studio.core.events import Fix
from studio.core.i18n import Text, load_catalogue, text


class StudioError(Exception):
    """A refusal that a person can act on: what happened, why, what to do (a Text each, one short sentence).

    `exit_code` is 2 for bad arguments or bad input, 1 for a failure during the work.
    """

    def __init__(self, what: Text, why: Text, fix: Text, exit_code: int = 2) -> None:
        super().__init__(what.id, why.id, fix.id)
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes with all Texts; the default would make it of the ids alone."""
        return type(self), (self.what, self.why, self.fix, self.exit_code)

    def __str__(self) -> str:
        """Return what happened in English, for logs and tracebacks."""
        catalogue = load_catalogue("en")
        return " ".join(catalogue.say(part) for part in (self.what, self.why, self.fix))


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing found wrong before a start: the recipe field it belongs to, what is wrong, and what to do."""

    field: str
    """Dotted path in the recipe, such as `optim.learning_rate`; "" when it belongs to none."""
    message: Text
    fix: Text
    ways: tuple[Fix, ...] = ()
    """Ways out that are a change of the recipe: one click."""
    choices: tuple[str, ...] = ()
    """Values of `field` that settle it, the best first; () where it is no choice."""
    severity: Literal["error", "warning"] = "error"


class RecipeError(StudioError):
    """A recipe that cannot be read: all its Problems at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        first = problems[0]
        what = (
            first.message
            if len(problems) == 1
            else text("recipe.problems", count=len(problems), first=first.message)
        )
        super().__init__(what, text("recipe.problems.why"), first.fix)
        self.problems = problems

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes."""
        return RecipeError, (self.problems,)
