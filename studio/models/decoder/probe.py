"""Proves on the spot that our layers compute what the model's own do: each kind, forward and every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from studio_kernels.attention import Documents
from torch import Tensor, nn

from studio.core.text import Text, text
from studio.models.adapt import evaluation_mode
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.layer import Layer
from studio.models.norms import relative_error

TOKENS = 32
TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""Largest error, as a share of the largest value: some 15 roundings lie between a layer's input and its gradients; in
float32 room for TF32 products. A left-out scale, norm or sign is off by far more."""
FP8_TOLERANCE = 0.25
"""The same where frozen weights are multiplied in 8 bits. Over layers such errors add up: 0.59 of the largest logit
after 32 layers of random weights (an 8B shape on an H200)."""
FP8_LAYERS = 8
"""Up to so many layers the logits may be off by twice the tolerance, then by the root of their number."""


def find_difference(model: nn.Module, decoder: Decoder, autocast: torch.dtype | None) -> Text | None:
    """Return what `decoder` computes otherwise than `model`, whose arithmetic it took over, or None.

    Random state, gradients, adapters and training mode are left as found. A kernel that fails raises.
    """
    device = decoder.device
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with torch.random.fork_rng(devices=devices), evaluation_mode(model), _stirred(decoder):
        for kind, layer in _kinds(decoder).items():
            found = _compare_layer(decoder, layer, autocast)
            if found is not None:
                name, error = found
                return text("model.decoder.mismatch", layer=kind, part=name, error=error)
        error, most = _compare_model(model, decoder, autocast), 2 * _tolerance(decoder, autocast)
        if not decoder.layers[0].qkv.weights.exact:
            most *= max(1.0, len(decoder.layers) / FP8_LAYERS) ** 0.5
        if not error <= most:
            return text("model.decoder.mismatch", layer=len(decoder.layers), part="logits", error=error)
    return None


def _tolerance(decoder: Decoder, autocast: torch.dtype | None) -> float:
    weights = decoder.layers[0].qkv.weights
    if not weights.exact:
        return FP8_TOLERANCE
    return TOLERANCE.get(autocast or weights.dtype, TOLERANCE[torch.float32])


@contextmanager
def _stirred(decoder: Decoder) -> Iterator[None]:
    """Random numbers in every adapter inside: fresh ones are half zeros, through which no gradient flows."""
    before, gradients = decoder.store.weights.clone(), decoder.store.gradients.clone()
    generator = torch.Generator(decoder.device).manual_seed(0)
    decoder.store.weights.normal_(0.0, 0.02, generator=generator)
    decoder.note_change()
    try:
        yield
    finally:
        decoder.store.weights.copy_(before)
        decoder.store.gradients.copy_(gradients)
        decoder.note_change()


def _kinds(decoder: Decoder) -> dict[int, Layer]:
    """Return one layer of each kind: modules of equal classes, shapes and constants need one proof."""
    first: dict[tuple, int] = {}
    for number, layer in enumerate(decoder.layers):
        spec = layer.spec
        constants = (spec.activation, spec.scale, spec.window, spec.softcap, spec.rotary, spec.head_dim)
        shapes = tuple(
            (group.weights.sizes, group.inputs, group.rank, group.dropout) for group in layer.groups
        )
        parts = tuple(type(part) for part in spec.module.modules())
        first.setdefault((constants, shapes, parts), number)
    return {number: decoder.layers[number] for number in first.values()}


def _compare_layer(decoder: Decoder, layer: Layer, autocast: torch.dtype | None) -> tuple[str, float] | None:
    """Return the first quantity that differs too much, with its error."""
    dtype, device = layer.qkv.weights.dtype, decoder.device
    generator = torch.Generator().manual_seed(0)
    x, dy = (
        torch.randn(TOKENS, decoder.spec.hidden_size, generator=generator).to(device, dtype) for _ in range(2)
    )
    adapters = [
        p for group in layer.groups for part in group.parts for p in (part.a, part.b) if p is not None
    ]
    documents = Documents.of((TOKENS,), device)
    rows = replace(decoder.make_rows(documents), mlp_rows=0)  # in one portion, since all of it is kept, too
    theirs = _run_stock(layer, x, dy, rows.tables[layer.spec.rotary], adapters, autocast)
    names = ["y", "dx", *(f"adapter {i}" for i in range(len(adapters)))]
    for keep in ("all", "input"):
        decoder.store.gradients.zero_()
        y, kept = layer.forward(x, rows, decoder.kernels, keep)
        wide = layer.down.widen_gradient(TOKENS)
        wide[:, : x.shape[1]] = dy
        dx = layer.backward(kept, [wide], rows, decoder.kernels)[:, : x.shape[1]]
        ours = [y, dx, *(decoder.store.gradient(p) for p in adapters)]
        for name, mine, stock in zip(names, ours, theirs, strict=True):
            error = relative_error(mine, stock)
            if not error <= _tolerance(decoder, autocast):
                return name, error
    return None


def _run_stock(
    layer: Layer, x: Tensor, dy: Tensor, table: tuple[Tensor, Tensor], adapters: list[nn.Parameter],
    autocast: torch.dtype | None,
) -> list[Tensor]:  # fmt: skip
    """Return y, dx and the adapters' gradients by the model's own code and autograd."""
    module, count = layer.spec.module, x.shape[0]
    place = torch.arange(count, device=x.device)
    ahead = place[None, :] > place[:, None]
    if layer.spec.window:
        ahead |= place[None, :] <= place[:, None] - layer.spec.window
    mask = torch.zeros(1, 1, count, count, dtype=x.dtype, device=x.device)
    mask.masked_fill_(ahead, torch.finfo(x.dtype).min)
    start = x.clone().requires_grad_()
    embeddings = tuple(one[:count].to(x.dtype)[None] for one in table)
    with torch.enable_grad(), torch.autocast(x.device.type, dtype=autocast, enabled=autocast is not None):
        y = module(start[None], attention_mask=mask, position_ids=place[None], position_embeddings=embeddings)
        y = (y[0] if isinstance(y, tuple) else y)[0]
        gradients = torch.autograd.grad(y, [start, *adapters], dy.to(y.dtype))
    return [y.detach(), *gradients]


@torch.no_grad()
def _compare_model(model: nn.Module, decoder: Decoder, autocast: torch.dtype | None) -> float:
    """Return the difference of the logits of a few tokens, as a share of their largest value."""
    config = model.config.get_text_config()
    ids = torch.arange(2, 10, device=decoder.device).remainder(config.vocab_size)
    with torch.autocast(decoder.device.type, dtype=autocast, enabled=autocast is not None):
        stock = model(input_ids=ids[None], use_cache=False).logits[0].float()
    rows = decoder.make_rows(Documents.of((len(ids),), decoder.device))
    logits = decoder.logits(decoder.hidden(ids, rows))
    return relative_error(logits, stock) if logits.shape == stock.shape else float("nan")
