"""Self-attention as a block: causal, rotated, grouped heads, every linear with its adapters.

    n = norm(x)        q, k, v = n Wqkv^T, rotated        a = attention(q, k, v)        b = a Wo^T        y = x + b

Where query and key have norms, these come before the rotation; where the branch has one (Gemma), y = x + norm(b).
T rows, H hidden width, q and k the widths of all query and key heads. n is always computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from studio_kernels.attention import Attention
from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.block import Saved, own_memory
from studio.models.decoder.blocks.residual import join, join_backward
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec


@dataclass(slots=True)
class SavedAttention(Saved):
    """See Saved."""

    large: ClassVar[tuple[str, ...]] = ("x", "qkv", "attended", "branch")
    x: Tensor | None = None
    """(T, H) the block's input."""
    qkv: Tensor | None = None
    """(T, q + 2 k) after rotation; before norms and rotation where query and key are normalised."""
    attended: Tensor | None = None
    """(T, q) the attention's result."""
    statistics: tuple[Tensor, ...] = ()
    """What the attention's backward pass needs beside it (log-sum-exp)."""
    branch: Tensor | None = None
    """(T, H) the output projection's result, where a norm follows it."""
    u_qkv: Tensor | None = None
    u_output: Tensor | None = None


class SelfAttention:
    """See the file's docstring; `kernel` computes attention itself."""

    def __init__(
        self,
        spec: LayerSpec,
        qkv: LinearGroup,
        output: LinearGroup,
        kernel: Attention,
        norm_gradients: dict[str, Tensor | None],
    ) -> None:
        """`norm_gradients`: where each norm's gradient is added, by LayerSpec's names; None where it is frozen."""
        self.spec = spec
        self.qkv, self.output, self.kernel = qkv, output, kernel
        self.norm_gradients = norm_gradients

    @property
    def inner(self) -> LinearGroup:
        """See LayerBlock."""
        return self.qkv

    @property
    def outer(self) -> LinearGroup:
        """See LayerBlock."""
        return self.output

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, level: int
    ) -> tuple[Tensor, SavedAttention]:
        """See LayerBlock."""
        saved = SavedAttention(x if level >= 0 else None)
        qkv, u_qkv = self._project_qkv(x, rows, kernels)
        attended, statistics = self._attend(qkv, rows, kernels)
        if level >= 2:
            saved.qkv, saved.u_qkv = qkv, own_memory(u_qkv)
        del qkv, u_qkv
        y, branch, u_output = self._join(x, attended, rows, kernels)
        if level >= 1:
            saved.attended, saved.statistics, saved.u_output = attended, statistics, u_output
            saved.branch = branch
        return y, saved

    def recompute(
        self, saved: SavedAttention, y: Tensor | None, rows: BatchLayout, kernels: Kernels
    ) -> Tensor:
        """See LayerBlock."""
        if saved.qkv is None:
            saved.qkv, u_qkv = self._project_qkv(saved.x, rows, kernels)
            saved.u_qkv = own_memory(u_qkv)
        if saved.attended is None:
            saved.attended, saved.statistics = self._attend(saved.qkv, rows, kernels)
        if y is None and saved.branch is not None:
            y = join(self.spec.attention_norm, saved.branch, saved.x, kernels)
        if y is None:
            y, saved.branch, saved.u_output = self._join(saved.x, saved.attended, rows, kernels)
        return y

    def backward(
        self,
        dy: Tensor,
        saved: SavedAttention,
        rows: BatchLayout,
        kernels: Kernels,
        below: LinearGroup | None,
    ) -> Tensor | None:
        """See LayerBlock."""
        spec, hidden = self.spec, saved.x.shape[1]
        dbranch = dy
        if spec.attention_norm is not None:
            gradient = self.norm_gradients["attention_norm"]
            dbranch = join_backward(spec.attention_norm, dy, saved.branch, self.output, gradient, kernels)
        self.output.gradients(dbranch, saved.u_output, kernels)
        self.output.gradient_a(dbranch, saved.attended, kernels, rows.drops)
        self.output.gradient_w(dbranch, saved.attended)
        dattended = self.output.gradient_x(dbranch, kernels, rows.drops)
        del dbranch
        saved.branch = saved.u_output = None
        q, k, v = self._heads(saved.qkv, rows, kernels)
        shape = (q.shape[0], spec.query_heads, spec.head_dim)
        dq, dk, dv = self.kernel.backward(
            dattended.view(shape), q, k, v, saved.attended.view(shape), saved.statistics, rows.documents
        )
        del dattended, q, k, v
        saved.attended, saved.statistics = None, ()
        dqkv = self.qkv.widen_gradient(dy.shape[0])
        cos, sin = rows.tables[spec.rotary]
        norms = self._head_norms()
        if norms:
            sums = self.norm_gradients["query_norm"], self.norm_gradients["key_norm"]
            norms |= {"qkv": saved.qkv, "norm_gradients": None if sums[0] is None else sums}
        kernels.rope.backward(
            dq, dk, dv, cos, sin, rows.positions, spec.query_heads, spec.key_heads, spec.head_dim,
            **norms, out=dqkv[:, : self.qkv.outputs],
        )  # fmt: skip
        del dq, dk, dv
        saved.qkv = None
        wide, norm = self.qkv.widen(dy.shape[0]), spec.input_norm
        _, _, r = kernels.rms_norm.forward(saved.x, norm.weight, *norm.options, out=wide[:, :hidden])
        self.qkv.gradients(dqkv, saved.u_qkv, kernels)
        self.qkv.gradient_a(dqkv, wide[:, :hidden], kernels, rows.drops)
        self.qkv.gradient_w(dqkv, wide[:, :hidden])
        saved.u_qkv = None
        del wide
        if below is None:
            return None
        dnormal = self.qkv.gradient_x(dqkv, kernels, rows.drops)
        del dqkv
        dx = below.widen_gradient(dnormal.shape[0])
        kernels.rms_norm.backward(
            dnormal, saved.x, norm.weight, r, norm.offset, ds=dy[:, :hidden], out=dx[:, :hidden],
            weight_gradient=self.norm_gradients["input_norm"],
        )  # fmt: skip
        saved.x = None
        return dx

    def _project_qkv(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor]:
        wide = self._normalise_input(x, kernels)
        u = self.qkv.project(wide[:, : x.shape[1]], wide[:, x.shape[1] :], kernels, rows.drops)
        qkv = self.qkv.forward(wide, kernels)
        if self.spec.query_norm is None:
            self._rotate(qkv, rows, kernels)
        return qkv, u

    def _normalise_input(self, x: Tensor, kernels: Kernels) -> Tensor:
        wide, norm = self.qkv.widen(x.shape[0]), self.spec.input_norm
        kernels.rms_norm.forward(x, norm.weight, *norm.options, out=wide[:, : x.shape[1]])
        return wide

    def _rotate(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (T, heads, d), k and v, rotated; in place where no norms come first."""
        spec = self.spec
        d, nq, nk = spec.head_dim, spec.query_heads, spec.key_heads
        cos, sin = rows.tables[spec.rotary]
        if spec.query_norm is None:
            kernels.rope.forward(qkv, cos, sin, rows.positions, nq, nk, d)
        return self._views(qkv, qkv)

    def _views(self, qk: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        d, nq, nk = spec.head_dim, spec.query_heads, spec.key_heads
        q = qk[:, : nq * d].unflatten(1, (nq, d))
        k = qk[:, nq * d : (nq + nk) * d].unflatten(1, (nk, d))
        v = qkv[:, (nq + nk) * d : (nq + 2 * nk) * d].unflatten(1, (nk, d))
        return q, k, v

    def _heads(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as the attention takes them, from what `SavedAttention.qkv` holds."""
        spec = self.spec
        if spec.query_norm is None:
            return self._views(qkv, qkv)
        cos, sin = rows.tables[spec.rotary]
        qk = torch.empty(
            qkv.shape[0],
            (spec.query_heads + spec.key_heads) * spec.head_dim,
            dtype=qkv.dtype,
            device=qkv.device,
        )
        kernels.rope.forward(
            qkv,
            cos,
            sin,
            rows.positions,
            spec.query_heads,
            spec.key_heads,
            spec.head_dim,
            **self._head_norms(),
            out=qk,
        )
        return self._views(qk, qkv)

    def _head_norms(self) -> dict:
        query, key = self.spec.query_norm, self.spec.key_norm
        if query is None or key is None:
            return {}
        eps, offset, order = query.options
        return {
            "query_norm": query.weight, "key_norm": key.weight, "eps": eps, "offset": offset, "order": order,
        }  # fmt: skip

    def _attend(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, tuple[Tensor, ...]]:
        attended, statistics = self.kernel.forward(*self._heads(qkv, rows, kernels), rows.documents)
        return attended.reshape(qkv.shape[0], -1), statistics

    def _join(
        self, x: Tensor, attended: Tensor, rows: BatchLayout, kernels: Kernels
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return y, the branch where a norm follows it, and U of the output group."""
        u = torch.empty(attended.shape[0], self.output.tail, dtype=attended.dtype, device=attended.device)
        self.output.project(attended, u, kernels, rows.drops)
        norm = self.spec.attention_norm
        if norm is None:
            return self.output.forward_apart(attended, u, kernels, add=x), None, u
        branch = self.output.forward_apart(attended, u, kernels)
        return join(norm, branch, x, kernels), branch, u
