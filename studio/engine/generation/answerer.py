"""Who answers for a model: the studio's own decoder where it says what the model's own code says, else that code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from studio_kernels.dispatch import ERRORS, OP_NAMES, bind, op_named
from torch import nn

from studio.core.i18n import Text, literal, text
from studio.engine.generation.end_test import EndTest
from studio.engine.generation.generator import SLOTS, Generator
from studio.engine.generation.request import Completion, Request
from studio.engine.generation.stock import answer_by_stock
from studio.engine.stop_tokens import Ends
from studio.models.decoder.decoder import read_capability
from studio.models.decoder.live_decoder import LiveDecoder, read_live

COMPARED_TOKENS = 48
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
    ) -> None:
        """`kernels`: op -> "triton" or "reference"; `autocast`: what products of fp32 weights are rounded to."""
        self.model = model
        self.ends = EndTest(ends, tokenizer)
        self.end_ids = ends.ids
        self.pad_id = tokenizer.pad_token_id or 0
        self.limit = int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 0)
        self._autocast = autocast
        self.slow: Text | None = None
        """Why the model's own code answers, None while the studio's decoder does."""
        self._decoder: LiveDecoder | None = None
        self._generator: Generator | None = None
        self._compared = False
        self._build(self._choose(kernels or {}))

    def _choose(self, kernels: Mapping[str, str]) -> dict[str, str]:
        """Return what computes each op; where nobody decided on decode_attention, what computes adapters."""
        weight = self.model.get_input_embeddings().weight
        given = {
            "device_type": weight.device.type, "capability": read_capability(weight.device), "dtype": weight.dtype,
            "width": weight.shape[1],
        }  # fmt: skip
        wanted = {"decode_attention": kernels.get("lora", "reference"), **kernels}
        return {
            op: name for op, name in wanted.items()
            if op in OP_NAMES and name == "triton" and op_named(op).supports(**given).ok
        }  # fmt: skip

    def _build(self, kernels: Mapping[str, str]) -> None:
        self._kernels, self._decoder, self._generator = kernels, None, None
        dtype = self.model.get_input_embeddings().weight.dtype
        try:
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
        self._generator = Generator(found, self.ends, longest=longest, room_bytes=_room_bytes(found.device))

    def forget(self) -> None:
        """Forget what is kept of earlier prompts: weights have changed."""
        if self._generator is not None:
            self._generator.forget()

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
        if not requests:
            return []
        cast = torch.autocast(
            self.model.device.type, dtype=self._autocast or torch.bfloat16, enabled=self._autocast is not None
        )
        with cast:
            if self._generator is not None and not self._compared:
                self._settle(requests[0].prompt, adapted)
            longest = max(len(one.prompt) + one.sampling.max_new_tokens for one in requests)
            told = {"on_step": on_step, "should_stop": should_stop}
            if self._generator is not None and longest <= self._generator.longest:
                return self._generator.answer(requests, adapted=adapted, slots=slots, **told)
            return answer_by_stock(
                self.model, requests, self.ends, end_ids=self.end_ids, pad_id=self.pad_id, rows=slots, **told
            )

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


def _room_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        import psutil

        free = psutil.virtual_memory().available
    return int(free * ROOM_SHARE)
