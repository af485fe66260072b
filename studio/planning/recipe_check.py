"""Finds every problem of a recipe at once, before anything heavy starts: a pure function of facts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from studio.core.errors import Problem, StudioError
from studio.core.events import Fix
from studio.core.facts import BackendPlan, DataFacts, MachineFacts, ModelFacts
from studio.core.i18n import Text, literal, text
from studio.core.knob import Knob, knobs_of
from studio.core.recipe import (
    COMPARISONS,
    FOUR_BITS,
    LEARNS,
    SAMPLING,
    Recipe,
    keeps_by,
    read_value,
    settle_objective,
    share_held_out,
)
from studio.data.pipeline import refuse_objective
from studio.machine.versions import gate
from studio.models.rope_scaling import count_positions, read_kind
from studio.models.token_list import find_problems
from studio.planning.memory_estimate import count_disk, count_left_out, predict
from studio.planning.memory_planner import advise
from studio.planning.run_plan import (
    bitsandbytes_reason,
    choose_calibration,
    choose_device,
    gigabytes,
    plan,
    plan_backend,
)
from studio.planning.run_time import check_duration
from studio.planning.slow_paths import say_slower

UNUSABLE = ("torch_without_gpu", "driver_or_build")
"""Rows of the backend table: there is a card, and it cannot be used as things are."""
FULL_RATE_LIMIT = 1e-4
"""Above this, full fine-tuning of a model of over 50 million parameters usually forgets what it knew."""
ADAPTER_RATE_LIMIT = 2e-2
PAIR_RATE_LIMIT = 2e-4
"""Comparisons of answers without a loss of the better ones break a model's answers an order of magnitude earlier."""
SMALL_MODEL = 50_000_000
MOST_STRETCHED = 8
"""Times that are proposed: beyond them longer texts are not learned from a few rows."""


def check(
    recipe: Recipe,
    machine: MachineFacts,
    model: ModelFacts | None,
    data: DataFacts | None,
    *,
    free_disk_bytes: int | None = None,
) -> tuple[Problem, ...]:
    """Return all Problems, errors before warnings; what is not known yet (None) is not judged.

    `free_disk_bytes` is the free space where the run's folder will be.
    """
    problems = list(_check_knobs(recipe))
    ranges_hold = not problems
    problems += _check_time(recipe, data)
    problems += _check_objective(recipe, data)
    problems += _check_beside(recipe, model)
    problems += _check_machine(recipe, machine, model)
    if data is not None:
        problems += _check_data(recipe, data)
    if model is not None:
        problems += _check_model(recipe, model)
    if model is not None and model.parameters and ranges_hold:
        recipe = settle_objective(recipe, data.format if data is not None else "")
        chosen = plan(machine, recipe, model)
        problems += _check_room(recipe, machine, model, chosen, free_disk_bytes)
        problems += _check_experts(model, chosen)
        problems += _check_slower(recipe, chosen)
        problems += check_duration(recipe, machine, model, chosen, data)
    return tuple(sorted(problems, key=lambda problem: problem.severity != "error"))


def estimate_steps(recipe: Recipe, data: DataFacts | None) -> int:
    """Return the optimizer steps of the run; 0 when they cannot be known before the data is packed or read."""
    optim = recipe.optim
    if optim.max_steps:
        return optim.max_steps
    if data is None or not data.rows_used or recipe.data.fill or optim.batch_size < 1:
        return 0
    rows = data.rows_used - int(data.rows_used * share_held_out(recipe.data, data.rows_used))
    updates = recipe.sampling.updates if recipe.objective in SAMPLING else 1
    return math.ceil(math.ceil(rows / optim.batch_size) * optim.epochs * updates)


def _check_knobs(recipe: Recipe) -> Iterator[Problem]:
    for knob in knobs_of(Recipe):
        value = read_value(recipe, knob.path)
        if knob.required and not str(value).strip():
            yield _problem(knob.path, "check.required", label=knob.label)
        elif knob.choices and value not in knob.choices:
            yield _problem(knob.path, "check.choice", label=knob.label, value=value, choices=knob.choices)
        elif knob.kind in (int, float):
            yield from _check_range(knob, value)


def _check_range(knob: Knob, value: float) -> Iterator[Problem]:
    if not math.isfinite(value):
        yield _problem(knob.path, "check.not_a_number", label=knob.label)
    elif knob.minimum is not None and value < knob.minimum:
        yield _problem(
            knob.path, "check.too_low", label=knob.label, value=value, minimum=_plain(knob.minimum)
        )
    elif knob.maximum is not None and value > knob.maximum:
        yield _problem(
            knob.path, "check.too_high", label=knob.label, value=value, maximum=_plain(knob.maximum)
        )


def _check_time(recipe: Recipe, data: DataFacts | None) -> Iterator[Problem]:
    optim, run = recipe.optim, recipe.run
    if not optim.epochs and not optim.max_steps:
        yield _problem("optim.epochs", "check.no_end")
    steps = estimate_steps(recipe, data)
    if steps and optim.warmup_steps > steps:
        yield _warning("optim.warmup_steps", "check.warmup", warmup=optim.warmup_steps, steps=steps)
    has_validation = bool(
        recipe.data.validation or share_held_out(recipe.data, data.rows_used if data else 0)
    )
    if run.early_stopping and not run.eval_every:
        yield _problem("run.early_stopping", "check.stop_without_eval")
    if run.early_stopping and not has_validation:
        yield _problem("run.early_stopping", "check.stop_without_validation")
    elif keeps_by(run) != "last" and run.best_checkpoint != "auto" and not has_validation:
        yield _problem("run.best_checkpoint", "check.best_without_validation")
    elif run.best_checkpoint not in ("auto", "last") and not run.eval_every:
        yield _problem("run.best_checkpoint", "check.best_without_eval")
    elif keeps_by(run) not in ("last", "loss") and not run.scored_rows:
        yield _problem("run.best_checkpoint", "check.best_without_rows")
    elif run.eval_every and not has_validation:
        yield _warning("run.eval_every", "check.eval_without_validation")
    if steps and run.eval_every > steps:
        yield _warning("run.eval_every", "check.eval_too_late", every=run.eval_every, steps=steps)


def _check_objective(recipe: Recipe, data: DataFacts | None) -> Iterator[Problem]:
    full, rate = recipe.adapter.method == "full", recipe.optim.learning_rate
    if full and recipe.model.quantization != "none":
        yield _problem("model.quantization", "check.full_quantized", value=recipe.model.quantization)
    if recipe.model.more_bits and recipe.model.quantization != "mixed":
        yield _warning("model.more_bits", "check.more_bits")
    if full and recipe.model.adapter:
        yield _problem("model.adapter", "check.full_adapter")
    if not full and ADAPTER_RATE_LIMIT < rate <= 1:
        yield _warning("optim.learning_rate", "check.rate_high", rate=rate, usual="0.0002")
    if recipe.adapter.dora and recipe.model.adapter:
        yield _warning("adapter.dora", "check.dora_continued")
    if recipe.adapter.dora and recipe.model.quantization == "int8":
        yield _problem("adapter.dora", "check.dora_int8")
    if recipe.objective in ("sft", "weighted_sft") and data is not None and data.format == "text":
        yield _problem("objective", "check.sft_text")
    yield from _check_comparison(recipe, data)


def _check_comparison(recipe: Recipe, data: DataFacts | None) -> Iterator[Problem]:
    """An objective that the data are not for, a loss that it has not, and a rate that breaks answers."""
    name, format = recipe.objective, data.format if data is not None else ""
    if name == "auto":
        name = LEARNS.get(format, ("sft",))[0]
    elif format:
        try:
            refuse_objective(name, format)
        except StudioError as error:
            message = text("sentence.two", first=error.what, second=error.why)
            change = {"objective": "auto"}
            way = Fix(title=text("check.objective.way"), change=change)
            yield Problem(field="objective", message=message, fix=error.fix, ways=(way,))
            return
    if name in SAMPLING:
        yield from _check_sampling(recipe)
    if name not in COMPARISONS:
        return
    preference, rate = recipe.preference, recipe.optim.learning_rate
    if preference.loss not in ("auto", *COMPARISONS[name]):
        error = refuse_comparison(name, preference.loss)
        yield Problem(field="preference.loss", message=error.what, fix=error.fix)
    if name == "reward" and recipe.adapter.method == "full":
        yield _problem("adapter.method", "check.reward_full")
    if rate > PAIR_RATE_LIMIT:
        yield _warning("optim.learning_rate", "check.pair_rate", rate=rate, usual="5e-6")


def _check_sampling(recipe: Recipe) -> Iterator[Problem]:
    """Answers that nothing judges, or for which there is no room."""
    if not recipe.rewards:
        yield _problem("objective", "check.no_reward")
    if recipe.sampling.answer_tokens >= recipe.data.max_length:
        values = {"answer": recipe.sampling.answer_tokens, "length": recipe.data.max_length}
        yield _problem("sampling.answer_tokens", "check.no_answer_room", **values)


def refuse_comparison(objective: str, loss: str) -> StudioError:
    """Return the refusal of a loss that the objective does not have."""
    others = ", ".join(("auto", *COMPARISONS[objective]))
    name = text(f"knob.objective.choice.{objective}")
    return StudioError(
        *(
            text(f"check.comparison{part}", loss=loss, objective=name, others=others)
            for part in ("", ".why", ".fix")
        )
    )


def _check_beside(recipe: Recipe, model: ModelFacts | None) -> Iterator[Problem]:
    """What is trained beside an adapter: new tokens, and modules in full."""
    spec = recipe.adapter
    field = "adapter.tokens_file" if spec.tokens_file and not spec.tokens else "adapter.tokens"
    for severity, id, values in find_problems(spec, model.folder if model is not None else ""):
        yield dataclasses.replace(_problem(field, id, **values), severity=severity)
    if recipe.model.adapter and (spec.tokens or spec.tokens_file or spec.modules_to_save):
        yield _problem("model.adapter", "check.tokens.continued")
    if not spec.modules_to_save:
        return
    if spec.method == "full":
        yield _warning("adapter.modules_to_save", "check.modules.full")
    elif not recipe.optim.modules_rate:
        yield _problem("optim.modules_rate", "check.modules.zero")


def _check_machine(recipe: Recipe, machine: MachineFacts, model: ModelFacts | None) -> Iterator[Problem]:
    device, gpu = choose_device(machine, recipe)
    if recipe.run.device == "gpu" and gpu is None:
        yield _problem("run.device", "check.no_gpu", reason=device.reason)
    elif recipe.run.device == "auto" and plan_backend(machine, recipe).row in UNUSABLE:
        yield _warning("run.device", "check.card_unused", reason=device.reason)
    broken = bitsandbytes_reason(machine)
    if broken:
        stored = model.quantization if model is not None and model.quantization != "none" else ""
        wanted = stored or recipe.model.quantization
        if wanted in (*FOUR_BITS, "fp4", "int8"):
            id = "check.stored_without_bitsandbytes" if stored else "check.bitsandbytes"
            field = "model.source" if stored else "model.quantization"
            yield _problem(field, id, value=wanted, reason=literal(broken))
        if recipe.optim.optimizer != "adamw":
            value = recipe.optim.optimizer
            yield _warning("optim.optimizer", "check.optimizer", value=value, reason=literal(broken))
    if gpu is None or broken:
        return
    wanted = recipe.model.quantization
    if gpu.vendor == "nvidia" and gpu.capability < gate("int8") and wanted == "int8":
        yield _problem("model.quantization", "check.int8_old_gpu", gpu=gpu.name)
    elif wanted != "none" and plan_backend(machine, recipe).four_bit == "off":
        yield _problem("model.quantization", "check.quantization_gpu", value=wanted, gpu=gpu.name)


def _check_data(recipe: Recipe, data: DataFacts) -> Iterator[Problem]:
    if not data.rows_read:
        return  # only the head was looked at
    if not data.rows_used:
        yield _problem("data.source", "check.no_rows", source=data.source, rows=data.rows_read)
        return
    share = share_held_out(recipe.data, data.rows_used)
    if share and data.rows_used * share < 1:
        yield _problem("data.validation_share", "check.validation_empty", rows=data.rows_used)
    if recipe.data.fill and data.tokens:
        effective = recipe.optim.batch_size
        blocks = max(1, data.tokens // max(1, recipe.data.max_length))
        if blocks < effective:
            yield _warning("data.fill", "check.fill_few", blocks=blocks, batch=effective)
    if data.rows_cut > data.rows_used // 2:
        values = {"cut": data.rows_cut, "rows": data.rows_used, "length": recipe.data.max_length}
        yield _warning("data.max_length", "check.many_cut", **values)


def _check_model(recipe: Recipe, model: ModelFacts) -> Iterator[Problem]:
    if not model.trainable.ok:
        reason = model.trainable.reason or literal(model.architecture)
        message = text("check.not_trainable", name=model.name, reason=reason)
        yield Problem(field="model.source", message=message, fix=_name_way(model.trainable.reason))
    if model.packed and model.trainable.reason is not None:
        # What its opening takes and costs is told before it happens.
        fix = text(f"{model.trainable.reason.id}.fix")
        yield Problem(field="model.source", message=model.trainable.reason, fix=fix, severity="warning")
    if not model.folder and not model.packed:
        return
    yield from _check_positions(recipe, model)
    if recipe.adapter.method == "full" and model.quantization != "none":
        yield _problem("adapter.method", "check.full_stored", name=model.name, value=model.quantization)
    elif model.quantization != "none" and recipe.model.quantization not in ("none", model.quantization):
        values = {"name": model.name, "stored": model.quantization, "wanted": recipe.model.quantization}
        yield _warning("model.quantization", "check.stored_differs", **values)
    elif recipe.adapter.dora and model.quantization == "int8" and recipe.model.quantization != "int8":
        yield _problem("adapter.dora", "check.dora_int8")
    large = model.parameters > SMALL_MODEL
    if recipe.adapter.method == "full" and large and FULL_RATE_LIMIT < recipe.optim.learning_rate <= 1:
        yield _warning(
            "optim.learning_rate", "check.rate_high", rate=recipe.optim.learning_rate, usual="0.00002"
        )


def _check_positions(recipe: Recipe, model: ModelFacts) -> Iterator[Problem]:
    """Rows that are longer than the model reads, and positions that are stretched where they need not or cannot be."""
    length, own = recipe.data.max_length, model.max_positions
    most, stretched = count_positions(model, recipe), recipe.model.rope_scaling != "none"
    kind = read_kind(model.folder) if own and model.folder else ""
    if own and length > most:
        problem = _problem("data.max_length", "check.beyond_positions", length=length, most=most)
        factor = 2 ** math.ceil(math.log2(length / own))
        if not kind and factor <= MOST_STRETCHED:
            change = {"model.rope_scaling": "yarn", "model.rope_factor": float(factor)}
            way = Fix(title=text("check.rope.way", factor=factor), change=change)
            problem = dataclasses.replace(problem, ways=(way,))
        yield problem
    if not stretched:
        return
    if kind:
        yield _problem("model.rope_scaling", "check.rope.own", kind=kind, most=own)
    elif recipe.model.rope_factor <= 1:
        yield _problem("model.rope_factor", "check.rope.factor", factor=_plain(recipe.model.rope_factor))
    elif own and length <= own:
        yield _warning("model.rope_scaling", "check.rope.unneeded", length=length, most=own)


def _name_way(reason: Text | None) -> Text:
    """Return what to do about a model that cannot be trained for `reason`."""
    known = ("model.trainable.package", "model.trainable.quantization", "model.trainable.unknown")
    if reason is not None and reason.id in known:
        return text(f"{reason.id}.fix", **reason.values)
    return text("check.not_trainable.fix")


def _check_room(
    recipe: Recipe,
    machine: MachineFacts,
    model: ModelFacts,
    chosen: BackendPlan,
    free_disk_bytes: int | None,
) -> Iterator[Problem]:
    _, gpu = choose_device(machine, recipe)
    has = gpu.vram_bytes if gpu else machine.ram_bytes
    needed = sum(predict(chosen, model, recipe, calibration=choose_calibration(machine, gpu)).values())
    if needed > has:
        id = "check.memory_gpu" if gpu else "check.memory_ram"
        fix = text("check.memory.fix", advice=advise(recipe, model))
        message = text(id, needed=gigabytes(needed), has=gigabytes(has))
        yield Problem(field="data.max_length", message=message, fix=fix, severity="warning")
    if free_disk_bytes is None:
        return
    kept = recipe.run.keep_checkpoints
    each, room = (count_disk(chosen, model, recipe, keep=keep) for keep in (0, kept))
    if room <= free_disk_bytes:
        return
    problem = _problem(
        "",
        "check.disk",
        needed=gigabytes(room),
        count=kept + 1,
        each=gigabytes(each),
        has=gigabytes(free_disk_bytes),
    )
    smaller = range(kept - 1, 0, -1)
    fewer = next((n for n in smaller if count_disk(chosen, model, recipe, n) <= free_disk_bytes), 0)
    if fewer:
        fix = text("check.disk.fewer", count=fewer)
        way = Fix(title=fix, change={"run.keep_checkpoints": fewer})
        problem = dataclasses.replace(problem, field="run.keep_checkpoints", fix=fix, ways=(way,))
    yield problem


def _check_experts(model: ModelFacts, chosen: BackendPlan) -> Iterator[Problem]:
    """What a quantisation does not reach: a person who asks for 4 bits reckons with a quarter of the memory."""
    share, left_bytes = count_left_out(chosen, model)
    if left_bytes:
        values = {
            "value": chosen.quantization.value,
            "share": round(100 * share),
            "left": gigabytes(left_bytes),
        }
        yield _warning("model.quantization", "check.experts", **values)


def _check_slower(recipe: Recipe, chosen: BackendPlan) -> Iterator[Problem]:
    """What makes the run clearly slower than it could be, as far as that is known before the model is loaded."""
    for one in chosen.slower:
        wanted = (one.id, read_value(recipe, one.field) if one.field else "")
        own_wish = wanted in (("card", "cpu"), ("kernels", "pytorch"))
        fix = text(f"slower.{one.id}.wanted.fix" if own_wish else f"slower.{one.id}.fix")
        yield Problem(field=one.field, message=say_slower(one), fix=fix, severity="warning")


def _problem(field: str, id: str, **values: object) -> Problem:
    return Problem(field=field, message=text(id, **values), fix=text(f"{id}.fix", **values))


def _warning(field: str, id: str, **values: object) -> Problem:
    return dataclasses.replace(_problem(field, id, **values), severity="warning")


def _plain(number: float) -> str:
    return f"{number:.10g}"
