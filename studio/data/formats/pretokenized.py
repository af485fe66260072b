"""Examples that are tokens already: `input_ids`, with `labels`, a mask or weights where not all counts alike."""

from __future__ import annotations

from collections.abc import Sequence

from studio.core.i18n import text
from studio.data.containers.json_text import parse_json
from studio.data.conversation import Conversation
from studio.data.formats.cells import Values, is_blank, name_kind, require, shorten
from studio.data.formats.column_names import simplify
from studio.data.formats.column_relations import hold_words
from studio.data.formats.flags import LEAST_WEIGHT, MOST_WEIGHT
from studio.data.formats.format import Format, Mapped
from studio.data.formats.notes import note_nothing
from studio.data.row import RowError
from studio.data.row_codes import RowCode

NOT_LEARNED = -100
"""The label at places from which nothing is learned."""
INT_LIMIT = 2**31


def read(values: Values, mapping: Mapped) -> Conversation:
    """The ids without those that the attention mask hides, and what is learned at each place."""
    ids = _read_numbers(values, mapping["input_ids"], 0)
    labels: tuple[int, ...] = ()
    if "labels" in mapping and values.get(mapping["labels"]) is not None:
        labels = _read_numbers(values, mapping["labels"], NOT_LEARNED, len(ids))
        if any(NOT_LEARNED < label < 0 for label in labels):
            raise RowError(RowCode.WRONG_SHAPE, text("data.row.ids_range", column=shorten(mapping["labels"])))
    weights: tuple[float, ...] = ()
    if "mask" in mapping and values.get(mapping["mask"]) is not None:
        weights = _read_weights(values, mapping["mask"], len(ids))
        labels = tuple(
            one if weight else NOT_LEARNED for one, weight in zip(labels or ids, weights, strict=True)
        )
        weights = weights if {*weights} - {0, 1} else ()
    if "attention_mask" in mapping and values.get(mapping["attention_mask"]) is not None:
        seen = _read_numbers(values, mapping["attention_mask"], 0, len(ids))
        if not all(seen):
            ids = tuple(id for id, keep in zip(ids, seen, strict=True) if keep)
            labels = tuple(label for label, keep in zip(labels, seen, strict=False) if keep)
            weights = tuple(weight for weight, keep in zip(weights, seen, strict=False) if keep)
            if not ids:
                raise RowError(
                    RowCode.EMPTY, text("data.row.blank", column=shorten(mapping["attention_mask"]))
                )
    return Conversation(kind="tokens", token_ids=ids, labels=labels, weights=weights)


def _read_numbers(values: Values, column: str, least: int, length: int | None = None) -> tuple[int, ...]:
    """Return a cell as integers of at least `least`; `length`: how many there must be. Raises RowError."""
    cell = _parse(require(values, column))
    if not isinstance(cell, Sequence) or isinstance(cell, (str, bytes)):
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.not_ids", column=shorten(column), found=name_kind(cell))
        )
    if not cell:
        raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column)))
    kinds = set(map(type, cell))
    if not kinds <= {int, bool}:
        odd = next(value for value in cell if type(value) not in (int, bool))
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.not_ids", column=shorten(column), found=name_kind(odd))
        )
    if min(cell) < least or max(cell) >= INT_LIMIT:
        raise RowError(RowCode.WRONG_SHAPE, text("data.row.ids_range", column=shorten(column)))
    if length is not None and len(cell) != length:
        raise RowError(
            RowCode.WRONG_SHAPE,
            text("data.row.ids_length", column=shorten(column), found=len(cell), expected=length),
        )
    return tuple(map(int, cell)) if bool in kinds else tuple(cell)


def _read_weights(values: Values, column: str, length: int) -> tuple[float, ...]:
    """Return a cell as `length` numbers from 0 to MOST_WEIGHT. Raises RowError."""
    cell = _parse(require(values, column))
    if not isinstance(cell, Sequence) or isinstance(cell, (str, bytes)):
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.not_ids", column=shorten(column), found=name_kind(cell))
        )
    for one in cell:
        if type(one) not in (int, float, bool) or not 0 <= one <= MOST_WEIGHT:
            raise RowError(
                RowCode.WRONG_SHAPE, text("data.row.weights", column=shorten(column), most=int(MOST_WEIGHT))
            )
    if len(cell) != length:
        raise RowError(
            RowCode.WRONG_SHAPE,
            text("data.row.ids_length", column=shorten(column), found=len(cell), expected=length),
        )
    return tuple(float(one) if one >= LEAST_WEIGHT else 0.0 for one in cell)


def _parse(cell: object) -> object:
    """Return the list that a text cell holds as JSON."""
    if isinstance(cell, str) and not is_blank(cell):
        try:
            return parse_json(cell.encode("utf-8", "surrogatepass"))
        except ValueError:
            return cell
    return [] if isinstance(cell, str) else cell


def holds_ids(cell: object) -> bool:
    """Return whether a cell is a list of integers."""
    return _holds(cell, (int, bool))


def holds_numbers(cell: object) -> bool:
    """Return whether a cell is a list of numbers."""
    return _holds(cell, (int, float, bool))


def _holds(cell: object, kinds: tuple[type, ...]) -> bool:
    cell = _parse(cell) if isinstance(cell, str) and cell.lstrip().startswith("[") else cell
    return isinstance(cell, (list, tuple)) and bool(cell) and all(type(value) in kinds for value in cell[:64])


def doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return 0.6 where ids are not called input_ids and the words that they are of stand beside them."""
    others = [name for name in columns if name not in mapping.values()]
    return 0.6 if simplify(mapping["input_ids"]) != "input_ids" and hold_words(others, sample) else 0.0


FORMAT = Format(
    name="pretokenized",
    roles={
        "input_ids": ("input_ids", "token_ids", "tokens", "ids"),
        "labels": ("labels", "label_ids"),
        "attention_mask": ("attention_mask",),
        "mask": (
            *("completion_mask", "assistant_masks", "assistant_mask", "loss_mask"),
            *("weights", "token_weights", "loss_weights"),
        ),
    },
    required=("input_ids",),
    kinds={"input_ids": holds_ids, "labels": holds_ids, "attention_mask": holds_ids, "mask": holds_numbers},
    read=read,
    beside="never",
    doubt=doubt,
    worded=False,
    notes=note_nothing,
    beats=("messages", "sharegpt", "prompt_completion", "alpaca", "text", "rl"),
)
