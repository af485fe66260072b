"""Who answers for a model: the studio's own decoder where it says what the model's own code says, else that code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from studio_kernels.dispatch import ERRORS, OP_NAMES, bind, op_named
from torch import nn

from studio.core.facts import Choice
from studio.core.i18n import Text, literal, text
from studio.engine.fault_recovery import find_place, is_sticky
from studio.engine.generation.end_test import EndTest
from studio.engine.generation.generator import SLOTS, Generator
from studio.engine.generation.request import Completion, Request
from studio.engine.generation.slot_steps import NEEDED
from studio.engine.generation.transformers_generate import answer_by_generate
from studio.engine.oom_fallback import is_out_of_memory, let_go
from studio.engine.stop_tokens import Ends
from studio.models.decoder.attention_choice import read_capability
from studio.models.decoder.live_decoder import LiveDecoder, read_live

COMPARED_TOKENS = 48
ANSWERING = (*NEEDED, "few_rows", "nf4_few_rows")
"""The ops that only answers ask for."""

ALLOWED = {torch.float32: 1e-3}
ALLOWED_HALF = 0.1
"""Largest difference of logits, root mean square as a share of their spread: 2e-6 was seen in fp32; products that a
processor summed in bf16 were off by 0.1 and said something else; a rotary embedding left out is off by 1."""
LONGEST_TOKENS = 2**20
"""Of a sequence whose model names no limit."""
ROOM_SHARE = 0.25
"""Of the memory that is free: what keys and values may take."""


class Answerer:
    """Answers for `model`, loaded, inside any peft wrapper, its adapters enabled now."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        ends: Ends,
        *,
        kernels: Mapping[str, str] | None = None,
        autocast: torch.dtype | None = None,
        looks_ahead: bool | None = None,
        opens: bool = False,
    ) -> None:
        """`kernels`: op -> "triton" or "reference"; `autocast`: what products of fp32 weights are rounded to.

        `looks_ahead`: see Generator.
        `opens`: whether weights may be held in 16 bits, too, where there is room: 4-bit ones, fp32 ones of a processor.
        """
        self.model = model
        self.ends = EndTest(ends, tokenizer)
        self.end_ids = ends.ids
        self.pad_id = tokenizer.pad_token_id or 0
        self.limit = int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 0)
        self._autocast = autocast
        self._looks_ahead = looks_ahead
        self._opens = opens
        self.slow: Text | None = None
        """Why the model's own code answers, None while the studio's decoder does."""
        self._decoder: LiveDecoder | None = None
        self._generator: Generator | None = None
        self._compared = False
        self._build(self._choose(kernels or {}))

    def _choose(self, kernels: Mapping[str, str]) -> dict[str, str]:
        """Return what computes each op; where nobody decided on one of answers' own, what computes adapters."""
        weight = self.model.get_input_embeddings().weight
        given = {
            "device_type": weight.device.type, "capability": read_capability(weight.device), "dtype": weight.dtype,
            "width": weight.shape[1],
        }  # fmt: skip
        wanted = dict.fromkeys(ANSWERING, kernels.get("lora", "reference")) | dict(kernels)
        return {
            op: name for op, name in wanted.items()
            if op in OP_NAMES and name == "triton" and op_named(op).supports(**given).ok
        }  # fmt: skip

    def _build(self, kernels: Mapping[str, str]) -> None:
        self._kernels, self._decoder, self._generator = kernels, None, None
        dtype = self.model.get_input_embeddings().weight.dtype
        try:
            with self._cast():  # parts are asked as they compute: of fp32 adapters, and rows in 16 bits
                found = read_live(self.model, bind(kernels), dtype)
        except torch.OutOfMemoryError:
            raise
        except ERRORS as error:  # parts of a model are tried, and one may want to be called in another way
            found = text("model.fuse.failed", error=literal(f"{type(error).__name__}: {error}"))
        if isinstance(found, Text):
            self.slow = found
            return
        longest = min(one for one in (self.limit, found.longest, LONGEST_TOKENS) if one)
        self._decoder = found
        if self._opens:
            found.open_weights(_room_bytes(found.device))
        self._generator = Generator(
            found,
            self.ends,
            longest=longest,
            room_bytes=_room_bytes(found.device),
            looks_ahead=self._looks_ahead,
        )

    def _cast(self) -> torch.autocast:
        asked = self._autocast is not None
        return torch.autocast(self.model.device.type, dtype=self._autocast or torch.bfloat16, enabled=asked)

    @property
    def ahead(self) -> Choice | None:
        """Whether tokens are guessed and read ahead, and why, as the last answers showed; None where `slow`."""
        return None if self._generator is None else self._generator.ahead

    def forget(self) -> None:
        """Forget what is kept of earlier prompts: weights have changed."""
        if self._generator is not None:
            self._generator.forget()

    def release(self) -> None:
        """Forget likewise, and hold no memory for keys and values until somebody asks again."""
        if self._generator is not None:
            self._generator.release()

    def answer(
        self,
        requests: Sequence[Request],
        *,
        adapted: bool = True,
        slots: int = SLOTS,
        on_step: Callable[[Sequence[Completion]], None] = lambda grown: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[Completion]:
        """Return what each request was answered, in their order; see Generator.answer().

        `adapted`: whether adapters count; the caller sets peft's own switches to the same, and the model to evaluation.
        """
        found = [Completion(request) for request in requests]
        self.grow(found, adapted=adapted, slots=slots, on_step=on_step, should_stop=should_stop)
        if any(one.reason == "room" for one in found):
            raise torch.OutOfMemoryError("There is no room for keys and values.")
        return found

    def grow(
        self,
        completions: Sequence[Completion],
        *,
        adapted: bool = True,
        slots: int = SLOTS,
        on_step: Callable[[Sequence[Completion]], None] = lambda grown: None,
        should_stop: Callable[[], bool] = lambda: False,
        arrivals: Callable[[], Sequence[Completion]] | None = None,
    ) -> None:
        """Let completions, and those that arrive meanwhile, grow to their ends; see Generator.grow().

        A kernel that fails is replaced by its twin, and all go on from where they are.
        """
        told = {"on_step": on_step, "should_stop": should_stop}
        going = list(completions)
        with self._cast():
            while going and not should_stop():
                if self._generator is not None and not self._compared:
                    self._settle(going[0].request.prompt, adapted)
                going, others = self._split(going)
                if going:
                    self._grow_live(going, others, arrivals, adapted=adapted, slots=slots, **told)
                    going = [one for one in going if one.reason is None]
                if others and not going:
                    given = {"end_ids": self.end_ids, "pad_id": self.pad_id, "rows": slots}
                    answer_by_generate(self.model, others, self.ends, **given, **told)
                elif others:
                    going += others
                if not going and arrivals is not None:
                    going = list(arrivals())
        for one in going:
            one.reason = one.reason or "stopped"

    def _split(self, some: Sequence[Completion]) -> tuple[list[Completion], list[Completion]]:
        """Return those that the studio's decoder takes, and those whose length, or all of which, it does not."""
        longest = 0 if self._generator is None else self._generator.longest
        mine = [len(one.request.prompt) + one.request.sampling.max_new_tokens <= longest for one in some]
        pairs = list(zip(some, mine, strict=True))
        return [one for one, own in pairs if own], [one for one, own in pairs if not own]

    def _grow_live(
        self,
        going: list[Completion],
        others: list[Completion],
        arrivals: Callable[[], Sequence[Completion]] | None,
        **settings: Any,
    ) -> None:
        """Let `going` grow by the studio's decoder, with who arrives, until a kernel fails or all have ended.

        Who arrives is added to `going`, or to `others`; once there are such, nobody more is taken in before them.
        """

        def take_in() -> list[Completion]:
            if others:
                return []
            own, other = self._split(arrivals())
            others.extend(other)
            going[:] = [*(one for one in going if one.reason is None), *own]
            return own

        try:
            self._generator.grow(going, arrivals=None if arrivals is None else take_in, **settings)
        except ERRORS as error:
            if not self._replace(error):
                raise

    def _replace(self, error: Exception) -> bool:
        """Put its twin in the place of the kernel that raised `error`; False where that helps nothing."""
        fast = {op for op, name in self._kernels.items() if name == "triton"}
        place = None if is_out_of_memory(error) else find_place(error, fast)
        if place is None or is_sticky(error):
            return False
        let_go(error)
        self._build({op: name for op, name in self._kernels.items() if op != place.op})
        return True

    def _settle(self, prompt: Sequence[int], adapted: bool) -> None:
        """Hold the decoder against the model's own code once; a wrong one is given up, its kernels first."""
        self._compared = True
        self.slow = self._compare(prompt, adapted)
        if self.slow is not None and "triton" in self._kernels.values():
            self._build({})
            self.slow = self._compare(prompt, adapted)
        if self.slow is not None:
            self._decoder = self._generator = None

    @torch.inference_mode()
    def _compare(self, prompt: Sequence[int], adapted: bool) -> Text | None:
        """Return what is wrong with the decoder's logits at the end of a prompt, None where nothing is."""
        ids = list(prompt[-COMPARED_TOKENS:]) * (1 if len(prompt) > 1 else 2)
        given = torch.tensor([ids], device=self._decoder.device)
        wanted = self.model(input_ids=given, use_cache=False).logits[0, -2:].float()
        try:
            found = self._generator.score_last(ids, adapted=adapted)
        except torch.OutOfMemoryError:
            raise
        except ERRORS as error:  # a kernel can fail in any way that a compiler and a driver can
            return text("model.fuse.failed", error=literal(f"{type(error).__name__}: {error}"))
        error = float((found - wanted).square().mean().sqrt() / wanted.std().clamp_min(1e-6))
        if error <= ALLOWED.get(self._autocast or self._decoder.dtype, ALLOWED_HALF):
            return None
        return text("generation.differs", error=f"{error:.1g}")


def leave_answers_own(kernels: Mapping[str, str]) -> dict[str, str]:
    """Return what computes the ops of a training step, without those that only answers ask for.

    A step needs none of them and binds them to their twins, which is no decision on who computes them for answers.
    """
    return {op: name for op, name in kernels.items() if op not in ANSWERING}


def _room_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        import psutil

        free = psutil.virtual_memory().available
    return int(free * ROOM_SHARE)
