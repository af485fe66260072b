"""The engine with the studio's own decoder: the same numbers as the model's own code, and nothing lost on the way."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from studio_kernels.dispatch import bind

import studio.engine.phases.load as loading
import studio.engine.run as engine
from studio.core.events import EvalLogged, KernelFellBack, MemoryFreed, RunPlanned, RunResumed, Warned
from studio.core.recipe import change_recipe
from studio.data.sequence_packing import Example, count_trained
from studio.engine import build as assembly
from studio.engine.decoder_step import DecoderStep
from studio.engine.loss_head import LossHead
from studio.engine.objectives.sft import SFT
from studio.engine.oom_fallback import climb, rungs_of
from studio.engine.run_folder import create_run
from studio.engine.token_stream import join
from studio.engine.train_state import TrainState
from studio.engine.train_step import StockStep
from studio.models.adapt import adapt, unwrap
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.optimize_model import Fast
from studio.planning import run_plan as planning
from tests.doubles.kernels import COMPUTE, Fault, Now, install
from tests.each_time import some, some_of_several
from tests.engine.conftest import Ran

FAMILIES = ("llama", "qwen3", "gemma3", "granite", "olmo2", "glm4", "hunyuan")
WAYS = [
    (fill, family, "full" if fill == (number % 2 == 0) else "lora")
    for number, family in enumerate(FAMILIES)
    for fill in (False, True)
]
"""Every family packed and not, with an adapter and in full; both ways of one go with both of the other."""


@pytest.fixture
def own(monkeypatch):
    """Has the decoder planned on a processor, too."""
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    name = "adapter_model.safetensors" if ran.record.adapter else "model.safetensors"
    return load_file(ran.folder.path / ran.record.artifact / name)


def assert_close(one: Ran, other: Ran, atol: float, strays: float = 0.0) -> None:
    """Compare losses and weights; `strays`: the share of a tensor's elements that may be further off than `atol`."""
    assert one.record.state == other.record.state == "finished", one.log + other.log
    assert one.losses == pytest.approx(other.losses, abs=min(atol, 1e-4))
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        far = (tensor - second[name]).abs() > atol
        assert far.float().mean() <= strays, (name, (tensor - second[name]).abs().max())


def says(ran: Ran) -> set[str]:
    return {text.id for text in ran.of(RunPlanned)[0].swaps}


@pytest.mark.parametrize(
    ("fill", "family", "method"),
    some_of_several(WAYS, (False, "llama", "lora"), (True, "qwen3", "lora")),
)
def test_a_run_is_that_of_the_models_own_code(ran, tiny_models, monkeypatch, family, fill, method):
    changes = {
        "adapter.method": method,
        "model.source": str(tiny_models(family)),
        "data.fill": fill,
        "run.eval_every": 2,
        "data.validation_share": 0.2,
    }
    stock = ran(changes)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    mine = ran(changes)
    assert "run.decoder" in says(mine) and "run.decoder" not in says(stock)
    # Where gradients are near nothing, as of one weight in 512 here, Adam's steps of 1e-2 show how they were rounded.
    assert_close(mine, stock, atol=2e-4, strays=0.01 if family == "hunyuan" else 0.0)
    losses = [[event.loss for event in one.of(EvalLogged)] for one in (mine, stock)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4) and losses[0]


@pytest.mark.parametrize(
    "way",
    some(
        [
            {"adapter.dropout": 0.2},
            {"adapter.method": "full"},
            {"adapter.method": "full", "model.precision": "bf16"},
        ],
        {"adapter.method": "full"},
    ),
    ids=str,
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(ran, own, way):
    changes = {"run.trial": False} | way
    whole = ran(changes)
    part = ran(changes, stop_at=3)
    assert part.record.state == "stopped"
    rest = ran(changes, folder=part.folder)
    assert rest.of(RunResumed)[0].step == 3 and "run.decoder" in says(rest)
    assert part.losses + rest.losses == whole.losses
    first, second = weights(whole), weights(rest)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_the_decoder_does_not_know_trains_by_the_models_own_code(ran, own, monkeypatch):
    result = ran({"adapter.dora": True, "adapter.dropout": 0.1, "run.trial": False})
    assert result.record.state == "finished" and "run.decoder" not in says(result), result.log


def test_dora_by_the_decoder_is_pefts(ran, own, monkeypatch):
    """Up to fp32's rounding; and a run that is stopped goes on to the same bits."""
    changes = {"adapter.dora": True, "run.trial": False, "model.precision": "fp32"}
    whole = ran(changes)
    assert whole.record.state == "finished" and "run.decoder" in says(whole), whole.log
    assert any("magnitude" in name for name in weights(whole))
    part = ran(changes, stop_at=3)
    rest = ran(changes, folder=part.folder)
    assert part.losses + rest.losses == whole.losses
    first, second = weights(whole), weights(rest)
    assert all(torch.equal(first[name], second[name]) for name in first)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: False)
    assert whole.losses == pytest.approx(ran(changes).losses, rel=1e-4)


@pytest.mark.computing
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_all_weights_in_16_bits_learn_as_in_32(ran, own, optimizer):
    """The weights that learn stay fp32: what one step changes is less than a 16-bit weight can hold."""
    changes = {
        "adapter.method": "full", "run.trial": False, "optim.optimizer": optimizer, "optim.learning_rate": 1e-4,
    }  # fmt: skip
    wide, narrow = (ran(changes | {"model.precision": name}) for name in ("fp32", "bf16"))
    assert wide.record.state == narrow.record.state == "finished", wide.log + narrow.log
    assert "run.decoder" in says(wide) and "run.decoder" in says(narrow)
    assert narrow.losses == pytest.approx(wide.losses, rel=5e-3) and wide.losses[-1] < wide.losses[0]
    kept = weights(narrow)
    assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}


def test_a_decoder_that_differs_is_not_used(ran, own, monkeypatch):
    real = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, x: real(self, x) * 1.5)
    result = ran({"run.trial": False})
    assert result.record.state == "finished" and "run.decoder" not in says(result), result.log
    (slower,) = result.record.slower
    assert slower.id == "decoder" and slower.factor >= 1 and slower == result.of(RunPlanned)[0].plan.slower[0]
    assert slower.reason.values["reason"].id == "model.decoder.mismatch"
    assert [one.message.id for one in result.of(Warned)].count("slower.about") == 1


def played_backward(dh, gate, up, dgate, dup, h, *rest, **block) -> None:
    """All that the one-pass backward of the gate writes; its outputs may be its inputs."""
    dh, gate, up = dh.clone(), gate.clone(), up.clone()
    s = 1 / (1 + torch.exp(-gate))
    dup.copy_(dh * gate * s)
    dgate.copy_(dh * up * s * (1 + gate * (1 - s)))
    h.copy_(gate * s * up)


@pytest.mark.computing
@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_a_kernel_that_fails_at_step_4_loses_nothing(tmp_path, machine, recipe, monkeypatch, own, kernel):
    made = []
    real_plan, real_fast = loading.make_plan, assembly.make_fast

    def plan(*arguments):
        found = real_plan(*arguments)
        choice = dataclasses.replace(found.kernels["glu"], value="triton")
        return dataclasses.replace(found, kernels={**found.kernels, "glu": choice})

    monkeypatch.setattr(loading, "make_plan", plan)
    monkeypatch.setattr(assembly, "make_fast", lambda *a, **k: made.append(real_fast(*a, **k)) or made[-1])
    monkeypatch.setitem(COMPUTE["glu"], "backward", played_backward)

    def go(faults=(), switch_at=0) -> Ran:
        now = Now()
        install(monkeypatch, now, list(faults))
        chosen = change_recipe(recipe, {"run.trial": False, "adapter.dropout": 0.1, "optim.epochs": 3})
        folder, events = create_run(tmp_path / "runs", chosen), []

        def beat(phase, step, micro):
            now.beat(phase, step, micro)
            if switch_at and (phase, step, micro) == ("train", switch_at, 0):
                made[-1].fall_back("glu")

        record = engine.run(folder.read_recipe(), machine, folder, events.append, lambda: False, beat)
        return Ran(folder, record, events)

    fault = Fault("glu", kernel, lambda now, arguments: (now.phase, now.step, now.micro) == ("train", 4, 1))
    fell, switched = go([fault]), go(switch_at=4)
    assert made[0].decoder is not None and fault.raised == 1
    assert [(event.op, event.step) for event in fell.of(KernelFellBack)] == [("glu", 4)], fell.log
    first, second = weights(fell), weights(switched)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert fell.losses == switched.losses


@pytest.mark.computing
def test_a_kernel_that_is_wrong_with_this_model_leaves_the_others_fast(
    ran, machine, tmp_path, monkeypatch, own, recipe
):
    made = []
    real_plan, real_fast = loading.make_plan, assembly.make_fast

    def plan(*arguments):
        found = real_plan(*arguments)
        ours = {op: dataclasses.replace(found.kernels[op], value="triton") for op in ("glu", "rms_norm")}
        return dataclasses.replace(found, kernels={**found.kernels, **ours})

    def wrong_backward(dh, gate, up, dgate, dup, h, *rest, **block):
        played_backward(dh, gate, up, dgate, dup, h)
        dup[-1] = 0

    stock = ran({"run.trial": False})
    monkeypatch.setattr(loading, "make_plan", plan)
    monkeypatch.setattr(assembly, "make_fast", lambda *a, **k: made.append(real_fast(*a, **k)) or made[-1])
    monkeypatch.setitem(COMPUTE["glu"], "backward", wrong_backward)
    install(monkeypatch, Now(), [])
    result = ran({"run.trial": False})
    assert made[0].ops == {"rms_norm"} and list(made[0].twins) == ["glu"], result.log
    (fell,) = result.of(KernelFellBack)
    assert (fell.op, fell.step, fell.reason.id) == ("glu", 0, "model.decoder.mismatch")
    assert result.losses == pytest.approx(stock.losses, abs=2e-4)
    assert result.of(RunPlanned)[0].plan.kernels["glu"].value == "reference"


@pytest.mark.computing
def test_when_memory_is_out_less_is_kept_before_the_micro_batch_is_touched(ran, own, monkeypatch):
    real = DecoderStep.add_gradients

    def limited(self, *arguments):
        if any(layer.keep == "all" for layer in self.decoder.policy.layers):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self, *arguments)

    free = ran({"run.trial": False})
    monkeypatch.setattr(DecoderStep, "add_gradients", limited)
    tight = ran({"run.trial": False})
    freed = tight.of(MemoryFreed)
    assert freed and {event.rung for event in freed} == {"policy"}, tight.log
    assert {event.micro_batch for event in freed} == {4}
    assert_close(tight, free, atol=1e-5)


@pytest.mark.parametrize(("ram_bytes", "most"), [(0, 0), (2 * 64 * 4 * 128, 1), (2**40, 2)])
def test_the_ladder_leaves_half_of_the_machines_own_memory_alone(tiny_models, recipe, ram_bytes, most):
    from transformers import AutoModelForCausalLM

    model = adapt(AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.float32), recipe.adapter)
    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32)
    assert len(decoder.layers) == 2
    rungs = rungs_of(
        Fast(decoder, None), longest_tokens=128, ram_bytes=ram_bytes * decoder.spec.hidden_size // 64
    )
    state, away = TrainState(micro_batch=1), set()
    while climb(unwrap(model), state, rungs):
        away.add(sum(layer.offload for layer in decoder.policy.layers))
    assert max(away) == most


def make_example(*lengths: int) -> Example:
    """Return a row of documents of these lengths; two thirds of the tokens are trained."""
    count = sum(lengths)
    return Example(
        (np.arange(count, dtype=np.int32) * 7 + count) % 300 + 5, np.arange(count) % 3 > 0, lengths
    )


@pytest.fixture
def examples():
    """Rows of one document and of several, of different lengths."""
    return [make_example(9), make_example(5, 8), make_example(17)]


def test_rows_are_joined_without_padding_between_them(examples):
    ids, lengths, picks = join(examples, pad_id=1, multiple=16)
    assert lengths == (9, 5, 8, 17 + 9) and len(ids) == 48
    assert ids[:39].tolist() == [token for example in examples for token in example.token_ids]
    assert set(ids[39:]) == {1}
    assert len(picks) == sum(map(count_trained, examples))
    starts = {0, 9, 14, 22}
    assert not starts & {int(pick) + 1 for pick in picks}


def test_both_steps_give_the_same_loss_and_gradients(tiny_models, recipe, examples):
    from transformers import AutoModelForCausalLM

    model = adapt(AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.float32), recipe.adapter)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    device = torch.device("cpu")
    stock = StockStep(
        model.eval(),
        LossHead(unwrap(model)).token_losses,
        objective=SFT,
        dtype="fp32",
        device=device,
        pad_id=1,
    )
    stock.clear()
    trained = sum(map(count_trained, examples))
    theirs = stock.add_gradients(examples, trained, lambda loss: 3 * loss)
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    stock.clear()

    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32)
    mine = DecoderStep(decoder, objective=SFT, pad_id=1)
    mine.clear()
    assert mine.add_gradients(examples, trained, lambda loss: 3 * loss).item() == pytest.approx(theirs.item())
    for name, gradient in expected.items():
        parameter = dict(model.named_parameters())[name]
        torch.testing.assert_close(
            decoder.store.gradient(parameter), gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max())
        )
    assert mine.evaluate(examples).item() == pytest.approx(stock.evaluate(examples).item(), rel=1e-5)
