"""Failures on a real GPU: kernels that break and memory that runs out, at every place of a run, cost nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest
import torch
import triton
import triton.language as tl
from studio_kernels import glu, rms_norm

import studio.engine.phases.load as loading
import studio.engine.phases.train as training
import studio.engine.run as engine
from studio.core.events import (
    EvalLogged,
    KernelFellBack,
    MemoryFreed,
    PhaseStarted,
    RunPlanned,
    StepLogged,
    Warned,
)
from studio.core.recipe import change_recipe
from studio.engine import oom_fallback as ladder
from studio.engine import token_stream
from studio.engine import train_step as step
from studio.engine.run_folder import create_run
from studio.models.decoder.decoder import Decoder
from studio.planning.learned_limits import Remembered
from tests.conftest import chat_rows, make_model
from tests.engine.conftest import Ran
from tests.engine.gpu_steps import STEPS, note_replays, step_by, write_lengths

pytestmark = pytest.mark.gpu

# Kernels that break in mid-run ---------------------------------------------------------------------------------------


@triton.jit
def _never_compiles(pointer, COUNT: tl.constexpr):  # noqa: N803
    tl.static_assert(COUNT == 0, "broken on purpose")
    tl.store(pointer, 0.0)


@dataclass
class Breakable:
    """Stands before a launched kernel; where `place` says so, a kernel that does not compile is launched instead."""

    kernel: object
    now: list
    place: tuple = ("never", 0, 0)
    spared: int = 0
    """Launches at that place that go well before."""
    launches: list = field(default_factory=list)
    capturing: list = field(default_factory=list)
    """Whether a graph was being recorded when it broke."""
    recording: bool = False
    """Break only while a graph is being recorded."""

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            now_recording = torch.cuda.is_current_stream_capturing()
            there = tuple(self.now) == self.place and self.launches.count(self.place) >= self.spared
            if there and (now_recording or not self.recording):
                self.capturing.append(now_recording)
                return _never_compiles[(1,)](arguments[0], COUNT=4)
            self.launches.append(tuple(self.now))
            return self.kernel[grid](*arguments, **options)

        return launch


@pytest.fixture
def go(tmp_path, machine, recipe):
    """A function that runs the engine and keeps `now` up to date: `go(changes, now, store, on_event) -> Ran`."""

    def run(changes=None, now=None, store=None, on_event=lambda event: None) -> Ran:
        now = [] if now is None else now
        chosen = change_recipe(recipe, {"optim.epochs": 4, "run.trial": False} | (changes or {}))
        folder, events = create_run(tmp_path / "runs", chosen), []

        def emit(event):
            events.append(event)
            on_event(event)

        def beat(phase, step, micro):
            now[:] = phase, step, micro

        record = engine.run(chosen, machine, folder, emit, lambda: False, beat, remembered=store)
        return Ran(folder, record, events)

    return run


@pytest.mark.parametrize("steps", ["launched", "own code"])
@pytest.mark.parametrize(("module", "way"), [(rms_norm, "forward"), (glu, "backward")])
def test_a_kernel_broken_on_purpose_costs_no_step_and_is_remembered(
    go, monkeypatch, tmp_path, module, way, steps
):
    """At step 7: a real error of Triton's compiler, with the model's own code in the
    backward pass on autograd's thread."""
    step_by(monkeypatch, steps)
    op, name = module.__name__.rpartition(".")[2], f"_{way}_kernel"
    calm, now, store = go(), [], Remembered(tmp_path / "remembered.json")
    broken = Breakable(getattr(module, name), now, ("train", 7, 0))
    monkeypatch.setattr(module, name, broken)
    fell = go(now=now, store=store)
    assert fell.record.state == "finished", fell.log
    assert [(event.op, event.step) for event in fell.of(KernelFellBack)] == [(op, 7)]
    assert "CompileTimeAssertionFailure" in fell.log and "broken on purpose" in fell.log
    assert fell.record.steps == calm.record.steps == 12
    assert fell.losses == pytest.approx(calm.losses, abs=0.02)
    assert broken.launches and max(step for _, step, _ in broken.launches) == 6
    (verdict,) = store.read().kernels
    assert verdict.op == op and verdict.surroundings.gpu == fell.record.gpu != ""
    broken.launches.clear()
    again = go(now=now, store=store)
    assert again.record.state == "finished" and not again.of(KernelFellBack) and not broken.launches
    assert again.of(RunPlanned)[0].plan.kernels[op].value == "reference"


@pytest.mark.parametrize("capturing", [False, True])
def test_a_kernel_that_breaks_while_a_graph_is_recorded_costs_no_step(go, monkeypatch, capturing):
    """In the first step of a shape, which is launched, and in the recording itself, which is then given up."""
    place, now = ("compile", 1, 0), []
    watched = Breakable(glu._backward_kernel, now)
    monkeypatch.setattr(glu, "_backward_kernel", watched)
    calm = go(now=now)  # every kernel is loaded now
    assert watched.launches.count(place)
    broken = Breakable(watched.kernel, now, place, recording=capturing)
    monkeypatch.setattr(glu, "_backward_kernel", broken)
    replays = note_replays(monkeypatch)
    fell = go(now=now)
    assert fell.record.state == "finished" and replays, fell.log
    assert [(event.op, event.step) for event in fell.of(KernelFellBack)] == [("glu", 1)], fell.log
    assert broken.capturing == [capturing]
    assert fell.losses == pytest.approx(calm.losses, abs=0.02)


def list_kernels() -> dict[str, triton.JITFunction]:
    """Every kernel of ours, by module and name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("studio_kernels.")]
    found = [
        kernel
        for module in modules
        for kernel in vars(module).values()
        if isinstance(kernel, triton.JITFunction)
    ]
    return {f"{k.fn.__module__.rpartition('.')[2]}.{k.fn.__name__}": k for k in found}


def count_variants() -> dict[str, int]:
    """How many variants of each kernel Triton has compiled or loaded in this process."""
    return {
        name: sum(len(cache[0]) for cache in kernel.device_caches.values())
        for name, kernel in list_kernels().items()
    }


COMPILED = {f"{op}._{way}_kernel" for op in ("rms_norm_kernels", "glu") for way in ("forward", "backward")}
COMPILED_BY_DECODER = {
    "rope_kernels._forward_kernel", "rope_kernels._backward_kernel",
    "linear_cross_entropy_kernels._turn_kernel", "linear_cross_entropy_kernels._finish_kernel",
}  # fmt: skip


@pytest.mark.parametrize("steps", STEPS)
def test_nothing_compiles_after_the_warm_up_and_rows_are_padded_to_64(go, tmp_path, monkeypatch, steps):
    """Rows of 20 to 150 tokens, a short last batch, and an evaluation, against the variants after the warm-up."""
    step_by(monkeypatch, steps)
    for kernel in list_kernels().values():
        kernel.device_caches.clear()
    lengths, counts, replays = set(), {}, note_replays(monkeypatch)
    real_collate, real_join = step.collate, token_stream.join

    def collate(*arguments):
        batch = real_collate(*arguments)
        lengths.add(batch.input_ids.shape[1])
        return batch

    def join(examples, pad_id, multiple):
        joined = real_join(examples, pad_id, multiple)
        if multiple > 1:  # what goes into a graph is filled up there
            lengths.add(len(joined[0]))
        return joined

    def on_event(event):
        if isinstance(event, PhaseStarted):
            counts[event.phase] = count_variants()
        elif isinstance(event, StepLogged) and event.step == 1:
            counts["optimizer"] = count_variants()

    monkeypatch.setattr(step, "collate", collate)
    monkeypatch.setattr(token_stream, "join", join)
    changes = {
        "data.source": str(write_lengths(tmp_path / "lengths.jsonl")),
        "data.max_length": 200,
        "data.validation_share": 0.2,
        "run.eval_every": 2,
        "adapter.dropout": 0.1,
    }
    result = go(changes, on_event=on_event)
    assert result.record.state == "finished" and result.of(EvalLogged), result.log
    assert not result.of(KernelFellBack)
    known = {name for name, count in counts["train"].items() if count}
    if steps == "own code":
        assert known == COMPILED and lengths == {64, 128, 192}
    else:
        assert known >= COMPILED | COMPILED_BY_DECODER | {"dropout._kernel"}, known
        assert bool(replays) == (steps == "recorded")
        assert len(lengths | set(replays)) > 4 and not any(length % 64 for length in (*lengths, *replays))
    late = {name for name, count in counts["optimizer"].items() if count != counts["train"][name]}
    assert all(name.startswith("adamw.") for name in late), "the optimizer's first step compiles its own only"
    assert counts["save"] == counts["optimizer"], "compiled in mid-run"


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A folder with a model whose activations fill some 4 GiB at 128 rows."""
    folder = tmp_path_factory.mktemp("large") / "model"
    return make_model(folder, hidden_size=512, intermediate_size=1024, num_hidden_layers=6)


@pytest.mark.parametrize(
    ("steps", "rows", "share"), [("launched", 128, 1 / 3), ("recorded", 16, 1 / 2), ("own code", 128, 1 / 3)]
)
def test_the_ladder_under_a_real_limit(go, large, jsonl, tmp_path, monkeypatch, steps, rows, share):
    """The limit lies at a `share` of what the whole micro-batch takes: same steps, same losses.

    The decoder keeps less of it before the micro-batch is touched; the model's own code can only halve it, and what
    fitted is remembered.
    """
    step_by(monkeypatch, steps)
    replays = note_replays(monkeypatch)
    conversations = chat_rows(2 * rows)
    for row in conversations:
        row["messages"][1]["content"] += " and so on" * 15
    changes = {
        "model.source": str(large),
        "model.precision": "fp32",
        "data.source": str(jsonl(tmp_path / "long.jsonl", conversations)),
        "data.max_length": 192,
        "optim.batch_size": rows,
        "optim.micro_batch": rows,
        "optim.learning_rate": 1e-3,
        "optim.max_steps": 6,
        "run.activation_checkpointing": "off",
    }
    calm = go(changes)
    assert calm.record.state == "finished" and not calm.of(MemoryFreed), calm.log
    assert bool(replays) == (steps == "recorded")
    assert [t.id for t in calm.of(RunPlanned)[0].swaps].count("run.memory_capped") == 1
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert calm.record.peak_vram_bytes > rows * 2**22

    free_bytes, _ = torch.cuda.mem_get_info()
    monkeypatch.setattr(ladder, "MEMORY_SHARE", calm.record.peak_vram_bytes * share / free_bytes)
    # The planner would keep what fits: here it believes in all of the card, as where its arithmetic is wrong.
    monkeypatch.setattr(loading, "limit_memory", lambda machine, gpu, cap_bytes: machine)
    monkeypatch.setattr(training, "keep_what_fits", lambda *_, **__: None)
    store = Remembered(tmp_path / "remembered.json")
    tight = go(changes, store=store)
    assert tight.record.state == "finished", tight.log
    freed = tight.of(MemoryFreed)
    own = steps == "own code"
    rungs = {event.rung for event in freed}
    assert freed and rungs <= ({"micro_batch", "checkpointing"} if own else {"policy", "micro_batch"}), freed
    assert freed[0].rung == ("micro_batch" if own else "policy")
    # A lower policy is recorded anew at the next step, which needs memory of its own: once more is let go there.
    assert freed[0].step == 1 and {event.step for event in freed} <= (
        {1, 2, 3, 4} if steps == "recorded" else {1}
    )
    assert tight.record.peak_vram_bytes < calm.record.peak_vram_bytes * (share + 0.1)
    assert tight.losses == pytest.approx(
        calm.losses, abs=1e-4
    )  # 1e-5 on a processor; here sums run in parallel
    assert torch.cuda.get_per_process_memory_fraction() == 1.0

    again = go(changes, store=store)
    assert again.record.state == "finished", again.log
    assert again.losses == pytest.approx(calm.losses, abs=1e-4)
    if own:
        assert not again.of(MemoryFreed)
        told = [event.message.id for event in again.of(Warned)]  # that it is slower, too
        assert [one for one in told if one != "slower.about"] == ["run.fitted_before"]


@pytest.mark.parametrize("capturing", [False, True])
def test_memory_that_runs_out_while_a_graph_is_recorded(go, monkeypatch, capturing):
    """In a shape's first step, and in the recording: less is kept, and it is recorded anew."""
    real, raised, now = Decoder.forward_layers, [], []

    def limited(self, *arguments):
        loss = real(self, *arguments)
        everything = any(layer.keep == "all" for layer in self.policy.layers)
        stepping = now[0] != "load"  # there the decoder is held against the model
        if stepping and everything and torch.cuda.is_current_stream_capturing() is capturing:
            raised.append(self.policy)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss

    calm = go()
    monkeypatch.setattr(Decoder, "forward_layers", limited)
    replays = note_replays(monkeypatch)
    tight = go(now=now)
    assert tight.record.state == "finished" and replays and raised, tight.log
    assert {event.rung for event in tight.of(MemoryFreed)} == {"policy"}
    assert tight.losses == pytest.approx(calm.losses, abs=0.02)


def test_a_load_that_never_fits_ends_with_what_to_ask_for(go, large, monkeypatch):
    """The limit holds the weights (about 70 MiB) and little else."""
    free_bytes, _ = torch.cuda.mem_get_info()
    monkeypatch.setattr(ladder, "MEMORY_SHARE", 130 * 2**20 / free_bytes)
    ended = go({"model.source": str(large), "model.precision": "fp32", "adapter.method": "full"})
    assert ended.record.state == "failed"
    assert ended.failure in ("memory_exhausted", "gpu_memory"), ended.log
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    monkeypatch.undo()
    assert go().record.state == "finished", "the next run finds the card as it was"
