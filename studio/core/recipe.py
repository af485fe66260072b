"""The recipe: everything that decides a run, as one frozen, serialisable value with its knobs' metadata."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from studio.core.knob import knob
from studio.core.metrics.suggest import ANSWER_METRICS

RECIPE_VERSION = 3
RENAMED = {
    "limits": "run",
    "method": "objective",
    "adapter.targets": "adapter.target_modules",
    "data.take": "data.max_rows",
}
"""Path in a recipe of earlier versions -> its name of today; the first recipes of version 2 had the old ones, too."""


USUAL_RATE, USUAL_FULL_RATE = 2e-4, 2e-5
"""The learning rates of examples where nobody set one: for an adapter, and for all weights."""
USUAL_RATES: dict[str, tuple[float, float]] = {
    "dpo": (5e-6, 5e-7),
    "simpo": (5e-6, 5e-7),
    "cpo": (5e-6, 5e-7),
    "orpo": (8e-6, 8e-7),
    "kto": (5e-6, 5e-7),
    "reward": (1e-4, 1e-5),
    "grpo": (1e-5, 1e-6),
}
"""Objective that does not learn from examples -> that of an adapter and that of all weights where nobody set one.

What is usual for examples is forty times what comparisons bear: they break the model's answers above it.
"""
USUAL_SHARE, SHARED_ROWS = 0.05, 100
"""The validation share that nobody set, and from how many rows on it sets some aside: five tell little already."""


COMPARISONS: dict[str, tuple[str, ...]] = {
    "dpo": ("sigmoid", "ipo", "hinge", "robust", "apo_zero", "apo_down", "sigmoid_norm"),
    "simpo": (),
    "cpo": ("sigmoid", "ipo", "hinge"),
    "orpo": (),
    "kto": ("apo_zero_unpaired",),
    "reward": (),
}
"""Objective -> the losses by which it compares answers, beside its own."""
LEARNS: dict[str, tuple[str, ...]] = {
    "text": ("pretrain",),
    "preference": ("dpo", "simpo", "cpo", "orpo", "reward"),
    "kto": ("kto",),
    "rl": ("grpo",),
}
"""Format -> the objectives that learn from it, what `auto` chooses first; of other formats `sft` and its kin do."""
SAMPLING = LEARNS["rl"]
"""Objectives that learn from answers which the model draws itself, and which rewards score."""
FOUR_BITS = ("nf4", "mixed")
"""Forms of `model.quantization` whose matrices are NF4; of `mixed` some stay in 16 bits (models/mixed_base.py)."""
OBJECTIVES = ("auto", "sft", "pretrain", "weighted_sft", *COMPARISONS, *SAMPLING)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    """Which model is trained, and in which form its frozen weights are held."""

    source: str = knob(level="basic", effect="own")
    adapter: str = knob("", level="advanced")
    quantization: str = knob("none", choices=("none", "nf4", "mixed", "int8"), level="common", effect="own")
    more_bits: float = knob(
        0.0, unit="share", minimum=0.0, maximum=1.0, memory="more", useful=(0, 0.05, 0.1, 0.25)
    )
    precision: str = knob("auto", choices=("auto", "bf16", "fp16", "fp32"), effect="own")
    fp8: bool = knob(False, memory="more", time="less")
    attention: str = knob("auto", choices=("auto", "sdpa", "eager"), effect="own")
    rope_scaling: str = knob("none", choices=("none", "linear", "dynamic", "yarn"), effect="own")
    rope_factor: float = knob(2.0, minimum=1.0, maximum=64.0, useful=(2, 4, 8))
    revision: str = knob("")


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """Which examples are learned from, how their columns are read, and how they are cut."""

    source: str = knob(level="basic", effect="own")
    format: str = knob(
        "auto",
        choices=(
            "auto",
            "messages",
            "sharegpt",
            "alpaca",
            "prompt_completion",
            "text",
            "preference",
            "kto",
            "rl",
            "vision",
            "pretokenized",
        ),
        level="common",
    )
    mapping: dict[str, str] = knob({})
    speaker: str = knob("")
    encoding: str = knob("auto")
    sheet: str = knob("")
    config: str = knob("")
    split: str = knob("")
    mix: dict[str, str] = knob({}, time="more")
    validation: str = knob("", time="more")
    validation_share: float = knob(
        USUAL_SHARE, unit="share", minimum=0.0, maximum=0.5, level="common", useful=(0, 0.05, 0.1)
    )
    max_length: int = knob(
        1024,
        unit="tokens",
        minimum=8,
        maximum=1_048_576,
        level="common",
        memory="more",
        time="more",
        useful=(512, 1024, 2048, 4096, 8192),
    )
    too_long: str = knob("cut", choices=("cut", "drop", "split"), effect="own")
    packing: bool = knob(True, time="less")
    fill: bool = knob(False, level="common", time="less")
    train_on: str = knob("answers", choices=("answers", "last_answer", "everything"))
    reasoning: str = knob("keep", choices=("keep", "drop"), effect="own")
    system_prompt: str = knob("", memory="more", time="more")
    template: str = knob("")
    duplicates: str = knob("keep", choices=("keep", "exact", "near"), effect="own")
    overlap: str = knob("keep", choices=("keep", "exact", "near"), effect="own")
    filters: dict[str, str] = knob({}, time="less")
    shuffle: bool = knob(False)
    max_rows: int = knob(0, unit="rows", minimum=0, maximum=1_000_000_000, effect="own")
    accept_bad_rows: bool = knob(False)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSpec:
    """What is trained: a low-rank adapter or every weight."""

    method: str = knob("lora", choices=("lora", "full"), level="common", effect="own")
    rank: int = knob(16, minimum=1, maximum=1024, level="common", memory="more", useful=(8, 16, 32, 64, 128))
    alpha: float = knob(32.0, minimum=0.001, maximum=4096, level="common")
    dropout: float = knob(0.0, unit="share", minimum=0.0, maximum=0.9, time="more")
    target_modules: str = knob("all-linear", effect="own")
    rslora: bool = knob(False)
    dora: bool = knob(False, memory="more", time="more")
    tokens: tuple[str, ...] = knob((), memory="more")
    tokens_file: str = knob("", memory="more")
    special_tokens: bool = knob(False)
    modules_to_save: str = knob("", memory="more", time="more")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimSpec:
    """How big the corrections are, over how many examples each, and for how long."""

    learning_rate: float = knob(
        0.0, minimum=0.0, maximum=1.0, level="basic", useful=(1e-4, 2e-4, 5e-4), auto=True
    )
    """0: what is usual for the objective, see settle_rate()."""
    modules_rate: float = knob(0.1, unit="share", minimum=0.0, maximum=10.0, useful=(0.02, 0.1, 0.5, 1))
    epochs: float = knob(
        3.0, unit="epochs", minimum=0.0, maximum=1000, level="basic", time="more", useful=(1, 2, 3, 5)
    )
    max_steps: int = knob(0, unit="steps", minimum=0, maximum=10_000_000, level="common", time="more")
    batch_size: int = knob(
        8, unit="examples", minimum=1, maximum=65536, level="common", effect="own", useful=(4, 8, 16, 32, 64)
    )
    micro_batch: int = knob(0, unit="examples", minimum=0, maximum=65536, memory="more", time="less")
    optimizer: str = knob(
        "adamw", choices=("adamw", "adamw_8bit", "paged_adamw_8bit"), level="common", effect="own"
    )
    schedule: str = knob("cosine", choices=("linear", "cosine", "constant", "wsd"), level="common")
    warmup_steps: int = knob(0, unit="steps", minimum=0, maximum=1_000_000)
    warmup_share: float = knob(0.03, unit="share", minimum=0.0, maximum=1.0)
    decay_share: float = knob(0.2, unit="share", minimum=0.0, maximum=1.0)
    weight_decay: float = knob(0.01, minimum=0.0, maximum=10.0)
    max_grad_norm: float = knob(1.0, minimum=0.0, maximum=1000.0)
    beta1: float = knob(0.9, minimum=0.0, maximum=0.9999)
    beta2: float = knob(0.999, minimum=0.0, maximum=0.99999)
    epsilon: float = knob(1e-8, minimum=0.0, maximum=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceSpec:
    """How better and worse answers are compared; read by the objectives that do."""

    loss: str = knob(
        "auto",
        choices=("auto", *dict.fromkeys(one for of in COMPARISONS.values() for one in of)),
        level="common",
    )
    beta: float = knob(0.0, minimum=0.0, maximum=100.0, level="common", useful=(0.05, 0.1, 0.3, 0.5))
    gamma: float = knob(0.5, minimum=0.0, maximum=10.0, useful=(0.5, 1.0, 1.5))
    label_smoothing: float = knob(0.0, unit="share", minimum=0.0, maximum=0.49, useful=(0.0, 0.1, 0.2))
    nll_weight: float = knob(0.0, minimum=0.0, maximum=100.0, level="common", useful=(0.0, 0.2, 1.0))
    center: float = knob(0.01, minimum=0.0, maximum=10.0, useful=(0.0, 0.01, 0.1))
    good_weight: float = knob(0.0, minimum=0.0, maximum=1000.0)
    bad_weight: float = knob(0.0, minimum=0.0, maximum=1000.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingSpec:
    """How the model answers prompts, and how it learns from what rewards say of the answers."""

    loss: str = knob(
        "dapo",
        choices=("dapo", "grpo", "dr_grpo", "bnpo", "gspo", "cispo", "rloo", "sapo", "luspo"),
        level="common",
    )
    group_size: int = knob(
        8, unit="answers", minimum=2, maximum=1024, level="common", time="more", useful=(4, 8, 16)
    )
    answer_tokens: int = knob(
        256,
        unit="tokens",
        minimum=1,
        maximum=1_048_576,
        level="common",
        memory="more",
        time="more",
        useful=(128, 256, 512, 1024),
    )
    temperature: float = knob(1.0, minimum=0.05, maximum=5.0, useful=(0.7, 1.0, 1.2))
    beta: float = knob(0.0, minimum=0.0, maximum=10.0, level="common", time="more", useful=(0.0, 0.001, 0.04))
    epsilon_low: float = knob(0.2, minimum=0.0, maximum=1.0, useful=(0.0003, 0.2))
    epsilon_high: float = knob(0.28, minimum=0.0, maximum=100.0, useful=(0.0004, 0.2, 0.28))
    delta: float = knob(0.0, minimum=0.0, maximum=100.0, useful=(0.0, 4.0))
    cispo_cap: float = knob(5.0, minimum=0.0, maximum=100.0, useful=(2.0, 5.0))
    scale_rewards: str = knob("auto", choices=("auto", "group", "batch", "none"))
    cut_answers: str = knob("learn", choices=("learn", "leave_out", "penalise"), level="common")
    overlong_share: float = knob(0.2, unit="share", minimum=0.01, maximum=1.0, useful=(0.1, 0.2, 0.5))
    updates: int = knob(1, minimum=1, maximum=64, time="less", useful=(1, 2, 4))
    redraws: int = knob(0, unit="rounds", minimum=0, maximum=16, time="more", useful=(0, 1, 3))
    importance_cap: float = knob(2.0, minimum=0.0, maximum=100.0, useful=(0.0, 2.0, 3.0))
    slots: int = knob(0, unit="answers", minimum=0, maximum=4096, memory="more", time="less")


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardSpec:
    """One way by which sampled answers are scored; read by the objectives that learn from scores."""

    name: str
    """A reward of studio/engine/rewards, or `file:PATH` of a person's own code."""
    weight: float = 1.0
    """How often its score counts in the sum; below 0 it is taken off."""
    options: dict[str, Any] = field(default_factory=dict)
    """What this reward can be told, by name: its own fields."""
    insist: bool = False
    """Whether a person wants to train by it although the test of rewards refused it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """When the run looks up from its work: evaluation, checkpoints, the end; and what it may use."""

    eval_every: int = knob(0, unit="steps", minimum=0, maximum=1_000_000, level="common", time="less")
    early_stopping: int = knob(0, unit="evaluations", minimum=0, maximum=1000, effect="own")
    best_checkpoint: str = knob("auto", choices=("auto", "last", "loss", *ANSWER_METRICS), effect="own")
    scored_rows: int = knob(100, unit="rows", minimum=0, maximum=10_000, time="more")
    samples: int = knob(3, minimum=0, maximum=8, time="more")
    save_every: int = knob(0, unit="steps", minimum=0, maximum=1_000_000, level="common", time="less")
    keep_checkpoints: int = knob(2, unit="checkpoints", minimum=1, maximum=1000, effect="own")
    activation_checkpointing: str = knob("auto", choices=("auto", "on", "off"), effect="own")
    kernels: str = knob("auto", choices=("auto", "pytorch", "triton"), effect="own")
    device: str = knob("auto", choices=("auto", "gpu", "cpu"), effect="own")
    trial: bool = knob(True, level="common", time="more")
    on_stall: str = knob("auto", choices=("auto", "wait", "restart", "stop"))
    keep_awake: bool = knob(True)
    tracker: str = knob("none", choices=("none", "tensorboard", "trackio", "wandb", "mlflow"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One run: `{"version": 3, "model": {...}, "data": {...}, ...}`; all but two keys have a default."""

    version: int = RECIPE_VERSION
    name: str = knob("", level="common")
    seed: int = knob(42, minimum=0, maximum=2**31 - 1)
    objective: str = knob("auto", choices=OBJECTIVES, level="common")
    model: ModelChoice
    data: DatasetSpec
    adapter: AdapterSpec = field(default_factory=AdapterSpec)
    preference: PreferenceSpec = field(default_factory=PreferenceSpec)
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    rewards: tuple[RewardSpec, ...] = ()
    """No knob: a list that the window draws as a section of its own."""
    optim: OptimSpec = field(default_factory=OptimSpec)
    run: RunSpec = field(default_factory=RunSpec)


def rename_path(path: str) -> str:
    """Return today's dotted path of a setting that an earlier version named: `run.device` is `run.device`."""
    head, dot, rest = path.partition(".")
    return RENAMED.get(path) or RENAMED.get(head, head) + dot + rest


def read_value(recipe: Recipe, path: str) -> Any:
    """Return the value at a dotted path: `read_value(recipe, "optim.learning_rate")`."""
    value: Any = recipe
    for part in path.split("."):
        value = getattr(value, part)
    return value


def change_recipe(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return a copy of `recipe` with the values at the dotted paths of `changes` replaced.

    Earlier names are understood: what a stored run proposes to change has those of its day.
    """
    for path, value in changes.items():
        head, _, rest = rename_path(path).partition(".")
        if rest:
            part = dataclasses.replace(getattr(recipe, head), **{rest: value})
            recipe = dataclasses.replace(recipe, **{head: part})
        else:
            recipe = dataclasses.replace(recipe, **{head: value})
    return recipe


def keeps_by(spec: RunSpec) -> str:
    """Return what the best state of a run is kept by: loss, a metric by name, or `last` where the last one stays."""
    if spec.best_checkpoint != "auto":
        return spec.best_checkpoint
    return "loss" if spec.early_stopping else "last"


def settle_objective(recipe: Recipe, format: str) -> Recipe:
    """Return `recipe` with the objective that `auto` stands for, where the format of its data is known."""
    if recipe.objective != "auto" or not format:
        return recipe
    return change_recipe(recipe, {"objective": LEARNS.get(format, ("sft",))[0]})


def settle_rate(recipe: Recipe) -> Recipe:
    """Return `recipe` with the learning rate that is usual for its objective, where nobody set one.

    Of an objective `auto` it is that of examples: settle_objective() comes first where the format is known.
    """
    if recipe.optim.learning_rate:
        return recipe
    usual = USUAL_RATES.get(recipe.objective, (USUAL_RATE, USUAL_FULL_RATE))
    return change_recipe(recipe, {"optim.learning_rate": usual[recipe.adapter.method == "full"]})


def share_held_out(spec: DatasetSpec, rows: int) -> float:
    """Return the share of `rows` examples (0: nobody knows yet) that a run holds out of them to validate on."""
    few = 0 < rows < SHARED_ROWS and spec.validation_share == USUAL_SHARE
    return 0.0 if spec.validation or few else spec.validation_share
