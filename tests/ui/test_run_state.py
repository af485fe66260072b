"""Folding events: every point once, also after a resume, and in whatever portions the events come."""

from __future__ import annotations

import math
from array import array
from base64 import b64decode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studio.core.events import (
    CheckpointSaved,
    Diagnosis,
    EvalLogged,
    GpuSampled,
    Metric,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStalled,
    RunStopped,
    RunUnpaused,
    SampleWritten,
    StepLogged,
    Warned,
)
from studio.core.i18n import literal, load_catalogue
from studio.ui.metric_columns import COLUMNS, PAYLOAD_ROWS, Points, payload
from studio.ui.run_state import ALARM_LINES, LOG_LINES, LiveView, fold, say_lost


def step(number: int, seq: int, loss: float = 1.0, total: int = 10) -> StepLogged:
    return StepLogged(
        seq=seq, time_s=100.0 + seq, step=number, total_steps=total, epoch=0.0, loss=loss, lr=1e-3, grad_norm=1.0,
        tokens_per_s=10.0,
    )  # fmt: skip


def steps_of(view: LiveView) -> list[int]:
    return [row[0] for row in view.points.rows("step")]


def points_of(view: LiveView) -> dict[str, list]:
    return {kind: list(view.points.rows(kind)) for kind in COLUMNS}


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
    assert [row[2] for row in view.points.rows("step")] == [1.0] * 3 + [2.0] * 4
    assert points_of(view)["eval"] == []
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
    whole = fold(LiveView(), RUN)
    assert (points_of(view), view.log, view.seq) == (points_of(whole), whole.log, 14)


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
    assert [row[2] for row in view.points.rows("step")] == [None, None]


def test_a_failure_keeps_its_diagnosis_until_the_run_goes_on():
    diagnosis = Diagnosis(id="x", what=literal("what"), why=literal("why"))
    view = fold(LiveView(), [step(1, 1), RunFailed(seq=2, time_s=1.0, step=1, diagnosis=diagnosis)])
    assert (view.state, view.diagnosis) == ("failed", diagnosis)
    view = fold(view, [RunResumed(seq=3, time_s=2.0, step=0)])
    assert (view.state, view.diagnosis, steps_of(view)) == ("running", None, [])


def test_the_log_keeps_its_last_lines_and_warnings_longer():
    kinds = (lambda i: Warned(seq=i, time_s=1.0, message=literal(str(i))), lambda i: CheckpointSaved(seq=i, time_s=1.0,
             step=i, size_bytes=1))  # fmt: skip
    events = [kinds[i % 2](i) for i in range(1, 301)]
    view = LiveView()
    for start in range(0, 300, 7):
        view = fold(view, events[start : start + 7])
    assert view.log == fold(LiveView(), events).log
    assert len(view.log) == LOG_LINES + ALARM_LINES
    assert {line.level for line in view.log[:ALARM_LINES]} == {"warn"}
    assert [line.level for line in view.log[ALARM_LINES:]] == ["info", "warn"] * (LOG_LINES // 2)


def test_the_log_tells_a_question_from_its_answer():
    events = [
        RunStalled(seq=seq, time_s=1.0, step=7, phase="train", waited_s=9.0, verdict="blocked", message=literal("why"),
                   action=action)
        for seq, action in enumerate(("ask", "wait", "restart", "stop"), start=1)
    ]  # fmt: skip
    words = load_catalogue("en")
    told = [words.say(line.message) for line in fold(LiveView(), events).log]
    ends = ("is stuck at step 7.", "is waiting.", "continues from its last checkpoint.", "was stopped.")
    for line, end in zip(told, ends, strict=True):
        assert line.endswith(f"{end} why")


def test_metrics_are_kept_beside_the_steps_and_taken_back_with_them():
    metrics = (Metric(name="plain_loss"), Metric(name="preferred", unit="share"))
    view = fold(LiveView(metrics=metrics), [
        replace(step(1, 1), metrics={"plain_loss": 3.0, "preferred": 0.5}),
        replace(step(2, 2), metrics={"preferred": 0.75}),
        EvalLogged(seq=3, time_s=3.0, step=2, loss=1.0, metrics={"preferred": 1.0}),
    ])  # fmt: skip
    assert [(row[0], *row[2:]) for row in view.points.rows("metric")] == [
        (1, 0, 3, 0), (1, 1, 0.5, 0), (2, 1, 0.75, 0), (2, 1, 1, 1),
    ]  # fmt: skip
    words = load_catalogue("en")
    assert "Loss without weights: 3." in words.say(view.log[0].message)
    view = fold(view, [RunResumed(seq=4, time_s=4.0, step=1)])
    assert len([*view.points.rows("metric")]) == 2


def unpack(message: dict, kind: str) -> list[tuple]:
    """The rows of one kind in a payload, as chart.js reads them; gaps as None."""
    numbers = array("f", b64decode(message[kind]))
    length = len(numbers) // len(COLUMNS[kind])
    columns = [numbers[i : i + length] for i in range(0, len(numbers), length)] if length else []
    return [tuple(None if math.isnan(one) else one for one in row) for row in zip(*columns, strict=True)]


def collect(messages) -> dict[str, list]:
    """Put payloads together as chart.js does."""
    rows: dict[str, list] = {kind: [] for kind in COLUMNS}
    run, generation, cursor = None, -1, dict.fromkeys(COLUMNS, 0)
    for message in messages:
        if not any(message["since"].values()):
            rows = {kind: [] for kind in COLUMNS}
        else:
            assert (message["run"], message["generation"], message["since"]) == (run, generation, cursor)
        for kind in COLUMNS:
            rows[kind] += unpack(message, kind)
        run, generation, cursor = message["run"], message["generation"], message["until"]
    return rows


def send(view: LiveView, shown: dict, run: str = "a") -> dict | None:
    return payload(run, view.generation, view.points, shown)


def after(message: dict) -> dict:
    return {"run": message["run"], "generation": message["generation"], "cursor": message["until"]}


def test_payloads_add_up_to_every_row_once():
    view, shown, messages = LiveView(), {}, []
    for event in RUN:
        view = fold(view, [event])
        message = send(view, shown)
        if message:
            messages.append(message)
            shown = after(message)
    for kind, rows in points_of(view).items():
        assert collect(messages)[kind] == [pytest.approx(row) for row in rows]
    # the empty first one, the first row, the resume: a page that has nothing is sent what there is
    assert sum(not any(message["since"].values()) for message in messages) == 3
    assert send(view, shown) is None
    assert not any(send(view, shown, "b")["since"].values())


def test_a_long_run_is_thinned_for_a_replay_only_and_keeps_its_extremes():
    count = 2 * PAYLOAD_ROWS
    points = Points()
    for i in range(1, count + 1):
        points = points.add("step", i, i, 9.0 if i == 20_001 else 1.0 + i % 3 / 10, 1e-3, 1.0, 1.0, 0)
    message = payload("a", 0, points, {})
    rows = unpack(message, "step")
    assert len(rows) <= PAYLOAD_ROWS and message["until"]["step"] == count
    assert (rows[0][0], rows[-1][0]) == (1, count)
    assert 9.0 in [row[2] for row in rows] and [row[0] for row in rows] == sorted({row[0] for row in rows})
    points = points.add("step", count + 1, 1, 1.0, 1e-3, 1.0, 1.0, 0)
    assert len(unpack(payload("a", 0, points, after(message)), "step")) == 1


def test_an_older_look_is_not_changed_by_a_newer_one():
    first = Points().add("eval", 1, 1.0, 0.5)
    second, other = first.add("eval", 2, 2.0, 0.4), first.add("eval", 3, 3.0, 0.3)
    assert [row[0] for row in first.rows("eval")] == [1]
    assert [row[0] for row in second.rows("eval")] == [1, 2]
    assert [row[0] for row in other.rows("eval")] == [1, 3]
    cut = second.cut(1)
    assert [row[0] for row in cut.add("eval", 9, 9.0, 0.1).rows("eval")] == [1, 9]
    assert [row[0] for row in second.rows("eval")] == [1, 2] and second.cut(2) is second


@pytest.mark.computing
def test_folding_one_event_costs_the_same_after_twenty_thousand():
    view = fold(LiveView(), [step(i, i, total=20_100) for i in range(1, 20_001)])
    columns = view.points._tables["step"]
    after_one = fold(view, [step(20_001, 20_001, total=20_100)])
    assert after_one.points._tables["step"] is columns, "the columns grow in place"
    assert view.points.counts["step"] == 20_000


def test_gpu_samples_stand_on_the_time_axis():
    sample = GpuSampled(
        seq=2, time_s=107.5, utilisation=0.5, memory_bytes=7, temperature_c=61.0, power_w=250.5
    )
    view = fold(LiveView(), [PhaseStarted(seq=1, time_s=100.0, phase="train"), sample])
    assert points_of(view)["gpu"] == [(7.5, 0.5, 7, 61, 250.5)]


def test_steps_that_begin_anew_without_a_checkpoint_replace_the_lost_ones():
    lost = (step(1, 1), step(2, 2), step(3, 3))
    view = fold(LiveView(), lost)
    view = fold(view, (*lost, PhaseStarted(seq=4, time_s=110.0, phase="load"), step(1, 5, loss=2.0)))
    assert (steps_of(view), view.generation) == ([1], 1)
    assert list(view.points.rows("step"))[0][2] == 2.0


def test_what_is_done_again_is_told_until_it_is_done():
    lost = [PhaseStarted(seq=1, time_s=100.0, phase="train"), *(step(i, i + 1) for i in (1, 2, 3))]
    anew = [PhaseStarted(seq=5, time_s=150.0, phase="load"), step(1, 60)]
    view = fold(LiveView(), [*lost, *anew])
    assert view.lost == (0, 3) and say_lost(view.lost).id == "ui.status.anew"
    assert [line.message.id for line in view.log if line.level == "warn"] == ["ui.status.anew"]
    saved = [RunResumed(seq=5, time_s=150.0, step=2), step(3, 60)]
    view = fold(LiveView(), [*lost, *saved])
    assert (view.lost, say_lost(view.lost).values) == ((2, 3), {"step": 2, "count": 1})
    stopped = [RunStopped(seq=5, time_s=120.0, step=3, saved=True), RunResumed(seq=6, time_s=150.0, step=3)]
    assert fold(LiveView(), [*lost, *stopped]).lost == (0, 0), "nothing is done again"


def test_time_in_which_it_was_stopped_or_dead_is_no_time_of_the_run():
    first = [
        PhaseStarted(seq=1, time_s=100.0, phase="prepare"),
        PhaseStarted(seq=2, time_s=101.0, phase="train"),
        step(1, 3),
    ]
    stop = [RunStopped(seq=4, time_s=110.0, step=1, saved=True)]
    again = [
        PhaseStarted(seq=5, time_s=200.0, phase="prepare"),
        PhaseStarted(seq=6, time_s=202.0, phase="load"),
    ]
    assert fold(LiveView(), first).away_s == 0
    assert fold(LiveView(), [*first, *stop, *again]).away_s == 90
    assert fold(LiveView(), [*first, *again]).away_s == 97, "killed after its step at 103"


def test_answers_of_steps_that_are_taken_again_are_written_again():
    def sample(seq: int, at: int, words: str) -> SampleWritten:
        return SampleWritten(seq=seq, time_s=seq, step=at, prompt="p", answer=words)

    first = [sample(1, 0, "base"), step(1, 2), step(2, 3), sample(4, 2, "lost"), step(3, 5)]
    view = fold(LiveView(), [*first, RunResumed(seq=6, time_s=9.0, step=1), step(2, 7), sample(8, 2, "kept")])
    assert [one.answer for one in view.samples] == ["base", "kept"]


def test_a_pause_shows_and_ends():
    view = fold(LiveView(), [PhaseStarted(seq=1, time_s=1.0, phase="train"), step(1, 2), RunPaused(seq=3, time_s=3.0,
                step=1)])  # fmt: skip
    assert (view.state, view.left_s) == ("paused", None)
    assert fold(view, [RunUnpaused(seq=4, time_s=9.0, step=1)]).state == "running"


def test_the_phases_of_an_attempt_are_kept_in_order():
    names = ["load", "download", "download", "prepare", "train"]
    view = fold(
        LiveView(), [PhaseStarted(seq=i, time_s=10.0 * i, phase=name) for i, name in enumerate(names, 1)]
    )
    assert (view.passed, view.phase_s) == (("load", "download", "prepare", "train"), 50.0)
    assert fold(view, [PhaseStarted(seq=9, time_s=99.0, phase="load")]).passed == ("load",)
