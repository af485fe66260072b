"""What makes a run clearly slower than it could be: each with its reason and how many times as long it takes for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from studio.core.facts import BackendPlan, Choice, Gpu, MachineFacts, ModelFacts, Slower
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe
from studio.machine.card_abilities import broken_ops
from studio.machine.matmul_speeds import rate_card
from studio.planning.decoder_shape import explain_stock, longest_document, read_decoder
from studio.planning.layer_flops import slowdown
from studio.planning.shared_prompts import part_prompts
from studio.planning.speed_estimate import RowFigures, is_reckonable, measure_twins, reckon_speed

LEAST_FACTOR = 1.5
"""What costs less is told where it is decided, and is no warning."""
MOST_TIMES = 100
"""A larger factor is told as more than that: it is reckoned, not measured."""


def find_slower(
    plan: BackendPlan,
    machine: MachineFacts,
    recipe: Recipe,
    model: ModelFacts,
    gpu: Gpu | None,
    *,
    decoder_pays: bool,
) -> tuple[Slower, ...]:
    """Return what makes the run of `plan` slower by LEAST_FACTOR or more, the costliest first; () for unknown shapes.

    decoder_pays: whether the studio's own decoder is used on this device where it knows the model. What turns out only
    when the model is loaded comes with note_loading().
    """
    if not is_reckonable(model):
        return ()
    run = _Run(plan, machine, recipe, model)
    found = [*_waste_card(run, gpu)]
    if gpu is not None:
        # Of a model that is not downloaded the shapes of its layers may not be known yet.
        if decoder_pays and plan.memory is None and (model.linears or model.folder):
            found += _miss_decoder(run, gpu, explain_stock(plan, model, recipe))
        found += [*_miss_kernels(run), *_compute_wide(run, gpu), *_save_memory(run), *_cut_small(run, gpu)]
    return tuple(sorted(found, key=lambda one: -one.factor))


def note_loading(
    plan: BackendPlan,
    refused: Text | None,
    twins: Mapping[str, Text],
    machine: MachineFacts,
    recipe: Recipe,
    model: ModelFacts,
    gpu: Gpu | None,
) -> BackendPlan:
    """Return `plan` with what loading the model showed.

    `refused`: why the decoder that was planned is not used; None: it is, or none was. `twins`: ops whose kernel gives
    other numbers with this model, and why.
    """
    if refused is None and not twins:
        return plan
    given_up = {op: Choice(value="reference", reason=reason) for op, reason in twins.items()}
    shared = plan.shared_prompts if refused is None else part_prompts(plan)
    plan = dataclasses.replace(plan, kernels={**plan.kernels, **given_up}, shared_prompts=shared)
    broken = {**machine.broken_kernels, **dict.fromkeys(twins, "")}
    run = _Run(plan, dataclasses.replace(machine, broken_kernels=broken), recipe, model)
    # What would have slowed the decoder down does not slow the model's own code.
    outdated = ("kernels",) if refused is None else ("kernels", "memory")
    others = [one for one in plan.slower if one.id not in outdated]
    found = _miss_kernels(run) if refused is None else _miss_decoder(run, gpu, refused)
    return dataclasses.replace(plan, slower=tuple(sorted([*others, *found], key=lambda one: -one.factor)))


def say_times(slower: Sequence[Slower]) -> Text:
    """Return in two words how much slower a run is for the costliest of `slower`."""
    factor = max(one.factor for one in slower)
    return text("slower.times", times=f"> {MOST_TIMES}" if factor > MOST_TIMES else _round(factor))


def _round(factor: float) -> str:
    return f"{factor:.1f}" if factor < 3 else f"{factor:.0f}"


def say_slower(one: Slower) -> Text:
    """Return what costs time, and how much, in a sentence or two."""
    if one.factor > MOST_TIMES:
        return text("slower.most", times=MOST_TIMES, reason=one.reason)
    return text("slower.about", times=_round(one.factor), reason=one.reason)


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """What is looked at."""

    plan: BackendPlan
    machine: MachineFacts
    recipe: Recipe
    model: ModelFacts

    def reckon(self, gpu: Gpu | None, path: str, *, at_once: int = 0, **changed: Choice) -> float:
        """Return the tokens a second of this run with other choices."""
        plan = dataclasses.replace(self.plan, **changed) if changed else self.plan
        return reckon_speed(
            plan, self.machine, self.model, self.recipe, gpu, RowFigures(), path, at_once=at_once
        )

    @property
    def path(self) -> str:
        return "stock" if self.plan.memory is None else "decoder"


def _miss_decoder(run: _Run, gpu: Gpu | None, reason: Text | None) -> list[Slower]:
    """The model's own code computes the steps, operation by operation."""
    if reason is None:
        return []
    factor = run.reckon(gpu, "decoder") / run.reckon(gpu, "stock")
    fields = {"plan.stock.dora": "adapter.dora", "plan.stock.quantization": "model.quantization"}
    field = fields.get(reason.id, "")
    return [
        Slower(
            id="decoder", reason=text("slower.decoder", reason=reason), factor=max(1.0, factor), field=field
        )
    ]


def _waste_card(run: _Run, gpu: Gpu | None) -> Iterator[Slower]:
    """The processor trains beside a graphics card."""
    best = max(
        (one for one in run.machine.gpus if one.vram_bytes),
        key=lambda one: (one.vram_bytes, rate_card(one)),
        default=None,
    )
    if gpu is not None or best is None:
        return
    # On a card the model's own code: whether the decoder knows the model is not asked here.
    factor = run.reckon(best, "stock") / run.reckon(None, "stock")
    if factor >= LEAST_FACTOR:
        yield Slower(id="card", reason=run.plan.device.reason, factor=factor, field="run.device")


def _miss_kernels(run: _Run) -> Iterator[Slower]:
    """PyTorch's operations compute what has a kernel of ours."""
    plan = run.plan
    factor = measure_twins(plan, run.model) if run.path == "decoder" else 1.0
    twins = [choice for choice in plan.kernels.values() if choice.value == "reference"]
    failed = [op for op in plan.kernels if op in broken_ops(run.machine)]
    if factor >= LEAST_FACTOR or (failed and factor > 1.0):
        reason = plan.kernels[failed[0]].reason if failed else twins[0].reason
        ops = ", ".join(op for op, choice in plan.kernels.items() if choice.value == "reference")
        field = "run.kernels" if run.recipe.run.kernels == "pytorch" else ""
        yield Slower(
            id="kernels", reason=text("slower.kernels", ops=ops, reason=reason), factor=factor, field=field
        )


def _compute_wide(run: _Run, gpu: Gpu) -> Iterator[Slower]:
    """fp32 on a card that multiplies 16-bit numbers faster."""
    if run.plan.dtype.value != "fp32" or gpu.vendor != "nvidia":
        return
    narrow = Choice(value="fp16", reason=run.plan.dtype.reason)
    factor = run.reckon(gpu, run.path, dtype=narrow) / run.reckon(gpu, run.path)
    if factor >= LEAST_FACTOR:
        reason = text("slower.precision", gpu=gpu.name, reason=run.plan.dtype.reason)
        yield Slower(id="precision", reason=reason, factor=factor, field="model.precision")


def _save_memory(run: _Run) -> Iterator[Slower]:
    """Much is computed twice, or waits in the machine's own memory."""
    plan, shape = run.plan, read_decoder(run.plan, run.model, run.recipe)
    if plan.memory is None or shape is None:
        return
    factor = 1 + slowdown(shape, plan.memory, longest_document(run.model, run.recipe))
    if factor >= LEAST_FACTOR:
        field = "data.max_length"
        yield Slower(id="memory", reason=plan.checkpointing.reason, factor=factor, field=field)


def _cut_small(run: _Run, gpu: Gpu) -> Iterator[Slower]:
    """The recipe asks for fewer rows at once than a step has, and the card does little at a time."""
    at_once, all_rows = run.recipe.optim.micro_batch, run.recipe.optim.batch_size
    if not at_once or at_once >= all_rows or run.recipe.data.fill:
        return
    factor = run.reckon(gpu, run.path, at_once=all_rows) / run.reckon(gpu, run.path)
    if factor >= LEAST_FACTOR:
        reason = text("slower.rows", rows=at_once, all=all_rows)
        yield Slower(id="rows", reason=reason, factor=factor, field="optim.micro_batch")
