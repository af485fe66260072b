"""Rows that are not examples yet: messages become talks, texts become turns, objects in cells become columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.core.recipe import DatasetSpec
from studio.data.annotations import Annotated, find_annotated
from studio.data.answer_rows import Flagged, Offered, find_flagged, find_offered
from studio.data.chained_rows import (
    REPLY,
    Chain,
    Rounds,
    find_chain,
    find_own_id,
    find_rounds,
    follow,
    links,
    make_key,
)
from studio.data.columns import measure_columns
from studio.data.cut_answers import CutAnswer, find_cut
from studio.data.filled_prompts import Filled, find_filled
from studio.data.formats.aliases import ANSWERS, LISTS, QUESTIONS
from studio.data.formats.cells import Values, is_blank, is_empty, shorten
from studio.data.formats.column_names import BLOCKING, part_name, simplify
from studio.data.formats.context import TECHNICAL
from studio.data.formats.pairs import find_pair
from studio.data.formats.placeholders import is_placeholder
from studio.data.list_columns import (
    Labelled,
    Languages,
    PickedPair,
    Ranked,
    Rated,
    Spread,
    find_labelled,
    find_languages,
    find_picked,
    find_ranked,
    find_rated,
    find_spread,
)
from studio.data.message_names import (
    GROUP,
    HELPING,
    KINDS,
    ONE_SIDED,
    ORDER,
    PEOPLE,
    SPEAKER,
    WORDS,
)
from studio.data.nested import Nested, find_nested
from studio.data.open_prompts import OpenPrompt, find_open_prompt
from studio.data.open_question import Question
from studio.data.ranking import DATED
from studio.data.row import Row, list_columns
from studio.data.scored_answers import Scored, find_scored
from studio.data.signed_labels import Signed, find_signed
from studio.data.speakers import Speakers, find_speakers, guess_role
from studio.data.talks.selection import Headed, Talks, find_talks
from studio.data.talks.trees import list_paths
from studio.data.transcripts import GAP_S, Transcript, find_transcript, read_time_s
from studio.data.whole_examples import are_documents
from studio.data.wrapped_rows import Lift, find_frame, find_lift

NOTED = BLOCKING | DATED | TECHNICAL
"""Words in the names of what is known of a message, and is not its words: `message_id`, `message_created_at`."""
REVIEWING = frozenset("review reviews reviewer stars".split())
LEAST_TURNS = 1.5
"""Messages in an average talk from which on a column is taken to group them."""
JUDGED_ROWS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """Which columns make talks of rows that hold a message each."""

    words: str
    speaker: str
    group: str
    """"" where only replies tell what belongs together."""
    order: str
    """"" for the order of the rows."""
    reply: str
    """"" for talks without branches."""
    own_id: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.words, self.speaker, self.group, self.order, self.reply, self.own_id)

    @property
    def note(self) -> Text:
        """What a person should know."""
        values = {
            "group": shorten(self.group or self.reply),
            "speaker": shorten(self.speaker),
            "order": self.order,
        }
        kind = "threads" if self.group or self.reply else "silence" if self.order else "whole"
        return text(f"data.reshape.{kind}", **values)

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row a talk, in the order of their first messages; broken rows as they are.

        All messages are held until the last is read: those of a talk may stand anywhere.
        """
        if not (self.group or self.reply):
            yield from self._part_by_silence(rows)
            return
        talks: dict[object, list[Row]] = {}
        for row in rows:
            if row.problem is not None:
                yield row
            else:
                talks.setdefault(make_key(row.values.get(self.group)) if self.group else None, []).append(row)
        number = 0
        for talk in talks.values():
            for branch in self._part(talk):
                number += 1
                yield self._join(branch, number)

    def _part_by_silence(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row a stretch of messages between which nobody was silent for GAP_S."""
        number, last_s, talk = 0, None, []
        for row in rows:
            if row.problem is not None:
                yield row
                continue
            now_s = read_time_s(row.values.get(self.order))
            if talk and now_s is not None and last_s is not None and abs(now_s - last_s) > GAP_S:
                number += 1
                yield self._join(self._turn_forward(talk), number)
                talk = []
            last_s = now_s if now_s is not None else last_s
            talk.append(row)
        if talk:
            yield self._join(self._turn_forward(talk), number + 1)

    def _turn_forward(self, talk: list[Row]) -> list[Row]:
        """Return messages with the earliest first: some exports begin with the latest."""
        first, last = (read_time_s(row.values.get(self.order)) for row in (talk[0], talk[-1]))
        return talk[::-1] if first is not None and last is not None and last < first else talk

    def _part(self, talk: list[Row]) -> Iterator[list[Row]]:
        """Yield the messages of a talk in order; with replies, those from the root to each last one."""
        if not self.reply:
            if self.order:
                talk = sorted(talk, key=lambda row: _rank(row.values.get(self.order)))
            yield talk
            return
        yield from follow(talk, self.own_id, self.reply)

    def _join(self, talk: Sequence[Row], number: int) -> Row:
        first = talk[0]
        turns: list[dict[str, object]] = []
        for row in talk:
            speaker, words = row.values.get(self.speaker), _say(row.values.get(self.words))
            if isinstance(speaker, Mapping):
                speaker = next((speaker[key] for key in ("name", "username", "id") if speaker.get(key)), None)
            if isinstance(speaker, bool) or simplify(self.speaker) in ("inbound", "is_inbound", *ONE_SIDED):
                sides = (
                    ("assistant", "user")
                    if {*part_name(self.speaker)} & {*HELPING}
                    else ("user", "assistant")
                )
                speaker = sides[str(speaker).lower() not in ("true", "1")]
            if (
                turns
                and turns[-1]["role"] == speaker
                and isinstance(words, str)
                and not is_placeholder(words)
            ):
                turns[-1]["content"] = f"{turns[-1]['content']}\n{words}"
            elif not (words is None or is_placeholder(words) or (isinstance(words, str) and is_blank(words))):
                turns.append({"role": speaker, "content": words})
        own = {*self.consumed}
        shared = {
            name: cell
            for name, cell in first.values.items()
            if name not in own and len(talk) > 1 and all(row.values.get(name) == cell for row in talk)
        }
        return Row(first.line, {"messages": turns, **shared}, None, number, first.offset, first.raw)


Reshape = (
    Lift | Annotated | Spread | Rated | Ranked | Labelled | PickedPair | Languages | Nested | Talks | Headed | Threads
    | Chain | Rounds | OpenPrompt | Transcript | Speakers | Flagged | Offered | CutAnswer | Filled | Scored
    | Signed
)  # fmt: skip
TALK_FORMATS = ("auto", "messages", "sharegpt")
PLAIN_FORMATS = ("text", "alpaca", "pretokenized")


def find_reshapes(
    spec: DatasetSpec, sample: Sequence[Row], container: str
) -> tuple[tuple[Reshape, ...], tuple[Question, ...]]:
    """Return the steps by which rows become examples, and what to ask; none where they are examples already.

    Nothing is reshaped whose columns the person has named, and no talks are made for who wants another format.
    """
    values = [row.values for row in sample[:JUDGED_ROWS] if row.values]
    plain = spec.format in PLAIN_FORMATS
    written = None if plain else find_open_prompt(list_columns(sample), values)
    first = (written,) if written else ()
    steps: list[Reshape] = []
    named = {column for column in spec.mapping.values() if column}

    def look(find: Callable[[Sequence[str], Sequence[Values]], Reshape | None]) -> None:
        rows = sample
        for step in (*first, *steps):
            rows = tuple(step.apply(rows))
        found = find(list_columns(rows), [row.values for row in rows[:JUDGED_ROWS] if row.values])
        if found and not named & {*found.consumed}:
            steps.append(found)

    asked: tuple[Question, ...] = ()

    def give_roles(columns: Sequence[str], rows: Sequence[Values]) -> Reshape | None:
        nonlocal asked
        found, asked = find_speakers(columns, rows, spec.speaker)
        return found

    def give_turns(columns: Sequence[str], rows: Sequence[Values]) -> Reshape | None:
        return find_talks(columns, rows, sure=spec.format in TALK_FORMATS[1:])

    if find_pair(list_columns(sample), values) and not any(map(list_paths, values)):
        return first, ()  # answers that are compared, whose lists are no talks
    look(find_labelled)
    look(find_picked)
    if steps:
        look(find_frame)
    look(find_spread)
    if not plain and not steps:
        look(give_turns)
    if not steps:
        look(find_lift)
        look(find_annotated)
        look(find_nested)
        look(find_languages)
        look(find_rated)
        look(find_ranked)
        look(find_spread)
        look(find_offered)
        look(find_cut)
        if spec.format == "preference":
            look(find_scored)
        if not steps:
            look(find_flagged)
        if not plain:
            look(give_turns)
    if spec.format in TALK_FORMATS:
        before = len(steps)
        look(_find_threads)
        if len(steps) == before:
            look(find_chain)
        if len(steps) == before:
            look(find_rounds)
        if len(steps) == before:
            look(lambda columns, rows: find_transcript(columns, rows, container))
        look(give_roles)
    look(find_filled)
    look(lambda columns, rows: find_signed(columns, rows, spec.format, spec.mapping))
    return (*first, *steps), asked


def _find_threads(columns: Sequence[str], rows: Sequence[Values]) -> Threads | None:
    named = {simplify(name): name for name in columns}
    called = [name for name in _rank_names(columns, WORDS) if not NOTED & {*part_name(name)}]
    exact = [name for name in called if simplify(name) in WORDS]
    # Of columns that only have such a word in their names, the longest is what was written.
    called = exact + sorted(
        (name for name in called if name not in exact), key=lambda name: -_mean(name, rows)
    )
    words = next((name for name in called if _is_words(name, rows)), "")
    words = words or _find_prose(columns, rows)
    speaker = next(
        (name for name in _rank_names(columns, SPEAKER) if name != words and _is_speaker(name, rows)), ""
    )
    speaker = speaker or next((name for name in columns if _tells_sides(name, rows)), "")
    if speaker and simplify(speaker) not in SPEAKER:
        # A flag for one's own messages says more than a column with such a word in its name: `type_name`.
        speaker = next(
            (name for name in columns if simplify(name) in ONE_SIDED and _is_flag(name, rows)), speaker
        )
    if not words or not speaker or are_documents(words, columns, rows):
        return None
    if any(REVIEWING & {*part_name(name)} for name in columns):
        return None  # what different people wrote of the same thing, and not to each other
    taken = {words, speaker}
    if any(
        name in named and named[name] not in taken and _is_words(named[name], rows)
        for name in (*ANSWERS, *QUESTIONS, *LISTS)
    ):
        return None
    reply = next((named[name] for name in REPLY if name in named), "")
    own_id = find_own_id(columns, reply, rows)
    if not own_id or not links(reply, own_id, rows):
        reply = ""
    group = next(
        (name for name in _rank_names(columns, GROUP) if name not in taken and _groups(name, rows)), ""
    )
    if not (group or reply) and {guess_role(str(row.get(speaker))) for row in rows} == {"user", "assistant"}:
        # Who asks and who answers is told: what one person wrote is one talk.
        people = [named[name] for name in PEOPLE if name in named and named[name] not in taken]
        group = next((name for name in people if _groups(name, rows)), "")
    order = next((name for name in _rank_names(columns, ORDER) if name not in {*taken, group}), "")
    flag = next((named[name] for name in ONE_SIDED if name in named and _takes_turns(named[name], rows)), "")
    if not (group or reply) and flag:
        return Threads(words=words, speaker=flag, group="", order="", reply="", own_id="")
    if not (group or reply) and not (order and _are_times(order, rows)):
        return None
    return Threads(words=words, speaker=speaker, group=group, order=order, reply=reply, own_id=own_id)


def _find_prose(columns: Sequence[str], rows: Sequence[Values]) -> str:
    """Return the only column of sentences where names say who speaks, in which talk and when; "" elsewhere."""
    if not any(_groups(name, rows) for name in _rank_names(columns, GROUP)) or not _rank_names(
        columns, ORDER
    ):
        return ""
    prose = [one.name for one in measure_columns(columns, rows).values() if one.is_prose and one.plain]
    return prose[0] if len(prose) == 1 and _is_words(prose[0], rows) else ""


def _is_flag(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds nothing but yes and no, and both."""
    return {str(row.get(name)).lower() for row in rows} in ({"0", "1"}, {"true", "false"})


def _takes_turns(flag: str, rows: Sequence[Values]) -> bool:
    """Return whether a flag is true and false by turns, more often than not."""
    cells = [row[flag] for row in rows if isinstance(row.get(flag), bool)]
    changes = sum(one != other for one, other in itertools.pairwise(cells))
    return len(cells) >= 0.8 * len(rows) and len(cells) > 1 and changes >= 0.5 * (len(cells) - 1)


def _rank_names(columns: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the columns that are called like `known`, in its order, then those with such a word in their names."""
    named = {simplify(name): name for name in columns}
    exact = [named[name] for name in known if name in named]
    words = {*known}
    alike = [name for name in columns if name not in exact and len(part_name(name)) <= 3]
    alike.sort(key=lambda name: "id" in part_name(name))  # of a person's number and name, the name
    return [*exact, *(name for name in alike if words & {*part_name(name)})]


def _is_words(name: str, rows: Sequence[Values]) -> bool:
    cells = [_say(row[name]) for row in rows if not is_empty(row.get(name))]
    return bool(cells) and all(isinstance(cell, str) for cell in cells) and len({*cells}) > len(cells) / 4


def _mean(name: str, rows: Sequence[Values]) -> float:
    return sum(len(cell) for row in rows if isinstance(cell := row.get(name), str)) / max(1, len(rows))


def _say(cell: object) -> object:
    """Return the words of a message; exports write one with links and bold words as a list of parts."""
    if not isinstance(cell, list):
        return cell
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in cell]
    parts = [part.get("value") if isinstance(part, Mapping) else part for part in parts]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else cell


def _is_speaker(name: str, rows: Sequence[Values]) -> bool:
    """Return whether few short values, and more than one, come again and again."""
    cells = [str(row[name]) for row in rows if not is_empty(row.get(name))]
    if len({*cells}) < 2:
        return False
    wrapped = any(isinstance(row.get(name), Mapping) for row in rows)
    short = max(map(len, cells), default=0) <= 60 or wrapped
    return len(cells) > len(rows) / 2 and short and len({*cells}) <= max(2, 0.8 * len(cells))


def _tells_sides(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column is called the kind of a message, and has two values: those of the two who write."""
    kinds = {str(row[name]) for row in rows if not is_empty(row.get(name))}
    return simplify(name) in KINDS and len(kinds) == 2


def _groups(name: str, rows: Sequence[Values]) -> bool:
    cells = [make_key(row.get(name)) for row in rows if not is_empty(row.get(name))]
    return len(cells) == len(rows) and len(cells) >= LEAST_TURNS * len({*cells})


def _are_times(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds times that rise, as in an export of one long chat."""
    times = [read_time_s(row.get(name)) for row in rows]
    known = [one for one in times if one is not None]
    rising = sum(after >= before for before, after in itertools.pairwise(known))
    return len(known) >= 0.9 * len(times) and max(rising, len(known) - 1 - rising) >= 0.9 * (len(known) - 1)


def _rank(cell: object) -> tuple[int, float, str]:
    try:
        return 0, float(cell), ""
    except (TypeError, ValueError):
        return 1, 0.0, str(cell)
