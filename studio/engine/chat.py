"""Lets a base model and its tuned form answer: streamed for a chat, in batches for a measurement."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2.exceptions import TemplateError
from peft import PeftModel
from safetensors.torch import load_file
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.i18n import literal, text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.data.deadline import Deadline
from studio.data.templates.catalogue import read_choice
from studio.engine.artifact import load_artifact, save_artifact
from studio.engine.run_folder import RunFolder
from studio.engine.run_states import RESULT, find_weights
from studio.engine.stop_tokens import Ends, find_ends, set_ends
from studio.models.adapt import adapt
from studio.models.load import load_model, set_evaluation
from studio.models.modules_to_save import rename_saved
from studio.models.new_tokens import make_room
from studio.models.tokenizer import last_line, load_run_tokenizer, load_tokenizer

EMIT_EVERY_S = 0.05
"""A growing answer is told at most so often: each telling decodes all of it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn: greedy at temperature 0; `top_p` 1, `top_k` 0, `repetition_penalty` 1 change nothing."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer so far. Seconds count from when the model got the question, loading left out."""

    words: str
    tokens: int
    first_s: float
    """Until the first token."""
    took_s: float
    """Until the last token that there is."""
    unfinished: bool = False
    """Whether it was cut off at the limit of tokens: the model had not ended it."""

    @property
    def tokens_per_s(self) -> float:
        """After the first token, whose time goes into reading the question; 0 for a single token."""
        return (self.tokens - 1) / max(self.took_s - self.first_s, 1e-6) if self.tokens > 1 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Partner:
    """Whom to talk to: a run's result or checkpoint beside its base, or, without a run, a base model alone."""

    facts: ModelFacts
    plan: BackendPlan
    recipe: Recipe
    folder: RunFolder | None = None
    record: RunRecord | None = None
    place: str = RESULT

    @property
    def run(self) -> str:
        """The run's id, "" for a base model alone."""
        return self.folder.run if self.folder else ""


class Speaker:
    """A base model and its tuned form, loaded once for many answers; an adapter shares its base's memory."""

    def __init__(self, partner: Partner) -> None:
        """Load `partner`. Raises StudioError for files that are gone, damaged, or of another model."""
        self.partner = partner
        facts, plan = partner.facts, partner.plan
        self.tokenizer = load_run_tokenizer(facts, partner.recipe) if partner.run else load_tokenizer(facts)
        if partner.run and partner.recipe.data.template:  # the run's examples spoke so
            self.tokenizer.chat_template = read_choice(partner.recipe.data.template)
        self.device = plan.device.value
        settings = {"dtype": plan.dtype.value, "attention": plan.attention.value, "device": self.device}
        full = partner.recipe.adapter.method == "full"
        if not partner.run:
            self.tuned: Any = load_model(
                facts, quantization=plan.quantization.value, rope=plan.rope.value, **settings
            ).model
            self.base: Any = self.tuned
        else:
            self.tuned = load_tuned(partner)
            self.base = load_model(facts, **settings).model if full else self.tuned
        for model in self._models():
            set_evaluation(model)
        self._ends = find_ends(self.tokenizer, self.tuned.generation_config.eos_token_id)

    @property
    def size_bytes(self) -> int:
        """Memory that the weights take."""
        return sum(
            tensor.nbytes for model in self._models() for tensor in (*model.parameters(), *model.buffers())
        )

    def serves(self, partner: Partner) -> bool:
        """Return whether this is loaded for `partner` already; a checkpoint of the same run is taken up in place."""
        mine = self.partner
        if (mine.run, mine.facts.folder, mine.plan) != (partner.run, partner.facts.folder, partner.plan):
            return False
        if mine.place != partner.place:
            if partner.place == RESULT:
                return False
            weights = load_file(find_weights(partner.folder, partner.place))
            put_weights(self.tuned, rename_saved(self.tuned, weights))
            self.partner = partner
        return True

    def stream(
        self,
        messages: Sequence[Mapping[str, str]],
        side: str,
        sampling: Sampling,
        emit: Callable[[Answer], None],
        should_stop: Callable[[], bool],
    ) -> Answer:
        """Answer `messages` on `side` (`base` or `tuned`); `emit(answer so far)` as it grows; returns the answer.

        Raises StudioError when the conversation does not fit the model or its template.
        """
        ids = self._prompt_ids(messages)
        streamer = _Collector(self.tokenizer, emit, self._ends, sampling.max_new_tokens)
        settings: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            settings = {"do_sample": True, "temperature": sampling.temperature}
            settings |= {"top_p": sampling.top_p, "top_k": sampling.top_k}
        cards = [self.device] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(cards):  # a paused run goes on with its own random numbers
            torch.manual_seed(sampling.seed)
            self._generate(
                side,
                input_ids=torch.tensor([ids], device=self.device),
                attention_mask=torch.ones((1, len(ids)), dtype=torch.long, device=self.device),
                max_new_tokens=sampling.max_new_tokens,
                repetition_penalty=sampling.repetition_penalty,
                streamer=streamer,
                stopping_criteria=self._criteria(len(ids), should_stop),
                **settings,
            )
        return streamer.answer

    def answer_all(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
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
                repetition_penalty=1.0,
                stopping_criteria=self._criteria(width, should_stop),
            )
            if should_stop():
                break
            for i, words in zip(
                chosen, self.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True), strict=True
            ):
                answers[i] = self._ends.cut(words)
            on_progress(start + len(chosen), len(order))
        return answers

    @contextmanager
    def using(self, side: str) -> Iterator[Any]:
        """Give the model of `side` for a block; the base of an adapter is the same model without it."""
        model = self.tuned if side == "tuned" else self.base
        if side == "base" and isinstance(model, PeftModel):
            with model.disable_adapter():
                yield model
        else:
            yield model

    def _models(self) -> tuple[Any, ...]:
        return (self.tuned,) if self.base is self.tuned else (self.base, self.tuned)

    def _criteria(self, prompt_tokens: int, should_stop: Callable[[], bool]) -> StoppingCriteriaList:
        return StoppingCriteriaList(
            [_StopFlag(should_stop), *self._ends.criteria(self.tokenizer, prompt_tokens)]
        )

    def _prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if self.tokenizer.chat_template:
            try:
                with Deadline() as deadline:
                    deadline.begin(0)
                    words = self.tokenizer.apply_chat_template(
                        [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
                    )
            except TemplateError as error:
                raise StudioError(
                    text("chat.template"), literal(last_line(error)), text("chat.template.fix")
                ) from error
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
        with self.using(side) as model:
            limit = getattr(model.config.get_text_config(), "max_position_embeddings", 0)
            if limit:
                room = limit - settings["input_ids"].shape[1]
                settings["max_new_tokens"] = max(1, min(settings["max_new_tokens"], room))
            ends = {"eos_token_id": list(self._ends.ids)} if self._ends.ids else {}
            return model.generate(pad_token_id=self.tokenizer.pad_token_id, **ends, **settings)


def load_tuned(partner: Partner) -> Any:
    """Return the tuned model of `partner`. Raises StudioError for files that are gone, damaged, or of another model."""
    plan = partner.plan
    if partner.place == RESULT:
        return load_artifact(partner.folder.path, partner.record, partner.facts, plan)
    weights = load_file(find_weights(partner.folder, partner.place))
    full = partner.recipe.adapter.method == "full"
    model = load_model(
        partner.facts,
        device=plan.device.value,
        dtype=plan.dtype.value,
        quantization="none" if full else plan.quantization.value,
        attention=plan.attention.value,
        rope=plan.rope.value,
    ).model
    tokens = make_room(model, partner.facts, partner.recipe.adapter)
    if not full:
        model = adapt(model, partner.recipe.adapter, partner.recipe.model.adapter, tokens, apart=True)
        weights = rename_saved(model, weights)
    put_weights(model, weights)
    return model


def save_checkpoint(partner: Partner, folder: Path) -> RunRecord:
    """Write the checkpoint `partner.place` into `folder` as a run's result would be; returns the record that says so.

    Raises StudioError as load_tuned does, OSError.
    """
    step = int(partner.place.removeprefix("step-"))
    full = partner.recipe.adapter.method == "full"
    record = dataclasses.replace(partner.record, steps=step, adapter=not full)
    tokenizer = load_run_tokenizer(partner.facts, partner.recipe)
    if partner.recipe.data.template:
        tokenizer.chat_template = read_choice(partner.recipe.data.template)
    folder.mkdir(parents=True)
    model = load_tuned(partner)
    set_ends(model, tokenizer)
    return dataclasses.replace(
        record, artifact=save_artifact(model, tokenizer, folder, partner.facts, record)
    )


@torch.no_grad()
def put_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy a checkpoint's trained tensors into `model`. Raises StudioError when they are not of this model."""
    parameters = dict(model.named_parameters())
    odd = [
        name
        for name, tensor in weights.items()
        if name not in parameters or parameters[name].shape != tensor.shape
    ]
    if odd or not weights:
        why = text("chat.place.other", count=len(odd), total=len(weights))
        raise StudioError(text("chat.place.misfit"), why, text("chat.place.fix"))
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)


class _Collector(BaseStreamer):
    """Receives tokens from generate() and emits the answer so far, holding back a half-finished character."""

    def __init__(self, tokenizer: Any, emit: Callable[[Answer], None], ends: Ends, limit_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.emit = emit
        self.ends = ends
        self.limit_tokens = limit_tokens
        self.ids: list[int] = []
        self.prompt_seen = False
        self.began_s = time.perf_counter()
        self.first_s = 0.0
        self.told_s = 0.0
        self.answer = Answer("", 0, 0.0, 0.0)

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        self.ids.extend(value.reshape(-1).tolist())
        now_s = time.perf_counter()
        self.first_s = self.first_s or now_s - self.began_s
        if now_s - self.told_s >= EMIT_EVERY_S:
            self._read(now_s, growing=True)
            if not self.answer.words.endswith("\ufffd"):
                self.told_s = now_s
                self.emit(self.answer)

    def end(self) -> None:
        self._read(time.perf_counter())
        self.emit(self.answer)

    def _read(self, now_s: float, *, growing: bool = False) -> None:
        said = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        words = self.ends.cut(said, growing=growing)
        ended = bool(self.ids) and self.ids[-1] in self.ends.ids or words != said
        unfinished = not (growing or ended) and len(self.ids) >= self.limit_tokens
        self.answer = Answer(words, len(self.ids), self.first_s, now_s - self.began_s, unfinished)


class _StopFlag(StoppingCriteria):
    """Ends generate() when the person asks."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self.should_stop = should_stop

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Return (rows,) bool: whether each row's answer ends here."""
        return torch.full(
            (input_ids.shape[0],), self.should_stop(), device=input_ids.device, dtype=torch.bool
        )
