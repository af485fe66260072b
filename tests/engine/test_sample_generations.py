"""Sample answers: base against now, and a training that is bitwise the same with and without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from studio.core.events import EvalLogged, PhaseStarted, SampleWritten, Warned
from studio.engine import sample_generations as samples
from studio.engine.generation import answerer
from studio.engine.sample_generations import split_example
from studio.planning import run_plan

WATCHED = {
    "run.samples": 3,
    "run.eval_every": 2,
    "data.validation_share": 0.3,
    "adapter.dropout": 0.2,
    "run.trial": False,
}


def test_answers_come_at_the_start_at_each_evaluation_and_change_no_loss(ran):
    with_samples = ran(WATCHED)
    without = ran(WATCHED | {"run.samples": 0})
    assert with_samples.losses == without.losses, "dropout draws the same numbers"
    assert [e.loss for e in with_samples.of(EvalLogged)] == [e.loss for e in without.of(EvalLogged)]
    assert without.of(SampleWritten) == []
    written = with_samples.of(SampleWritten)
    steps = [event.step for event in with_samples.of(EvalLogged)]
    last = with_samples.record.steps
    assert sorted({event.step for event in written}) == sorted({0, last, *steps})
    assert all(sum(event.step == step for event in written) == 3 for step in {0, last, *steps})
    first = [event for event in written if event.step == 0]
    assert all(event.answer == event.base for event in first)
    assert len({event.prompt for event in first}) == 3
    for event in written:
        assert event.prompt.startswith("say ") and event.expected.startswith("it is ")
        assert event.base == next(one.base for one in first if one.prompt == event.prompt)
    assert [event.answer for event in written if event.step == last] != [event.base for event in first]
    assert "sample" not in [event.phase for event in with_samples.of(PhaseStarted)]
    kinds = [event.kind for event in with_samples.events if event.kind in ("step_logged", "sample_written")]
    assert kinds[:5] == ["step_logged", *["sample_written"] * 3, "step_logged"], (
        "the first step does not wait"
    )


def test_in_16_bits_the_studios_decoder_answers(ran, monkeypatch):
    """Adapters are in fp32 there, and the model's own parts run under autocast alone."""
    monkeypatch.setattr(run_plan, "decoder_pays", lambda gpu: True)
    by_own_code = []
    monkeypatch.setattr(answerer, "answer_by_generate", lambda *given, **more: by_own_code.append(given))
    result = ran({"model.precision": "bf16", "run.samples": 1, "run.trial": False})
    assert result.record.state == "finished" and result.of(SampleWritten), result.log
    assert by_own_code == []


def test_all_weights_are_asked_before_they_change(ran):
    full = ran(WATCHED | {"adapter.method": "full", "adapter.dropout": 0.0})
    assert "sample" in [event.phase for event in full.of(PhaseStarted)]
    kinds = [event.kind for event in full.events if event.kind in ("step_logged", "sample_written")]
    assert kinds[:4] == [*["sample_written"] * 3, "step_logged"]


@pytest.mark.computing
def test_after_an_evaluation_of_the_first_step_both_answers_are_there(ran):
    every = ran(WATCHED | {"run.eval_every": 1})
    steps = [event.step for event in every.of(SampleWritten)]
    assert steps[:6] == [0, 0, 0, 1, 1, 1] and all(event.base for event in every.of(SampleWritten))


@pytest.mark.computing
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_resumed_run_keeps_what_its_base_said(ran, method):
    changes = WATCHED | {"adapter.method": method, "adapter.dropout": 0.0, "run.eval_every": 3}
    stopped = ran(changes, stop_at=3)
    base = {event.prompt: event.base for event in stopped.of(SampleWritten)}
    resumed = ran(folder=stopped.folder)
    assert resumed.record.state == "finished", resumed.log
    later = resumed.of(SampleWritten)
    assert later and {event.prompt: event.base for event in later} == base
    assert all(base.values()) and 0 not in {event.step for event in later}


def test_memory_that_runs_out_ends_the_samples_and_not_the_run(ran, monkeypatch):
    def full(self, prompts, base, limit_s):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(samples.TrainingAnswers, "_generate", full)
    result = ran(WATCHED)
    assert result.record.state == "finished", result.log
    assert result.of(SampleWritten) == []
    assert [event.message.id for event in result.of(Warned)].count("samples.given_up") == 1


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ([0, 0, 1, 1, 0, 0, 1], ([10, 11], [12, 13])),
        ([0, 1, 1, 1, 1, 1, 1, 1], ([10, 11], [12, 13, 14, 15, 16, 17])),
        ([0, 0, 0], ([], [])),
    ],
)
def test_a_prompt_is_what_stands_before_the_first_answer(trained, expected):
    ids = np.arange(10, 10 + len(trained), dtype=np.int32)
    assert split_example(ids, np.array(trained, dtype=bool)) == expected
