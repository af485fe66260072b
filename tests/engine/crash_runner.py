"""Kills a training process again and again and lets it resume: run as a program by test_kill.py.

Arguments: model folder, data file, work folder, kills.
Prints {"kills": n, "attempts": n, "equal": bool, "resumed_from": [steps]}.
The libraries are imported once; each attempt is a fork, so an attempt starts within milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from studio.core.events import RunResumed, StepLogged
from studio.core.recipe import AdapterSpec, DatasetSpec, ModelChoice, OptimSpec, Recipe, RunSpec
from studio.engine.run import run
from studio.engine.run_folder import RunFolder, create_run
from studio.machine.detect import detect

STEPS = 100


def attempt(folder: RunFolder, told: Path | None = None) -> None:
    """Run or resume in `folder` in this process; the steps and resumes told so far go to the file `told`."""
    torch.set_num_threads(1)

    def emit(event) -> None:
        if told and isinstance(event, (StepLogged, RunResumed)):
            with told.open("a", encoding="utf-8") as file:
                file.write(json.dumps([event.kind, event.step]) + "\n")

    record = run(folder.read_recipe(), MACHINE, folder, emit, lambda: False)
    os._exit(0 if record.state == "finished" else 1)


def fork(folder: RunFolder, told: Path | None) -> int:
    """Start an attempt in a child process and return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            attempt(folder, told)
        finally:
            os._exit(3)
    return pid


def main(model: str, data: str, work: str, kills: int) -> None:
    """Compare a run that was killed `kills` times with one that was not."""
    recipe = Recipe(
        model=ModelChoice(source=model),
        data=DatasetSpec(source=data, max_length=64),
        adapter=AdapterSpec(dropout=0.1),
        optim=OptimSpec(learning_rate=1e-2, max_steps=STEPS, batch_size=8, micro_batch=4),
        run=RunSpec(save_every=1, keep_checkpoints=2, samples=0),
    )
    calm = create_run(Path(work) / "calm", recipe)
    assert os.waitpid(fork(calm, None), 0)[1] == 0, calm.log.read_text(encoding="utf-8")
    stormy = create_run(Path(work) / "stormy", recipe)
    told = Path(work) / "told.jsonl"
    moments = random.Random(0)
    killed = attempts = 0
    ended = False
    while not ended:
        attempts += 1
        pid = fork(stormy, told)
        if killed < kills:
            # A kill before the first step proves little: wait for a new step, then a random moment.
            steps_before = told.stat().st_size if told.exists() else 0
            deadline = time.monotonic() + 30
            while (
                told.stat().st_size if told.exists() else 0
            ) == steps_before and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(moments.uniform(0.0, 0.15))
            os.kill(pid, signal.SIGKILL)
            killed += 1
        status = os.waitpid(pid, 0)[1]
        ended = os.WIFEXITED(status)
        if ended and os.WEXITSTATUS(status) != 0:
            sys.exit(stormy.log.read_text(encoding="utf-8") if stormy.log.exists() else "ended by itself")
        if ended and killed < kills:
            sys.exit(f"finished after {killed} kills only")
    one, other = (
        load_file(folder.path / "adapter" / "adapter_model.safetensors") for folder in (calm, stormy)
    )
    equal = one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    lines = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    resumed = [step for kind, step in lines if kind == "run_resumed"]
    print(json.dumps({"kills": killed, "attempts": attempts, "equal": equal, "resumed_from": resumed}))


if __name__ == "__main__":
    MACHINE = detect()
    main(*sys.argv[1:4], int(sys.argv[4]))
