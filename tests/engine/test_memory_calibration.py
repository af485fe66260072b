"""Two made-up steps tell what a card takes beyond what is handed out, and leave everything as it was."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from studio_kernels.dispatch import bind
from transformers import AutoModelForCausalLM

from studio.core.i18n import load_catalogue
from studio.core.memory_policy import Calibration, LayerPolicy, MemoryPolicy
from studio.core.recipe import change_recipe
from studio.engine import memory_calibration as measuring
from studio.engine.decoder_step import DecoderStep
from studio.engine.memory_calibration import CardMeter, calibrate
from studio.engine.objectives.sft import SFT
from studio.engine.trainer import read_generators
from studio.models.adapt import adapt, unwrap
from studio.models.catalog import inspect_model
from studio.models.decoder.decoder import Decoder, take_over
from studio.planning import memory_estimate
from studio.planning import run_plan as planning
from tests.conftest import make_model
from tests.machine.facts import make_gpu, make_machine

GIB = 2**30
WIDE = {
    "hidden_size": 64, "intermediate_size": 192, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 1024,
}  # fmt: skip


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    return inspect_model(str(make_model(tmp_path_factory.mktemp("calibrate") / "llama", "llama", **WIDE)))


@pytest.fixture
def trainer(facts, recipe, monkeypatch):
    """What calibrate() asks of a trainer, for micro-batches of 8 x 1,024 tokens."""
    monkeypatch.setattr(measuring, "is_recorded", lambda *asked: False)
    chosen = change_recipe(
        recipe, {"data.max_length": 1024, "optim.micro_batch": 8, "model.precision": "fp32"}
    )
    model = adapt(AutoModelForCausalLM.from_pretrained(facts.folder), chosen.adapter)
    policy = MemoryPolicy(layers=(LayerPolicy(keep="qkv"),) * facts.layers)
    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32, policy=policy)
    return SimpleNamespace(
        step=DecoderStep(decoder, objective=SFT, pad_id=0),
        recipe=chosen,
        state=SimpleNamespace(micro_batch=8),
        longest_tokens=1024,
        optimizer=SimpleNamespace(state={}),
    )


@pytest.fixture
def plan(trainer, facts):
    return planning.plan(make_machine(make_gpu(24)), trainer.recipe, facts)


class Meter:
    """Says what a card with such a calibration would."""

    def __init__(self, real: Calibration, predicted: list[int]) -> None:
        self.real, self.predicted, self.begun = real, predicted, 0

    def begin(self) -> None:
        self.begun += 1

    def read_peak(self) -> int:
        return round(self.real.context_bytes + self.real.fragmentation * self.predicted[-1])


@pytest.fixture
def meter(monkeypatch):
    predicted, real = [], measuring._predict
    monkeypatch.setattr(measuring, "_predict", lambda *a: predicted.append(real(*a)) or predicted[-1])
    # Tiny steps differ by little: here that is as good as much.
    monkeypatch.setattr("studio.planning.memory_estimate.LEAST_SPAN_BYTES", 1)
    return Meter(Calibration(context_bytes=700 * 2**20, fragmentation=1.11), predicted)


def go(trainer, plan, facts, meter, **values):
    budget = {"budget_bytes": 24 * GIB, "ram_bytes": 16 * GIB} | values
    return calibrate(trainer, plan, facts, meter=meter, **budget)


@pytest.mark.computing
def test_two_sizes_tell_context_and_fragmentation_and_the_plan_follows(trainer, plan, facts, meter):
    found = go(trainer, plan, facts, meter)
    assert found.calibration.fragmentation == pytest.approx(1.11, rel=1e-3)
    assert found.calibration.context_bytes == pytest.approx(700 * 2**20, rel=1e-3)
    small, large = meter.predicted
    assert small < large and meter.begun == 2
    assert {layer.keep for layer in found.choice.policy.layers} == {"all"} and found.choice.fits
    assert found.reason.id == "plan.memory.measured"  # "qkv" was followed before
    for language in ("en", "zh-CN"):
        assert "{" not in load_catalogue(language).say(found.reason)
    # The plan of a card with less room knows what was measured, and so does one whose allocator may hold less.
    needed = sum(found.choice.parts.values())
    tight = go(trainer, plan, facts, meter, budget_bytes=needed - 1)
    assert tight.choice.policy != found.choice.policy and sum(tight.choice.parts.values()) < needed
    capped = go(trainer, plan, facts, meter, cap_bytes=needed - found.calibration.context_bytes - 2**20)
    assert capped.choice.policy != found.choice.policy


def test_everything_is_left_as_it_was(trainer, plan, facts, meter):
    decoder = trainer.step.decoder
    decoder.store.gradients.normal_()
    before = decoder.policy, decoder.store.gradients.clone(), decoder.store.weights.clone(), read_generators()
    assert go(trainer, plan, facts, meter) is not None
    policy, gradients, weights, generators = before
    assert decoder.policy == policy
    assert torch.equal(decoder.store.gradients, gradients) and torch.equal(decoder.store.weights, weights)
    now = read_generators()
    assert now["python"] == generators["python"] and torch.equal(now["torch"], generators["torch"])
    assert torch.equal(now["numpy"][1], generators["numpy"][1])


@pytest.mark.computing
def test_the_steps_are_no_larger_than_the_runs_own_and_than_time_allows(
    trainer, plan, facts, meter, monkeypatch
):
    taken, real = [], Decoder.add_gradients

    def count(self, token_ids, rows, picks, targets, scale):
        taken.append(rows.documents.lengths)
        return real(self, token_ids, rows, picks, targets, scale)

    monkeypatch.setattr(Decoder, "add_gradients", count)
    go(trainer, plan, facts, meter)
    assert taken == [(512,) * 8, (1024,) * 8]
    del taken[:]
    trainer.state.micro_batch = 2  # memory had run out
    go(trainer, plan, facts, meter)
    assert taken == [(512,) * 2, (1024,) * 2]
    del taken[:]
    linear = sum(
        group.inputs * group.outputs for layer in trainer.step.decoder.layers for group in layer.groups
    )
    monkeypatch.setattr(measuring, "TRY_OPERATIONS", 6.0 * linear * 700)
    go(trainer, plan, facts, meter)
    assert taken == [(320,), (640,)]


@pytest.mark.computing
def test_a_pair_is_tried_as_the_two_sequences_that_it_is(trainer, plan, facts, meter, monkeypatch):
    taken, real = [], Decoder.add_gradients

    def count(self, token_ids, rows, picks, targets, scale):
        taken.append(rows.documents.lengths)
        return real(self, token_ids, rows, picks, targets, scale)

    monkeypatch.setattr(Decoder, "add_gradients", count)
    trainer.recipe = change_recipe(trainer.recipe, {"objective": "dpo"})
    trainer.longest_tokens = 2 * 512
    found = go(trainer, plan, facts, meter)
    assert taken == [(256,) * 16, (512,) * 16], "eight pairs of 512 + 512 tokens"
    small, large = meter.predicted
    assert small < large and found.calibration.fragmentation == pytest.approx(1.11, rel=1e-3)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), TypeError("a kernel's")])
def test_a_step_that_fails_teaches_nothing_and_harms_nothing(trainer, plan, facts, meter, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(Decoder, "add_gradients", fail)
    policy = trainer.step.decoder.policy
    assert go(trainer, plan, facts, meter) is None and trainer.step.decoder.policy == policy


def test_runs_that_have_nothing_to_learn_are_left_alone(trainer, plan, facts, meter, monkeypatch):
    assert calibrate(trainer, plan, facts, budget_bytes=GIB, ram_bytes=0) is None  # no GPU
    monkeypatch.setattr(measuring, "is_recorded", lambda *asked: True)
    assert go(trainer, plan, facts, meter) is None
    stock = SimpleNamespace(step=SimpleNamespace(kind="stock"), recipe=trainer.recipe, state=trainer.state)
    assert go(stock, plan, facts, meter) is None
    short = SimpleNamespace(
        step=trainer.step,
        recipe=change_recipe(trainer.recipe, {"data.max_length": 64}),
        state=trainer.state,
        optimizer=trainer.optimizer,
        longest_tokens=trainer.longest_tokens,
    )
    monkeypatch.setattr(measuring, "is_recorded", lambda *asked: False)
    assert go(short, plan, facts, meter) is None


@pytest.mark.gpu
def test_a_gpu_is_measured_within_reason(tmp_path, recipe, monkeypatch):
    """A model of 0.2 billion parameters: what is predicted with the measured numbers is what the driver counts."""
    import time

    monkeypatch.setattr(memory_estimate, "GRAPH_OPERATIONS", 0)  # what is recorded has nothing to learn
    size = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 8192,
    }  # fmt: skip
    facts = inspect_model(str(make_model(tmp_path / "llama", "llama", **size)))
    chosen = change_recipe(recipe, {"data.max_length": 4096, "optim.micro_batch": 4})
    device = torch.device("cuda:0")
    model = adapt(
        AutoModelForCausalLM.from_pretrained(facts.folder, dtype=torch.bfloat16).to(device), chosen.adapter
    )
    kernels = bind({op: "triton" for op in ("rms_norm", "glu", "rope", "lora", "linear_cross_entropy")})
    policy = MemoryPolicy(layers=(LayerPolicy(keep="input"),) * facts.layers)
    decoder = take_over(unwrap(model), kernels, dtype=torch.bfloat16, policy=policy)
    assert isinstance(decoder, Decoder), decoder
    trainer = SimpleNamespace(
        step=DecoderStep(decoder, objective=SFT, pad_id=0), recipe=chosen, state=SimpleNamespace(micro_batch=4),
        optimizer=SimpleNamespace(state={}), longest_tokens=4096,
    )  # fmt: skip
    machine = make_machine(make_gpu(80, torch.cuda.get_device_capability(device)))
    run_plan = planning.plan(machine, chosen, facts)
    budget = {"budget_bytes": 60 * GIB, "ram_bytes": 16 * GIB}
    assert calibrate(trainer, run_plan, facts, **budget) is not None  # kernels compile here
    begun_s = time.perf_counter()
    found = calibrate(trainer, run_plan, facts, **budget)
    assert time.perf_counter() - begun_s < 4.0
    assert decoder.policy == policy
    assert 200 * 2**20 <= found.calibration.context_bytes <= 1536 * 2**20
    assert 1.0 <= found.calibration.fragmentation <= 1.25
    decoder.follow(found.choice.policy)
    meter = CardMeter(device)
    meter.begin()
    measuring._take_step(decoder, chosen, facts.vocabulary)
    parts = dict(found.choice.parts)
    missing = parts["optimizer"] * found.calibration.fragmentation
    assert meter.read_peak() == pytest.approx(sum(parts.values()) - missing, rel=0.08)
    assert np.isfinite(float(decoder.store.gradients.float().norm()))
    assert dataclasses.replace(found.choice.policy, cached_layers=0) == found.choice.policy
