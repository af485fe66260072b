"""Multi-head latent attention as a block: keys and values of all heads come from one narrow row a token.

    n = norm(x)      [c | l | r] = n Wd^T      q = norm(c) Wq^T, or c itself      e = norm(l) Wv^T
    of each head:    q = [q' | R q'']      e = [k' | v]      k = [k' | R r]        a = attention(q, k, v)
    b = a Wo^T       y = x + b

R rotates; r is the same for all heads, which is why its gradient is the sum of theirs:

    de = [dk' | dv]        dr = R^T sum_heads dk''        dq = [dq' | R^T dq'']
    dl = norm'(de Wv)      dc = norm'(dq Wq)              dn = [dc | dl | dr] Wd

Values narrower than keys are filled up with zeros for attention, whose result is cut again. Each product carries its
adapters along as in fused_lora_linear.py. Source: DeepSeek-AI 2024, arXiv:2405.04434.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from studio_kernels.attention import Attention
from studio_kernels.dispatch import Kernels
from studio_kernels.grouped_matmul import ALIGNED
from torch import Tensor
from torch.nn import functional

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.attention import SavedAttention, SelfAttention
from studio.models.decoder.blocks.residual import leave
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec


class LatentAttention(SelfAttention):
    """See the file's docstring.

    SavedAttention.qkv is [c | l | r | q | e], r and q rotated; without q where c is the queries. SavedAttention.u_qkv
    has the tails of the groups side by side, in the order of `projections`.
    """

    turns_back = ""

    def __init__(
        self,
        spec: LayerSpec,
        groups: Mapping[str, LinearGroup],
        kernel: Attention,
        norm_gradients: dict[str, Tensor | None],
    ) -> None:
        """`groups`: by the names of LayerSpec.groups; `norm_gradients`: as SelfAttention takes them."""
        super().__init__(spec, groups["qkv"], groups["output"], kernel, norm_gradients)
        self.query_up, self.value_up = groups.get("query_up"), groups["value_up"]

    @property
    def group_names(self) -> tuple[str, ...]:
        """See SelfAttention."""
        return ("qkv", *(("query_up",) if self.query_up is not None else ()), "value_up", "output")

    @property
    def projections(self) -> tuple[LinearGroup, ...]:
        """The groups between the layer's rows and attention."""
        return tuple(getattr(self, name) for name in self.group_names[:-1])

    @property
    def _columns(self) -> tuple[slice, slice, slice, slice, slice]:
        """Where c, l, r, q and e stand in SavedAttention.qkv."""
        latent, spec = self.spec.latent, self.spec
        queries = 0 if self.query_up is None else spec.query_heads * spec.head_dim
        sizes = latent.query_rank, latent.rank, latent.rotary_dim, queries, self.value_up.outputs
        edges = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
        c, narrow, r, q, e = map(slice, edges[:-1], edges[1:])
        return c, narrow, r, c if self.query_up is None else q, e

    def _project_qkv(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor]:
        c, narrow, r, q, e = self._columns
        out = torch.empty(x.shape[0], e.stop, dtype=x.dtype, device=x.device)
        u = torch.empty(x.shape[0], sum(g.tail for g in self.projections), dtype=x.dtype, device=x.device)
        tails = list(u.split([group.tail for group in self.projections], 1))
        self._project(self.qkv, self.spec.input_norm, x, rows, kernels, out[:, : r.stop], tails.pop(0))
        if self.query_up is not None:
            given = out[:, c], rows, kernels, out[:, q], tails.pop(0)
            self._project(self.query_up, self.spec.query_norm, *given)
        given = out[:, narrow], rows, kernels, out[:, e], tails.pop(0)
        self._project(self.value_up, self.spec.key_norm, *given)
        self._turn(out[:, q], out[:, r], rows, kernels)
        self._scale(out[:, q], rows)
        return out, u

    def _project(
        self, group: LinearGroup, norm, x: Tensor, rows: BatchLayout, kernels: Kernels, out: Tensor, u: Tensor
    ) -> None:  # fmt: skip
        """Write what `group` makes of norm(x) to `out`, and its tail to `u`."""
        wide, _ = leave(norm, x, group, kernels)
        tail = group.project(wide[:, : x.shape[1]], wide[:, x.shape[1] :], kernels, rows.drops)
        u.copy_(tail)
        group.forward(wide, kernels, out=out)

    def _turn(self, q: Tensor, r: Tensor, rows: BatchLayout, kernels: Kernels, *, back: bool = False) -> None:
        """Rotate the last columns of each head of q (T, heads d), and r (T, d_r), in place; `back`: by R^T."""
        spec, d = self.spec, self.spec.latent.rotary_dim
        heads = spec.query_heads
        turned = torch.empty(q.shape[0], heads + 1, d, dtype=q.dtype, device=q.device)
        queries = q.unflatten(1, (heads, spec.head_dim))[..., spec.head_dim - d :]
        turned[:, :heads] = queries
        turned[:, heads] = r
        cos, sin = rows.tables[spec.rotary]
        kernels.rope.forward(
            turned.flatten(1), cos, -sin if back else sin, rows.positions, heads, 1, d,
            interleaved=spec.turning.interleaved,
        )  # fmt: skip
        queries.copy_(turned[:, :heads])
        r.copy_(turned[:, heads])

    def _heads(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
        """See SelfAttention; values are as wide as keys."""
        spec, (_, _, r, q, e) = self.spec, self._columns
        plain = spec.head_dim - spec.latent.rotary_dim
        expanded = qkv[:, e].unflatten(1, (spec.key_heads, -1))
        k = torch.empty(
            qkv.shape[0], spec.key_heads, spec.head_dim, dtype=qkv.dtype, device=qkv.device
        )  # fmt: skip
        k[..., :plain] = expanded[..., :plain]
        k[..., plain:] = qkv[:, None, r]
        v = self._fill(expanded[..., plain:])
        queries = qkv[:, q].unflatten(1, (spec.query_heads, spec.head_dim))
        return _align(queries), k, _align(v)

    def _fill(self, heads: Tensor) -> Tensor:
        """Return heads (T, n, value_dim) with zeros up to the width of keys."""
        missing = self.spec.head_dim - heads.shape[2]
        return functional.pad(heads, (0, missing)) if missing else heads

    def _spread(self, attended: Tensor) -> Tensor:
        """See SelfAttention."""
        return self._fill(attended.unflatten(1, (self.spec.query_heads, -1)))

    def _join_heads(self, attended: Tensor) -> Tensor:
        """See SelfAttention."""
        width = self.spec.latent.value_dim
        return attended.view(attended.shape[0], self.spec.query_heads, -1)[..., :width].reshape(
            attended.shape[0], -1
        )

    def _turn_back(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> None:
        """See SelfAttention: magnitudes learn by dY^T X."""
        return None

    def _heads_gradient(
        self, gradients: list[Tensor], saved: SavedAttention, rows: BatchLayout, kernels: Kernels
    ) -> Tensor:
        """See SelfAttention: the gradient of [c | l | r], after those of the groups that widen c and l."""
        spec, (c, narrow, r, q, e) = self.spec, self._columns
        (dq, dk, dv), tokens = gradients, saved.qkv.shape[0]
        gradients.clear()
        plain = spec.head_dim - spec.latent.rotary_dim
        tails = list(saved.u_qkv.split([group.tail for group in self.projections], 1))
        dlatent = self.qkv.widen_gradient(tokens)
        dqueries = dlatent if self.query_up is None else self.query_up.widen_gradient(tokens)
        place = dqueries[:, : q.stop - q.start]
        place.unflatten(1, (spec.query_heads, -1)).copy_(dq)
        del dq
        self._scale(place, rows)
        dlatent[:, r] = dk[..., plain:].sum(1)
        self._turn(place, dlatent[:, r], rows, kernels, back=True)
        dexpanded = self.value_up.widen_gradient(tokens)
        heads = dexpanded[:, : e.stop - e.start].unflatten(1, (spec.key_heads, -1))
        heads[..., :plain] = dk[..., :plain]
        heads[..., plain:] = dv[..., : spec.latent.value_dim]
        del dk, dv
        given = saved.qkv[:, narrow], tails.pop(), rows, kernels, dlatent[:, narrow]
        self._project_backward(self.value_up, "key_norm", dexpanded, *given)
        del dexpanded, heads
        if self.query_up is not None:
            given = saved.qkv[:, c], tails.pop(), rows, kernels, dlatent[:, c]
            self._project_backward(self.query_up, "query_norm", dqueries, *given)
        saved.u_qkv = tails.pop()
        return dlatent

    def _project_backward(
        self, group: LinearGroup, name: str, dy: Tensor, x: Tensor, u: Tensor, rows: BatchLayout,
        kernels: Kernels, out: Tensor,
    ) -> None:  # fmt: skip
        """Add the gradients of `group`, of wide rows `dy`, and write that of `x`, before the norm `name`, to `out`."""
        norm, width = getattr(self.spec, name), x.shape[1]
        wide, scale = leave(norm, x, group, kernels)
        group.gradients(dy, u, kernels)
        group.gradient_a(dy, wide[:, :width], kernels, rows.drops)
        group.gradient_w(dy, wide[:, :width], kernels)
        dn = group.gradient_x(dy, kernels, rows.drops)
        kernels.rms_norm.backward(
            dn, x, norm.weight, scale, norm.offset, out=out, weight_gradient=self.norm_gradients.get(name)
        )


def _align(heads: Tensor) -> Tensor:
    """Return heads (T, n, d), a view, where kernels can read them as they lie, else a copy."""
    steps = heads.stride(0), heads.stride(1), heads.storage_offset()
    return heads.contiguous() if any(step % ALIGNED for step in steps) else heads
