"""The steps of a run whose examples are the model's own answers: drawn when their turn comes, kept until it is over.

A rollout is an input of its steps: answers, advantages and log-probabilities are fixed when it is made. A step that is
replayed, cut otherwise or resumed learns from the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from studio.core.recipe import SamplingSpec
from studio.data.sequence_packing import Example, RolloutFacts
from studio.engine.rollouts.advantages import find_advantages, penalise_long
from studio.engine.rollouts.alarms import RolloutAlarms
from studio.engine.rollouts.rollout import AnswerGroup, make_row, mark_drawn
from studio.engine.rollouts.start_weights import StartWeights
from studio.engine.scoring import Scorer, score
from studio.engine.step_windows import sort_window


class Drawing(NamedTuple):
    """What came of drawing the answers of one rollout."""

    groups: Sequence[AnswerGroup]
    metrics: Mapping[str, float]


class Rollouts:
    """Windows of drawn answers; see engine/step_windows.py."""

    def __init__(
        self,
        scorer: Scorer,
        settings: SamplingSpec,
        draw: Callable[[int], Drawing],
        *,
        start: Callable[[], StartWeights] | None = None,
        tell: Callable[[int], None] = lambda rows: None,
        alarms: RolloutAlarms | None = None,
        note: Callable[[int, Sequence[AnswerGroup], np.ndarray], None] = lambda number, groups, advantages: (
            None
        ),
    ) -> None:
        """`draw` gives the scored answers of the rollout of a number; `start`: where settings.beta is not 0, gives
        what was trained as it was before step 1; asked once, before the first rollout.

        `tell` hears how many answers were compared; `note` hears of each rollout, with the advantages (P, G). What
        `alarms` heard is kept in checkpoints.
        """
        self._scorer, self._settings, self._draw = scorer, settings, draw
        self._open_start, self._tell, self._note = start, tell, note
        self._start: StartWeights | None = None
        self._alarms = alarms
        self._number = -1
        self._examples: list[Example] = []
        self._metrics: dict[str, float] = {}

    def draw(self, step: int) -> list[Example]:
        """See Windows."""
        number = step // self._settings.updates
        if number != self._number:
            self._examples, self._metrics = self._make(number)
            self._number = number
        return self._examples

    def draw_ahead(self, step: int) -> None:
        """See Windows: what is drawn next hangs on what is being learned now."""

    def metrics(self) -> Mapping[str, float]:
        """See Windows."""
        return self._metrics

    def _make(self, number: int) -> tuple[list[Example], dict[str, float]]:
        settings = self._settings
        if settings.beta and self._start is None:
            self._start = self._open_start()
        groups, metrics = self._draw(number)
        pairs = [(group, answer) for group in groups for answer in group.answers]
        rows = [make_row(group, answer) for group, answer in pairs]
        in_reward = settings.loss == "rloo" and settings.beta > 0
        old = self._score(rows) if settings.updates > 1 or in_reward else None
        reference = None
        if settings.beta:
            with self._start.in_place():
                reference = self._score(rows)
        rewards = np.stack([group.totals for group in groups])
        if settings.cut_answers == "penalise":
            rewards = rewards + penalise_long(np.stack([group.lengths for group in groups]), settings)
        metrics = dict(metrics)
        if in_reward:
            drifts = [now.sum() - before.sum() for now, before in zip(old, reference, strict=True)]
            rewards = rewards - settings.beta * np.reshape(drifts, rewards.shape)
            metrics["kl"] = float(np.sum(drifts) / sum(int(row.trained.sum()) for row in rows))
        advantages = find_advantages(rewards, settings)
        self._note(number, groups, advantages)
        kept = [
            i for i, (_, answer) in enumerate(pairs) if answer.ended or settings.cut_answers != "leave_out"
        ]
        share = len(pairs) / max(1, len(kept))
        examples = [
            mark_drawn(
                rows[i],
                pairs[i][1],
                advantage=float(advantages.flat[i]),
                share=share,
                old=old[i] if old is not None and settings.updates > 1 else None,
                reference=None if reference is None or in_reward else reference[i],
            )
            for i in kept
        ]
        return sort_window(examples), metrics

    def _score(self, rows: Sequence[Example]) -> list[np.ndarray]:
        """Return each row's log-probabilities by the model as it is, float32 [tokens], 0 where none is learned."""
        order = self._scorer.step.order(rows)
        found: list[np.ndarray] = [np.zeros(len(row.token_ids), dtype=np.float32) for row in rows]
        done = 0

        def tell() -> None:
            self._tell(done)

        for i, values in score(self._scorer, rows, order, tell):
            found[i][rows[i].trained] = values
            done += 1
        return found

    def state_data(self) -> dict[str, Any]:
        """See Windows: a rollout whose updates are not over, which could not be drawn again."""
        heard = {} if self._alarms is None else {"alarms": self._alarms.state_data()}
        if self._number < 0 or self._settings.updates == 1:
            return heard
        return heard | {
            "number": self._number,
            "metrics": dict(self._metrics),
            "examples": [_pack(example) for example in self._examples],
        }

    def load_state_data(self, data: Mapping[str, Any]) -> None:
        """See Windows."""
        if "alarms" in data and self._alarms is not None:
            self._alarms.load_state_data(data["alarms"])
        if "number" in data:
            self._number, self._metrics = data["number"], dict(data["metrics"])
            self._examples = [_unpack(one) for one in data["examples"]]


def _pack(example: Example) -> dict[str, Any]:
    """Return an example as tensors and plain values."""
    arrays = {
        "ids": example.token_ids, "trained": example.trained, "reference": example.reference,
        "old": example.drawn.old, "sampled": example.drawn.sampled,
    }  # fmt: skip
    found: dict[str, Any] = {
        name: torch.from_numpy(one.copy()) for name, one in arrays.items() if one is not None
    }
    return found | {"advantage": example.drawn.advantage, "share": example.drawn.share}


def _unpack(found: Mapping[str, Any]) -> Example:
    arrays = {name: one.numpy() for name, one in found.items() if isinstance(one, torch.Tensor)}
    drawn = RolloutFacts(found["advantage"], found["share"], arrays.get("old"), arrays.get("sampled"))
    row = Example(arrays["ids"], arrays["trained"], (len(arrays["ids"]),), drawn=drawn)
    return dataclasses.replace(row, reference=arrays.get("reference"))
