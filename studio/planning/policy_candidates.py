"""The policies among which the planner takes the fastest that fits, each with its memory and its time.

A family starts with every layer alike: kept on the card by its input alone, or waiting in the machine's own memory at
one of the levels. Then layer after layer keeps more on the card, in the order in which a byte saves most work. Families
differ in that start and in the portions of the MLP; within each, the loss head may go in smaller portions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from studio.core.memory_policy import KEEP_LEVELS, LayerPolicy, MemoryPolicy
from studio.planning.decoder_shape import DecoderShape
from studio.planning.layer_flops import (
    HEAD_SHARES,
    OPENING_OPERATIONS,
    extra_work,
    head_work,
    measure_work,
)
from studio.planning.layer_memory import head_bytes, moved_bytes, peak_of_runs, size_layer, tables_bytes

LEAST_CHUNK_TOKENS = 1024
"""Fewer tokens at a time leave a GPU's processors idle."""
HEAD_PORTIONS = ((0, 0), (1024, 8192), (512, 4096))
"""Portions of the loss head, (rows, columns): its own choice, then 84 and 17 MB of workspace for a width of 4,096."""
PINNED_SHARE = 0.5
"""Share of the machine's free memory that may wait there for the card; pinned memory cannot be swapped out."""
ON_CARD = tuple(LayerPolicy(keep=keep) for keep in KEEP_LEVELS)
AWAY = tuple(LayerPolicy(keep=keep, offload=True) for keep in KEEP_LEVELS)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy, still in parts, with what it needs and takes."""

    layers: tuple[LayerPolicy, ...]
    mlp_chunk_tokens: int
    head: int
    """Which of HEAD_PORTIONS."""
    cached_layers: int
    peak_bytes: int
    """What layers and loss head keep and need together, when that is most."""
    work: float
    """Operations a token beyond those of a micro-step that keeps all on the card."""

    @property
    def policy(self) -> MemoryPolicy:
        """The whole policy."""
        rows, columns = HEAD_PORTIONS[self.head]
        return MemoryPolicy(
            layers=self.layers,
            mlp_chunk_tokens=self.mlp_chunk_tokens,
            head_rows=rows,
            head_columns=columns,
            cached_layers=self.cached_layers,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLoad:
    """What the candidates hang on."""

    shape: DecoderShape
    tokens: int
    """Of a micro-batch."""
    document_tokens: int
    ram_bytes: int
    """The machine's own free memory."""
    recompute: str = "auto"
    """What the recipe wants: auto, on (each layer from its input), off (all is kept)."""
    opened: bool = False
    """Whether weights are opened, so that they could stay so: those of 4 bits, and all whose rows are multiplied."""


def leanest_policy(load: MemoryLoad) -> MemoryPolicy:
    """Return the policy that needs least: inputs alone, away as far as allowed, and small portions."""
    family = _Family(load, min(_chunks(load.tokens), key=lambda chunk: chunk or load.tokens))
    kinds = [AWAY[0]] * load.shape.layers
    layers = tuple(family.share_room(kinds, AWAY[0], ON_CARD[0]))
    rows, columns = HEAD_PORTIONS[-1]
    return MemoryPolicy(
        layers=layers, mlp_chunk_tokens=family.chunk_tokens, head_rows=rows, head_columns=columns
    )


def list_candidates(load: MemoryLoad) -> Iterator[Candidate]:
    """Yield every candidate."""
    whole = [ON_CARD[-1]] * load.shape.layers
    if load.recompute == "off":
        yield from _Family(load, 0).take(whole)
    else:
        levels = 1 if load.recompute == "on" else len(KEEP_LEVELS)
        for chunk in _chunks(load.tokens):
            # Gate and up of a portion alone cannot be kept.
            family = _Family(load, chunk, min(levels, len(KEEP_LEVELS) - bool(chunk)))
            for start in (*AWAY[: family.levels], ON_CARD[0]):
                yield from family.walk(start)
    if load.recompute != "on" and load.opened:
        opened = sum(group.inputs * group.outputs for group in load.shape.groups.values())
        # DoRA's are opened anew at each step of the optimizer: forward, and not backward.
        saved = OPENING_OPERATIONS / (1 + load.shape.magnitudes)
        for one in _Family(load, 0).take(whole):
            for count in range(1, load.shape.layers + 1):
                work = one.work - saved * opened * count / load.tokens
                yield Candidate(one.layers, 0, one.head, count, one.peak_bytes, work)


def _chunks(tokens: int) -> list[int]:
    """Return the portions of the MLP that are tried: none, about a half, an eighth, and the least."""
    powers = [LEAST_CHUNK_TOKENS << power for power in range(32) if LEAST_CHUNK_TOKENS << power < tokens]
    some = {powers[-1], powers[max(0, len(powers) - 3)], powers[0]} if powers else set()
    return [0, *sorted(some)]


class _Family:
    """Policies of one portion of the MLP, with the sizes and works of its layers."""

    def __init__(self, load: MemoryLoad, chunk_tokens: int, levels: int = len(KEEP_LEVELS)) -> None:
        self.load, self.chunk_tokens, self.levels = load, chunk_tokens, levels
        shape = load.shape
        kinds = (*ON_CARD, *AWAY)
        self.sizes = {id(kind): size_layer(shape, load.tokens, kind, chunk_tokens) for kind in kinds}
        works = {window: measure_work(shape, window, load.document_tokens) for window in set(shape.windows)}
        extra = {
            window: {id(kind): extra_work(shape, work, kind, chunk_tokens) for kind in kinds}
            for window, work in works.items()
        }
        self.extra = [extra[window] for window in shape.windows]
        """Of each layer: the work beyond that of a layer kept whole, by kind (their ids: looked up very often)."""
        self.room_bytes = int(PINNED_SHARE * load.ram_bytes)
        self.tables = tables_bytes(shape, load.tokens)
        self.heads = [
            (head_bytes(shape, load.tokens, *portion), share * head_work(shape))
            for portion, share in zip(HEAD_PORTIONS, HEAD_SHARES, strict=True)
        ]

    def walk(self, start: LayerPolicy) -> Iterator[Candidate]:
        """Yield the policies that begin with every layer at `start`, from the leanest on."""
        kinds = [start] * self.load.shape.layers
        steps = [(None, start), *self._order(start)]
        # Where the machine's memory does not take all: less of the others there, or their inputs on the card.
        rests = (
            (AWAY[0], ON_CARD[0])
            if start.offload and self._moved(start) * len(kinds) > self.room_bytes
            else ()
        )
        for layer, kind in steps:
            if layer is not None:
                kinds[layer] = kind
            if not rests:
                yield from self.take(kinds)
            for rest in rests[start is AWAY[0] :]:
                yield from self.take(self.share_room(kinds, start, rest))

    def share_room(
        self, kinds: Sequence[LayerPolicy], start: LayerPolicy, rest: LayerPolicy
    ) -> list[LayerPolicy]:
        """Return `kinds` with as many layers at `start` as the machine's memory takes, the others at `rest`.

        The first layers go there: the backward pass wants the last ones first.
        """
        places = [i for i, kind in enumerate(kinds) if kind is start]
        each, room = self._moved(start), self.room_bytes
        if rest.offload:
            least = self._moved(rest)
            if len(places) * least > room:  # not even their inputs
                start, each, rest = rest, least, ON_CARD[0]
            else:
                room, each = room - len(places) * least, each - least
        count = min(len(places), room // max(1, each))
        shared = list(kinds)
        for number, place in enumerate(places):
            shared[place] = start if number < count else rest
        return shared

    def take(self, kinds: Sequence[LayerPolicy]) -> Iterator[Candidate]:
        """Yield `kinds` with each portion of the loss head that makes a difference."""
        runs = [(self.sizes[key], len(list(group))) for key, group in groupby(map(id, kinds))]
        kept, needed, whole = peak_of_runs(runs)
        layers_peak = kept + needed
        work = sum(extra[id(kind)] for extra, kind in zip(self.extra, kinds, strict=True))
        layers, last = tuple(kinds), 0
        for head, (size, more) in enumerate(self.heads):
            peak = self.tables + max(layers_peak, whole + size)
            if peak == last:
                break
            last = peak
            yield Candidate(layers, self.chunk_tokens, head, 0, peak, work + more)

    def _moved(self, kind: LayerPolicy) -> int:
        return self.load.tokens * moved_bytes(self.load.shape, kind.keep)

    def _order(self, start: LayerPolicy) -> list[tuple[int, LayerPolicy]]:
        """Return (layer, what it keeps on the card) in the order in which keeping more pays.

        By the work that a byte saves, then from the last layer: what the last ones keep is given back first, so that by
        the time that layers with much to compute again need room for it, much is free. Every matrix product's result
        saves H operations a byte, attention's S / 2 and more: it comes first in long documents. A level that pays less
        than the one after it is left out.
        """
        order: list[tuple[float, int, int]] = []
        first = KEEP_LEVELS.index(start.keep) + (not start.offload)
        for layer, extra in enumerate(self.extra):
            now, level = start, first
            while level < self.levels:
                gains = []
                for above in range(level, self.levels):
                    kind = ON_CARD[above]
                    more = self.sizes[id(kind)].held - self.sizes[id(now)].held
                    gains.append(((extra[id(now)] - extra[id(kind)]) / more, above))
                gain, best = max(gains)
                if gain <= 0:
                    break
                order.append((-gain, -layer, best))
                now, level = ON_CARD[best], best + 1
        return [(-layer, ON_CARD[level]) for _, layer, level in sorted(order)]
