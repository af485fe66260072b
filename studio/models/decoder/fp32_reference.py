"""One layer in fp32: the model's own modules as the truth, and our arithmetic beside them, where nothing is rounded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from studio_kernels import nf4
from studio_kernels.attention_backends import MATH
from studio_kernels.dispatch import Kernels
from torch import Tensor, nn
from torch.nn import functional

from studio.models.decoder.alt_up_layer import AltUpLayer
from studio.models.decoder.blocks.foreign_mixer import ForeignMixer
from studio.models.decoder.blocks.routed_mlp import RoutedMLP, widen_routed
from studio.models.decoder.frozen_weights import FrozenWeights, OpenedWeights
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.layer import Layer
from studio.models.decoder.spec import DecoderSpec
from studio.models.nf4_experts import is_experts
from studio.models.norm_probe import Norm

EXPERTS_FORM = "_experts_implementation"
"""Where a config says by which of transformers' ways experts multiply."""


def widen(
    module: nn.Module,
    dtype: torch.dtype,
    twins: dict[int, nn.Parameter],
    to: torch.dtype = torch.float32,
) -> nn.Module:
    """Return `module` with parameters in `to`, all else shared; 4-bit ones as they are stored, rounded to `dtype`.

    `twins` gets the parameters by the id of the one whose place they take.
    """
    state = getattr(module._parameters.get("weight"), "quant_state", None)
    if state is not None:
        return _open(module, dtype, to)
    twin = copy.copy(module)
    parameters = dict(module.named_parameters(recurse=False))
    wide = {name: nn.Parameter(p.detach().to(to), p.requires_grad) for name, p in parameters.items()}
    twins.update({id(p): wide[name] for name, p in parameters.items()})
    twin.__dict__["_parameters"] = dict(module._parameters) | wide
    twin.__dict__["_modules"] = {
        name: None if child is None else widen(child, dtype, twins, to)
        for name, child in module._modules.items()
    }
    if (
        to == torch.float64
        and is_experts(module)
        and getattr(module.config, EXPERTS_FORM, "") == "grouped_mm"
    ):
        twin.config = copy.copy(module.config)  # PyTorch's grouped product has no fp64
        setattr(twin.config, EXPERTS_FORM, "eager")
    return twin


def _open(module: nn.Module, dtype: torch.dtype, to: torch.dtype) -> nn.Linear:
    weight, bias = module.weight, module.bias
    linear = nn.Linear(module.in_features, module.out_features, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(_open_weight(weight).to(dtype).to(to), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().to(dtype).to(to), requires_grad=False)
    return linear


def _open_weight(weight: nn.Parameter) -> Tensor:
    """Return a 4-bit weight in fp32: on a card as the library opens it.

    On a processor with AVX-512 bitsandbytes 0.50.2 cuts bits off where it should round to bf16, and opens weights whose
    rows are no multiple of its blocks wrongly (64 x 96: off by 2.0 where NF4 is off by 0.45). The twin is right.
    """
    if weight.device.type != "cuda":
        out = torch.empty(weight.quant_state.shape, dtype=torch.float32, device=weight.device)
        return nf4.reference_forward(nf4.Nf4.of(weight.quant_state, weight.data), out)
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state)


class Wide:
    """A layer's module in fp32, or in fp64, which its norms leave for fp32 and come back to."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, to: torch.dtype = torch.float32) -> None:
        self.source = module
        """What it is a twin of."""
        self._twins: dict[int, nn.Parameter] = {}
        self._module = widen(module, dtype, self._twins, to)

    def part(self, name: str) -> nn.Module:
        """Return the twin of one of its modules."""
        return self._module.get_submodule(name)

    def twin(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what stands in the place of one of its parameters."""
        return self._twins[id(parameter)]

    def forward(self, x: Tensor, given: dict[str, Any]) -> Tensor:
        """Return y (D, S, H)."""
        return _first(self._module(x, **given))

    def run(
        self, x: Tensor, dy: Tensor, given: dict[str, Any], parameters: list[nn.Parameter]
    ) -> list[Tensor]:
        """Return y, dx and the gradients of `parameters`, named by the layer's own, and of tensors in `given`."""
        return run_module(self._module, x, dy, given, [self._twins.get(id(p), p) for p in parameters])


def run_module(
    module: nn.Module,
    x: Tensor,  # (D, S, H)
    dy: Tensor,  # (D, S, H)
    given: dict[str, Any],
    parameters: list[nn.Parameter],
) -> list[Tensor]:
    """Return y, dx and the gradients of `parameters` by autograd; `given`: what the layer takes besides x."""
    start = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        y = _first(module(start, **given))
        gradients = torch.autograd.grad(y, [start, *parameters], dy.to(y.dtype))
    return [y.detach(), *gradients]


def run_finer(
    module: nn.Module,
    dtype: torch.dtype,
    x: Tensor,  # (D, S, H)
    dy: Tensor,  # (D, S, H)
    given: dict[str, Any],
    parameters: list[nn.Parameter],
) -> list[Tensor]:
    """Return the truth in fp64: where attention is peaked and activations are large, equal arithmetic is not equal.

    Layer 0 of qwen2.5-coder-0.5b on an H100: our fp32 and the model's own were 3.6e-4 apart, in the last bits of sums
    amplified by its softmax. Then the model's own fp32, held against fp64, says what rounding does there.
    """
    wide = Wide(module, dtype, torch.float64)
    with torch.enable_grad():  # through the casts, to what of `given` has gradients
        doubled = _double(given)
    return wide.run(x.double(), dy.double(), doubled, parameters)


def _double(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.double() if given.is_floating_point() else given
    if isinstance(given, (tuple, list)):
        return type(given)(map(_double, given))
    return {name: _double(value) for name, value in given.items()} if isinstance(given, dict) else given


def _first(y: Tensor | tuple) -> Tensor:
    return y[0] if isinstance(y, tuple) else y


class WideWeights(FrozenWeights):
    """fp32 copy of a group's matrix, as it is multiplied by."""

    def __init__(self, base: FrozenWeights, kernels: Kernels) -> None:
        self.base = base
        self.inputs, self.outputs, self.tail = base.inputs, base.outputs, base.tail
        self.sizes, self.dtype, self.device = base.sizes, torch.float32, base.device
        self._kernels = kernels
        self._matrix = base.matrix(kernels).float()

    def note_change(self) -> None:
        """See Weights: rows that are scaled are so in fp32."""
        if isinstance(self.base, OpenedWeights) and self.base.row_scale is not None:
            places = self._matrix[: self.outputs, : self.inputs].split(self.sizes)
            for place, weight in zip(places, self.base.open_plain(self._kernels), strict=True):
                place.copy_(weight)
            self._matrix[: self.outputs, : self.inputs].mul_(self.base.row_scale[:, None])

    def matrix(self, kernels: Kernels) -> Tensor:
        """See Weights."""
        return self._matrix

    def tails(self) -> tuple[Tensor, Tensor]:
        """See Weights."""
        return self._matrix[self.outputs :, : self.inputs], self._matrix[: self.outputs, self.inputs :]

    def release(self) -> None:
        """See Weights: they were never anybody's."""


class Fp8LikeWeights(WideWeights):
    """The same rounded to 8 bits and multiplied in fp32: what correct products in 8 bits give, and no more."""

    def __init__(self, base: FrozenWeights, kernels: Kernels) -> None:
        super().__init__(base, kernels)
        part = self._matrix[: self.outputs, : self.inputs]
        self._rows, self._columns = self._round(part), self._round(part.T.contiguous()).T

    def _round(self, x: Tensor) -> Tensor:
        """Return what is left of `x` in 8 bits with a scale a row."""
        x8, scale = self._kernels.fp8.forward(x)
        return x8.float() * scale

    def product(self, x: Tensor, kernels: Kernels, *, add: Tensor | None, out: Tensor | None) -> Tensor:
        """See Weights."""
        y = self._round(x[:, : self.inputs]) @ self._rows.T
        y = y.addmm_(x[:, self.inputs :], self.tails()[1].T) if self.tail else y
        y = y if add is None else y.add_(add)
        return y if out is None else out.copy_(y)

    def product_apart(self, x: Tensor, u: Tensor, kernels: Kernels, *, add: Tensor | None) -> Tensor:
        """See Weights."""
        return self.product(torch.cat((x, u), 1), kernels, add=add, out=None)

    def product_back(self, dy: Tensor, kernels: Kernels, *, out: Tensor) -> Tensor:
        """See Weights."""
        out.copy_(self._round(dy[:, : self.outputs]) @ self._columns)
        return out.addmm_(dy[:, self.outputs :], self.tails()[0]) if dy.shape[1] > self.outputs else out


def widen_layer(layer: Layer, kernels: Kernels, wide_kernels: Kernels, *, fp8: bool = False) -> Layer:
    """Return `layer` in fp32, from the matrices that it multiplies by; its gradients go to the same store.

    `kernels` open its weights; it is computed by `wide_kernels`. `fp8`: with products rounded to 8 bits.
    """
    twin = copy.copy(layer)
    twin.attention, twin.mlp = copy.copy(layer.attention), copy.copy(layer.mlp)
    blocks = []
    if isinstance(layer.mlp, RoutedMLP):
        twin.mlp = widen_routed(
            layer.mlp, [_widen_group(group, kernels, wide_kernels, fp8) for group in layer.mlp.groups]
        )
    elif layer.mlp is not None:
        blocks.append((twin.mlp, ("gate_up", "down")))
    if isinstance(twin.attention, ForeignMixer):
        _widen_mixer(twin.attention, layer.attention.outer.dtype)
    elif layer.attention is not None:
        blocks.append((twin.attention, twin.attention.group_names))
        twin.attention.kernel = replace(layer.attention.kernel, packed=MATH, equal=None)
    norms = {
        name: value for name in layer.spec.__slots__ if isinstance(value := getattr(layer.spec, name), Norm)
    }
    wide = {
        name: replace(norm, module=widen(norm.module, norm.weight.dtype, {})) for name, norm in norms.items()
    }
    if isinstance(layer, AltUpLayer):
        twin.laurel, twin.alt_up = copy.copy(layer.laurel), copy.copy(layer.alt_up)
        twin.alt_up.outer = replace(layer.alt_up.outer, dtype=torch.float32)
        blocks.append((twin.laurel, twin.laurel.group_names))
    if layer.layer_input is not None:
        twin.layer_input = copy.copy(layer.layer_input)
        blocks.append((twin.layer_input, twin.layer_input.group_names))
    for block, names in blocks:
        for name in names:
            setattr(block, name, _widen_group(getattr(block, name), kernels, wide_kernels, fp8))
    spec = replace(layer.spec, **wide)
    for block in twin.blocks:
        block.spec = spec
    twin._version = -1
    return twin


def _widen_mixer(block: ForeignMixer, dtype: torch.dtype) -> None:
    """Let `block` run its module in fp32; its gradients go where they went."""
    twins: dict[int, nn.Parameter] = {}
    block.module = widen(block.module, dtype, twins)
    block.trained = tuple((twins[id(parameter)], place) for parameter, place in block.trained)
    block.outer = replace(block.outer, dtype=torch.float32)


def _widen_group(group: LinearGroup, kernels: Kernels, wide_kernels: Kernels, fp8: bool) -> LinearGroup:
    twin = copy.copy(group)
    base = group.weights if group.weights.exact else group.weights.base
    twin.weights = Fp8LikeWeights(base, wide_kernels) if fp8 else WideWeights(base, kernels)
    twin.bias = None if group.bias is None else group.bias.float()
    return twin


@contextmanager
def without_tf32() -> Iterator[None]:
    """Multiply fp32 matrices in full inside: TF32 keeps 10 bits, as many as fp16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


HEAD_COLUMNS = 8192
"""Rows of the head that are held in fp32 at once."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the last norm and the head make of N rows."""

    logits: Tensor
    """(N, V)"""
    dx: Tensor
    """(N, H)"""
    loss: Tensor
    """(), the sum."""
    of_norm: Tensor | None
    """(H,) the gradient of the norm's weight, None where it is frozen; likewise of the head's (V, H)."""
    of_head: Tensor | None
    of_rows: Tensor | None
    """(K, H) of the head's rows that alone are trained."""


def run_head(spec: DecoderSpec, x: Tensor, targets: Tensor, scale: float, *, wide: bool) -> Head:
    """Return the Head of rows x (N, H) by the model's own last norm and head; gradients of `scale` times the loss.

    `wide`: in fp32, portions of the head one after another: as a whole it takes 2 GB in an 8B model.
    """
    norm = widen(spec.norm.module, x.dtype, {}) if wide else spec.norm.module
    start, weight = x.detach().clone().requires_grad_(), spec.head.weight
    parts = [part.detach() for part in weight.split(HEAD_COLUMNS if wide else spec.head.out_features)]
    with torch.enable_grad():
        normal = norm(start)
        rows = normal.detach()
        logits = torch.cat([functional.linear(rows, part.to(x.dtype)) for part in parts], 1).requires_grad_()
        capped = logits.float() * spec.logit_scale
        if spec.softcap:
            capped = spec.softcap * torch.tanh(capped / spec.softcap)
        loss = functional.cross_entropy(capped, targets, reduction="sum")
        (dlogits,) = torch.autograd.grad(loss * scale, logits)
        columns = dlogits.split([part.shape[0] for part in parts], 1)
        dnormal = sum(torch.mm(one, part.to(one.dtype)) for one, part in zip(columns, parts, strict=True))
        leaves = [start, norm.weight] if spec.norm.weight.requires_grad else [start]
        dx, *of_norm = torch.autograd.grad(normal, leaves, dnormal.to(normal.dtype))
    of_head = of_rows = None
    if weight.requires_grad:
        of_head = torch.cat([torch.mm(one.T, rows.to(one.dtype)) for one in columns])
    if spec.head_rows is not None:
        of_rows = torch.mm(dlogits[:, spec.head_rows.ids].T, rows.to(dlogits.dtype))
    return Head(capped.detach(), dx, loss.detach(), next(iter(of_norm), None), of_head, of_rows)


def run_embedding(spec: DecoderSpec, token_ids: Tensor, dx: Tensor, *, wide: bool) -> Tensor:
    """Return the gradient (V, H) of the embedding's table, in which `token_ids` (T,) were looked up, by autograd."""
    module = widen(spec.embedding, dx.dtype, {}) if wide else spec.embedding
    with torch.enable_grad():
        x = module(token_ids) * spec.embedding_scale
        return torch.autograd.grad(x, module.weight, dx.to(x.dtype))[0]


def run_embedding_rows(spec: DecoderSpec, token_ids: Tensor, dx: Tensor, *, wide: bool) -> Tensor:
    """Return the gradients (K, H) of the embedding's rows that alone are trained, likewise."""
    rows, padding = spec.embedding_rows, spec.embedding.padding_idx
    met, places = token_ids.unique(return_inverse=True)
    module = copy.copy(spec.embedding)
    table = rows.table.detach()[met]
    module._parameters = {"weight": nn.Parameter(table.to(dx.dtype) if wide else table)}
    module.padding_idx = None
    with torch.enable_grad():
        x = module(places) * spec.embedding_scale
        (found,) = torch.autograd.grad(x, module.weight, dx.to(x.dtype))
    hits = (rows.ids[:, None] == met[None]) & (rows.ids != (-1 if padding is None else padding))[:, None]
    return torch.where(hits.any(1)[:, None], found[hits.int().argmax(1)], 0.0)
