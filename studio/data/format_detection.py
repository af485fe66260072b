"""Understand a data set: its format and which column plays which role, with a confidence, a reason and questions.

Nothing is guessed: where two formats or two columns qualify, a Question says so and nothing is learned before it is
answered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.recipe import DatasetSpec
from studio.data.annotations import find_told
from studio.data.answer_notes import tell_lists, tell_marks
from studio.data.column_questions import ANSWERING, ask_columns, ask_format, ask_role
from studio.data.columns import repeats
from studio.data.context_evidence import leaves_words
from studio.data.conversation import Conversation
from studio.data.doubts import doubt_roles
from studio.data.evidence import weigh
from studio.data.formats import FORMATS
from studio.data.formats.aliases import EXPECTED, INSTRUCTION, QUESTIONS
from studio.data.formats.cells import Values, is_empty, shorten, show_names
from studio.data.formats.checkers import find_checkers, order_formats
from studio.data.formats.choices import find_series
from studio.data.formats.column_names import simplify
from studio.data.formats.context import MATERIALS
from studio.data.formats.format import Format, Kind, Mapped, Match, Score
from studio.data.formats.notes import Note
from studio.data.grading import ask_counting, ask_labels, ask_verdicts, list_labels
from studio.data.joint_formats import list_joint
from studio.data.mapping_file import read_mapping
from studio.data.open_question import Question
from studio.data.prompt_answers import holds_prompts, list_worded
from studio.data.ranking import is_true
from studio.data.row import Row, RowError
from studio.data.said_columns import check_columns, find_format, refuse_role
from studio.data.scored_answers import ask_compared
from studio.data.second_look import TALKED, look_again
from studio.data.understanding import Understanding
from studio.data.unused_columns import ASKED, ask_rest, find_rest

ACCEPT = 0.85
"""From here on a format is taken without a question."""
PRESELECT = 0.5
"""From here on the best format is offered, and asked about; below there is none."""
UNSURE = 0.8
"""What is asked about is no surer than this."""
UNREAD, FEWEST_UNREAD = 0.3, 5
"""How sure is a format in which none of the first rows can be read, and how many they are at least."""
MARGIN = 0.2
"""The best format must be ahead of the second by this much."""
DECIDED = 0.9
"""How sure is what the evidence decided where a person would have been asked."""
MOST_DECIDED = 8
READ_ROWS = 20
BEATEN = 0.5
"""What a format loses when another one, of which it is a part, fits."""
ANSWERED = ("prompt_completion", "alpaca", "messages", "sharegpt")
"""Formats whose answers are learned as they stand."""
SAMPLE_ROWS = 3000
"""More rows are not looked at."""


def understand(
    columns: Sequence[str],
    rows: Sequence[Values],
    spec: DatasetSpec,
    cache: Path | None = None,
    annotated: Sequence[str] = (),
) -> Understanding:
    """Return what these columns and sample rows are; `annotated`: columns of what people found out in a tool.

    What the person said wins: `spec.format` and `spec.mapping`, where a role mapped to "" has no column; after that
    the mapping that was saved beside the data, or in `cache` (see mapping_file). Raises StudioError for a format or
    mapping that cannot be; what is merely unclear becomes a question.
    """
    columns = tuple(name for name in columns if isinstance(name, str))
    found = _understand(columns, rows[:SAMPLE_ROWS], spec, cache, annotated)
    declined = tuple(role for role, name in spec.mapping.items() if not name)
    return dataclasses.replace(found, columns=columns, declined=(*declined, *found.declined))


def _understand(
    columns: tuple[str, ...],
    rows: Sequence[Values],
    spec: DatasetSpec,
    cache: Path | None,
    annotated: Sequence[str],
) -> Understanding:
    chosen = dict(spec.mapping)
    check_columns(chosen, columns)
    if spec.format != "auto":
        reason = text("data.format.chosen", format=spec.format)
        return _take(find_format(spec.format), columns, rows, chosen, reason)
    note: Text | None = None
    if not chosen:
        saved, note = read_mapping(spec.source, columns, cache)
        if saved is not None:
            reason = text("data.format.saved", format=saved.format, file=shorten(saved.path.name))
            return _take(find_format(saved.format), columns, rows, dict(saved.mapping), reason, settled=True)
    told = {} if chosen else find_told(columns, rows, annotated)
    if told:
        reason = text(
            "data.evidence.annotated", text=shorten(told["prompt"]), label=shorten(told["completion"])
        )
        found = _take(find_format("prompt_completion"), columns, rows, told, reason, settled=True)
        return dataclasses.replace(found, confidence=DECIDED)
    found = _choose(columns, rows, chosen)
    if found.questions and rows:
        found = _decide(found, columns, rows, chosen)
    if found.format is not None and not found.questions:
        asked = look_again(found.format, found.mapping, columns, rows, chosen)
        if asked:
            found = dataclasses.replace(found, questions=asked, confidence=min(found.confidence, UNSURE))
    return dataclasses.replace(found, reason=_join(found.reason, note)) if note else found


def _decide(
    found: Understanding, columns: tuple[str, ...], rows: Sequence[Values], chosen: Mapped
) -> Understanding:
    """Return what is understood when every question answers itself; `found` where one of them does not."""
    said, reasons, now, format = dict(chosen), [], found, None
    for _ in range(MOST_DECIDED):
        if not now.questions:
            # What else is learned from, by another training, is for the person to say.
            other = now.format is not found.format and now.format.name != "prompt_completion"
            other = other and "text" not in said
            if leaves_words(columns, rows, now.mapping) or (other and format is None):
                return found
            judged = format is not None and format.name in ANSWERED
            bad = ask_verdicts(now.format, now.mapping, columns, rows) if judged else ()
            if bad:  # which answers are good was decided by nobody
                return dataclasses.replace(now, questions=bad, confidence=min(now.confidence, UNSURE))
            declined = tuple(role for role, name in said.items() if not name and role not in chosen)
            confidence = min(max(now.confidence, PRESELECT), DECIDED)
            reason = _join(now.reason, *reasons)
            return dataclasses.replace(now, confidence=confidence, reason=reason, declined=declined)
        question, *also = now.questions
        why = weigh(question, columns, rows, {**now.mapping, **said}, also)
        if why is None or (question.id == "format" and format is not None):
            return found
        reasons += [why] if why not in reasons else []
        if question.id == "format":
            format = find_format(question.choices[0])
        else:
            said[question.field.removeprefix("data.mapping.")] = question.choices[0]
        try:
            told = {name: reason for name, _, reason in found.ranked}
            now = (
                _take(format, columns, rows, said, told[format.name])
                if format
                else _choose(columns, rows, said)
            )
        except StudioError:
            return found
    return found


def read_row(row: Row, understanding: Understanding) -> tuple[Conversation, tuple[Note, ...]]:
    """As Understanding.read_row."""
    return understanding.read_row(row)


def _choose(columns: Sequence[str], rows: Sequence[Values], chosen: Mapped) -> Understanding:
    """Return the format that fits best, and the question where that is not clear enough."""
    fitting = [format for format in FORMATS if set(chosen) <= set(format.roles)]
    if not fitting:
        roles = {role: None for format in FORMATS for role in format.roles}
        # The role that the fewest formats know is the likeliest to be wrong.
        odd = min(chosen, key=lambda role: sum(role in format.roles for format in FORMATS))
        raise refuse_role(odd, list(roles))
    scores = {format.name: format.score(columns, rows, chosen) for format in fitting}
    for format in fitting:
        if scores[format.name].confidence >= ACCEPT:
            for name in format.beats:
                if name in scores:
                    lower = max(0.0, round(scores[name].confidence - BEATEN, 3))
                    scores[name] = dataclasses.replace(scores[name], confidence=lower)
    order = sorted(fitting, key=lambda format: -scores[format.name].confidence)
    ranked = tuple(
        (format.name, scores[format.name].confidence, scores[format.name].reason) for format in order
    )
    best = order[0]
    score = scores[best.name]
    names = tuple(format.name for format in order)
    complete = bool(chosen) and all(
        any(chosen.get(role) for role in roles.split("|")) for roles in best.required
    )
    worded = list_worded(score.match.mapping, columns, rows) if best.name == "rl" and not chosen else ()
    if worded:
        what = text("data.ask.worded", answer=shorten(score.match.mapping["answer"]))
        found = _settle(best, score.match, columns, rows, score, (ask_format(what, worded),), chosen)
        return dataclasses.replace(found, ranked=ranked)
    half, asked_for = doubt_roles(best, score, columns, rows, chosen, sure=score.confidence >= ACCEPT)
    if (score.confidence < PRESELECT and not complete) or half:
        return Understanding(
            format=None,
            mapping={role: name for role, name in asked_for.items() if name},
            confidence=min(score.confidence, UNSURE),
            reason=text("data.sniff.unknown.why", columns=show_names(columns)),
            # where no row can be read, no answer would help
            questions=ask_columns(columns, rows, asked_for, names) if rows else (),
            ranked=ranked,
        )
    rivals = tuple(
        name
        for name, confidence, _ in ranked
        if score.confidence - confidence < MARGIN
        and (name == best.name or not _tells_the_same(scores[name].match, score.match, rows))
    )
    rivals += () if chosen else list_joint(best, score.match.mapping, columns)
    asked: tuple[Question, ...] = ()
    talk = next((name for name in rivals if name in TALKED and name != best.name), "")
    if not complete and talk and _tells_the_same(score.match, scores[talk].match, rows):
        # The columns once more as turns, with all that there is to them.
        best, score, rivals = find_format(talk), scores[talk], (talk,)
    if complete:
        score = dataclasses.replace(score, confidence=1.0)
    elif len(rivals) > 1:
        what = text("data.sniff.ambiguous", formats=list(rivals), columns=show_names(columns))
        # Who has answers beside a text, or a question, hardly wants to learn the text alone, or from rewards.
        open_talks = best.name == "rl" and {*rivals[1:]} <= {*TALKED}
        checked = best.name == "rl" and bool(find_checkers(columns, rows))
        order = rivals if open_talks or checked else sorted(rivals, key=lambda name: name in ("text", "rl"))
        asked = (ask_format(what, order),)
    elif score.confidence < ACCEPT:
        checkers = find_checkers(columns, rows) if best.name == "rl" else []
        what = text("data.sniff.unsure", format=best.name, columns=show_names(columns))
        if checkers:
            what = text("data.ask.checkers", columns=show_names(checkers))
            names = order_formats(checkers, score.match.mapping["prompt"], rows)
        asked = (ask_format(what, names),)
    found = _settle(best, score.match, columns, rows, score, asked, chosen)
    return dataclasses.replace(found, ranked=ranked)


def _tells_the_same(match: Match, other: Match, rows: Sequence[Values]) -> bool:
    """Return whether all that a format would use stands in the columns of the other one, too."""
    if {*match.mapping.values()} <= {*other.mapping.values()}:
        return False
    others = [*other.mapping.values()]
    mine = [name for role, name in match.mapping.items() if name not in others and role not in MATERIALS]
    return not match.doubtful and all(repeats(name, others, rows) for name in mine)


def _take(
    format: Format,
    columns: Sequence[str],
    rows: Sequence[Values],
    chosen: Mapped,
    reason: Text,
    *,
    settled: bool = False,
) -> Understanding:
    """Return the understanding of a format that was said. Raises StudioError when the columns cannot be that.

    settled: whether the person has said before what becomes of all columns.
    """
    unknown = [role for role in chosen if role not in format.roles]
    if unknown:
        raise refuse_role(unknown[0], list(format.roles))
    match = format.match(columns, chosen, rows, said=True)
    learned = "completion" in match.mapping and "completion" not in chosen and not match.missing
    if learned and format.doubt(columns, match.mapping, rows) >= BEATEN:
        mapping = {role: name for role, name in match.mapping.items() if role != "completion"}
        match = dataclasses.replace(match, mapping=mapping, missing=("completion",))
    asked: list[Question] = []
    for role in match.missing:
        kind = format.kinds.get(role, lambda cell: True)
        taken = set(match.mapping.values()) | {name for names in match.doubtful.values() for name in names}
        free = [name for name in columns if name not in taken]
        free = [name for name in free if any(_may_be(role, row.get(name), kind) for row in rows)]
        if not free or chosen.get(role) == "":
            raise StudioError(
                text("data.sniff.missing", format=format.name, role=role),
                text("data.sniff.missing.why", columns=show_names(columns)),
                text("data.sniff.missing.fix", role=role),
            )
        open_talks = [name for name in free if role == "prompt" and holds_prompts(name, rows)]
        if len(open_talks) == 1:
            match = dataclasses.replace(match, mapping={**match.mapping, role: open_talks[0]})
            continue
        known = {*EXPECTED, *map(simplify, find_checkers(columns, rows))}
        if role in ANSWERING and len(free) == 1 and simplify(free[0]) in known:
            # Who was told what it holds, and wants that learned, has said which column.
            match = dataclasses.replace(match, mapping={**match.mapping, role: free[0]})
            continue
        ranked = role in (*ANSWERING, *ASKED)
        question = next((match.mapping[name] for name in ASKED if name in match.mapping), "")
        first = next((one.choices[0] for one in asked if one.field.rpartition(".")[2] in ASKED), "")
        question = question or first
        free.sort(key=lambda name: name == first)  # what is read is no answer to itself
        one = ask_role(role, free, rows, question=question, ranked=ranked)
        if role in ANSWERING and question and simplify(question) not in (*QUESTIONS, *INSTRUCTION, "prompt"):
            # Who was told of a label beside a text, and wants it, means this one.
            labels = list_labels({"text": question}, columns, rows)[:1]
            one = one.put_first([label.name for label in labels if label.distinct > 1 or is_true(label.name)])
        asked.append(one)
    score = Score(confidence=1.0, reason=reason, match=match)
    settled = settled or all(any(chosen.get(role) for role in roles.split("|")) for roles in format.required)
    return _settle(format, match, columns, rows, score, tuple(asked), None if settled else chosen, said=True)


def _may_be(role: str, cell: object, kind: Kind) -> bool:
    """Return whether a cell could play a role; what is learned may have fields, which are written as JSON."""
    parts = cell if isinstance(cell, (list, tuple)) else [cell]
    fields = role in ANSWERING and all(isinstance(one, Mapping) for one in parts)
    return not is_empty(cell) and (fields or kind(cell))


def _settle(
    format: Format,
    match: Match,
    columns: Sequence[str],
    rows: Sequence[Values],
    score: Score,
    asked: tuple[Question, ...],
    chosen: Mapped | None,
    *,
    said: bool = False,
) -> Understanding:
    """Return the understanding of a format with a question for each role that is in doubt, and for what is left over.

    chosen: None where nothing is to be asked about columns that are left over; said: the person named the format.
    """
    for role, names in match.doubtful.items():
        question = next((match.mapping[asker] for asker in ASKED if asker in match.mapping), "")
        thoughts = match.mapping.get("reasoning", "") if role in ANSWERING else ""
        asked += (
            ask_role(role, names, rows, question=question, thoughts=thoughts, ranked=role in ANSWERING),
        )
    settled = format.name == "text" and (said or bool(chosen and chosen.get("text")))
    if chosen is not None and not asked and not settled:
        spared = [name for names in match.doubtful.values() for name in names]
        spared += find_series(columns) if "choices" in match.mapping else ()
        if format.name == "text":
            asked += ask_labels(match.mapping, columns, rows, sure=True)
        if (
            not asked
            and (format.beside != "never" or format.name == "text")
            and _reads_one(format, match, rows)
        ):
            rest = find_rest(format, match.mapping, spared, columns, rows)
            asked += ask_rest(format, match.mapping, chosen, rest, rows)
        if not asked and format.name in ANSWERED and not said:
            asked += ask_verdicts(format, match.mapping, columns, rows)
        if not asked and format.name in ANSWERED and not said:
            asked += ask_compared(format, match.mapping, columns, rows)
        if not asked:
            asked += ask_counting(match.mapping, chosen, rows)
        if not asked and format.name == "text":
            asked += ask_labels(match.mapping, columns, rows)
    if not asked and len(rows) >= FEWEST_UNREAD and not _reads_some(format, match, rows):
        # Columns that are called so, of which no row can be read, are something else.
        score = dataclasses.replace(score, confidence=min(score.confidence, UNREAD))
    if asked and not said:
        score = dataclasses.replace(score, confidence=min(score.confidence, UNSURE))
    reasons = [*match.notes]
    worded = [
        match.mapping[role]
        for roles in format.required
        for role in roles.split("|")
        if role in match.mapping and format.name != "rl"
    ]
    numbers = [name for name in worded if any(isinstance(row.get(name), (int, float)) for row in rows)]
    if numbers and format.name in ("alpaca", "prompt_completion"):
        reasons.append(text("data.sniff.numbers", columns=show_names(numbers)))
    asking = next((match.mapping[role] for role in ASKED if role in match.mapping), "")
    reasons += tell_lists([match.mapping[role] for role in ANSWERING if role in match.mapping], rows, asking)
    if format.name in ANSWERED:
        reasons += tell_marks(match.mapping, columns, rows)
    if "reasoning" in match.mapping:
        reasons.append(text("data.sniff.reasoning", column=shorten(match.mapping["reasoning"])))
    if "weight" in match.mapping:
        reasons.append(text("data.sniff.weight", column=shorten(match.mapping["weight"])))
    spared = {*match.mapping.values(), *(name for names in match.doubtful.values() for name in names)}
    if "choices" in match.mapping:
        spared |= {*find_series(columns)}
    rest = [name for name in columns if name not in spared]
    if rest:
        id = "data.sniff.passed_on" if format.name == "rl" else "data.sniff.unused"
        reasons.append(text(id, columns=show_names(rest, 6)))
    return Understanding(
        format=format,
        mapping=match.mapping,
        confidence=score.confidence,
        reason=_join(score.reason, *reasons),
        questions=asked,
        ranked=((format.name, score.confidence, score.reason),),
    )


def _reads_one(format: Format, match: Match, rows: Sequence[Values]) -> bool:
    """Return whether one of the first rows is an example; else no answer would help, and the rows are refused."""
    return format.name not in ("messages", "sharegpt") or not rows or _reads_some(format, match, rows)


def _reads_some(format: Format, match: Match, rows: Sequence[Values]) -> bool:
    """Return whether one of the first rows is an example; true where a role, or a file beside them, may be missing."""
    if match.missing or match.doubtful or format.name == "vision":
        return True
    for row in rows[:READ_ROWS]:
        try:
            format.convert(row, match.mapping)
        except RowError:
            continue
        return True
    return False


def _join(first: Text, *others: Text) -> Text:
    """Return several sentences as one Text."""
    for other in others:
        first = text("data.sentences", first=first, next=other)
    return first
