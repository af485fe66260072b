"""The rewards, one file each; adding one is its file and its line in REWARDS. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from studio.core.codec import from_json
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import RewardSpec
from studio.engine.rewards.choice import ChoiceReward
from studio.engine.rewards.code import PREFIX, Code
from studio.engine.rewards.contains import Contains
from studio.engine.rewards.cosine import Cosine
from studio.engine.rewards.exact import Exact
from studio.engine.rewards.json_fields import JsonFields
from studio.engine.rewards.json_schema import JsonSchema
from studio.engine.rewards.judge import JudgeReward
from studio.engine.rewards.language import Language
from studio.engine.rewards.length import Length
from studio.engine.rewards.number import Number
from studio.engine.rewards.options import list_options, read_option, write_option
from studio.engine.rewards.regex import Regex
from studio.engine.rewards.repetition import Repetition
from studio.engine.rewards.reward import RewardSet, RowReward
from studio.engine.rewards.reward_model import ModelReward
from studio.engine.rewards.tags import Tags
from studio.engine.rewards.tests import Tests

REWARDS: tuple[type[RowReward], ...] = (
    Exact,
    Number,
    ChoiceReward,
    Contains,
    Regex,
    JsonFields,
    JsonSchema,
    Tags,
    Length,
    Cosine,
    Repetition,
    Language,
    Tests,
    JudgeReward,
    ModelReward,
)


def get_kind(name: str) -> type[RowReward]:
    """Return the kind of the reward that a recipe names. Raises StudioError for a name that is none."""
    if name.startswith(PREFIX):
        return Code
    kinds = {kind.name: kind for kind in REWARDS}
    if name not in kinds:
        raise StudioError(
            text("reward.unknown", name=name),
            text("reward.unknown.why", names=", ".join(kinds)),
            text("reward.unknown.fix"),
        )
    return kinds[name]


def make_reward(spec: RewardSpec) -> RowReward:
    """Return the reward that `spec` names, told its options.

    Raises StudioError for a name that is none and for a value out of its range, RecipeError for options that it has not
    or of another type.
    """
    kind = get_kind(spec.name)
    options = {"path": spec.name.removeprefix(PREFIX)} if kind is Code else {}
    made = from_json(kind, options | spec.options)
    for knob in list_options(kind):
        read_option(knob, write_option(getattr(made, knob.path)))
    return made


@contextmanager
def open_rewards(specs: Sequence[RewardSpec], *, folder: Path, seed: int) -> Iterator[RewardSet]:
    """Yield the RewardSet of a recipe's rewards; their processes and models end with it.

    `folder` is the run's: a person's code is kept there as it was. Raises StudioError as make_reward() does, and where
    a reward cannot be opened.
    """
    rewards = [make_reward(spec) for spec in specs]
    with ExitStack() as stack:
        opened = [stack.enter_context(reward.opened(folder, seed)) for reward in rewards]
        yield RewardSet(opened, [spec.weight for spec in specs])
