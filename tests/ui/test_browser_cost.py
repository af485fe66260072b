"""What the window costs: a page within a second, the app within four, answers and training undisturbed by two tabs."""

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
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.workspace = workspace
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
        family = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        maps = [one.path for process in family for one in psutil.Process(process.pid).memory_maps()]
        return any("libtorch" in path for path in maps)

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


def test_two_tabs_disturb_neither_answers_nor_training(tmp_path):
    """Blocks of steps with two tabs open and without any take turns, so that a busy moment of the machine hits both."""
    from playwright.sync_api import sync_playwright

    results = []
    for attempt in range(TRIES):
        studio = Studio(tmp_path / f"workspace-{attempt}")
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
    page.wait_for_selector("#tab-hyperparameters-button")
    page.click("#tab-hyperparameters-button")
    page.fill("#knob-optim-max-steps input", "2000")
    page.press("#knob-optim-max-steps input", "Tab")
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


def speeds_of(events: Path) -> list[float]:
    """Return the tokens per second of every step logged so far."""
    lines = events.read_text(encoding="utf-8").splitlines()
    return [
        json.loads(line)["tokens_per_s"] for line in lines if '"step_logged"' in line and line.endswith("}")
    ]


def ended(events: Path) -> bool:
    """Return whether the run has ended."""
    return any(f'"{kind}"' in events.read_text(encoding="utf-8") for kind in ("run_finished", "run_failed"))
