"""Lets a base model and its tuned form answer: streamed for a chat, in batches for a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.record import RunRecord
from studio.core.text import text
from studio.engine.artifact import load_artifact
from studio.models.load import load_model, load_tokenizer, set_evaluation

SIDES = ("base", "tuned")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn: greedy at temperature 0."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0


class Speaker:
    """A run's base and tuned model, loaded once for many answers; an adapter shares its base's memory."""

    def __init__(self, folder: Path, record: RunRecord, facts: ModelFacts, plan: BackendPlan) -> None:
        self.run = record.run
        self.tokenizer = load_tokenizer(facts)
        self.device = plan.device.value
        self.tuned: Any = load_artifact(folder, record, facts, plan)
        self.base: Any = self.tuned
        if not record.adapter:
            settings = {"dtype": plan.dtype.value, "attention": plan.attention.value}
            self.base = load_model(facts, device=self.device, **settings).model

        for model in {id(self.base): self.base, id(self.tuned): self.tuned}.values():
            set_evaluation(model)

    def stream(
        self,
        messages: Sequence[dict[str, str]],
        side: str,
        sampling: Sampling,
        emit: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> str:
        """Answer `messages` on `side` (`base` or `tuned`); `emit(answer so far)` with each token; returns the answer.

        Raises StudioError when the conversation does not fit the model or has no template.
        """
        ids = self._prompt_ids(messages)
        streamer = _Collector(self.tokenizer, emit)
        settings: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            settings = {"do_sample": True, "temperature": sampling.temperature}
            torch.manual_seed(sampling.seed)
        self._generate(
            side,
            input_ids=torch.tensor([ids], device=self.device),
            attention_mask=torch.ones((1, len(ids)), dtype=torch.long, device=self.device),
            max_new_tokens=sampling.max_new_tokens,
            streamer=streamer,
            stopping_criteria=StoppingCriteriaList([_StopFlag(should_stop)]),
            **settings,
        )
        return streamer.answer

    def answer_all(
        self,
        conversations: Sequence[Sequence[dict[str, str]]],
        side: str,
        *,
        max_new_tokens: int,
        batch: int = 32,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Return greedy answers to many prompts, `batch` at a time, padded on the left; fewer when stopped."""
        prompts = [self._prompt_ids(messages) for messages in conversations]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers = [""] * len(prompts)
        pad = self.tokenizer.pad_token_id
        for start in range(0, len(order), batch):
            if should_stop():
                break
            chosen = order[start : start + batch]
            width = max(len(prompts[i]) for i in chosen)
            ids = torch.full((len(chosen), width), pad, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, i in enumerate(chosen):
                ids[row, width - len(prompts[i]) :] = torch.tensor(prompts[i])
                mask[row, width - len(prompts[i]) :] = 1
            out = self._generate(
                side,
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
            for i, words in zip(
                chosen, self.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True), strict=True
            ):
                answers[i] = words
            on_progress(start + len(chosen), len(order))
        return answers

    def _prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        if self.tokenizer.chat_template:
            words = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        else:
            words = messages[-1]["content"]
        ids = self.tokenizer(words, add_special_tokens=not self.tokenizer.chat_template)["input_ids"]
        limit = getattr(self.tuned.config.get_text_config(), "max_position_embeddings", 0)
        if limit and len(ids) >= limit:
            raise StudioError(
                text("chat.too_long", tokens=len(ids)),
                text("chat.too_long.why", limit=limit),
                text("chat.too_long.fix"),
            )
        return ids

    @torch.inference_mode()
    def _generate(self, side: str, **settings: Any) -> torch.Tensor:
        model = self.tuned if side == "tuned" else self.base
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", 0)
        if limit:
            room = limit - settings["input_ids"].shape[1]
            settings["max_new_tokens"] = max(1, min(settings["max_new_tokens"], room))
        settings["pad_token_id"] = self.tokenizer.pad_token_id
        if side == "base" and isinstance(model, PeftModel):
            with model.disable_adapter():
                return model.generate(**settings)
        return model.generate(**settings)


class _Collector(BaseStreamer):
    """Receives tokens from generate() and emits the answer so far, holding back a half-finished character."""

    def __init__(self, tokenizer: Any, emit: Callable[[str], None]) -> None:
        self.tokenizer = tokenizer
        self.emit = emit
        self.ids: list[int] = []
        self.prompt_seen = False
        self.answer = ""

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        self.ids.extend(value.reshape(-1).tolist())
        self.answer = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        if not self.answer.endswith("\ufffd"):
            self.emit(self.answer)

    def end(self) -> None:
        self.emit(self.answer)


class _StopFlag(StoppingCriteria):
    """Ends generate() when the person asks."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self.should_stop = should_stop

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Return (rows,) bool: whether each row's answer ends here."""
        return torch.full(
            (input_ids.shape[0],), self.should_stop(), device=input_ids.device, dtype=torch.bool
        )
