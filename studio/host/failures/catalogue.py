"""Finds out which known failure an error is. Standard library only: it must work when nothing installs."""

from __future__ import annotations

from collections.abc import Iterator

from studio.core.errors import StudioError
from studio.core.events import Diagnosis, Fix
from studio.core.facts import MachineFacts
from studio.core.recipe import Recipe
from studio.core.text import literal, text
from studio.host.failures import data, gpu, kernels, memory, models, network, numbers, process, storage
from studio.host.failures.failure import Failure

CATALOGUE: tuple[Failure, ...] = (
    *memory.FAILURES,
    *kernels.FAILURES,
    *gpu.FAILURES,
    *storage.FAILURES,
    *numbers.FAILURES,
    *network.FAILURES,
    *models.FAILURES,
    *data.FAILURES,
    *process.FAILURES,
)
"""First match wins: what stops everything stands before what may follow from it."""
LINE_LIMIT = 300


def diagnose(
    error: BaseException | str, machine: MachineFacts | None = None, recipe: Recipe | None = None
) -> Diagnosis:
    """Return what an exception, or an error text or log, means and what helps.

    An exception's causes count as well; one with an attribute `failure_id` names its entry itself. A StudioError
    speaks for itself (id `refused`). What is not known says so with its last line (id `unknown`), never a guess.
    With `recipe`, the fixes carry the changes that suit it; those that the `machine` rules out are left away.
    """
    if isinstance(error, StudioError):
        return Diagnosis(id="refused", what=error.what, why=error.why, fixes=(Fix(title=error.fix),))
    chain = tuple(_chain(error)) if isinstance(error, BaseException) else ()
    entries = {failure.id: failure for failure in CATALOGUE}
    for link in chain:
        entry = entries.get(getattr(link, "failure_id", ""))
        if entry is not None:
            return _suit(entry.diagnose({"line": last_line(str(link))}, recipe), machine)
    # The outermost exception that is known wins: an inner one may be a mere attempt that was given up.
    said = [f"{type(link).__name__}: {link}" for link in chain] or [str(error)]
    for words in said:
        for entry in CATALOGUE:
            found = entry.signature.search(words) if entry.signature else None
            if found:
                values = {name: value or "?" for name, value in found.groupdict().items()}
                start, end = words.rfind("\n", 0, found.start()) + 1, words.find("\n", found.end())
                line = words[start : end if end >= 0 else None].strip()[:LINE_LIMIT]
                return _suit(entry.diagnose(values | {"line": line}, recipe), machine)
    return Diagnosis(
        id="unknown",
        what=text("failure.unknown"),
        why=literal(last_line(said[0])),
        fixes=(Fix(title=text("failure.fix.doctor")), Fix(title=text("failure.fix.look_at_log"))),
    )


def explain(error: OSError) -> StudioError:
    """Return a refusal of the system's (a full disk, a folder that may not be read) in our three sentences."""
    found = diagnose(error)
    return StudioError(found.what, found.why, found.fixes[0].title, exit_code=1)


def last_line(words: str) -> str:
    """Return the last line that says something: of a traceback its error, of an exception its first line."""
    lines = [line.strip() for line in words.splitlines() if line.strip(" \t^~-=")]
    if not lines:
        return "?"
    # A message may go on over many lines below "SomeError: ..."; that line says most.
    named = [
        line for line in lines if line.split(":")[0].endswith(("Error", "Exception", "Warning", "Interrupt"))
    ]
    return (named or lines)[-1][:LINE_LIMIT]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, each once."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _suit(diagnosis: Diagnosis, machine: MachineFacts | None) -> Diagnosis:
    """Leave away what cannot help on `machine`: 4 bits where bitsandbytes does not work."""
    if machine is None or not machine.bitsandbytes_error:
        return diagnosis
    fixes = tuple(
        fix for fix in diagnosis.fixes if fix.change.get("model.quantization") not in ("nf4", "int8")
    )
    return Diagnosis(id=diagnosis.id, what=diagnosis.what, why=diagnosis.why, fixes=fixes)
