"""`plan`: what a run of a recipe would use, with the reason of each choice, its memory and its time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from studio.cli.console import Console
from studio.core.facts import BackendPlan, Choice, ModelFacts, Slower
from studio.core.i18n import Text, text
from studio.core.memory_policy import MemoryPolicy, list_runs
from studio.core.recipe import Recipe, settle_rate
from studio.machine.workspace import Workspace
from studio.services.preload import import_libraries
from studio.services.recipes import read_recipe

if TYPE_CHECKING:
    from studio.planning.speed_estimate import Duration


def plan(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.planning.decoder_shape import DTYPE_BYTES, describe_steps
    from studio.planning.memory_estimate import OPTIMIZER_BYTES, count_tokens, predict, settle_rows
    from studio.planning.memory_planner import longest_context
    from studio.planning.run_plan import choose_calibration, choose_device, memory_budget
    from studio.planning.run_time import describe
    from studio.planning.shared_prompts import expect_shared, tell_shared
    from studio.planning.slow_paths import say_slower
    from studio.planning.speed_estimate import predict_duration
    from studio.planning.trained_beside import describe_beside
    from studio.services.desk import Desk

    desk = Desk(workspace)
    recipe = read_recipe(options.recipe, console.note)
    machine = desk.machine.add_experience(desk.machine.now(), recipe)
    plan, model = desk.recipes.plan(recipe), desk.models.inspect(recipe.model.source)
    gpu = choose_device(machine, recipe)[1]
    calibration = choose_calibration(machine, gpu)
    rows = desk.recipes.count_rows(recipe)
    expected = expect_shared(plan, model, recipe, rows)  # memory is planned with rows as long as they may be
    peak = predict(plan, model, recipe, calibration=calibration)
    say, shared = console.catalogue.say, expected.shared_prompts
    lines = [
        f"{say(text(f'plan.label.{name}')):14} {_word(choice.value, say)}: {say(choice.reason)}"
        for name, choice in (
            ("device", plan.device),
            ("precision", plan.dtype),
            ("attention", plan.attention),
            ("quantization", plan.quantization),
            ("fp8", plan.fp8),
            ("optimizer", plan.optimizer),
            ("recompute", plan.checkpointing),
            ("multi_gpu", plan.multi_gpu),
            *([("rope", plan.rope)] if plan.rope.value else []),
            *(
                ("shared_prompts", Choice(value=bool(shared.value), reason=one))
                for one in tell_shared(expected)
            ),
        )
    ]
    lines += [f"{op:14} {choice.value}: {say(choice.reason)}" for op, choice in plan.kernels.items()]
    steps = describe_steps(plan, model, recipe)
    lines.append(f"{say(text('plan.label.decoder')):14} {_word(plan.memory is not None, say)}: {say(steps)}")
    width = DTYPE_BYTES[plan.dtype.value]
    beside = describe_beside(model, recipe.adapter, OPTIMIZER_BYTES[plan.optimizer.value], width)
    if beside is not None:
        lines.append(f"{say(text('plan.label.beside')):14} {say(beside)}")
    rate = _choose_rate(recipe)
    lines.append(f"{say(text('plan.label.rate')):14} {rate.value:g}: {say(rate.reason)}")
    duration = predict_duration(expected, machine, model, recipe, gpu, rows)
    lines.append(f"{say(text('plan.label.time')):14} {say(describe(duration))}")
    lines += [say(text("event.warned", message=say_slower(one))) for one in plan.slower]
    lines += _describe_peak(peak, gpu.vram_bytes if gpu else machine.ram_bytes, say)
    lines += _describe_policy(plan.memory, say)
    # What a processor's memory holds was never measured at such lengths.
    if model.parameters and gpu is not None:
        budget = memory_budget(machine, gpu)
        room = longest_context(plan, model, recipe, *budget, calibration=calibration)
        lines.append(
            say(
                text(
                    "plan.memory.room",
                    now=count_tokens(model, settle_rows(plan, recipe)),
                    tokens=_round(room),
                )
            )
        )
    untouched = _list_untouched(model, recipe)
    lines += map(say, untouched)
    for offer in plan.offers:
        lines += [say(text("doctor.offer", title=offer.title, why=offer.why)), *filter(None, [offer.command])]
    data = {
        "plan": expected,
        "decoder": {"value": plan.memory is not None, "reason": steps},
        "peak_bytes": peak,
        "policy": _policy_data(plan),
        "learning_rate": rate,
        "slower": list_slower(plan.slower),
        "untouched": untouched,
    }
    console.answer(data | {"time": _time_data(duration)}, lines)
    return 0


def _choose_rate(recipe: Recipe) -> Choice:
    """Return the learning rate, and whether it is set or usual; what the data are is not read for it."""
    kind = "set" if recipe.optim.learning_rate else "auto" if recipe.objective == "auto" else "usual"
    return Choice(value=settle_rate(recipe).optim.learning_rate, reason=text(f"plan.rate.{kind}"))


def _list_untouched(model: ModelFacts, recipe: Recipe) -> tuple[Text, ...]:
    """Return what of the model nothing is learned in, as `train` says it; () for a model that is not here."""
    if not model.folder:
        return ()
    adapt = import_libraries("studio.models.adapt")
    draw_model = import_libraries("studio.models.load").draw_model
    return adapt.note_parts(draw_model(model), recipe.adapter, recipe.model.adapter)


def list_slower(slower: Iterable[Slower]) -> list[dict[str, Any]]:
    """Return what makes a run slower, as programs read it."""
    return [{"id": one.id, "reason": one.reason, "factor": round(one.factor, 2)} for one in slower]


def _time_data(duration: Duration | None) -> dict[str, Any] | None:
    """Return how long the training is expected to take; None where the rows are not known."""
    if duration is None:
        return None
    speed = duration.speed
    return {
        "seconds": round(duration.seconds, 1),
        "tokens": duration.tokens,
        "tokens_per_s": round(speed.tokens_per_s, 1),
        "reason": speed.reason,
    }


def _policy_data(plan: BackendPlan) -> dict[str, Any]:
    """Return what is kept for the backward pass, equal layers together; without the decoder only whether it is all."""
    data: dict[str, Any] = {"checkpointing": plan.checkpointing.value, "reason": plan.checkpointing.reason}
    if plan.memory is None:
        return data
    layers = [
        {"first": run.first, "last": run.last, "keep": run.policy.keep, "offload": run.policy.offload}
        for run in list_runs(plan.memory)
    ]
    names = ("mlp_chunk_tokens", "head_rows", "head_columns", "cached_layers")
    return data | {"layers": layers} | {name: getattr(plan.memory, name) for name in names}


def _describe_peak(peak: Mapping[str, int], has_bytes: int, say: Callable[[Text], str]) -> Iterator[str]:
    """Yield a table of the predicted peak: numbers first, so that it stands straight in every script."""
    yield say(text("plan.memory.peak"))
    for part, size in peak.items():
        if size:
            yield f"{size / 2**30:10.2f} GiB  {say(text(f'plan.part.{part}'))}"
    together = say(text("plan.part.total", has=f"{has_bytes / 2**30:.1f}"))
    yield f"{sum(peak.values()) / 2**30:10.2f} GiB  {together}"


def _describe_policy(policy: MemoryPolicy | None, say: Callable[[Text], str]) -> Iterator[str]:
    """Yield what is kept of which layers."""
    if policy is None:
        return
    yield say(text("plan.memory.kept"))
    for run in list_runs(policy):
        keep = run.policy.keep
        if run.policy.offload:
            keep = "offload" if keep == "input" else f"offload_{keep}"
        what = text(f"plan.keep.{keep}")
        id = "plan.memory.layer" if run.first == run.last else "plan.memory.layers"
        yield "  " + say(text(id, first=run.first, last=run.last, what=what))


def _round(tokens: int) -> int:
    """Return `tokens` with two digits, rounded down."""
    step = 10 ** max(0, len(str(tokens)) - 2)
    return tokens // step * step


def _word(value: Any, say: Callable[[Text], str]) -> str:
    """Return a value in words: True is yes."""
    return say(text("word.yes" if value else "word.no")) if isinstance(value, bool) else str(value)
