"""Frozen weights of experts in 4 bits: a stack of matrices of which each is opened when its expert has tokens.

transformers holds the experts of a layer as parameters of three dimensions, which bitsandbytes' Linear4bit cannot be.
E: experts   R, C: rows and columns of one matrix   S: pairs of a token and an expert of its
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

IMPLEMENTATION = "nf4_stack"
"""What transformers' experts interface calls apply_experts()."""
STACKS = ("gate_up_proj", "up_proj", "down_proj")
"""The parameters of a module of experts that its forward multiplies with."""
BLOCK, NESTED_BLOCK = 64, 256
"""Weights that share a scale of one byte; scales that share one of four bytes (Dettmers et al., 2023)."""


class Nf4Stack(nn.Module):
    """E frozen matrices (R, C) in NF4 with double quantisation, each packed by itself in bitsandbytes' layout."""

    packed: Tensor  # (E, ceil(R C / 2)) uint8
    scales: Tensor  # (E, ceil(R C / 64)) uint8
    nested: Tensor  # (E, ceil(R C / 16384)) fp32
    offsets: Tensor  # (E,) fp32, the mean that was taken from the scales

    def __init__(self, weight: Tensor) -> None:
        """Quantise `weight` (E, R, C) in fp32, bf16 or fp16 where it lies, one matrix after another."""
        # Here and in open(), so that list_stacks() can be asked where bitsandbytes is not installed.
        from bitsandbytes.functional import create_dynamic_map, get_4bit_type, quantize_4bit

        super().__init__()
        self.shape, self.dtype = tuple(weight.shape), weight.dtype
        parts: dict[str, Tensor] = {}
        for expert, matrix in enumerate(weight):
            packed, state = quantize_4bit(matrix.contiguous(), compress_statistics=True, quant_type="nf4")
            one = {
                "packed": packed.view(-1),
                "scales": state.absmax,
                "nested": state.state2.absmax,
                "offsets": state.offset,
            }
            for name, part in one.items():
                if name not in parts:
                    parts[name] = part.new_empty((len(weight), *part.shape))
                parts[name][expert] = part
        for name, part in parts.items():
            self.register_buffer(name, part)
        self.register_buffer("_code", get_4bit_type("nf4", device=weight.device), persistent=False)
        self.register_buffer("_nested_code", create_dynamic_map().to(weight.device), persistent=False)

    @property
    def size_bytes(self) -> int:
        """Return what the weights take, their scales included."""
        return sum(part.nbytes for part in (self.packed, self.scales, self.nested, self.offsets))

    def open(self, expert: int, dtype: torch.dtype) -> Tensor:
        """Return the matrix (R, C) of one expert in `dtype`."""
        from bitsandbytes.functional import QuantState, dequantize_4bit

        nested = QuantState(
            absmax=self.nested[expert], code=self._nested_code, blocksize=NESTED_BLOCK, dtype=torch.float32
        )
        state = QuantState(
            absmax=self.scales[expert],
            shape=torch.Size(self.shape[1:]),
            code=self._code,
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=dtype,
            offset=self.offsets[expert],
            state2=nested,
        )
        return dequantize_4bit(self.packed[expert].view(-1, 1), state)

    def open_all(self, dtype: torch.dtype) -> Tensor:
        """Return all matrices (E, R, C) in `dtype`."""
        return torch.stack([self.open(expert, dtype) for expert in range(self.shape[0])])

    def __getitem__(self, expert: Any) -> Tensor:
        """Return the matrix of one expert in the dtype that it was quantised from."""
        return self.open(int(expert), self.dtype)

    def multiply(self, rows: Tensor, expert: int, *, transposed: bool) -> Tensor:
        """Return rows (S, C) W^T of one expert's W (R, C), or rows (S, R) W where it is stored `transposed`.

        Differentiable in `rows`. Nothing is kept for that: the matrix is opened again.
        """
        kind = rows.device.type
        if torch.is_autocast_enabled(kind):
            rows = rows.to(torch.get_autocast_dtype(kind))
        return _Product.apply(rows, self, expert, transposed)


class _Product(torch.autograd.Function):
    """y = x W^T, dx = dy W; or y = x W, dx = dy W^T."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, stack: Nf4Stack, expert: int, transposed: bool) -> Tensor:
        ctx.stack, ctx.expert, ctx.transposed = stack, expert, transposed
        weight = stack.open(expert, rows.dtype)
        with torch.autocast(rows.device.type, enabled=False):
            return rows @ (weight if transposed else weight.T)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        weight = ctx.stack.open(ctx.expert, slope.dtype)
        with torch.autocast(slope.device.type, enabled=False):
            return slope @ (weight.T if ctx.transposed else weight), None, None, None


def apply_experts(
    self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Return what the experts of `self` make of hidden_states (T, H): the function of transformers' experts interface.

    `top_k_index`, `top_k_weights`: (T, k), the experts of each token and their weights. Experts without tokens stay
    closed. `self` says of itself, as its own forward assumes: has_gate, has_bias, is_transposed, _apply_gate.
    """
    tokens, count = top_k_index.shape
    order = torch.argsort(top_k_index.reshape(-1), stable=True)
    rows = hidden_states[order // count].split(
        numbers := torch.bincount(top_k_index.reshape(-1), minlength=self.num_experts).tolist()
    )
    first = "gate_up_proj" if self.has_gate else "up_proj"
    gate = self._apply_gate if self.has_gate else self.act_fn
    results = []
    for expert, number in enumerate(numbers):
        if number:
            inner = gate(_project(self, first, rows[expert], expert))
            results.append(_project(self, "down_proj", inner, expert))
    if not results:
        return torch.zeros_like(hidden_states)
    product = torch.cat(results)
    if getattr(self, "has_post_expert_norm", False):  # transformers 5.17 has none
        product = self.post_expert_norm(product)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    weighted = product[back].view(tokens, count, -1) * top_k_weights.unsqueeze(-1)
    return weighted.sum(dim=1).to(hidden_states.dtype)


def _project(experts: nn.Module, name: str, rows: Tensor, expert: int) -> Tensor:
    product = getattr(experts, name).multiply(rows, expert, transposed=experts.is_transposed)
    return product + getattr(experts, f"{name}_bias")[expert] if experts.has_bias else product


def is_experts(module: nn.Module) -> bool:
    """Whether the forward of `module` goes through transformers' experts interface, which marks it."""
    return hasattr(module, "is_transposed") and hasattr(module, "has_gate") and hasattr(module, "has_bias")


def list_stacks(model: nn.Module) -> list[tuple[str, Nf4Stack]]:
    """Return the stacks inside `model` with the names that their parameters had."""
    return [(name, part) for name, part in model.named_modules() if isinstance(part, Nf4Stack)]


def register_implementation() -> None:
    """Let transformers' experts interface know apply_experts()."""
    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, apply_experts)
