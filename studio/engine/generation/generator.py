"""The decode loop: prompts are read once, many sequences grow a token a step, finished ones make room for the next.

A step reads all weights once, whoever many sequences grow by it: so slots are kept full. What is common to prompts is
computed once, page by page, and kept for the next question.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch

from studio.core.facts import Choice
from studio.core.i18n import text
from studio.engine.generation.lookahead import Guess, Lookahead
from studio.engine.generation.page_pool import PagePool
from studio.engine.generation.request import Completion, Request, Sampling, read_own
from studio.engine.generation.sampler import draw
from studio.engine.generation.sequence import GrowingSequence, begin, count_pages
from studio.engine.generation.slot_loop import SlotLoop
from studio.engine.generation.slot_steps import MOST_SLOTS, SlotSteps
from studio.engine.oom_fallback import is_out_of_memory, let_go
from studio.models.decoder.cached_rows import PAGE_TOKENS, PageArena
from studio.models.decoder.live_decoder import LiveDecoder

PREFILL_TOKENS = 2048
"""Prompt tokens of one pass: activations of more take memory and save nothing."""
SLOTS = 16
LEAST_PAGES = 128
"""An arena holds 8,192 tokens at least, so that a talk's earlier turns are kept."""


class Generator:
    """Answers requests with `decoder`; keeps prefixes from one call to the next until forget()."""

    def __init__(
        self,
        decoder: LiveDecoder,
        ends: Callable[[Sequence[int]], bool],
        *,
        longest: int,
        room_bytes: int,
        looks_ahead: bool | None = None,
        by_slots: bool | None = None,
    ) -> None:
        """`longest`: tokens of which no sequence has more; `room_bytes`: what keys and values may take.

        `looks_ahead`: whether tokens are guessed where that is measured to be faster; None: on a processor.
        `by_slots`: whether sequences grow by SlotSteps; None: where these need nothing but the device.
        """
        self.decoder = decoder
        self.ends = ends
        self.longest = longest
        self._most_pages = max(1, room_bytes // decoder.page_bytes)
        self._arena: PageArena | None = None
        self._pool = PagePool(0)
        self._unit = 0
        """Pages that every sequence takes at least: of one size they lie at even distances (cached_rows.Grid)."""
        self._adapted: bool | None = None
        self._looks_ahead = decoder.device.type == "cpu" if looks_ahead is None else looks_ahead
        self._lookahead = Lookahead()
        self._by_slots = SlotSteps.suits(decoder) if by_slots is None else by_slots
        self._loop: SlotLoop | None = None

    def forget(self) -> None:
        """Forget every prefix: weights have changed."""
        self._pool.forget_all()
        self._lookahead.forget()
        self._adapted = self._loop = None

    @property
    def ahead(self) -> Choice:
        """Whether guesses are read ahead, and why, as the last answers showed."""
        if self._looks_ahead and not self._by_slots:
            return self._lookahead.describe()
        return Choice(value=False, reason=text("generation.ahead.off"))

    def release(self) -> None:
        """Forget every prefix, and give the memory of keys and values back until somebody asks again."""
        self.forget()
        self._arena, self._pool = None, PagePool(0)

    @torch.inference_mode()
    def answer(
        self,
        requests: Sequence[Request],
        *,
        adapted: bool,
        slots: int = SLOTS,
        on_step: Callable[[Sequence[Completion]], None] = lambda grown: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[Completion]:
        """Return what each request was answered, in their order.

        `adapted`: whether adapters count; the caller sets peft's own switches to the same. `on_step`: told after every
        step which answers have grown by a token. Raises torch.OutOfMemoryError, also where not one sequence has room.
        """
        found = [Completion(request) for request in requests]
        self.grow(found, adapted=adapted, slots=slots, on_step=on_step, should_stop=should_stop)
        if any(one.reason == "room" for one in found):
            raise torch.OutOfMemoryError("There is no room for keys and values.")
        return found

    @torch.inference_mode()
    def grow(
        self,
        completions: Sequence[Completion],
        *,
        adapted: bool,
        slots: int = SLOTS,
        on_step: Callable[[Sequence[Completion]], None] = lambda grown: None,
        should_stop: Callable[[], bool] = lambda: False,
        arrivals: Callable[[], Sequence[Completion]] | None = None,
    ) -> None:
        """Let completions grow to their ends, from where they are; see answer().

        `arrivals`: asked between steps who else wants to grow; it, and `on_step`, may end any completion by giving it a
        reason. Fewer grow at once where memory is short; alone and without room one ends by "room".
        Raises torch.OutOfMemoryError where one alone cannot be computed.
        """
        root = self._switch(adapted)
        self._lookahead.begin()
        if self._loop is not None:
            self._loop.land()
        waiting = deque(map(begin, completions))
        self._make_room([one.last_tokens for one in waiting], slots, spare=arrivals is not None)
        active: list[GrowingSequence] = []

        def dismiss() -> None:
            for one in [one for one in active if one.completion.reason is not None]:
                active.remove(one)
                self._leave(root, one)

        def compute(some: list[GrowingSequence], work: Callable[[list[GrowingSequence]], None]) -> None:
            nonlocal slots
            together = len(active)
            short = _try(lambda: work(some))
            while grown := [one for one in some if one.drawn]:
                for one in grown:
                    self._take_drawn(one)
                on_step([one.completion for one in grown])
                for one in grown:
                    if one.completion.reason is not None:
                        one.drawn.clear()
            dismiss()
            if short is not None and together < 2:
                raise torch.OutOfMemoryError(str(short)) from short
            if (
                short is not None
            ):  # the youngest wait, and go on from where they are; so do those not read yet
                slots = max(1, together // 2)
                stay = [one for one in active if one.kept == len(one.tokens) - 1][:slots]
                for one in reversed([one for one in active if one not in stay]):
                    self._leave(root, one)
                    waiting.appendleft(begin(one.completion))
                active[:] = stay

        try:
            while not should_stop():
                if arrivals is not None:
                    waiting.extend(map(begin, arrivals()))
                dismiss()
                waiting = deque(one for one in waiting if one.completion.reason is None)
                if not waiting and not active:
                    break
                while (
                    waiting
                    and len(active) < slots
                    and (entered := self._admit(root, waiting, slots - len(active)))
                ):
                    active += entered
                    compute(entered, lambda some: self._prefill(root, some))
                if waiting and not active:
                    self._widen(waiting, slots)
                elif active and not should_stop():
                    compute(list(active), self._step)
        finally:
            for one in active:
                self._leave(root, one)
        for one in (*active, *waiting):
            one.completion.reason = one.completion.reason or "stopped"

    @torch.inference_mode()
    def score_last(self, tokens: Sequence[int], *, adapted: bool) -> torch.Tensor:
        """Return the logits (2, V) fp32 behind the last two of `tokens`: one read with the prompt, one grown by it."""
        self._switch(adapted)
        self._make_room([len(tokens)], 1)
        pages = self._pool.take(count_pages(len(tokens)))
        if pages is None:
            raise torch.OutOfMemoryError("There is no room for keys and values.")
        sampling = Sampling(max_new_tokens=1)
        one = begin(Completion(Request(tuple(tokens), sampling)))
        one.pages = pages
        try:
            x = self._compute([one], list(tokens[:-1]), [len(tokens) - 1])[-1:]
            one.kept = len(tokens) - 1
            if self._by_slots:
                return torch.cat((self.decoder.logits(x), self._find_loop().score([one])))
            return self.decoder.logits(torch.cat((x, self._compute([one], [tokens[-1]], [1]))))
        finally:
            self._pool.release(pages)

    def _find_loop(self) -> SlotLoop:
        if self._loop is None:
            self._loop = SlotLoop(self.decoder, self._arena)
        return self._loop

    def _switch(self, adapted: bool) -> str:
        """Let adapters count or not, and return under which name prefixes are kept."""
        if self._adapted is not adapted:
            self.decoder.note_change(adapted=adapted)
            self._adapted, self._loop = adapted, None
        return "tuned" if adapted else "base"

    def _make_room(self, lengths: Sequence[int], slots: int, *, spare: bool = False) -> None:
        """Have an arena with room for the longest of these sequences, and for as many of them as there are slots.

        `spare`: others as long as they may come. With less where memory is short, one of them at least.
        """
        pages = sorted((count_pages(length) for length in lengths), reverse=True)
        pages += [*pages[:1]] * (slots - len(pages)) if spare else []
        self._unit = 0
        if (
            pages
            and self.decoder.device.type == "cpu"
            and pages[0] * min(slots, len(pages)) <= self._most_pages
        ):
            self._unit = pages[0]
            pages = [self._unit] * len(pages)
        if not pages or (self._pool.count >= max(LEAST_PAGES, sum(pages[:slots]))):
            return
        if pages[0] > self._most_pages:
            raise torch.OutOfMemoryError(
                f"Keys and values of {pages[0] * PAGE_TOKENS} tokens do not fit in {self._most_pages} pages."
            )
        count = min(self._most_pages, max(LEAST_PAGES, sum(pages[:slots])))
        while count > self._pool.count:
            self._arena, self._pool, self._loop = None, PagePool(0), None
            short = _try(partial(self._make_arena, count))
            if short is not None and count <= pages[0]:
                raise torch.OutOfMemoryError(str(short)) from short
            if short is not None:  # a half may just fit, and leave nothing to compute with
                count = self._most_pages = max(pages[0], count // 4)

    def _make_arena(self, count: int) -> None:
        self._arena, self._pool, self._loop = self.decoder.make_arena(count), PagePool(count), None

    def _widen(self, waiting: deque[GrowingSequence], slots: int) -> None:
        """Have room for those who wait where nobody is active; whose length has none leaves."""
        try:
            self._make_room([one.last_tokens for one in waiting], slots)
        except torch.OutOfMemoryError:
            max(waiting, key=lambda one: one.last_tokens).completion.reason = "room"

    def _admit(self, root: str, waiting: deque[GrowingSequence], slots: int) -> list[GrowingSequence]:
        """Take as many sequences as have room and can be read together; whose prefix is being read comes after that."""
        entered: list[GrowingSequence] = []
        begun: set[tuple] = set()
        tokens = 0
        while waiting and len(entered) < slots and tokens < PREFILL_TOKENS:
            one = waiting[0]
            kept = self._pool.find(root, one.tokens)
            start = len(kept) * PAGE_TOKENS
            page = one.tokens[start : start + PAGE_TOKENS]
            first = (kept[-1] if kept else root, tuple(page))
            if first in begun and len(page) == PAGE_TOKENS and len(one.tokens) > start + PAGE_TOKENS:
                break
            pages = self._take(kept, max(self._unit, count_pages(one.last_tokens)))
            if pages is None:
                break
            waiting.popleft()
            one.pages, one.kept = pages, start
            begun.add(first)
            tokens += len(one.tokens) - start
            entered.append(one)
        return entered

    def _take(self, kept: list[int], count: int) -> list[int] | None:
        """Return `count` pages in use, of which the first hold what `kept` holds; None without room.

        Shared pages, where own ones can follow them; on a processor, which reads a sequence fastest where it lies in
        one piece, else copies of them.
        """
        pool = self._pool
        pool.use(kept)
        own = pool.take(count - len(kept), kept[-1] if kept else None)
        if own is None:
            pool.release(kept)
            return None
        pages = kept + own
        if not kept or self.decoder.device.type != "cpu" or pages[-1] - pages[0] == count - 1:
            return pages
        copies = pool.take(count)
        if copies is None or copies[-1] - copies[0] != count - 1:
            pool.release(copies or [])
            return pages
        self._arena.copy(kept, copies[: len(kept)])
        pool.release(pages)
        return copies

    def _prefill(self, root: str, entered: list[GrowingSequence]) -> None:
        """Read the prompts and draw each answer's first token."""
        for some in ([one for one in entered if not one.kept], [one for one in entered if one.kept]):
            if not some:
                continue
            counts = [len(one.tokens) - one.kept for one in some]
            x = self._compute(some, [id for one in some for id in one.tokens[one.kept :]], counts)
            for one in some:
                one.kept = len(one.tokens)
                self._pool.keep(root, one.tokens, one.pages)
            lasts = torch.tensor(counts).cumsum(0) - 1
            self._draw(some, self.decoder.logits(x.index_select(0, lasts.to(x.device))))

    def _step(self, active: list[GrowingSequence]) -> None:
        """Let every sequence grow by a token, and by those that were guessed rightly."""
        if self._by_slots and len(active) <= MOST_SLOTS:
            logits = self._find_loop().grow(active)
            if logits is not None:
                self._draw(active, logits)
            return
        begun_s = time.perf_counter()
        guesses = self._guess(active)
        counts = [1 + guess.count for guess in guesses]
        ids = [
            id for one, guess in zip(active, guesses, strict=True) for id in (one.tokens[-1], *guess.ahead)
        ]
        x = self._compute(active, ids, counts)
        self._draw(active, self.decoder.logits(x), [guess.ahead for guess in guesses])
        if self._looks_ahead:
            drawn = [[token for token, _, _ in one.drawn] for one in active]
            taken_s = time.perf_counter() - begun_s
            self._lookahead.learn(taken_s, [one.told for one in active], guesses, drawn)

    def _guess(self, active: list[GrowingSequence]) -> list[Guess]:
        """Return what each sequence may say next; nothing of one whose every distribution is looked at."""
        if not self._looks_ahead:
            return [Guess()] * len(active)
        for one in active:
            self._lookahead.follow(one.told, len(one.completion.request.prompt))
        return self._lookahead.guess(
            [None if one.completion.watched else one.told for one in active],
            [one.last_tokens - len(one.tokens) - 1 for one in active],
        )

    def _compute(self, some: list[GrowingSequence], ids: list[int], counts: list[int]) -> torch.Tensor:
        decoder = self.decoder
        sequences = [(one.kept, count, one.pages) for one, count in zip(some, counts, strict=True)]
        rows = decoder.lay_rows(self._arena, sequences, max(one.last_tokens for one in some))
        return decoder.forward(torch.tensor(ids).to(decoder.device, non_blocking=True), rows)

    def _draw(
        self,
        some: list[GrowingSequence],
        logits: torch.Tensor,
        guesses: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Draw by logits (T, V): of each sequence those behind its last token and behind what was guessed.

        A sequence takes what is drawn up to the first token that was not guessed.
        """
        guesses = guesses or [()] * len(some)
        owners = [one for one, guess in zip(some, guesses, strict=True) for _ in range(len(guess) + 1)]
        ahead = [guess[:count] for guess in guesses for count in range(len(guess) + 1)]
        own = [read_own(logits[row], one.completion) for row, one in enumerate(owners)]
        samplings = [one.completion.request.sampling for one in owners]
        histories = [
            [*one.tokens, *more] if more and sampling.repetition_penalty != 1.0 else one.tokens
            for one, more, sampling in zip(owners, ahead, samplings, strict=True)
        ]
        positions = [len(one.tokens) + len(more) for one, more in zip(owners, ahead, strict=True)]
        tokens, scores = draw(logits, samplings, histories, positions)
        rows = zip(tokens.tolist(), scores.tolist(), own, strict=True)
        for one, guess in zip(some, guesses, strict=True):
            right = True
            for place in range(len(guess) + 1):
                found = next(rows)
                if right:
                    one.drawn.append(found)
                    right = place < len(guess) and found[0] == guess[place]

    def _take_drawn(self, one: GrowingSequence) -> None:
        """Let a sequence grow by the next token that was drawn for it, and end where it does."""
        token, score, read = one.drawn.popleft()
        completion = one.completion
        one.kept = len(one.tokens)
        one.tokens.append(token)
        completion.tokens.append(token)
        completion.log_probabilities.append(score)
        if read is not None:
            completion.likeliest.append(read(token))
        whole = completion.constraint is not None and completion.constraint.take(token)
        if whole or self.ends(completion.tokens):
            completion.reason = "end"
        elif len(completion.tokens) >= completion.request.sampling.max_new_tokens:
            completion.reason = "limit"

    def _leave(self, root: str, one: GrowingSequence) -> None:
        """Give a sequence's pages back; whole ones stay known for whoever goes on from there."""
        self._pool.keep(root, one.tokens[: one.kept], one.pages)
        self._pool.release(one.pages)


def _try(work: Callable[[], None]) -> Exception | None:
    """Do `work`; return the error where memory ran out, with what its frames held given back."""
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        let_go(error)
        return error
    return None
