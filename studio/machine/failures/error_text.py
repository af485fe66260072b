"""A pasted text in its parts: what was raised, by whom, and how much each line says about the cause."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from studio.machine.failures.code_places import package_of

FINAL, DIRECT_CAUSE, EARLIER, TOLD, ASIDE, NOTHING = 1.0, 0.95, 0.6, 0.8, 0.6, 0.0
"""What a line weighs: of the last exception; of what it was raised from; of one that went by before; a program's own
error line; any other line; a place in the code, whose path and source say nothing about the cause."""
WRAPPED = 0.65
"""An exception that only passes on that something failed."""
ONE_LINE = 240
"""What is longer is a whole text whose line ends were lost, not the head of a traceback."""
MESSAGE_LINES = 40
FEW_WORDS = 3
CONTINUED = 0.98
"""A later line of a message, which may be the log's next one: what the first line says comes before it."""
LEAD = re.compile(
    r"^(?:\s*(?:\[[^\]\n]{1,40}\][: ]|\(\w[^)\n]{0,40}\) |[|\u2502\u2570\u256d`]|> |E  |"
    r"(?:ERROR|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]{1,60}:\d+\] ?))+"
)
"""What torchrun, ray, rich, pytest and vLLM write before a line."""
NAME = (
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{0,60})?(?:Error|Exception|Interrupt|SystemExit|"
    r"OutOfResources|Failed|Timeout|"
    r"NotFound|Disconnected|IsEnabled|TritonMissing|ArrowInvalid)"
)
RAISED = re.compile(rf"^(?:\S[^\n:(]{{0,60}}?[\s\]>:-])??(?P<name>{NAME})(?::[ \t]|:?[ \t]*$)")
ODDLY_NAMED = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w{0,60}\.){1,8}[A-Z]\w{2,60}|[A-Z][a-z]\w{2,60})(?::[ \t]|$)"
)
"""An exception whose name does not say that it is one: known by the places above it and its want of an indent."""
CLASS_TOLD = re.compile(
    r"<class '(?:\w{1,60}\.){0,8}(?P<name>\w{0,60}(?:Error|Exception|Invalid))'>:?[ \t](?=\S)"
)
"""An exception as a program tells of it in a line of its own log: its class, then its message."""
IPYTHON_HEAD = re.compile(rf"^{NAME}[ \t]{{2,}}Traceback \(most recent call last\)")
CUT_FRAME = re.compile(
    r"""^\s*(?P<path>[^\s"]*[/\\][^"\n]{1,200}\.py)", line \d+(?:, in (?P<function>[\w.<>]+))?"""
)
"""A place whose beginning was not copied along."""
FRAME = re.compile(
    r"""^\s*File "?(?P<path>(?<=")[^"\n]+|(?<!")[^",\n]{1,200}\.py(?=,? line))"?"""
    r"(?:, line \d+)?(?:,? in (?P<function>[\w.<>]+))?"
)
NOTEBOOK_FRAME = re.compile(
    r"^\s*(?:File )?\[?(?P<path>(?:[A-Za-z]:|"
    r"~)?[^\s:()\[\]<>\"]{0,200}[/\\][^:()\[\]\n\"]{1,200}?\.pyx?)(?:\]\([^)]*\))?(?::\d+)?"
    r",? in (?P<function>[\w.<>]+)"
)
NOTEBOOK_MODULE = re.compile(
    r"^File (?P<path>(?:[A-Za-z]:|~)?[^\s:\"]{0,200}[/\\][^:\n\"]{1,200}?\.pyx?):\d+\s*$"
)
"""A file's own lines, outside of any function, as a notebook shows them."""
CELL = re.compile(
    r"^\s*(?P<path>(?:Cell )?In ?\[\d+\]|<ipython-input-[\w-]+>)(?:, line \d+|:\d+)?,? in (?P<function>[\w.<>]+)"
)
"""A place in a notebook's own cell."""
SOURCE = re.compile(
    r"^\s*(?:-+> ?\d+|\u2771? ?\d+ \u2502|\d+ {1,8}(?!(?:Client|Server) Error|Forbidden|Unauthorized|Not Found|"
    r"Bad |Too Many)\S|\d+\s*$|[\^~\s-]{3,}$|Cell In|raise \w+\(|<ipython|"
    r"warnings?\.warn\()"
)
CODE = re.compile(
    r"^(?:return|raise|assert|for|if|with|yield|await|del) \S|^import [\w.]+$|^from [\w.]+ import |"
    r"^[\w.\[\]'\", ]{1,80} ?[+*/-]?= ?\S|^(?:await )?[\w.]+\(.*\)?$"
)
"""A line of code below its place whose indent was lost in copying."""
TROUBLE = re.compile(
    r"\b(?:error|fatal|failed|cannot|can't|could not|unable|not found|missing|denied|mismatch|conflict|abort|killed|"
    r"unsupported|not supported|is required|unmet dependenc|held broken|nothing provides|forbidden|unauthorized)",
    re.IGNORECASE,
)
WARNED = re.compile(
    r"^(?![^\n]*Retrying \()(?:\W{0,3}(?:WARN(?:ING)?\b|[Ww]arning: )|W\d{4} |[^\n]{0,80}\[WARN(?:ING)?\]|"
    r"[^\n]{0,200}\b[A-Z]\w{2,30}Warning: )"
)
"""A line that the program itself calls a warning: it went on. What pip says of its retries is why it ended."""
LINK = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)")
WRAPPERS = re.compile(
    r"ChildFailedError|CalledProcessError|DatasetGenerationError|BackendCompilerFailed|RemoteTraceback|"
    r"(?:Failed to import [\w.]+ because of the following error)|ProcessRaisedException|"
    r"MaxRetryError(?![\s\S]*Caused by \w)|"
    r"An error happened while trying to locate the file|returned non-zero exit status|subprocess-exited-with-error|"
    # The page did not come up: what its own libraries raised before that is the reason.
    r"When localhost is not accessible|"
    r"\b(?:[Ss]ee|check) (?:the )?(?:root cause|stack trace|traceback|error|logs?)[^\n]{0,20} above|"
    r"[Ee]ngine (?:process|core) (?:failed|initialization failed|died|encountered)|EngineDeadError|"
    r"WorkerProc \w+ failed|^SystemExit|died unexpectedly|worker process failed|Failed to load model from file|"
    r"^NativeCommandExit|"
    # What was wrong with the file stands in the line before.
    r"Not able to read records in the JSON file|"
    r"Error compiling objects for extension|Couldn't install \w+\.|ExecuteUserScriptError|"
    # Another process ended, and this one only lost it.
    r"^(?:EOFError|BrokenPipeError|ConnectionResetError)|ncclRemoteError|remote process exited|"
    r"Connection closed by peer|^DistBackendError: [^\n]*(?:store|recvValue)"
)
HANDED_OVER = re.compile(
    r"[\\/]multiprocessing[\\/](?:connection|reduction|spawn|popen_spawn_win32|queues)\.py$"
)
"""Where Python takes what another process hands over: it fails because that one has ended."""
OCCURRED = re.compile(rf"^(?:\u53d1\u751f\u5f02\u5e38|Exception has occurred): (?P<name>{NAME})\b")
"""As an editor shows an exception: its type, its message on the next line, then the places, the innermost first."""
WANTED = re.compile(
    r"(?:pip3? install (?:-{1,2}[\w-]+ )*|\b[Pp]lease (?:re)?install (?:the )?)[`'\"]?(?P<name>[A-Za-z][\w-]+)"
)
"""A package that a message wants installed."""
IGNORED = re.compile(r"^(?:Exception ignored in|--- Logging error ---|Task exception was never retrieved)")
"""What Python only tells of while it goes on, or while it is ending anyway."""
QUOTED = re.compile(rf"(?P<mark>[\"'`\u201c\u2018\u300c]?)(?P<name>\b{NAME}): (?P<message>[^\n]{{3,400}})")
"""An exception in the middle of a person's sentence."""
IMPLIED = (
    (
        "AttributeError",
        r"(?:'[\w.]{1,80}' object|module '[\w.]{1,80}'|type object '\w{1,80}') has no attribute '\w{1,80}'",
    ),
    (
        "TypeError",
        r"(?<![\w.])[A-Za-z][\w.]{0,80}\(\) (?:got an unexpected keyword argument '\w{1,80}'|"
        r"missing \d+ required \w{1,20} arguments?: '\w{1,80}')",
    ),
    (
        "TypeError",
        r"object of type '[\w.]{1,80}' has no len\(\)|'[\w.]{1,80}' object is not (?:subscriptable|iterable)",
    ),
    ("ImportError", r"cannot import name '\w{1,80}' from '[\w.]{1,80}'"),
    ("NameError", r"^name '\w{1,80}' is not defined"),
    ("ModuleNotFoundError", r"No module named '\w[\w.]{1,80}'"),
)
"""What a person copies of an exception when its name is left behind."""
UNTOLD = re.compile(rf"raise (?P<name>{NAME})\((?:f|r)?[\"'](?P<message>[^\"'\n]{{12,300}})")
"""The line of code that raises, with its words."""
MARKS = {"\u201c": "\u201d", "\u2018": "\u2019", "\u300c": "\u300d"}


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in the code. `package` is the installed package it belongs to, "" for a program's own file."""

    path: str
    function: str
    package: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception in a text: its bare type and message, the places that it went through, and where it stands."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    start: int
    linked: bool
    """Whether it came of the one before it."""
    ignored: bool = False
    """Whether Python only told of it and went on."""
    source: str = ""
    """The line of code that raised it."""
    found_there: bool = False
    """Whether it calls a package missing in whose own code the exception before it was raised."""

    @property
    def wraps(self) -> bool:
        """Whether it only passes on that something failed, or went by without ending anything."""
        lost = self.type in ("PermissionError", "OSError", "FileNotFoundError") and bool(self.frames)
        if lost and HANDED_OVER.search(self.frames[-1].path):
            return True
        return self.ignored or self.found_there or WRAPPERS.search(f"{self.type}: {self.message}") is not None

    @property
    def on_purpose(self) -> bool:
        """Whether a line of Python raised it with words of its own, which are then meant for a person."""
        # An assertion has words only where somebody wrote them.
        told = self.type == "AssertionError" and not self.message.startswith(("assert ", "assert("))
        raising = told or self.source.lstrip("-> 0123456789").startswith("raise ")
        return raising and len(self.message.split()) >= FEW_WORDS

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that it went through, the innermost first, each once; "" is the program's own code."""
        return tuple(dict.fromkeys(frame.package for frame in reversed(self.frames)))


class Reading:
    """A text without colours and harmless lines, cut into exceptions and lines that weigh."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.lower = words.lower()
        self.raised: tuple[Raised, ...] = ()
        self.cut = False
        """Whether it ends in places that an exception went through which is not in it any more."""
        self._starts: list[int] = []
        self._weights: list[float] = []
        self._blocks: list[int] = []
        """Of each line, the exception that it belongs to; -1 for none."""
        self._read()

    @property
    def last(self) -> Raised | None:
        """The exception that ended the program: the last one that does not only pass another one on."""
        return next(
            (one for one in reversed(self.raised) if not one.wraps), self.raised[-1] if self.raised else None
        )

    def weigh(self, start: int, end: int) -> float:
        """Return the weight of the heaviest line between two positions."""
        first, last = self._line_at(start), self._line_at(max(start, end - 1))
        return max(self._weights[first : last + 1], default=NOTHING)

    def ends_in(self, position: int) -> bool:
        """Return whether `position` lies in the last exception, or in one that it came of."""
        last = next((number for number, one in enumerate(self.raised) if one is self.last), -1)
        chain = self._chain_of(self._blocks[self._line_at(position)])
        return chain >= 0 and chain == self._chain_of(last)

    def same_place(self, one: int, other: int) -> bool:
        """Return whether two positions lie in one line, or in one chain of exceptions."""
        first, second = self._line_at(one), self._line_at(other)
        chains = self._chain_of(self._blocks[first]), self._chain_of(self._blocks[second])
        return first == second or (chains[0] == chains[1] >= 0)

    def _line_at(self, position: int) -> int:
        return max(0, bisect_right(self._starts, position) - 1)

    def _chain_of(self, block: int) -> int:
        while block > 0 and self.raised[block].linked:
            block -= 1
        return block

    def _read(self) -> None:
        found: list[Raised] = []
        frames: list[Frame] = []
        linked, ignored, left, source_next = False, False, 0, False
        source, source_line, raising, asserted, occurred = "", 0, ("", 0), set(), False
        for start, line in _lines(self.words):
            self._starts.append(start)
            bare = LEAD.sub("", line)
            block, weight = -1, ASIDE
            frame = _frame_of(bare)
            shown = None if frame else OCCURRED.match(bare.strip())
            occurred = occurred or shown is not None
            name = shown or (None if frame else RAISED.match(bare.strip()))
            name = name or (ODDLY_NAMED.match(bare) if frames and not frame else None)
            classed = None if frame or name or "<class '" not in bare else CLASS_TOLD.search(bare)
            if frame:
                frames.append(frame)
                weight, left, source_next = NOTHING, 0, True
            elif LINK.match(bare.strip()):
                linked, left, source_next = True, 0, False
            elif IGNORED.match(bare):
                ignored, left, source_next, weight = True, 0, False, NOTHING
            elif ("Traceback (most recent call last)" in bare and len(bare) < ONE_LINE) or IPYTHON_HEAD.match(
                bare
            ):
                # Of one that was being handled only places are there, and not what it was.
                linked = linked and not frames
                frames, left, source_next, weight = [], 0, False, NOTHING
            elif name and not name["name"].endswith("Warning"):
                message = "" if shown else bare.strip()[name.end("name") :].lstrip(": \t")
                kind = name["name"].rpartition(".")[2]
                told = ignored
                found.append(
                    Raised(kind, message, tuple(frames), start, linked and bool(found), told, source)
                )
                frames, linked, ignored, left, source_next = [], False, False, MESSAGE_LINES, False
                block = len(found) - 1
                # What was asserted says what was wrong: the exception itself has no words.
                if kind == "AssertionError" and not message and source.startswith(("assert ", "assert(")):
                    found[-1] = replace(found[-1], message=source)
                    self._blocks[source_line], left = block, 0
                    asserted.add(source_line)
            elif classed and not left:
                told = Raised(classed["name"], bare[classed.end() :].strip(), (), start, False)
                found.append(told)
                block, frames, linked = len(found) - 1, [], False
            elif not bare.strip() or "%|" in bare:
                left = left if found and left == MESSAGE_LINES and not found[-1].message else 0
                # Pages put an empty line between a place and its line of code.
                source_next = source_next and not bare.strip()
            elif left:
                left -= 1
                block = len(found) - 1
                found[-1] = _extend(found[-1], bare.strip())
            elif (source_next and (bare[:1].isspace() or CODE.search(bare))) or SOURCE.match(bare):
                weight, source_next = NOTHING, False
            elif TROUBLE.search(bare) and not WARNED.search(line):
                weight = TOLD
            self._weights.append(weight)
            self._blocks.append(block)
            # A notebook marks the line with an arrow and shows those after it, too.
            marked = source.startswith("--") and bare.strip()[:1].isdigit()
            if bare.strip(" \t^~") and not marked:
                source = bare.strip() if weight == NOTHING and not frame else ""
                source_line = len(self._blocks) - 1
                if frame or source.startswith(("assert ", "raise ")):
                    raising = (source, source_line)
        if occurred and frames and not found[-1].frames:
            found[-1] = replace(found[-1], frames=tuple(reversed(frames)))
        untold = (
            _untold(raising[0], tuple(frames), self._starts[raising[1]]) if frames and not linked else None
        )
        if untold is not None and all(one.type != untold.type for one in found):
            found.append(untold)
            self._blocks[raising[1]], frames = len(found) - 1, []
            asserted.add(raising[1])
        if not found and (quoted := _quoted(self.words)) is not None:
            found.append(quoted)
            self._blocks[self._line_at(quoted.start)] = 0
        self.cut = linked and bool(found) and bool(frames)
        self.raised = tuple(_mark_found(found))
        weights = _weigh_raised(self.raised)
        heads = {
            self._line_at(one.start + max(0, self.words[one.start :].find(one.message[:20]))) for one in found
        }
        heads |= {self._line_at(one.start) for one in found} | asserted
        self._weights = [
            weights[block] * (1 if number in heads else CONTINUED) if block >= 0 else weight
            for number, (weight, block) in enumerate(zip(self._weights, self._blocks, strict=True))
        ]


def _mark_found(raised: list[Raised]) -> Iterator[Raised]:
    """Yield `raised`, with those marked that call a package missing which the exception before them went through."""
    for before, one in zip([None, *raised], raised, strict=False):
        told = WANTED.search(one.message) if one.linked and one.type == "ImportError" else None
        there = told and before and told["name"].replace("-", "_").lower() in before.packages
        yield replace(one, found_there=True) if there else one


def _lines(words: str) -> Iterator[tuple[int, str]]:
    start = 0
    for line in words.split("\n"):
        yield start, line[:2000]
        start += len(line) + 1


def _frame_of(line: str) -> Frame | None:
    if ".py" not in line and 'File "' not in line:
        cell = CELL.match(line)
        return Frame(cell["path"], cell["function"], "") if cell else None
    module = NOTEBOOK_MODULE.match(line)
    if module:
        return Frame(module["path"], "<module>", package_of(module["path"]))
    found = FRAME.match(line) or NOTEBOOK_FRAME.match(line) or CUT_FRAME.match(line)
    if not found:
        return None
    path = found["path"]
    return Frame(path, found["function"] or "", package_of(path))


def _extend(raised: Raised, line: str) -> Raised:
    message = f"{raised.message}\n{line}" if raised.message else line
    return replace(raised, message=message)


def _untold(source: str, frames: tuple[Frame, ...], start: int) -> Raised | None:
    """Return what the last line of code raised, where a traceback ends with it; None for a line that raises nothing."""
    if source.startswith("assert "):
        return Raised("AssertionError", source, frames, start, False, source=source)
    told = UNTOLD.match(source)
    kind = told["name"].rpartition(".")[2] if told else ""
    return Raised(kind, told["message"], frames, start, False, source=source) if told else None


def _quoted(words: str) -> Raised | None:
    """Return the last exception that a person quotes in a sentence; None where there is none."""
    last = None
    for found in QUOTED.finditer(words):
        message, mark = found["message"], found["mark"]
        end = message.find(MARKS.get(mark, mark)) if mark else -1
        # A quoted name inside the message has the same marks: only what ends it is followed by no word.
        while (
            end >= 0 and mark == "'" and message[end + 1 : end + 2] not in ("", " ", ".", ",", ")", "?", "!")
        ):
            end = message.find("'", end + 1)
        last = Raised(
            found["name"].rpartition(".")[2], message[: end if end > 0 else None], (), found.start(), False
        )
    return last or _implied(words)


def _implied(words: str) -> Raised | None:
    """Return the exception whose message stands in `words` without its name; None where there is none."""
    for kind, pattern in IMPLIED:
        found = re.search(pattern, words, re.MULTILINE)
        if found:
            return Raised(kind, found[0], (), found.start(), False)
    return None


def _weigh_raised(raised: tuple[Raised, ...]) -> list[float]:
    """Return the weight of each exception: the last one's is full, unless it only passes another one on."""
    weights: list[float] = []
    weight = FINAL
    for one in reversed(raised):
        weights.append(min(weight, WRAPPED) if one.wraps else weight)
        if not one.wraps:
            weight = weight * DIRECT_CAUSE if one.linked else EARLIER
    return weights[::-1]
