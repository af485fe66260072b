"""The rewards, one file each; adding one is its file and its line in REWARDS. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from studio.core.codec import from_json
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import RewardSpec
from studio.engine.rewards.contains import Contains
from studio.engine.rewards.exact import Exact
from studio.engine.rewards.reward import RewardSet, RowReward

REWARDS: tuple[type[RowReward], ...] = (Exact, Contains)


def make_reward(spec: RewardSpec) -> RowReward:
    """Return the reward that `spec` names, told its options.

    Raises StudioError for a name that is none, RecipeError for options that do not fit.
    """
    kinds = {kind.name: kind for kind in REWARDS}
    if spec.name not in kinds:
        raise StudioError(
            text("reward.unknown", name=spec.name),
            text("reward.unknown.why", names=", ".join(kinds)),
            text("reward.unknown.fix"),
        )
    return from_json(kinds[spec.name], spec.options)


@contextmanager
def open_rewards(specs: Sequence[RewardSpec], *, folder: Path, seed: int) -> Iterator[RewardSet]:
    """Yield the RewardSet of a recipe's rewards; their processes and models end with it.

    `folder` is the run's: a person's code is copied there at its first start, so that a run that goes on is judged by
    the code it began with. Raises StudioError as make_reward() does.
    """
    rewards = [make_reward(spec) for spec in specs]
    with ExitStack() as stack:
        opened = [stack.enter_context(reward.opened(folder, seed)) for reward in rewards]
        yield RewardSet(opened, [spec.weight for spec in specs])
