"""What a run does when a step fails: a failed kernel's op goes to its PyTorch twin, memory goes down the ladder."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from studio_kernels.dispatch import ERRORS

from studio.core.events import KernelFellBack, MemoryFreed, RunEvent, Warned
from studio.core.facts import MachineFacts
from studio.core.i18n import literal, text
from studio.core.memory_policy import Calibration
from studio.engine.oom_fallback import (
    MemoryExhausted,
    climb,
    is_out_of_memory,
    let_go,
    recompute,
    recomputes,
    rungs_of,
)
from studio.engine.train_state import TrainState
from studio.machine.failures import diagnose
from studio.machine.failures.diagnosis import last_line
from studio.models.optimize_model import Fast
from studio.planning.learned_limits import Load, Remembered
from studio.planning.run_plan import free_ram_bytes

STICKY = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction"
    r"|hardware stack error|invalid (?:address space|program counter)"
    r"|CUDA_ERROR_(?:ILLEGAL|MISALIGNED|LAUNCH_FAILED|HARDWARE|INVALID_(?:PC|ADDRESS))",
    re.IGNORECASE,
)
"""Errors after which every further CUDA call of the process fails with the same error."""
BLAMELESS = re.compile(
    r"device-side assert|launch timed out|CUDA_ERROR_(?:ASSERT|LAUNCH_TIMEOUT)|GPU is lost|fallen off the bus"
    r"|uncorrectable ECC",
    re.IGNORECASE,
)
"""As STICKY, and never a kernel of ours: those assert nothing. Such an error surfaces wherever the next launch is."""
SHAPE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class FaultPlace:
    """Where a failed kernel stands."""

    op: str
    shape: str
    """The tensors there: `x float32 (2, 64, 32), weight float32 (32,)`."""


@dataclass(slots=True, kw_only=True)
class Recovery:
    """Decides about every failed window of one run, and keeps what it learned for the next run.

    `recover` is the trainer's hook: True means that something was changed and the window is to be replayed.
    """

    model: torch.nn.Module
    """Inside any adapter wrapper."""
    fast: Fast
    device: torch.device
    emit: Callable[[RunEvent], None]
    machine: MachineFacts
    load: Load
    budget_bytes: int = 0
    remembered: Remembered | None = None
    log: Path | None = None
    """Where tracebacks go."""
    fallen: dict[str, int] = field(default_factory=dict)
    """Ops that went to their twin in this run, and the step at which they did."""

    def recover(self, error: Exception, state: TrainState) -> bool:
        """Find a way on after `error`; False where there is none. Raises MemoryExhausted at the ladder's end."""
        if is_out_of_memory(error):
            self._free(error, state)
            return True
        place = find_place(error, self.fast.ops - self.fallen.keys())
        if place is None:
            self._withdraw(state)
            return False
        self._write_log(error, state)
        line = f"{type(error).__name__}: {last_line(str(error))}"[:SHAPE_LIMIT]
        self.fallen[place.op] = state.step
        self.remember(
            lambda store: store.note_kernel(
                place.op, self.machine, self.load.gpu, shape=place.shape, reason=line
            ),
            state,
        )
        if is_sticky(error) or not _works(self.device):
            return False  # this process can no longer use the GPU; the next one starts with the twin
        known = diagnose(error)
        reason = literal(line) if known.id == "unknown" else known.what
        let_go(error)
        self.fast.fall_back(place.op)
        self.emit(KernelFellBack(step=state.step + 1, op=place.op, reason=reason))
        return True

    def start_where_it_fitted(self, state: TrainState) -> None:
        """Begin in the form to which an earlier run like this had to go down; says so where that changes anything."""
        fit = self.remembered.fit(self.load, self.budget_bytes) if self.remembered else None
        if fit is None:
            return
        before = (state.micro_batch, recomputes(self.model))
        state.micro_batch = max(1, min(state.micro_batch, fit.micro_batch))
        if fit.checkpointing and not before[1]:
            recompute(self.model, state)
        if before != (state.micro_batch, recomputes(self.model)):
            self.emit(Warned(step=state.step, message=text("run.fitted_before", count=state.micro_batch)))

    def note_calibration(self, found: Calibration) -> None:
        """Remember what a run's first steps showed of the card."""
        self.remember(lambda store: store.note_calibration(self.machine, self.load.gpu, found), TrainState())

    def _free(self, error: Exception, state: TrainState) -> None:
        self._write_log(error, state)
        let_go(error)
        rungs = rungs_of(
            self.fast, longest_tokens=self.load.max_length, ram_bytes=free_ram_bytes(self.machine)
        )
        taken = climb(self.model, state, rungs)
        if taken is None:
            raise MemoryExhausted(last_line(str(error)))
        rung, message = taken
        self.remember(
            lambda store: store.note_fit(
                self.load, state.micro_batch, recomputes(self.model), self.budget_bytes
            ),
            state,
        )
        self.emit(
            MemoryFreed(step=state.step + 1, rung=rung.name, micro_batch=state.micro_batch, message=message)
        )

    def _withdraw(self, state: TrainState) -> None:
        """Take back the verdicts of a step that fails without those kernels too: its input is at fault."""
        for op in [op for op, step in self.fallen.items() if step == state.step]:
            self.remember(lambda store, op=op: store.forget_kernel(op, self.machine, self.load.gpu), state)

    def remember(self, note: Callable[[Remembered], None], state: TrainState) -> None:
        """Let `note` write down what was learned for later runs; says so where that cannot be written."""
        if self.remembered is None:
            return
        try:
            note(self.remembered)
        except OSError as failure:
            self._tell_unwritten(failure, state)

    def _write_log(self, error: Exception, state: TrainState) -> None:
        if self.log is None:
            return
        try:
            with self.log.open("a", encoding="utf-8") as file:
                traceback.print_exception(error, file=file)
        except OSError as failure:
            self._tell_unwritten(failure, state)

    def _tell_unwritten(self, failure: OSError, state: TrainState) -> None:
        """Say it and go on: a run that found a way on must not end because a file cannot be written."""
        reason = literal(failure.strerror or str(failure))
        self.emit(Warned(step=state.step, message=text("run.not_remembered", reason=reason)))


def find_place(error: BaseException, ops: Collection[str]) -> FaultPlace | None:
    """Return which of `ops` failed: the innermost frame of `error`, or of what it was raised from, in an op's file.

    Forward and backward alike: an error on autograd's own threads keeps its frames. None for errors that no kernel
    raises and for those that no kernel's frame took part in.
    """
    for link in _chain(error):
        if not isinstance(link, ERRORS) or BLAMELESS.search(str(link)):
            continue
        for frame, _ in reversed(list(traceback.walk_tb(link.__traceback__))):
            package, _, name = frame.f_globals.get("__name__", "").rpartition(".")
            if package == "studio_kernels" and name in ops:
                tensors = {k: v for k, v in frame.f_locals.items() if isinstance(v, torch.Tensor)}
                shape = ", ".join(
                    f"{k} {str(v.dtype).removeprefix('torch.')} {tuple(v.shape)}" for k, v in tensors.items()
                )
                return FaultPlace(name, shape[:SHAPE_LIMIT])
    return None


def is_sticky(error: BaseException) -> bool:
    """Return whether `error` says that this process can no longer use the GPU."""
    return any(STICKY.search(str(link)) or BLAMELESS.search(str(link)) for link in _chain(error))


def may_pass(error: BaseException) -> bool:
    """Return whether a new process may get past `error`: never past an assertion, which the same data fails again."""
    return not any(re.search("assert", str(link), re.IGNORECASE) for link in _chain(error))


def _works(device: torch.device) -> bool:
    """Return whether `device` still takes work: not after an error whose words did not tell that it is sticky."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            return False
    return True


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
