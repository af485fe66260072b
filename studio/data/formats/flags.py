"""Keys by which files say whether a turn, or a part of one, is learned, and how much: `weight`, `train`, `mask`, ..."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from studio.core.i18n import text
from studio.data.conversation import Conversation
from studio.data.formats.cells import name_kind, shorten
from studio.data.formats.column_names import part_name, simplify
from studio.data.formats.roles import read_role
from studio.data.row import RowError
from studio.data.row_codes import RowCode

Sense = Literal["", "learned", "kept_out"]
LEARNED = frozenset(
    "weight train training trainable trained learn learned learnable loss supervise supervised backprop".split()
)
KEPT_OUT = frozenset(
    "mask masked ignore ignored skip skipped exclude excluded untrained untrainable freeze frozen".split()
)
TURNED = frozenset("no not without dont non".split())
"""Words that turn the sense of a flag: `no_loss`, `do_not_train`."""
BESIDE = frozenset(
    "is on in to for do use used of the this turn turns message messages msg token tokens compute calculate model "
    "assistant answer output content part text role from with flag backward include included target scale factor "
    "coefficient apply contributes on".split()
)
"""Words beside those of a flag; any other makes something else of the name: `loss_value`, `training_data`."""
MEASURES = frozenset("weight scale factor coefficient".split())
"""Words of the names whose values say how much, where they are neither 0 nor 1."""
MOST_WEIGHT = 1000.0
ROW_WEIGHTS = (
    "weight",
    "sample_weight",
    "sample_weights",
    "loss_weight",
    "example_weight",
    "row_weight",
    "instance_weight",
    "training_weight",
    "train_weight",
)
"""Columns that say how much a whole row counts; `weight` alone only where none is above 1, for things weigh more."""
LEAST_WEIGHT = 1e-6
"""Below it nothing is learned that a float32 could hold."""
TRUE = frozenset(("true", "yes", "y", "on", "1", "1.0"))
FALSE = frozenset(("false", "no", "n", "off", "0", "0.0"))
SIGNS = (
    ("训练", "learned"),
    ("学习", "learned"),
    ("损失", "learned"),
    ("忽略", "kept_out"),
    ("屏蔽", "kept_out"),
)
"""Signs of flags in names that are not parted into words."""
AROUND = ("metadata", "meta", "extra", "info", "attributes")
"""Objects beside a turn in which flags stand, too."""
DETAILS = ("training_detail", "train_detail", "training_details")
"""Lists that keep stretches of an answer out, which are learned or left as a whole here."""


@lru_cache(maxsize=1024)
def find_sense(key: object) -> Sense:
    """Return what a true value of `key` says: the turn is learned, or kept out of it; "" where it is no flag.

    `loss_mask` and the like are 1 where something is learned, `mask` alone where it is kept out.
    """
    words = part_name(key)
    if len(words) == 1 and not words[0].isascii() and len(words[0]) <= 8:
        return next((sense for sign, sense in SIGNS if sign in words[0]), "")
    learns, hides = LEARNED.intersection(words), KEPT_OUT.intersection(words)
    if not (learns or hides) or not {*words} <= LEARNED | KEPT_OUT | TURNED | BESIDE:
        return ""
    away = bool(hides - {"mask"}) if learns else bool(hides)
    return "kept_out" if away != bool(TURNED.intersection(words)) else "learned"


def weigh(number: int, holder: Mapping[str, object], *, measures: bool = True) -> float:
    """Return how much the turn `number`, or the part of it that is `holder`, counts: 1 by default, 0 kept out.

    `measures`: whether a number may say how much; what stands in an object beside the turn is of something else.

    Raises RowError (UNCLEAR_FLAG) for a value that says neither yes, no nor how much, and for stretches of an answer.
    """
    weight = 1.0
    for key, value in holder.items():
        sense = find_sense(key)
        if not sense:
            if key in AROUND and isinstance(value, Mapping):
                weight *= weigh(number, value, measures=False)
            if key in DETAILS and value:
                raise RowError(
                    RowCode.UNCLEAR_FLAG, text("data.row.flag_stretch", number=number, key=shorten(key))
                )
            continue
        said = read_flag(value)
        measured = read_weight(key, value) if measures and said is None and sense == "learned" else None
        if measured is not None:
            weight *= measured
            continue
        if said is None and value is not None:
            found = name_kind(value) if isinstance(value, (list, Mapping)) else shorten(value, 40)
            raise RowError(
                RowCode.UNCLEAR_FLAG, text("data.row.flag", number=number, key=shorten(key), found=found)
            )
        if said is not None and said != (sense == "learned"):
            weight = 0.0
    if weight and not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise RowError(
            RowCode.UNCLEAR_FLAG, text("data.row.flag", number=number, key="weight", found=f"{weight:g}")
        )
    return weight


def check_mask(number: int, turns: Sequence[object]) -> None:
    """Raise RowError (UNCLEAR_FLAG) where `mask` could as well say what is learned: questions carry the value of none.

    `mask` hides a turn. Where it hides no question but an answer, it may be the other way round.
    """
    said: dict[bool, set[bool | None]] = {True: set(), False: set()}
    for turn in turns:
        if isinstance(turn, Mapping) and "mask" in turn:
            spelling = next((turn[key] for key in ("role", "from", "speaker") if key in turn), None)
            said[read_role(spelling) == "assistant"].add(read_flag(turn["mask"]))
    if False in said[False] and True in said[True]:
        raise RowError(RowCode.UNCLEAR_FLAG, text("data.row.flag_mask", number=number))


def read_flag(value: object) -> bool | None:
    """Return the truth value of a flag; None for null and for what is none."""
    if isinstance(value, (bool, int, float)):
        return bool(value) if value in (0, 1) else None
    word = value.strip().lower() if isinstance(value, str) else ""
    return True if word in TRUE else False if word in FALSE else None


def read_weight(key: object, value: object) -> float | None:
    """Return the number by which `key` says how much something counts; None for other keys and values."""
    measures = MEASURES.intersection(part_name(key))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if measures and is_number and LEAST_WEIGHT <= value <= MOST_WEIGHT else None


def holds_weight(cell: object) -> bool:
    """Return whether a cell is a number by which a row can count."""
    return _read_number(cell) is not None


def weighs_rows(column: str, sample: Sequence[Mapping[str, object]]) -> bool:
    """Return whether the numbers of a column called a weight may be those of rows."""
    numbers = [number for row in sample if (number := _read_number(row.get(column))) is not None]
    return simplify(column) != "weight" or all(number <= 1 for number in numbers)


def weigh_row(conversation: Conversation, cell: object) -> Conversation:
    """Return `conversation` with what it teaches counting by the number in `cell`; an empty cell says nothing.

    Raises RowError (UNCLEAR_FLAG) for another value.
    """
    if cell is None or cell == "":
        return conversation
    weight = _read_number(cell)
    if weight is None:
        raise RowError(
            RowCode.UNCLEAR_FLAG, text("data.row.flag", number=1, key="weight", found=shorten(cell, 40))
        )
    turns = [
        turn._replace(weight=turn.weight * weight) if turn.role == "assistant" else turn
        for turn in conversation.messages
    ]
    return conversation._replace(messages=tuple(turns))


def _read_number(cell: object) -> float | None:
    """Return a weight, also one that a table has as text; None for what is none."""
    try:
        number = float(cell) if isinstance(cell, (int, float, str)) and not isinstance(cell, bool) else -1.0
    except ValueError:
        return None
    return number if number == 0 or LEAST_WEIGHT <= number <= MOST_WEIGHT else None


def join_parts(number: int, weights: Iterable[float]) -> float:
    """Return how much an answer of parts counts. Raises RowError (UNCLEAR_FLAG) where its parts do not count alike."""
    said = {*weights}
    if len(said) > 1:
        raise RowError(RowCode.UNCLEAR_FLAG, text("data.row.flag_parts", number=number))
    return said.pop() if said else 1.0
