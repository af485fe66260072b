"""One known failure: how it is recognised, and what may help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from studio.core.events import Diagnosis, Fix
from studio.core.facts import MachineFacts
from studio.core.i18n import text
from studio.core.recipe import Recipe
from studio.machine.failures.error_text import Reading
from studio.machine.failures.signature import Signature

Severity = Literal["blocked", "degraded", "note"]
Change = Mapping[str, Any] | Callable[[Recipe | None], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that may help, in the words of `failure.fix.NAME`.

    `change` holds recipe values by dotted path, or a function from the failed recipe (None when unknown) to them.
    """

    name: str
    change: Change | None = None
    needs: tuple[str, ...] = ()
    """The values that its words have blanks for: without one of them it is not offered."""

    def offer(self, recipe: Recipe | None, values: Mapping[str, object] | None = None) -> Fix | None:
        """Return the Fix for `recipe`; None when its change would change nothing, or its words lack a value."""
        known = {name: (values or {}).get(name, "") for name in self.needs}
        if not all(known.values()):
            return None
        if self.change is None:
            return Fix(title=text(f"failure.fix.{self.name}", **known))
        change = self.change(recipe) if callable(self.change) else self.change
        return Fix(title=text(f"failure.fix.{self.name}"), change=change) if change else None


@dataclass(frozen=True, slots=True)
class Doubt:
    """The other cause of the same words, by id, and the command that tells, in the words of `failure.tell.NAME`."""

    other: str
    tell: str
    asked: bool = False
    """Whether it holds only where the entry's reader says so, by a value `doubtful`, or its words leave it open."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One entry of the catalogue, in the words of `failure.ID` (what) and `failure.ID.why`.

    `signature` is searched in "ExceptionName: message" or in a log's text; its named groups fill the words' blanks.
    An entry without one and without a `reader` is picked only by an exception's attribute `failure_id`.
    """

    id: str
    signature: Signature | None
    remedies: tuple[Remedy, ...]
    code: str = ""
    """The failure's short name in reports and support threads, such as S2a."""
    harmless: bool = False
    """Whether the signature is a line that looks bad and never is the cause: it is left out of a text first."""
    probe: Callable[[MachineFacts], Mapping[str, object] | None] | None = None
    """Finds the failure in facts, before a run meets it: the values for the words' blanks, among them `evidence`
    (English or as the system said it, one line), or None where the machine does not have it."""
    subject: str = "system"
    """The doctor's check that a found one belongs to (planning/doctor_checks.py)."""
    severity: Severity = "degraded"
    """What a found one means: blocked (nothing can train), degraded (a slower or smaller way is taken), note."""
    strength: float = 1.0
    """Below 1 for words that say what broke and not why: any cause that the text names wins over them."""
    unless: Signature | None = None
    """Words that speak against it."""
    reader: Callable[[Reading], Mapping[str, str] | None] | None = None
    """Finds the failure in what was raised and where: the values for the words' blanks, or None."""
    doubt: Doubt | None = None
    last_resort: bool = False
    """Whether it counts only where no other entry knows the exception that ended it; found by its reader alone."""
    repair: str = ""
    """The Repair (machine/repairs.py) that sets it right in our own process; "" for none."""

    def diagnose(self, values: Mapping[str, str], recipe: Recipe | None = None) -> Diagnosis:
        """Return the Diagnosis in words; `values` fill the blanks."""
        return Diagnosis(
            id=self.id,
            what=text(f"failure.{self.id}", **values),
            why=text(f"failure.{self.id}.why", **values),
            fixes=tuple(fix for remedy in self.remedies if (fix := remedy.offer(recipe, values))),
        )


def said(*patterns: str) -> Signature:
    """Return the signature of any of `patterns`. Match English prefixes and numbers: Windows translates the rest."""
    return Signature(*patterns)
