"""Rows that look back at kept keys and values: where these lie, and attention over them.

Keys and values of a layer lie in pages of PAGE_TOKENS tokens, (pages, PAGE_TOKENS, key heads, d). A sequence owns a
list of pages, the block table; neighbours in it that are neighbours in memory are one run, read as it lies.
T rows of all sequences one after another; attention as studio_kernels.attention has it, the last row of a sequence of
L tokens being at place L - 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from studio_kernels.attention import Attention, Documents
from studio_kernels.decode_attention import PAGE_TOKENS
from studio_kernels.dispatch import Kernels
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.fused_lora_linear import Drops
from studio.models.decoder.spec import LayerSpec

LEAST_GRID = 4
"""Fewer sequences are read one by one."""
MOST_READ = 16
"""New tokens of a sequence in a grid: more are a prompt, which fills a product by itself."""
MOST_UNITS = 4
"""Units of a grid to one sequence: more would read what nobody needs."""


@dataclass(frozen=True, slots=True)
class PageArena:
    """Room for the keys and values of all layers."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    """k_pages, v_pages (pages, PAGE_TOKENS, key heads, d) of each layer; the lender's where they are borrowed."""

    @classmethod
    def of(
        cls, specs: Sequence[LayerSpec], pages: int, dtype: torch.dtype, device: torch.device
    ) -> PageArena:
        """Return room for `pages` pages. Raises torch.OutOfMemoryError."""

        def make(spec: LayerSpec) -> Tensor:
            # Zeros: what lies beyond a sequence is read in a grid, and -inf hides any number but NaN.
            return torch.zeros(pages, PAGE_TOKENS, spec.key_heads, spec.head_dim, dtype=dtype, device=device)

        layers: list[tuple[Tensor, Tensor]] = []
        for spec in specs:
            layers.append((make(spec), make(spec)) if spec.source is None else layers[spec.source])
        return cls(tuple(layers))

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole pages to others."""
        for layer in {id(layer): layer for layer in self.layers}.values():
            for pages in layer:
                pages[list(target)] = pages[list(source)]


def page_bytes(specs: Sequence[LayerSpec], dtype: torch.dtype) -> int:
    """Return what one page takes, of all layers."""
    return sum(2 * PAGE_TOKENS * spec.made_key_heads * spec.head_dim for spec in specs) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of the rows."""

    rows: slice
    length: int
    """Tokens of the sequence, the new ones included."""
    runs: tuple[tuple[int, int], ...]
    """Where its tokens lie, as first and last + 1 places in the arena, in their order."""

    @property
    def count(self) -> int:
        """New tokens."""
        return self.rows.stop - self.rows.start


@dataclass(frozen=True, slots=True)
class Grid:
    """Sequences that grow by a few tokens each and lie at even distances: one batch, read as it lies."""

    start: int
    """The first place of the first unit of the grid."""
    step: int
    """Places from one unit to the next."""
    length: int
    """Tokens of the longest sequence."""
    places: Tensor
    """(T,) int64: which of the rows of all units each row is, as unit * rows + row; others are read and left out."""
    count: int
    rows: int
    """Of each unit, the new tokens of the sequence that has the most."""
    whole: bool
    """Whether the rows are those of the units, in their order."""
    hidden: dict[int, Tensor]
    """(units, 1, rows, length), by the layer's window: -inf where a row sees nothing, else 0."""

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, spec: LayerSpec) -> Tensor:
        """Return attention of q (T, query heads, d) over pages (places, key heads, d)."""
        heads, d, shared = spec.key_heads, spec.head_dim, q.shape[1] // spec.key_heads
        queries = q
        if not self.whole:
            queries = q.new_zeros(self.count * self.rows, *q.shape[1:]).index_copy_(0, self.places, q)
        shape, strides = (self.count, heads, self.length, d), (self.step * heads * d, d, heads * d, 1)
        seen, held = (
            pages.as_strided(shape, strides, pages.storage_offset() + self.start * heads * d)
            for pages in (keys, values)
        )
        # Query heads that share a key head are rows of one product, as attend_kept() has them.
        mask = self.hidden[spec.window]
        if self.rows > 1:
            mask = mask.repeat_interleave(shared, 2)
        found = scaled_dot_product_attention(
            queries.view(self.count, self.rows, heads, shared, d).transpose(1, 2).flatten(2, 3),
            seen,
            held,
            attn_mask=mask,
            scale=spec.scale,
        )
        found = found.unflatten(2, (self.rows, shared)).transpose(1, 2).reshape(-1, heads * shared, d)
        return found if self.whole else found.index_select(0, self.places)


@dataclass(frozen=True, slots=True)
class CachedRows:
    """New rows of some sequences, and what they look at."""

    arena: PageArena
    layout: BatchLayout
    places: Tensor
    """(T,) int64 where each row's key and value go, as page * PAGE_TOKENS + place in the page."""
    spans: tuple[Span, ...]
    fresh: bool
    """Whether nothing is kept of any sequence: then the training's attention computes."""
    grid: Grid | None

    def attend(
        self,
        number: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        spec: LayerSpec,
        attention: Attention,
        kernels: Kernels,
    ) -> Tensor:
        """Keep k and v (T, key heads, d) of layer `number`; returns the attention's result (T, query heads d).

        None for k and v: that layer has kept them.
        """
        keys, values = (pages.flatten(0, 1) for pages in self.arena.layers[number])
        if k is not None:
            keys.index_copy_(0, self.places, k)
            values.index_copy_(0, self.places, v)
        elif self.fresh:
            k, v = keys[self.places], values[self.places]
        if self.fresh:
            return attention.forward(q, k, v, self.layout.documents, spec.sinks)[0].reshape(q.shape[0], -1)
        if self.grid is not None and not spec.softcap and spec.sinks is None:
            return self.grid.attend(q, keys, values, spec).flatten(1)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for span in self.spans:
            first = max(0, span.length - span.count + 1 - spec.window) if spec.window else 0
            seen, held = (read_runs(pages, span.runs, first) for pages in (keys, values))
            attend_kept(q[span.rows], seen, held, spec, out[span.rows])
        return out.flatten(1)


@dataclass(frozen=True, slots=True)
class SlotRows:
    """One new row of each of some slots, whose pages and lengths are read where they lie: nothing hangs on them."""

    arena: PageArena
    layout: BatchLayout
    table: Tensor
    """(S, pages a slot) int32 the block table."""
    lengths: Tensor
    """(S,) int32 tokens of each slot, the new one included; 0: an idle one, of which nothing is kept."""

    def attend(
        self,
        number: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        spec: LayerSpec,
        attention: Attention,
        kernels: Kernels,
    ) -> Tensor:
        """See CachedRows."""
        pages = self.arena.layers[number]
        if k is not None:
            kernels.write_pages.forward(k, v, *pages, self.table, self.lengths)
        return kernels.decode_attention.forward(
            q, *pages, self.table, self.lengths, scale=spec.scale, window=spec.window, softcap=spec.softcap,
            sinks=spec.sinks,
        ).flatten(1)  # fmt: skip


def read_runs(pages: Tensor, runs: Sequence[tuple[int, int]], first: int) -> Tensor:
    """Return the tokens from `first` on of a sequence that lies in `runs` of `pages` (places, key heads, d)."""
    if len(runs) == 1:
        start, stop = runs[0]
        return pages[start + first : stop]
    parts = []
    for start, stop in runs:
        if first < stop - start:
            parts.append(pages[start + first : stop])
        first = max(0, first - (stop - start))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_kept(q: Tensor, k: Tensor, v: Tensor, spec: LayerSpec, out: Tensor) -> None:
    """Write attention of the last rows q (n, query heads, d) over k, v (L, key heads, d) of one sequence to `out`."""
    count, length, shared = q.shape[0], k.shape[0], spec.query_heads // spec.key_heads
    # Query heads that share a key head are rows of one product: (key heads, n shared, d).
    queries = (
        q.view(count, spec.key_heads, shared, -1)
        .permute(1, 0, 2, 3)
        .reshape(spec.key_heads, count * shared, -1)
    )
    keys, values = k.transpose(0, 1), v.transpose(0, 1)
    mask = None
    if count > 1:
        rows = torch.arange(length - count, length, device=q.device)[:, None]
        columns = torch.arange(length, device=q.device)[None]
        mask = columns <= rows
        if spec.window:
            mask &= columns > rows - spec.window
        mask = mask.repeat_interleave(shared, 0)
    if spec.softcap or spec.sinks is not None:
        found = _compose(queries, keys, values, mask, spec, count)
    else:
        found = scaled_dot_product_attention(
            queries[None], keys[None], values[None], attn_mask=mask, scale=spec.scale
        )[0]
    out.view(count, spec.key_heads, shared, -1).copy_(
        found.view(spec.key_heads, count, shared, -1).permute(1, 0, 2, 3)
    )


def _compose(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, spec: LayerSpec, count: int
) -> Tensor:
    """Return attention by products, softmax in fp32: with bounded scores, and with what the heads' sinks take."""
    scores = (queries @ keys.mT).float().mul_(spec.scale)
    if spec.softcap:
        scores = torch.tanh_(scores.div_(spec.softcap)).mul_(spec.softcap)
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    if spec.sinks is not None:
        sinks = spec.sinks.detach().float().view(spec.key_heads, 1, -1).expand(-1, count, -1)
        scores = torch.cat((scores, sinks.reshape(spec.key_heads, -1, 1)), -1)
        return torch.softmax(scores, -1)[..., :-1].to(values.dtype) @ values
    return torch.softmax(scores, -1).to(values.dtype) @ values


def lay_rows(
    arena: PageArena,
    sequences: Sequence[tuple[int, int, Sequence[int]]],
    tables: dict[str, tuple[Tensor, Tensor]],
    windows: Collection[int],
    device: torch.device,
) -> CachedRows:
    """Return the rows of `sequences`, each as its kept tokens, its new ones, and its pages.

    `tables`: see BatchLayout; `windows`: those of the layers.
    """
    spans, places, positions, row = [], [], [], 0
    for kept, count, pages in sequences:
        length = kept + count
        spans.append(Span(slice(row, row + count), length, find_runs(pages, length)))
        if count == 1:
            positions.append(kept)
            places.append(pages[kept // PAGE_TOKENS] * PAGE_TOKENS + kept % PAGE_TOKENS)
        else:
            positions.extend(range(kept, length))
            places.extend(
                pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS for at in range(kept, length)
            )
        row += count
    fresh = all(not kept for kept, _, _ in sequences)
    documents = Documents.of([count for _, count, _ in sequences], device)
    numbers = torch.tensor(positions, dtype=torch.int32).to(device, non_blocking=True)
    layout = BatchLayout(numbers, documents, tables, Drops(None))
    where = torch.tensor(places).to(device, non_blocking=True)
    grid = None if fresh else find_grid(spans, windows, arena.layers[0][0])
    return CachedRows(arena, layout, where, tuple(spans), fresh, grid)


def find_grid(spans: Sequence[Span], windows: Collection[int], pages: Tensor) -> Grid | None:
    """Return how sequences lie at even distances in `pages`, None where they do not, or are too few to matter."""
    rows = max(span.count for span in spans)
    few = len(spans) < LEAST_GRID and rows == 1
    if few or rows > MOST_READ or any(len(span.runs) > 1 for span in spans):
        return None
    starts = [span.runs[0][0] for span in spans]
    first, length = min(starts), max(span.length for span in spans)
    step = math.gcd(*(start - first for start in starts))
    count = (max(starts) - first) // step + 1 if step else 1
    if (
        len(set(starts)) < len(starts)
        or count > MOST_UNITS * len(spans)
        or max(starts) + length > len(pages) * PAGE_TOKENS
    ):
        return None
    # The last token that each row of each unit sees; rows that no sequence has see what its last one does.
    last, places = [[-1] * rows for _ in range(count)], []
    for span, start in zip(spans, starts, strict=True):
        unit = (start - first) // step if step else 0
        last[unit] = [min(span.length - span.count + row, span.length - 1) for row in range(rows)]
        places += range(unit * rows, unit * rows + span.count)
    lasts, columns, hidden = torch.tensor(last)[:, None, :, None], torch.arange(length), {}
    for window in windows:
        out = columns > lasts
        if window:
            out |= columns <= lasts - window
        mask = torch.zeros(count, 1, rows, length).masked_fill_(out, -torch.inf)
        hidden[window] = mask.to(pages, non_blocking=True)
    whole = places == list(range(count * rows))
    return Grid(first, step, length, torch.tensor(places).to(pages.device), count, rows, whole, hidden)


def find_runs(pages: Sequence[int], length: int) -> tuple[tuple[int, int], ...]:
    """Return where `length` tokens in `pages` lie, as first and last + 1 places; neighbours are one run."""
    runs: list[tuple[int, int]] = []
    for number in range(-(-length // PAGE_TOKENS)):
        start = pages[number] * PAGE_TOKENS
        stop = start + min(PAGE_TOKENS, length - number * PAGE_TOKENS)
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        else:
            runs.append((start, stop))
    return tuple(runs)
