"""A mixer that the decoder does not know as a block: the model's own module under autograd, all around it by hand.

    n = norm(x)        b = mixer(n)        y = x + b        or, as in attention.py, y = x + norm(b) or y = x + m b

Attention of another kind, a gated delta rule, a state space, a short convolution. The module reads documents as rows of
a batch (padded_rows.py), so that no state leaks from one to the next, with what the model's own decoder gives it
(own_inputs.py); a gated delta rule inside may be computed by our kernels (delta_rule.py), and the state space of a
Mamba 2 is computed by our code (state_space.py). Forward nothing is recorded
but at the highest level; backward the module runs again, and autograd gives dn and the gradients of the adapters
inside, which are added to the store's. T rows, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from studio_kernels.dispatch import Kernels
from torch import Tensor, nn

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.block import Saved, StreamRows
from studio.models.decoder.blocks.residual import join, join_backward, joins_apart, leave_backward, normalise
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec
from studio.models.delta_rule import borrow_forward, has_delta_rule
from studio.models.state_space import borrow_scan, has_state_space

RECORDED_LEVEL = 3
"""From this place in KEEP_LEVELS on autograd's record is kept from the forward pass to the backward pass."""
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Record:
    """One run of a mixer under autograd."""

    starts: tuple[Tensor, ...]
    """(D, S, H) of each block of rows: what it read."""
    results: tuple[Tensor, ...]
    """(D, S, H) likewise: what it gave."""


@dataclass(slots=True)
class SavedMixer(Saved):
    """See Saved."""

    large: ClassVar[tuple[str, ...]] = ("x", "branch")
    x: Tensor | None = None
    """(T, H) the block's input."""
    branch: Tensor | None = None
    """(T, H) the mixer's result, where a norm follows it."""
    record: Record | None = None


class ForeignMixer:
    """See the file's docstring. `trained`: the parameters inside `module` and where their gradients are added."""

    kernel = None
    """It brings its own attention, if any."""
    groups: tuple[LinearGroup, ...] = ()

    def __init__(
        self,
        spec: LayerSpec,
        module: nn.Module,
        trained: Sequence[tuple[nn.Parameter, Tensor]],
        rows: StreamRows,
        norm_gradients: dict[str, Tensor | None],
    ) -> None:
        """`norm_gradients`: as SelfAttention takes them."""
        self.spec, self.module = spec, module
        self.trained = tuple(trained)
        self.outer = rows
        self.norm_gradients = norm_gradients
        self.delta_rule = has_delta_rule(module)
        self.scan = borrow_scan(module) if has_state_space(module) else None
        self._borrowed: tuple[Kernels, Callable] | None = None

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, level: int
    ) -> tuple[Tensor, SavedMixer]:
        """See LayerBlock."""
        saved = SavedMixer(x if level >= 0 else None)
        normal, _ = normalise(self.spec.input_norm, x, kernels)
        if level >= RECORDED_LEVEL:
            saved.record = self._record(normal, rows, kernels)
            branch = self._collect(saved.record.results, rows)
        else:
            branch = self._collect(self._run(self._spread(normal, rows), rows, kernels), rows)
        if level >= 1 and self.spec.attention_norm is not None:
            saved.branch = branch
        return self._join(branch, x, kernels), saved

    def recompute(self, saved: SavedMixer, y: Tensor | None, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """See LayerBlock; where y is there the module runs in backward(), when the MLP has given its memory back."""
        if y is not None:
            return y
        if saved.branch is None:
            saved.record = saved.record or self._record(
                normalise(self.spec.input_norm, saved.x, kernels)[0], rows, kernels
            )
            saved.branch = self._collect(saved.record.results, rows)
        return self._join(saved.branch, saved.x, kernels)

    def backward(
        self, dy: Tensor, saved: SavedMixer, rows: BatchLayout, kernels: Kernels, below: LinearGroup | None
    ) -> Tensor | None:
        """See LayerBlock."""
        spec, hidden = self.spec, saved.x.shape[1]
        normal, r = normalise(self.spec.input_norm, saved.x, kernels)
        record = saved.record or self._record(normal, rows, kernels)
        del normal
        dbranch = dy[:, :hidden]
        if joins_apart(spec.attention_norm, spec.residual_scale):
            if saved.branch is None and spec.attention_norm is not None:
                saved.branch = self._collect(record.results, rows)
            gradient = self.norm_gradients.get("attention_norm")
            dbranch = join_backward(
                spec.attention_norm, spec.residual_scale, dy, saved.branch, self.outer, gradient, kernels
            )
        saved.branch = saved.record = None
        dnormal = self._run_back(record, dbranch, rows)
        del dbranch, record
        if below is None:
            return None
        dx = below.widen_gradient(dy.shape[0])
        gradient = self.norm_gradients.get("input_norm")
        leave_backward(
            spec.input_norm, dnormal, saved.x, r, dy[:, :hidden], gradient, kernels, dx[:, :hidden]
        )
        saved.x = None
        return dx

    def _join(self, branch: Tensor, x: Tensor, kernels: Kernels) -> Tensor:
        """Return y (T, H); the branch stays as it is: it may be kept."""
        norm, scale = self.spec.attention_norm, self.spec.residual_scale
        return join(norm, scale, branch, x, kernels, keep=True)

    def _ask(self, rows: BatchLayout) -> list:
        mixer = self.spec.mixer
        return mixer.inputs.ask(rows.documents, rows.positions, self.outer.dtype)

    def _spread(self, normal: Tensor, rows: BatchLayout) -> tuple[Tensor, ...]:
        return tuple(block.spread(normal) for block, _ in self._ask(rows))

    def _run(self, starts: Sequence[Tensor], rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, ...]:
        """Return what the module gives for each block of rows, as a step without our decoder computes it."""
        mixer, dtype, call = self.spec.mixer, self.outer.dtype, self._choose(kernels)
        with torch.autocast(self.outer.device.type, dtype=dtype, enabled=dtype in HALVES):
            return tuple(
                mixer.wiring.call(call, start, given[mixer.number])
                for start, (_, given) in zip(starts, self._ask(rows), strict=True)
            )

    def _choose(self, kernels: Kernels) -> Callable:
        """Return what is called: the module, or its code with ours for a state space or a gated delta rule in it."""
        if self.scan is not None:
            return partial(self.scan, self.module)
        if not self.delta_rule or kernels.implementations["gated_delta"] != "triton":
            return self.module
        if self._borrowed is None or self._borrowed[0] is not kernels:
            self._borrowed = kernels, borrow_forward(self.module, kernels)
        return partial(self._borrowed[1], self.module)

    def _record(self, normal: Tensor, rows: BatchLayout, kernels: Kernels) -> Record:
        with torch.enable_grad():
            starts = tuple(start.detach().requires_grad_() for start in self._spread(normal, rows))
            return Record(starts, self._run(starts, rows, kernels))

    def _collect(self, blocks: Sequence[Tensor], rows: BatchLayout) -> Tensor:
        """Return (T, H) of what stands in `blocks`, in memory of its own."""
        out = torch.empty(
            rows.positions.shape[0], self.outer.outputs, dtype=self.outer.dtype, device=self.outer.device
        )
        for (block, _), found in zip(self._ask(rows), blocks, strict=True):
            block.cut(found.detach(), out)
        return out

    def _run_back(self, record: Record, dbranch: Tensor, rows: BatchLayout) -> Tensor:
        """Return dn (T, H), and add the gradients of what is trained inside."""
        given = [
            block.spread_gradient(dbranch).to(result.dtype)
            for (block, _), result in zip(self._ask(rows), record.results, strict=True)
        ]
        parameters = [parameter for parameter, _ in self.trained]
        found = torch.autograd.grad(record.results, [*record.starts, *parameters], given, allow_unused=True)
        count = len(record.starts)
        for (_, place), gradient in zip(self.trained, found[count:], strict=True):
            if gradient is not None:
                place.add_(gradient)
        return self._collect(found[:count], rows)
