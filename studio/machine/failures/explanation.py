"""What an error text means, in words: one cause, two and the command that tells, or one that is not certain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from studio.core.events import Diagnosis, Fix
from studio.core.i18n import Catalogue, text
from studio.machine import failures
from studio.machine.failures.activities import read_activity
from studio.machine.failures.diagnosis import TELLING, clean
from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Remedy
from studio.machine.failures.package_names import KNOWN, LIBRARIES, pip_name
from studio.machine.redact import redact

REASONS = re.compile(
    r"\bor\b|\bmost often\b|\busually\b|\blikely\b|\u6216|\u591a\u534a|\u901a\u5e38|\u6700\u5e38|\u5f88\u53ef\u80fd",
    re.IGNORECASE,
)
"""What stands in an explanation that names more reasons than one. Of the answers to unseen texts that no other doubt
was left of, 7 of 38 with it were wrong and none of 42 without it."""


def explain_words(words: str, catalogue: Catalogue) -> dict[str, Any]:
    """Return {id, code, what, why, where, fixes, line, other, tell, doubt} of a text, in words, without secrets.

    `line` is the one that it was known by, or the one to search for; `other` is the second cause (None where there is
    none in sight), and `tell` the command that tells them apart; `doubt` says why a single cause is not certain;
    `where` says which package raised it while it did what, where the cause itself is not certain.
    """
    verdict = failures.weigh_text(words)
    first = verdict.first if verdict else None
    diagnosis = first.entry.diagnose(first.values) if first else _unknown(failures.diagnose(words), words)
    answer = _spoken(diagnosis, first.entry.remedies if first else (), catalogue)
    line = diagnosis.why.values.get("line") or diagnosis.why.values.get("words", "")
    answer |= {"line": str(first.values["line"] if first else line), "other": None, "tell": "", "doubt": ""}
    unsure = verdict is None or verdict.second or verdict.doubt or verdict.first.entry.last_resort
    answer["where"] = _tell_where(words, catalogue) if unsure and diagnosis.id != "harmless" else ""
    if verdict and verdict.second:
        second = verdict.second
        answer["other"] = _spoken(
            second.entry.diagnose({**verdict.first.values, **second.values}), second.entry.remedies, catalogue
        )
        answer["tell"] = catalogue.say(text(f"failure.tell.{verdict.tell}"))
    elif verdict and verdict.doubt:
        sentences = text("explain.maybe"), text(f"explain.doubt.{verdict.doubt}")
        answer["doubt"] = " ".join(catalogue.say(sentence) for sentence in sentences)
        answer["fixes"].append(catalogue.say(text("explain.search")))
    elif first and REASONS.search(catalogue.words.get(f"failure.{first.entry.id}.why", "")):
        answer["doubt"] = catalogue.say(text("explain.likely"))
    return redact(answer)


def _tell_where(words: str, catalogue: Catalogue) -> str:
    """Return in which package an error came up and what was being done; "" where the text does not tell."""
    package, doing = read_activity(Reading(clean(words)))
    if not doing:
        return ""
    done = text(f"explain.doing.{doing}")
    where = (
        text("explain.where", package=package, doing=done) if package else text("explain.while", doing=done)
    )
    return catalogue.say(where)


def _spoken(diagnosis: Diagnosis, remedies: Sequence[Remedy], catalogue: Catalogue) -> dict[str, Any]:
    """Return {id, code, what, why, fixes} in words; what helps says also what to do in a program of one's own."""
    say = catalogue.say
    fixes = [say(fix.title) for fix in diagnosis.fixes]
    # A fix that names the package says already what these two say in general.
    named = any(fix.title.values for fix in diagnosis.fixes)
    for remedy in remedies:
        own = f"failure.own.{remedy.name}"
        if catalogue.has(own) and not (named and remedy.name in ("install", "rebuild")):
            fixes.append(catalogue.say(text("explain.own", advice=text(own))))
    said = {"id": diagnosis.id, "what": say(diagnosis.what), "why": say(diagnosis.why)}
    return said | {"code": failures.code_of(diagnosis), "fixes": fixes}


def _unknown(diagnosis: Diagnosis, words: str) -> Diagnosis:
    """Return `diagnosis` in the words of this command where nothing is known: the line to search for, if any."""
    if diagnosis.id != "unknown":
        return diagnosis
    last = Reading(clean(words)).last
    if not TELLING.search(words) and last is None:
        return replace(diagnosis, what=text("explain.no_error"), fixes=diagnosis.fixes[:1])
    search = Fix(title=text("explain.search"))
    # A path that was pasted with its underscores lost names no package.
    raisers = [name for name in (last.packages if last else ()) if name in LIBRARIES or name in KNOWN]
    what = text("explain.unknown_in", package=pip_name(raisers[0])) if raisers else text("explain.unknown")
    return replace(diagnosis, what=what, fixes=(search, diagnosis.fixes[0]))
