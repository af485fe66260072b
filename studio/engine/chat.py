"""Lets a base model and its tuned form answer: streamed for a chat, in batches for a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, Choice, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.data.templates.catalogue import read_choice
from studio.engine.artifact import load_artifact, save_artifact
from studio.engine.generation.answer_request import AnswerRequest
from studio.engine.generation.answerer import Answerer
from studio.engine.generation.generator import SLOTS
from studio.engine.generation.prompts import PromptWriter
from studio.engine.generation.request import Completion, Request, Sampling
from studio.engine.generation.text_stream import Answer
from studio.engine.objectives.reward import REWARD
from studio.engine.run_folder import RunFolder
from studio.engine.run_states import RESULT, find_weights
from studio.engine.stop_tokens import find_ends, set_ends
from studio.models.adapt import adapt, unwrap
from studio.models.load import load_model, set_evaluation
from studio.models.modules_to_save import rename_saved
from studio.models.new_tokens import make_room
from studio.models.score_head import add_score, free_score
from studio.models.tokenizer import load_run_tokenizer, load_tokenizer

TEST_SLOTS = 64
"""Many questions are answered as many at once as pay: their weights are read for all of them in one go."""


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
        kernels = {op: choice.value for op, choice in plan.kernels.items()}
        made = [
            Answerer(one, self.tokenizer, self._ends, kernels=kernels, opens=True) for one in self._models()
        ]
        self._answerers = {"base": made[0], "tuned": made[-1]}
        self._side = "tuned"
        self._prompts = PromptWriter(self.tokenizer, self._ends)

    @property
    def size_bytes(self) -> int:
        """Memory that the weights take."""
        return sum(
            tensor.nbytes for model in self._models() for tensor in (*model.parameters(), *model.buffers())
        )

    @property
    def slow(self) -> Text | None:
        """Why the model's own code answered last, None where the studio's decoder did."""
        return self._answerers[self._side].slow

    @property
    def ahead(self) -> Choice | None:
        """Whether the last answers were read ahead of by guesses, and why; None where the model's own code computed."""
        return self._answerers[self._side].ahead

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
            self._answerers["tuned"].forget()
            self.partner = partner
        return True

    def converse(
        self,
        asks: Sequence[AnswerRequest],
        side: str,
        should_stop: Callable[[], bool],
        arrivals: Callable[[], Sequence[AnswerRequest]] | None = None,
        slots: int = SLOTS,
    ) -> None:
        """Answer asks on `side` (`base` or `tuned`), and those that arrive meanwhile, as many together as pay.

        Each hears of its own answer. What is wrong with one, such as a conversation that does not fit the model, is
        told to that one alone; what is raised here concerns all that have not ended.
        """
        self._side = side
        answerer, talks = self._answerers[side], []

        def begin(some: Sequence[AnswerRequest]) -> list[Completion]:
            begun = []
            for ask in some:
                try:
                    talk = self._prompts.begin(ask, answerer.limit)
                except StudioError as error:
                    ask.end(error)
                    continue
                talks.append(talk)
                begun.append(talk.completion)
            return begun

        def look(grown: Sequence[Completion] = ()) -> None:
            for one in grown:
                talk = next(talk for talk in talks if talk.completion is one)
                talk.grow()
            for talk in [talk for talk in talks if talk.look()]:
                talks.remove(talk)

        def take_in() -> list[Completion]:
            look()
            return begin(arrivals())

        with self.using(side):
            answerer.grow(
                begin(asks),
                adapted=side == "tuned",
                slots=slots,
                on_step=look,
                should_stop=should_stop,
                arrivals=None if arrivals is None else take_in,
            )
        for talk in talks:
            talk.completion.reason = talk.completion.reason or "stopped"
            talk.look()

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
        told: list[Answer | BaseException | None] = []

        def tell(said: Answer | BaseException | None) -> None:
            told.append(said)
            if isinstance(said, Answer):
                emit(said)

        self.converse([AnswerRequest(tell=tell, messages=messages, sampling=sampling)], side, should_stop)
        if isinstance(told[-1], BaseException):
            raise told[-1]
        return told[-2]

    def answer_all(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        side: str,
        *,
        max_new_tokens: int,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Return greedy answers to many prompts, those that are whole when it is stopped, "" for the others."""
        prompts, ended = [self.read_prompt(messages) for messages in conversations], 0

        def tell(place: int, completion: Completion) -> None:
            nonlocal ended
            ended += 1
            on_progress(ended, len(prompts))

        found = self.complete(
            prompts, side, max_new_tokens=max_new_tokens, on_end=tell, should_stop=should_stop
        )
        return ["" if one.reason == "stopped" else self.say(one.tokens) for one in found]

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        side: str,
        *,
        max_new_tokens: int,
        on_end: Callable[[int, Completion], None],
        should_stop: Callable[[], bool],
        on_grow: Callable[[int, Completion], None] = lambda place, one: None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[Completion]:
        """Return answers of `side` to many prompts of token ids, each as long as it may and can become.

        Greedy ones at temperature 0; else each prompt's place is added to `seed`. `on_end` hears of each that came to
        its end, with its place among `prompts`, in the order of their ends; `on_grow` of each token before that, and
        it may end the answer by giving it a reason.
        """
        answerer, requests = self._answerers[side], []
        for place, prompt in enumerate(prompts):
            room = answerer.limit - len(prompt) if answerer.limit else max_new_tokens
            most = max(1, min(max_new_tokens, room))
            requests.append(Request(tuple(prompt), Sampling(most, temperature, seed + place)))
        places = {id(request): place for place, request in enumerate(requests)}

        def tell(grown: Sequence[Completion]) -> None:
            for one in grown:
                on_grow(places[id(one.request)], one)
                if one.reason in ("end", "limit"):
                    on_end(places[id(one.request)], one)

        with self.using(side):
            return answerer.answer(
                requests, adapted=side == "tuned", slots=TEST_SLOTS, on_step=tell, should_stop=should_stop
            )

    def read_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token ids after which `messages` are answered. Raises StudioError where they do not fit."""
        limit = getattr(self.tuned.config.get_text_config(), "max_position_embeddings", 0) or 0
        return self._prompts.read_ids(AnswerRequest(tell=lambda said: None, messages=messages), limit)

    def say(self, tokens: Sequence[int]) -> str:
        """Return the words of an answer, without what ends it."""
        return self._ends.cut(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

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
        base=None if full else partner.folder.find_base(plan),
    ).model
    tokens = make_room(model, partner.facts, partner.recipe.adapter)
    if not full:
        model = adapt(model, partner.recipe.adapter, partner.recipe.model.adapter, tokens, apart=True)
        if partner.recipe.objective == REWARD.name:
            add_score(unwrap(model))
            free_score(model)
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
