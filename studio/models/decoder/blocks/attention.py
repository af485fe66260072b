"""Self-attention as a block: causal, rotated, grouped heads, every linear with its adapters.

    n = norm(x)        q, k, v = n Wqkv^T, rotated        a = attention(q, k, v)        b = a Wo^T        y = x + b

Where query and key have norms, these come before the rotation, or after it; where the branch has one (Gemma),
y = x + norm(b), where it is multiplied (Granite), y = x + m b. Queries may grow with their position (Ministral 3), and
heads may have sinks (gpt-oss). Values may have a norm without a weight, and be the keys as they were before norm and
rotation (Gemma 4): then q, k = n Wqk^T, and what comes back through v is added to what comes back through k.
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
from studio.models.decoder.blocks.head_norms import normalise_heads, normalise_heads_backward
from studio.models.decoder.blocks.residual import join, join_backward, joins_apart, leave, leave_backward
from studio.models.decoder.cached_rows import CachedRows, SlotRows
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.query_scale import QueryScale
from studio.models.decoder.rotary import INVERSE
from studio.models.decoder.spec import LayerSpec


@dataclass(slots=True)
class SavedAttention(Saved):
    """See Saved."""

    large: ClassVar[tuple[str, ...]] = ("x", "qkv", "attended", "branch")
    x: Tensor | None = None
    """(T, H) the block's input."""
    qkv: Tensor | None = None
    """(T, q + 2 k) after rotation, but before norms: before rotation, too, where those come first; (T, q + k) for
    values that are keys."""
    attended: Tensor | None = None
    """(T, q) the attention's result."""
    statistics: tuple[Tensor, ...] = ()
    """What the attention's backward pass needs beside it (log-sum-exp)."""
    branch: Tensor | None = None
    """(T, H) the output projection's result, where a norm follows it, or where magnitudes learn from it."""
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
    def group_names(self) -> tuple[str, ...]:
        """Under which names the groups stand here, those of LayerSpec.groups."""
        return "qkv", "output"

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        """See LayerBlock."""
        return tuple(getattr(self, name) for name in self.group_names)

    @property
    def outer(self) -> LinearGroup:
        """See LayerBlock."""
        return self.output

    @property
    def turns_back(self) -> str:
        """The rotary tables that turn what is kept of query and key back for magnitudes; "" where nothing is."""
        spec = self.spec
        grows = spec.query_scale is not None and not spec.turning.norm_last
        return "" if self.qkv.magnitudes is None or spec.keeps_raw or grows else INVERSE + spec.rotary

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, level: int
    ) -> tuple[Tensor, SavedAttention]:
        """See LayerBlock."""
        saved = SavedAttention(x if level >= 0 else None)
        qkv, u_qkv = self._project_qkv(x, rows, kernels)
        attended, statistics = self._attend(qkv, rows, kernels, lend=True)
        if level >= 2:
            saved.qkv, saved.u_qkv = qkv, own_memory(u_qkv)
        del qkv, u_qkv
        y, branch, u_output = self._join(x, attended, rows, kernels)
        if level >= 1:
            saved.attended, saved.statistics, saved.u_output = attended, statistics, u_output
            saved.branch = branch
        return y, saved

    def decode(self, number: int, x: Tensor, rows: CachedRows | SlotRows, kernels: Kernels) -> Tensor:
        """Return y (T, H) of new rows, which see what is kept of layer `number` and are kept in their turn."""
        qkv, _ = self._project_qkv(x, rows.layout, kernels)
        q, k, v = self._heads(qkv, rows.layout, kernels)
        attended = rows.attend(number, q, k, v, self.spec, self.kernel, kernels)
        return self._join(x, self._join_heads(attended), rows.layout, kernels)[0]

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
            norm, scale = self.spec.attention_norm, self.spec.residual_scale
            y = join(norm, scale, saved.branch, saved.x, kernels, keep=True)
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
        if joins_apart(spec.attention_norm, spec.residual_scale):
            gradient = self.norm_gradients.get("attention_norm")
            dbranch = join_backward(
                spec.attention_norm, spec.residual_scale, dy, saved.branch, self.output, gradient, kernels
            )
        self.output.gradients(dbranch, saved.u_output, kernels)
        self.output.gradient_a(dbranch, saved.attended, kernels, rows.drops)
        self.output.gradient_w(dbranch, saved.attended, kernels, saved.branch)
        dattended = self.output.gradient_x(dbranch, kernels, rows.drops)
        del dbranch
        saved.branch = saved.u_output = None
        q, k, v = self._heads(saved.qkv, rows, kernels)
        given = self._spread(dattended), q, k, v, self._spread(saved.attended)
        gradients = list(self.kernel.backward(*given, saved.statistics, rows.documents, spec.sinks))
        del dattended, given, q, k, v
        saved.attended, saved.statistics = None, ()
        dqkv = self._heads_gradient(gradients, saved, rows, kernels)
        raw = self._turn_back(saved.qkv, rows, kernels)
        saved.qkv = None
        wide, r = leave(spec.input_norm, saved.x, self.qkv, kernels)
        self.qkv.gradients(dqkv, saved.u_qkv, kernels)
        self.qkv.gradient_a(dqkv, wide[:, :hidden], kernels, rows.drops)
        self.qkv.gradient_w(dqkv, wide[:, :hidden], kernels, raw)
        saved.u_qkv = None
        del wide, raw
        if below is None:
            return None
        dnormal = self.qkv.gradient_x(dqkv, kernels, rows.drops)
        del dqkv
        dx = below.widen_gradient(dnormal.shape[0])
        gradient = self.norm_gradients.get("input_norm")
        leave_backward(
            spec.input_norm, dnormal, saved.x, r, dy[:, :hidden], gradient, kernels, dx[:, :hidden]
        )
        saved.x = None
        return dx

    def _project_qkv(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor]:
        wide, _ = leave(self.spec.input_norm, x, self.qkv, kernels)
        u = self.qkv.project(wide[:, : x.shape[1]], wide[:, x.shape[1] :], kernels, rows.drops)
        qkv = self.qkv.forward(wide, kernels)
        if not self.spec.keeps_raw:
            self._rotate(qkv, rows, kernels)
        return qkv, u

    def _rotate(self, qk: Tensor, rows: BatchLayout, kernels: Kernels) -> None:
        """Rotate query and key in place, and let queries grow with their position where no norm follows."""
        spec = self.spec
        sizes = spec.query_heads, spec.made_key_heads, spec.head_dim
        interleaved = spec.turning.interleaved
        kernels.rope.forward(qk, *rows.tables[spec.rotary], rows.positions, *sizes, interleaved=interleaved)
        if not spec.turning.norm_last:
            self._scale(qk[:, : spec.query_heads * spec.head_dim], rows)

    def _turn_back(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor | None:
        """Return what the projection gave (T, q + 2 k), where magnitudes learn from it and what is kept tells it.

        It takes the place of what is kept, rounded once more. The other way is dY^T X, the operations of the forward
        product: 0.3 ms of a llama-8b layer with 4,096 rows on an H200, and as much again for its sums.
        """
        spec = self.spec
        if self.turns_back:
            tables, sizes = (
                rows.tables[self.turns_back],
                (spec.query_heads, spec.made_key_heads, spec.head_dim),
            )
            kernels.rope.forward(qkv, *tables, rows.positions, *sizes, interleaved=spec.turning.interleaved)
        return qkv if self.turns_back or (self.qkv.magnitudes is not None and spec.keeps_raw) else None

    def _scale(self, q: Tensor, rows: BatchLayout) -> None:
        """Multiply queries, or their gradients, (T, ...) by what their positions say, in place."""
        if self.spec.query_scale is not None:
            scale = scale_queries(self.spec.query_scale, rows.positions)
            q.mul_(scale.to(q.dtype).view(-1, *(1,) * (q.dim() - 1)))

    def _views(self, qk: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        d, nq, nk = spec.head_dim, spec.query_heads, spec.made_key_heads
        if qk is qkv and not spec.values_are_keys:  # two views in place of six: 10 us of Python less
            return qkv.view(qkv.shape[0], -1, d).split((nq, nk, nk), 1)
        q = qk[:, : nq * d].unflatten(1, (nq, d))
        k = qk[:, nq * d : (nq + nk) * d].unflatten(1, (nk, d))
        v = qkv[:, self._values].unflatten(1, (nk, d))
        return q, k, v

    @property
    def _values(self) -> slice:
        """The columns of the projection that are values."""
        spec = self.spec
        first = (spec.query_heads + spec.made_key_heads * (not spec.values_are_keys)) * spec.head_dim
        return slice(first, first + spec.made_key_heads * spec.head_dim)

    def _normalise_values(self, v: Tensor, kernels: Kernels) -> Tensor:
        norm = self.spec.value_norm
        if norm is None:
            return v
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        normalise_heads(v.flatten(1), norm, kernels, out.flatten(1))
        return out

    def _heads(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as the attention takes them, from what `SavedAttention.qkv` holds."""
        q, k, v = self._turned_heads(qkv, rows, kernels)
        return q, k, self._normalise_values(v, kernels)

    def _turned_heads(
        self, qkv: Tensor, rows: BatchLayout, kernels: Kernels
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        if spec.query_norm is None:
            return self._views(qkv, qkv)
        queries = spec.query_heads * spec.head_dim
        width = queries + spec.made_key_heads * spec.head_dim
        qk = torch.empty(qkv.shape[0], width, dtype=qkv.dtype, device=qkv.device)
        if spec.fuses_head_norms:
            sizes = spec.query_heads, spec.made_key_heads, spec.head_dim
            kernels.rope.forward(
                qkv, *rows.tables[spec.rotary], rows.positions, *sizes, **self._head_norms(), out=qk
            )
            self._scale(qk[:, :queries], rows)
        else:
            normalise_heads(qkv[:, :queries], spec.query_norm, kernels, qk[:, :queries])
            if width > queries:
                normalise_heads(qkv[:, queries:width], spec.key_norm, kernels, qk[:, queries:])
            if spec.keeps_raw:
                self._rotate(qk, rows, kernels)
            else:
                self._scale(qk[:, :queries], rows)
        return self._views(qk, qkv)

    def _heads_backward(
        self, dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, rows: BatchLayout, kernels: Kernels, out: Tensor
    ) -> None:  # fmt: skip
        """Write the gradient (T, q + 2 k) of what the projection gave to `out`; uses dq and dk up."""
        spec = self.spec
        if spec.value_norm is not None:
            dv = normalise_heads_backward(dv, qkv[:, self._values], spec.value_norm, kernels, None)
        if spec.values_are_keys:
            apart = out.new_empty(out.shape[0], out.shape[1] + spec.key_heads * spec.head_dim)
            self._turn_heads_backward(dq, dk, dv, qkv, rows, kernels, apart)
            out.copy_(apart[:, : out.shape[1]])
            out[:, self._values] += apart[:, out.shape[1] :]
        else:
            self._turn_heads_backward(dq, dk, dv, qkv, rows, kernels, out)

    def _turn_heads_backward(
        self, dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, rows: BatchLayout, kernels: Kernels, out: Tensor
    ) -> None:  # fmt: skip
        spec, norms = self.spec, {}
        queries = spec.query_heads * spec.head_dim
        width = queries + spec.made_key_heads * spec.head_dim
        sums = self._norm_sums()
        parts = (slice(0, queries), spec.query_norm, sums[0]), (slice(queries, width), spec.key_norm, sums[1])
        self._scale(dq, rows)
        if spec.turning.norm_last:
            dq, dk = (
                normalise_heads_backward(dy, qkv[:, part], norm, kernels, gradient)
                for dy, (part, norm, gradient) in zip((dq, dk), parts, strict=True)
            )
        elif spec.fuses_head_norms:
            norms = self._head_norms() | {"qkv": qkv, "norm_gradients": None if sums[0] is None else sums}
        kernels.rope.backward(
            dq, dk, dv, *rows.tables[spec.rotary], rows.positions, spec.query_heads, spec.made_key_heads,
            spec.head_dim, **{"interleaved": spec.turning.interleaved} | norms, out=out,
        )  # fmt: skip
        if spec.keeps_raw and not norms:
            for part, norm, gradient in parts[: 1 + (width > queries)]:
                out[:, part] = normalise_heads_backward(
                    out[:, part], qkv[:, part], norm, kernels, gradient
                ).flatten(1)

    def _head_norms(self) -> dict:
        query, key = self.spec.query_norm, self.spec.key_norm
        if query is None:
            return {}
        key = key or query  # there is no key to normalise
        eps, offset, order = query.options
        return {
            "query_norm": query.weight, "key_norm": key.weight, "eps": eps, "offset": offset, "order": order,
            "interleaved": self.spec.turning.interleaved,
        }  # fmt: skip

    def _norm_sums(self) -> tuple[Tensor | None, Tensor | None]:
        """Return where the gradients of the norms of query and key are added."""
        return self.norm_gradients.get("query_norm"), self.norm_gradients.get("key_norm")

    def _attend(
        self, qkv: Tensor, rows: BatchLayout, kernels: Kernels, *, lend: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        q, k, v = self._heads(qkv, rows, kernels)
        if lend and self.spec.lends is not None:
            rows.shared.keys[self.spec.lends] = (
                k.contiguous(),
                v.contiguous(),
            )  # without the queries beside them
        attended, statistics = self.kernel.forward(q, k, v, rows.documents, self.spec.sinks)
        return self._join_heads(attended), statistics

    def _join_heads(self, attended: Tensor) -> Tensor:
        """Return attention's result, in any shape of T rows, as (T, columns of the output projection)."""
        return attended.reshape(attended.shape[0], -1)

    def _spread(self, attended: Tensor) -> Tensor:
        """Return (T, heads, d), as attention has them, of what _join_heads() gave."""
        return attended.unflatten(1, (self.spec.query_heads, self.spec.head_dim))

    def _heads_gradient(
        self, gradients: list[Tensor], saved: SavedAttention, rows: BatchLayout, kernels: Kernels
    ) -> Tensor:
        """Return the gradient of what the projection gave, wide for its group; takes out those of q, k and v."""
        if self.spec.lends is not None:
            gradients[1:] = rows.shared.settle(self.spec.lends, *gradients[1:])
        dqkv = self.qkv.widen_gradient(saved.qkv.shape[0])
        self._heads_backward(*gradients, saved.qkv, rows, kernels, dqkv[:, : self.qkv.outputs])
        gradients.clear()
        return dqkv

    def _join(
        self, x: Tensor, attended: Tensor, rows: BatchLayout, kernels: Kernels
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return y, the branch where it is kept, and U of the output group."""
        u = torch.empty(attended.shape[0], self.output.tail, dtype=attended.dtype, device=attended.device)
        self.output.project(attended, u, kernels, rows.drops)
        norm, scale = self.spec.attention_norm, self.spec.residual_scale
        keep = norm is not None or self.output.magnitudes is not None
        if not keep and not joins_apart(norm, scale):
            return self.output.forward_apart(attended, u, kernels, add=x), None, u
        branch = self.output.forward_apart(attended, u, kernels)
        return join(norm, scale, branch, x, kernels, keep=keep), branch if keep else None, u


def scale_queries(scale: QueryScale, positions: Tensor) -> Tensor:
    """Return s(p) (T,) fp32 of rows at `positions` (T,)."""
    return (positions // scale.period).float().log1p_().mul_(scale.beta).add_(1.0)
