"""Folding events: every point once, also after a resume, and in whatever portions the events come."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studio.core.events import (
    CheckpointSaved,
    Diagnosis,
    EvalLogged,
    GpuSampled,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStopped,
    StepLogged,
    Warned,
)
from studio.core.text import literal
from studio.ui.live import LOG_LINES, PAYLOAD_ROWS, LiveView, fold, payload


def step(number: int, seq: int, loss: float = 1.0, total: int = 10) -> StepLogged:
    return StepLogged(
        seq=seq, time_s=100.0 + seq, step=number, total_steps=total, epoch=0.0, loss=loss, lr=1e-3, grad_norm=1.0,
        tokens_per_s=10.0,
    )  # fmt: skip


def steps_of(view: LiveView) -> list[int]:
    return [row[1] for row in view.rows if row[0] == "step"]


RUN = (
    PhaseStarted(seq=1, time_s=100.0, phase="train"),
    *(step(i, 1 + i) for i in range(1, 6)),
    CheckpointSaved(seq=7, time_s=108.0, step=3, size_bytes=1),
    EvalLogged(seq=8, time_s=109.0, step=5, loss=0.5),
    RunResumed(seq=9, time_s=120.0, step=3),
    *(step(i, 6 + i, loss=2.0) for i in range(4, 8)),
    RunFinished(seq=14, time_s=130.0, step=7, loss=2.0, artifact="adapter"),
)


def test_steps_after_a_resume_replace_those_of_the_earlier_attempt():
    view = fold(LiveView(), RUN)
    assert steps_of(view) == [1, 2, 3, 4, 5, 6, 7]
    assert [row[2] for row in view.rows if row[0] == "step"] == [1.0] * 3 + [2.0] * 4
    assert not [row for row in view.rows if row[0] == "eval"]
    assert (view.state, view.artifact, view.step, view.saved_step, view.generation) == (
        "finished",
        "adapter",
        7,
        3,
        1,
    )


@given(st.lists(st.integers(0, len(RUN)), max_size=6))
def test_portions_and_repeats_change_nothing(cuts):
    view = LiveView()
    for cut in sorted(cuts):
        view = fold(view, RUN[:cut])
    view = fold(fold(view, RUN), RUN)
    assert (view.rows, view.log, view.seq) == (fold(LiveView(), RUN).rows, fold(LiveView(), RUN).log, 14)


def test_nothing_new_returns_the_same_view():
    view = fold(LiveView(), RUN)
    assert fold(view, ()) is view


def test_the_time_left_follows_the_pace():
    view = fold(
        LiveView(), [PhaseStarted(seq=1, time_s=100.0, phase="train"), step(1, 2), step(2, 3), step(3, 4)]
    )
    assert view.left_s == pytest.approx(7.0)
    assert fold(view, [RunStopped(seq=9, time_s=200.0, step=3, saved=True)]).left_s is None


def test_a_value_that_is_not_finite_is_a_gap():
    view = fold(LiveView(), [step(1, 1, loss=math.nan), step(2, 2, loss=math.inf)])
    assert [row[2] for row in view.rows] == [None, None]


def test_a_failure_keeps_its_diagnosis_until_the_run_goes_on():
    diagnosis = Diagnosis(id="x", what=literal("what"), why=literal("why"))
    view = fold(LiveView(), [step(1, 1), RunFailed(seq=2, time_s=1.0, step=1, diagnosis=diagnosis)])
    assert (view.state, view.diagnosis) == ("failed", diagnosis)
    view = fold(view, [RunResumed(seq=3, time_s=2.0, step=0)])
    assert (view.state, view.diagnosis, steps_of(view)) == ("running", None, [])


def test_the_log_keeps_its_last_lines():
    events = [Warned(seq=i, time_s=1.0, message=literal(str(i))) for i in range(1, LOG_LINES + 51)]
    view = fold(LiveView(), events)
    assert len(view.log) == LOG_LINES
    assert view.log[-1].message == events[-1].message


def collect(messages) -> list:
    """Put payloads together as assets/chart.js does."""
    rows, run, generation, cursor = [], None, -1, 0
    for message in messages:
        if message["since"] == 0:
            rows = list(message["rows"])
        else:
            assert (message["run"], message["generation"], message["since"]) == (run, generation, cursor)
            rows += message["rows"]
        run, generation, cursor = message["run"], message["generation"], message["until"]
    return rows


def test_payloads_add_up_to_every_row_once():
    view, shown, messages = LiveView(), {}, []
    for event in RUN:
        view = fold(view, [event])
        message = payload("a", view, shown)
        if message:
            messages.append(message)
            shown = {"run": "a", "generation": message["generation"], "cursor": message["until"]}
    assert collect(messages) == [list(row) for row in view.rows]
    assert (
        sum(message["since"] == 0 for message in messages) == 2 + 1
    )  # the empty first one, the first row, the resume
    assert payload("a", view, shown) is None
    assert payload("b", view, shown)["since"] == 0


def test_a_long_run_is_thinned_for_a_replay_only():
    view = fold(LiveView(), [step(i, i, total=20000) for i in range(1, 20001)])
    message = payload("a", view, {})
    assert len(message["rows"]) <= PAYLOAD_ROWS + 1
    assert (message["rows"][0][1], message["rows"][-1][1], message["until"]) == (1, 20000, 20000)
    view = fold(view, [step(20001, 20001)])
    assert len(payload("a", view, {"run": "a", "generation": 0, "cursor": 20000})["rows"]) == 1


def test_gpu_samples_stand_on_the_time_axis():
    sample = GpuSampled(seq=2, time_s=107.5, utilisation=0.5, memory_bytes=7, temperature_c=1.0, power_w=1.0)
    view = fold(LiveView(), [PhaseStarted(seq=1, time_s=100.0, phase="train"), sample])
    assert view.rows == (("gpu", 7.5, 0.5, 7),)


def test_steps_that_begin_anew_without_a_checkpoint_replace_the_lost_ones():
    lost = (step(1, 1), step(2, 2), step(3, 3))
    view = fold(LiveView(), lost)
    view = fold(view, (*lost, PhaseStarted(seq=4, time_s=110.0, phase="load"), step(1, 5, loss=2.0)))
    assert (steps_of(view), view.generation) == ([1], 1)
    assert view.rows[0][2] == 2.0
