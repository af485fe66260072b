"""One decoder layer, forward and backward by hand: what is not kept is computed again, in portions where asked for.

    n1 = norm(x)        q, k, v = n1 Wqkv^T, rotated       a = attention(q, k, v)     m = x + a Wo^T
    n2 = norm(m)        g, u = n2 Wgu^T                    h = act(g) u               y = m + h Wd^T

Gemma puts a norm on each branch before it joins: m = x + norm(a Wo^T), y = m + norm(h Wd^T). T rows, H hidden width,
I width of the MLP. n1, n2 and h are always computed again; h Wd^T never is. The gradients of what is trained, adapters
or all linears, biases and norms, are added on the way. Rows of gradients are "wide": [dY | G],
as in fused_lora_linear.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from studio_kernels.attention import Attention, Documents
from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.core.policy import KEEP_LEVELS, Keep
from studio.models.decoder.flat_store import FlatStore
from studio.models.decoder.fused_lora_linear import Drops, LinearGroup
from studio.models.decoder.kept import Saved, replace_rows
from studio.models.decoder.spec import LayerSpec
from studio.models.decoder.whole_store import norms_of


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What all layers need to know of a micro-batch's T rows."""

    positions: Tensor
    """(T,) int32"""
    documents: Documents
    tables: dict[str, tuple[Tensor, Tensor]]
    """Rotary tables (cos, sin), each (P, d_r) fp32, by LayerSpec.rotary."""
    drops: Drops
    mlp_rows: int = 0
    """Rows of one portion of the MLP; 0: all at once."""


class Layer:
    """Computes one layer of `spec` with the bound `kernels` (read anew at each call: an op may go to its twin)."""

    def __init__(
        self, spec: LayerSpec, groups: dict[str, LinearGroup], attention: Attention, store: FlatStore
    ) -> None:
        self.spec = spec
        self.store = store
        self.norm_gradients = {
            name: store.find_gradient(norm.module.weight) for name, norm in norms_of(spec).items()
        }
        """Where each norm's gradient is added, None where it is frozen."""
        self.qkv, self.output = groups["qkv"], groups["output"]
        self.gate_up, self.down = groups["gate_up"], groups["down"]
        self.attention = attention
        self._version = -1

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        """The four groups of linears."""
        return self.qkv, self.output, self.gate_up, self.down

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, keep: Keep | None
    ) -> tuple[Tensor, Saved | None]:
        """Return y (T, H) and what is kept for backward(), None when `keep` is None (evaluation)."""
        self._take_over_changes()
        level = -1 if keep is None else KEEP_LEVELS.index(keep)
        kept = Saved(x if level >= 0 else None)
        qkv, u_qkv = self._project_qkv(x, rows, kernels)
        attended, statistics = self._attend(qkv, rows, kernels)
        if level >= 2:
            kept.qkv, kept.u_qkv = qkv, _own(u_qkv)
        del qkv, u_qkv
        middle, branch, u_output = self._join_attention(x, attended, rows, kernels)
        if level >= 1:
            kept.attended, kept.statistics, kept.u_output = attended, statistics, u_output
            kept.branch, kept.middle = branch, middle if branch is None else None
        del attended, branch
        y, down, mlp = self._mlp(middle, rows, kernels, keep=level >= 3)
        if level >= 0:
            kept.down = down
            kept.gate_up, kept.u_gate_up, kept.u_down = mlp
        return y, kept if level >= 0 else None

    def _take_over_changes(self) -> None:
        """Round changed adapters into the matrices; not after the optimizer, where the GPU would wait for it."""
        if self._version != self.store.version:
            for group in self.groups:
                group.refresh()
            self._version = self.store.version

    def backward(
        self, kept: Saved, upstream: list[Tensor], rows: BatchLayout, kernels: Kernels, *, last: bool = False
    ) -> Tensor | None:
        """Return dx, wide for the layer below (None for the `last` that has one, below which nothing is trained).

        `upstream`: dy, wide rows (T, H + tail of the down group) whose tail is free, in a list from which it is
        taken, so that its memory goes half-way. Empties `kept`.
        """
        self._complete(kept, rows, kernels)
        dy = upstream.pop()
        dmiddle = self._mlp_backward(kept, dy, rows, kernels)
        del dy
        kept.middle = kept.gate_up = kept.down = None
        return self._attention_backward(kept, dmiddle, rows, kernels, last)

    # -- attention -----------------------------------------------------------------------------------------------

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
        """Return q, k, v as the attention takes them, from what `Kept.qkv` holds."""
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
        attended, statistics = self.attention.forward(*self._heads(qkv, rows, kernels), rows.documents)
        return attended.reshape(qkv.shape[0], -1), statistics

    def _join_attention(
        self, x: Tensor, attended: Tensor, rows: BatchLayout, kernels: Kernels
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the residual stream after attention, the branch where a norm follows it, and U of the output group."""
        u = self._small(self.output, attended, rows, kernels)
        norm = self.spec.attention_norm
        if norm is None:
            return self.output.forward_apart(attended, u, kernels, add=x), None, u
        branch = self.output.forward_apart(attended, u, kernels)
        return self._join(norm, branch, x, kernels), branch, u

    @staticmethod
    def _join(norm, branch: Tensor, stream: Tensor, kernels: Kernels) -> Tensor:
        out = torch.empty_like(branch)  # in its own dtype, also where the norm's weight is fp32
        return kernels.rms_norm.forward(branch, norm.weight, *norm.options, add=stream, out=out)[0]

    def _small(self, group: LinearGroup, x: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        u = torch.empty(x.shape[0], group.tail, dtype=x.dtype, device=x.device)
        return group.project(x, u, kernels, rows.drops)

    def _complete(self, kept: Saved, rows: BatchLayout, kernels: Kernels) -> None:
        """Compute again what the attention's backward pass needs and what leads to the MLP."""
        if kept.qkv is None:
            kept.qkv, u_qkv = self._project_qkv(kept.x, rows, kernels)
            kept.u_qkv = _own(u_qkv)
        if kept.attended is None:
            kept.attended, kept.statistics = self._attend(kept.qkv, rows, kernels)
        if kept.middle is None and kept.branch is not None:
            kept.middle = self._join(self.spec.attention_norm, kept.branch, kept.x, kernels)
        if kept.middle is None:
            kept.middle, kept.branch, kept.u_output = self._join_attention(
                kept.x, kept.attended, rows, kernels
            )

    def _attention_backward(
        self, kept: Saved, dmiddle: Tensor, rows: BatchLayout, kernels: Kernels, last: bool
    ) -> Tensor | None:
        spec, hidden = self.spec, kept.x.shape[1]
        dbranch = dmiddle
        if spec.attention_norm is not None:
            dbranch = self._norm_backward("attention_norm", dmiddle, kept.branch, self.output, kernels)
        self.output.gradients(dbranch, kept.u_output, kernels)
        self.output.gradient_a(dbranch, kept.attended, kernels, rows.drops)
        self.output.gradient_w(dbranch, kept.attended)
        dattended = self.output.gradient_x(dbranch, kernels, rows.drops)
        del dbranch
        kept.branch = kept.u_output = None
        q, k, v = self._heads(kept.qkv, rows, kernels)
        shape = (q.shape[0], spec.query_heads, spec.head_dim)
        dq, dk, dv = self.attention.backward(
            dattended.view(shape), q, k, v, kept.attended.view(shape), kept.statistics, rows.documents
        )
        del dattended, q, k, v
        kept.attended, kept.statistics = None, ()
        dqkv = self.qkv.widen_gradient(dmiddle.shape[0])
        cos, sin = rows.tables[spec.rotary]
        norms = self._head_norms()
        if norms:
            sums = self.norm_gradients["query_norm"], self.norm_gradients["key_norm"]
            norms |= {"qkv": kept.qkv, "norm_gradients": None if sums[0] is None else sums}
        kernels.rope.backward(
            dq, dk, dv, cos, sin, rows.positions, spec.query_heads, spec.key_heads, spec.head_dim,
            **norms, out=dqkv[:, : self.qkv.outputs],
        )  # fmt: skip
        del dq, dk, dv
        kept.qkv = None
        wide, norm = self.qkv.widen(dmiddle.shape[0]), spec.input_norm
        _, _, r = kernels.rms_norm.forward(kept.x, norm.weight, *norm.options, out=wide[:, :hidden])
        self.qkv.gradients(dqkv, kept.u_qkv, kernels)
        self.qkv.gradient_a(dqkv, wide[:, :hidden], kernels, rows.drops)
        self.qkv.gradient_w(dqkv, wide[:, :hidden])
        kept.u_qkv = None
        del wide
        if last:
            return None
        dnormal = self.qkv.gradient_x(dqkv, kernels, rows.drops)
        del dqkv
        dx = self.down.widen_gradient(dnormal.shape[0])
        kernels.rms_norm.backward(
            dnormal, kept.x, norm.weight, r, norm.offset, ds=dmiddle[:, :hidden], out=dx[:, :hidden],
            weight_gradient=self.norm_gradients["input_norm"],
        )  # fmt: skip
        kept.x = None
        return dx

    def _norm_backward(
        self, name: str, dy: Tensor, branch: Tensor, group: LinearGroup, kernels: Kernels
    ) -> Tensor:
        """Return the gradient before a norm on a branch, wide for `group`, whose result the branch is."""
        hidden, norm = branch.shape[1], getattr(self.spec, name)
        _, _, r = kernels.rms_norm.forward(branch, norm.weight, *norm.options)
        dbranch = group.widen_gradient(branch.shape[0])
        kernels.rms_norm.backward(
            dy[:, :hidden], branch, norm.weight, r, norm.offset, out=dbranch[:, :hidden],
            weight_gradient=self.norm_gradients[name],
        )  # fmt: skip
        return dbranch

    # -- MLP -----------------------------------------------------------------------------------------------------

    def _portions(self, rows: BatchLayout, count: int) -> list[tuple[slice, BatchLayout]]:
        size = rows.mlp_rows or count
        starts = range(0, count, size)
        return [
            (slice(start, start + size), replace(rows, drops=replace(rows.drops, first_row=start)))
            for start in starts
        ]

    def _mlp(
        self, middle: Tensor, rows: BatchLayout, kernels: Kernels, *, keep: bool
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, Tensor | None, Tensor | None]]:
        """Return y, the down projection's result where a norm follows it, and (gate|up, U, U) where all is kept."""
        norm = self.spec.output_norm
        down = torch.empty_like(middle)
        assert not (keep and rows.mlp_rows), "an MLP in portions is computed again"
        kept: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        for part, portion in self._portions(rows, middle.shape[0]):
            add = middle[part] if norm is None else None
            found = self._mlp_portion(middle[part], portion, kernels, add, down[part])
            if keep:  # only ever of all rows at once: the planner cuts the MLP where nothing of it is kept
                kept = found
            del found  # before the next portion makes its own
        if norm is None:
            return down, None, kept
        return self._join(norm, down, middle, kernels), down, kept

    def _mlp_portion(
        self, middle: Tensor, rows: BatchLayout, kernels: Kernels, add: Tensor | None, out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the down projection's result (+ `add`) of some rows to `out`; returns gate|up and both U."""
        gate_up, u_gate_up, _ = self._open_mlp(middle, rows, kernels)
        wide = self.down.widen(gate_up.shape[0])
        h, place = wide[:, : self.down.inputs], wide[:, self.down.inputs :]
        kernels.glu.forward(*self._halves(gate_up), self.spec.activation, out=h)
        u_down = self.down.project(h, place, kernels, rows.drops)
        self.down.forward(wide, kernels, add=add, out=out)
        return gate_up, u_gate_up, _own(u_down)

    def _open_mlp(self, middle: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate|up as wide gradient rows (their gradients take their place later), U, and the norm's 1/rms."""
        hidden, norm = middle.shape[1], self.spec.mlp_norm
        wide = self.gate_up.widen(middle.shape[0])
        _, _, r = kernels.rms_norm.forward(middle, norm.weight, *norm.options, out=wide[:, :hidden])
        u = self.gate_up.project(wide[:, :hidden], wide[:, hidden:], kernels, rows.drops)
        gate_up = self.gate_up.widen_gradient(middle.shape[0])
        self.gate_up.forward(wide, kernels, out=gate_up[:, : self.gate_up.outputs])
        return gate_up, _own(u), r

    def _halves(self, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.down.inputs
        return gate_up[:, :inner], gate_up[:, inner : 2 * inner]

    def _mlp_backward(self, kept: Saved, dy: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Return the gradient of the stream after attention, wide for the output group."""
        hidden = kept.middle.shape[1]
        dmiddle = self.output.widen_gradient(dy.shape[0])
        for part, portion in self._portions(rows, dy.shape[0]):
            self._mlp_portion_backward(
                replace_rows(kept, part), dy[part], portion, kernels, dmiddle[part][:, :hidden]
            )
        return dmiddle

    def _mlp_portion_backward(
        self, kept: Saved, dy: Tensor, rows: BatchLayout, kernels: Kernels, out: Tensor
    ) -> None:
        spec, hidden, inner = self.spec, kept.middle.shape[1], self.down.inputs
        ddown = dy
        if spec.output_norm is not None:
            ddown = self._norm_backward("output_norm", dy, kept.down, self.down, kernels)
        gate_up, u_gate_up = kept.gate_up, kept.u_gate_up
        if gate_up is None:
            gate_up, u_gate_up, _ = self._open_mlp(kept.middle, rows, kernels)
        gate, up = self._halves(gate_up)
        self.down.gradient_u(ddown, kernels)
        wide = self.down.widen(gate_up.shape[0])
        h = wide[:, :inner]
        self.down.gradient_x(ddown, kernels, rows.drops, out=h)
        # dh's place is taken by h, gate's and up's by their gradients: each element is read before it is written.
        kernels.glu.backward(h, gate, up, spec.activation, dgate=gate, dup=up, h=h)
        u_down = kept.u_down
        if u_down is None:
            u_down = self.down.project(h, wide[:, inner:], kernels, rows.drops)
        self.down.gradient_b(ddown, u_down, kernels)
        self.down.gradient_a(ddown, h, kernels, rows.drops)
        self.down.gradient_w(ddown, h)
        del wide, h, u_down
        self.gate_up.gradients(gate_up, u_gate_up, kernels)
        normal, norm = self.gate_up.widen(gate_up.shape[0])[:, :hidden], spec.mlp_norm
        _, _, r = kernels.rms_norm.forward(kept.middle, norm.weight, *norm.options, out=normal)
        self.gate_up.gradient_a(gate_up, normal, kernels, rows.drops)
        self.gate_up.gradient_w(gate_up, normal)
        dnormal = self.gate_up.gradient_x(gate_up, kernels, rows.drops)
        kernels.rms_norm.backward(
            dnormal, kept.middle, norm.weight, r, norm.offset, ds=dy[:, :hidden], out=out,
            weight_gradient=self.norm_gradients["mlp_norm"],
        )  # fmt: skip


def _own(u: Tensor) -> Tensor:
    """Return the tail of wide rows in memory of its own, so that the rest of the rows can go."""
    return u.contiguous() if u.shape[1] else u


def kind_of(layer: Layer) -> tuple:
    """Return all that layers of one kind have in common, but for the numbers in their weights."""
    spec = layer.spec
    norms = (
        spec.input_norm, spec.attention_norm, spec.mlp_norm, spec.output_norm, spec.query_norm, spec.key_norm,
    )  # fmt: skip
    groups = tuple(
        (group.weights.sizes, group.inputs, group.bias is not None, type(group.weights), group.dropout)
        + tuple((part.rank, part.scale) for part in group.parts)
        for group in layer.groups
    )
    return (
        spec.activation, spec.scale, spec.window, spec.softcap, spec.rotary, spec.head_dim, spec.query_heads,
        spec.key_heads, tuple(norm and norm.options for norm in norms), groups, layer.attention.name,
        tuple(type(part) for part in spec.module.modules()),
    )  # fmt: skip
