"""The rows of a micro-batch as one stream of tokens, behind each other without padding; what answers share stands once.

    prompt p1 .. pP, answers x and y:    p1 .. p(P-1)    pP x1 ..    pP y1 ..

Sequences that begin alike are laid out as their common beginning, then what is each one's own; an answer sees the
beginning and itself. The last common token is repeated in front of every answer: what predicts the answers' first
tokens is then a row of each, so that no row of the loss head counts twice. Positions go on from the beginning's. Exact:
tests hold it against the same sequences apart. Source: Liu et al. 2025, arXiv:2506.05433.
T rows of the stream, E of the sequences written out, N tokens that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studio.data.common_beginnings import count_shared, split_documents
from studio.data.sequence_packing import Example
from studio.models.decoder.beginnings import Beginnings


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenStream:
    """A micro-batch's tokens."""

    ids: np.ndarray
    """(T,) int64"""
    lengths: tuple[int, ...]
    """Tokens of each document, written out."""
    picks: np.ndarray
    """(N,) int64: rows whose next token is trained, in the order of the examples; none twice."""
    targets: np.ndarray
    """(N,) int64: these next tokens."""
    beginnings: Beginnings | None = None
    """None: the stream is its documents, one behind the other."""


def join(
    examples: Sequence[Example], pad_id: int, multiple: int
) -> tuple[np.ndarray, tuple[int, ...], np.ndarray]:
    """Return token ids (T,) int64, the documents' lengths, and the places (N,) whose next token is trained.

    T is rounded up to a multiple of `multiple` by padding that counts to the last document: what comes after a token
    does not change it.
    """
    lengths = [length for example in examples for length in example.lengths if length]
    count = sum(lengths)
    missing = -count % multiple
    ids = np.full(count + missing, pad_id, dtype=np.int64)
    np.concatenate([example.token_ids for example in examples], out=ids[:count])
    trained = np.concatenate([example.trained for example in examples])
    trained[np.cumsum([0, *lengths[:-1]])] = False  # a document's first token has none before it
    lengths[-1] += missing
    return ids, tuple(lengths), np.flatnonzero(trained) - 1


def join_apart(examples: Sequence[Example], pad_id: int, multiple: int) -> TokenStream:
    """Return `examples` behind each other; filled up as join() does."""
    ids, lengths, picks = join(examples, pad_id, multiple)
    return TokenStream(ids=ids, lengths=lengths, picks=picks, targets=ids[picks + 1])


@dataclass(frozen=True, kw_only=True, slots=True)
class CompanionStream:
    """The companions of examples behind their stream: of each only what it does not begin with alike.

    T' rows of companions, E' of the companions written out, N' of their tokens count.
    """

    ids: np.ndarray
    """(T',) int64"""
    lengths: tuple[int, ...]
    """Tokens of each companion, written out."""
    picks: np.ndarray
    """(N',) int64: rows of stream and companions together."""
    targets: np.ndarray
    """(N',) int64"""
    beginnings: Beginnings
    """Its `rows` (E',) are rows of stream and companions together, its `own` (T',) places of the companions' rows."""


def join_beside(examples: Sequence[Example], rows: int, pad_id: int, multiple: int) -> CompanionStream:
    """Return the companions of `examples`, of one document each, whose stream by join_apart() has `rows` rows."""
    end, start, written = rows, 0, 0
    ids, lengths, picks, targets, row_maps, own = [], [], [], [], [], []
    for example in examples:
        pair = [split_documents(one)[0] for one in (example, example.companion)]
        (_, _), (tokens, trained) = pair
        shared = count_shared(*zip(*pair, strict=True))
        rest = len(tokens) - shared
        row_map = np.concatenate([np.arange(start, start + shared), np.arange(end, end + rest)])
        row_maps.append(row_map)
        own.append(np.arange(written + shared, written + len(tokens)))
        ids.append(tokens[shared:])
        picks.append(row_map[np.flatnonzero(trained) - 1])
        targets.append(tokens[trained])
        lengths.append(len(tokens))
        start, end, written = start + len(example.token_ids), end + rest, written + len(tokens)
    missing = (rows - end) % multiple
    ids.append(np.full(missing, pad_id))
    row_maps.append(np.arange(end, end + missing))
    own.append(np.arange(written, written + missing))
    lengths[-1] += missing
    return CompanionStream(
        ids=np.concatenate(ids).astype(np.int64),
        lengths=tuple(lengths),
        picks=np.concatenate(picks),
        targets=np.concatenate(targets).astype(np.int64),
        beginnings=Beginnings(rows=np.concatenate(row_maps), own=np.concatenate(own), again=()),
    )


def pair_up(examples: Sequence[Example], sequences: int) -> list[list[int]]:
    """Return the documents of `examples`, by their numbers, as groups of so many neighbours in one example."""
    groups, first = [], 0
    for example in examples:
        end = first + len(example.lengths)
        groups += [[*range(start, min(start + sequences, end))] for start in range(first, end, sequences)]
        first = end
    return groups


def group_by_prompt(examples: Sequence[Example]) -> list[list[int]]:
    """Return the numbers of `examples`, of one document each, as groups of the same prompt; in order of appearance."""
    groups: dict[bytes, list[int]] = {}
    for number, example in enumerate(examples):
        begin = int(np.argmax(example.trained)) if example.trained.any() else len(example.token_ids)
        groups.setdefault(example.token_ids[:begin].tobytes(), []).append(number)
    return [*groups.values()]


def join_shared(
    examples: Sequence[Example], groups: Sequence[Sequence[int]], pad_id: int, multiple: int
) -> TokenStream:
    """Return `examples` with what the documents of each group begin with once; filled up as join() does.

    groups: numbers of documents, each in one of them.
    """
    documents = [document for example in examples for document in split_documents(example)]
    tokens: list[np.ndarray] = []
    row_maps: list[np.ndarray] = [np.zeros(0, np.int64)] * len(documents)
    """Of each document: the stream's row of each of its tokens."""
    written: list[int] = []
    """Numbers of the documents as they stand behind each other, written out."""
    repeats: list[list[tuple[int, int]]] = [[] for _ in range(max(map(len, groups)) - 1)]
    """Of a beginning's second, third .. document: its number, and how many of its tokens are shared."""
    end = 0
    for group in groups:
        own, trained = zip(*(documents[number] for number in group), strict=True)
        shared = count_shared(own, trained)
        tokens.append(own[0][:shared])
        beginning = np.arange(end, end + shared)
        end += shared
        for round_, (number, one) in enumerate(zip(group, own, strict=True)):
            rest = len(one) - shared
            tokens.append(one[shared:])
            row_maps[number] = np.concatenate([beginning, np.arange(end, end + rest)])
            end += rest
            written.append(number)
            if round_ and shared:
                repeats[round_ - 1].append((number, shared))
    missing = -end % multiple
    tokens.append(np.full(missing, pad_id))
    picks = [row_maps[i][np.flatnonzero(trained) - 1] for i, (_, trained) in enumerate(documents)]
    targets = [ids[trained] for ids, trained in documents]
    last = written[-1]
    row_maps[last] = np.concatenate([row_maps[last], np.arange(end, end + missing)])
    lengths = [len(row_maps[number]) for number in written]
    starts = dict(zip(written, np.cumsum([0, *lengths[:-1]]), strict=True))
    rows = np.concatenate([row_maps[number] for number in written])
    own_places = np.empty(end + missing, dtype=np.int64)
    own_places[rows[::-1]] = np.arange(len(rows))[
        ::-1
    ]  # the first place of a row is the one that is written last
    again = tuple(
        (
            np.concatenate([row_maps[number][:count] for number, count in part]),
            np.concatenate([starts[number] + np.arange(count) for number, count in part]),
        )
        for part in repeats
        if part
    )
    return TokenStream(
        ids=np.concatenate(tokens).astype(np.int64),
        lengths=tuple(length for length in lengths if length),
        picks=np.concatenate(picks),
        targets=np.concatenate(targets).astype(np.int64),
        beginnings=Beginnings(rows=rows, own=own_places, again=again) if again else None,
    )
