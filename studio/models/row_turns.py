"""Rows that go through a model in turn, part by part: what is read for a part is read once for all of them.

Every row has a thread, of which one runs at a time: it computes until it stands before the model's next part, keeps
what it has computed so far, and lets the next row come up. The model's own code does all of it, row by row, so the
numbers are those of one row after another, to the bit. Threads are how Python halts a function within others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")
ROWS_BYTES = 2**28
"""Of all rows that wait for one another in a model: at most 5,461 tokens of one 4,096 wide."""
WAITING_STATES = 3
"""What a row keeps for each token where it waits, in fp32 of the model's width: its state, that at the beginning of
the model or of what follows, and what positions need."""
ARENA_BYTES, FREED_STATES = 2**25, 32
"""Most of what a row has freed that glibc keeps for its thread, and how many states of a layer that is, with answers.
32 rows of 64 tokens left 1.1 GB so by 128,256 words, and 0.8 by layers 4,096 wide."""
TEAM_THREADS = 256
"""Of OpenMP, of all rows that wait: each row's thread gets a team of as many as PyTorch computes with."""
HELD = "held_part"
"""Where a model that is read part by part keeps what is to compute its rows together (streamed_model.HeldPart)."""


def compute_rows(
    model: nn.Module, rows: Sequence[Sequence[int]], take: Callable[[Any], T], most_bytes: int = ROWS_BYTES
) -> list[T]:
    """Return take(output) of each row of token ids, which a model computes one by one; take() need not keep the output.

    A streamed model's weights are read once for as many rows as keep `most_bytes` waiting before a layer and have
    TEAM_THREADS (at least one), not once a row. The numbers are the same.
    """
    import torch

    device, held = next(model.parameters()).device, getattr(model, HELD, None)

    def call(row: Sequence[int]) -> T:
        with torch.inference_mode():
            return take(model(torch.tensor([list(row)], device=device), use_cache=False))

    if held is None:
        return [call(row) for row in rows]
    config = model.config.get_text_config()
    most_rows = max(1, TEAM_THREADS // torch.get_num_threads())
    blocks: list[list[Sequence[int]]] = []
    room_bytes = 0
    for row in rows:
        waiting_bytes = 4 * len(row) * WAITING_STATES * config.hidden_size
        freed_bytes = 4 * len(row) * (config.vocab_size + FREED_STATES * config.hidden_size)
        row_bytes = waiting_bytes + min(freed_bytes, ARENA_BYTES)
        room_bytes -= row_bytes
        if room_bytes < 0 or not blocks or len(blocks[-1]) == most_rows:
            blocks.append([])
            room_bytes = most_bytes - row_bytes
        blocks[-1].append(row)
    found: list[T] = []
    for block in blocks:
        found += held.compute([partial(call, row) for row in block])
    return found


class _Ended(BaseException):
    """Another row failed: nothing of this one is wanted any more. No `except Exception` of a model's code takes it."""


class RowTurns:
    """`compute(calls)` calls each; in one of them pass_on() returns when all others have come as far."""

    def __init__(self) -> None:
        self._line: deque[threading.Semaphore] = deque()
        """Gates of the rows that wait, the next one first."""
        self._own = threading.local()
        self._over = False

    def compute(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each call gives. Raises what the first that fails raises; the others end at their next turn.

        Raises RuntimeError, and nothing is called, where the system gives no more threads.
        """
        gates = [threading.Semaphore(0) for _ in calls]
        self._over = False

        def run(gate: threading.Semaphore, call: Callable[[], T]) -> T:
            self._own.gate = gate
            gate.acquire()
            good = False
            try:
                self._go_on()
                found = call()
                good = True
                return found
            finally:
                self._over |= not good
                self._let_next()

        with ThreadPoolExecutor(max(1, len(calls)), thread_name_prefix="row") as pool:
            try:
                rows = [pool.submit(run, *both) for both in zip(gates, calls, strict=True)]
            except BaseException:
                self._over = True
                for gate in gates:  # the pool ends when its threads do, and these wait there
                    gate.release()
                raise
            try:
                self._line.extend(gates)
                self._let_next()
                errors = [row.exception() for row in rows]
            finally:
                self._over = True  # whoever asked for the end here waits for one part, not for all rows
        for error in errors:
            if error is not None and not isinstance(error, _Ended):
                raise error
        return [row.result() for row in rows]

    def pass_on(self) -> None:
        """Let the others come as far as this one, in their order. Outside of compute() nobody waits."""
        gate = getattr(self._own, "gate", None)
        if gate is None or not self._line:
            return
        self._line.append(gate)
        self._let_next()
        gate.acquire()
        self._go_on()

    def _let_next(self) -> None:
        if self._line:
            self._line.popleft().release()

    def _go_on(self) -> None:
        if self._over:
            raise _Ended
