"""What can be said of a recipe before it runs: its problems, what a run of it would use, how many rows it has."""

from __future__ import annotations

import shutil

from studio.core.errors import Problem, StudioError
from studio.core.facts import BackendPlan
from studio.core.recipe import Recipe
from studio.machine.workspace import Workspace
from studio.models.catalog import inspect_model
from studio.planning.run_plan import plan
from studio.planning.speed_estimate import RowFigures, read_rows
from studio.services.dataset_session import Datasets
from studio.services.machine_state import MachineState
from studio.services.recipe_problems import find_problems, look
from studio.services.recipes import DEMO_RECIPE, read_recipe
from studio.services.reward_code import RewardCode
from studio.services.reward_verdicts import RewardVerdicts
from studio.services.trackers.feed import find_tracker_problem
from studio.services.worker import Worker


class RecipeChecks:
    """Looks at recipes for one workspace and machine; from any thread, data is read on `light`."""

    def __init__(
        self,
        workspace: Workspace,
        health: MachineState,
        datasets: Datasets,
        light: Worker,
        code: RewardCode,
        verdicts: RewardVerdicts,
        *,
        confirmed: bool = True,
    ) -> None:
        """`confirmed`: whether a person's code must be; who names a recipe to a command has said so by that."""
        self.workspace = workspace
        self._code, self._verdicts, self._confirmed = code, verdicts, confirmed
        self._health, self._datasets, self._light = health, datasets, light

    def demo(self) -> Recipe:
        """Return the recipe of the bundled demo."""
        return read_recipe(DEMO_RECIPE)

    def check(self, recipe: Recipe) -> tuple[Problem, ...]:
        """Return every Problem of `recipe` at once; a source that cannot be read is one of them."""
        machine = self._health.add_experience(self._health.now(), recipe)
        free_bytes, counted = shutil.disk_usage(self.workspace.root).free, self._datasets.count(recipe)
        cache = self.workspace.data_cache
        refused = self._verdicts.find(recipe.rewards, recipe.data)
        found = self._light.call(lambda: find_problems(recipe, machine, free_bytes, cache, counted, refused))
        rewards = self._code.find_problems(recipe.rewards, confirmed=self._confirmed)
        tracker = find_tracker_problem(recipe)
        found = found if tracker is None else (*found, tracker)
        return tuple(sorted((*found, *rewards), key=lambda problem: problem.severity != "error"))

    def plan(self, recipe: Recipe) -> BackendPlan:
        """Return what a run of `recipe` would use on this machine. Raises StudioError for an unreadable model."""
        facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
        return plan(self._health.add_experience(self._health.now(), recipe), recipe, facts)

    def count_rows(self, recipe: Recipe) -> RowFigures:
        """Return the rows of the recipe's data and their tokens: as measured, else as its head suggests."""
        counted = self._datasets.count(recipe)
        if counted is not None and counted.tokens:
            return RowFigures(
                count=counted.rows_used, tokens=counted.tokens, repeated_tokens=counted.repeated_tokens
            )
        try:
            return self._light.call(
                lambda: read_rows(look(recipe.data, self.workspace.data_cache, recipe.objective))
            )
        except StudioError:
            return RowFigures()  # what is wrong with it the check says
