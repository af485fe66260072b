"""Answers by the model's own code: transformers' generate, for models that the studio's decoder does not take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from studio.engine.generation.request import Completion, Read, read_own


class _Grown(StoppingCriteria):
    """Takes over each new token of rows that grow; ends a row where its answer ends."""

    def __init__(
        self,
        completions: Sequence[Completion],
        ends: Callable[[Sequence[int]], bool],
        on_step: Callable[[Sequence[Completion]], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.completions, self.ends, self.on_step, self.should_stop = completions, ends, on_step, should_stop
        self.read: Read | None = None
        """Of the one row whose distributions are looked at."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Return (rows,) bool: whether each row's answer ends here. input_ids: (rows, tokens) int64."""
        grown = []
        for one, token in zip(self.completions, input_ids[:, -1].tolist(), strict=True):
            if one.reason is not None:
                continue
            one.tokens.append(token)
            grown.append(one)
            if self.read is not None:
                one.likeliest.append(self.read(token))
            whole = one.constraint is not None and one.constraint.take(token)
            if whole or self.ends(one.tokens):
                one.reason = "end"
            elif len(one.tokens) >= one.request.sampling.max_new_tokens:
                one.reason = "limit"
        self.on_step(grown)
        stopped = self.should_stop()
        ended = [stopped or one.reason is not None for one in self.completions]
        return torch.tensor(ended, device=input_ids.device, dtype=torch.bool)


class _Watched(LogitsProcessor):
    """Reads of one row what its request asks for, and forbids what its constraint does."""

    def __init__(self, grown: _Grown) -> None:
        self.grown = grown

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores (1, V) with what may not come next at -inf. transformers divides and cuts after this."""
        scores = scores.float()
        self.grown.read = read_own(scores[0], self.grown.completions[0])
        return scores


def answer_by_generate(
    model: nn.Module,
    completions: Sequence[Completion],
    ends: Callable[[Sequence[int]], bool],
    *,
    end_ids: Sequence[int],
    pad_id: int,
    rows: int,
    on_step: Callable[[Sequence[Completion]], None],
    should_stop: Callable[[], bool],
) -> None:
    """Let completions grow to their ends: prompts of similar length together, padded on the left.

    At most `rows` at a time, one where answers are drawn: transformers has one seed for all rows. Nobody's random
    numbers are used up. There are no log-probabilities but those that a request asks for.
    """
    order = sorted(completions, key=lambda one: len(one.request.prompt))
    while (order := [one for one in order if one.reason is None]) and not should_stop():
        sampling = order[0].request.sampling
        count = 1 if sampling.temperature > 0 or order[0].watched else min(rows, len(order))
        begun = len(order[0].tokens)
        some = [
            one for one in order[:count]
            if one is order[0] or (one.request.sampling == sampling and not one.watched and len(one.tokens) == begun)
        ]  # fmt: skip
        order = [one for one in order if not any(one is other for other in some)]
        _answer(model, some, _Grown(some, ends, on_step, should_stop), end_ids, pad_id)
        for one in some:
            one.reason = one.reason or "stopped"
    for one in order:
        one.reason = one.reason or "stopped"


@torch.inference_mode()
def _answer(
    model: nn.Module, some: Sequence[Completion], grown: _Grown, end_ids: Sequence[int], pad_id: int
) -> None:
    prompts = [[*one.request.prompt, *one.tokens] for one in some]
    sampling, device = some[0].request.sampling, model.device
    left = sampling.max_new_tokens - len(some[0].tokens)
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    settings: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        settings = {"do_sample": True, "temperature": sampling.temperature}
        settings |= {"top_p": sampling.top_p, "top_k": sampling.top_k}
        settings |= {"min_p": sampling.min_p} if sampling.min_p else {}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(sampling.seed)
        model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max(1, left),
            repetition_penalty=sampling.repetition_penalty,
            pad_token_id=pad_id,
            stopping_criteria=StoppingCriteriaList([grown]),
            **({"logits_processor": LogitsProcessorList([_Watched(grown)])} if some[0].watched else {}),
            **({"eos_token_id": list(end_ids)} if end_ids else {}),
            **settings,
        )
