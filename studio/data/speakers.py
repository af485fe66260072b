"""Talks between people: whose messages the model learns to write, where turns name a person and not a role."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import LISTS
from studio.data.formats.cells import Values, is_blank, shorten
from studio.data.formats.column_names import part_name, simplify
from studio.data.formats.message_parsing import ROLE_KEYS, find_turns
from studio.data.formats.placeholders import is_placeholder
from studio.data.formats.roles import read_role
from studio.data.open_question import Question
from studio.data.row import Row

SPEAKER_KEYS = ("speaker", "role", "from", "author", "sender", "name", "user", "who", "participant",
                "speaker_id", "agent", "username", "party", "character", "sender_name", "author_name")  # fmt: skip
WORD_KEYS = (
    "content",
    "text",
    "utterance",
    "message",
    "value",
    "body",
    "msg",
    "sentence",
    "words",
    "transcript",
)
SECOND = "second"
"""Stands for whoever speaks second in each talk."""
HELPERS = frozenset(
    "agent support operator advisor adviser representative rep doctor therapist counselor counsellor expert teacher "
    "tutor seller service staff helpdesk wizard assistant bot system sys helper clerk salesperson lawyer "
    "psychologist interviewee guide mechanic nurse recommender persuader salesman librarian coach supporter "
    "technician admin "
    "医生 大夫 客服 老师 教师 律师 专家 助手 助理 顾问 咨询师 医師 先生 "
    "arzt ärztin berater lehrer médico médecin".split()
)
ASKERS = frozenset(
    "customer client user usr patient student seeker buyer caller guest human apprentice interviewer tourist learner "
    "shopper persuadee visitor help-seeker consumer subscriber lead contact requester "
    "病人 患者 用户 客户 顾客 学生 求助者 来访者 当事人 kunde kundin schüler paciente cliente".split()
)
MARK = re.compile(
    r"#?(?:(?:person|speaker|sprecher|participant|interlocutor)[ _-]?)?(?:\d{1,2}|[ab])#?", re.I
)
"""Speakers that have no name: 0 and 1, A and B, speaker1, #Person2#."""
ORDINAL = re.compile(r"\A\d{1,2}[_-](?=[^\W\d_]{2})")
"""What numbers a speaker within a talk: `0_Wizard`."""
LOOKED_AT = 300
MOST_CHOICES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Speakers:
    """How the speakers of a column of turns become roles."""

    column: str
    key: str
    words: str
    learned: str
    """Whose messages are learned; SECOND, or "" where the speakers' names say their roles."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns whose cells it changes."""
        return (self.column,)

    @property
    def note(self) -> Text:
        """What a person should know."""
        told = "roles" if not self.learned else "second" if self.learned == SECOND else "name"
        return text(f"data.speakers.{told}", name=shorten(self.learned), key=self.key)

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with roles for speakers; what one says in a row is one turn."""
        for row in rows:
            turns = find_turns(row.values.get(self.column)) if row.problem is None else None
            if not turns or not all(isinstance(turn, Mapping) for turn in turns):
                yield row
                continue
            values = {**row.values, self.column: self._give_roles(turns)}
            yield Row(row.line, values, None, row.row, row.offset, row.raw)

    def _give_roles(self, turns: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        heard: list[str] = []
        found: list[dict[str, object]] = []
        for turn in turns:
            who = _name(turn, self.key)
            if who not in heard:
                heard.append(who)
            role = self._role(who, heard)
            words = turn.get(self.words)
            if isinstance(words, str) and (is_blank(words) or is_placeholder(words)):
                continue
            gone = (self.key, self.words, *ROLE_KEYS)
            more = {name: cell for name, cell in turn.items() if name not in gone}
            last = found[-1] if found else None
            if last and last["role"] == role and isinstance(words, str) and isinstance(last["content"], str):
                last["content"] = f"{last['content']}\n{words}"
            else:
                found.append({**more, "role": role, "content": words})
        return found

    def _role(self, who: str, heard: Sequence[str]) -> str:
        if self.learned == SECOND:
            return "assistant" if len(heard) > 1 and who == heard[1] else "user"
        if self.learned:
            return "assistant" if who == self.learned else "user"
        return guess_role(who) or "user"


def guess_role(who: str) -> str:
    """Return the role that a speaker's name says; "" for a person's name."""
    word = who.strip().strip("#<>[]").lower()
    if word in HELPERS:
        return "assistant"
    if word in ASKERS:
        return "user"
    role = read_role(word)
    return role or ""


def find_speakers(
    columns: Sequence[str], rows: Sequence[Values], learned: str
) -> tuple[Speakers | None, tuple[Question, ...]]:
    """Return how speakers become roles, and what to ask; (None, ()) where turns have roles, or there are none.

    learned: what the person said, "" for nothing.
    """
    for column in columns:
        if simplify(column) not in LISTS:
            continue
        talks = [find_turns(row.get(column)) for row in rows[:LOOKED_AT]]
        talks = [turns for turns in talks if turns and all(isinstance(turn, Mapping) for turn in turns)]
        if not talks or 2 * len(talks) < len(rows[:LOOKED_AT]):
            continue
        key = next((key for key in SPEAKER_KEYS if _all_have(talks, key)), "")
        told = _find_told(talks)
        words = next((key for key in WORD_KEYS if _all_have(talks, key)), "")
        if told and words and not learned:
            return Speakers(column=column, key=told, words=words, learned=""), ()
        if key and words and key != words:
            return _settle(column, key, words, talks, learned)
    return None, ()


def _settle(
    column: str, key: str, words: str, talks: Sequence[Sequence[Mapping[str, object]]], learned: str
) -> tuple[Speakers | None, tuple[Question, ...]]:
    order = [list(dict.fromkeys(_name(turn, key) for turn in turns)) for turns in talks]
    every = Counter(name for names in order for name in names)
    roles = {name: guess_role(name) for name in every}
    # In some talks with machines the machine that answers is called the system.
    answered = sum(
        any(roles[name] == "assistant" and read_role(name) for name in names if name.lower() != "system")
        for names in order
    )
    strange = [name for name in every if not roles[name]]
    if not learned and len(strange) == 1 and "user" not in roles.values() and 2 * answered >= len(order):
        # Beside one who answers, the only other one asks, whatever language names them.
        if 2 * every[strange[0]] > len(order):
            return Speakers(column=column, key=key, words=words, learned=""), ()
    late = any(name.lower() == "system" for names in order for name in names[1:])
    plain = all(read_role(name) for name in every) and not late
    told = {*roles.values()} >= {"user", "assistant"} and all(roles.values())
    third = any(2 * every[name] > len(order) for name in strange)  # no slip of the pen, but one who speaks
    if not learned and (plain or (2 * answered >= len(order) and (late or not (told or third)))):
        return None, ()  # roles; where a few are spelled wrongly, their rows are set aside
    found = Speakers(column=column, key=key, words=words, learned=learned)
    if learned or told:
        return found, ()
    second = Counter(names[1] for names in order if len(names) > 1)
    pairs = sum(len(names) == 2 for names in order)
    marked = all(MARK.fullmatch(name.strip()) for name in every)
    likely = Speakers(column=column, key=key, words=words, learned=SECOND)
    if marked and pairs >= 0.9 * len(order):
        return likely, ()
    helpers = [name for name in every if roles[name] == "assistant"]
    named = sorted(every, key=lambda name: (name not in helpers, -second[name], -every[name]))
    steady = named[0] in helpers or every[named[0]] > 0.5 * len(order)
    choices = [*named[:MOST_CHOICES], SECOND] if steady else [SECOND, *named[: MOST_CHOICES - 1]]
    likely = Speakers(column=column, key=key, words=words, learned=choices[0])
    names = tuple(
        text("data.speakers.ask.second")
        if one == SECOND
        else text("data.speakers.ask.name", name=shorten(one))
        for one in choices
    )
    asked = Question(
        id="speaker",
        question=text("data.speakers.ask"),
        choices=tuple(choices),
        names=names,
        field="data.speaker",
    )
    return likely, (asked,)


def _find_told(talks: Sequence[Sequence[Mapping[str, object]]]) -> str:
    """Return the key that says the role of each turn, in talks that name persons besides; "" where none does."""
    named = [key for key in SPEAKER_KEYS if _all_have(talks, key)]
    if any(_tells_roles(talks, key) for key in named):
        return ""
    keys = [key for key in talks[0][0] if key not in named and {*part_name(key)} & {*SPEAKER_KEYS}]
    return next((key for key in keys if _all_have(talks, key) and _tells_roles(talks, key)), "")


def _tells_roles(talks: Sequence[Sequence[Mapping[str, object]]], key: str) -> bool:
    """Return whether the values under a key of turns are the roles of one who asks and one who answers."""
    roles = {guess_role(_name(turn, key)) for turns in talks for turn in turns}
    return roles >= {"user", "assistant"} and "" not in roles


def _name(turn: Mapping[str, object], key: str) -> str:
    cell = turn.get(key)
    if isinstance(cell, Mapping):  # exports write {"name": "Anna", "id": 7}
        cell = next((cell[name] for name in ("nickname", "name", "role", "id") if cell.get(name)), "")
    return ORDINAL.sub("", str(cell if cell is not None else "").strip())


def _all_have(talks: Sequence[Sequence[Mapping[str, object]]], key: str) -> bool:
    return all(turn.get(key) is not None for turns in talks[:50] for turn in turns)
