"""Which models an address answers for: one and its base, or every run of the workspace that can answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.core.errors import StudioError
from studio.core.recipe import Recipe
from studio.services.desk import Desk
from studio.ui.completions.app import Whom

BASE = ":base"
NAME = re.compile(r"([A-Za-z0-9_.-]{1,128})(?:@(\d{1,8}))?(:base)?")


class OneModel:
    """A run's result or checkpoint and, as RUN:base, what it was trained from; or a model alone."""

    def __init__(
        self, name: str, *, run: str = "", checkpoint: str = "", recipe: Recipe | None = None
    ) -> None:
        given = {"run": run, "checkpoint": checkpoint, "recipe": recipe}
        self._models = [Whom(name, **given)]
        if run:
            self._models.append(Whom(f"{name}{BASE}", side="base", **given))

    def list(self) -> Sequence[Whom]:
        """See Served."""
        return self._models

    def find(self, name: str) -> Whom | None:
        """See Served."""
        return next((whom for whom in self._models if whom.name == name), None)


class EveryRun:
    """Every run of a desk that can answer, as RUN, RUN@STEP for a checkpoint, and either with :base behind it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(self) -> Sequence[Whom]:
        """See Served; without checkpoints and bases."""
        found = self._desk.chat.choices(self._desk.runs.list())
        return [Whom(one.record.run, run=one.record.run, created_s=one.record.created_s) for one in found]

    def find(self, name: str) -> Whom | None:
        """See Served."""
        parts = NAME.fullmatch(name)
        if parts is None:
            return None
        run, step, base = parts.groups()
        try:
            place = f"step-{int(step):08d}" if step else self._desk.chat.find_place(run)
        except StudioError:
            return None
        return Whom(name, run=run, checkpoint=place, side="base" if base else "tuned")
