"""Frozen weights of experts in 4 bits: a stack of matrices of which each is opened when its expert has tokens.

transformers holds the experts of a layer as parameters of three dimensions, which bitsandbytes' Linear4bit cannot be.
E: experts   R, C: rows and columns of one matrix   S: pairs of a token and an expert of its
"""

from __future__ import annotations

from typing import Any

import torch
from studio_kernels.nf4 import BLOCK, Nf4, reference_forward
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

IMPLEMENTATION = "nf4_stack"
"""What transformers' experts interface calls apply_experts()."""
STACKS = ("gate_up_proj", "up_proj", "down_proj")
"""The parameters of a module of experts that its forward multiplies with."""
NESTED_BLOCK = 256
"""Scales of one byte (of BLOCK weights each) that share one of four bytes (Dettmers et al., 2023)."""


class Nf4Stack(nn.Module):
    """E frozen matrices (R, C) in NF4 with double quantisation, one below the other in bitsandbytes' layout."""

    packed: Tensor  # (E R C / 2,) uint8
    scales: Tensor  # (ceil(E R C / 64),) uint8
    nested: Tensor  # (ceil(E R C / 16384),) fp32
    offset: Tensor  # () fp32, the mean that was taken from the scales

    def __init__(self, weight: Tensor) -> None:
        """Quantise `weight` (E, R, C) in fp32, bf16 or fp16 where it lies, one matrix after another."""
        # Here and in open(), so that list_stacks() can be asked where bitsandbytes is not installed.
        from bitsandbytes.functional import get_4bit_type, quantize_4bit, quantize_blockwise

        super().__init__()
        self.shape, self.dtype = tuple(weight.shape), weight.dtype
        self.adapters: tuple[tuple[Tensor, Tensor, float], ...] = ()
        """A (E, K, in), B (E, out, K) and scale of each adapter of rank K that joins in, while a wrapper says so."""
        # A matrix that ends inside a block (in tiny models alone) cannot be packed by itself.
        parts = weight if self._is_whole else weight.reshape(1, -1, self.shape[2])
        packed = torch.empty(weight.numel() // 2, dtype=torch.uint8, device=weight.device)
        absmax = torch.empty(-(-weight.numel() // BLOCK), dtype=torch.float32, device=weight.device)
        for matrix, place, largest in zip(
            parts, packed.chunk(len(parts)), absmax.chunk(len(parts)), strict=True
        ):
            one, state = quantize_4bit(matrix.contiguous(), compress_statistics=False, quant_type="nf4")
            place.copy_(one.view(-1))
            largest.copy_(state.absmax)
        offset = absmax.mean()
        scales, nested = quantize_blockwise(absmax.sub_(offset), blocksize=NESTED_BLOCK)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.register_buffer("nested", nested.absmax)
        self.register_buffer("offset", offset)
        self.register_buffer("_code", get_4bit_type("nf4", device=weight.device), persistent=False)
        self.register_buffer("_nested_code", nested.code.to(weight.device), persistent=False)

    @property
    def _is_whole(self) -> bool:
        """Whether every matrix begins with a block of its own."""
        return self.shape[1] * self.shape[2] % BLOCK == 0

    @property
    def size_bytes(self) -> int:
        """Return what the weights take, their scales included."""
        return sum(part.nbytes for part in (self.packed, self.scales, self.nested, self.offset))

    def as_nf4(self) -> Nf4:
        """Return the matrices (E R, C) as our kernels read them; they share their memory."""
        return Nf4(
            packed=self.packed,
            absmax=self.scales,
            code=self._code,
            nested_absmax=self.nested,
            nested_code=self._nested_code,
            offset=self.offset,
            block=BLOCK,
            nested_block=NESTED_BLOCK,
            shape=(self.shape[0] * self.shape[1], self.shape[2]),
            dtype=self.dtype,
        )

    def open(self, expert: int, dtype: torch.dtype) -> Tensor:
        """Return the matrix (R, C) of one expert in `dtype`; where that is wider than the stack's, rounded to that.

        On a processor by our twin: with AVX-512 bitsandbytes 0.50.2 opens rows wrongly that are no whole blocks
        (64 x 96: off by 2.0 where NF4 is off by 0.45).
        """
        count, rows, columns = self.shape
        first, last = (expert, expert + 1) if self._is_whole else (0, count)
        size = rows * columns
        blocks = torch.arange(first * size // BLOCK, -(-last * size // BLOCK), device=self.packed.device)
        inner = self._nested_code[self.scales[first * size // BLOCK : -(-last * size // BLOCK)].int()]
        scales = inner * self.nested[blocks // NESTED_BLOCK] + self.offset
        packed, shape = self.packed[first * size // 2 : last * size // 2], ((last - first) * rows, columns)
        if not packed.is_cuda:
            whole = Nf4(
                packed=packed, absmax=scales, code=self._code, block=BLOCK, shape=shape, dtype=self.dtype
            )
            weight = reference_forward(whole, torch.empty(shape, device=packed.device))
        else:
            from bitsandbytes.functional import QuantState, dequantize_4bit

            direct = dtype if dtype == self.dtype else torch.float32
            state = QuantState(
                absmax=scales, shape=torch.Size(shape), code=self._code, blocksize=BLOCK, quant_type="nf4",
                dtype=direct,
            )  # fmt: skip
            weight = dequantize_4bit(packed.view(-1, 1), state)
        weight = weight.view(last - first, rows, columns)[expert - first]
        return weight.to(self.dtype).to(dtype)

    def open_all(self, dtype: torch.dtype) -> Tensor:
        """Return all matrices (E, R, C) in `dtype`."""
        return torch.stack([self.open(expert, dtype) for expert in range(self.shape[0])])

    def __getitem__(self, expert: Any) -> Tensor:
        """Return the matrix of one expert in the dtype that it was quantised from."""
        return self.open(int(expert), self.dtype)

    def multiply(self, rows: Tensor, expert: int, *, transposed: bool) -> Tensor:
        """Return rows (S, C) W^T of one expert's W (R, C), or rows (S, R) W where it is stored `transposed`.

        Differentiable in `rows`. Nothing is kept for that: the matrix is opened again. With `adapters`, plus theirs.
        """
        kind = rows.device.type
        if torch.is_autocast_enabled(kind):
            rows = rows.to(torch.get_autocast_dtype(kind))
        product = _Product.apply(rows, self, expert, transposed)
        for a, b, scale in self.adapters:
            inner = rows @ a[expert].to(rows.dtype).T
            product = product + inner @ b[expert].to(rows.dtype).T * scale
        return product


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
