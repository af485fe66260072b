"""Watches a run from inside its process: the GPU's driver, signs of life, memory that grows; says why it stands still.

    watch = Watch(folder, recipe.run, log.append, Heartbeat(workspace.heartbeat))
    with watch:
        run(recipe, machine, folder, watch.emit, should_stop, watch.beat)

A thread looks each second. When the engine gave no sign of life for longer than its own pace allows
(core/stall_timeout.py), it writes the stacks of all threads into stacks.txt, measures (machine/process_metrics.py),
finds the cause (machine/stall_diagnosis.py) and emits RunStalled. What is to follow, the supervisor does, who reads
stall.json beside the heartbeat. While Python's lock is held this thread stands still too: then a timer in C, set at
each beat, writes the stacks, and the supervisor judges.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import linecache
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

from studio.core.events import (
    GpuSampled,
    PhaseStarted,
    RunEvent,
    RunPlanned,
    RunStalled,
    StallEnded,
    StepLogged,
    Warned,
)
from studio.core.heartbeat import PARENT_VARIABLE, UNATTENDED_VARIABLE, Heartbeat, Standstill, write_stall
from studio.core.i18n import text
from studio.core.recipe import RunSpec
from studio.core.stall_timeout import Pace, read_budgets
from studio.engine.crash_records import STACKS
from studio.engine.run_folder import RunFolder
from studio.machine.nvml import sample_gpu
from studio.machine.process_metrics import compare, read_vitals
from studio.machine.sleep_inhibitor import keep_awake
from studio.machine.stall_diagnosis import (
    GROWTH_STEPS,
    HEADER,
    MemoryTrend,
    StallFinding,
    add_sources,
    choose_action,
    choose_stack,
    find_cause,
    is_working,
    read_stacks,
)

INTERVAL_S = 2.0
REARM_S = 1.0
"""The C timer is set anew at most this often: that takes 0.07 ms, more than 1 % of a step of 5 ms."""
STACKS_LIMIT_BYTES = 1_000_000
"""Some fifty sets of stacks; older ones make room, or a run that stands still each night for a year fills the disk."""
CHOICES = ("wait", "restart", "stop")
MIB = 2**20


class Watch:
    """One attempt of one run. `emit` and `beat` are called on the engine's thread, `answer` from any."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        emit: Callable[[RunEvent], None],
        heart: Heartbeat,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        cache: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`cache` is where compiled kernels go: it grows while some are built."""
        self.folder, self.spec, self.heart, self.cache = folder, spec, heart, cache
        self._emit, self._should_stop, self._clock, self._wall = emit, should_stop, clock, wall
        self.budgets_s = read_budgets(environment)
        self.supervised = PARENT_VARIABLE in environment
        self.unattended = UNATTENDED_VARIABLE in environment
        self._pace = Pace(self.budgets_s)
        self._lock = threading.Lock()
        self._process = psutil.Process()
        self._beats = 0
        self._engine = 0
        self._armed_s, self._armed_limit_s = -REARM_S, 0.0
        self._gpu: int | None = None
        self._trend = MemoryTrend()
        self._grown = False
        self._stacks: TextIO | None = None
        self._open = ExitStack()
        self._wake, self._ended = threading.Event(), threading.Event()
        # From here on only the watching thread writes.
        self._stall: RunStalled | None = None
        self._stall_beats = 0
        self._told_s = 0.0
        self._next_s = 0.0
        self._answer = ""
        self._person = False
        self._before: dict[str, float] | None = None

    # The engine's side -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Watch:
        self._open.enter_context(keep_awake(self.spec.keep_awake))
        with suppress(OSError):  # a full disk: the run must not end for want of a file that is rarely needed
            self._stacks = (self.folder.path / STACKS).open("a", encoding="utf-8", errors="replace")
            self._open.callback(self._close_stacks)
            self._trim_stacks()
        thread = threading.Thread(target=self._look_on, name="watch", daemon=True)
        thread.start()
        self._open.callback(self._end, thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def beat(self, phase: str, step: int, micro: int = 0) -> None:
        """Give a sign of life. Raises OSError as Heartbeat.beat does."""
        now_s = self._clock()
        with self._lock:
            self._pace.beat((phase, step, micro), now_s)
            self._beats += 1
            self._engine = threading.get_ident()
            limit_s = self._pace.limit_s()
        # A much shorter limit than the one set is set at once: the first steps of a run, the first after a save.
        due = now_s - self._armed_s >= REARM_S or limit_s < self._armed_limit_s / 2
        if due and self._stacks is not None:
            self._armed_s, self._armed_limit_s = now_s, limit_s
            faulthandler.dump_traceback_later(
                limit_s + REARM_S + 2 * self.budgets_s["check"], file=self._stacks
            )
        self.heart.beat(self.folder.run, self.folder.path, phase, step, micro)

    def emit(self, event: RunEvent) -> None:
        """Pass `event` on; a download's progress is a sign of life, a step's memory is compared with earlier ones."""
        self._emit(event)
        if isinstance(event, RunPlanned) and event.plan.device.value.startswith("cuda"):
            self._gpu = int(event.plan.device.value.partition(":")[2] or 0)
        elif isinstance(event, PhaseStarted) and event.phase in ("download", "open"):
            self.beat(event.phase, event.step)
        elif isinstance(event, StepLogged):
            self._note_memory(event)

    def answer(self, choice: str) -> bool:
        """Do what a person chose: wait, restart or stop. Returns whether the run does stand still, and could obey."""
        if choice not in CHOICES:
            raise ValueError(f"no such choice: {choice}")
        if self._stall is None or not (self.supervised or choice == "wait"):
            return False
        self._answer = choice
        self._wake.set()
        return True

    def _note_memory(self, event: StepLogged) -> None:
        self._trend.note("rss", self._process.memory_info().rss)
        if event.vram_bytes:
            self._trend.note("vram", event.vram_bytes)
        if self._grown or event.step % 10:
            return
        # RAM is what grows on a computer without a GPU; with one it holds caches of many kinds.
        name = "vram" if event.vram_bytes else "rss"
        grown_bytes = self._trend.growth(name)
        if grown_bytes:
            self._grown = True
            values = {"mib": round(grown_bytes / MIB), "held": round(self._trend.held[name][-1] / MIB)}
            message = text(f"stall.grows.{name}", steps=GROWTH_STEPS, **values)
            self._emit(Warned(step=event.step, message=message))

    # The watching thread's side --------------------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(self.budgets_s["check"])
            self._wake.clear()
            if not self._ended.is_set():
                with suppress(OSError):  # a full disk: the next look tries again
                    self.look()

    def look(self) -> None:
        """Look once: end a stall that is over, judge a standstill, carry out an answer. Raises OSError."""
        now_s = self._clock()
        with self._lock:
            slept_s = self._pace.tick(now_s, self._wall())
            waited_s, limit_s = self._pace.waited_s(now_s), self._pace.limit_s()
            place, beats = self._pace.place, self._beats
        if slept_s:
            self._before = None
            self._emit(
                Warned(step=place[1] if place else 0, message=text("stall.slept", minutes=_minutes(slept_s)))
            )
        if self._stall is not None and (beats != self._stall_beats or slept_s):
            self._end_stall(now_s)
        if place is None or slept_s:
            return
        if waited_s < limit_s / 2:
            self._before = None
        elif self._before is None:
            self._before = read_vitals(os.getpid(), self.cache, self._gpu)
        if self._stall is not None:
            limit_s = self._carry_out(now_s)
        if (
            waited_s > limit_s
            and now_s >= self._next_s
            and (self._stall is None or self._stall.action == "wait")
        ):
            self._judge(place, waited_s, limit_s, beats)
        if waited_s > limit_s or self._stall is not None:
            self._tell_supervisor()

    def _judge(self, place: tuple[str, int, int], waited_s: float, limit_s: float, beats: int) -> None:
        self._tell_supervisor()  # first, because a lost driver answers late
        finding, measures, working = self._find(place[0], waited_s, limit_s)
        if working:
            # Compilers and disks at work are looked at again; the rates then count from here.
            self._next_s = self._clock() + max(self.budgets_s["check"], self.budgets_s["floor"] / 4)
            self._before = read_vitals(os.getpid(), self.cache, self._gpu)
            return
        action = choose_action(
            self.spec.on_stall, finding.verdict, unattended=self.unattended, supervised=self.supervised
        )
        with self._lock:
            if self._beats != beats:
                return  # it went on while it was being looked at
            if action == "wait":
                self._pace.extend(self._clock())
        self._stall_beats, self._told_s = beats, self._clock()
        self._stall = RunStalled(
            step=place[1],
            phase=place[0],
            waited_s=round(waited_s, 1),
            verdict=finding.verdict,
            message=finding.message,
            frame=finding.frame,
            measures=measures,
            action=action,
        )
        self._emit(self._stall)

    def _find(
        self, phase: str, waited_s: float, limit_s: float
    ) -> tuple[StallFinding, dict[str, float], bool]:
        """Return the finding, the measures, and whether the engine is at work after all."""
        now = read_vitals(os.getpid(), self.cache, self._gpu)
        measures = compare(self._before or now, now)
        measures |= {f"{name}_growth_bytes": self._trend.growth(name) for name in tuple(self._trend.held)}
        measures = {name: round(value, 3) for name, value in measures.items()}
        frames = choose_stack(read_stacks(self._dump_stacks()), self._engine)
        frames = add_sources(frames, linecache.getline)
        working = is_working(phase, frames, measures, waited_s, limit_s, self.budgets_s)
        return find_cause(frames, measures), measures, working

    def _dump_stacks(self) -> str:
        """Write the stacks of all threads into stacks.txt and return what they are."""
        if self._stacks is None:
            return ""
        faulthandler.cancel_dump_traceback_later()
        self._trim_stacks()
        self._stacks.write(f"{HEADER}{time.strftime('%Y-%m-%d %H:%M:%S')} ===\n")
        self._stacks.flush()
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        return Path(self._stacks.name).read_text(encoding="utf-8", errors="replace")

    def _trim_stacks(self) -> None:
        assert self._stacks is not None
        if os.fstat(self._stacks.fileno()).st_size > STACKS_LIMIT_BYTES:
            self._stacks.truncate(0)  # opened for appending: what follows is written at the new end

    def _carry_out(self, now_s: float) -> float:
        """Turn an answer, a missing answer or a request to end into what is to follow; return the limit from now on."""
        stall, choice, self._answer = self._stall, self._answer, ""
        assert stall is not None
        self._person = self._person or bool(choice)
        if not choice and self.supervised and self._should_stop() and stall.action not in ("restart", "stop"):
            choice, self._person = "stop", True  # asked to end, and it cannot hear it
        late = now_s - self._told_s > self.budgets_s["answer"]
        if not choice and stall.action == "ask" and late:
            choice = "restart"
        if choice and choice != stall.action:
            waited_s = round(now_s - self._told_s + stall.waited_s, 1)
            self._stall = dataclasses.replace(stall, action=choice, waited_s=waited_s)
            self._emit(self._stall)
        with self._lock:
            if choice == "wait":
                self._pace.extend(now_s)
            return self._pace.limit_s()

    def _end_stall(self, now_s: float) -> None:
        stall, self._stall, self._person = self._stall, None, False
        assert stall is not None
        write_stall(self.heart.path, None)
        self._emit(StallEnded(step=stall.step, waited_s=round(now_s - self._told_s + stall.waited_s, 1)))

    def _tell_supervisor(self) -> None:
        if not self.supervised:
            return
        stall = self._stall
        wish = stall.action if stall is not None and stall.action in ("restart", "stop") else ""
        write_stall(
            self.heart.path,
            Standstill(
                pid=os.getpid(),
                run=self.folder.run,
                step=stall.step if stall else 0,
                verdict=stall.verdict if stall else "",
                frame=stall.frame if stall else "",
                wish=wish,
                person=self._person,
            ),
        )

    def _end(self, thread: threading.Thread) -> None:
        self._ended.set()
        self._wake.set()
        thread.join(5)
        with suppress(OSError):  # Windows: the supervisor reads it just now
            write_stall(self.heart.path, None)

    def _close_stacks(self) -> None:
        assert self._stacks is not None
        faulthandler.cancel_dump_traceback_later()
        path, empty = Path(self._stacks.name), os.fstat(self._stacks.fileno()).st_size == 0
        self._stacks.close()
        self._stacks = None
        if empty:
            path.unlink(missing_ok=True)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}" if seconds >= 60 else f"{seconds / 60:.1f}"


@contextmanager
def watch_gpu(device: str, emit: Callable[[RunEvent], None]) -> Iterator[None]:
    """Emit GpuSampled every INTERVAL_S while the block runs; nothing on a CPU or without a driver's report."""
    if not device.startswith("cuda"):
        yield
        return
    index = int(device.partition(":")[2] or 0)
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(INTERVAL_S):
            values = sample_gpu(index)
            if values is None:
                return
            utilisation, memory_bytes, temperature_c, power_w = values
            emit(
                GpuSampled(
                    utilisation=utilisation,
                    memory_bytes=memory_bytes,
                    temperature_c=temperature_c,
                    power_w=power_w,
                )
            )

    thread = threading.Thread(target=sample, name="gpu-sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
