"""How sure an answer may be: what the words that it rests on leave open.

Measured on 136 answers to texts that nothing had seen: where a cause's words stood in a text told little (one in five
was wrong of those in the last exception as well as of those in a log), what they are told most.
"""

from __future__ import annotations

import builtins
import re

from studio.machine.failures.error_text import TROUBLE, WARNED, Raised, Reading
from studio.machine.failures.package_names import NAMESPACES

FEW = 2
"""So many ordinary lines after an error's show that the program went on."""
PROGRESS = re.compile(
    r"\b\d+/\d+ \[|\{'(?:loss|eval_loss)': [^,}]{1,20}|"
    r"^\W{0,3}(?:\w+ ){0,2}(?:step|iter(?:ation)?|epoch)\W{1,3}\d+",
    re.IGNORECASE | re.MULTILINE,
)
"""A state of training, in a bar or a line of its own."""
STATES = 3
"""So many different states of training after an error show that training went on after it."""
WORDS_OF_A_TYPE = re.compile(r"[A-Z][a-z]+|[A-Z]+(?![a-z])")
TYPE_ENDS = ("Error", "Exception", "Failed", "Warning")
OF_A_FILE = re.compile(
    r"\[Errno (?:2|5|13|22|28)\]|\[WinError (?:2|3|5)\]|\(os error (?:2|3|5|13|28)\)|"
    r"Permission denied|No space left on device|No such file or directory|Input/output error",
    re.IGNORECASE,
)
"""What the system says of a file, a folder, a pipe or a semaphore alike: which one it was tells the cause."""
NUMBERED = re.compile(r"\[(?:Errno|WinError) \d+\]")
"""The system's own message, which may be in any language."""
A_PATH = re.compile(r"['\"][^'\"\n]{2,}['\"]|(?:[A-Za-z]:)?[\\/][\w.~-]+|[\w-]+\.\w{1,12}:")
PLAIN = re.compile(
    r"indices must be integers|object is not (?:subscriptable|iterable|callable)|index out of range|"
    r"unsupported operand type|(?:not enough|too many) values to unpack|setting an array element|"
    r"inhomogeneous (?:part|shape)|could not convert string|too many dimensions|must match the size of tensor|"
    r"shapes cannot be multiplied|invalid literal for int|os\.PathLike object, not NoneType",
    re.IGNORECASE,
)
"""What Python, NumPy and PyTorch say of any value that does not fit, whoever hands it over."""

UNPLACED = re.compile(
    r"^(?:ImportError: cannot import name|"
    rf"ModuleNotFoundError: No module named '(?!{'|'.join(sorted(NAMESPACES))})\w+\.|"
    r"UnicodeEncodeError:|"
    r"TypeError: [\w.]+\(\) missing \d+ required)"
)
"""What a package, a program and the code of a model say alike: where it was raised tells whose it is."""
TAKEN_IN = re.compile(r"load_state_dict\(|\b(?:checkpoint|ckpt)\[")
"""A line that takes in what was saved: a key that it misses is missing there."""

ADVISES = re.compile(
    r"^\W{0,4}(?:please|see|for (?:more )?(?:information|help|details)|press any key|try|run|to fix|visit|"
    r"\u8bf7|\u6309\u4efb\u610f\u952e)\b|\bhttps?://",
    re.IGNORECASE,
)
"""A line that belongs to the error before it: it says what to do."""

TELLS = {
    "library_load": "runtime_there",
    "permission": "who_holds",
    "pip_in_use": "who_holds",
    "no_token": "whoami",
    "no_version": "pip_index",
    "package_missing": "pip_show",
    "torch_absent": "pip_show",
    "hub_unreachable": "curl_hub",
    "download_cut": "curl_hub",
    "port_taken": "port_holder",
}
"""The command that tells whether it is this one, by the second cause's id."""


def tell_apart(other: str) -> str:
    """Return the name of what tells the cause `other` from a first one with the same words."""
    return TELLS.get(other, "try_first")


def find_doubt(reading: Reading, start: int, end: int, strength: float) -> str:
    """Return why a cause known by the words between two positions may not be the one; "" where nothing says so.

    The name is one of `explain.doubt.NAME`. Words of no length are what a reader found in the last exception.
    """
    if strength < 1:
        return "what"
    if reading.cut:
        return "cut"
    if trains_on(reading, end):
        return "went_on"
    raised = _raised_at(reading, start)
    if raised is None:
        raised = reading.last if start == end else None
    if _names_no_file(reading, raised, start, end):
        return "file"
    if raised is None:
        return "went_on" if _goes_on(reading, end) or _is_warning(reading, start, end) else ""
    if not raised.frames and UNPLACED.search(f"{raised.type}: {raised.message}"):
        return "place"
    if start == end:
        lacks = raised.type == "KeyError" and (not raised.frames or raised.packages[0] == "")
        return "plain" if lacks and not TAKEN_IN.search(raised.source) else ""
    if _is_type_alone(reading, raised, start, end):
        return "kind"
    said = reading.words[start:end]
    return "plain" if _is_builtin(raised.type) and PLAIN.search(said) and not _by_library(raised) else ""


def _raised_at(reading: Reading, position: int) -> Raised | None:
    """Return the exception that `position` lies in; None for a line of a log."""
    for one in reversed(reading.raised):
        if one.start <= position <= one.start + len(one.type) + len(one.message) + 80:
            return one
        if one.start < position:
            return None
    return None


def _by_library(raised: Raised) -> bool:
    return bool(raised.packages) and raised.packages[0] not in ("", "python", "numpy", "torch")


def _is_builtin(name: str) -> bool:
    return isinstance(getattr(builtins, name, None), type)


def _is_type_alone(reading: Reading, raised: Raised, start: int, end: int) -> bool:
    """Return whether only the type's name is known, one word that its message does not say again."""
    place = reading.words.find(raised.type, raised.start)
    if place < 0 or end > place + len(raised.type) or not raised.message.strip():
        return False
    if NUMBERED.match(raised.message):
        return False
    words = [word for word in WORDS_OF_A_TYPE.findall(raised.type) if word not in TYPE_ENDS]
    return len(words) < 2 and not any(word.lower() in raised.message.lower() for word in words)


def _names_no_file(reading: Reading, raised: Raised | None, start: int, end: int) -> bool:
    """Return whether the words are those of the system about a file that the line does not name."""
    begin, stop = reading.words.rfind("\n", 0, start) + 1, reading.words.find("\n", end)
    line = reading.words[begin : stop if stop >= 0 else None]
    said = OF_A_FILE.search(reading.words[start:end] or line)
    if said is None and raised is not None and _is_builtin(raised.type):
        said = OF_A_FILE.match(raised.message) if end <= raised.start + len(raised.type) + 40 else None
    return said is not None and A_PATH.search(line.replace(said[0], " ")) is None


def trains_on(reading: Reading, end: int) -> bool:
    """Return whether training goes on after `end`, in states that it was not in before, and ends in other words."""
    after = reading.words[end:]
    states = {match[0] for match in PROGRESS.finditer(after)} - {
        match[0] for match in PROGRESS.finditer(reading.words[:end])
    }
    if len(states) < STATES:
        return False
    last = max(match.end() for match in PROGRESS.finditer(after))
    return TROUBLE.search(after[last:]) is not None


def _is_warning(reading: Reading, start: int, end: int) -> bool:
    """Return whether a program only warned in that line, and said something else after it."""
    begin, stop = reading.words.rfind("\n", 0, start) + 1, reading.words.find("\n", end)
    if stop < 0 or not WARNED.match(reading.words[begin:stop]):
        return False
    # Indented is the line of code that Python shows below its own warnings.
    after = [line for line in reading.words[stop:].split("\n") if line.strip()]
    after = [line for line in after if not line[0].isspace() or TROUBLE.search(line)]
    return any(not WARNED.match(line) for line in after)


def _goes_on(reading: Reading, end: int) -> bool:
    """Return whether ordinary lines follow, and none that tells of trouble."""
    after = [line for line in reading.words[end:].split("\n")[1:] if line.strip(" \t^~-=")]
    after = [line for line in after if not ADVISES.search(line)]
    return len(after) >= FEW and not any(TROUBLE.search(line) for line in after)
