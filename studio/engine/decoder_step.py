"""Micro-batches by the studio's own decoder: documents without padding between them, small ones by recorded graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from studio_kernels.attention import Documents
from torch import Tensor

from studio.data.pack import Example
from studio.engine.batches import PAD_MULTIPLE, document_starts
from studio.engine.step import Scale
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.graph import GraphedDecoder

GRAPH_OPERATIONS = 12e12
"""Micro-steps of fewer operations are recorded: they take a card 30 ms at most, and Python 80 to launch."""
GRAPH_TOKENS = 4096


class DecoderStep:
    """Computes with `decoder`; its adapters are one parameter for the optimizer."""

    kind = "decoder"

    def __init__(self, decoder: Decoder, *, pad_id: int) -> None:
        self.decoder = decoder
        self.pad_id = pad_id
        self.device = decoder.device
        self.pad_multiple = PAD_MULTIPLE.get(self.device.type, PAD_MULTIPLE["cpu"])
        weights = torch.nn.Parameter(decoder.store.weights)
        weights.grad = decoder.store.gradients
        self.decayed, self.undecayed = [weights], []
        self._drops = any(group.dropout for layer in decoder.layers for group in layer.groups)
        linear = sum(group.inputs * group.outputs for layer in decoder.layers for group in layer.groups)
        self._operations_a_token = 6 * linear
        self._graphs: tuple[int, GraphedDecoder] | None = None

    def clear(self) -> None:
        """See Step."""
        self.decoder.store.clear_gradients()
        self.decoder.note_change()

    def add_gradients(self, examples: Sequence[Example], trained_tokens: int, scale: Scale) -> Tensor:
        """See Step."""
        ids, lengths, picks = join(examples, self.pad_id, self.pad_multiple)
        factor = scale(torch.full((), 1.0 / trained_tokens, dtype=torch.float32, device=self.device))
        seed = int(torch.randint(2**62, ())) if self._drops else 0
        if self._recorded(len(ids)) and len(picks):
            loss = self._graph().add_gradients(ids, lengths, picks, ids[picks + 1], scale=factor, seed=seed)
            return loss / trained_tokens
        rows = self.decoder.make_rows(
            Documents.of(lengths, self.device),
            torch.tensor(seed, device=self.device) if self._drops else None,
        )
        tokens, places, targets = self._place(ids, picks)
        return self.decoder.add_gradients(tokens, rows, places, targets, factor) / trained_tokens

    def sum_loss(self, examples: Sequence[Example]) -> Tensor:
        """See Step."""
        self.decoder.note_change()
        ids, lengths, picks = join(examples, self.pad_id, self.pad_multiple)
        rows = self.decoder.make_rows(Documents.of(lengths, self.device))
        tokens, places, targets = self._place(ids, picks)
        return self.decoder.sum_loss(tokens, rows, places, targets)

    def _place(self, ids: np.ndarray, picks: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, picks and targets on the device, by one copy."""
        together = torch.from_numpy(np.concatenate([ids, picks, ids[picks + 1]]))
        if self.device.type == "cuda":
            together = together.pin_memory().to(self.device, non_blocking=True)
        return together.split([len(ids), len(picks), len(picks)])

    def _recorded(self, tokens: int) -> bool:
        small = tokens <= GRAPH_TOKENS and tokens * self._operations_a_token < GRAPH_OPERATIONS
        kept_here = not any(policy.offload for policy in self.decoder.policy.layers)
        composed = any(layer.attention.packed.name == "math" for layer in self.decoder.layers)
        return self.device.type == "cuda" and small and kept_here and not composed

    def _graph(self) -> GraphedDecoder:
        """Return the recorder; a new one when policy or kernels have changed since."""
        now = hash((self.decoder.policy, tuple(self.decoder.kernels.implementations.items())))
        if self._graphs is None or self._graphs[0] != now:
            self._graphs = None  # lets go of the old graphs' memory first
            self._graphs = now, GraphedDecoder(self.decoder)
        return self._graphs[1]


def join(
    examples: Sequence[Example], pad_id: int, multiple: int
) -> tuple[np.ndarray, tuple[int, ...], np.ndarray]:
    """Return token ids (T,) int64, the documents' lengths, and the places (N,) whose next token is trained.

    T is rounded up to a multiple of `multiple` by padding that counts to the last document: what comes after a token
    does not change it.
    """
    ids = np.concatenate([example.token_ids for example in examples]).astype(np.int64)
    trained = [example.trained.copy() for example in examples]
    for mask, example in zip(trained, examples, strict=True):
        mask[document_starts(example)] = False
    picks = np.nonzero(np.concatenate(trained))[0] - 1
    lengths = [length for example in examples for length in example.lengths]
    missing = -len(ids) % multiple
    lengths[-1] += missing
    return np.concatenate([ids, np.full(missing, pad_id)]), tuple(lengths), picks
