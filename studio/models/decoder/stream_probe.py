"""Holds how several residual streams are made and brought together against the model's own decoder, in the probe."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from studio.models.decoder.ends_check import EndsProbe
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.fp32_reference import widen, without_tf32
from studio.models.decoder.own_inputs import Given, PartListener, replace_children
from studio.models.decoder.stream_ends import EndParts, StreamEnds
from studio.models.decoder.stream_form import lay_side_by_side
from studio.models.decoder.structure import FINAL_NORMS
from studio.models.decoder.tolerance import Judge, Measured

LAYERS = "layers"
"""What decoders call the list of their layers."""


def gather_wide(ends: StreamEnds | None, dtype: torch.dtype, *streams: Tensor) -> tuple[Tensor, ...]:
    """Return what the last norm reads of each of `streams` (T, n H) in fp32; of a single stream that itself."""
    return streams if ends is None else tuple(map(_widen_ends(ends, dtype).gather, streams))


def _widen_ends(ends: StreamEnds, dtype: torch.dtype) -> StreamEnds:
    """Return `ends` in fp32, from the matrices of a run in `dtype`; their gradients go to the same places."""
    twin, twins = copy.copy(ends), {}
    wide = ([widen(one, dtype, twins) for one in own] for own in (ends.parts.spread, ends.parts.gather))
    twin.parts, twin.dtype = EndParts(*map(tuple, wide)), torch.float32
    twin.trained = {id(twins[number]): place for number, place in ends.trained.items()}
    return twin


def compare_streams(probe: EndsProbe) -> Iterator[Measured]:
    """Compare how streams are made and brought together with what the model's own decoder does without its layers."""
    ends, store = probe.decoder.ends, probe.decoder.store
    if ends is None:
        return
    decoder, trained = probe.model.get_decoder(), list(ends.parts.trained)
    x = probe.text.inputs[0][..., : probe.decoder.spec.hidden_size].to(probe.dtype)
    x = torch.where(x.any(-1, keepdim=True), x, 1.0)  # at a padding token's zeros a root has no slope
    rows, generator = probe.text.cut(x), torch.Generator().manual_seed(0)
    upstream = torch.randn(rows.shape, generator=generator).to(probe.device)
    names = ["streams", "gathered", "dx", *(f"ends {number}" for number in range(len(trained)))]

    def cut(results: list[Tensor]) -> list[Tensor]:
        return [*map(probe.text.cut, results[:3]), *results[3:]]

    twins: dict[int, nn.Parameter] = {}
    with without_tf32():
        wide = _leave_out_layers(decoder, lambda part: widen(part, probe.dtype, twins))
        truth = cut(
            _run_own(wide, x.float(), probe.text.spread(upstream), [twins[id(one)] for one in trained])
        )
        ours = _run_ours(_widen_ends(ends, probe.dtype), rows.float(), upstream, store, trained)
    yield from Judge(torch.float32, exact=True).compare(0, names, ours, truth, truth, torch.float32)
    if probe.dtype == torch.float32:
        return
    with probe.autocasting():
        own = cut(_run_own(_leave_out_layers(decoder), x, probe.text.spread(upstream), trained))
    ours = _run_ours(ends, rows, upstream.to(probe.dtype), store, trained)
    yield from probe.judge.compare(0, names, ours, own, truth, probe.dtype)


def _run_ours(
    ends: StreamEnds, x: Tensor, upstream: Tensor, store: FlatStore, trained: list[nn.Parameter]
) -> list[Tensor]:
    """Return X, g, dx and the gradients of `trained` of rows x (T, H), given dg."""
    store.clear_gradients()
    streams = ends.spread(x)
    dx = ends.spread_backward(x, ends.gather_backward(streams, upstream), wanted=True)
    return [streams, ends.gather(streams), dx, *(store.gradient(one).clone() for one in trained)]


def _leave_out_layers(
    decoder: nn.Module, change: Callable[[nn.Module], nn.Module] = lambda part: part
) -> nn.Module:
    """Return a shallow copy of `decoder` whose one layer gives what it takes; `change` is done to all other parts."""
    twin = replace_children(decoder)
    for name, part in decoder.named_children():
        if name != LAYERS and not isinstance(part, nn.Embedding):
            twin._modules[name] = change(part)
    return twin


def _run_own(decoder: nn.Module, x: Tensor, upstream: Tensor, trained: list[nn.Parameter]) -> list[Tensor]:
    """Return the same by the model's own code, of x (D, S, H)."""
    found: list[Tensor] = []

    def hear(given: Given) -> None:
        found.append(next(iter(given.values())))

    norm = next(name for name in FINAL_NORMS if hasattr(decoder, name))
    layers = nn.ModuleList([PartListener(decoder.layers[0], hear)])
    twin = replace_children(decoder, **{LAYERS: layers, norm: PartListener(getattr(decoder, norm), hear)})
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        type(decoder).forward(twin, inputs_embeds=start, use_cache=False)
        streams, gathered = found
        gradients = torch.autograd.grad(gathered, [start, *trained], upstream.to(gathered.dtype))
    return [lay_side_by_side(streams).detach(), gathered.detach(), *gradients]
