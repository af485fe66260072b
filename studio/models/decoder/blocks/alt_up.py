"""Several residual streams, of which a layer computes one (AltUp, in Gemma 3n): what is done before it and after it.

    m(v) = tanh(c norm(v) Wm^T)
    before   P_i = X_i + sum_k R_ik X_k,  R = m(X_0) Wp^T         the layer reads P_0
    after    C_i = P_i + e_i (y - P_0),   e = 1 + m(y) Wc^T       y is what it gave

    de_i = <dC_i, y - P_0>        dy = sum_i e_i dC_i + m'(de Wc)         dP = dC, and dP_0 -= sum_i e_i dC_i
    dR_ik = <dP_i, X_k>           dX_k = dP_k + sum_i R_ik dP_i, and dX_0 += m'(dR Wp)

T rows; n streams of H columns side by side, (T, n H); m and e (T, n), R (T, n, n). For 0 read which stream the model
computes. The three matrices are frozen: they choose. Nothing but X is kept. Source: Baykal et al. 2023,
arXiv:2301.13310; checked against float64 autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.decoder.blocks.block import Saved, StreamRows
from studio.models.decoder.blocks.residual import leave_backward, normalise
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec


@dataclass(slots=True)
class SavedStreams(Saved):
    """See Saved."""

    large: ClassVar[tuple[str, ...]] = ("x",)
    x: Tensor | None = None
    """(T, n H) what the layer was given."""


class AltUp:
    """See the file's docstring. `outer`: the form of n streams side by side."""

    groups: tuple[LinearGroup, ...] = ()

    def __init__(self, spec: LayerSpec, stream: StreamRows, norm_gradients: dict[str, Tensor | None]) -> None:
        """`norm_gradients`: as SelfAttention takes them."""
        self.spec, self.outer = spec, stream
        self.norm_gradients = norm_gradients

    def active(self, streams: Tensor) -> Tensor:
        """Return the columns (T, H) of the stream that the layer computes, in place."""
        number = self.spec.alt_up.active
        return self._split(streams)[:, number]

    def predict(self, x: Tensor, kernels: Kernels) -> Tensor:
        """Return P (T, n H)."""
        m, _ = self._measure(self.active(x), kernels)
        streams = self._split(x)
        return torch.baddbmm(streams, self._mix(m), streams).flatten(1)

    def predict_backward(self, dp: Tensor, x: Tensor, kernels: Kernels, out: Tensor) -> None:
        """Write dX (T, n H) to `out`, given dP and X."""
        m, r = self._measure(self.active(x), kernels)
        streams, gradients = self._split(x), self._split(dp)
        self._split(out).copy_(torch.baddbmm(gradients, self._mix(m).transpose(1, 2), gradients))
        dm = torch.bmm(gradients, streams.transpose(1, 2)).flatten(1) @ self._weight("prediction", x)
        place = self.active(out)
        self._measure_backward(dm, m, self.active(x), r, place, kernels, place)

    def correct(self, predictions: Tensor, y: Tensor, kernels: Kernels) -> Tensor:
        """Return C (T, n H) of P and the layer's result y (T, H)."""
        e = self._correction(self._measure(y, kernels)[0])
        new = (y - self.active(predictions))[:, None]
        return torch.addcmul(self._split(predictions), e[:, :, None], new).flatten(1)

    def correct_active(self, predictions: Tensor, y: Tensor, kernels: Kernels) -> Tensor:
        """Return C (T, H) of the stream that the layer computes."""
        e = self._correction(self._measure(y, kernels)[0])
        number, there = self.spec.alt_up.active, self.active(predictions)
        return torch.addcmul(there, e[:, number, None], y - there)

    def correct_backward(
        self, dc: Tensor, predictions: Tensor, y: Tensor, kernels: Kernels, out: Tensor
    ) -> None:
        """Write dy (T, H) to `out`, and turn `dc` (T, n H) into dP in its place."""
        m, r = self._measure(y, kernels)
        gradients, new = self._split(dc), y - self.active(predictions)
        dm = torch.bmm(gradients, new[:, :, None])[:, :, 0] @ self._weight("correction", y)
        dnew = torch.bmm(self._correction(m)[:, None], gradients)[:, 0]
        self.active(dc).sub_(dnew)
        self._measure_backward(dm, m, y, r, dnew, kernels, out)

    def scale(self, rows: Tensor) -> Tensor:
        """Return rows (T, H), or their gradients, as a token's own input meets them."""
        scale = self.spec.alt_up.scale
        return rows if scale is None else rows * scale.detach().to(rows.dtype)

    def _split(self, streams: Tensor) -> Tensor:
        """Return (T, n, H) of n streams side by side, in place."""
        count = self.spec.alt_up.streams
        return streams.unflatten(1, (count, streams.shape[1] // count))

    def _weight(self, name: str, like: Tensor) -> Tensor:
        return getattr(self.spec.alt_up, name).detach().to(like.dtype)

    def _mix(self, m: Tensor) -> Tensor:
        """Return R (T, n, n)."""
        count = self.spec.alt_up.streams
        return (m @ self._weight("prediction", m).T).unflatten(1, (count, count))

    def _correction(self, m: Tensor) -> Tensor:
        """Return e (T, n)."""
        return m @ self._weight("correction", m).T + 1.0

    def _measure(self, v: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Return m (T, n) of rows v (T, H), and the norm's 1/rms (T,)."""
        normal, r = normalise(self.spec.router_norm, v, kernels)
        found = (normal @ self._weight("router", normal).T).float() * self.spec.alt_up.input_scale
        return found.tanh().to(v.dtype), r

    def _measure_backward(
        self, dm: Tensor, m: Tensor, v: Tensor, r: Tensor, dv: Tensor, kernels: Kernels, out: Tensor
    ) -> None:
        """Write `dv` and what comes back through m to `out` (T, H)."""
        wide = m.float()
        found = (dm.float() * (1.0 - wide * wide) * self.spec.alt_up.input_scale).to(v.dtype)
        gradient = self.norm_gradients.get("router_norm")
        leave_backward(
            self.spec.router_norm, found @ self._weight("router", v), v, r, dv, gradient, kernels, out
        )
