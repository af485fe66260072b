"""Matrix products whose factors have 16 bits and whose sums have 32."""

from __future__ import annotations

import torch
from torch import Tensor


def multiply_into(a: Tensor, b: Tensor, out: Tensor, *, add: bool, scale: float = 1.0) -> None:
    """out = scale a b, plus what `out` holds if `add`; 16-bit factors are multiplied and summed in out's float32."""
    options = {"beta": float(add), "alpha": scale, "out": out}
    if a.dtype != out.dtype and a.device.type == "cuda" and torch.version.hip is None:
        options["out_dtype"] = out.dtype
    else:
        # Only CUDA's matrix library gives float32 results of 16-bit factors.
        a, b = a.to(out.dtype), b.to(out.dtype)
    torch.addmm(out, a, b, **options)
