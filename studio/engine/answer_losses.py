"""How likely a model holds the answers that are expected of it: the loss of their tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from studio.data.conversation import Conversation, Message
from studio.data.deadline import Deadline
from studio.data.render import Renderer
from studio.data.row import RowError

LOGITS_AT_ONCE = 2**26
"""Numbers that one batch's logits may hold: 256 MiB in fp32."""


@dataclass(frozen=True, slots=True)
class AnswerLoss:
    """The negative log likelihood of expected tokens, in nats: `total` over `tokens` of them."""

    total: float
    tokens: int
    likeliest: bool = False
    """Whether each of them is the likeliest behind those before it."""

    @property
    def mean(self) -> float:
        """- 1/T * sum over t of log p(token t | all before), the loss of training; nan without tokens."""
        return self.total / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """e to the mean (Jelinek et al., 1977); infinite where that exceeds a double."""
        return math.exp(self.mean) if self.mean < 700 else math.inf


def add_losses(losses: Sequence[AnswerLoss | None]) -> AnswerLoss:
    """Return the loss over all tokens of several rows: long answers count as much as they have tokens."""
    known = [loss for loss in losses if loss is not None]
    return AnswerLoss(sum(loss.total for loss in known), sum(loss.tokens for loss in known))


def render_expected(
    tokenizer: Any, conversations: Sequence[Sequence[Mapping[str, str]]], expected: Sequence[str | None]
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Return for each conversation its token ids (int32) and which are of the expected answer (bool).

    The mask is that of training (studio.data.render, the last answer): from where the prompt ends to the token that
    ends the turn. None where nothing is expected, or the template refuses the row.
    """
    renderer = Renderer(tokenizer, "last_answer")
    kind = "chat" if renderer.source else "completion"
    found: list[tuple[np.ndarray, np.ndarray] | None] = []
    for messages, wanted in zip(conversations, expected, strict=True):
        if wanted is None:
            found.append(None)
            continue
        turns = (*(Message(one["role"], one["content"]) for one in messages), Message("assistant", wanted))
        try:
            with Deadline() as deadline:
                deadline.begin(len(found) + 1)
                layout = renderer.lay_out(Conversation(turns, kind=kind))
        except RowError:
            found.append(None)
            continue
        rendered = renderer.tokenize([layout], None)[0]
        found.append((rendered.token_ids, rendered.trained))
    return found


@torch.inference_mode()
def measure_losses(
    model: Any,
    rows: Sequence[tuple[np.ndarray, np.ndarray] | None],
    *,
    pad_id: int,
    limit: int = 0,
    on_loss: Callable[[int, AnswerLoss], None] = lambda row, loss: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[AnswerLoss | None]:
    """Return the Loss of each row's marked tokens under `model`; None for a row that is None, too long, or not reached.

    rows: token ids [S] and marks [S] as render_expected() gives them; logits are computed as the model computes them,
    their softmax in fp32. `on_loss` hears of each row as it is known. limit: tokens that the model can read, 0 for any
    number: a row may have one more. Raises RuntimeError out of memory.
    """
    device = next(model.parameters()).device
    vocabulary = model.config.get_text_config().vocab_size
    known = [
        i
        for i, row in enumerate(rows)
        if row is not None and row[1][1:].any() and not 0 < limit < len(row[0]) - 1
    ]
    order = sorted(known, key=lambda i: len(rows[i][0]))
    losses: list[AnswerLoss | None] = [None] * len(rows)
    start = 0
    while start < len(order) and not should_stop():
        end = start + 1
        while (
            end < len(order) and (end + 1 - start) * len(rows[order[end]][0]) * vocabulary <= LOGITS_AT_ONCE
        ):
            end += 1
        chosen = order[start:end]
        width = len(rows[chosen[-1]][0])
        ids = torch.full((len(chosen), width), pad_id, dtype=torch.long)
        seen, marked = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for row, i in enumerate(chosen):
            tokens, marks = rows[i]
            ids[row, : len(tokens)] = torch.from_numpy(np.asarray(tokens, dtype=np.int64))
            seen[row, : len(tokens)] = 1
            marked[row, : len(tokens)] = torch.from_numpy(np.asarray(marks, dtype=bool))
        ids, seen, predicted = ids.to(device), seen.to(device), marked.to(device)[:, 1:]
        # Nothing is predicted behind the last token: it is not read.
        logits = model(input_ids=ids[:, :-1], attention_mask=seen[:, :-1], use_cache=False).logits
        scores, wanted = logits[predicted].float(), ids[:, 1:][predicted]
        terms = cross_entropy(scores, wanted, reduction="none").cpu().double()
        first = (scores.argmax(-1) == wanted).cpu()
        counts = predicted.sum(1).tolist()
        for i, part, hits in zip(chosen, terms.split(counts), first.split(counts), strict=True):
            losses[i] = AnswerLoss(float(part.sum()), len(part), bool(hits.all()))
            on_loss(i, losses[i])
        start = end
        on_progress(start, len(order))
    return losses
