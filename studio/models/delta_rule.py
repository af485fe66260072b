"""The gated delta rule of transformers' mixers (Qwen3.5, Qwen3-Next, OLMo hybrid) by the op `gated_delta`.

Such a mixer calls the rule, and the short convolution before it, by names of functions of its file. Its own `forward`
is borrowed with other functions under these names, and called with a shallow copy of the module in which our ops stand
for its gated norm: the same code with the same weights, and neither the module nor its class nor its file is changed.
"""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

from studio_kernels.dispatch import Kernels
from studio_kernels.gated_delta import DTYPES, GatedDeltaImplementation
from studio_kernels.row_chunks import Chunks
from torch import Tensor, nn

from studio.models.borrowed_forward import Function, borrow, find_function

RULE, CONVOLUTION = "torch_chunk_gated_delta_rule", "causal_conv1d_fn"
"""What transformers' files call the function that goes through a text in chunks, and the convolution of whole texts."""
ARGUMENTS = {RULE: ("query", "key", "value", "g", "beta"), CONVOLUTION: ("hidden_states", "weight", "bias")}
"""Their first ones."""
WIDEST_HEAD = 256
"""Dimensions of a key: a program holds a state's whole columns."""
GATED_ROWS = 8
"""Rows of a head, mostly of 128, that the gate's kernel takes as one: its programs deal with up to 1,024 columns."""


class _Batches:
    """Makes Chunks of batches; those of the last are kept."""

    def __init__(self) -> None:
        self._asked: tuple = ()
        self._chunks: Chunks | None = None

    def cut(self, documents: int, tokens: int, like: Tensor) -> Chunks:
        """Return the chunks of so many rows of so many tokens, on the device of `like`."""
        asked = (documents, tokens, like.device)
        if asked != self._asked:
            self._chunks, self._asked = Chunks((tokens,) * documents, like.device), asked
        return self._chunks


class DeltaRule:
    """Computes the rule by `op` where nothing is asked for that only generating needs, else by `stock`."""

    def __init__(self, op: GatedDeltaImplementation, stock: Function, batches: _Batches) -> None:
        self._op, self._stock, self._batches = op, stock, batches

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
        running = _asks(options, "initial_state", "cu_seqlens", "output_final_state")
        # Keys of any length make entries that 16 bits do not hold.
        fits = value.dtype in DTYPES and key.shape[-1] <= WIDEST_HEAD and use_qk_l2norm_in_kernel
        if arguments or running or not fits:
            options["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
            return self._stock(query, key, value, g, beta, *arguments, **options)
        chunks = self._batches.cut(*key.shape[:2], key)
        rows = (part.flatten(0, 1) for part in (query, key, value, g, beta))
        rows = [part if part.stride(-1) == 1 else part.contiguous() for part in rows]
        out = self._op(*rows, chunks, scale=key.shape[-1] ** -0.5)
        return out.unflatten(0, key.shape[:2]), None


class ShortConvolution:
    """Computes a convolution with frozen taps and silu behind it by `op`, any other by `stock`."""

    def __init__(self, op: GatedDeltaImplementation, stock: Function, batches: _Batches) -> None:
        self._op, self._stock, self._batches = op, stock, batches

    def __call__(
        self,
        hidden_states: Tensor,  # (documents, C, tokens)
        weight: Tensor,  # (C, taps)
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:  # (documents, C, tokens)
        """Return silu of each row's sum, lying in memory row by row."""
        fits = bias is None and activation == "silu" and not weight.requires_grad
        if not fits or hidden_states.dtype not in DTYPES or _asks(options, "seq_idx"):
            return self._stock(hidden_states, weight, bias, activation=activation, **options)
        documents, columns, tokens = hidden_states.shape
        rows = hidden_states.transpose(1, 2).reshape(documents * tokens, columns)
        out = self._op.convolve(rows, weight, self._batches.cut(documents, tokens, rows))
        return out.view(documents, tokens, columns).transpose(1, 2)


def _asks(options: dict[str, Any], *names: str) -> bool:
    return any(options.get(name) is not None and options[name] is not False for name in names)


class GatedNorm(nn.Module):
    """Computes a norm and its gate, silu(gate) norm(x), by two ops."""

    def __init__(self, norm: nn.Module, kernels: Kernels) -> None:
        super().__init__()
        self.norm, self._kernels = norm, kernels

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """Return what the norm's own code does."""
        if self.norm.weight.dtype != hidden_states.dtype:
            return self.norm(hidden_states, gate)
        normal = self._kernels.rms_norm(hidden_states, self.norm.weight, self.norm.variance_epsilon)
        together = math.gcd(hidden_states[..., 0].numel(), GATED_ROWS)
        wide = (-1, together * hidden_states.shape[-1])
        return self._kernels.glu(gate.reshape(wide), normal.reshape(wide)).view(hidden_states.shape)


def has_delta_rule(module: nn.Module) -> bool:
    """Return whether `module` calls the rule by that name, with arguments that we know."""
    # A wrapper around forward may move the weights of its parts, as accelerate's does.
    return bool(_find(module, RULE)) and not any(hasattr(part, "_hf_hook") for part in module.modules())


def _find(module: nn.Module, name: str) -> Function | None:
    return find_function(module, name, ARGUMENTS[name])


def borrow_forward(module: nn.Module, kernels: Kernels) -> Function:
    """Return the `forward` of `module`'s class, to be called with a module, with our ops in it."""
    batches, op = _Batches(), kernels.gated_delta
    found = {RULE: DeltaRule, CONVOLUTION: ShortConvolution}
    ours = {name: make(op, stock, batches) for name, make in found.items() if (stock := _find(module, name))}
    borrowed = borrow(module, ours)
    fused = {"rms_norm", "glu"} <= {op for op, name in kernels.implementations.items() if name == "triton"}
    norms = [name for name, part in module.named_children() if fused and _is_gated_norm(part)]

    def forward(self: nn.Module, *arguments: Any, **options: Any) -> Any:
        twin = copy.copy(self)
        ours = {name: GatedNorm(self._modules[name], kernels) for name in norms}
        twin.__dict__["_modules"] = self._modules | ours
        return borrowed(twin, *arguments, **options)

    return forward


def _is_gated_norm(part: nn.Module) -> bool:
    """Return whether `part` looks like a norm of rows with a gate behind it; what it computes shows in the probe."""
    arguments = tuple(inspect.signature(type(part).forward).parameters)[1:]
    known = isinstance(getattr(part, "variance_epsilon", None), float) and "weight" in part._parameters
    return known and arguments == ("hidden_states", "gate") and getattr(part, "activation", "silu") == "silu"


def width_of(module: nn.Module) -> int:
    """Return the width of what a mixer reads."""
    return next(part.in_features for part in module.modules() if hasattr(part, "in_features"))
