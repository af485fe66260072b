"""Trains with Triton's own kernels in its interpreter and breaks one at step 7: run as a program by test_interpreted.

Arguments: model folder, data file, work folder. TRITON_INTERPRET=1 must be set before this starts: Triton decides at
decoration who runs a kernel. Prints one JSON object a run: {"name", "state", "launches", "fell", "kernels", "verdicts",
"weights", "losses"}; "weights" is the sha256 of the result.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import load_file
from studio_kernels import _triton, glu, rms_norm
from triton.runtime.errors import PTXASError

import studio.engine.phases.load as loading
import studio.engine.run as engine
from studio.core.events import KernelFellBack, RunPlanned, StepLogged
from studio.core.recipe import AdapterSpec, DatasetSpec, ModelChoice, OptimSpec, Recipe, RunSpec
from studio.engine.run_folder import create_run
from studio.planning.learned_limits import Remembered
from studio.planning.run_plan import plan as real_plan
from tests.machine.facts import make_gpu, make_machine

MODULES = {"rms_norm": rms_norm, "glu": glu}
BREAK_AT = ("train", 7, 1)
"""Step 7, in the second micro-batch: the first one's gradients are there."""


class Breakable:
    """Stands before one launched kernel, counts its launches and fails where it is told to."""

    def __init__(self, name: str, kernel: object) -> None:
        self.name, self.kernel = name, kernel

    def __getitem__(self, grid: object):
        def launch(*arguments, **options):
            if (self.name, *now) == (broken[0], *BREAK_AT):
                raise PTXASError("Internal Triton PTX codegen error")
            launches[self.name] += 1
            return self.kernel[grid](*arguments, **options)

        return launch


now: list = ["", 0, 0]
broken = [""]
launches: Counter = Counter()
made: list = []


def plan(machine, recipe, *of_data):
    """The plan of this processor, but with the kernels that a machine with a GPU would get."""
    there = make_machine(make_gpu(), broken_kernels=machine.broken_kernels)
    kernels = real_plan(there, recipe, *of_data).kernels
    return dataclasses.replace(real_plan(machine, recipe, *of_data), kernels=kernels)


def train(name: str, recipe: Recipe, work: Path, kernel: str = "", switch: str = "") -> None:
    """One run: `kernel` (op.forward or op.backward) breaks, or the op `switch` is switched, at step 7."""
    store = Remembered(work / f"{name.removesuffix(' again')}.json")
    folder, events = create_run(work / "runs", recipe), []
    launches.clear()
    broken[0] = kernel

    def beat(phase: str, step: int, micro: int) -> None:
        now[:] = phase, step, micro
        if switch and (phase, step, micro) == (*BREAK_AT[:2], 0):
            made[-1].fall_back(switch)

    record = engine.run(recipe, make_machine(), folder, events.append, lambda: False, beat, store)
    result = {"name": name, "state": record.state, "launches": dict(launches)}
    if record.state != "finished":
        sys.exit(folder.log.read_text(encoding="utf-8"))
    tensors = load_file(folder.path / record.artifact / "adapter_model.safetensors")
    digest = sha256(b"".join(tensors[key].numpy().tobytes() for key in sorted(tensors)))
    chosen = next(e for e in events if isinstance(e, RunPlanned)).plan.kernels
    result |= {
        "fell": [(e.op, e.step) for e in events if isinstance(e, KernelFellBack)],
        "kernels": {op: chosen[op].value for op in MODULES},
        "verdicts": [(v.op, v.reason) for v in store.read().kernels],
        "weights": digest.hexdigest(),
        "losses": [e.loss for e in events if isinstance(e, StepLogged)],
    }
    print(json.dumps(result), flush=True)


def main(model: str, data: str, work: str) -> None:
    """A forward and a backward fault, each beside the run that switches on purpose, and the run after."""
    if not _triton.interpreted():
        sys.exit("the kernels are not interpreted")
    torch.set_num_threads(1)
    real_load = loading.load_fast
    loading.make_plan = plan

    def load(*arguments):
        loaded, fast = real_load(*arguments)
        made.append(fast)
        return loaded, fast

    loading.load_fast = load
    for op, module in MODULES.items():
        for way in ("forward", "backward"):
            kernel = getattr(module, f"_{way}_kernel")
            setattr(module, f"_{way}_kernel", Breakable(f"{op}.{way}", kernel))
    recipe = Recipe(
        model=ModelChoice(source=model),
        data=DatasetSpec(source=data, max_length=24),
        adapter=AdapterSpec(dropout=0.1, rank=2),
        optim=OptimSpec(learning_rate=1e-2, max_steps=8, batch_size=2, micro_batch=1),
        run=RunSpec(trial=False, samples=0),
    )
    folder = Path(work)
    for name, kernel in (("forward", "rms_norm.forward"), ("backward", "glu.backward")):
        train(name, recipe, folder, kernel=kernel)
        train(f"{name} switched", recipe, folder, switch=kernel.split(".")[0])
    train("backward again", recipe, folder, kernel="glu.backward")


if __name__ == "__main__":
    main(*sys.argv[1:])
