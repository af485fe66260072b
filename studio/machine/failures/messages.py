"""What a text says itself: its message, the sentence in it that tells, and the first line of an answer."""

from __future__ import annotations

import re
from dataclasses import replace

from studio.core.i18n import Text, text
from studio.machine.failures.error_text import Reading
from studio.machine.failures.named_settings import headline
from studio.machine.failures.package_frames import LONGEST
from studio.machine.failures.statements import read_statement
from studio.machine.failures.traceback_calls import in_studio
from studio.machine.failures.wording import ADVICE

SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z`'\"])|\n+")
LOGGED = re.compile(
    r"^(?:.{0,60}?\b)?(?:error|fatal|fehler|\u9519\u8bef)(?: (?:in|during|while) [\w ]{1,30})?\s?[:\uff1a] ?"
    r"(?P<message>[^\n]{8,400})$|"
    r"^(?:ERROR|CRITICAL) +\|[^\n|]{0,40}\| [\w.]+:\w+:\d+ - (?P<told>[^\n]{8,400})$",
    re.IGNORECASE | re.MULTILINE,
)
"""The error of a program that is not of Python."""
OF_VALUES = frozenset("TypeError IndexError KeyError AttributeError NameError UnboundLocalError".split())
"""What Python raises of any value: its "unsupported" and "expected" say what broke, not what was set wrong."""
WORDED = re.compile(
    r"\w[`'\"]? (?:must|should|has to|needs to) be (?:an?|of|one|either)\b.{1,200}\b(?:got|but|received|found)\b|"
    r"\b[Ee]xpected .{1,80} to be .{1,60}\b(?:got|received)\b",
    re.DOTALL,
)
"""A sentence of a library about what it was given, in an exception that Python raises of any value, too."""
OF_TENSORS = re.compile(
    r"tensors?\b|\bd?types?\b|shape|\bsizes?\b|\bdim|grad|\bdevices?\b|\bcuda|float|\bu?int\d|\bbool\b|\bindex|"
    r"\bmat\d|stride|storage|scalar|\bops?\b|operator|\bimplement|\bexpected\b|\belements?\b|engine",
    re.IGNORECASE,
)
"""What PyTorch's own sentences are about."""
REASONLESS = re.compile(r"\b(?:failed|unable) to \w+(?: \w+){0,2}\W*$", re.IGNORECASE)
"""A line that passes on that something failed: the line before it says why."""
FEW_SPACES = 5
"""A key of more words is a sentence."""
FEW_LINES = 3
"""A text of no more lines is what a program said, without a log around it."""
UNTOLD = re.compile(
    r"^(?:CUDA (?:error|kernel)|CUBLAS|CUDNN|NCCL|HIP error|element 0 of|'\w+' object|module '|name '|"
    r"(?:too many|not enough) values to unpack|cannot import|invalid load key|\[(?:Errno|WinError) \d+\])|\btensor a\b",
    re.IGNORECASE,
)
"""Messages whose advice is for whoever looks for the cause, not the cause."""


def read_message(reading: Reading) -> tuple[str, str]:
    """Return (the type, the message) of what ended it; ("", "") where nothing can be told from it."""
    raised = reading.last
    if raised is not None and raised.type == "KeyError" and raised.message.count(" ") > FEW_SPACES:
        # Python shows the message of a KeyError as a literal.
        raised = replace(raised, message=raised.message.strip().strip("'\""))
    if raised is not None:
        useless = raised.wraps or in_studio(reading) or UNTOLD.search(raised.message)
        # An assertion without words has only its line of code, and PyTorch speaks of tensors, not of settings.
        kind = raised.type
        worded = (
            kind == "TypeError"
            and WORDED.search(raised.message)
            or kind == "KeyError"
            and raised.message.count(" ") > FEW_SPACES
        )
        # What a package raises by a line of its own is meant, whatever the type.
        worded = worded or raised.on_purpose
        useless = useless or (kind in OF_VALUES and not worded) or raised.message.startswith("assert ")
        inner = raised.packages[:1] == ("torch",) and raised.type != "ValueError"
        # What a program says under its own name is not of tensors.
        named = re.match(r"(?:Unsloth|vLLM|DeepSpeed|Axolotl): ", raised.message)
        bare = raised.type == "RuntimeError" and not raised.frames and OF_TENSORS.search(raised.message)
        inner = (inner or bare) and not named
        return ("", "") if useless else ("torch" if inner else raised.type, raised.message)
    logged = [found["message"] or found["told"] for found in LOGGED.finditer(reading.words)]
    if not logged:
        lines = [line.strip() for line in reading.words.split("\n") if line.strip(" \t^~-=")]
        telling = [line for line in lines if not REASONLESS.search(line)] or lines
        logged = telling[-1:] if 0 < len(lines) <= FEW_LINES and len(telling[-1].split()) > 3 else []
    return ("", logged[-1]) if logged and not UNTOLD.search(logged[-1]) else ("", "")


def sentence_with(message: str, pattern: re.Pattern[str]) -> str:
    """Return the sentence of `message` that `pattern` is found in; "" for none."""
    parts = [" ".join(part.split()) for part in SENTENCE.split(message)]
    # What follows far below the first lines is a list or another log line.
    place = next((number for number, part in enumerate(parts[:8]) if pattern.search(part)), -1)
    found = parts[place] if place >= 0 else ""
    # Advice says what to do, and the sentence before it what is wrong; "this" is what that one speaks of.
    points_back = pattern is ADVICE or re.match(r"(?:This|That|It|These)\b", found)
    if points_back and place > 0 and len(parts[place - 1]) + len(found) < LONGEST:
        found = f"{parts[place - 1]} {found}"
    return found if len(found) <= LONGEST else found[:LONGEST].rsplit(" ", 1)[0] + " ..."


def first_line(id: str, says: str, message: str) -> Text:
    """Return the first line of an answer: what the sentence states, else the names in it.

    Advice without either has the sentence before it, which says what is wrong.
    """
    stated = read_statement(says) or read_statement(message)
    if stated is not None:
        return stated.spoken()
    before = " ".join(SENTENCE.split(message)[0].split())
    if id == "told_advice" and before not in says and 3 < len(before.split()) and len(before) <= LONGEST:
        return text("failure.told_advice.before", says=before)
    return headline(id, says)
