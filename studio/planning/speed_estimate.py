"""Predicts how fast a run trains, before it starts: operations a token over the rate of the card or the processor.

Figures and where they come from: assets/speeds.json. What earlier runs on this machine measured corrects them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studio.core.facts import BackendPlan, DataFacts, Gpu, MachineFacts, MeasuredSpeed, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import FOUR_BITS, SAMPLING, Recipe, change_recipe, share_held_out
from studio.machine.matmul_speeds import find_card, rate_card, rate_processor, read_speeds, share_of_wide
from studio.planning.decoder_shape import longest, read_decoder
from studio.planning.layer_flops import ATTENTION_SLOWNESS, slowdown
from studio.planning.memory_estimate import count_linear_parameters, count_rows

MEAN_SHARE = 0.5
"""A row's tokens as a share of the longest that is kept, where nothing is known of the rows: chats of at most 1,024
tokens have 501 on average."""
FORWARD_SHARE = 1 / 3
"""Of the time that a token takes which is trained: forward, backward by its input, backward by its adapter."""
REFERRING = ("dpo", "kto")
DRAWN_TIMES = 2.5
"""Times that drawing answers takes what learning from them does: of the demo model on two cores 1.5 s beside 0.6 (64
answers of 50 tokens)."""
"""Objectives that compare with what the model made of the data before the first step."""
PADDED_SHARE = 0.3
"""What the model's own code computes in vain for each doubling of the rows at once: of 16 rows of chats the longest
has 2.0 times the mean's tokens, of 2 about 1.3."""
CORRECTION_RANGE = (0.05, 5.0)
"""A measurement beyond is no slow machine but something else: a run that stood still, a clock that was set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFigures:
    """What a run's rows are, as far as that is known: 0 for what is not."""

    count: int = 0
    tokens: int = 0
    """Of all of them once."""
    repeated_tokens: int = 0
    """Those of them that are a prompt's for the second time in its row."""

    @property
    def mean_tokens(self) -> float:
        """Of a row; 0 where it is not known."""
        return self.tokens / self.count if self.count and self.tokens else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What is expected of a run."""

    tokens_per_s: float
    """Padding not counted."""
    reason: Text
    """What it was reckoned from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    """How long a run trains: loading, trial and validation come on top."""

    seconds: float
    tokens: int
    """Of all its steps."""
    speed: Speed


def read_rows(data: DataFacts | None) -> RowFigures:
    """Return what is known of the rows: counted where they were, else what the head suggests."""
    if data is None:
        return RowFigures()
    if data.rows_used and data.tokens:
        return RowFigures(count=data.rows_used, tokens=data.tokens)
    if not data.expected_rows:
        return RowFigures(count=data.rows_used)
    each = data.expected_tokens / data.expected_rows
    count = data.rows_used or data.expected_rows
    return RowFigures(count=count, tokens=round(count * each))


def count_rows_at_once(
    plan: BackendPlan, model: ModelFacts, recipe: Recipe, row_tokens: float, path: str
) -> float:
    """Return how many rows of `row_tokens` a micro-step takes: a stream takes more of short ones (decoder_step.py)."""
    count = plan.micro_batch.value or count_rows(recipe)
    if path == "decoder" and recipe.data.packing:
        return min(recipe.optim.batch_size, count * longest(model, recipe) / max(1.0, row_tokens))
    return count


def count_run_tokens(recipe: Recipe, model: ModelFacts, rows: RowFigures) -> int:
    """Return the tokens of all steps of a run; 0 where its end depends on rows that nobody counted."""
    optim, data = recipe.optim, recipe.data
    each = row_tokens(recipe, model, rows)
    if optim.max_steps:
        return round(optim.max_steps * optim.batch_size * (longest(model, recipe) if data.fill else each))
    count = min(rows.count, data.max_rows) if data.max_rows else rows.count
    share = share_held_out(data, round(count))
    updates = recipe.sampling.updates if recipe.objective in SAMPLING else 1
    return round(count * (1 - share) * optim.epochs * updates * each)


def row_tokens(recipe: Recipe, model: ModelFacts, rows: RowFigures) -> float:
    """Return the tokens of a row: on average where that is known, else a share of the longest one kept.

    A prompt counts as often as it is answered, with its answers.
    """
    most = longest(model, recipe)
    if recipe.objective in SAMPLING:
        spec = recipe.sampling
        answer = MEAN_SHARE * spec.answer_tokens
        prompt = rows.mean_tokens or MEAN_SHARE * max(1, most - spec.answer_tokens)
        return spec.group_size * min(most, prompt + answer)
    return min(most, rows.mean_tokens) if rows.mean_tokens else MEAN_SHARE * most


def is_reckonable(model: ModelFacts) -> bool:
    """Return whether enough of a model is known to reckon its speed: a config may name its numbers in its own way."""
    return bool(model.parameters and model.layers and model.hidden_size)


def predict_duration(
    plan: BackendPlan,
    machine: MachineFacts,
    model: ModelFacts,
    recipe: Recipe,
    gpu: Gpu | None,
    rows: RowFigures,
) -> Duration | None:
    """Return how long the run trains; None where its tokens or the model's shape are not known."""
    tokens = count_run_tokens(recipe, model, rows)
    if not (tokens and is_reckonable(model)):
        return None
    speed = predict_speed(plan, machine, model, recipe, gpu, rows)
    computed = tokens + FORWARD_SHARE * count_scored_tokens(recipe, model, rows)
    if recipe.objective in SAMPLING:
        computed += DRAWN_TIMES * tokens / recipe.sampling.updates
    return Duration(seconds=computed / speed.tokens_per_s, tokens=tokens, speed=speed)


def count_scored_tokens(recipe: Recipe, model: ModelFacts, rows: RowFigures) -> int:
    """Return the tokens that only go forward: an objective's reference before the first step, and KTO's z in each."""
    if recipe.objective not in REFERRING:
        return 0
    once = change_recipe(recipe, {"optim.epochs": 1.0, "optim.max_steps": 0})
    data = round(count_run_tokens(once, model, rows) / (1 - share_held_out(recipe.data, round(rows.count))))
    if recipe.objective != "kto" or recipe.preference.loss != "auto":
        return data
    return 2 * data + count_run_tokens(recipe, model, rows)


def predict_speed(
    plan: BackendPlan,
    machine: MachineFacts,
    model: ModelFacts,
    recipe: Recipe,
    gpu: Gpu | None,
    rows: RowFigures,
) -> Speed:
    """Return the Speed of a run, corrected by the nearest run that was measured here."""
    path = name_path(plan)
    tokens_per_s = reckon_speed(plan, machine, model, recipe, gpu, rows, path)
    near = _find_nearest(machine.speeds, plan, model, recipe, gpu, path)
    if near is not None:
        low, high = CORRECTION_RANGE
        ratio = min(high, max(low, near.tokens_per_s / near.reckoned_tokens_per_s))
        return Speed(tokens_per_s=ratio * tokens_per_s, reason=text("speed.measured", run=near.run))
    if gpu is None:
        id = "speed.processor" if machine.processor_rate else "speed.cores"
        gflops = round(rate_processor(machine) / 1e9)
        return Speed(tokens_per_s=tokens_per_s, reason=text(id, cores=machine.cores, gflops=gflops))
    id = "speed.card" if find_card(gpu) is not None else "speed.unknown_card"
    return Speed(tokens_per_s=tokens_per_s, reason=text(id, gpu=gpu.name))


def name_path(plan: BackendPlan) -> str:
    """Return whose code computes a step: `decoder`, or `stock` for the model's own."""
    off = any(one.id == "decoder" for one in plan.slower)
    return "decoder" if plan.memory is not None and not off else "stock"


def reckon_speed(
    plan: BackendPlan,
    machine: MachineFacts,
    model: ModelFacts,
    recipe: Recipe,
    gpu: Gpu | None,
    rows: RowFigures,
    path: str,
    *,
    at_once: float = 0,
) -> float:
    """Return the tokens a second, padding not counted, of an is_reckonable() model, without any measurement here.

    `path`: decoder or stock. `at_once`: rows of a micro-step; 0: the recipe's.
    """
    packed = recipe.data.fill
    length = longest(model, recipe) if packed else row_tokens(recipe, model, rows)
    at_once = at_once or count_rows_at_once(plan, model, recipe, length, path)
    computed = length * at_once
    if path == "stock" and not packed:
        computed = min(computed * (1 + PADDED_SHARE * math.log2(at_once)), at_once * longest(model, recipe))
    figures = read_speeds()["paths"]["processor" if gpu is None else path]
    rate = rate_processor(machine) if gpu is None else rate_card(gpu)
    if gpu is not None and plan.dtype.value == "fp32":
        rate *= share_of_wide(gpu)
    rate *= figures["share"] * model.hidden_size / (model.hidden_size + figures["narrow"])
    layer_s = figures["layer_s"]
    if path == "stock" and plan.quantization.value != "none":
        layer_s *= read_speeds()["quantized"]["layer_s"]
    document = min(length, row_tokens(recipe, model, rows)) if packed else length
    operations = count_operations(plan, model, recipe, document, path)
    if path == "decoder":
        computed *= 1 - plan.shared_prompts.value
    seconds = model.layers * layer_s + computed * operations / rate
    if path == "decoder":
        seconds *= measure_twins(plan, model)
    return length * at_once / seconds


def count_operations(
    plan: BackendPlan, model: ModelFacts, recipe: Recipe, document_tokens: float, path: str
) -> float:
    """Return the operations a token of a document of so many tokens, forward and backward, with what is done twice.

    Of a weight that is not trained two products, of a trained one three, each of 2 operations (Kaplan et al. 2020).
    """
    linear, head = (
        count_linear_parameters(model) + round(model.expert_parameters * share_chosen(model)),
        model.hidden_size * model.vocabulary,
    )
    seen = document_tokens / 2
    window = model.sliding_window
    if 0 < window < document_tokens and all(model.windowed_layers):
        seen = window - window**2 / (2 * document_tokens)
    queries = model.query_heads * model.head_dim or model.hidden_size
    attention = ATTENTION_SLOWNESS * 4 * queries * seen * model.layers
    products = 3 if recipe.adapter.method == "full" else 2
    operations = 2 * products * (linear + head) + 3.5 * attention
    if path == "decoder":
        shape = read_decoder(plan, model, recipe)
        again = slowdown(shape, plan.memory, round(document_tokens)) if shape and plan.memory else 0.0
        return operations * (1 + again)
    return operations + (2 * linear + attention) * bool(plan.checkpointing.value)


def share_chosen(model: ModelFacts) -> float:
    """Return the share of its experts that a token passes; 1.0 where that is not known."""
    _, experts, chosen = model.experts
    return chosen / experts if experts and chosen else 1.0


def measure_twins(plan: BackendPlan, model: ModelFacts) -> float:
    """Return how many times as long the decoder's step takes for the ops that PyTorch's operations compute."""
    shares, extra = read_speeds()["twins"], 0.0
    for op, choice in plan.kernels.items():
        if choice.value != "reference" or (op == "nf4" and plan.quantization.value not in FOUR_BITS):
            continue
        if op == "flash":  # elsewhere the library's attention is as fast
            extra += read_speeds()["attention_twin"]["is"] * (plan.attention.value == "eager")
        else:
            extra += shares.get(op, 0.0)
    return 1 + extra


def _find_nearest(
    speeds: Sequence[MeasuredSpeed],
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    gpu: Gpu | None,
    path: str,
) -> MeasuredSpeed | None:
    """Return what was measured on the same card by the same code: likest in its way of training, then in size."""
    here = [one for one in speeds if (one.gpu, one.path) == (gpu.name if gpu else "", path)]

    def distance(one: MeasuredSpeed) -> tuple[float, ...]:
        ways = (one.quantization != plan.quantization.value) + (one.method != recipe.adapter.method)
        return abs(math.log(max(1, one.parameters) / model.parameters)) + ways, -one.time_s

    return min(here, key=distance, default=None)
