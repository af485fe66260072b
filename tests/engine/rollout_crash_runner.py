"""Kills a run that learns from its own answers while it draws, judges and updates: a program of test_rollout_kills.py.

Arguments: model folder, file of prompts, work folder, kills, JSON of changes to the recipe.
Prints {"kills": {phase: n}, "equal": bool, "same_answers": bool, "resumed_from": [steps]}.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe, RewardSpec, RunSpec, change_recipe
from studio.engine.rollouts.completions_file import FILE
from studio.engine.run import run
from studio.engine.run_folder import RunFolder, create_run
from studio.machine.detect import detect

STEPS = 12
PHASES = ("answers", "rewards", "train")
"""What a run is at when it is killed, in turn: as its own signs of life say it."""
REWARD = """
import time

def slow(completions, **columns):
    time.sleep(0.15)
    return [float(len(one) % 5) for one in completions]
"""


def attempt(folder: RunFolder, told: Path | None) -> None:
    """Run or resume in `folder` in this process; signs of life and resumes go to the file `told`."""
    torch.set_num_threads(1)

    def tell(*values: Any) -> None:
        if told is not None:
            with told.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")

    def emit(event: Any) -> None:
        if event.kind == "run_resumed":
            tell(event.kind, event.step)

    def beat(phase: str, step: int, micro: int) -> None:
        if phase in PHASES:
            tell(phase, step)

    record = run(folder.read_recipe(), MACHINE, folder, emit, lambda: False, beat)
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


def wait_for(told: Path, phase: str, least_step: int, pid: int) -> bool:
    """Wait until the run says that it is at `phase` of a step from `least_step` on; False when it ended before."""
    seen = told.stat().st_size if told.exists() else 0
    while True:
        if told.exists() and told.stat().st_size > seen:
            lines = told.read_bytes()[seen:].splitlines()
            for line in lines:
                found = json.loads(line) if line.endswith(b"]") else ["", 0]
                if found[0] == phase and found[1] >= least_step:
                    return True
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)


def main(model: str, prompts: str, work: str, kills: int, changes: str) -> None:
    """Compare a run that was killed `kills` times with one that was not."""
    code = Path(work) / "slow.py"
    code.write_text(REWARD, encoding="utf-8")
    recipe = Recipe(
        model=ModelChoice(source=model),
        objective="grpo",
        data=DatasetSpec(source=prompts, format="rl", max_length=128, validation_share=0.0),
        rewards=(RewardSpec(name=f"file:{code}"),),
        optim=OptimSpec(learning_rate=3e-3, max_steps=STEPS, batch_size=2),
        run=RunSpec(save_every=1, keep_checkpoints=2, samples=0, trial=False),
    )
    recipe = change_recipe(
        recipe, {"sampling.group_size": 4, "sampling.answer_tokens": 24, **json.loads(changes)}
    )
    calm, stormy = (create_run(Path(work) / name, recipe) for name in ("calm", "stormy"))
    assert os.waitpid(fork(calm, None), 0)[1] == 0, calm.log.read_text(encoding="utf-8")
    told, moments = Path(work) / "told.jsonl", random.Random(1)
    killed = dict.fromkeys(PHASES, 0)
    while sum(killed.values()) < kills:
        number = sum(killed.values())
        phase = PHASES[number % len(PHASES)]
        pid = fork(stormy, told)
        if not wait_for(told, phase, 1 + number * (STEPS - 1) // kills, pid):
            sys.exit(stormy.log.read_text(encoding="utf-8") if stormy.log.exists() else "ended by itself")
        time.sleep(moments.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        killed[phase] += 1
    assert os.waitpid(fork(stormy, told), 0)[1] == 0, stormy.log.read_text(encoding="utf-8")
    one, other = (
        load_file(folder.path / "adapter" / "adapter_model.safetensors") for folder in (calm, stormy)
    )
    lines = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    answers = [(folder.path / FILE).read_bytes() for folder in (calm, stormy)]
    found = {
        "kills": killed,
        "equal": one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one),
        "same_answers": answers[0] == answers[1],
        "resumed_from": [step for kind, step in lines if kind == "run_resumed"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    MACHINE = detect()
    main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5])
