"""Self-attention whose keys and values are those of an earlier layer (Gemma 4 E2B and E4B).

    n = norm(x)        q = n Wq^T, normalised and rotated        a = attention(q, k, v)        y = x + norm(a Wo^T)

k and v are what the lender's attention read. Their gradients of all borrowers are summed and join the lender's own
(shared_rows.py). All else is SelfAttention with no key heads of its own; kept answers read the lender's pages.
Source: Brandon et al. 2024, arXiv:2405.12981.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor, zeros_like

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.attention import SavedAttention, SelfAttention
from studio.models.decoder.cached_rows import CachedRows, SlotRows


class BorrowedKeys(SelfAttention):
    """See the file's docstring. SavedAttention.qkv is the queries alone, (T, q)."""

    def decode(self, number: int, x: Tensor, rows: CachedRows | SlotRows, kernels: Kernels) -> Tensor:
        """See SelfAttention: nothing is kept of this layer."""
        queries, _ = self._project_qkv(x, rows.layout, kernels)
        q, _, _ = self._turned_heads(queries, rows.layout, kernels)
        attended = rows.attend(self.spec.source, q, None, None, self.spec, self.kernel, kernels)
        return self._join(x, self._join_heads(attended), rows.layout, kernels)[0]

    def _heads(self, qkv: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
        """See SelfAttention."""
        return self._turned_heads(qkv, rows, kernels)[0], *rows.shared.keys[self.spec.source]

    def _heads_gradient(
        self, gradients: list[Tensor], saved: SavedAttention, rows: BatchLayout, kernels: Kernels
    ) -> Tensor:
        """See SelfAttention: the gradients of k and v go to the lender."""
        dq, dk, dv = gradients
        rows.shared.give_back(self.spec.source, dk, dv)
        gradients[:] = dq, dk[:, :0], dv[:, :0]
        return super()._heads_gradient(gradients, saved, rows, kernels)

    def _norm_sums(self) -> tuple[Tensor | None, Tensor | None]:
        """See SelfAttention: the op adds to both, and there is no key."""
        query = self.norm_gradients.get("query_norm")
        return query, None if query is None else zeros_like(query)
