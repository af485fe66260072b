"""Weighs what speaks for each known failure in a text, and says when two are equally likely or one is not certain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from studio.machine.failures.certainty import find_doubt, tell_apart, trains_on
from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure

MARGIN = 0.1
"""Two causes whose evidence weighs this much alike are both named."""
WIDER_MARGIN = 0.4
"""The same, where the first one is not certain."""
LEAST = 0.3
"""Less is no evidence: a word in a path, in a line of code."""
LINE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for one failure: how much, where, and the values for the blanks of its words."""

    entry: Failure
    weight: float
    position: int
    end: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CauseVerdict:
    """The likeliest failure, and the other one that it could be, with the name of the command that tells.

    `doubt` names why the first one is not certain where no other is in sight; "" for a certain one.
    """

    first: Evidence
    second: Evidence | None = None
    tell: str = ""
    doubt: str = ""


def weigh(reading: Reading, catalogue: Iterable[Failure]) -> CauseVerdict | None:
    """Return what `reading` is a sign of; None where nothing is.

    Of equal weight, the entry wins that stands first in the catalogue: a cause stands before its consequence.
    """
    entries = {entry.id: entry for entry in catalogue}
    every = [found for entry in entries.values() if (found := _look(entry, reading)) is not None]
    every.sort(key=lambda found: -round(found.weight, 2))
    if not every or (_ended_otherwise(reading, every) and not _ruled_out(reading, entries.values())):
        return _take_message(reading, entries.values())
    first = every[0]
    why = find_doubt(reading, first.position, first.end, first.entry.strength)
    doubt = first.entry.doubt
    if doubt is not None and (
        not doubt.asked or first.values.get("doubtful") or (why and first.entry.strength == 1)
    ):
        other = next((found for found in every if found.entry.id == doubt.other), None)
        second = other or Evidence(entries[doubt.other], 0.0, first.position, first.end, first.values)
        return CauseVerdict(first, second, doubt.tell)
    for found in every[1:]:
        if found.weight < first.weight - (WIDER_MARGIN if why else MARGIN):
            break
        within = found.position <= first.end and first.position <= found.end
        if not within and not reading.same_place(first.position, found.position):
            if why or found.entry.strength == first.entry.strength:
                return CauseVerdict(first, found, "first_line")
        elif _contests(found, first):
            return CauseVerdict(first, found, tell_apart(found.entry.id))
    return CauseVerdict(first, doubt=why)


def _take_message(reading: Reading, entries: Iterable[Failure]) -> CauseVerdict | None:
    """Return what the last message says itself, for an end that no entry knows."""
    known = {entry.id: entry for entry in entries}
    for entry in known.values():
        values = entry.reader(reading) if entry.last_resort and entry.reader is not None else None
        if values is not None:
            start = (
                reading.last.start if reading.last is not None else reading.words.rfind(values["says"][:60])
            )
            start = max(0, start)
            line = line_at(reading.words, start, start)
            found = Evidence(entry, 0.0, start, start, {"line": line, **values})
            if entry.doubt is not None and (not entry.doubt.asked or values.get("doubtful")):
                other = Evidence(known[entry.doubt.other], 0.0, start, start, found.values)
                return CauseVerdict(found, other, entry.doubt.tell)
            went_on = "went_on" if trains_on(reading, start) else ""
            return CauseVerdict(found, doubt="what" if entry.strength < 1 else went_on)
    return None


def _contests(found: Evidence, first: Evidence) -> bool:
    """Return whether the same words are as good a sign of another cause.

    What a reader finds for any package is no rival of a signature's own words, and what has a doubt of its own is none.
    """
    general = found.position == found.end and first.position != first.end
    return found.entry.strength == 1 and found.entry.doubt is None and not general


def _ended_otherwise(reading: Reading, every: list[Evidence]) -> bool:
    """Return whether the exception that ended it says something that nothing here knows.

    What a log told of before that went by: taking it for the cause would be a guess.
    """
    last = reading.last
    if last is None or last.wraps or not last.message.strip() or not last.frames:
        return False
    return not any(reading.ends_in(found.position) or reading.ends_in(found.end - 1) for found in every)


def _ruled_out(reading: Reading, entries: Iterable[Failure]) -> bool:
    """Return whether an entry knows the exception that ended it, and other words of the text speak against that one."""
    return any(
        reading.ends_in(match.start())
        for entry in entries
        if entry.unless is not None and entry.signature is not None and not entry.harmless
        for match in entry.signature.finditer(reading.words, reading.lower)
    )


def _look(entry: Failure, reading: Reading) -> Evidence | None:
    """Return the strongest evidence for `entry`; None where there is none, or where something speaks against it."""
    if entry.harmless or entry.last_resort:
        return None
    if entry.unless is not None and entry.unless.search(reading.words, reading.lower):
        return None
    best: Evidence | None = None
    for match in (
        entry.signature.finditer(reading.words, reading.lower) if entry.signature is not None else ()
    ):
        weight = reading.weigh(match.start(), match.end()) * entry.strength
        if weight >= LEAST and (best is None or weight > best.weight):
            values = {name: value or "?" for name, value in match.groupdict().items()}
            line = line_at(reading.words, match.start(), match.end())
            best = Evidence(entry, weight, match.start(), match.end(), values | {"line": line})
    seen = entry.reader(reading) if entry.reader is not None else None
    if seen is not None and reading.last is not None:
        weight = reading.weigh(reading.last.start, reading.last.start) * entry.strength
        if best is None or weight >= best.weight:
            line = line_at(reading.words, reading.last.start, reading.last.start)
            best = Evidence(entry, weight, reading.last.start, reading.last.start, {"line": line, **seen})
    return best


def line_at(words: str, start: int, end: int) -> str:
    """Return the line, or lines, between two positions as one line."""
    begin, stop = words.rfind("\n", 0, start) + 1, words.find("\n", end)
    return " ".join(words[begin : stop if stop >= 0 else None].split())[:LINE_LIMIT]
