"""fp32 weights held in 16 bits, too, on a processor: rows are multiplied as exactly, by half the bytes.

    Y = sum_c (X_c s) (W_c / s)^T        s a power of two, c some columns

Most models are stored in bfloat16 or float16, so that 11 bits hold each of their fp32 weights; s moves the largest to
the top of float16's range, which is 40 powers of two wide. FBGEMM's product opens them in registers and multiplies and
adds in fp32: what differs from the product of fp32 weights is the order of the sum. Weights that 11 bits do not hold,
trained ones in fp32 say, stay as they are.

A step of few rows takes the time in which weights are read. One core of an EPYC with AVX-512, 576 inputs by 3,072
outputs (torch 2.13, 2026-11-27): 63 us for one row, where oneDNN takes 113 and MKL 216; 251 for 16 (618, 957); 7.6 ms
for 512 (8.1, 18.2). Packing takes 1.2 s a gigabyte of fp32.

FBGEMM adds a sum's products one after another, which rounds the more the longer it is: 4.3e-7 of the result's spread
for 576 columns, 7.0e-7 for 1,536, where oneDNN has 3.8 and 5.2, MKL 2.5 (root mean square, bfloat16 weights). Sums of
at most 384 come to 3.1 and 3.5, and cost some 5 us a part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from studio.models.decoder.row_products import multiply_rows

TOP = 14
"""The largest weight is moved below 2 to this power; float16 ends at 2^16, and fine numbers at 2^-24."""
NEGLIGIBLE = 2.0**-32
"""A share of its row's largest weight: so much less than fp32 rounds a sum by (2^-24) may get lost of a weight."""

SUMMED = 384
"""Columns of one sum."""
TRIED = 32
"""Rows that are looked at first: of trained fp32 weights no row fits."""


@dataclass(frozen=True, slots=True)
class HalfWeights:
    """Weights (out, in) of linears that read the same rows, below each other, packed by FBGEMM."""

    packed: tuple[torch.ScriptObject, ...]
    """Of columns that follow each other."""
    widths: tuple[int, ...]
    """How many each has."""
    scale: Tensor
    """() fp32 s of the file's docstring."""
    mark: Tensor
    """What read_mark() said of the fp32 weights."""

    def multiply(self, x: Tensor) -> Tensor:
        """Return (T, out) fp32 of rows x (T, in) fp32."""
        scaled = x * self.scale
        if len(self.packed) == 1:
            return torch.ops.quantized.linear_dynamic_fp16(scaled, self.packed[0])
        first, *others = map(
            torch.ops.quantized.linear_dynamic_fp16, scaled.split(self.widths, 1), self.packed
        )
        for one in others:
            first += one
        return first

    def still(self, weights: Sequence[Tensor]) -> bool:
        """Return whether `weights` are what was packed: it reads them once, as a step without this does."""
        return torch.equal(self.mark, read_mark(weights))


def read_mark(weights: Sequence[Tensor]) -> Tensor:
    """Return sums (out,) of weights (out, in) of one width, each weight times a number of its own column."""
    columns = torch.arange(1, weights[0].shape[1] + 1, dtype=torch.float32).sqrt_()[None]
    return torch.cat(
        [multiply_rows(columns, weight, columns.new_empty(1, len(weight)))[0] for weight in weights]
    )


def pack(weights: Sequence[Tensor]) -> HalfWeights | None:
    """Return fp32 weights (out, in) of one width in 16 bits, None where these do not hold them."""
    whole = weights[0] if len(weights) == 1 else torch.cat(list(weights))
    most = float(whole.abs().amax())
    if not 0.0 < most < math.inf:
        return None
    scale = 2.0 ** (math.frexp(most)[1] - TOP)
    if not (_holds(whole[:TRIED] / scale) and _holds(scaled := whole / scale)):
        return None
    parts = torch.tensor_split(scaled, -(-scaled.shape[1] // SUMMED), dim=1)
    packed = tuple(torch.ops.quantized.linear_prepack_fp16(part.contiguous(), None) for part in parts)
    return HalfWeights(
        packed, tuple(part.shape[1] for part in parts), torch.tensor(scale), read_mark(weights)
    )


def _holds(scaled: Tensor) -> bool:
    """Return whether float16 holds each of these weights (out, in), but for what is negligible in its row."""
    largest, lost = (one.abs().amax(1) for one in (scaled, scaled.half().float().sub_(scaled)))
    return not bool((lost > largest * NEGLIGIBLE).any())


@cache
def has_products() -> bool:
    """Return whether this PyTorch has FBGEMM's product of fp32 rows by float16 weights, and it is right here."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    if not all(hasattr(torch.ops.quantized, name) for name in ("linear_prepack_fp16", "linear_dynamic_fp16")):
        return False
    x, weight = torch.linspace(-1, 1, 66).view(2, 33), torch.arange(-60.0, 39.0).view(3, 33)
    try:
        found = pack([weight])
        return found is not None and torch.allclose(found.multiply(x), x @ weight.T, rtol=1e-5, atol=1e-4)
    except RuntimeError:  # the name is there, a build for this processor is not
        return False
