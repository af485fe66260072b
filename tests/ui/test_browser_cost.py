"""What the window costs: a page within a second, the app within four, charts, answers and training undisturbed."""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest

from studio.core.codec import to_json
from studio.core.recipe import change_recipe
from studio.desk.recipes import DEMO_RECIPE, read_recipe
from studio.host.workspace import open_workspace
from tests.ui.sample_run import SampleRun

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
TRIES = 3
"""A busy machine may spoil a measurement, so the best of three counts."""
FIRST_S, APP_S, ANSWER_S, KEPT = 1.0, 4.0, 0.5, 0.9
"""What the window is built to keep on two quiet cores."""
NOISE = 1.5
"""Shared machines are up to this much slower from one minute to the next (seen here); beyond it is a regression."""
BLOCK_STEPS = 30
POINTS, CHARTS = 20_000, 6
PAGE_MS, SERVER_MS = 60.0, 25.0
"""Per second of watching a run of POINTS points that takes a step each second: the page's main thread, and the server
above what an idle page costs it."""
WATCH_S = 20
REPLAYED_EVENTS, REPLAY_SPEED = 36_000, 60
HEAP_BYTES, SERVER_BYTES, NODES = 8 * 2**20, 60 * 2**20, 60
"""What may be more after REPLAYED_EVENTS than after a sixth of them: 30,000 points are 2 MB in a page's columns, and
the server keeps each event, about 1 kB."""
SETTLE_S = 3.0
"""After tabs are opened or closed, before a block is measured: loading a page is not watching a run."""


def get(port: int, path: str, cookie: str = "") -> int:
    """Return the status of one request; 0 when nothing answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


class Studio:
    """`launch.py --here --no-browser` as a process, with the times at which it answered."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = workspace.with_suffix(".log").open("w")
        started = time.monotonic()
        command = [
            sys.executable,
            str(ROOT / "launch.py"),
            "--here",
            "--no-browser",
            "--port",
            str(self.port),
        ]
        self.process = subprocess.Popen(
            [*command, "--workspace", str(workspace)], stdout=self.log, stderr=self.log
        )
        self.first_s = self.app_s = 0.0
        while not self.app_s:
            status = get(self.port, "/")
            now = time.monotonic() - started
            assert now < 60, "the window did not start"
            if status and not self.first_s:
                self.first_s = now
            if status == 401:
                self.app_s = now
            time.sleep(0.01)

    @property
    def url(self) -> str:
        """The address with a token that nobody has used yet."""
        return json.loads((self.workspace / "address.json").read_text(encoding="utf-8"))["url"]

    def has_torch(self) -> bool:
        """Return whether a process of the studio has loaded torch's library."""
        maps = [one.path for process in self.family() for one in process.memory_maps()]
        return any("libtorch" in path for path in maps)

    def family(self) -> list[psutil.Process]:
        """Return the studio's processes."""
        return [
            psutil.Process(self.process.pid),
            *psutil.Process(self.process.pid).children(recursive=True),
        ]

    def cpu_s(self) -> dict[int, float]:
        """Return the processor time that each process of the studio has used."""
        return {one.pid: sum(one.cpu_times()[:2]) for one in self.family()}

    def memory_bytes(self) -> int:
        """Return the memory that the studio holds for itself."""
        return sum(one.memory_full_info().uss for one in self.family())

    def close(self) -> None:
        """End the studio as Ctrl-C would."""
        self.process.terminate()
        self.process.wait(25)
        self.log.close()


def test_first_page_within_a_second_and_app_within_four(tmp_path):
    times = []
    for attempt in range(TRIES):
        studio = Studio(tmp_path / f"workspace-{attempt}")
        try:
            assert not studio.has_torch()
        finally:
            studio.close()
        times.append((studio.first_s, studio.app_s))
        if studio.first_s <= FIRST_S * NOISE and studio.app_s <= APP_S * NOISE:
            return
    pytest.fail(f"first page and app after {times} s")


@pytest.mark.timeout(900)
def test_two_tabs_disturb_neither_answers_nor_training(tmp_path):
    """Blocks of steps with two tabs open and without any take turns, so that a busy moment of the machine hits both."""
    from playwright.sync_api import sync_playwright

    results = []
    for attempt in range(TRIES):
        workspace = open_workspace(str(tmp_path / f"workspace-{attempt}"))
        recipe = to_json(change_recipe(read_recipe(DEMO_RECIPE), {"optim.max_steps": 2000}))
        (workspace.root / "draft.json").write_text(json.dumps(recipe), encoding="utf-8")
        studio = Studio(workspace.root)
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                results.append(measure(studio, browser))
                browser.close()
        finally:
            studio.close()
        p95_s, kept = results[-1]
        if p95_s <= ANSWER_S * NOISE and kept >= 1 - (1 - KEPT) * NOISE:
            return
    pytest.fail(f"95th percentile of the answers in s, share of the training speed kept: {results}")


def measure(studio: Studio, browser) -> tuple[float, float]:
    """Return the 95th percentile of the answers in s, and the training speed with tabs as a share of that without."""
    context = browser.new_context()
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(studio.url)
    page.wait_for_selector("body[data-ready]")
    page.click("#tab-training-button")
    page.click("#run-start")
    page.wait_for_function("Number(document.querySelector('#run-charts .charts')?.dataset.points || 0) > 5")
    cookie = "; ".join(f"{one['name']}={one['value']}" for one in context.cookies())
    address = re.sub(r"\?.*", "", studio.url)
    page.close()
    events = next(studio.workspace.glob("runs/*/events.jsonl"))
    answers_s: list[float] = []
    speeds: dict[bool, list[float]] = {True: [], False: []}
    for block in range(6):
        watched = block % 2 == 0
        pages = [context.new_page() for _ in range(2 if watched else 0)]
        for tab in pages:
            tab.goto(address)
            tab.wait_for_selector("#tab-training-button")
            tab.click("#tab-training-button")
        time.sleep(SETTLE_S)
        seen = len(speeds_of(events))
        until = seen + BLOCK_STEPS
        while len(speeds_of(events)) < until and not ended(events):
            # The same few requests in both kinds of block, so that only the tabs make the difference.
            asked = time.monotonic()
            assert get(studio.port, "/config", cookie) == 200
            if watched:
                answers_s.append(time.monotonic() - asked)
            time.sleep(0.5)
        speeds[watched] += speeds_of(events)[seen:until]
        for tab in pages:
            tab.close()
    p95_s = statistics.quantiles(answers_s, n=20)[-1]
    return p95_s, statistics.median(speeds[True]) / statistics.median(speeds[False])


class Watched:
    """A page of Chromium that shows the Training tab, and what it costs."""

    def __init__(self, studio: Studio, browser) -> None:
        self.studio = studio
        self.page = browser.new_context(viewport={"width": 1280, "height": 1400}).new_page()
        self.page.set_default_timeout(120_000)
        self.page.goto(studio.url)
        self.page.wait_for_selector("#tab-training-button")
        self.page.click("#tab-training-button")
        self.devtools = self.page.context.new_cdp_session(self.page)
        self.devtools.send("Performance.enable")

    def wait_for_points(self, count: int) -> None:
        """Wait until the charts have `count` steps."""
        self.page.wait_for_function(
            f"Number(document.querySelector('#run-charts .charts')?.dataset.points || 0) >= {count}"
        )

    def metric(self, name: str) -> float:
        """Return one of DevTools' figures."""
        metrics = self.devtools.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == name)

    def main_thread_s(self) -> float:
        """Return the processor time of the page's main thread.

        DevTools' TaskDuration is what the clock says: on a machine with other work it counts the waiting too.
        """
        browsers = [
            one for one in psutil.Process().children(recursive=True) if one.name().startswith("chrom")
        ]
        pages = [one for one in browsers if "--type=renderer" in one.cmdline()]
        mains = [thread for page in pages for thread in page.threads() if thread.id == page.pid]
        return max(thread.user_time + thread.system_time for thread in mains)

    def heap_bytes(self) -> float:
        """Return what the page's scripts hold after a collection."""
        self.devtools.send("HeapProfiler.collectGarbage")
        return self.metric("JSHeapUsedSize")

    def costs(self, each_second) -> tuple[float, float]:
        """Return ms/s of the page's main thread and of the server over WATCH_S; `each_second` is called each second."""
        page_s, server_s, started_s = self.main_thread_s(), self.studio.cpu_s(), time.monotonic()
        for second in range(1, WATCH_S + 1):
            each_second()
            time.sleep(max(0.0, started_s + second - time.monotonic()))
        took_s = time.monotonic() - started_s
        page_s = self.main_thread_s() - page_s
        now_s = self.studio.cpu_s()  # a probe of the machine that ended meanwhile is not the page's
        used_s = sum(now_s[process] - server_s[process] for process in now_s.keys() & server_s.keys())
        return 1000 * page_s / took_s, 1000 * used_s / took_s


def test_watching_a_long_run_costs_little(tmp_path):
    """20,000 points in six charts, one step a second: the page's main thread, and the server above the idle page."""
    from playwright.sync_api import sync_playwright

    workspace = open_workspace(str(tmp_path / "workspace"))
    run = SampleRun(workspace, POINTS, 2 * POINTS)
    studio, results = Studio(workspace.root), []
    try:
        with sync_playwright() as playwright:
            watched = Watched(studio, playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS))
            watched.wait_for_points(POINTS)
            charts = watched.page.query_selector_all("#run-charts canvas")
            assert len(charts) == CHARTS and all(chart.is_visible() for chart in charts)

            def step() -> None:
                run.beat()
                run.write(run.next_steps(1))

            for _ in range(TRIES):
                run.state("stopped")
                time.sleep(SETTLE_S)
                idle_ms = watched.costs(lambda: None)[1]
                run.state("running")
                step()
                time.sleep(SETTLE_S)
                before = watched.page.evaluate("document.querySelector('#run-charts .charts').taken")
                page_ms, server_ms = watched.costs(step)
                taken = watched.page.evaluate("document.querySelector('#run-charts .charts').taken") - before
                assert taken <= WATCH_S + 2, "one payload a second for all six charts"
                watched.wait_for_points(run.step)
                results.append((round(page_ms), round(server_ms - idle_ms), round(idle_ms)))
                if page_ms <= PAGE_MS and server_ms - idle_ms <= SERVER_MS:
                    return
    finally:
        studio.close()
    pytest.fail(f"ms/s of the page, of the server above the idle page, of the idle page: {results}")


@pytest.mark.long
@pytest.mark.timeout(1500)  # ten minutes are the replay, more where the machine is busy
def test_memory_stays_flat_over_ten_hours_of_events(tmp_path):
    """36,000 events, ten hours of a run, at sixty times their pace."""
    from playwright.sync_api import sync_playwright

    workspace = open_workspace(str(tmp_path / "workspace"))
    run = SampleRun(workspace, 1, REPLAYED_EVENTS)
    studio = Studio(workspace.root)
    try:
        with sync_playwright() as playwright:
            watched = Watched(studio, playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS))
            run.state("running")
            figures, started_s, first = [], time.monotonic(), run.seq
            for second in range(1, REPLAYED_EVENTS // REPLAY_SPEED + 1):
                run.beat()
                while run.seq - first < second * REPLAY_SPEED:
                    run.write(run.next_steps(1))
                if second * REPLAY_SPEED in (REPLAYED_EVENTS // 6, REPLAYED_EVENTS):
                    watched.wait_for_points(run.step)
                    figures.append((watched.heap_bytes(), studio.memory_bytes(), watched.metric("Nodes")))
                time.sleep(max(0.0, started_s + second - time.monotonic()))
            steps = watched.page.evaluate("document.querySelector('#run-charts .charts').steps()")
            assert steps == list(range(1, run.step + 1))
    finally:
        studio.close()
    early, late = figures
    heap, server, nodes = (after - before for before, after in zip(early, late, strict=True))
    assert heap <= HEAP_BYTES and server <= SERVER_BYTES and nodes <= NODES, figures


def speeds_of(events: Path) -> list[float]:
    """Return the tokens per second of every step logged so far."""
    lines = events.read_text(encoding="utf-8").splitlines()
    return [
        json.loads(line)["tokens_per_s"] for line in lines if '"step_logged"' in line and line.endswith("}")
    ]


def ended(events: Path) -> bool:
    """Return whether the run has ended."""
    return any(f'"{kind}"' in events.read_text(encoding="utf-8") for kind in ("run_finished", "run_failed"))
