"""The loss head of the model's own code: -log p of each token that counts, without the logits of other positions.

N: trained positions   H: hidden width   V: vocabulary
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from studio_kernels.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from torch.utils.checkpoint import checkpoint

from studio.core.i18n import Text, text
from studio.engine.batches import Batch
from studio.models.adapt import evaluation_mode
from studio.models.language_model import find_head, find_language_model, text_inputs
from studio.models.new_tokens import unwrap_end

# Above this size of fp32 logits a frozen head is computed in one pass of tiles, and a trained one in row chunks that
# are recomputed in the backward pass: 256 MiB is 512 rows of a 128k vocabulary.
CHUNK_BYTES = 256 * 2**20
COUNTS_FROM_PADDING = "create_position_ids_from_input_ids"
"""What a table of positions has that counts them from its padding token, where it is not told them."""


class LossHead:
    """Computes the loss from the decoder's hidden states and the output embeddings of one causal language model.

    `model` is the model without adapter wrapper (adapters sit inside its layers). The head is probed once against
    the model's own logits; where they differ (a family that scales its logits in its own way) the model's forward is
    used instead, and `note` says so. So it is for a prefix language model, which has to be told where answers begin.
    """

    def __init__(self, model: torch.nn.Module, temperature: float = 1.0) -> None:
        """`temperature`: what logits are divided by, behind any softcap, before they are log-probabilities."""
        self.model = model
        self.temperature = temperature
        self.decoder = find_language_model(model)
        self.projection = find_head(model)
        self.softcap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        end = unwrap_end(self.projection)
        self.weight: torch.nn.Parameter = end.weight
        """(V, H), without the rows that are trained apart."""
        self.inputs: int | None = getattr(end, "in_features", None)
        plain = type(self.projection) is torch.nn.Linear and self.projection.bias is None
        self.frozen = plain and not self.weight.requires_grad and self.weight.is_floating_point()
        self.prefixed = self._sees_ahead()
        self.first_position = self._find_first_position()
        self.own = not self.prefixed and self._matches()
        self.note: Text | None = None if self.own or self.prefixed else text("run.full_logits")

    def token_losses(self, batch: Batch) -> torch.Tensor:
        """Return -log p of the tokens of `batch` that count, (N,) float32; fills `batch.entropies` where given."""
        if batch.picks.numel() == 0:
            return torch.zeros(0, device=batch.input_ids.device, requires_grad=True)
        inputs = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "position_ids": batch.position_ids + self.first_position,
            "use_cache": False,
        }
        if not self.own:
            more = text_inputs(self.model, batch.input_ids.shape, batch.input_ids.device)
            more |= {"token_type_ids": mark_answers(batch)} if self.prefixed else {}
            logits = self.model(**inputs, **more).logits
            rows = logits.reshape(-1, logits.shape[-1]).index_select(0, batch.picks)
            return self._judge_logits(rows, batch.targets, batch.entropies)
        hidden = self.decoder(**inputs).last_hidden_state
        rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, batch.picks)  # (N, H)
        width = self.weight.shape[0]
        per_chunk = max(1, CHUNK_BYTES // (4 * width))
        if rows.shape[0] <= per_chunk:
            return self._row_losses(rows, batch.targets, batch.entropies)
        if self.frozen and rows.dtype in (self.weight.dtype, torch.float32):
            # Loss and gradient in one pass over the vocabulary: a third less work than computing chunks again.
            return LINEAR_CROSS_ENTROPY.reference(
                rows.to(self.weight.dtype),
                self.weight,
                batch.targets,
                softcap=(self.softcap or 0.0) / self.temperature,
                logit_scale=1 / self.temperature,
                reduction="none",
                entropies=batch.entropies,
            )
        targets = batch.targets.split(per_chunk)
        unsure = [None] * len(targets) if batch.entropies is None else batch.entropies.split(per_chunk)
        chunks = zip(rows.split(per_chunk), targets, unsure, strict=True)
        return torch.cat([checkpoint(self._row_losses, *chunk, use_reentrant=False) for chunk in chunks])

    def _row_losses(
        self, rows: torch.Tensor, targets: torch.Tensor, entropies: torch.Tensor | None
    ) -> torch.Tensor:
        return self._judge_logits(self._logits(rows), targets, entropies)

    def _judge_logits(
        self, logits: torch.Tensor, targets: torch.Tensor, entropies: torch.Tensor | None
    ) -> torch.Tensor:
        logits = logits.float() / self.temperature
        if entropies is not None:
            entropies.copy_(torch.special.entr(logits.detach().softmax(1)).sum(1))
        return F.cross_entropy(logits, targets, reduction="none")

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        logits = self.projection(rows)
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    @torch.no_grad()
    def _matches(self) -> bool:
        ids = self._make_ids()
        with evaluation_mode(self.model):
            stock = self.model(input_ids=ids, use_cache=False).logits.float()
            hidden = getattr(self.decoder(input_ids=ids, use_cache=False), "last_hidden_state", None)
            if hidden is not None and hidden.shape[-1] == self.inputs:
                own = self._logits(hidden).float()
                if own.shape == stock.shape and torch.allclose(own, stock, rtol=1e-3, atol=1e-3):
                    return True
        return False

    @torch.no_grad()
    def _find_first_position(self) -> int:
        """Return where the model itself begins to count positions: Kosmos-2.5 does behind its padding token's id."""
        pad = getattr(self.model.config.get_text_config(), "pad_token_id", None)
        if pad is None or not any(hasattr(part, COUNTS_FROM_PADDING) for part in self.decoder.modules()):
            return 0
        ids = self._make_ids()
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        given = {"input_ids": ids, "use_cache": False} | text_inputs(self.model, ids.shape, ids.device)
        with evaluation_mode(self.model):
            wanted = self.model(**given).logits
            for first in (0, pad + 1):
                found = self.model(**given, position_ids=places + first).logits
                if torch.allclose(found, wanted, rtol=1e-3, atol=1e-3):
                    return first
        return 0

    def _make_ids(self) -> torch.Tensor:
        """Return (1, 8) token ids for a trial."""
        vocabulary = self.model.config.get_text_config().vocab_size
        return torch.arange(2, 10, device=self.weight.device).remainder(vocabulary)[None]

    @torch.no_grad()
    def _sees_ahead(self) -> bool:
        """Return whether the words that are to be learned are seen where every token has the type 0."""
        device = self.weight.device
        ids = torch.arange(2, 10, device=device).remainder(self.weight.shape[0])[None]
        more = text_inputs(self.model, ids.shape, device)
        if "token_type_ids" not in more:
            return False
        other = ids.clone()
        other[0, -1] = ids[0, 0]
        with evaluation_mode(self.model):
            first, second = (
                self.model(input_ids=one, use_cache=False, **more).logits[0, 0] for one in (ids, other)
            )
        return not torch.allclose(first, second, rtol=1e-3, atol=1e-3)


def mark_answers(batch: Batch) -> torch.Tensor:
    """Return (B, S) int64: 0 for the tokens up to the first that counts, which see each other, 1 for those behind it.

    A prefix language model (PaliGemma, Beyer et al., 2024) reads its prompt from both sides and writes from left to
    right.
    """
    rows, length = batch.input_ids.shape
    first = torch.full((rows,), length, device=batch.picks.device)
    first.scatter_reduce_(0, batch.picks // length, batch.picks % length, "amin")
    return (torch.arange(length, device=first.device)[None] > first[:, None]).long()
