"""A shelf, a queue and a form's neighbours of canned answers, for the tests of Home and Runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

from studio.core.errors import StudioError
from studio.core.facts import Verdict
from studio.core.i18n import Text, literal
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe
from studio.core.run_record import RunRecord
from studio.services.queue import QueueItem
from studio.services.run_library import Comparison, LibraryEntry
from tests.ui.conftest import FakeDesk

EVIL = "<img src=x onerror=alert(1)>"


def make_entry(
    run: str, *, resumable: Verdict | None = None, spark: tuple = (3.0, 2.0, 1.5), **record
) -> LibraryEntry:
    """Return an entry with `record`'s fields changed."""
    values = {
        "run": run, "name": run, "state": "finished", "created_s": 1.7e9, "steps": 30, "total_steps": 30,
        "loss": 1.5, "eval_loss": 1.75, "artifact": "adapter", "base": "demo",
    } | record  # fmt: skip
    made = RunRecord(**values)
    verdict = resumable or Verdict(ok=False, reason=literal("nothing is left"))
    recipe = Recipe(
        name=made.name, model=ModelChoice(source="demo"), data=DatasetSpec(source="/data/mine.csv")
    )
    return LibraryEntry(
        record=made, recipe=recipe, size_bytes=3 * 2**20, spark=spark, resumable=verdict, took_s=75.0,
        best_eval_loss=made.eval_loss,
    )  # fmt: skip


@dataclass
class FakeRunLibrary:
    """Answers like studio.services.run_library.RunLibrary."""

    kept: tuple[LibraryEntry, ...] = ()
    done: list[tuple] = field(default_factory=list)
    differs: tuple[Text, ...] = (literal("torch 2.9 then, 2.13 now <b>"),)

    def entries(self) -> tuple[LibraryEntry, ...]:
        return self.kept

    def rename(self, run: str, name: str) -> None:
        self.done.append(("rename", run, name))

    def delete(self, run: str) -> int:
        if run not in [entry.record.run for entry in self.kept]:
            raise StudioError(literal("no such run"), literal("why"), literal("fix"))
        self.kept = tuple(entry for entry in self.kept if entry.record.run != run)
        return 3 * 2**20

    def duplicate(self, run: str) -> Recipe:
        return Recipe(name=f"{run} copy", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"),
                      optim=OptimSpec(max_steps=77))  # fmt: skip

    def again(self, run: str) -> tuple[Recipe, tuple[Text, ...]]:
        return replace(self.duplicate(run), name=f"{run} again"), self.differs

    def compare(self, runs) -> Comparison:
        return Comparison(
            runs=tuple(runs),
            settings=(
                ("optim.learning_rate", (1e-4, 2e-4)),
                ("name", (EVIL, None)),
                ("run.trial", (True, False)),
            ),
            environment=(("package.torch", ("2.9", EVIL)),),
        )

    def import_run(self, folder: Path) -> str:
        self.done.append(("import", folder))
        return f"{folder.name}-1"

    def curves(self, runs):
        return {run: (("step", 1, 2.0), ("step", 2, 1.0), ("eval", 2, 1.5)) for run in runs}


@dataclass
class FakeQueue:
    """Answers like studio.services.queue.Queue."""

    kept: list[QueueItem] = field(default_factory=list)
    reason: Text | None = None
    keep_going: bool = False
    notice: Text | None = None
    done: list[tuple] = field(default_factory=list)
    desk: FakeDesk | None = None

    def start(self, recipe: Recipe, *, checked: bool = False) -> str:
        return self.desk.start(recipe, checked=checked)

    def resume(self, run: str) -> None:
        self.desk.resume(run)

    @property
    def held(self) -> bool:
        return self.reason is not None

    def items(self) -> tuple[QueueItem, ...]:
        return tuple(self.kept)

    def add(self, recipe: Recipe) -> QueueItem:
        self.kept.append(QueueItem(id=f"item-{len(self.kept)}", name=recipe.name, recipe=recipe))
        return self.kept[-1]

    def rename(self, run: str, name: str) -> None:
        self.done.append(("rename", run, name))

    def move(self, id: str, steps: int) -> None:
        self.done.append(("move", id, steps))

    def drop(self, id: str) -> None:
        self.done.append(("drop", id))

    def hold(self, on: bool) -> None:
        self.reason = literal("you said so") if on else None

    def set_keep_going(self, on: bool) -> None:
        self.keep_going = on


@dataclass
class FakeModelLibrary:
    """Answers like studio.services.model_library.ModelLibrary."""

    def advice(self) -> Text:
        return literal("a small one <b>")


@dataclass
class LibraryDesk(FakeDesk):
    """A desk with runs on a shelf and a queue."""

    library: FakeRunLibrary = field(default_factory=FakeRunLibrary)
    queue: FakeQueue = field(default_factory=FakeQueue)
    models: FakeModelLibrary = field(default_factory=FakeModelLibrary)
    refusal: StudioError | None = None
    stopped: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue.desk = self

    def start(self, recipe: Recipe, *, checked: bool = False) -> str:
        if self.refusal:
            raise self.refusal
        return super().start(recipe, checked=checked)

    def stop(self, run: str) -> None:
        self.stopped.append(run)

    def resume(self, run: str) -> None:
        self.resumed.append(run)

    def events(self, run: str, after: int = 0):
        return ()


def make_training() -> SimpleNamespace:
    """Return what bind() wants of the Training tab."""
    import gradio as gr

    return SimpleNamespace(watched=gr.State({}), show=lambda run: {"run": run})
