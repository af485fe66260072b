"""Some rows of the embedding or the head, trained while the rest of the table is frozen (peft's trainable tokens).

    x_t = s E[i_t]        dE_k += s sum_(t: i_t = k) dx_t = s (O^T dx)_k        O_tk = 1 where i_t = k, else 0
    dW_k += sum_t c_t a k'_tk (p_tk - y_tk) h_t        p_tk = exp(z_tk - z_ty - l_t)        p_ty - 1 = expm1(-l_t)

K rows of V; T tokens; N labelled rows h (N, H) with losses l = -log p(y); z, a, k' and c as in the loss head
(studio_kernels/linear_cross_entropy.py), y_tk = 1 where k is the label. Nothing of the size of the table is made: the
trained rows, rounded, are written into the table itself, and its own are put back at the end. peft computes with a copy
of the whole table in every forward pass, 1 GiB of 128,256 x 4,096 words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from peft.utils.other import TrainableTokensWrapper
from studio_kernels.matmul import multiply_into
from torch import Tensor, nn

ROWS_AT_ONCE = 4096
"""Of the trained ones: O and p of 4,096 tokens then take 32 to 64 MiB."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Rows `ids` (K,) int64 of `table` (V, H), held by `parameter` (K, H)."""

    ids: Tensor
    parameter: nn.Parameter
    table: nn.Parameter
    before: Tensor
    """(K, H) what the table held there."""

    def write(self) -> None:
        """Let the table hold what is trained, rounded to its dtype."""
        self.table.data.index_copy_(0, self.ids, self.parameter.detach().to(self.table.dtype))

    def put_back(self) -> None:
        """Let the table hold its own rows."""
        self.table.data.index_copy_(0, self.ids, self.before)

    def add_looked_up(
        self, token_ids: Tensor, dx: Tensor, scale: float, padding: int | None, out: Tensor
    ) -> None:
        """Add the gradients of rows that were looked up, dx (T, H), to `out` (K, H), always in the same order."""
        for start in range(0, len(self.ids), ROWS_AT_ONCE):
            ids = self.ids[start : start + ROWS_AT_ONCE]
            hits = token_ids[:, None] == ids[None]
            if padding is not None:
                hits &= ids[None] != padding
            multiply_into(hits.to(dx.dtype).T, dx, out[start : start + len(ids)], add=True, scale=scale)

    def add_counted(
        self,
        hidden: Tensor,  # (N, H)
        targets: Tensor,  # (N,)
        losses: Tensor,  # (N,) `scale` times -log p
        scale: float | Tensor,  # () or (N,)
        counted: Tensor | None,  # (N,) by what the loss's gradient is multiplied besides
        head: tuple[float, float],
        out: Tensor,  # (K, H)
    ) -> None:
        """Add the gradients of what the loss head gave; `head`: the logits' scale, and their cap or 0."""
        scales = torch.as_tensor(scale, dtype=losses.dtype, device=losses.device).expand_as(losses)
        plain = torch.where(scales == 0, 0.0, losses / scales)
        factors = scales if counted is None else scales * counted
        self.add_projected(hidden, targets, plain, factors, *head, out)

    def add_projected(
        self,
        hidden: Tensor,  # (N, H)
        targets: Tensor,  # (N,)
        losses: Tensor,  # (N,) -log p
        factors: Tensor,  # (N,) c
        logit_scale: float,
        softcap: float,
        out: Tensor,  # (K, H)
    ) -> None:
        """Add the gradients of rows that the head multiplied by; a label that is not in the vocabulary gives none."""
        wide = losses.dtype
        kept = (targets >= 0) & (targets < len(self.table))
        places = targets.clamp(0, len(self.table) - 1)
        label = torch.empty_like(losses)
        for start in range(0, len(hidden), ROWS_AT_ONCE):  # the labels' words in wide numbers
            part = slice(start, start + ROWS_AT_ONCE)
            label[part] = (hidden[part].to(wide) * self.table[places[part]].to(wide)).sum(1)
        whole = _cap(label * logit_scale, softcap)[0] + losses
        for start in range(0, len(self.ids), ROWS_AT_ONCE):
            ids = self.ids[start : start + ROWS_AT_ONCE]
            z = torch.empty(len(hidden), len(ids), dtype=wide, device=hidden.device)
            multiply_into(hidden, self.table[ids].T, z, add=False, scale=logit_scale)
            z, slope = _cap(z, softcap)
            rivals = (z - whole[:, None]).exp()
            pulls = torch.where(targets[:, None] == ids[None], torch.expm1(-losses)[:, None], rivals)
            if slope is not None:
                pulls *= slope
            pulls = torch.where(kept[:, None], pulls * (factors * logit_scale)[:, None], 0.0)
            multiply_into(pulls.to(hidden.dtype).T, hidden, out[start : start + len(ids)], add=True)


def _cap(u: Tensor, softcap: float) -> tuple[Tensor, Tensor | None]:
    """Return capped logits and their slope, None for 1."""
    if not softcap:
        return u, None
    z = softcap * torch.tanh(u / softcap)
    return z, 1 - (z / softcap).square()


def read_rows(module: nn.Module) -> TokenRows | str | None:
    """Return the rows of `module` that peft trains; None for none, a word where it does so in another way."""
    if not isinstance(module, TrainableTokensWrapper):
        return None
    layer = module.token_adapter
    names = [name for name in layer.active_adapters if name in layer.trainable_tokens_delta]
    if len(names) != 1 or layer.disable_adapters or layer.merged:
        return "trainable tokens"
    parameter, table = layer.trainable_tokens_delta[names[0]], layer.base_layer.weight
    ids = torch.tensor(layer.token_indices[names[0]], device=table.device)
    if len(ids.unique()) < len(ids):
        return "trainable tokens"
    return TokenRows(ids, parameter, table, table.detach()[ids].clone())
