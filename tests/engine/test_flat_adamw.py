"""AdamW for flat parameters: PyTorch's numbers and state, steps that change all or nothing, one wait a step."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from studio_kernels import _triton, adamw
from studio_kernels.adamw import ADAMW
from studio_kernels.dispatch import bind

import studio.engine.phases.load as loading
import studio.engine.phases.train as training
from studio.core.errors import StudioError
from studio.core.events import KernelFellBack, MemoryFreed, RunPlanned, StepLogged
from studio.core.recipe import OptimSpec
from studio.data.sequence_packing import Example
from studio.engine.batches import RowSizes
from studio.engine.decoder_step import DecoderStep
from studio.engine.flat_adamw import FlatAdamW
from studio.engine.objectives.sft import SFT
from studio.engine.optimizer import apply_gradients, build_optimizer
from studio.models.adapt import adapt, unwrap
from studio.models.decoder.decoder import take_over
from studio.planning import run_plan as planning
from tests.doubles.kernels import Fault, Kernel, Now

COUNT = 1000
CPU = torch.device("cpu")
SPEC = OptimSpec(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0)
LOSS = torch.tensor(1.0)
LENGTHS = (57, 40, 21)


def read(optimizer: FlatAdamW, loss: torch.Tensor) -> tuple[float, float, bool]:
    """Return what FlatAdamW.read() says of a loss () without metrics."""
    (told,), norm, applied = optimizer.read(loss[None])
    return told, norm, applied


def draw(seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(seed)) * scale


def make(op=lambda: ADAMW.reference, device=CPU):
    """Return an optimizer of the weights draw(0)."""
    weights = torch.nn.Parameter(draw(0).to(device))
    weights.grad = torch.zeros_like(weights)
    return build_optimizer([weights], [], SPEC, "adamw", device, op), weights


def scaler(enabled: bool = False) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", enabled=enabled, init_scale=2.0**10)


def steps(optimizer, weights, seeds) -> list[tuple[float, float, bool]]:
    """Take one step a seed; returns what each of them told."""
    told = []
    for seed in seeds:
        optimizer.param_groups[0]["lr"] = 1e-2 / (seed + 1)
        weights.grad.copy_(draw(seed + 1, scale=10.0 ** (seed % 4 - 2)))
        apply_gradients(scaler(), optimizer, LOSS)
        told.append(read(optimizer, LOSS))
    return told


def torch_steps(optimizer, weights, seeds) -> list[float]:
    """The same with PyTorch's optimizer and clipping; returns the norms."""
    norms = []
    for seed in seeds:
        optimizer.param_groups[0]["lr"] = 1e-2 / (seed + 1)
        weights.grad = draw(seed + 1, scale=10.0 ** (seed % 4 - 2))
        norms.append(float(torch.nn.utils.clip_grad_norm_([weights], SPEC.max_grad_norm)))
        optimizer.step()
    return norms


def make_torch():
    weights = torch.nn.Parameter(draw(0))
    return build_optimizer([weights], [], SPEC, "adamw", CPU), weights


def test_its_numbers_are_torchs():
    optimizer, weights = make()
    theirs, expected = make_torch()
    assert isinstance(optimizer, FlatAdamW) and type(theirs) is torch.optim.AdamW
    told = steps(optimizer, weights, range(20))
    norms = torch_steps(theirs, expected, range(20))
    torch.testing.assert_close(weights, expected, rtol=0, atol=2e-6)
    assert [norm for _, norm, _ in told] == pytest.approx(norms, rel=1e-5)
    assert all(applied and loss == 1.0 for loss, _, applied in told)


def test_two_groups_share_the_norm_the_count_and_the_verdict():
    """As all weights have them: matrices that decay, norms and biases that do not."""

    def make_two(op):
        parts = [torch.nn.Parameter(part) for part in draw(0).split(600)]
        return build_optimizer([parts[0]], [parts[1]], SPEC, "adamw", CPU, op), parts

    (mine, ours), (theirs, expected) = make_two(lambda: ADAMW.reference), make_two(None)
    assert isinstance(mine, FlatAdamW) and len(mine.param_groups) == 2
    for seed in range(8):
        gradients = draw(seed + 1, scale=10.0 ** (seed % 4 - 2)).split(600)
        if seed == 5:
            gradients[1][0] = torch.inf  # in the small group alone: neither is stepped
        for optimizer, parts in ((mine, ours), (theirs, expected)):
            for group, part, gradient in zip(optimizer.param_groups, parts, gradients, strict=True):
                group["lr"], part.grad = 1e-2 / (seed + 1), gradient.clone()
        mine.step(loss=LOSS)
        norm = torch.nn.utils.clip_grad_norm_(expected, SPEC.max_grad_norm)
        if seed != 5:
            theirs.step()
        _, told, applied = read(mine, LOSS)
        assert applied == (seed != 5) and (seed == 5 or told == pytest.approx(float(norm), rel=1e-5))
        if seed == 3:  # either takes the other's state
            states = copy.deepcopy((mine.state_dict(), theirs.state_dict()))
            mine.load_state_dict(states[1])
            theirs.load_state_dict(states[0])
    for mine_part, part in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine_part, part, rtol=0, atol=2e-6)
    assert {float(state["step"]) for state in mine.state.values()} == {7.0}


@pytest.mark.parametrize("mine_first", [True, False])
def test_either_optimizer_goes_on_from_the_others_state(mine_first, tmp_path):
    one, other = (make, make_torch) if mine_first else (make_torch, make)
    take = {True: steps, False: torch_steps}
    first, weights = one()
    take[mine_first](first, weights, range(5))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second, rest = other()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    rest.data.copy_(weights.detach())
    take[not mine_first](second, rest, range(5, 10))
    whole, expected = make_torch()
    torch_steps(whole, expected, range(10))
    torch.testing.assert_close(rest, expected, rtol=0, atol=2e-6)
    assert float(second.state[rest]["step"]) == 10
    assert first.state_dict()["param_groups"][0].keys() == second.state_dict()["param_groups"][0].keys()


def test_a_state_that_was_saved_goes_on_to_the_same_bits(tmp_path):
    whole, expected = make()
    steps(whole, expected, range(10))
    first, weights = make()
    steps(first, weights, range(7))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second, rest = make()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    rest.data.copy_(weights.detach())
    steps(second, rest, range(7, 10))
    assert torch.equal(rest, expected)
    for name, tensor in whole.state[expected].items():
        assert torch.equal(tensor, second.state[rest][name]), name


@pytest.mark.parametrize("broken", ["gradient", "loss", "infinite loss"])
def test_a_step_that_is_not_finite_is_as_if_it_had_not_been(broken):
    optimizer, weights = make()
    steps(optimizer, weights, range(3))
    before = [weights.detach().clone(), *(tensor.clone() for tensor in optimizer.state[weights].values())]
    weights.grad.copy_(draw(9))
    loss = torch.tensor({"gradient": 1.0, "loss": math.nan, "infinite loss": math.inf}[broken])
    if broken == "gradient":
        weights.grad[7] = math.inf
    apply_gradients(scaler(), optimizer, loss)
    told, norm, applied = read(optimizer, loss)
    assert not applied and not math.isfinite(norm) and (told == loss or math.isnan(told))
    after = [weights.detach(), *optimizer.state[weights].values()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


class Failing:
    """The twin, one of whose parts fails at one call of it, after the others were computed."""

    def __init__(self, part: str, error: Exception, call: int = 1) -> None:
        self.part, self.error, self.left = part, error, call

    def __getattr__(self, name):
        real = getattr(ADAMW.reference, name)

        def compute(*arguments, **options):
            if name == self.part:
                self.left -= 1
                if self.left == 0:
                    raise self.error
            return real(*arguments, **options)

        return compute


@pytest.mark.parametrize("part", ["squares", "advance", "step"])
@pytest.mark.parametrize("call", [1, 3])
def test_a_step_that_raises_has_changed_nothing(part, call):
    calm, expected = make()
    steps(calm, expected, range(4))
    op = Failing(part, RuntimeError("no kernel image"), call)
    optimizer, weights = make(lambda: op)
    raised = 0
    for seed in range(4):
        try:
            steps(optimizer, weights, [seed])
        except RuntimeError:
            raised += 1
            steps(optimizer, weights, [seed])
    assert raised == 1 and torch.equal(weights, expected)
    assert float(optimizer.state[weights]["step"]) == 4


@pytest.mark.parametrize("call", [1, 3])
def test_when_memory_is_out_the_same_step_is_taken_again(call):
    calm, expected = make()
    steps(calm, expected, range(4))
    op = Failing("step", torch.OutOfMemoryError("CUDA out of memory"), call)
    optimizer, weights = make(lambda: op)
    again = []
    for seed in range(4):
        weights.grad.copy_(draw(seed + 1, scale=10.0 ** (seed % 4 - 2)))
        optimizer.param_groups[0]["lr"] = 1e-2 / (seed + 1)
        again.append(apply_gradients(scaler(), optimizer, LOSS))
    assert again == [step == call - 1 for step in range(4)]
    assert torch.equal(weights, expected)


def test_memory_that_stays_out_ends_the_run_with_whole_weights(monkeypatch):
    optimizer, weights = make()

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros_like", full)
    with pytest.raises(StudioError) as error:
        apply_gradients(scaler(), optimizer, LOSS)
    assert error.value.what.id == "memory.optimizer.full"
    assert torch.equal(weights, draw(0)) and not optimizer.state


def test_a_loss_scale_is_taken_out_and_goes_down_where_it_overflowed():
    optimizer, weights = make()
    expected_optimizer, expected = make()
    scale = scaler(enabled=True)
    for seed in range(4):
        gradient = draw(seed + 1)
        factor = scale.get_scale()
        scale.scale(LOSS)
        weights.grad.copy_(gradient * factor)
        if seed == 2:
            weights.grad[0] = math.inf
        scale.unscale_(optimizer)
        apply_gradients(scale, optimizer, LOSS)
        scale.update()
        assert read(optimizer, LOSS)[2] == (seed != 2)
        if seed != 2:
            expected.grad.copy_(gradient)
            apply_gradients(scaler(), expected_optimizer, LOSS)
    assert scale.get_scale() == 2.0**9
    assert torch.equal(weights, expected)


def test_what_is_not_one_flat_parameter_is_refused():
    for parameters in ([torch.zeros(2, 3)], [torch.zeros(2), torch.zeros(2)], [torch.zeros(2).half()]):
        with pytest.raises(ValueError, match="one flat"):
            FlatAdamW(
                [{"params": [torch.nn.Parameter(each) for each in parameters]}], lambda: ADAMW.reference
            )


# In runs of the engine, by the decoder -------------------------------------------------------------------------------


@pytest.fixture
def own(monkeypatch):
    """Has the decoder planned on a processor, too."""
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)


def weights_of(ran) -> dict[str, torch.Tensor]:
    return load_file(ran.folder.path / ran.record.artifact / "adapter_model.safetensors")


def assert_same(one, other) -> None:
    assert one.record.state == other.record.state == "finished", one.log + other.log
    first, second = weights_of(one), weights_of(other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.losses == other.losses


@pytest.mark.computing
def test_a_run_by_the_decoder_takes_it_and_learns_what_torchs_teaches(ran, own, monkeypatch):
    changes = {"run.trial": False, "optim.weight_decay": 0.1, "optim.max_grad_norm": 0.1}
    taken = []
    real = FlatAdamW.step
    monkeypatch.setattr(FlatAdamW, "step", lambda self, **given: taken.append(1) or real(self, **given))
    mine = ran(changes)
    assert len(taken) == mine.record.steps == 6, mine.log
    monkeypatch.setattr(DecoderStep, "adamw", None)
    theirs = ran(changes)
    assert len(taken) == 6 and theirs.record.state == "finished", theirs.log
    assert mine.losses == pytest.approx(theirs.losses, abs=1e-5)
    norms = [[event.grad_norm for event in each.of(StepLogged)] for each in (mine, theirs)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    first, second = weights_of(mine), weights_of(theirs)
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], atol=2e-5, rtol=0)


def played_squares(gradient, partial, *_, **__) -> None:
    partial.zero_()
    partial[0] = gradient.square().sum()


def played_advance(squares, settings, state, coefficients, weight1, weight2, **_) -> None:
    found = ADAMW.reference.advance(squares, settings, state, beta1=1 - weight1, beta2=1 - weight2)
    coefficients.copy_(found)


def played_step(p, g, m, v, coefficients, count, epsilon, weight_decay, **_) -> None:
    ADAMW.reference.step(p, g, m, v, coefficients, epsilon=epsilon, weight_decay=weight_decay)


PLAYED = {"squares": played_squares, "advance": played_advance, "step": played_step}


@pytest.mark.computing
@pytest.mark.parametrize("kernel", PLAYED)
def test_a_kernel_that_fails_at_step_4_goes_to_its_twin_and_the_step_is_taken_again(
    ran, own, monkeypatch, kernel
):
    real, now = loading.make_plan, Now()
    fault = Fault("adamw", kernel, lambda now, arguments: next(steps_done) == 3)

    def plan(*arguments):
        found = real(*arguments)
        choice = dataclasses.replace(found.kernels["adamw"], value="triton")
        return dataclasses.replace(found, kernels={**found.kernels, "adamw": choice})

    monkeypatch.setattr(loading, "make_plan", plan)
    monkeypatch.setattr(_triton, "interpreted", lambda: True)

    def go(faults):
        for name, compute in PLAYED.items():
            monkeypatch.setattr(adamw, f"_{name}_kernel", Kernel("adamw", name, compute, now, faults))
        return ran({"run.trial": False, "adapter.dropout": 0.1})

    calm = go([])
    steps_done = iter(range(100))
    fell = go([fault])
    assert fault.raised == 1, fell.log
    assert [(event.op, event.step) for event in fell.of(KernelFellBack)] == [("adamw", 4)]
    ops = [said.values["ops"] for said in fell.of(RunPlanned)[0].swaps if "ops" in said.values]
    assert ops == ["adamw"] and calm.losses[:4] == fell.losses[:4]
    assert fell.losses == pytest.approx(calm.losses, abs=1e-5) and fell.record.steps == 6


def spoil(monkeypatch, bad: set[int]) -> None:
    """Make the losses of these micro-steps NaN (two a step)."""
    real, done = DecoderStep.add_gradients, iter(range(1000))

    def spoiled(self, *arguments):
        loss = real(self, *arguments)
        return loss * math.nan if next(done) // 2 in bad else loss

    monkeypatch.setattr(DecoderStep, "add_gradients", spoiled)
    monkeypatch.setattr(training, "warm_up", lambda trainer: None)


@pytest.mark.computing
def test_a_step_without_numbers_is_reported_as_skipped_and_the_third_ends_the_run(ran, own, monkeypatch):
    changes = {"run.trial": False, "run.save_every": 0}
    spoil(monkeypatch, {2})
    once = ran(changes)
    assert once.record.state == "finished", once.log
    assert [event.skipped for event in once.of(StepLogged)] == [False, False, True, False, False, False]
    assert math.isnan(once.losses[2]) and once.record.skipped_steps == 1
    assert all(tensor.isfinite().all() for tensor in weights_of(once).values())
    monkeypatch.undo()
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    spoil(monkeypatch, {1, 2, 3})
    thrice = ran(changes)
    assert thrice.record.state == "failed" and thrice.failure == "non_finite"
    assert len(thrice.losses) == 4


@pytest.mark.computing
def test_when_memory_is_out_in_a_run_the_step_is_taken_again(ran, own, monkeypatch):
    calm = ran({"run.trial": False})
    real, calls = ADAMW.reference.step, iter(range(100))

    def full(*arguments, **options):
        if next(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(*arguments, **options)

    bound = dataclasses.replace(ADAMW.reference, step=full)
    monkeypatch.setattr(DecoderStep, "adamw", lambda self: bound)
    tight = ran({"run.trial": False})
    assert [(event.rung, event.step) for event in tight.of(MemoryFreed)] == [("optimizer", 4)]
    assert_same(tight, calm)


@pytest.mark.gpu
@pytest.mark.parametrize("op", [ADAMW.reference, ADAMW.triton], ids=["reference", "triton"])
def test_on_a_gpu_a_step_waits_for_nothing(op):
    device = torch.device("cuda")
    optimizer, weights = make(lambda: op, device)
    loss = LOSS.to(device)
    gradients = [draw(seed + 1).to(device) for seed in range(6)]
    gradients[3][0] = math.nan
    expected_optimizer, expected = make()
    optimizer.step(loss=loss * math.nan)  # compiles, and changes nothing
    assert torch.equal(weights.cpu(), draw(0)) and float(optimizer.state[weights]["step"]) == 0
    told, before = [], torch.cuda.get_sync_debug_mode()
    for seed, gradient in enumerate(gradients):
        weights.grad.copy_(gradient)
        optimizer.param_groups[0]["lr"] = expected_optimizer.param_groups[0]["lr"] = 1e-2 / (seed + 1)
        torch.cuda.set_sync_debug_mode("error")
        try:
            apply_gradients(scaler(), optimizer, loss)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        told.append(read(optimizer, loss))
        if seed != 3:
            expected.grad.copy_(draw(seed + 1))
            apply_gradients(scaler(), expected_optimizer, LOSS)
    assert [applied for _, _, applied in told] == [seed != 3 for seed in range(6)]
    torch.testing.assert_close(weights.cpu(), expected.detach(), rtol=0, atol=2e-6)
    state = optimizer.state_dict()
    again, _ = make(lambda: op, device)
    again.load_state_dict(state)
    assert all(tensor.device.type == "cuda" for tensor in again.state_dict()["state"][0].values())


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_on_a_gpu_a_whole_step_by_the_decoder_waits_for_nothing(tiny_models, recipe, recorded, dropout):
    """Neither gradients nor optimizer: what was read of a step is the only wait. Both ways give the same losses."""
    from transformers import AutoModelForCausalLM

    def train(graphs: bool, watched: bool) -> list[float]:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.bfloat16).cuda()
        model = adapt(model, dataclasses.replace(recipe.adapter, dropout=dropout))
        names = ("rms_norm", "glu", "rope", "dropout", "linear_cross_entropy", "adamw")
        decoder = take_over(unwrap(model), bind(dict.fromkeys(names, "triton")), dtype=torch.bfloat16)
        step = DecoderStep(decoder, objective=SFT, pad_id=1)
        optimizer = build_optimizer(step.decayed, [], SPEC, "adamw", step.device, step.adamw)
        rows = [np.arange(length, dtype=np.int32) % 200 + 5 for length in LENGTHS]
        examples = [Example(ids, np.ones(len(ids), dtype=bool), (len(ids),)) for ids in rows]
        if graphs:
            step.expect([RowSizes(LENGTHS, (1, 1, 1), LENGTHS)], 100)
            (examples,) = step.cut(examples, len(LENGTHS), max(LENGTHS))
        losses, before = [], torch.cuda.get_sync_debug_mode()
        for turn in range(6):
            step.clear()
            # The first turns record and compile.
            torch.cuda.set_sync_debug_mode("error" if watched and turn > 1 else before)
            try:
                loss = step.add_gradients(examples, 100, lambda loss: loss)[0].clone()
                apply_gradients(scaler(), optimizer, loss)
            finally:
                torch.cuda.set_sync_debug_mode(before)
            told, norm, applied = read(optimizer, loss)
            assert applied and norm > 0
            losses.append(told)
        assert (step._graphs is not None) == graphs
        return losses

    losses = train(recorded, watched=True)
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(train(not recorded, watched=False), rel=2e-2)
