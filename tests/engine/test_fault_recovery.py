"""A kernel that fails in mid-run: its op goes to the PyTorch twin, no step is lost, and the next run knows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

import studio.engine.phases.load as loading
import studio.engine.phases.train as training
import studio.engine.run as engine
from studio.core.events import EvalLogged, KernelFellBack, PhaseStarted, RunPlanned, Warned
from studio.core.recipe import change_recipe
from studio.engine import build as assembly
from studio.engine.fault_recovery import find_place, is_sticky
from studio.engine.loss_head import LossHead
from studio.engine.run_folder import create_run
from studio.planning.learned_limits import Remembered
from studio.planning.run_plan import plan as real_plan
from tests.doubles.kernels import Fault, KernelBroke, Now, install
from tests.each_time import some
from tests.engine.conftest import Ran
from tests.machine.facts import make_gpu, make_machine


@pytest.fixture
def go(tmp_path, machine, recipe, monkeypatch):
    """A function that runs the engine with played kernels: `go(faults, changes, switch=(op, step), ...) -> Ran`."""

    def plan(machine, recipe, *of_data):
        """The plan of this processor, but with the kernels that a machine with a GPU would get."""
        there = make_machine(make_gpu(), broken_kernels=machine.broken_kernels)
        kernels = real_plan(there, recipe, *of_data).kernels
        return dataclasses.replace(real_plan(machine, recipe, *of_data), kernels=kernels)

    made = []
    monkeypatch.setattr(loading, "make_plan", plan)
    real = assembly.make_fast
    monkeypatch.setattr(assembly, "make_fast", lambda *a, **k: made.append(real(*a, **k)) or made[-1])

    def run(faults=(), changes=None, switch=None, remembered=None, folder=None, leave=None, now=None) -> Ran:
        now = now or Now()
        go.kernels = install(monkeypatch, now, list(faults))
        base = {"run.save_every": 0, "run.trial": False, "optim.epochs": 3, "adapter.dropout": 0.1}
        chosen = change_recipe(recipe, base | (changes or {}))
        folder = folder or create_run(tmp_path / "runs", chosen)
        events = []

        def beat(phase, step, micro):
            now.beat(phase, step, micro)
            if switch and (phase, step, micro) == ("train", switch[1], 0):
                made[-1].fall_back(switch[0])

        record = engine.run(
            folder.read_recipe(),
            machine,
            folder,
            events.append,
            lambda: False,
            beat,
            remembered=remembered,
            leave=leave,
        )
        return Ran(folder, record, events)

    def go(*arguments, **options):
        return run(*arguments, **options)

    return go


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    return load_file(ran.folder.path / ran.record.artifact / "adapter_model.safetensors")


def assert_same_weights(one: Ran, other: Ran) -> None:
    assert one.record.state == other.record.state == "finished", one.log + other.log
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.losses == other.losses


def at(phase: str, step: int, micro: int = 0):
    return lambda now, arguments: (now.phase, now.step, now.micro) == (phase, step, micro)


def test_the_played_kernels_are_at_work_and_differ_from_the_twin_in_their_bits(go):
    played = go()
    launches = {name: len(kernel.launches) for name, kernel in go.kernels.items()}
    assert all(launches.values()), launches
    assert not played.of(KernelFellBack) and not played.of(Warned)
    swapped = {t.values["op"]: t.values["count"] for t in played.of(RunPlanned)[0].swaps if "op" in t.values}
    assert swapped == {"rms_norm": 5, "glu": 2}
    stock = go(changes={"run.kernels": "pytorch"})
    assert played.losses == pytest.approx(stock.losses, abs=1e-4)
    assert any(not torch.equal(weights(played)[name], weights(stock)[name]) for name in weights(played))


@pytest.mark.parametrize("recompute", ["off", pytest.param("on", marks=pytest.mark.computing)])
@pytest.mark.parametrize("kernel", some(["forward", "backward"], "backward"))
@pytest.mark.parametrize("op", some(["rms_norm", "glu"], "rms_norm"))
def test_a_failure_in_the_middle_of_a_window_loses_nothing(go, op, kernel, recompute):
    """At step 7, in the second micro-batch, with the first one's gradients there."""
    changes = {"run.activation_checkpointing": recompute}
    fault = Fault(op, kernel, at("train", 7, 1))
    fell = go([fault], changes)
    assert fault.raised == 1
    (event,) = fell.of(KernelFellBack)
    assert (event.op, event.step) == (op, 7)
    assert fell.record.steps == fell.record.total_steps == 9
    assert "KernelBroke" in fell.log and "Traceback" in fell.log
    assert_same_weights(fell, go(switch=(op, 7), changes=changes))


@pytest.mark.computing
@pytest.mark.parametrize("step", [1, 9])
def test_the_first_and_the_last_step(go, step):
    fault = Fault("glu", "backward", at("train", step))
    assert_same_weights(go([fault]), go(switch=("glu", step)))
    assert fault.raised == 1


@pytest.mark.computing
def test_both_ops_in_one_window(go):
    faults = [Fault("rms_norm", "forward", at("train", 4, 1)), Fault("glu", "backward", at("train", 4))]
    fell = go(faults)
    assert [event.op for event in fell.of(KernelFellBack)] == ["glu", "rms_norm"]

    def two(now, _):
        return now.phase == "train" and now.step >= 4

    assert_same_weights(fell, go([Fault("rms_norm", "forward", two), Fault("glu", "forward", two)]))


@pytest.mark.computing
def test_a_new_shape_in_the_short_last_batch(go, jsonl, tmp_path):
    """21 rows in windows of 8: the epoch's last window has one full micro-batch and one of a single row."""
    from tests.conftest import chat_rows

    changes = {"data.source": str(jsonl(tmp_path / "odd.jsonl", chat_rows(21)))}

    def single(now, arguments):
        return now.phase == "train" and arguments[0].shape[0] < 64  # rows of a batch of one

    fault = Fault("rms_norm", "forward", single)
    fell = go([fault], changes)
    (event,) = fell.of(KernelFellBack)
    assert fault.raised == 1 and event.step == 3
    assert_same_weights(fell, go(switch=("rms_norm", 3), changes=changes))


@pytest.mark.computing
def test_in_an_evaluation(go):
    changes = {"data.validation_share": 0.25, "run.eval_every": 3}
    fault = Fault("rms_norm", "forward", at("evaluate", 3))
    fell, calm = go([fault], changes), go(changes=changes)
    assert fell.record.state == "finished", fell.log
    assert [(e.op, e.step) for e in fell.of(KernelFellBack)] == [("rms_norm", 4)]
    losses = [[event.loss for event in ran.of(EvalLogged)] for ran in (fell, calm)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and len(losses[0]) == 3
    assert fell.losses[:3] == calm.losses[:3]


@pytest.mark.computing
def test_kernels_are_tried_in_all_forms_before_the_first_step(go):
    """What fails in the warm-up has its twin from step 1 on; the weights are those of a run without that kernel."""
    fault = Fault("glu", "backward", lambda now, _: now.phase == "compile")
    fell = go([fault])
    phases = [event.phase for event in fell.of(PhaseStarted)]
    assert phases == ["prepare", "load", "compile", "train", "save", "verify"]
    assert [(e.op, e.step) for e in fell.of(KernelFellBack)] == [("glu", 1)]
    assert fell.events.index(fell.of(KernelFellBack)[0]) < fell.events.index(fell.of(PhaseStarted)[3])
    assert_same_weights(fell, go(switch=("glu", 1)))


@pytest.mark.computing
def test_the_warm_up_sees_several_rows_and_one_and_leaves_no_trace(go, jsonl, tmp_path, monkeypatch):
    from tests.conftest import chat_rows

    changes = {
        "data.source": str(jsonl(tmp_path / "odd.jsonl", chat_rows(28))),
        "data.validation_share": 0.25,
    }
    real, now, seen = LossHead.token_losses, Now(), set()

    def note(self, batch):
        seen.add((now.phase, batch.input_ids.shape[0], self.model.training))
        return real(self, batch)

    monkeypatch.setattr(LossHead, "token_losses", note)
    warm = go(changes=changes, now=now)
    # 21 rows to train on, 8 in a window, up to 4 in a micro-batch, cut by their lengths. 7 rows to validate on.
    trained = {rows for phase, rows, training in seen if phase == "train" and training}
    assert {4, 1} <= trained <= {1, 2, 3, 4}
    warmed = {(rows, training) for phase, rows, training in seen if phase == "compile"}
    assert warmed == {(4, True), (1, True), (4, False), (3, False)}
    monkeypatch.setattr(training, "warm_up", lambda trainer: None)
    assert_same_weights(warm, go(changes=changes))


def test_what_no_kernel_raised_is_not_swallowed(go, monkeypatch):
    real, now = LossHead.token_losses, Now()

    def fail(self, batch):
        if (now.phase, now.step) == ("train", 3):
            raise KernelBroke("not in a kernel")
        return real(self, batch)

    monkeypatch.setattr(LossHead, "token_losses", fail)
    ended = go(now=now)
    assert ended.record.state == "failed" and not ended.of(KernelFellBack)
    assert ended.record.steps == 2


def test_an_op_falls_back_once_and_then_its_twin_must_do(go, monkeypatch, tmp_path):
    """The twin fails as well (the input is wrong, not the kernel): that ends the run, and the kernel is not blamed."""
    from torch.nn import functional

    fault = Fault("glu", "forward", at("train", 3))
    real, now = functional.silu, Now()

    def silu(*arguments, **options):
        if (now.phase, now.step) == ("train", 3):
            raise KernelBroke("the twin too")
        return real(*arguments, **options)

    monkeypatch.setattr(functional, "silu", silu)
    store = Remembered(tmp_path / "remembered.json")
    earlier = Fault("rms_norm", "forward", at("train", 2))
    ended = go([fault, earlier], now=now, remembered=store)
    assert ended.record.state == "failed" and "the twin too" in ended.log
    assert [e.op for e in ended.of(KernelFellBack)] == ["rms_norm", "glu"] and fault.raised == 1
    assert [verdict.op for verdict in store.read().kernels] == ["rms_norm"]


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: the launch timed out and was terminated",
        "CUDA error: GPU is lost",
    ],
)
def test_what_surfaces_in_a_launch_but_cannot_be_a_kernels_fault_blames_none(go, tmp_path, words):
    """A token id beyond the vocabulary asserts in the embedding and is told at the next launch, which is ours."""
    store = Remembered(tmp_path / "remembered.json")
    fault = Fault("rms_norm", "forward", at("train", 2), error=lambda: RuntimeError(words))
    ended = go([fault], remembered=store)
    assert ended.record.state == "failed" and not ended.of(KernelFellBack)
    assert store.read().kernels == ()


@pytest.mark.computing
def test_the_next_run_starts_with_the_verdict(go, tmp_path, machine):
    store = Remembered(tmp_path / "remembered.json")
    fault = Fault("rms_norm", "backward", at("train", 5))
    assert go([fault], remembered=store).record.state == "finished"
    (verdict,) = store.read().kernels
    assert verdict.op == "rms_norm" and verdict.reason == "KernelBroke: kernel of test broke"
    assert "dy float32" in verdict.shape and verdict.surroundings.torch == machine.packages["torch"]

    again = go([fault], remembered=store)
    assert again.record.state == "finished" and fault.raised == 1
    assert not again.of(KernelFellBack)
    chosen = again.of(RunPlanned)[0].plan.kernels
    assert {op for op, choice in chosen.items() if choice.value == "reference"} == {"rms_norm"}
    assert "kernel of test broke" in str(chosen["rms_norm"].reason)
    assert store.forget() == 1
    assert go([fault], remembered=store).of(KernelFellBack) and fault.raised == 2


@pytest.mark.computing
def test_a_lost_gpu_is_not_replayed_but_the_kernel_is_remembered(go, tmp_path):
    """After such an error every CUDA call of the process fails; a new process starts with the twin."""
    store = Remembered(tmp_path / "remembered.json")

    def lost():
        return RuntimeError("CUDA error: an illegal memory access was encountered")

    fault = Fault("glu", "backward", at("train", 5), error=lost)
    ended = go([fault], remembered=store)
    assert (ended.record.state, ended.failure, fault.raised) == ("failed", "illegal_access", 1)
    assert not ended.of(KernelFellBack)
    assert [verdict.op for verdict in store.read().kernels] == ["glu"]
    resumed = go([fault], remembered=store, folder=ended.folder)
    assert resumed.record.state == "finished" and fault.raised == 1


@pytest.mark.parametrize(
    ("gpu", "words", "left"),
    [
        ("RTX 4090", "CUDA error: unspecified launch failure", 1),
        ("RTX 4090", "CUDA error: device-side assert triggered", 0),
        ("RTX 4090", "ptxas failed", 0),
        ("", "CUDA error: unspecified launch failure", 0),
    ],
)
def test_a_supervised_process_leaves_when_its_gpu_is_lost(go, monkeypatch, gpu, words, left):
    real, now, called = LossHead.token_losses, Now(), []

    def fail(self, batch):
        if (now.phase, now.step) == ("train", 3):
            raise RuntimeError(words)
        return real(self, batch)

    monkeypatch.setattr(LossHead, "token_losses", fail)
    monkeypatch.setattr(loading, "name_card", lambda *_: gpu)
    ended = go(now=now, leave=lambda: called.append(1))
    assert ended.record.state == "failed" and len(called) == left


@pytest.mark.computing
def test_a_store_that_cannot_be_written_costs_a_warning_only(go, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    store = Remembered(tmp_path / "file" / "remembered.json")
    fell = go([Fault("glu", "forward", at("train", 2))], remembered=store)
    assert fell.record.state == "finished" and len(fell.of(KernelFellBack)) == 1
    assert [event.message.id for event in fell.of(Warned)] == ["run.not_remembered"]


def test_the_place_is_found_in_chained_errors_and_for_planned_ops_only():
    from studio_kernels import glu

    try:
        try:
            glu.fused(torch.ones(2, 3), torch.ones(2, 4))
        except ValueError as inner:
            raise RuntimeError("while computing a layer") from inner
    except RuntimeError as error:
        place = find_place(error, {"glu"})
        assert find_place(error, {"rms_norm"}) is None
    assert place.op == "glu" and place.shape == "gate float32 (2, 3), up float32 (2, 4)"
    assert find_place(KeyboardInterrupt(), {"glu"}) is None


@pytest.mark.parametrize(
    ("words", "sticky"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("Triton Error [CUDA]: misaligned address", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA error: the launch timed out and was terminated", True),
        ("ptxas failed with error code 4294967295", False),
        ("out of resource: shared memory, Required: 131072", False),
        ("Triton Error [CUDA]: out of memory", False),
        ("CUDA error: invalid argument", False),
    ],
)
def test_sticky_errors_by_their_words(words, sticky):
    assert is_sticky(RuntimeError(words)) is sticky
