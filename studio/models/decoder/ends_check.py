"""Holds the gradients of the ends against autograd: of last norm, head and embedding, and of rows of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from studio.models.decoder.decoder import Decoder
from studio.models.decoder.fp32_reference import (
    Head,
    run_embedding,
    run_embedding_rows,
    run_head,
    without_tf32,
)
from studio.models.decoder.probe_states import Stream
from studio.models.decoder.tolerance import Judge, Measured


class EndsProbe(Protocol):
    """What is asked of the probe that compares whole layers."""

    model: nn.Module
    decoder: Decoder
    judge: Judge
    text: Stream
    dtype: torch.dtype
    device: torch.device

    def picked(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last layer's result, some of its rows, and the tokens that follow them."""

    def autocasting(self) -> AbstractContextManager[None]:
        """Lower inside what the run's autocast lowers."""


EACH = 3
"""Every third token of the text is one whose row is trained: few texts have a new one."""


def compare_ends(probe: EndsProbe, own: Head, truth: Head) -> Iterator[Measured]:
    """Compare the gradients of last norm and head, as apply_head() left them, and of the embedding, where trained."""
    decoder, store, spec = probe.decoder, probe.decoder.store, probe.decoder.spec
    number, head = len(decoder.layers), spec.head.weight
    table = getattr(spec.embedding, "weight", None)
    found = []
    if truth.of_norm is not None:
        found.append(("norm.weight", spec.norm.module.weight, own.of_norm, truth.of_norm))
    looked_up = store.find_gradient(table) is not None
    if truth.of_head is not None and not (looked_up and head is table):
        found.append(("lm_head.weight", head, own.of_head, truth.of_head))
    if looked_up:
        ids = probe.text.cut(probe.text.ids)
        generator = torch.Generator().manual_seed(number)
        dx = torch.randn(len(ids), table.shape[1], generator=generator).to(probe.device)
        size = truth.dx if truth.of_head is None else truth.of_head
        dx *= size.norm() / dx.norm()  # where both share a table, either of them shows
        exact, theirs = (run_embedding(spec, ids, dx.to(probe.dtype), wide=wide) for wide in (True, False))
        if head is table:
            exact, theirs = exact + truth.of_head, theirs.float() + own.of_head.float()
        with torch.no_grad():
            decoder.embedding.backward(ids, dx.to(probe.dtype))
        found.append(("embed_tokens.weight", table, theirs, exact))
    if found:
        names, weights, theirs, exact = map(list, zip(*found, strict=True))
        yield from probe.judge.compare(
            number, names, [store.gradient(p) for p in weights], theirs, exact, probe.dtype
        )


def compare_rows(probe: EndsProbe, scale: float) -> Iterator[Measured]:
    """Compare what head and embedding add to the rows that are trained; the loss is multiplied by `scale`."""
    decoder, spec, number = probe.decoder, probe.decoder.spec, len(probe.decoder.layers)
    x, picks, targets = probe.picked()
    if (rows := spec.head_rows) is not None:
        targets = targets.clone()
        targets[::EACH] = rows.ids[torch.arange(len(targets[::EACH]), device=x.device) % len(rows.ids)]
        with without_tf32():
            truth = run_head(spec, x[picks].float(), targets, scale, wide=True).of_rows
        with probe.autocasting():
            own = run_head(spec, x[picks], targets, scale, wide=False).of_rows
        decoder.store.clear_gradients()
        with torch.no_grad():
            decoder.apply_head(x.clone(), picks, targets, torch.tensor(scale, device=x.device))
        ours = decoder.store.gradient(rows.parameter).clone()
        yield from probe.judge.compare(number, ["lm_head rows"], [ours], [own], [truth], probe.dtype)
    if (rows := spec.embedding_rows) is not None:
        ids = probe.text.cut(probe.text.ids).clone()
        ids[::EACH] = rows.ids[torch.arange(len(ids[::EACH]), device=x.device) % len(rows.ids)]
        generator = torch.Generator().manual_seed(number)
        dx = torch.randn(len(ids), spec.hidden_size, generator=generator).to(x.device)
        exact = run_embedding_rows(spec, ids, dx, wide=True)
        theirs = run_embedding_rows(spec, ids, dx.to(probe.dtype), wide=False)
        decoder.store.clear_gradients()
        with torch.no_grad():
            decoder.embedding.backward(ids, dx.to(probe.dtype))
        ours = decoder.store.gradient(rows.parameter).clone()
        yield from probe.judge.compare(number, ["embed_tokens rows"], [ours], [theirs], [exact], probe.dtype)
