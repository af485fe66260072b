"""Adapters, and beside them tables and norms of the model that are trained in full, as one flat buffer in fp32.

The embedding is looked up in the fp32 table itself; of the head, also of a shared table, a 16-bit copy multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from studio.core.i18n import Text, text
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.flat_weights import ALIGN, list_norms
from studio.models.decoder.spec import DecoderSpec


class BesideStore(FlatStore):
    """`adapters`, then `tables`, then `norms`; what multiplies is `head`, rounded to `dtype`, where it is trained."""

    def __init__(
        self,
        adapters: Sequence[nn.Parameter],
        tables: Sequence[nn.Parameter],
        norms: Sequence[nn.Parameter],
        head: nn.Parameter,
        dtype: torch.dtype,
    ) -> None:
        super().__init__([adapters, *([one] for one in (*tables, *norms))], align=ALIGN)
        self.tables = tuple(tables)
        self.dtype = dtype
        self._starts = [self._places[id(one)] for one in (*tables, *norms[:1])]
        self._head = head
        self._rounded: Tensor | None = None
        if id(head) in self._places and dtype != head.dtype:
            self._rounded = torch.empty(head.shape, dtype=dtype, device=head.device)

    @property
    def adapters_count(self) -> int:
        """See FlatStore."""
        return self._starts[0]

    @property
    def parts(self) -> list[slice]:
        """See FlatStore."""
        end = self.weights.numel()
        edges = [*self._starts, end] if len(self._starts) > len(self.tables) else [*self._starts, end, end]
        beside = [slice(start, stop) for start, stop in zip(edges[:-1], edges[1:], strict=True)]
        return [slice(0, self._starts[0]), slice(0, 0), *beside]

    def note_change(self) -> None:
        """See FlatStore; the head is rounded anew."""
        super().note_change()
        if self._rounded is not None:
            self._rounded.copy_(self._head)

    def computed(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """See FlatStore."""
        return super().computed(parameters) if self._rounded is None else self._rounded

    def release(self) -> None:
        """See FlatStore."""
        super().release()
        self._rounded = None

    @contextmanager
    def holding_rounded(self) -> Iterator[None]:
        """Let the modules hold tables in 16 bits inside, as the decoder's result has them."""
        held = [one.data for one in self.tables]
        for one in self.tables:
            one.data = one.data.to(self.dtype)
        try:
            yield
        finally:
            for one, data in zip(self.tables, held, strict=True):
                one.data = data


def list_beside(spec: DecoderSpec) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return tables and norms of `spec` that are trained, each once."""
    tables = {
        id(one): one for one in (getattr(spec.embedding, "weight", None), spec.head.weight) if one is not None
    }
    norms = {id(one): one for (one,) in list_norms(spec)}
    return tuple([one for one in found.values() if one.requires_grad] for found in (tables, norms))


def refuse_beside(spec: DecoderSpec, tables: Sequence[nn.Parameter]) -> Text | None:
    """Return why these tables of `spec` cannot be trained here, or None."""
    table = spec.embedding
    if not any(one is getattr(table, "weight", None) for one in tables):
        return None
    plain = isinstance(table, nn.Embedding) and [name for name, _ in table.named_parameters()] == ["weight"]
    if plain and table.max_norm is None and not (table.scale_grad_by_freq or table.sparse):
        return None
    return text("model.decoder.unlike", part="embed_tokens")
