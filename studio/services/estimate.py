"""What a run will need, before it starts: memory by part, time as far as measured, disk, downloads, open problems."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studio.core.codec import to_json
from studio.core.errors import Problem, StudioError
from studio.core.facts import BackendPlan, DataFacts, MachineFacts, ModelFacts
from studio.core.i18n import Text, literal, text
from studio.core.recipe import Recipe, change_recipe, settle_objective, share_held_out
from studio.data import remote
from studio.machine.workspace import Workspace
from studio.planning.memory_estimate import count_disk, predict
from studio.planning.recipe_check import estimate_steps
from studio.planning.run_plan import choose_calibration, choose_device, memory_budget, plan
from studio.planning.shared_prompts import expect_shared
from studio.planning.speed_estimate import Duration, RowFigures, predict_duration, read_rows
from studio.services.dataset_session import Datasets, Look, identify
from studio.services.machine_state import MachineState
from studio.services.model_fit import judge_peak, knows_shape
from studio.services.recipe_checks import RecipeChecks
from studio.services.recipe_problems import look
from studio.services.throughput_history import Paces, Throughput

LAUNCHER = Path(__file__).resolve().parents[2] / "launch.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEstimate:
    """A run as it stands in the form; what is not known is None, 0 or empty."""

    recipe: Recipe
    model: Any = None
    """The FoundModel of its base; None where it cannot be read."""
    model_error: StudioError | None = None
    plan: BackendPlan | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    """Predicted peak bytes by part (planning/memory_estimate.py)."""
    verdict: str = "unknown"
    """Of the memory: fits, tight (even with all recomputed that can be), no, or unknown."""
    budget_bytes: int = 0
    """What the run may plan with."""
    has_bytes: int = 0
    """The whole memory of the card, or of the machine."""
    on_gpu: bool = False
    look: Look = Look()
    """What is known of its data set; empty where another one is on show."""
    rows: int = 0
    tokens: int = 0
    """Of all rows once, after the cut."""
    repeated_tokens: int = 0
    """Those of them that are a prompt's for the second time in its row."""
    steps: int = 0
    pace: Throughput | None = None
    """How fast an earlier run of its kind was; None where none was measured."""
    expected: Duration | None = None
    """How long it trains as reckoned; None where its rows or the model's shape are not known."""
    disk_bytes: int = 0
    free_disk_bytes: int = 0
    download_bytes: int = 0
    downloads: bool = False
    """Whether something is fetched from the network first, of whatever size."""
    checks: tuple[Problem, ...] | None = None
    """Every problem found; None while they were not looked for."""
    command: str = ""
    has_finished_run: bool = False
    """Whether a run of this very recipe, its name apart, came to its end."""

    @property
    def needed_bytes(self) -> int:
        """The predicted peak."""
        return sum(self.parts.values())

    @property
    def step_s(self) -> float | None:
        """Seconds an optimizer step takes, from what was measured."""
        optim = self.recipe.optim
        if self.pace is None:
            return None
        if self.pace.same_steps:
            return self.pace.step_s
        if not (self.rows and self.tokens and self.pace.tokens_per_s):
            return None
        return self.tokens / self.rows * optim.batch_size / self.pace.tokens_per_s

    @property
    def total_s(self) -> float | None:
        """Seconds that all steps take together: as a run of its kind took, else as reckoned."""
        if self.steps and self.step_s:
            return self.steps * self.step_s
        return self.expected.seconds if self.expected else None

    @property
    def time_reason(self) -> Text | None:
        """What total_s was told from."""
        if self.steps and self.step_s:
            return text("ui.card.time.measured", run=self.pace.run)
        return self.expected.speed.reason if self.expected else None

    @property
    def recipe_json(self) -> str:
        """The recipe as its file holds it."""
        return json.dumps(to_json(self.recipe), ensure_ascii=False, indent=1)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the planner answers."""

    plan: BackendPlan
    peak: Mapping[str, int]
    verdict: str


class Estimates:
    """Estimates for one workspace; `find(source, revision)` returns a FoundModel. Methods are for any thread."""

    def __init__(
        self,
        workspace: Workspace,
        health: MachineState,
        datasets: Datasets,
        recipes: RecipeChecks,
        find: Callable[[str, str], Any],
    ) -> None:
        self.workspace = workspace
        self._health, self._datasets, self._recipes = health, datasets, recipes
        self._find = find
        self._lock = threading.Lock()
        self._checked: tuple[str, tuple[Problem, ...], int, RowFigures] = ("", (), 0, RowFigures())
        self._planned: tuple[str, MachineFacts, ModelFacts, _Planned] | None = None
        self._paces = Paces(workspace.runs)

    def judge(self, recipe: Recipe) -> RunEstimate:
        """Return what is known at once: a few milliseconds of arithmetic."""
        machine = self._health.now()
        gpu = choose_device(machine, recipe)[1]
        with self._lock:
            checked, problems, rows, expected = self._checked
        estimate = RunEstimate(
            recipe=recipe,
            budget_bytes=memory_budget(machine, gpu)[0],
            has_bytes=gpu.vram_bytes if gpu else machine.ram_bytes,
            on_gpu=gpu is not None,
            free_disk_bytes=shutil.disk_usage(self.workspace.root).free,
            checks=problems if checked == self._key(recipe) else None,
            command=write_command(machine, self.workspace.root),
            has_finished_run=self._paces.has_finished_run(recipe),
        )
        estimate = self._add_data(estimate, rows if checked == self._key(recipe) else 0)
        if not recipe.model.source.strip():
            return estimate
        try:
            model = self._find(recipe.model.source, recipe.model.revision)
        except StudioError as error:
            return dataclasses.replace(estimate, model_error=error)
        known = estimate.rows and estimate.tokens
        counted = RowFigures(
            count=estimate.rows, tokens=estimate.tokens, repeated_tokens=estimate.repeated_tokens
        )
        known_rows = counted if known else expected
        if not known and checked != self._key(recipe):
            known_rows = RowFigures()
        return self._add_plan(dataclasses.replace(estimate, model=model), machine, known_rows)

    def examine(self, recipe: Recipe, *, fresh: bool = False) -> RunEstimate:
        """Return judge() with the problems; those of the recipe examined last are kept unless `fresh`."""
        key = self._key(recipe)
        if fresh or self._checked[0] != key:
            problems = self._recipes.check(recipe)
            rows, expected = self._count_rows(recipe)
            with self._lock:
                self._checked = (key, problems, rows, expected)
        return self.judge(recipe)

    def _key(self, recipe: Recipe) -> str:
        """Return what the check depends on: the recipe, and whether all rows of its data set are measured."""
        counted = self._datasets.count(recipe) is not None
        return json.dumps([to_json(recipe), counted], sort_keys=True)

    def _count_rows(self, recipe: Recipe) -> tuple[int, RowFigures]:
        """Return the usable rows of a data set whose head is all of it, else 0; and what the head suggests of all."""
        if not recipe.data.source.strip():
            return 0, RowFigures()
        try:
            data = look(recipe.data, self.workspace.data_cache, recipe.objective)
        except StudioError:
            return 0, RowFigures()  # it is among the problems
        return data.rows_used, read_rows(data)

    def _add_data(self, estimate: RunEstimate, rows: int) -> RunEstimate:
        recipe, datasets = estimate.recipe, self._datasets
        seen = datasets.view()
        if seen.source != recipe.data.source or identify(datasets.recipe) != identify(recipe):
            seen = Look()
        tokens = repeated = 0
        if seen.whole and (counted := datasets.count(recipe)) is not None:
            rows, tokens, repeated = counted.rows_used, counted.tokens, counted.repeated_tokens
        away = self._is_away(recipe)
        return dataclasses.replace(
            estimate,
            look=seen,
            rows=rows,
            tokens=tokens,
            repeated_tokens=repeated,
            steps=count_steps(recipe, rows, tokens),
            download_bytes=seen.size_bytes or 0 if away else 0,
            downloads=away,
        )

    def _is_away(self, recipe: Recipe) -> bool:
        """Return whether the data set is on the network and not fetched yet."""
        if not remote.is_remote(recipe.data.source):
            return False
        try:
            return not remote.is_fetched(recipe.data, self.workspace.data_cache)
        except StudioError:
            return True  # it holds no such part: the check says so

    def _add_plan(self, estimate: RunEstimate, machine: MachineFacts, rows: RowFigures) -> RunEstimate:
        format = estimate.look.report.get("format") or ""
        recipe, facts = settle_objective(estimate.recipe, format), estimate.model.facts
        if not estimate.model.here:
            size_bytes = estimate.download_bytes + estimate.model.weight_bytes
            estimate = dataclasses.replace(estimate, downloads=True, download_bytes=size_bytes)
        if facts is None or not (knows_shape(facts) and _has_sound_numbers(recipe)):
            return estimate
        gpu = choose_device(machine, recipe)[1]
        machine = self._health.add_experience(machine, recipe)
        planned = self._plan(machine, recipe, facts)
        chosen = expect_shared(planned.plan, facts, recipe, rows)
        return dataclasses.replace(
            estimate,
            plan=chosen,
            parts=planned.peak,
            verdict=planned.verdict,
            disk_bytes=count_disk(planned.plan, facts, recipe),
            pace=self._paces.find(recipe, gpu.name if gpu else ""),
            expected=predict_duration(chosen, machine, facts, recipe, gpu, rows),
        )

    def _plan(self, machine: MachineFacts, recipe: Recipe, facts: ModelFacts) -> _Planned:
        """Return the plan; that of the last recipe again where nothing else counts."""
        parts = [
            recipe.model,
            recipe.adapter,
            recipe.optim,
            recipe.run,
            recipe.objective,
            recipe.preference,
            recipe.data.max_length,
        ]
        key = json.dumps([to_json(part) for part in parts], sort_keys=True)
        with self._lock:
            known = self._planned
        if known is None or known[:3] != (key, machine, facts):
            known = (key, machine, facts, make_plan(machine, recipe, facts))
            with self._lock:
                self._planned = known
        return known[3]


def make_plan(machine: MachineFacts, recipe: Recipe, facts: ModelFacts) -> _Planned:
    """Return the plan of a run with its predicted peak and the verdict on it.

    The planner takes what memory there is: the verdict is on the peak with activations recomputed, where they may be.
    """
    gpu = choose_device(machine, recipe)[1]
    budget_bytes, calibration = memory_budget(machine, gpu)[0], choose_calibration(machine, gpu)
    chosen = plan(machine, recipe, facts)
    peak = predict(chosen, facts, recipe, calibration=calibration)
    verdict = judge_peak(chosen, sum(peak.values()), budget_bytes)
    if verdict == "tight" and recipe.run.activation_checkpointing == "auto":
        leaner = change_recipe(recipe, {"run.activation_checkpointing": "on"})
        least = plan(machine, leaner, facts)
        needed_bytes = sum(predict(least, facts, leaner, calibration=calibration).values())
        verdict = judge_peak(least, needed_bytes, budget_bytes)
    return _Planned(chosen, peak, verdict)


def count_steps(recipe: Recipe, rows: int, tokens: int) -> int:
    """Return the optimizer steps, 0 when unknown; packed rows count by their tokens."""
    if recipe.optim.max_steps or not (recipe.data.fill and tokens):
        facts = DataFacts(
            source="",
            format="",
            reason=literal(""),
            mapping={},
            columns=(),
            rows_read=rows,
            rows_used=rows,
            rows_refused=0,
            content_hash="",
        )
        return estimate_steps(recipe, facts)
    share = share_held_out(recipe.data, rows)
    each = max(1, recipe.data.max_length * recipe.optim.batch_size)
    return max(1, round(tokens * (1 - share) * recipe.optim.epochs / each))


def write_command(machine: MachineFacts, workspace: Path) -> str:
    """Return the command line that trains by a recipe file as the studio does, broken as the system's shell allows."""
    windows = machine.system == "Windows"

    def quote(word: str) -> str:
        return f'"{word}"' if windows else shlex.quote(word)

    parts = [f"{'py' if windows else 'python3'} {quote(str(LAUNCHER))}", "train recipe.json"]
    parts.append(f"--workspace {quote(str(workspace))}")
    return (" ^\n  " if windows else " \\\n  ").join(parts)


def _has_sound_numbers(recipe: Recipe) -> bool:
    """Whether the planner can work with the recipe: the check tells what is wrong with it."""
    return min(recipe.optim.batch_size, recipe.adapter.rank, recipe.data.max_length) >= 1
