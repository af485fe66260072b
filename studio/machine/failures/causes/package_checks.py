"""Failures that a package raises on purpose, in words that no other entry understands: the sentence is quoted."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.core.i18n import text
from studio.machine.failures.code_places import MODEL_CODE
from studio.machine.failures.error_text import TROUBLE, Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy
from studio.machine.failures.messages import FEW_LINES, read_message
from studio.machine.failures.package_frames import LONGEST
from studio.machine.failures.package_names import KNOWN, LIBRARIES, pip_name
from studio.machine.failures.statements import read_statement
from studio.machine.failures.traceback_calls import in_studio

Values = Mapping[str, object] | None
LOGGER = re.compile(
    r"^\W*(?:\(\w[^)\n]{0,40}\) ?)?(?:\[[^\]\n]{1,80}\] ?|\d{4}[-/]\d\d[-/]\d\d[ T][\d:.,]+ "
    r"?|\d\d:\d\d:\d\d(?:[-.,:]\d{1,9})? +)*(?:\(\w[^)\n]{0,40}\) ?)?"
    r"(?:(?:ERROR|WARN(?:ING)?|INFO|FATAL|CRITICAL|[EWF])\b[]: |-]*)?(?:[\w./-]+\.\w{1,4}:\d+\]?:? ?(?:-- ?)?)?"
    r"(?:(?:error|msg|message)=\"?)?",
)
"""What stands before the words of a log's line: the process, the time, the level, the place in the code."""
FAILED = re.compile(
    r"\b(?:not|cannot|can't|unable|fail\w*|refused|died|crashed|killed|invalid|timed? ?out)\b", re.IGNORECASE
)
BARE = re.compile(
    r"^(?:[\w.]+: )?(?:error: )?(?:failed|unable) to (?:load|run|start|initiali[sz]e|create) (?:the )?\w+"
    r"(?: ['\"][^'\"\n]*['\"])?\W*$",
    re.IGNORECASE,
)
FEWEST_WORDS = 4
"""A message of fewer words names no condition."""
NO_CHECKS = frozenset(("", "python", "torch", "triton", "numpy", "pandas", "pyarrow", MODEL_CODE))
"""What is called with everybody's values: its words say what broke there, not what was asked for."""


def _read_check(reading: Reading) -> Values:
    """A condition that a package checks and tells of, by its own `raise` in a traceback."""
    raised = reading.last
    if raised is None or not raised.frames or not raised.on_purpose:
        return None
    package = raised.packages[0]
    if package in NO_CHECKS or (package not in LIBRARIES and package not in KNOWN):
        return None
    says = " ".join(read_message(reading)[1].split())
    if len(says.split()) < FEWEST_WORDS:
        return None
    if len(says) > LONGEST:
        says = says[:LONGEST].rsplit(" ", 1)[0] + " ..."
    # Called by another package, it may as well be that the two are of different times.
    callers = [name for name in raised.packages if name not in NO_CHECKS and name != package]
    caller = pip_name(callers[0]) if callers else ""
    stated = read_statement(read_message(reading)[1])
    about = (
        stated.spoken()
        if stated
        else text("failure.package_checks.none", package=pip_name(package), says=says)
    )
    values = {"package": pip_name(package), "says": says, "about": about}
    return {**values, "caller": caller, "doubtful": "1" if caller else ""}


def _logged(words: str) -> str:
    """Return what a log ends in, if it tells of trouble, without what a logger writes before it; "" for none."""
    ends = [line for line in words.split("\n") if line.strip(" \t^~-=")][-FEW_LINES:]
    lines = [line for line in ends if TROUBLE.search(line) or FAILED.search(line)]
    told = [LOGGER.sub("", line).strip() for line in lines]
    # What only says that something failed passes on what the line before it told.
    while len(told) > 1 and BARE.search(told[-1]):
        told.pop()
    return told[-1] if told else ""


def _read_state(reading: Reading) -> Values:
    """What a sentence states in one of the usual forms, whoever raised it; PyTorch's operations are read before."""
    _, message = read_message(reading)
    if not message and reading.last is None:
        message = _logged(reading.words)
    if not message:
        return None
    stated = read_statement(message)
    if stated is None:
        return None
    return {"says": " ".join(message.split())[:LONGEST], "about": stated.spoken()}


OUTDATED = re.compile(
    r"(?:^|[.;:!,(] *|\b(?:please|to|and|or|should|must|can|try|consider|by|a|more|with) )"
    r"(?:upgrad(?:e|ing)|updat(?:e|ing)|newer version of|recent version of) (?:to )?(?:your |the )?"
    r"[`'\"]?(?P<name>[A-Za-z][\w-]{2,30})\b|"
    r"\b(?P<old>[A-Za-z][\w-]{2,30})(?: version)? (?:is|are) too old\b|"
    r"\b(?:supported|available) (?:natively |only )?(?:starting (?:from|with|in)|since|from) "
    r"(?P<since>[A-Za-z]{2,20}) ?[<>=]{0,2} ?v?\d[\d.]*",
)
"""Which program the message itself wants newer."""
NO_PROGRAM = frozenset(
    "the this that your their its version versions code script model driver package packages failed failure error "
    "was has and for from it them".split()
)


def _read_old(reading: Reading) -> Values:
    """A program that a message calls too old."""
    raised = reading.last
    found = OUTDATED.search(raised.message) if raised is not None and not raised.wraps else None
    name = (found["name"] or found["old"] or found["since"]) if found else ""
    if raised is None or not name or name.lower() in NO_PROGRAM or in_studio(reading):
        return None
    return {"name": name, "says": " ".join(raised.message.split())[:LONGEST]}


FAILURES = (
    Failure(
        "told_old",
        None,
        (Remedy("newer_named", needs=("name",)),),
        code="V74",
        reader=_read_old,
        last_resort=True,
    ),
    Failure(
        "package_checks",
        None,
        (Remedy("named_setting"), Remedy("search_sentence"), Remedy("newer_program")),
        code="D202",
        reader=_read_check,
        last_resort=True,
        doubt=Doubt("versions_apart", "example_first", asked=True),
    ),
    Failure(
        "told_state",
        None,
        (Remedy("named_setting"), Remedy("search_sentence")),
        code="V88",
        reader=_read_state,
        last_resort=True,
    ),
    Failure(
        "versions_apart",
        None,
        (
            Remedy("upgrade_pair", needs=("package", "caller")),
            Remedy("older_package", needs=("package",)),
        ),
        code="V73",
    ),
)
