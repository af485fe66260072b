"""What the window costs while a run is on: charts, answers, memory, and the training itself."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path

import psutil
import pytest

from studio.core.codec import to_json
from studio.core.recipe import change_recipe
from studio.machine.workspace import open_workspace
from studio.services.recipes import DEMO_RECIPE, read_recipe
from tests.slowness import slowness
from tests.ui.launched_studio import LaunchedStudio, family, get
from tests.ui.sample_run import SampleRun

pytestmark = pytest.mark.slow

TRIES = 3
"""A busy machine may spoil a measurement, so the best of three counts."""
ANSWER_S, KEPT = 0.5, 0.9
"""The 95th percentile of the answers on two quiet cores, and the share of the training speed that is kept."""
NOISE = 1.5
"""A share is measured from blocks of steps seconds apart; a shared machine changes as much meanwhile (seen here)."""
BLOCKS, BLOCK_STEPS = 4, 20
"""Half of them watched: 80 answers or more, 40 steps of each kind."""
POINTS, CHARTS = 20_000, 6
PAGE_MS, SERVER_MS = 60.0, 25.0
"""Per second of watching a run of POINTS points that takes a step each second: the page's main thread, and the server
above what an idle page costs it."""
IDLE_MS = 10.0
"""Per second without a page: 1 % of a core, of which the queue's rest of 80 ms is about half."""
AFTER_BYTES = 400 * 2**20
WATCH_S = 20
WHAT = "ms/s of the page, of the server above the idle page, of the idle page, slowness of the machine"
REPLAYED_EVENTS, REPLAY_SPEED = 36_000, 300
HEAP_BYTES, SERVER_BYTES, NODES = 8 * 2**20, 60 * 2**20, 30
"""What may be more after REPLAYED_EVENTS than after a sixth of them: 30,000 points are 2 MB in a page's columns, and
the server keeps each event, about 1 kB. A node left by each payload were 100."""
SETTLE_S = 3.0
"""After tabs are opened or closed, before a block is measured: loading a page is not watching a run."""


@pytest.mark.timeout(900)
def test_two_tabs_disturb_neither_answers_nor_training(chromium, tmp_path):
    """Blocks of steps with two tabs open and without any take turns, so that a busy moment of the machine hits both."""
    results = []
    for attempt in range(TRIES):
        workspace = open_workspace(str(tmp_path / f"workspace-{attempt}"))
        recipe = to_json(change_recipe(read_recipe(DEMO_RECIPE), {"optim.max_steps": 2000}))
        (workspace.root / "draft.json").write_text(json.dumps(recipe), encoding="utf-8")
        studio = LaunchedStudio(workspace.root)
        try:
            p95_s, kept = measure(studio, chromium)
        finally:
            studio.close()
        slow = slowness()
        results.append((p95_s, kept, slow))
        if p95_s <= ANSWER_S * slow and kept >= 1 - (1 - KEPT) * NOISE:
            return
    pytest.fail(f"95th percentile of the answers in s, share of the training speed kept, slowness: {results}")


def measure(studio: LaunchedStudio, browser) -> tuple[float, float]:
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
    for block in range(BLOCKS):
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

    def __init__(self, studio: LaunchedStudio, browser) -> None:
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


def test_an_idle_studio_rests(tmp_path):
    """No page is open and nothing runs: the studio's processes take at most IDLE_MS of each second."""
    studio, results = LaunchedStudio(open_workspace(str(tmp_path / "workspace")).root), []
    try:
        time.sleep(WATCH_S)  # the machine is looked at
        for _ in range(TRIES):
            before_s, started_s = studio.cpu_s(), time.monotonic()
            time.sleep(WATCH_S)
            took_s, after_s = time.monotonic() - started_s, studio.cpu_s()
            used_s = sum(after_s[process] - before_s[process] for process in after_s.keys() & before_s.keys())
            results.append((round(1000 * used_s / took_s, 1), round(slowness(), 2)))
            if results[-1][0] <= IDLE_MS * results[-1][1]:
                break
        else:
            pytest.fail(f"ms/s of the studio, slowness of the machine: {results}")
    finally:
        studio.close()
    print("ms/s of the idle studio, slowness of the machine:", results)


@pytest.mark.long
@pytest.mark.timeout(900)  # its minute is four where others compute
def test_a_minute_after_a_run_its_memory_is_given_back(chromium, tmp_path):
    """The page that watched it, untouched since, comes back to the run by itself, and works."""
    workspace = open_workspace(str(tmp_path / "workspace"))
    recipe = to_json(change_recipe(read_recipe(DEMO_RECIPE), {"optim.max_steps": 20}))
    (workspace.root / "draft.json").write_text(json.dumps(recipe), encoding="utf-8")
    studio = LaunchedStudio(workspace.root)
    try:
        page = chromium.new_context().new_page()
        page.set_default_timeout(120_000)
        page.goto(studio.url)
        page.wait_for_selector("body[data-ready]")
        page.click("#tab-training-button")
        page.click("#run-start")
        page.wait_for_selector('#run-status .status[data-state="finished"]')
        before = resident_bytes(studio)
        time.sleep(60 * slowness())
        after = resident_bytes(studio)
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector('#run-status .status[data-state="finished"]')
        assert page.locator(".toast-body.error").count() == 0
        page.click("#tab-chat-button")
        page.wait_for_selector("#chat-tuned .examples button")
        page.click("#chat-tuned .examples button >> nth=0")
        page.wait_for_function("document.querySelector('#chat-input textarea').value.length > 10")
    finally:
        studio.close()
    print("MB at the end of the run and a minute later:", before >> 20, after >> 20)
    assert after <= AFTER_BYTES < before


def resident_bytes(studio: LaunchedStudio) -> int:
    """Return the memory of the window's process, as the system's tools show it."""
    return max(one.memory_info().rss for one in family(studio.process))


def test_watching_a_long_run_costs_little(chromium, tmp_path, record_property):
    """20,000 points in six charts, one step a second: the page's main thread, and the server above the idle page."""
    workspace = open_workspace(str(tmp_path / "workspace"))
    run = SampleRun(workspace, POINTS, 2 * POINTS)
    studio, results = LaunchedStudio(workspace.root), []
    try:
        watched = Watched(studio, chromium)
        watched.wait_for_points(POINTS)
        charts = watched.page.query_selector_all("#run-charts [role=img]")
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
            slow = slowness()
            results.append((round(page_ms), round(server_ms - idle_ms), round(idle_ms), round(slow, 2)))
            if page_ms <= PAGE_MS * slow and server_ms - idle_ms <= SERVER_MS * slow:
                break
        else:
            pytest.fail(f"{WHAT}: {results}")
    finally:
        studio.close()
    print(WHAT, results)
    record_property("ms_per_s", str(results))


@pytest.mark.long
@pytest.mark.timeout(900)  # two minutes are the replay, more where the machine is busy
def test_memory_stays_flat_over_ten_hours_of_events(chromium, tmp_path):
    """36,000 events, ten hours of a run, at 300 times their pace: a payload each second, 100 between the two looks."""
    workspace = open_workspace(str(tmp_path / "workspace"))
    run = SampleRun(workspace, 1, REPLAYED_EVENTS)
    studio = LaunchedStudio(workspace.root)
    try:
        watched = Watched(studio, chromium)
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
