"""The event log: what a killed writer leaves behind costs one event at most, and reading takes nothing away."""

import dataclasses
import gc
import json
import math
import threading
import time
import tracemalloc
import weakref

import pytest

from studio.core.codec import to_json
from studio.core.events import PhaseStarted, StepLogged, Warned
from studio.core.i18n import text
from studio.services.event_log import KEPT_LOGS, EventLog, EventLogs


def step(number, loss=1.5):
    return StepLogged(
        step=number, total_steps=9, epoch=0.1, loss=loss, lr=1e-3, grad_norm=0.5, tokens_per_s=10.0
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def test_events_are_numbered_timed_and_written(path):
    log = EventLog(path)
    before_s = time.time()
    first = log.append(PhaseStarted(phase="训练"))
    second = log.append(step(1))
    assert (first.seq, second.seq) == (1, 2)
    assert before_s - 1 < first.time_s <= second.time_s < time.time() + 1
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["phase_started", "step_logged"]
    assert "训练" in lines[0]
    assert EventLog(path).since(0) == (first, second) == log.since(0)


def test_reading_never_consumes(path):
    log = EventLog(path)
    events = tuple(log.append(step(number)) for number in range(1, 8))
    for cursor in (0, 3, 7, 99):
        assert log.since(cursor) == events[cursor:] == log.since(cursor)
    assert log.since(-5) == events


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_loss_that_is_no_number_is_kept_as_valid_json(path, loss):
    EventLog(path).append(step(1, loss))
    json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name))
    assert str(EventLog(path).since(0)[0].loss) == str(loss)


def test_file_cut_at_every_byte(path):
    log = EventLog(path)
    for number in range(1, 4):
        log.append(Warned(message=text("a.b", name=f"词 {number}")))
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        survivors = sum(end <= cut for end in ends)
        again = EventLog(path)
        assert len(again.since(0)) == survivors
        added = again.append(step(1))
        assert added.seq == survivors + 1
        fresh = EventLog(path)
        assert [event.seq for event in fresh.since(0)] == list(range(1, survivors + 2))
        assert fresh.since(survivors) == (added,)
        assert path.read_bytes().startswith(whole[: ends[survivors - 1] if survivors else 0])


def test_damaged_line_in_the_middle_is_passed_over(path):
    log = EventLog(path)
    for number in range(1, 4):
        log.append(step(number))
    lines = path.read_bytes().splitlines(keepends=True)
    for damage in (b"\0" * 40 + b"\n", b'{"kind": "danced", "seq": 2}\n', b"[1]\n", b"\xff\xfe\n", b"\n"):
        path.write_bytes(lines[0] + damage + lines[2])
        again = EventLog(path)
        assert [event.seq for event in again.since(0)] == [1, 3]
        assert [event.seq for event in again.since(1)] == [3]
        assert again.append(step(4)).seq == 4


def test_two_readers_of_one_writer(path):
    """A reader in another process sees whole lines only, each once, in order."""
    writer, first, second = EventLog(path), EventLog(path), EventLog(path)
    seen = {id(first): [], id(second): []}
    for number in range(1, 31):
        writer.append(step(number))
        for reader, every in ((first, 1), (second, 7)):
            if number % every == 0:
                reader.refresh()
                cursor = seen[id(reader)][-1] if seen[id(reader)] else 0
                seen[id(reader)] += [event.seq for event in reader.since(cursor)]
    assert seen[id(first)] == list(range(1, 31))
    assert seen[id(second)] == list(range(1, 29))


def test_reader_waits_for_the_rest_of_a_torn_line(path):
    EventLog(path).append(step(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    reader = EventLog(path)
    assert reader.since(0) == ()
    path.write_bytes(whole)
    reader.refresh()
    reader.refresh()
    assert [event.seq for event in reader.since(0)] == [1]


def test_file_that_is_not_there_yet(path):
    reader = EventLog(path)
    assert reader.since(0) == ()
    assert not path.exists()
    EventLog(path).append(step(1))
    reader.refresh()
    assert len(reader.since(0)) == 1


def test_threads_leave_no_gap(path):
    log = EventLog(path)

    def write():
        for number in range(50):
            log.append(step(number))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in log.since(0)] == list(range(1, 201))
    assert EventLog(path).since(0) == log.since(0)


def test_wait_returns_with_the_first_event(path):
    log = EventLog(path)
    threading.Timer(0.1, lambda: log.append(step(1))).start()
    started_s = time.monotonic()
    assert [event.seq for event in log.wait(0, 10)] == [1]
    assert time.monotonic() - started_s < 5
    assert [event.seq for event in log.wait(0, 10)] == [1]


def test_wait_ends_without_an_event(path):
    started_s = time.monotonic()
    assert EventLog(path).wait(0, 0.1) == ()
    assert 0.05 < time.monotonic() - started_s < 5


def test_event_that_could_not_be_written_still_reaches_the_readers(path):
    """On a full disk the window must show that the run failed; what follows is numbered after it."""
    log = EventLog(path)
    log.append(step(1))
    kept = path.read_bytes()
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        log.append(step(2))
    assert [event.seq for event in log.wait(1, 1)] == [2]
    path.rmdir()
    path.write_bytes(kept)
    assert log.append(step(3)).seq == 3
    assert [event.seq for event in EventLog(path).since(0)] == [1, 3]


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": [], "seq": 1}',
        '{"kind": {}, "seq": 1}',
        '{"kind": "step_logged", "seq": 1, "step": 1, "loss": 1' + "0" * 400 + "}",
        '{"kind": "run_failed", "seq": 1, "step": 1, "diagnosis": ' + "[" * 900 + "]" * 900 + "}",
        '{"kind": "told_by_a_newer_studio", "seq": 1}',
    ],
)
def test_a_line_of_any_shape_is_passed_over(path, line):
    EventLog(path).append(PhaseStarted(phase="train"))
    whole = path.read_text(encoding="utf-8").replace('"seq": 1', '"seq": 2')
    path.write_text(f"{line}\n{whole}{line}\n", encoding="utf-8")
    assert [event.seq for event in EventLog(path).since(0)] == [2]


@pytest.mark.parametrize("time_s", ["1e300", '"nan"', "-1e20", '"inf"'])
def test_a_time_that_no_calendar_holds_is_none(path, time_s):
    path.write_text(
        f'{{"kind": "phase_started", "seq": 1, "time_s": {time_s}, "phase": "train"}}\n', encoding="utf-8"
    )
    assert [(event.seq, event.time_s) for event in EventLog(path).since(0)] == [(1, 0.0)]


@pytest.fixture
def logs(tmp_path) -> EventLogs:
    """The logs of a workspace with more runs than are kept."""
    for number in range(2 * KEPT_LOGS):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        (folder / "run.json").write_text("{}", encoding="utf-8")
        EventLog(folder / "events.jsonl").append(step(number))
    return EventLogs(tmp_path)


def test_of_logs_that_nobody_works_with_the_last_stay_in_memory(logs):
    opened = [weakref.ref(logs.open(f"run-{number}")) for number in range(2 * KEPT_LOGS)]
    gc.collect()
    assert [log() is not None for log in opened] == [False] * KEPT_LOGS + [True] * KEPT_LOGS
    again = logs.open("run-0")
    assert again.since(0)[0].step == 0 and logs.open("run-0") is again


def test_the_log_of_the_run_that_is_on_is_one_and_the_same(logs):
    writer = logs.open("run-0")
    for number in range(1, 2 * KEPT_LOGS):
        logs.open(f"run-{number}")
    writer.append(step(7))
    assert [event.step for event in logs.open("run-0").since(0)] == [0, 7]


def test_nothing_is_left_of_the_log_of_a_run_that_is_gone(logs):
    log = logs.open("run-0")
    logs.drop("run-0")
    assert logs.open("run-0") is not log


def test_a_line_that_no_run_writes_is_passed_over_without_being_held(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    first = log.append(Warned(message=text("x")))
    with path.open("ab") as file:
        file.write(b'{"seq": 2, "kind": "' + b"x" * (40 * 2**20) + b'"}\n')
        file.write(json.dumps(to_json(dataclasses.replace(first, seq=3))).encode() + b"\n")
    tracemalloc.start()
    read = EventLog(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [event.seq for event in read.since(0)] == [1, 3] and peak_bytes < 8 * 2**20
    assert read.append(Warned(message=text("x"))).seq == 4
    assert [event.seq for event in EventLog(path).since(0)] == [1, 3, 4]
    with path.open("ab") as file:
        file.write(b"x" * (3 * 2**20))  # torn
    assert EventLog(path).append(Warned(message=text("x"))).seq == 5
    assert [event.seq for event in EventLog(path).since(0)] == [1, 3, 4, 5]
