"""Settings in plain words: what to learn, how long, how strongly, how sparingly; as values of a recipe and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from studio.core.facts import MachineFacts, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe, change_recipe, read_value
from studio.planning.run_plan import bitsandbytes_reason, choose_device, plan_backend

GOALS = ("style", "facts", "format", "pairs", "thumbs", "scores", "continue")
LENGTHS = ("quick", "balanced", "thorough")
STRENGTHS = ("gentle", "normal", "strong")
ROOMS = ("auto", "save", "fast")
OWN = "own"
"""Settings that are none of the choices: the person's own."""
CONTROLS = {"goal": GOALS, "length": LENGTHS, "strength": STRENGTHS, "room": ROOMS}

COMPARING = ("pairs", "thumbs")
OBJECTIVES = {"pairs": "dpo", "thumbs": "kto", "scores": "grpo", "continue": "pretrain"}
"""Of goals that the data alone do not decide."""
RANKS = {"format": 8, "style": 16, "pairs": 16, "thumbs": 16, "scores": 16, "facts": 64, "continue": 64}
"""A format or a style needs little room. New knowledge does: at rank 16 continued pretraining learns clearly less than
at 64 and up (Biderman et al. 2024, LoRA Learns Less and Forgets Less, section 4)."""
ADAPTER_RATES = {"gentle": 1e-4, "normal": 2e-4, "strong": 4e-4}
"""2e-4 is what QLoRA used for 7B and 13B, 1e-4 for 33B and 65B (Dettmers et al. 2023, appendix B)."""
FULL_RATES = {"gentle": 1e-5, "normal": 2e-5, "strong": 5e-5}
"""Alpaca and LIMA used 2e-5 and 1e-5; a tenth of an adapter's rate. Above 1e-4 most models forget what they knew."""
PAIR_RATES = {"gentle": 2e-6, "normal": 5e-6, "strong": 1e-5}
"""What comparisons of answers bear with an adapter: Zephyr's recipes used 5e-6 for 7B."""
SCORE_RATES = {"gentle": 5e-6, "normal": 1e-5, "strong": 2e-5}
"""An adapter's, ten times what R1 and DAPO used for all weights (Guo et al. 2025; Yu et al. 2025: 1e-6)."""
FULL_SHARE_OF_RATE = 0.1
"""Of an adapter's rate, for all weights."""
RANK_FACTORS = {"gentle": 0.5, "normal": 1.0, "strong": 2.0}
LARGE_MODEL, LARGE_FACTOR = 25e9, 0.5
SMALL_MODEL, SMALL_FACTOR = 50e6, 10.0
"""Models of a few million weights, as the demo's, take and need ten times the rate."""
READING_FACTOR = 0.5
"""Continued reading goes over every token, not only answers: half the rate forgets less."""
ALPHA_PER_RANK = 2.0

ROWS_UNKNOWN = 1000
"""What is counted on while nobody has counted the rows."""
PASSES = {
    "style": {
        "quick": ((100, 3), (None, 1)),
        "balanced": ((100, 8), (300, 5), (3000, 3), (10_000, 2), (None, 1)),
        "thorough": ((100, 15), (300, 10), (3000, 6), (10_000, 4), (None, 2)),
    },
    "facts": {
        "quick": ((100, 4), (None, 2)),
        "balanced": ((100, 12), (300, 8), (3000, 5), (10_000, 3), (None, 1.5)),
        "thorough": ((100, 20), (300, 14), (3000, 9), (10_000, 5), (None, 3)),
    },
    "pairs": {
        "quick": ((None, 1),),
        "balanced": ((100, 8), (1000, 2), (None, 1)),
        "thorough": ((100, 12), (1000, 4), (None, 2)),
    },
    "scores": {
        "quick": ((100, 3), (None, 0.2)),
        "balanced": ((100, 20), (1000, 4), (None, 1)),
        "thorough": ((100, 40), (1000, 8), (None, 2)),
    },
    "continue": {
        "quick": ((None, 1),),
        "balanced": ((300, 3), (10_000, 2), (None, 1)),
        "thorough": ((None, 4),),
    },
}
"""Goal -> length -> (rows up to, passes). Alpaca took 3 passes over 52,000 rows, LIMA 15 over 1,000; a fact must be met
often to be kept (Allen-Zhu and Li 2024, Physics of Language Models 3.3), so facts take about half as many again. Zephyr
took one pass over 61,000 pairs (Tunstall et al. 2023). Plain text gains nothing beyond 4 passes (Muennighoff et al.
2023, Scaling Data-Constrained Language Models)."""
MOST_STEPS = {
    "style": {"quick": 60, "balanced": 3000, "thorough": 10_000},
    "facts": {"quick": 100, "balanced": 5000, "thorough": 15_000},
    "pairs": {"quick": 60, "balanced": 3000, "thorough": 10_000},
    "scores": {"quick": 20, "balanced": 500, "thorough": 2000},
    "continue": {"quick": 60, "balanced": 5000, "thorough": 20_000},
}
"""60 steps show whether the loss falls. QLoRA's best chat model took 1,875 steps of 16 examples; beyond a few thousand
a style or a format barely improves."""

FULL_SHARE = 0.8
"""Of the card: 16-bit weights beyond this leave no room for the run itself."""
COMFORTABLE_SHARE = 0.5
WEIGHT_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """One choice of each control, or OWN."""

    goal: str = OWN
    length: str = OWN
    strength: str = OWN
    room: str = OWN


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What the values depend on beside the wish; 0 for what is not known."""

    rows: int = 0
    parameters: int = 0
    vram_bytes: int = 0
    """Of the card that would train; 0 for the processor."""
    four_bit: bool = False
    """Whether 4-bit weights can be used on it."""

    @property
    def weights_share(self) -> float:
        """The 16-bit weights' part of the card's memory; 0 where one of the two is not known."""
        return WEIGHT_BYTES * self.parameters / self.vram_bytes if self.vram_bytes else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A value that a choice sets, and why."""

    path: str
    value: Any
    reason: Text


def make_scope(recipe: Recipe, machine: MachineFacts, model: ModelFacts | None, rows: int) -> Scope:
    """Return the Scope of a recipe on this machine; `rows` is 0 while nobody has counted them."""
    _, gpu = choose_device(machine, recipe)
    four_bit = (
        gpu is not None and not bitsandbytes_reason(machine) and plan_backend(machine).four_bit != "off"
    )
    return Scope(
        rows=rows,
        parameters=model.parameters if model else 0,
        vram_bytes=gpu.vram_bytes if gpu else 0,
        four_bit=four_bit,
    )


def apply(wish: Wish, recipe: Recipe, scope: Scope) -> tuple[Change, ...]:
    """Return every value that `wish` decides, in the order of the screen; a control that is OWN decides none."""
    goal = wish.goal if wish.goal in GOALS else "style"
    changes = list(_goal(goal)) if wish.goal in GOALS else []
    if wish.length in LENGTHS:
        changes += _length(goal, wish.length, recipe, scope)
    if wish.strength in STRENGTHS:
        changes += _strength(goal, wish.strength, recipe, scope)
    if wish.room in ROOMS:
        changes += _room(goal, wish.room, recipe, scope)
    return tuple(changes)


def apply_to(wish: Wish, recipe: Recipe, scope: Scope) -> Recipe:
    """Return `recipe` with all that `wish` decides."""
    return change_recipe(recipe, {change.path: change.value for change in apply(wish, recipe, scope)})


def recognise(recipe: Recipe, scope: Scope) -> Wish:
    """Return the choices that the recipe's settings are; OWN for a control whose values are none of its choices.

    Where two goals have the same settings, that under which more of the other controls are choices is meant.
    """
    found = []
    for goal in (*GOALS, OWN):
        if goal != OWN and not _holds(_goal(goal), recipe):
            continue
        wish = Wish(goal=goal)
        for control, choices in list(CONTROLS.items())[1:]:
            kept = [
                one for one in choices if _is_set(replace(wish, **{control: one}), control, recipe, scope)
            ]
            wish = replace(wish, **{control: kept[0] if kept else OWN})
        matches = sum(getattr(wish, control) != OWN for control in CONTROLS)
        found.append((matches, wish))
    return max(found, key=lambda one: one[0])[1]


def count_steps(recipe: Recipe, rows: int) -> int:
    """Return about how many steps the recipe takes over `rows` examples that are not packed; 0 without rows."""
    if recipe.optim.max_steps:
        return recipe.optim.max_steps
    return math.ceil(math.ceil(rows / max(1, recipe.optim.batch_size)) * recipe.optim.epochs)


def _is_set(wish: Wish, control: str, recipe: Recipe, scope: Scope) -> bool:
    alone = Wish(goal=wish.goal, **{control: getattr(wish, control)})
    decided = apply(alone, recipe, scope)
    if wish.goal in GOALS:
        decided = decided[len(_goal(wish.goal)) :]
    return _holds(decided, recipe)


def _holds(changes: tuple[Change, ...], recipe: Recipe) -> bool:
    return all(_same(read_value(recipe, change.path), change.value) for change in changes)


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-6)
    return found == wanted


def _goal(goal: str) -> tuple[Change, ...]:
    values = {
        "objective": OBJECTIVES.get(goal, "auto"),
        "data.train_on": "everything" if goal == "continue" else "answers",
        "data.reasoning": "drop" if goal == "format" else "keep",
        # Half an object or list would be learned as the right way to end one.
        "data.too_long": {"format": "drop", "continue": "split"}.get(goal, "cut"),
    }
    return tuple(
        Change(path=path, value=value, reason=text(f"plain.why.{goal}")) for path, value in values.items()
    )


def _length(goal: str, length: str, recipe: Recipe, scope: Scope) -> list[Change]:
    rows = scope.rows or ROWS_UNKNOWN
    kind = "pairs" if goal in COMPARING else goal if goal in PASSES else "style"
    passes = next(passes for most, passes in PASSES[kind][length] if most is None or rows <= most)
    steps = math.ceil(math.ceil(rows / max(1, recipe.optim.batch_size)) * passes)
    most = MOST_STEPS[kind][length]
    capped = steps > most
    values = {"passes": f"{passes:g}", "rows": f"{rows:,}", "steps": f"{min(steps, most):,}"}
    id = "plain.why.steps" if capped else "plain.why.passes" if scope.rows else "plain.why.passes_unknown"
    reason = text(id, **values)
    return [
        Change(path="optim.epochs", value=float(passes), reason=reason),
        Change(path="optim.max_steps", value=most if capped else 0, reason=reason),
    ]


def _strength(goal: str, strength: str, recipe: Recipe, scope: Scope) -> list[Change]:
    full = recipe.adapter.method == "full"
    rate = (FULL_RATES if full else ADAPTER_RATES)[strength]
    if goal in COMPARING:
        rate = PAIR_RATES[strength] * (FULL_SHARE_OF_RATE if full else 1)
    elif goal == "scores":
        rate = SCORE_RATES[strength] * (FULL_SHARE_OF_RATE if full else 1)
    if 0 < scope.parameters < SMALL_MODEL:
        rate *= SMALL_FACTOR
    elif scope.parameters > LARGE_MODEL:
        rate *= LARGE_FACTOR
    if goal == "continue":
        rate *= READING_FACTOR
    rate = float(f"{rate:.3g}")
    why = "rate_full" if full else "rate"
    why = "rate_pairs" if goal in COMPARING else "rate_scores" if goal == "scores" else why
    if full:
        return [Change(path="optim.learning_rate", value=rate, reason=text(f"plain.why.{why}"))]
    rank = int(RANKS[goal] * RANK_FACTORS[strength])
    return [
        Change(path="optim.learning_rate", value=rate, reason=text(f"plain.why.{why}")),
        Change(path="adapter.rank", value=rank, reason=text("plain.why.rank")),
        Change(path="adapter.alpha", value=ALPHA_PER_RANK * rank, reason=text("plain.why.alpha")),
    ]


def _room(goal: str, room: str, recipe: Recipe, scope: Scope) -> list[Change]:
    full = recipe.adapter.method == "full"
    share = {"auto": COMFORTABLE_SHARE, "save": 0.0, "fast": FULL_SHARE}[room]
    four_bit = scope.four_bit and not full and scope.weights_share > share
    most = 1 if room == "save" else 0
    fill = goal == "continue"
    checkpointing = {"auto": "auto", "save": "on", "fast": "off"}[room]
    return [
        Change(
            path="model.quantization",
            value="nf4" if four_bit else "none",
            reason=text("plain.why.four_bit" if four_bit else "plain.why.sixteen_bit"),
        ),
        Change(
            path="optim.micro_batch",
            value=most,
            reason=text(
                "plain.why.one_at_a_time" if most else "plain.why.batch", effective=recipe.optim.batch_size
            ),
        ),
        Change(
            path="run.activation_checkpointing",
            value=checkpointing,
            reason=text(f"plain.why.checkpointing_{checkpointing}"),
        ),
        Change(
            path="data.fill",
            value=fill,
            reason=text("plain.why.fill" if fill else "plain.why.no_fill"),
        ),
    ]
