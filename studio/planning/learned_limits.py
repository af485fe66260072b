"""What earlier runs learned of this machine: failed kernels, what fitted into memory, speed, proofs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from studio.core.atomic_files import write_json
from studio.core.codec import from_json, to_json
from studio.core.errors import StudioError
from studio.core.facts import MachineFacts, MeasuredSpeed
from studio.core.json_file import read_json
from studio.core.memory_policy import Calibration

MOST_SPEEDS = 40
MOST_PROOFS = 200
MOST_BASES = 64
ROOMIER = 1.1
"""With this many times the memory free, a run tries again what did not fit before: another program had held it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """All that a kernel's verdict hangs on: with any of it changed, the kernel is tried again."""

    gpu: str
    """Name of the GPU; "" for the processor (Triton's interpreter)."""
    driver: str
    torch: str
    triton: str
    kernels: str
    """studio_kernels.fingerprint()"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelVerdict:
    """A fast kernel that failed in a run."""

    op: str
    surroundings: Surroundings
    shape: str
    """The tensors at which it failed, for developers."""
    reason: str
    """One line, English or as the system said it."""
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What decides how much memory a micro-batch takes."""

    model: str
    """sha256 of the base's weights."""
    max_length: int
    gpu: str
    quantization: str
    method: str
    """lora or full"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """In which form a load fitted, after memory had run out."""

    load: Load
    micro_batch: int
    checkpointing: bool
    budget_bytes: int
    """GPU memory that the run might use; 0 on the processor."""
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """What a run measured of a card beyond what it handed out (memory.Calibration)."""

    gpu: str
    torch: str
    context_bytes: int
    fragmentation: float
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The file's content."""

    version: int = 1
    kernels: tuple[KernelVerdict, ...] = ()
    fits: tuple[Fit, ...] = ()
    overheads: tuple[Overhead, ...] = ()
    speeds: tuple[MeasuredSpeed, ...] = ()
    """The newest first; one of each kind of run."""
    proofs: tuple[str, ...] = ()
    """Keys of engine/proof_cache.py, the newest first."""
    bases: tuple[tuple[str, str], ...] = ()
    """Stamps of a model's files and the hash of what they hold (engine/base_hash.py), the newest first."""


class Remembered:
    """The store in one JSON file, replaced at once by every change; a missing or damaged file counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Memory:
        """Return all that is remembered."""
        try:
            return from_json(Memory, read_json(self.path))
        except StudioError:
            return Memory()

    def broken_kernels(self, machine: MachineFacts, gpu: str | None = None) -> dict[str, str]:
        """Return op -> reason of the kernels that failed with what `machine` has now: MachineFacts.broken_kernels.

        `gpu`: the name of one card; None takes those that failed on any card of the machine or on the processor.
        """
        names = {"", *(card.name for card in machine.gpus)} if gpu is None else {gpu}
        here = {survey(machine, name) for name in names}
        return {v.op: v.reason for v in self.read().kernels if v.surroundings in here}

    def note_kernel(self, op: str, machine: MachineFacts, gpu: str, *, shape: str, reason: str) -> None:
        """Remember that the fast kernel of `op` failed on `gpu`. Raises OSError."""
        here = survey(machine, gpu)
        verdict = KernelVerdict(op=op, surroundings=here, shape=shape, reason=reason, time_s=time.time())

        def add(memory: Memory) -> Memory:
            others = (v for v in memory.kernels if (v.op, v.surroundings) != (op, here))
            return replace(memory, kernels=(*others, verdict))

        self._change(add)

    def forget_kernel(self, op: str, machine: MachineFacts, gpu: str) -> None:
        """Take back the verdict about one kernel. Raises OSError."""
        known = (op, survey(machine, gpu))
        self._change(
            lambda memory: replace(
                memory, kernels=tuple(v for v in memory.kernels if (v.op, v.surroundings) != known)
            )
        )

    def fit(self, load: Load, budget_bytes: int) -> Fit | None:
        """Return in which form `load` fitted before; None when it never failed to, or when there is more room now."""
        for fit in self.read().fits:
            if fit.load == load and budget_bytes <= fit.budget_bytes * ROOMIER:
                return fit
        return None

    def note_fit(self, load: Load, micro_batch: int, checkpointing: bool, budget_bytes: int) -> None:
        """Remember the form to which a run had to take `load` down. Raises OSError."""
        fit = Fit(
            load=load,
            micro_batch=micro_batch,
            checkpointing=checkpointing,
            budget_bytes=budget_bytes,
            time_s=time.time(),
        )
        self._change(lambda memory: replace(memory, fits=(*(f for f in memory.fits if f.load != load), fit)))

    def add_experience(self, machine: MachineFacts, gpu: str) -> MachineFacts:
        """Return `machine` with what earlier runs on the card `gpu` found: failed kernels, and the memory it takes."""
        broken = {**machine.broken_kernels, **self.broken_kernels(machine, gpu)}
        found = self.calibration(machine, gpu)
        known = {"context_bytes": found.context_bytes, "fragmentation": found.fragmentation} if found else {}
        return replace(machine, broken_kernels=broken, speeds=self.read().speeds, **known)

    def calibration(self, machine: MachineFacts, gpu: str) -> Calibration | None:
        """Return what was measured of the card `gpu` with the torch that `machine` has now; None when nothing was."""
        here = (gpu, machine.packages.get("torch", ""))
        for one in self.read().overheads:
            if (one.gpu, one.torch) == here:
                return Calibration(context_bytes=one.context_bytes, fragmentation=one.fragmentation)
        return None

    def note_calibration(self, machine: MachineFacts, gpu: str, found: Calibration) -> None:
        """Remember what was measured of the card `gpu`. Raises OSError."""
        one = Overhead(
            gpu=gpu,
            torch=machine.packages.get("torch", ""),
            context_bytes=found.context_bytes,
            fragmentation=found.fragmentation,
            time_s=time.time(),
        )

        def add(memory: Memory) -> Memory:
            others = (o for o in memory.overheads if (o.gpu, o.torch) != (one.gpu, one.torch))
            return replace(memory, overheads=(*others, one))

        self._change(add)

    def note_speed(self, one: MeasuredSpeed) -> None:
        """Remember how fast a run was, in place of what was known of its kind. Raises OSError."""

        def kind(speed: MeasuredSpeed) -> tuple[object, ...]:
            return speed.gpu, speed.path, speed.quantization, speed.method, speed.parameters

        def add(memory: Memory) -> Memory:
            others = (each for each in memory.speeds if kind(each) != kind(one))
            return replace(memory, speeds=(replace(one, time_s=time.time()), *others)[:MOST_SPEEDS])

        self._change(add)

    def note_proof(self, key: str) -> None:
        """Remember the key of what a run proved (engine/proof_cache.py). Raises OSError."""

        def add(memory: Memory) -> Memory:
            others = (one for one in memory.proofs if one != key)
            return replace(memory, proofs=(key, *others)[:MOST_PROOFS])

        self._change(add)

    def note_base(self, stamp: str, found: str) -> None:
        """Remember the hash of a model's weights by the stamp of their files. Raises OSError."""

        def add(memory: Memory) -> Memory:
            others = (one for one in memory.bases if one[0] != stamp)
            return replace(memory, bases=((stamp, found), *others)[:MOST_BASES])

        self._change(add)

    def forget(self) -> int:
        """Forget all, so that the next run tries everything again; returns how many kernels had a verdict.

        Raises OSError.
        """
        count = len(self.read().kernels)
        self.path.unlink(missing_ok=True)
        return count

    def _change(self, change: Callable[[Memory], Memory]) -> None:
        data = to_json(change(self.read()))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, data, lasting=True)


def survey(machine: MachineFacts, gpu: str) -> Surroundings:
    """Return what a verdict about a kernel on `gpu` (a name; "" for the processor) hangs on."""
    from studio_kernels import fingerprint

    packages = machine.packages
    triton = next((packages[name] for name in sorted(packages) if "triton" in name), "")
    return Surroundings(
        gpu=gpu,
        driver=machine.driver if gpu else "",
        torch=packages.get("torch", ""),
        triton=triton,
        kernels=fingerprint(),
    )
