"""The input embedding: rows of a table by the module's own code, and the table's gradient where it is trained.

x_t = s E[i_t]        dE[i] += s sum_(t: i_t = i) dx_t, but for the padding token, which torch leaves as it is
Where some rows alone are trained, see token_rows.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from studio.models.decoder.token_rows import TokenRows


class Embedding:
    """`module` looks rows up; `gradient` (V, H) is where their gradients are added, None where they are frozen.

    `after`: by what the decoder multiplies what the module gives (Granite). `rows`: what alone is trained, where it is;
    then the gradient is theirs, (K, H).
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        gradient: Tensor | None,
        after: float,
        rows: TokenRows | None = None,
    ) -> None:
        self.module = module
        self.dtype = dtype
        self.gradient = gradient
        self.after = after
        self.rows = rows
        self.scale = float(getattr(module, "embed_scale", 1.0)) * after
        """Gemma multiplies rows by the root of their width, in the module itself."""

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return x (T, H) of ids (T,)."""
        x = self.module(token_ids).to(self.dtype)
        return x if self.after == 1.0 else x.mul_(self.after)

    def backward(self, token_ids: Tensor, dx: Tensor) -> None:
        """Add the gradients of rows dx (T, H), always in the same order."""
        if self.gradient is None:
            return
        if self.rows is not None:
            self.rows.add_looked_up(token_ids, dx, self.scale, self.module.padding_idx, self.gradient)
            return
        rows = dx.to(self.gradient.dtype) * self.scale
        padding = self.module.padding_idx
        if padding is not None:
            rows.masked_fill_((token_ids == padding)[:, None], 0.0)
        if rows.device.type == "cpu":
            self.gradient.index_add_(0, token_ids, rows)
        else:  # sorts the ids, where index_add_ adds in the order in which threads come
            self.gradient.index_put_((token_ids,), rows, accumulate=True)
