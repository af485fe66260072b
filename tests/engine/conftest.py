"""A run of the real engine on a tiny model, with its events collected."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from studio.core.events import RunEvent, RunFailed, StepLogged
from studio.core.facts import MachineFacts
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe, RunSpec, change_recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RunFolder, create_run
from studio.machine.detect import detect


@dataclass(slots=True)
class Ran:
    """One attempt of a run and what it told."""

    folder: RunFolder
    record: RunRecord
    events: list[RunEvent] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        """The loss of every logged step, in order."""
        return [event.loss for event in self.events if isinstance(event, StepLogged)]

    def of(self, kind: type) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def log(self) -> str:
        """The tracebacks of the run, for the message of a failed assertion."""
        return self.folder.log.read_text(encoding="utf-8") if self.folder.log.exists() else "no traceback"

    @property
    def failure(self) -> str:
        """The id of the diagnosis that ended the attempt, or ""."""
        failed = self.of(RunFailed)
        return failed[-1].diagnosis.id if failed else ""


@pytest.fixture(scope="session")
def machine(kept_facts):
    """The facts of this machine."""
    import studio.engine.run  # noqa: F401 - its libraries come in here, to be left out of garbage collections too

    gc.freeze()
    return detect(cache=kept_facts)


@pytest.fixture
def recipe(tiny_models, chat_file) -> Recipe:
    """LoRA on tiny Llama, 24 conversations, 6 steps."""
    return Recipe(
        model=ModelChoice(source=str(tiny_models("llama"))),
        data=DatasetSpec(source=str(chat_file), max_length=64),
        optim=OptimSpec(learning_rate=1e-2, epochs=2, batch_size=8, micro_batch=4),
        run=RunSpec(save_every=2, samples=0),
    )


def run_here(
    recipe: Recipe,
    machine: MachineFacts,
    runs: Path,
    folder: RunFolder | None = None,
    stop_at: int | None = None,
    data_cache: Path | None = None,
) -> Ran:
    """Run the engine in this process, in a new folder of `runs` or in `folder`, and stop it at `stop_at`."""
    from studio.engine.run import run

    folder = folder or create_run(runs, recipe)
    events: list[RunEvent] = []

    def should_stop() -> bool:
        steps = [event.step for event in events if isinstance(event, StepLogged)]
        return stop_at is not None and bool(steps) and steps[-1] >= stop_at

    record = run(folder.read_recipe(), machine, folder, events.append, should_stop, data_cache=data_cache)
    return Ran(folder, record, events)


@pytest.fixture
def ran(tmp_path, machine, recipe):
    """A function `ran(changes={}, folder=None, stop_at=None, base=recipe) -> Ran` that runs the engine here and now."""

    def go(
        changes: dict[str, Any] | None = None,
        folder: RunFolder | None = None,
        stop_at: int | None = None,
        base: Recipe = recipe,
        runs: Path = tmp_path / "runs",
    ) -> Ran:
        return run_here(change_recipe(base, changes or {}), machine, runs, folder, stop_at)

    return go
