"""The worker: jobs one after another on one thread, errors to whoever asked, an end within its time."""

import gc
import threading
import time
from concurrent.futures import Future

import pytest

from studio.services.worker import Worker


@pytest.fixture
def worker():
    made = Worker("test-worker")
    yield made
    made.close(5)


def test_no_thread_before_the_first_job(worker):
    assert "test-worker" not in {thread.name for thread in threading.enumerate()}
    assert worker.call(lambda: threading.current_thread().name) == "test-worker"
    assert worker.call(lambda: threading.current_thread().daemon)


def test_jobs_run_in_order_one_at_a_time(worker):
    done, active = [], []

    def job(number):
        active.append(number)
        time.sleep(0.001)
        done.append((number, tuple(active), threading.get_ident()))
        active.remove(number)

    futures = [worker.submit(lambda number=number: job(number)) for number in range(20)]
    for future in futures:
        future.result(5)
    assert [number for number, _, _ in done] == list(range(20))
    assert all(together == (number,) for number, together, _ in done)
    assert len({thread for _, _, thread in done}) == 1


def test_who_waits_is_told_what_is_being_done(worker):
    go_on = threading.Event()
    assert worker.doing == ""
    first = worker.submit(lambda: go_on.wait(5), "export")
    second = worker.submit(lambda: worker.doing)
    until = time.monotonic() + 5
    while worker.doing != "export" and time.monotonic() < until:
        time.sleep(0.001)
    assert worker.doing == "export"
    go_on.set()
    assert first.result(5) and second.result(5) == "", "a job without a name keeps nobody waiting long"


def test_many_threads_share_one_worker(worker):
    results = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(worker.call(lambda: (n, threading.get_ident()))))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert sorted(n for n, _ in results) == list(range(16))
    assert len({ident for _, ident in results}) == 1


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_error_reaches_whoever_asked_and_the_next_job_runs(worker, error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        worker.call(fail)
    assert caught.value is error
    assert worker.call(lambda: 7) == 7


def test_cancelled_job_is_left_out(worker):
    gate, ran = threading.Event(), []
    worker.submit(lambda: gate.wait(5))
    second: Future = worker.submit(lambda: ran.append("second"))
    third: Future = worker.submit(lambda: ran.append("third"))
    assert second.cancel()
    gate.set()
    third.result(5)
    assert ran == ["third"]


def test_close_finishes_what_is_queued():
    worker, ran = Worker("closing"), []
    for number in range(5):
        worker.submit(lambda number=number: ran.append(number))
    assert worker.close(5)
    assert ran == list(range(5))
    assert worker.close(5)


def test_close_gives_up_on_a_job_that_does_not_end():
    worker, gate = Worker("stuck"), threading.Event()
    worker.submit(lambda: gate.wait(30))
    started_s = time.monotonic()
    assert not worker.close(0.1)
    assert time.monotonic() - started_s < 5
    gate.set()
    assert worker.close(5)


def test_close_without_a_job():
    assert Worker("idle").close(0.1)


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_job_after_the_end_is_refused(jobs):
    """Its Future would never resolve, and whoever waits for it would hang."""
    worker = Worker("closed")
    for _ in range(jobs):
        worker.call(lambda: None)
    worker.close(5)
    with pytest.raises(RuntimeError):
        worker.submit(lambda: None)


def test_a_worker_that_nobody_holds_leaves_no_thread():
    class Owner:
        """Has a worker and does work on it, as a desk does."""

        def __init__(self):
            self.worker = Worker("let-go")
            self.worker.call(lambda: str(self))

    owner = Owner()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "let-go"]
    del owner
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
