"""Talks that are written as one text: templates of models, instruction forms, names with a colon, messenger exports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from studio.core.i18n import Text, text
from studio.data.columns import repeats
from studio.data.formats.aliases import ANSWERS, INPUT, INSTRUCTION, PRODUCTS, QUESTIONS, SOURCES
from studio.data.formats.cells import Values, is_blank, shorten
from studio.data.formats.column_names import find_core, part_name, simplify
from studio.data.formats.placeholders import is_placeholder
from studio.data.row import Row
from studio.data.transcript_styles import (
    BESIDE,
    ENDS,
    MODELS,
    SECTION,
    STYLES,
    SYSTEMS,
    TOOLS,
    USERS,
    WRAPPED,
    Style,
)

Turn = tuple[str, str, str]
"""(who speaks, when, the words)"""
LAST_HEADING = re.compile(r"(?:^|\n)\s*#{1,6}[ \t][^\n]*$")
"""A heading at the end of an answer is of the questions behind it."""
LOOKED_AT = 50
LOOKED_CHARACTERS = 8000
"""Of each text: whether it is a talk shows at its beginning."""
SHARE = 0.8
"""Of the sample's rows so many are talks, else the column is text that quotes some."""
SENTENCE_CHARACTERS = 20
"""An average cell with fewer is a name or a kind."""
GAP_S = 8 * 3600.0
"""Silence in a messenger after which another talk begins."""
HEADED_STYLES = ("stamps", "dated", "named")
"""Marks on a line of their own, of which one alone could stand in any text."""
FEWEST_ASKED, ASKED_LINES, HEADED = 3, 0.2, 600
"""So many lines that ask, and this share of all, head answers, the first after no more than so many letters."""
SPOKEN = {"user": USERS, "assistant": MODELS, "system": SYSTEMS, "beside": BESIDE, "tool": TOOLS}
"""Role -> the words that stand before its turns."""
NOTHING = "None"
"""What Python prints where a turn only called a function."""
MOST_NAMES = 6
"""Different speakers in one talk, where only a colon tells that a name is one."""
FORMATS_OF_TIME = ("%d.%m.%y", "%d.%m.%Y", "%m.%d.%y", "%m.%d.%Y", "%Y.%m.%d", "%y.%m.%d")


def part_transcript(words: str, style: Style) -> list[Turn]:
    """Return the turns of a text; what stands before the first mark is a system's turn. [] where there is none."""
    words = words.replace("\r\n", "\n")
    if wrapped := WRAPPED.fullmatch(words):
        words = wrapped[2]
    marks = list(style.mark.finditer(words))
    if not marks:
        return []
    if style.name == "ends":  # two people speak in turn, and a mark ends what each says
        pieces = [
            words[here:there] for here, there in pairwise([0, *(n for one in marks for n in one.span())])
        ]
        return [(str(n % 2 + 1), "", said.strip()) for n, said in enumerate(pieces[::2]) if said.strip()]
    if style.name == "questions":  # whose answers are what stands below them
        ends = [*(mark.start() for mark in marks[1:]), len(words)]
        said = [words[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
        said = [LAST_HEADING.sub("", one) for one in said]
        pairs = [(mark["who"].strip(), one) for mark, one in zip(marks, said, strict=True)]
        return [turn for asked, one in pairs for turn in (("user", "", asked), ("assistant", "", one))]
    turns: list[Turn] = []
    before = ENDS.sub("", words[: marks[0].start()]).strip()
    if before and not style.timed:
        turns.append(("system", "", before))
    day = ""
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        said = words[mark.end() : following.start() if following else len(words)]
        said = ENDS.sub("", said).strip()
        who = mark["who"].strip()
        if style.name == "inst":
            who = "user" if who == "[INST]" else "assistant"
            if said.startswith("<<SYS>>") and "<</SYS>>" in said:
                system, _, said = said.removeprefix("<<SYS>>").partition("<</SYS>>")
                turns.append(("system", "", system.strip()))
                said = said.strip()
        told = mark.groupdict()
        day = told.get("day") or day  # which stands once, above all that was said on it
        turns.append((who, f"{day} {told['time']}".strip() if style.timed else "", said))
    return turns


def name_role(who: str) -> str:
    """Return the role that a word before a turn stands for; "" for a name, "beside" for material of the question."""
    word = who.strip().lower()
    return next((role for role, words in SPOKEN.items() if word in words), "")


def find_style(cells: Sequence[str], *, alone: bool, plain: bool = False) -> Style | None:
    """Return how the texts of a column write talks; None where they are texts.

    plain: whether they are a file of text, or its parts: only then a line that asks heads an answer.

    alone: whether the column is all that the rows hold: only then a name before a colon is taken for a speaker.
    """
    for style in STYLES:
        if (style.name in ("names", "ends") and not alone) or (style.name == "questions" and not plain):
            continue
        if sum(_is_talk(cell, style) for cell in cells) >= SHARE * len(cells):
            return None if style.name == "names" and _are_records(cells, style) else style
    return None


def _are_records(cells: Sequence[str], style: Style) -> bool:
    """Return whether all texts have the same marks once each, some of them of questions and none of answers.

    `Topic: ...` above `Question: ...` are the fields of a record, and no people.
    """
    marks = [tuple(who.lower() for who, _, _ in part_transcript(cell, style)) for cell in cells]
    roles = {name_role(who) for who in marks[0]}
    once = len({*marks}) == 1 < len(marks) and len({*marks[0]}) == len(marks[0])
    return once and "" in roles and "user" in roles and "assistant" not in roles


def _is_talk(words: str, style: Style) -> bool:
    words = words[:LOOKED_CHARACTERS]
    turns = part_transcript(words, style)
    speakers = [who.lower() for who, _, _ in turns]
    known = {name_role(who) for who in speakers}
    if style.name == "names":
        lines = [line for line in words.splitlines() if line.strip()]
        marked = len(style.mark.findall(words))
        repeated = len(turns) >= 2 and len({*speakers}) <= MOST_NAMES and speakers[0] != "system"
        return repeated and len({*speakers}) >= 2 and marked >= 0.6 * len(lines)
    if style.timed:
        return len(turns) >= 1 and (style.name not in HEADED_STYLES or len({*speakers}) > 1)
    if style.name == "questions":
        answered = [said for who, _, said in turns if who == "assistant"]
        lines = sum(bool(line.strip()) for line in words.splitlines())
        opens = style.mark.search(words).start() if turns else 0
        often = len(answered) >= FEWEST_ASKED and len(answered) >= ASKED_LINES * lines
        return (
            bool(turns)
            and all(answered)
            and ((often and opens < HEADED) or (opens == 0 and len(answered) == 1))
        )
    if style.name == "ends":
        return len(turns) >= 2
    if not {"user", "assistant"} <= known:
        return False
    # Marks that are plain words must open the text, or nearly: else it is a text that quotes a talk.
    opens = style.mark.search(words)
    return style.name not in ("words", "headings") or opens.start() < max(600, 0.4 * len(words))


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcript:
    """A column whose texts are talks."""

    column: str
    style: str
    apart: bool = False
    """Whether each question with its answer is a talk of its own."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.column,)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text(
            f"data.reshape.{'exported' if self._style.timed else 'transcript'}", column=shorten(self.column)
        )

    @property
    def _style(self) -> Style:
        return next(style for style in STYLES if style.name == self.style)

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its text as turns; of a messenger's export a Row a stretch without long silence."""
        if self._style.timed:
            yield from self._gather(rows)
            return
        number = 0
        for row in rows:
            cell = row.values.get(self.column) if row.problem is None else None
            if not isinstance(cell, str):
                yield row
                continue
            talks = list(self._part(cell))
            for talk in talks:
                number += 1
                yield self._make_row(row, talk, number if self.apart or len(talks) > 1 else row.row)

    def _part(self, words: str) -> Iterator[list[dict[str, str]]]:
        """Yield the talks of a text: its sections, each question with its answer, or all of it."""
        sections = SECTION.split(words) if self._style.name in ("words", "names") else [words]
        talks = [_join_beside(part_transcript(one, self._style)) for one in sections if one.strip()]
        talks = [one for one in talks if one]
        if len(talks) > 1 and all(len(one) > 1 for one in talks):
            yield from talks
            return
        turns = _join_beside(part_transcript(words, self._style))
        yield from _part_pairs(turns) if self.apart else [turns]

    def _make_row(self, row: Row, turns: Sequence[Mapping[str, str]], number: int) -> Row:
        values = {name: cell for name, cell in row.values.items() if name != self.column}
        open_end = any(simplify(name) in ANSWERS for name in values)
        said = [turn for turn in turns if turn["content"]] if open_end else list(turns)
        values = {"prompt" if open_end else "messages": said, **values}
        return Row(row.line, values, None, number, row.offset, row.raw)

    def _gather(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Join all rows, which may be lines or pieces of one export, and part them where nobody wrote for GAP_S."""
        first: Row | None = None
        pieces: list[str] = []
        for row in rows:
            if row.problem is not None:
                yield row
            elif isinstance(cell := row.values.get(self.column), str):
                first = first or row
                pieces.append(cell)
        if first is None:
            return
        last_s, talks = None, [[]]
        for who, when, words in part_transcript("\n".join(pieces), self._style):
            now_s = read_time_s(when)
            if talks[-1] and now_s is not None and last_s is not None and now_s - last_s > GAP_S:
                talks.append([])
            last_s = now_s if now_s is not None else last_s
            if not (is_blank(words) or is_placeholder(words)):
                talks[-1].append({"speaker": who, "content": words})
        answered = [talk for talk in talks if len({turn["speaker"] for turn in talk}) > 1]
        if 2 * len(answered) < len(talks):  # people who write once a day answer each other all the same
            talks = [[turn for talk in talks for turn in talk]]
        for number, talk in enumerate(filter(None, talks), start=1):
            yield self._make_row(first, talk, number)


def _join_beside(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Return turns as objects; material joins its question, a speaker's turns in a row are one."""
    found: list[dict[str, str]] = []
    for who, _, words in turns:
        role = name_role(who)
        key, speaker = ("role", role) if role else ("speaker", who)
        if role == "beside":
            key, speaker = "role", "user"
        if is_blank(words) and role != "assistant":
            continue
        if role == "tool" and found and found[-1] == {"role": "assistant", "content": NOTHING}:
            found.pop()
        if found and found[-1].get(key) == speaker:
            found[-1]["content"] += f"\n\n{words}" if role == "beside" else f"\n{words}"
        else:
            found.append({key: speaker, "content": words})
    return found


def _part_pairs(turns: Sequence[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    """Yield talks that begin with each question."""
    talk: list[dict[str, str]] = []
    for turn in turns:
        if turn.get("role") == "user" and any(one.get("role") == "assistant" for one in talk):
            yield talk
            talk = []
        talk.append(turn)
    if talk:
        yield talk


def read_time_s(when: object) -> float | None:
    """Return the seconds of a messenger's time; None where it is not read. Days before months where both could be."""
    if isinstance(when, (int, float)):
        return float(when) / 1000 if when > 1e11 else float(when)
    if not isinstance(when, str):
        return None
    try:
        return datetime.fromisoformat(
            when.strip().replace("Z", "+00:00").replace(" UTC", "+00:00")
        ).timestamp()
    except ValueError:
        pass
    if re.fullmatch(r"\d{9,13}(\.\d+)?", when.strip()):
        return read_time_s(float(when))
    found = re.match(r"\[?(\d{1,4}[./-]\d{1,2}[./-]\d{1,4}),?\s+(\d{1,2})[:.](\d{2})", when)
    if not found:
        return None
    day = re.sub(r"[/-]", ".", found[1])
    for form in FORMATS_OF_TIME:
        try:
            date = datetime.strptime(day, form)
        except ValueError:
            continue
        hours = int(found[2]) % 24 + (12 if re.search(r"[Pp]\.?\s?[Mm]", when) and int(found[2]) < 12 else 0)
        return date.timestamp() + 3600 * hours + 60 * int(found[3])
    return None


def find_transcript(columns: Sequence[str], rows: Sequence[Values], container: str) -> Transcript | None:
    """Return the column whose texts are talks; None where there is none, or where other columns hold the talk."""
    texts = [
        name
        for name in columns
        if sum(isinstance(row.get(name), str) and not is_blank(row[name]) for row in rows) > len(rows) / 2
    ]
    lengths = {name: _mean(name, rows) for name in texts}
    long = [name for name in texts if lengths[name] >= 0.5 * max(lengths.values())]
    if len(long) != 1:
        return None
    if _answers(long[0]) and any(_asks(name) for name in texts if name != long[0]):
        return None  # an answer with names and colons in it
    cells = [
        row[long[0]]
        for row in rows[:LOOKED_AT]
        if isinstance(row.get(long[0]), str) and not is_blank(row[long[0]])
    ]
    plain = container in ("txt", "md")
    style = find_style(cells, alone=len(texts) == 1, plain=plain)
    # Sentences of two columns that stand in it are its question and its answer; a name and the like are not.
    others = [
        name
        for name in texts
        if name not in long
        and 2 * len({str(row.get(name)) for row in rows}) > len(rows)
        and (lengths[name] >= SENTENCE_CHARACTERS or simplify(name) in (*ANSWERS, *INSTRUCTION, *QUESTIONS))
    ]
    if style is None:
        return None
    if sum(repeats(name, long, rows) for name in others) > 1 and not _has_system(cells, style, rows):
        return None
    if not any(simplify(name) in ANSWERS for name in columns) and _are_open(cells, style):
        return None  # prompts: what is said to them stands elsewhere, under a name of its own
    return Transcript(column=long[0], style=style.name, apart=style.single and plain)


def _answers(name: str) -> bool:
    """Return whether a column is called what is written for something else."""
    named = {simplify(name), find_core(name)} & {*ANSWERS, *PRODUCTS}
    return bool(named or {*part_name(name)} & {"target", "targets", "output", "completion"})


def _asks(name: str) -> bool:
    """Return whether a column is called what something is written for."""
    named = {simplify(name), find_core(name)} & {"prompt", *QUESTIONS, *INSTRUCTION, *INPUT, *SOURCES}
    return bool(named or {*part_name(name)} & {"input", "prompt", "source"})


def _has_system(cells: Sequence[str], style: Style, rows: Sequence[Values]) -> bool:
    """Return whether most texts, rendered with the marks of a template, say at their head what no column holds."""
    if style.name in ("headings", "words"):
        return False  # the frame of a prompt is none
    told = 0
    for cell, row in zip(cells, rows, strict=False):
        (who, _, said), *_ = part_transcript(cell, style) or [("", "", "")]
        beside = [words for words in row.values() if isinstance(words, str) and words != cell]
        told += (
            name_role(who) == "system"
            and not is_blank(said)
            and not any(said.strip() in one for one in beside)
        )
    return 2 * told > len(cells)


def _are_open(cells: Sequence[str], style: Style) -> bool:
    """Return whether most texts end where an answer would begin."""
    last = [(part_transcript(cell, style) or [("", "", "")])[-1] for cell in cells]
    return 2 * sum(name_role(who) == "assistant" and is_blank(said) for who, _, said in last) > len(cells)


def _mean(name: str, rows: Sequence[Values]) -> float:
    return sum(len(cell) for row in rows if isinstance(cell := row.get(name), str)) / max(1, len(rows))
