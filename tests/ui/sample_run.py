"""A run that no engine trains: its events are written by a test, as from a command line in the same workspace."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from pathlib import Path

from studio.core.codec import to_json
from studio.core.events import EvalLogged, GpuSampled, PhaseStarted, RunEvent, StepLogged
from studio.core.heartbeat import Heartbeat
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.engine.run_folder import create_run
from studio.machine.workspace import Workspace

EVAL_STEPS = 500
GPU_STEPS = 2
"""A report of the card every so many steps."""


class SampleRun:
    """One run of the workspace, with `steps` steps so far."""

    def __init__(self, workspace: Workspace, steps: int, total_steps: int) -> None:
        self.workspace, self.total_steps = workspace, total_steps
        recipe = Recipe(name="sample", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))
        self.folder = create_run(workspace.runs, recipe)
        self.seq, self.step = 0, 0
        self.chance = random.Random(0)
        self.time_s = time.time() - steps
        self.heart = Heartbeat(workspace.heartbeat)
        self.write([PhaseStarted(phase="load"), PhaseStarted(phase="train"), *self.next_steps(steps)])
        self.state("stopped")

    @property
    def events(self) -> Path:
        """The file that the window reads."""
        return self.folder.events

    def state(self, state: str) -> None:
        """Let the record say `state`; a running run gives signs of life from now on."""
        record = dataclasses.replace(self.folder.read_record(), state=state, total_steps=self.total_steps)
        self.folder.write_record(record)
        if state == "running":
            self.beat()

    def beat(self) -> None:
        """Give a sign of life."""
        self.heart.beat(self.folder.run, self.folder.path, "train", self.step)

    def next_steps(self, count: int) -> list[RunEvent]:
        """Return the events of the next `count` steps: steps, reports of the card, evaluations."""
        events: list[RunEvent] = []
        for _ in range(count):
            self.step += 1
            loss = 0.6 + 2.4 * math.exp(-self.step / 3000) + self.chance.uniform(-0.2, 0.2)
            events.append(
                StepLogged(
                    step=self.step,
                    total_steps=self.total_steps,
                    epoch=self.step / 1000,
                    loss=loss,
                    lr=2e-4 * (1 - self.step / self.total_steps),
                    grad_norm=1 + self.chance.random(),
                    tokens_per_s=4000 + 300 * self.chance.random(),
                    vram_bytes=9_123_456_789,
                )  # fmt: skip
            )
            if self.step % GPU_STEPS == 0:
                share = 0.9 + 0.1 * self.chance.random()
                events.append(
                    GpuSampled(
                        utilisation=share,
                        memory_bytes=11 * 2**30,
                        temperature_c=61 + 9 * share,
                        power_w=300 * share,
                    )  # fmt: skip
                )
            if self.step % EVAL_STEPS == 0:
                events.append(EvalLogged(step=self.step, loss=loss + 0.1))
        return events

    def write(self, events: list[RunEvent]) -> None:
        """Append `events`, numbered and timed: one second a step, up to now."""
        lines = []
        for event in events:
            self.seq += 1
            self.time_s = min(time.time(), self.time_s + isinstance(event, StepLogged))
            numbered = dataclasses.replace(event, seq=self.seq, time_s=round(self.time_s, 3))
            lines.append(json.dumps(to_json(numbered)) + "\n")
        with self.events.open("a", encoding="utf-8") as file:
            file.writelines(lines)
