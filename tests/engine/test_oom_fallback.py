"""Out of memory: the same samples in a smaller form with the same losses, the ladder's end, and what is remembered."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from safetensors.torch import load_file

import studio.engine.phases.load as loading
import studio.engine.run as engine
from studio.core.events import EvalLogged, MemoryFreed, Warned
from studio.core.i18n import load_catalogue
from studio.core.recipe import change_recipe
from studio.engine import oom_fallback as ladder
from studio.engine.loss_head import LossHead
from studio.engine.oom_fallback import RUNGS, cap_memory, climb, is_out_of_memory, let_go
from studio.engine.run_folder import create_run
from studio.engine.train_state import TrainState
from studio.planning.learned_limits import Remembered
from tests.each_time import some, some_of_several
from tests.engine.conftest import Ran

SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB."


@pytest.fixture
def go(tmp_path, machine, recipe, monkeypatch):
    """A function that runs the engine where memory runs out as `full(rows, training, recomputing)` says."""
    real = LossHead.token_losses

    def run(full=lambda rows, training, recomputing: False, changes=None, store=None, error=None) -> Ran:
        seen = go.seen = []

        def limited(self, batch):
            rows, training = batch.input_ids.shape[0], torch.is_grad_enabled()
            if full(rows, training, ladder.recomputes(self.model)):
                raise (error or torch.OutOfMemoryError)(SAID)
            if training:
                ids = (
                    batch.input_ids
                    if batch.attention_mask is None
                    else batch.input_ids * batch.attention_mask
                )
                seen.append(ids.sum(1).tolist())  # tells rows apart
            return real(self, batch)

        monkeypatch.setattr(LossHead, "token_losses", limited)
        chosen = change_recipe(recipe, {"run.save_every": 0, "run.trial": False} | (changes or {}))
        folder, events = create_run(tmp_path / "runs", chosen), []
        record = engine.run(chosen, machine, folder, events.append, lambda: False, remembered=store)
        return Ran(folder, record, events)

    def go(*arguments, **options):
        return run(*arguments, **options)

    go.machine = machine
    return go


def windows(seen: list[list[int]], per_step: int) -> list[list[int]]:
    """The samples of each step, whatever the micro-batches."""
    flat = [value for batch in seen for value in batch]
    return [sorted(flat[i : i + per_step]) for i in range(0, len(flat), per_step)]


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError,
        *(pytest.param(kind, marks=pytest.mark.computing) for kind in (RuntimeError, MemoryError)),
    ],
)
def test_too_many_rows_are_halved_until_they_fit(go, error):
    calm = go(error=error)
    samples = windows(go.seen, 8)
    tight = go(lambda rows, *_: rows > 1, error=error)
    assert tight.record.state == "finished", tight.log
    assert [(e.rung, e.micro_batch, e.step) for e in tight.of(MemoryFreed)] == [
        ("micro_batch", 2, 1),
        ("micro_batch", 1, 1),
    ]
    assert tight.losses == pytest.approx(calm.losses, abs=1e-5)
    assert windows(go.seen, 8) == samples, "effective batch and sample order"
    assert tight.record.steps == calm.record.steps == 6


@pytest.mark.parametrize(
    "changes",
    some(
        [
            {"data.fill": True, "optim.micro_batch": 2},
            {"adapter.method": "full", "optim.learning_rate": 1e-3},
        ],
        {"data.fill": True, "optim.micro_batch": 2},
    ),
    ids=["packing", "full"],
)
def test_packed_blocks_and_all_weights_too(go, changes):
    calm = go(changes=changes)
    tight = go(lambda rows, *_: rows > 1, changes)
    assert tight.record.state == "finished", tight.log
    assert {event.rung for event in tight.of(MemoryFreed)} == {"micro_batch"}
    assert tight.losses == pytest.approx(calm.losses, abs=1e-5)
    assert tight.record.steps == calm.record.steps > 1


@pytest.mark.computing
def test_memory_that_runs_out_in_mid_window_replays_all_of_it(go):
    """The second micro-batch of step 3 fails with the first one's gradients there."""
    calm = go()
    calls = []

    def full(rows, training, _):
        calls.append(rows)
        return len(calls) == 6

    tight = go(full)
    assert [(e.rung, e.micro_batch, e.step) for e in tight.of(MemoryFreed)] == [("micro_batch", 2, 3)]
    assert tight.losses == pytest.approx(calm.losses, abs=1e-5)


@pytest.mark.computing
def test_below_one_row_activations_are_recomputed(go):
    calm = go()
    tight = go(lambda rows, training, recomputing: training and not recomputing)
    assert tight.record.state == "finished", tight.log
    assert [e.rung for e in tight.of(MemoryFreed)] == ["micro_batch", "micro_batch", "checkpointing"]
    assert tight.losses == pytest.approx(calm.losses, abs=1e-5)


def test_the_end_of_the_ladder_asks_for_shorter_examples(go):
    ended = go(lambda *_: True, {"data.max_length": 1024})
    assert (ended.record.state, ended.failure) == ("failed", "memory_exhausted")
    fixes = [dict(fix.change) for fix in ended.record.diagnosis.fixes]
    assert {"data.max_length": 512} in fixes
    assert not any("optim.micro_batch" in change for change in fixes), "was tried"
    assert SAID in ended.log
    for language in ("en", "zh-CN"):
        assert load_catalogue(language).has("failure.memory_exhausted.why")


@pytest.mark.computing
def test_an_evaluation_that_does_not_fit_never_touches_the_training(go):
    changes = {"data.validation_share": 0.3, "run.eval_every": 2, "optim.epochs": 3}
    calm = go(changes=changes)
    tight = go(lambda rows, training, _: not training and rows > 1, changes)
    assert tight.record.state == "finished", tight.log
    assert [(e.rung, e.micro_batch) for e in tight.of(MemoryFreed)] == [("evaluation", 2), ("evaluation", 1)]
    assert tight.losses == calm.losses, "bitwise: nothing of the training changed"
    losses = [[e.loss for e in ran.of(EvalLogged)] for ran in (tight, calm)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and losses[0]


def test_an_evaluation_of_one_row_that_does_not_fit_says_so(go):
    changes = {"data.validation_share": 0.3, "run.eval_every": 2}
    ended = go(lambda rows, training, _: not training, changes)
    assert ended.failure == "memory_exhausted" and ended.record.steps == 2


@pytest.mark.computing
@pytest.mark.parametrize("training", [False, True])
def test_the_end_of_the_ladder_keeps_what_was_learned(go, training):
    """With no checkpoint asked for: memory is out for good after some steps, and is there again for the resume."""
    changes = {"data.validation_share": 0.3, "run.eval_every": 2, "adapter.dropout": 0.1}
    changes |= {"optim.epochs": 4.0, "optim.batch_size": 8, "optim.micro_batch": 1}
    calm, count = go(changes=changes), []

    def full(rows, trains, recomputing):
        count.append(trains)
        return trains is training and (not training or sum(count) > 20)

    ended = go(full, changes)
    assert ended.failure == "memory_exhausted" and ended.record.steps == (3 if training else 2), ended.log
    assert (ended.folder.checkpoints / f"step-{ended.record.steps:08}").is_dir()
    events = []
    go(lambda *_: False, changes)
    record = engine.run(ended.folder.read_recipe(), go.machine, ended.folder, events.append, lambda: False)
    resumed = Ran(ended.folder, record, events)
    assert record.state == "finished" and resumed.losses == calm.losses[ended.record.steps :]


@pytest.mark.parametrize(("times", "state"), some_of_several([(1, "finished"), (2, "failed")], (2, "failed")))
def test_saving_is_tried_once_more(go, monkeypatch, times, state):
    real, failures = loading.write_training, []

    def write(*arguments):
        if len(failures) < times:
            failures.append(arguments)
            raise torch.OutOfMemoryError(SAID)
        return real(*arguments)

    monkeypatch.setattr(loading, "write_training", write)
    saved = go()
    assert saved.record.state == state
    assert [e.rung for e in saved.of(MemoryFreed)] == ["save"]
    assert saved.of(MemoryFreed)[0].micro_batch == 4
    if state == "finished":
        assert saved.losses == go().losses


@pytest.mark.parametrize(
    ("step", "applied", "state"),
    [
        (1, 0, "finished"),
        pytest.param(3, 3, "failed", marks=pytest.mark.computing),
        *(
            pytest.param(step, applied, "failed", marks=pytest.mark.computing)
            for step, applied in ((1, 3), (3, 0))
        ),
    ],
)
def test_memory_that_runs_out_while_a_step_is_applied(go, monkeypatch, step, applied, state):
    """In the first step the moments are made: nothing was changed, so it is done again; else no weight is trusted."""
    calm = go(changes={"run.save_every": 2})
    real, calls = torch.optim.AdamW.step, []

    def full(self, *arguments, **options):
        calls.append(step)
        if len(calls) != step:
            return real(self, *arguments, **options)
        (group,) = self.param_groups
        parameters = group["params"]
        if applied:
            group["params"] = parameters[:applied]
            real(self)
            group["params"] = parameters
        if step == 1:
            self.state[parameters[applied]]["step"] = torch.tensor(0.0)  # and no room for the moments
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr(torch.optim.AdamW, "step", full)
    tight = go(changes={"run.save_every": 2})
    assert tight.record.state == state, tight.log
    if state == "finished":
        assert [(e.rung, e.step) for e in tight.of(MemoryFreed)] == [("optimizer", 1)]
    else:
        assert tight.record.diagnosis.what.id == "memory.optimizer.full" and tight.record.steps == step - 1
        events = []
        monkeypatch.setattr(torch.optim.AdamW, "step", real)
        record = engine.run(
            tight.folder.read_recipe(), go.machine, tight.folder, events.append, lambda: False
        )
        tight = Ran(tight.folder, record, events)
    mine, theirs = (
        load_file(ran.folder.path / "adapter" / "adapter_model.safetensors") for ran in (tight, calm)
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.computing
def test_the_next_run_starts_where_this_one_fitted(go, tmp_path):
    store = Remembered(tmp_path / "remembered.json")
    full = lambda rows, *_: rows > 2  # noqa: E731
    assert go(full, store=store).of(MemoryFreed)
    again = go(full, store=store)
    assert again.record.state == "finished" and not again.of(MemoryFreed)
    (warned,) = again.of(Warned)
    assert warned.message.id == "run.fitted_before" and warned.message.values["count"] == 2
    other = go(full, {"data.max_length": 60}, store)
    assert other.of(MemoryFreed) and not other.of(Warned), "another length is another load"
    small = go(full, {"optim.batch_size": 8, "optim.micro_batch": 2}, store)
    assert not small.of(Warned), "what was asked for fits"


@pytest.mark.computing
def test_recomputing_is_remembered_too(go, tmp_path):
    store = Remembered(tmp_path / "remembered.json")
    full = lambda rows, training, recomputing: training and not recomputing  # noqa: E731
    assert len(go(full, store=store).of(MemoryFreed)) == 3
    again = go(full, store=store)
    assert again.record.state == "finished" and not again.of(MemoryFreed) and len(again.of(Warned)) == 1


def test_a_failed_computation_lets_go_of_its_tensors():
    class Held:
        pass

    kept = []

    def compute():
        held = Held()
        kept.append(weakref.ref(held))
        raise torch.OutOfMemoryError(SAID)

    gc.disable()
    try:
        compute()
    except torch.OutOfMemoryError as error:
        assert kept[0]() is not None
        let_go(error)
        assert kept[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(SAID), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:115] . DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("out of resource: shared memory, Required: 131072"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_mean_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_the_ladder_is_a_tuple_that_a_planner_can_put_rungs_before():
    assert [rung.name for rung in RUNGS] == ["micro_batch", "checkpointing"]

    class Plain(torch.nn.Module):
        """A model that cannot recompute."""

    first = ladder.Rung(name="offload", applies=lambda *_: True, act=lambda *_: ladder.text("plan.on"))
    state = TrainState(micro_batch=5)
    assert climb(Plain(), state, (first, *RUNGS))[0] is first and state.micro_batch == 5
    sizes = []
    while climb(Plain(), state):
        sizes.append(state.micro_batch)
    assert sizes == [2, 1]


def test_a_processor_has_no_cap():
    with cap_memory("cpu") as limit_bytes:
        assert limit_bytes == 0


def test_the_cap_is_a_share_of_what_is_free_and_ends_with_the_block(monkeypatch):
    set_to = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5_000, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1_000)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: set_to.append((share, device))
    )
    with pytest.raises(KeyError), cap_memory("cuda:1") as limit_bytes:
        assert limit_bytes == 5_600  # 1,000 are ours already, and 0.92 of 5,000
        raise KeyError
    assert set_to == [(0.56, "cuda:1"), (1.0, "cuda:1")]
    # 600 of the 1,000 are the run's own weights, read ahead: the share is of them, too.
    with cap_memory("cuda:1", 0.5, 600) as limit_bytes:
        assert limit_bytes == 400 + 2_576
