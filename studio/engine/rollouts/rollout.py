"""One rollout: groups of answers to the same prompts, what rewards said of them, and the examples that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from studio.data.sequence_packing import Example, RolloutFacts
from studio.engine.rewards.reward import Scores
from studio.engine.rollouts.advantages import find_equal, spread_of


@dataclass(frozen=True, slots=True)
class DrawnAnswer:
    """One answer that the model drew."""

    tokens: tuple[int, ...]
    """The end token included, where it has one."""
    ended: bool
    """By itself; False: cut at the limit."""
    words: str = ""
    """Without what ends it."""
    log_probabilities: tuple[float, ...] = ()
    """Of each token as it was drawn; none where the model's own code drew it."""


@dataclass(slots=True)
class AnswerGroup:
    """All answers to one prompt."""

    row: int
    """Number of the prompt among those that are trained on."""
    prompt: tuple[int, ...]
    answers: list[DrawnAnswer]
    scores: list[Scores] = field(default_factory=list)
    """One for each answer."""

    @property
    def totals(self) -> np.ndarray:
        """float64 [answers]; nan where one could not be scored."""
        return np.asarray([one.total for one in self.scores], dtype=np.float64)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [answers]: tokens of each."""
        return np.asarray([len(one.tokens) for one in self.answers], dtype=np.int64)


def make_row(group: AnswerGroup, answer: DrawnAnswer) -> Example:
    """Return prompt and answer as a sequence of which the answer is learned."""
    ids = np.asarray([*group.prompt, *answer.tokens], dtype=np.int32)
    return Example(ids, np.arange(len(ids)) >= len(group.prompt), (len(ids),))


def mark_drawn(
    row: Example,
    answer: DrawnAnswer,
    *,
    advantage: float,
    share: float,
    old: np.ndarray | None,
    reference: np.ndarray | None,
) -> Example:
    """Return `row` with what is known of its answer; old, reference: float32 [tokens], where they were computed."""
    sampled = None
    if answer.log_probabilities:
        sampled = np.zeros(len(row.token_ids), dtype=np.float32)
        sampled[row.trained] = answer.log_probabilities
    drawn = RolloutFacts(advantage, share, old, sampled)
    return Example(row.token_ids, row.trained, row.lengths, reference=reference, drawn=drawn)


def measure(groups: Sequence[AnswerGroup], names: Sequence[str]) -> dict[str, float]:
    """Return the metrics of a rollout, named as trl names them; `names`: of the rewards."""
    totals = np.stack([group.totals for group in groups])
    lengths = np.stack([group.lengths for group in groups])
    ended = np.asarray([[one.ended for one in group.answers] for group in groups])
    found = {
        "reward": _mean(totals),
        "reward_std": spread_of(totals).item(),
        "frac_reward_zero_std": float(find_equal(totals).mean()),
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float((~ended).mean()),
        "completions/mean_terminated_length": float(lengths[ended].mean()) if ended.any() else 0.0,
        "completions/repeated": float(
            np.mean([_repeats(one.tokens) for group in groups for one in group.answers])
        ),
        "completions/distinct": float(
            np.mean([len({one.tokens for one in group.answers}) / len(group.answers) for group in groups])
        ),
    }
    for place, name in enumerate(names):
        values = np.asarray([[_known(one.per_reward[place]) for one in group.scores] for group in groups])
        found[f"rewards/{name}/mean"], found[f"rewards/{name}/std"] = _mean(values), spread_of(values).item()
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _repeats(tokens: Sequence[int]) -> float:
    """Return the share of an answer's stretches of four tokens that stood in it before."""
    stretches = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return 1 - len({*stretches}) / len(stretches) if stretches else 0.0


def _known(score: float | None) -> float:
    return math.nan if score is None else score


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
