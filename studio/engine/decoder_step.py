"""Micro-batches by the studio's own decoder: documents without padding between them, small ones by recorded graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from studio_kernels.adamw import Steps
from studio_kernels.attention import Documents
from torch import Tensor

from studio.data.pack import Example
from studio.engine.batches import PAD_MULTIPLE
from studio.engine.step import Scale
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.graph import GraphedDecoder
from studio.models.decoder.layer import Rows
from studio.models.decoder.staging import Staging, split_rows

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
        self._staging = Staging(self.device)

    def adamw(self) -> Steps:
        """See Step: the op as the decoder's kernels are bound now."""
        return self.decoder.kernels.adamw

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
        tokens, rows, places, targets = self._place(ids, lengths, picks, seed)
        return self.decoder.add_gradients(tokens, rows, places, targets, factor) / trained_tokens

    def sum_loss(self, examples: Sequence[Example]) -> Tensor:
        """See Step."""
        self.decoder.note_change()
        ids, lengths, picks = join(examples, self.pad_id, self.pad_multiple)
        return self.decoder.sum_loss(*self._place(ids, lengths, picks))

    def drop_graphs(self) -> None:
        """Let go of what is recorded, and of its memory; it is recorded anew when next needed."""
        self._graphs = None

    def _place(
        self, ids: np.ndarray, lengths: tuple[int, ...], picks: np.ndarray, seed: int | None = None
    ) -> tuple[Tensor, Rows, Tensor, Tensor]:
        """Return tokens, rows, picks and targets on the device, by one copy; `seed` draws what is dropped."""
        arrays = (ids, picks, ids[picks + 1], np.array([seed or 0], dtype=np.int64), *split_rows(lengths))
        tokens, places, targets, drawn, starts, positions = self._staging.send(arrays)
        documents = Documents(
            lengths=lengths,
            starts=starts,
            positions=positions,
            uniform=lengths[0] if len(set(lengths)) == 1 else None,
            longest=max(lengths),
        )
        rows = self.decoder.make_rows(documents, drawn[0] if self._drops and seed is not None else None)
        return tokens, rows, places, targets

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
    lengths = [length for example in examples for length in example.lengths if length]
    count = sum(lengths)
    missing = -count % multiple
    ids = np.full(count + missing, pad_id, dtype=np.int64)
    np.concatenate([example.token_ids for example in examples], out=ids[:count])
    trained = np.concatenate([example.trained for example in examples])
    trained[np.cumsum([0, *lengths[:-1]])] = False  # a document's first token has none before it
    lengths[-1] += missing
    return ids, tuple(lengths), np.flatnonzero(trained) - 1
