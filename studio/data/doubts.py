"""Whether the columns that a format found by their names are in doubt all the same, seen beside the other columns."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.columns import Column, joins, measure_columns
from studio.data.dataset_kinds import WORKERS, find_named, find_remark
from studio.data.formats.aliases import LABEL, PRODUCTS, QUESTIONS
from studio.data.formats.cells import Values
from studio.data.formats.column_names import part_name
from studio.data.formats.context import MATERIALS
from studio.data.formats.format import Format, Mapped, Score
from studio.data.formats.message_parsing import holds_turns
from studio.data.formats.prompt_completion import COMPLETIONS
from studio.data.likelihood import order_answers
from studio.data.prompt_answers import has_answer, is_judged, is_sentence
from studio.data.ranking import MOSTLY, TOLD, is_answer, is_either_way, is_one_of_several, is_outdone
from studio.data.related_names import hints
from studio.data.second_look import find_told
from studio.data.whole_examples import is_part


def doubt_roles(
    best: Format, score: Score, columns: Sequence[str], rows: Sequence[Values], chosen: Mapped, *, sure: bool
) -> tuple[bool, dict[str, str]]:
    """Return whether question and answer are to be asked for, and the roles that are known all the same."""
    match = score.match
    asked_for = dict(chosen)
    if best.name == "rl" and "answer" not in match.mapping and not sure:
        # A question alone is learned from by rewards; where other columns hold words, one may be the answer.
        asked_for = {"prompt": match.mapping["prompt"], **chosen} if "prompt" in match.mapping else asked_for
    half = "prompt" in asked_for and "completion" not in asked_for and best.name == "rl"
    settings = {name for role, name in match.mapping.items() if role in ("system", "tools")}
    half = half and has_answer([name for name in columns if name not in settings], rows, asked_for)
    if half and not chosen and any(holds_turns(row.get(asked_for["prompt"])) for row in rows):
        # What stands before a talk, or beside it in a word or two, and is called no answer only tells something of it.
        behind = columns[columns.index(asked_for["prompt"]) + 1 :]
        beside = measure_columns([name for name in columns if name != asked_for["prompt"]], rows)
        half = any(is_answer(one) or (one.is_prose and name in behind) for name, one in beside.items())
    if best.name == "rl" and not chosen and is_sentence(match.mapping, columns, rows):
        # No program checks a sentence against another one: it is learned.
        half, asked_for = True, {"prompt": match.mapping["prompt"]}
    if half and not chosen and find_named([*measure_columns(columns, rows).values()]):
        asked_for = {}  # what is called a prompt is what is written here
    # Two questions beside each other are compared, and what was found out is the answer.
    half = half or (best.name == "rl" and "prompt" in match.doubtful and is_judged(columns, rows))
    if best.name == "prompt_completion" and "completion" not in chosen and not match.doubtful:
        asked, said = match.mapping.get("prompt", ""), match.mapping.get("completion", "")
        known = measure_columns(columns, rows)
        first = order_answers([*known.values()], asked)[:1] if "prompt" in chosen else ()
        if any(one.name != said and hints(one, LABEL) for one in first):
            half, asked_for = True, dict(chosen)  # a label of two texts, of which one is called an answer
        elif _is_remarked(chosen.get("prompt"), said, [*known.values()]):
            half, asked_for = True, dict(chosen)
        elif is_outdone(said, asked, [*known.values()]):
            half, asked_for = True, {"prompt": asked, **chosen} if asked else dict(chosen)
        elif not chosen and asked in known and said in known and _is_named_elsewhere(said, known, rows):
            half, asked_for = True, {"prompt": asked}
        elif not chosen and asked in known and said in known and _holds_example(said, asked, known, rows):
            half, asked_for = True, {"prompt": asked}
        elif not chosen and asked in known and said in known:
            if is_either_way(asked, said, [*known.values()]):
                sure_question = hints(known[asked], (*QUESTIONS, "prompt"))
                half, asked_for = True, {"prompt": asked} if sure_question else asked_for
            half = half or (known[asked].distinct > 1 and is_part(known[said], known[asked], rows))
            beside = [known[match.mapping[role]] for role in MATERIALS if match.mapping.get(role) in known]
            half = half or is_one_of_several(known[asked], beside)
    return half, asked_for


def _is_remarked(asked: str | None, said: str, known: Sequence[Column]) -> bool:
    """Return whether feedback on a learner's work stands there, and something else would be learned.

    asked: what the person said is read; None for nothing.
    """
    remark = find_remark(known)
    if remark is None or asked not in (None, remark[0].name):
        return False
    return bool({*part_name(remark[0].name)} & WORKERS) and said != remark[1].name


def _is_named_elsewhere(said: str, known: dict[str, Column], rows: Sequence[Values]) -> bool:
    """Return whether an answer was found by one word of its name, and another column is called one with all of it."""
    if hints(known[said], (*TOLD, *PRODUCTS, *COMPLETIONS)):
        return False
    rest = [one for name, one in known.items() if name != said and one.filled >= MOSTLY and one.distinct > 1]
    return bool(find_told(known[said], rest, rows))


def _holds_example(said: str, asked: str, known: dict[str, Column], rows: Sequence[Values]) -> bool:
    """Return whether what would be learned is the question once more with an answer that another column holds alone."""
    others = [
        name for name, one in known.items() if name not in (said, asked) and is_answer(one) and one.is_prose
    ]
    return any(joins(said, [asked, other], rows) for other in others)
