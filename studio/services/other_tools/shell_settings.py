"""Settings of a training command in a shell script: its words with their lines, variables filled in; never run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from studio.services.other_tools.written import Setting, TextPlace, Unresolved

ASSIGNED = re.compile(
    r"(?:export\s+|local\s+|readonly\s+|declare\s+\S*\s*)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL
)
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*|\d)(?:\[@\]|\[\*\])?(?::?[-=]([^}]*))?\}|\$([A-Za-z_]\w*|\d)")
SUM = re.compile(r"\$\(\(?\s*(?:expr\s+)?(\$?\w+)\s*([-+*/])\s*(\$?\w+)\s*\)\)?")
"""`$(expr 16 / $N)` and `$((16 / N))`."""
MOST_QUOTED_LINES = 200
"""A quote that is open for longer was never meant as one."""
COUNTS = ("--nproc_per_node", "--nproc-per-node", "--num_processes", "--num_gpus")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command and where it stands."""

    words: str
    place: TextPlace


@dataclass(slots=True)
class Command:
    """A command of a script that a tool knows."""

    words: list[Word]
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    """The script's variables, and those in front of the command."""

    @property
    def place(self) -> TextPlace:
        """Where it begins."""
        return self.words[0].place


def list_commands(content: str) -> Iterator[Command]:
    """Yield the commands of a shell script in order, comments left out, variables filled in where they are known."""
    variables: dict[str, str | list[str]] = {}
    for line, words in _list_lines(content):
        if assigned := ASSIGNED.fullmatch(words.strip()):
            name, more, value = assigned.groups()
            parts = _split(value.strip())
            if parts is not None and value.strip().startswith("("):
                inner = _split(value.strip()[1:].rstrip().removesuffix(")"))
                filled = [one for part in inner or [] for one in _fill(part, variables)]
                before = variables.get(name)
                variables[name] = ([*before] if more and isinstance(before, list) else []) + filled
                continue
            if parts is not None and len(parts) <= 1:
                said = " ".join(_fill(parts[0], variables)) if parts else ""
                before = variables.get(name, "")
                variables[name] = f"{before}{said}" if more and isinstance(before, str) else said
                continue
        yield from _list_parts(words, line, variables)


def _list_parts(words: str, line: int, variables: dict[str, str | list[str]]) -> Iterator[Command]:
    """Yield the commands of one logical line: `A=1 command ...`, parted by `&&`, `;` and pipes."""
    found: list[Word] = []
    held, start = "", 0
    for offset, row in enumerate(words.split("\n")):
        start = start if held else offset
        held, place = held + _compute(row, variables), TextPlace(line + start)
        if (parts := _split(held)) is None:  # a quoted text goes on in the next line
            held += "\n"
            continue
        held = ""
        for part in parts:
            if part in ("&&", ";", "|", "||", "&", "then", "do", "fi", "done", "else", "if"):
                if found:
                    yield _make_command(found, variables)
                found = []
            elif part.startswith((">", "2>")):
                continue
            else:
                found += [Word(one, place) for one in _fill(part.removesuffix(";"), variables)]
    if found:
        yield _make_command(found, variables)


def _make_command(words: list[Word], variables: dict[str, str | list[str]]) -> Command:
    own = dict(variables)
    while len(words) > 1 and (assigned := ASSIGNED.fullmatch(words[0].words)):
        own[assigned.group(1)] = assigned.group(3)
        words = words[1:]
    return Command(words, own)


def _list_lines(content: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, words): lines that go on after `\\` or inside of brackets are one."""
    held, start, depth = [], 0, 0
    for number, raw in enumerate(content.splitlines(), 1):
        line = "" if raw.lstrip().startswith("#") else raw.rstrip()
        if not held:
            start = number
        opens = re.search(r"=\($|=\(\s", line) is not None or depth > 0
        bare = line.split(" #")[0].rstrip() if opens else line
        if opens:
            depth += bare.count("(") - bare.count(")")
        goes_on = line.endswith("\\") or depth > 0
        # A comment inside of a command that goes on over it does not end it.
        goes_on = goes_on or bool(held) and raw.lstrip().startswith("#")
        held.append(bare.removesuffix("\\"))
        if not goes_on and not (_split("\n".join(held)) is None and len(held) < MOST_QUOTED_LINES):
            words = "\n".join(held)
            if words.strip():
                yield start, words
            held = []
    if "".join(held).strip():
        yield start, "\n".join(held)


def _split(words: str) -> list[str] | None:
    try:
        lexer = shlex.shlex(words, posix=True, punctuation_chars=False)
        lexer.whitespace_split, lexer.commenters = True, ""
        found = []
        for part in lexer:
            if part == "#" or part.startswith("#") and part[1:2] in ("", " "):
                break
            found.append(part)
        return found
    except ValueError:  # an open quote
        return None


def _fill(word: str, variables: dict[str, str | list[str]]) -> list[str]:
    """Return `word` with its variables; one that is a list becomes several words, an unknown one stays as written."""
    if (whole := VARIABLE.fullmatch(word)) and isinstance(found := variables.get(_name(whole)), list):
        return found
    if (whole := VARIABLE.fullmatch(word)) and isinstance(found := variables.get(_name(whole)), str):
        if found.startswith("--"):  # ARGS="--a 1 --b 2"
            return _split(found) or [found]

    def say(match: re.Match[str]) -> str:
        found = variables.get(_name(match))
        if isinstance(found, list):
            return " ".join(found)
        if found is None or not found and match.group(2):
            found = match.group(2)
            return match.group(0) if found is None else " ".join(_fill(found, variables))
        return found

    return [VARIABLE.sub(say, word)]


def _compute(words: str, variables: dict[str, str | list[str]]) -> str:
    """Return `words` with sums of known numbers worked out; others stay as one word."""

    def say(match: re.Match[str]) -> str:
        named = [match.group(1).lstrip("$"), match.group(3).lstrip("$")]
        first, second = (one if one.isdigit() else variables.get(one) for one in named)
        if not (isinstance(first, str) and isinstance(second, str) and first.isdigit() and second.isdigit()):
            return "$" + "".join(re.findall(r"\w+", match.group(0)))  # a name that nobody knows
        a, b = int(first), int(second)
        ways = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}
        return str(ways[match.group(2)])

    return SUM.sub(say, words)


def _name(match: re.Match[str]) -> str:
    return match.group(1) or match.group(3) or ""


def read_options(words: list[Word]) -> dict[str, Setting]:
    """Return the options of a command: `--a 1`, `--a=1`, `--a` (on), `--a 1 2` (a list), `key=value`."""
    settings: dict[str, Setting] = {}
    key, held, place = "", [], TextPlace()

    def keep() -> None:
        if key:
            values = [Unresolved(one) if VARIABLE.search(one) else one for one in held]
            value = True if not values else values[0] if len(values) == 1 else values
            settings[key] = Setting(key, value, place)

    for word in words:
        if word.words.startswith("--") and len(word.words) > 2:
            keep()
            name, equals, value = word.words[2:].partition("=")
            key, held, place = name.replace("-", "_"), [value] if equals else [], word.place
        elif (pair := re.fullmatch(r"(\+*[A-Za-z_][\w.]*)=(.*)", word.words)) and not key:
            name, value = pair.groups()
            said = Unresolved(value) if VARIABLE.search(value) else value
            settings[name.lstrip("+")] = Setting(name.lstrip("+"), said, word.place)
        elif key:
            held.append(word.words)
    keep()
    return settings


def count_processes(command: Command) -> Setting | None:
    """Return how many cards a command names: its launcher's number, or NPROC_PER_NODE in front of it."""
    named = command.variables.get("NPROC_PER_NODE")
    if isinstance(named, str) and named.isdigit():
        return Setting("NPROC_PER_NODE", int(named), command.place)
    for i, word in enumerate(command.words):
        name, equals, value = word.words.partition("=")
        if name in COUNTS:
            value = value if equals else command.words[i + 1].words if i + 1 < len(command.words) else ""
            return Setting(name.strip("-"), int(value), word.place) if value.isdigit() else None
    return None
