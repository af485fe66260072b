"""Arithmetic in float64 throughout: what casts to float32 inside, norms, rotations and softmax, casts to float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Widened(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is torch.Tensor.float:
            return arguments[0].double()
        options = {name: _widen(value) for name, value in (options or {}).items()}
        return function(*map(_widen, arguments), **options)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def in_double() -> Iterator[None]:
    """Inside, no tensor is made in float32 or cast to it, by whose code ever."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)
