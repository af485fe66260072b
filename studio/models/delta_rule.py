"""The gated delta rule of transformers' mixers (Qwen3.5, Qwen3-Next, OLMo hybrid) by the op `gated_delta`.

Such a mixer calls the rule by the name of a function of its file. Its own `forward` is borrowed with another function
under that name: the same code on the same module, and neither the module nor its class nor its file is changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from studio_kernels.gated_delta import DTYPES
from studio_kernels.op import Implementation
from studio_kernels.row_chunks import Chunks
from torch import Tensor, nn

RULE = "torch_chunk_gated_delta_rule"
"""What transformers' files call the function that goes through a text in chunks."""
ARGUMENTS = ("query", "key", "value", "g", "beta")
"""Its first ones."""
WIDEST_HEAD = 256
"""Dimensions of a key: a program holds a state's whole columns."""


class DeltaRule:
    """Computes `stock`, that function of a file, by `op` where nothing is asked for that only generating needs."""

    def __init__(self, op: Implementation, stock: Callable) -> None:
        self._op, self._stock = op, stock
        self._asked: tuple = ()
        self._chunks: Chunks | None = None

    def __call__(
        self,
        query: Tensor,  # (documents, tokens, key heads, D)
        key: Tensor,
        value: Tensor,  # (documents, tokens, value heads, E)
        g: Tensor,  # (documents, tokens, value heads)
        beta: Tensor,
        *arguments: Any,
        use_qk_l2norm_in_kernel: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return o, and None in the place of the last state."""
        running = [options.get(name) for name in ("initial_state", "cu_seqlens", "output_final_state")]
        # Keys of any length make entries that 16 bits do not hold.
        fits = query.dtype in DTYPES and key.shape[-1] <= WIDEST_HEAD and use_qk_l2norm_in_kernel
        if arguments or any(one is not None and one is not False for one in running) or not fits:
            options["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
            return self._stock(query, key, value, g, beta, *arguments, **options)
        rows = [part.flatten(0, 1).contiguous() for part in (query, key, value, g, beta)]
        out = self._op(*rows, self._cut(key), scale=key.shape[-1] ** -0.5)
        return out.unflatten(0, key.shape[:2]), None

    def _cut(self, key: Tensor) -> Chunks:
        """Return the chunks of a batch's rows; those of the last batch are kept."""
        asked = (*key.shape[:2], key.device)
        if asked != self._asked:
            self._chunks, self._asked = Chunks((key.shape[1],) * key.shape[0], key.device), asked
        return self._chunks


def has_delta_rule(module: nn.Module) -> bool:
    """Return whether `module` calls the rule by that name, with arguments that we know."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    rule = getattr(forward, "__globals__", {}).get(RULE)
    if code is None or RULE not in code.co_names or not callable(rule):
        return False
    # A wrapper around forward may move the weights of its parts, as accelerate's does.
    moved = any(hasattr(part, "_hf_hook") for part in module.modules())
    return not moved and tuple(inspect.signature(rule).parameters)[: len(ARGUMENTS)] == ARGUMENTS


def borrow_forward(module: nn.Module, op: Implementation) -> Callable[..., Any]:
    """Return the `forward` of `module`'s class, to be called with a module, that computes the rule by `op`."""
    stock = inspect.unwrap(type(module).forward)
    names = {**stock.__globals__, RULE: DeltaRule(op, stock.__globals__[RULE])}
    forward = FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    forward.__kwdefaults__ = stock.__kwdefaults__
    return forward


def width_of(module: nn.Module) -> int:
    """Return the width of what a mixer reads."""
    return next(part.in_features for part in module.modules() if hasattr(part, "in_features"))
