"""Why a run stands still: stacks and measures in, a verdict in words out. Pure.

Measures are plain numbers by name, as process_metrics.py takes them; what a machine does not tell is left out:
  gpu_utilisation 0..1, vram_used_bytes, vram_total_bytes, shared_used_bytes (RAM that a Windows driver uses as VRAM),
  sm_clock_mhz, sm_clock_limit_mhz, throttle_reasons (NVML's bits), power_w, temperature_c, pcie_replays_per_s;
  ram_available_bytes, ram_total_bytes, swap_used_bytes, rss_bytes, major_faults_per_s, cpu_share (1 = one core busy),
  read_bytes_per_s, written_bytes_per_s, waits_for_disk (0 or 1), children, compilers, cache_growth_bytes,
  cache_growth_files, output_full (0 or 1: nobody reads what is printed), spills (0 or 1: the driver may use RAM),
  vram_growth_bytes and rss_growth_bytes (over the last GROWTH_STEPS steps; 0 where nothing grows)
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from studio.core.i18n import Text, text

MIB = 2**20
GROWTH_STEPS = 50
WORKING_BYTES_PER_S = 1e6
"""A process that moves this much is at work: a big model from a slow disk takes longer than any budget."""
WORKING_TIMES = 4.0
MOVING_PHASES = ("start", "load", "download", "open", "prepare", "save", "verify")
HEADER = "=== "
"""Begins the line above each set of stacks of ours; faulthandler's own timer writes `Timeout (0:01:00)!`."""

_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-fA-F]+)[^(]*\(most recent call first\)")
_FRAME = re.compile(r'\s+File "(.*)", line (\d+|\?+) in (.*)')
_STANDARD = os.path.dirname(os.__file__).replace("\\", "/") + "/"
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_PLUMBING = (
    "torch/nn/modules/module.py",
    "torch/utils/_contextlib.py",
    "torch/autograd/function.py",
    "torch/_ops.py",
    "studio/core/heartbeat.py",
)
"""Frames that only pass a call on: what they call or what called them tells more."""
_COMPILING = (
    "triton/compiler",
    "triton/backends",
    "triton/runtime/build",
    "torch/_inductor",
    "torch/_dynamo",
)
_READING = ("datasets/", "pyarrow/", "fsspec/", "safetensors/", "huggingface_hub/", "pandas/io")
_READS = re.compile(r"\b(read\w*|open|safe_open|recv\w*|get_tensor)\(")
_WRITERS = ("logging/", "tqdm/", "warnings.py", "studio/cli/console.py")
_WRITES = re.compile(r"\b(print|echo)\(|\.(write|writelines|flush|emit)\(|sys\.(stdout|stderr)")


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call of a stack: `file` as the interpreter knows it, `source` the line's words, "" when not at hand."""

    file: str
    line: int
    name: str
    source: str = ""

    @property
    def place(self) -> str:
        """The file without the folders of this machine: `torch/autograd/graph.py`, `studio/engine/trainer.py`."""
        path = self.file.replace("\\", "/")
        if _PACKAGES.search(path):
            return _PACKAGES.split(path)[-1]
        if path.startswith(_STANDARD):
            return path.removeprefix(_STANDARD)
        for mark in ("/studio/", "/studio_kernels/"):
            if mark in path:
                return mark[1:] + path.rpartition(mark)[2]
        return path.rpartition("/")[2]

    @property
    def is_ours(self) -> bool:
        """Whether it is code of the studio or of its kernels."""
        return self.place.startswith(("studio/", "studio_kernels/"))

    @property
    def is_plumbing(self) -> bool:
        """Whether it is the standard library's or a dispatcher's, which names no cause."""
        path = self.file.replace("\\", "/")
        standard = path.startswith((_STANDARD, "<")) and not _PACKAGES.search(path)
        return standard or self.place in _PLUMBING

    def __str__(self) -> str:
        return f"{self.place}:{self.line} in {self.name}"


@dataclass(frozen=True, slots=True)
class StallFinding:
    """A verdict: its id (as in RunStalled), the words for the person, and where the engine's thread stands."""

    verdict: str
    message: Text
    frame: str = ""


def read_stacks(dump: str) -> dict[int, tuple[StackFrame, ...]]:
    """Return thread id -> frames, innermost first, of the newest set of stacks that faulthandler wrote into `dump`."""
    blocks: list[dict[int, list[StackFrame]]] = [{}]
    frames: list[StackFrame] | None = None
    for line in dump.splitlines():
        if line.startswith((HEADER, "Timeout (")):
            blocks.append({})
            frames = None
        elif found := _THREAD.match(line):
            frames = blocks[-1].setdefault(int(found[1], 16), [])
        elif (found := _FRAME.match(line)) and frames is not None:
            frames.append(StackFrame(found[1], int(found[2]) if found[2].isdigit() else 0, found[3]))
        else:
            frames = None
    newest = next((block for block in reversed(blocks) if block), {})
    return {thread: tuple(frames) for thread, frames in newest.items()}


def choose_stack(stacks: Mapping[int, tuple[StackFrame, ...]], thread: int) -> tuple[StackFrame, ...]:
    """Return the frames of the engine's `thread`; where that is not among them, of the one that is in the engine."""
    if thread in stacks:
        return stacks[thread]
    inside = [f for f in stacks.values() if any(frame.place.startswith("studio/engine/") for frame in f)]
    return inside[0] if inside else ()


def blocked_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame that says something: not a lock of the standard library, nor a dispatcher."""
    return next((frame for frame in frames if not frame.is_plumbing), frames[0] if frames else None)


def name_place(frames: Sequence[StackFrame]) -> Text | None:
    """Return where the thread stands, in words, with the studio's own innermost frame when that is another one."""
    inner = blocked_frame(frames)
    if inner is None:
        return None
    own = next((frame for frame in frames if frame.is_ours and not frame.is_plumbing), inner)
    if own == inner:
        return text("stall.place", frame=str(inner))
    return text("stall.place.within", frame=str(inner), own=str(own))


def find_cause(frames: Sequence[StackFrame], measures: Mapping[str, float]) -> StallFinding:
    """Return why a run with this stack and these measures stands still; what nothing explains is `blocked`."""
    inner = blocked_frame(frames)
    frame, place = str(inner) if inner else "", name_place(frames) or text("stall.place.unknown")

    def found(verdict: str, **values: object) -> StallFinding:
        return StallFinding(verdict, text(f"stall.{verdict}", place=place, **values), frame)

    get = measures.get
    if is_compiling(frames, measures):
        return found("compiling")
    if _is_writing(frames, bool(get("output_full")), known="output_full" in measures):
        return found("output_blocked")
    used, total = get("vram_used_bytes", 0.0), get("vram_total_bytes", 0.0)
    full = total > 0 and total - used < max(256 * MIB, 0.02 * total)
    shared = get("shared_used_bytes")
    if full and (get("spills") if shared is None else shared > 128 * MIB):
        return found("spilling", used=_gib(used), total=_gib(total))
    short = (
        get("ram_total_bytes", 0.0) > 0
        and get("ram_available_bytes", 0.0) < 0.05 * measures["ram_total_bytes"]
    )
    for name, tight in (("vram_growth_bytes", full), ("rss_growth_bytes", short)):
        if tight and get(name, 0.0) > 0:
            return found("growing", gib=_gib(measures[name]), steps=GROWTH_STEPS)
    if _is_reading(frames, measures):
        return found("reading")
    if get("gpu_utilisation", 0.0) >= 0.95:
        return found("gpu_busy")
    return found("blocked")


def is_compiling(frames: Sequence[StackFrame], measures: Mapping[str, float]) -> bool:
    """Whether kernels are being built: a compiler runs, the cache grows, or the thread is inside the compiler."""
    grows = measures.get("cache_growth_files", 0.0) > 0 or measures.get("cache_growth_bytes", 0.0) > 0
    inside = any(frame.place.startswith(_COMPILING) for frame in frames[:12])
    return measures.get("compilers", 0.0) > 0 or grows or inside


def is_working(
    phase: str,
    frames: Sequence[StackFrame],
    measures: Mapping[str, float],
    waited_s: float,
    limit_s: float,
    budgets_s: Mapping[str, float],
) -> bool:
    """Whether the standstill is honest work so far: a kernel being built, a big file being moved. Neither for ever."""
    if is_compiling(frames, measures) and waited_s < budgets_s["compile"]:
        return True
    moved = measures.get("read_bytes_per_s", 0.0) + measures.get("written_bytes_per_s", 0.0)
    return phase in MOVING_PHASES and moved > WORKING_BYTES_PER_S and waited_s < WORKING_TIMES * limit_s


def choose_action(on_stall: str, verdict: str, *, unattended: bool, supervised: bool) -> str:
    """Return what follows a stall: wait (only told), ask, restart or stop. `on_stall` as in recipe.run.

    Without a supervisor nobody could end the engine's thread. A pipe that nobody reads stays full after a restart, and
    the run goes on by itself once somebody reads.
    """
    if not supervised or on_stall == "wait":
        return "wait"
    if on_stall in ("restart", "stop"):
        return on_stall
    if verdict == "output_blocked":
        return "wait" if unattended else "ask"
    return "restart" if unattended else "ask"


def growth(values: Sequence[float], noise_bytes: float) -> float:
    """Return how much memory grew over the last GROWTH_STEPS values, 0 unless it rose all along beyond the noise.

    Five medians of ten steps each must rise one after another, by at least a tenth of `noise_bytes` each: a single
    long row, a cache that fills once, or a value that swings, does not.
    """
    if len(values) < GROWTH_STEPS:
        return 0.0
    last = list(values)[-GROWTH_STEPS:]
    size = GROWTH_STEPS // 5
    levels = [median(last[start : start + size]) for start in range(0, GROWTH_STEPS, size)]
    rises = [after - before for before, after in zip(levels, levels[1:], strict=False)]
    total = levels[-1] - levels[0]
    return float(total) if total > noise_bytes and min(rises) > noise_bytes / 10 else 0.0


@dataclass(slots=True)
class MemoryTrend:
    """The memory in use after each of the last GROWTH_STEPS steps, by name (`vram`, `rss`), in bytes."""

    held: dict[str, deque[float]] = field(default_factory=dict)

    def note(self, name: str, size_bytes: float) -> None:
        """Add the memory in use after one more step."""
        self.held.setdefault(name, deque(maxlen=GROWTH_STEPS)).append(size_bytes)

    def growth(self, name: str) -> float:
        """Return how much it grew, 0 unless all along; 64 MiB or 2 % are noise."""
        held = self.held.get(name)
        return growth(held, max(64 * MIB, 0.02 * held[0])) if held else 0.0


def add_sources(frames: Sequence[StackFrame], read_line: Callable[[str, int], str]) -> tuple[StackFrame, ...]:
    """Return `frames` with the words of their lines as `read_line(file, line)`, such as linecache.getline, has them."""
    return tuple(replace(frame, source=read_line(frame.file, frame.line).strip()) for frame in frames)


def _is_writing(frames: Sequence[StackFrame], full: bool, *, known: bool) -> bool:
    """Whether the thread waits in a write to the terminal: where nobody tells that it is full, its frames must."""
    top = frames[:8]
    writer = any(frame.place.startswith(_WRITERS) for frame in top)
    line = bool(top) and bool(_WRITES.search(top[0].source))
    if known:
        # A thread that waits for the lock of a stream stands in threading or logging.
        return full and (writer or line or not top)
    return writer and line


def _is_reading(frames: Sequence[StackFrame], measures: Mapping[str, float]) -> bool:
    if measures.get("waits_for_disk"):
        return True
    top = [frame for frame in frames[:6]]
    if any(frame.place.startswith(_READING) for frame in top[:4]):
        return True
    if any(_READS.search(frame.source) for frame in top[:1]):
        return True
    return (
        measures.get("read_bytes_per_s", 0.0) > WORKING_BYTES_PER_S and measures.get("cpu_share", 1.0) < 0.5
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"
