"""Rows of a question and its answer that make up a talk: they name the row before, or are numbered in their talk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import ANSWERS, INSTRUCTION, QUESTIONS, TEXT
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import part_name, simplify
from studio.data.row import Row

REPLY = ("parent_id", "in_reply_to", "reply_to", "in_response_to_tweet_id", "parent_message_id", "parent",
         "in_reply_to_id", "reply_to_id", "reply_to_message_id", "in_reply_to_status_id", "parent_comment_id",
         "quoted_message_id", "replied_to")  # fmt: skip
OWN_ID = ("message_id", "id", "tweet_id", "post_id", "comment_id", "msg_id", "uuid", "status_id")
ASKED = (*INSTRUCTION, "prompt", *QUESTIONS, "input", "user", "human", *TEXT)
TALKING = frozenset(
    "turn turns round rounds utterance message conversation conversations conv dialog dialogue chat session thread "
    "talk c t 对话 会话 轮次 轮".split()
)
"""Words in the names of what numbers talks, or what is said in one."""
MOST_TALKING = 8
"""A table may have thousands of columns."""
LEAST_ROWS = 4
"""Fewer rows prove nothing."""
SAID = (*ANSWERS, "assistant", "gpt", "bot")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Rows that hold a question and its answer, and name the row that they go on from."""

    question: str
    answer: str
    reply: str
    own_id: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.question, self.answer, self.reply, self.own_id)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.chain", reply=shorten(self.reply))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row for each last turn, with all before it; broken rows as they are. All rows are held meanwhile."""
        held: list[Row] = []
        for row in rows:
            if row.problem is not None:
                yield row
            else:
                held.append(row)
        for number, path in enumerate(follow(held, self.own_id, self.reply), start=1):
            yield _join(path, self.question, self.answer, self.consumed, number)


def _join(path: Sequence[Row], question: str, answer: str, gone: Sequence[str], number: int) -> Row:
    """Return the Row of a talk whose questions and answers stand in the rows of `path`."""
    turns = []
    for row in path:
        turns.append({"role": "user", "content": row.values.get(question)})
        turns.append({"role": "assistant", "content": row.values.get(answer)})
    first = path[0]
    rest = {name: cell for name, cell in first.values.items() if name not in gone}
    return Row(first.line, {"messages": turns, **rest}, None, number, first.offset, first.raw)


def follow(rows: Sequence[Row], own_id: str, reply: str) -> Iterator[list[Row]]:
    """Yield the rows from a root to each last one; `reply` names the row before, by its `own_id`."""
    known = {make_key(row.values.get(own_id)): row for row in rows}
    answered = {make_key(row.values.get(reply)) for row in rows}
    for row in rows:
        own = make_key(row.values.get(own_id))
        if own in answered:
            continue
        path, seen = [row], {own}
        while (above := make_key(path[-1].values.get(reply))) in known and above not in seen:
            seen.add(above)
            path.append(known[above])
        yield path[::-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Rows that hold a question and its answer, numbered within their talk, those of a talk behind each other."""

    question: str
    answer: str
    group: str
    order: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.question, self.answer, self.group, self.order)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.rounds", group=shorten(self.group), order=shorten(self.order))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row a talk; broken rows as they are."""
        number, talk = 0, []
        for row in rows:
            if row.problem is not None:
                yield row
                continue
            if talk and make_key(row.values.get(self.group)) != make_key(talk[-1].values.get(self.group)):
                number += 1
                yield _join(talk, self.question, self.answer, self.consumed, number)
                talk = []
            talk.append(row)
        if talk:
            yield _join(talk, self.question, self.answer, self.consumed, number + 1)


def find_own_id(columns: Sequence[str], reply: str, rows: Sequence[Values]) -> str:
    """Return the column that `reply` names other rows by: one with a usual name, else one whose values prove it."""
    named = {simplify(name): name for name in columns}
    usual = next((named[name] for name in OWN_ID if name in named and named[name] != reply), "")
    if usual or not reply:
        return usual
    ids = [name for name in columns if name != reply and "id" in part_name(name)]
    return next((name for name in ids if links(reply, name, rows)), "")


def find_chain(columns: Sequence[str], rows: Sequence[Values]) -> Chain | None:
    named = {simplify(name): name for name in columns}
    question = next((named[n] for n in (*INSTRUCTION, "prompt", *QUESTIONS) if n in named), "")
    answer = next((named[n] for n in ANSWERS if n in named), "")
    reply = next((named[name] for name in REPLY if name in named), "")
    own_id = find_own_id(columns, reply, rows)
    if not (question and answer and reply and own_id) or not links(reply, own_id, rows):
        return None
    return Chain(question=question, answer=answer, reply=reply, own_id=own_id)


def find_rounds(columns: Sequence[str], rows: Sequence[Values]) -> Rounds | None:
    """Return which columns number the questions and answers of talks; None where no two of them do.

    The proof lies in the values: one column stays the same for a while, and another counts up from 0 or 1 meanwhile.
    A name must say that it is a talk all the same: the questions of a test are numbered, too.
    """
    named = {simplify(name): name for name in columns}
    question = next((named[name] for name in ASKED if name in named), "")
    answer = next((named[name] for name in SAID if name in named), "")
    free = [name for name in columns if name not in (question, answer)]
    if not (question and answer):
        return None
    talking = [name for name in free if TALKING & {*part_name(name)}][:MOST_TALKING]
    for named_so in talking:
        for other in free:
            for group, order in ((named_so, other), (other, named_so)):
                if group != order and _counts(group, order, rows):
                    return Rounds(question=question, answer=answer, group=group, order=order)
    return None


def _counts(group: str, order: str, rows: Sequence[Values]) -> bool:
    """Return whether `order` counts up by one wherever `group` stays the same, from one and the same number."""
    cells = [(make_key(row.get(group)), make_key(row.get(order))) for row in rows]
    if len(cells) < LEAST_ROWS or not all(here and there.isdigit() for here, there in cells):
        return False
    starts, steps, last = [], 0, ("", "")
    for here, there in cells:
        if here != last[0]:
            starts.append((here, there))
        elif int(there) != int(last[1]) + 1:
            return False
        else:
            steps += 1
        last = (here, there)
    groups, first = [here for here, _ in starts], {there for _, there in starts}
    whole = len({*groups}) == len(groups) > 1 and len(first) == 1
    return whole and first <= {"0", "1"} and 2 * steps >= len(starts)


def links(reply: str, own_id: str, rows: Sequence[Values]) -> bool:
    """Return whether a good part of the rows name another row as the one that they answer."""
    known = {make_key(row.get(own_id)) for row in rows}
    answers = [make_key(row.get(reply)) for row in rows if reply and not is_empty(row.get(reply))]
    return len(answers) >= len(rows) / 4 and 2 * sum(one in known for one in answers) >= len(answers)


def make_key(cell: object) -> str:
    """Return a cell as what it is compared by: csv files write 7 as "7" or "7.0"."""
    words = str(cell).strip()
    return words[:-2] if words.endswith(".0") else words
