"""The real app in a real browser: the demo by mouse in both languages, and what such tests share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from studio.core.codec import to_json
from studio.core.recipe import change_recipe
from studio.desk.recipes import DEMO_RECIPE, read_recipe
from studio.host.workspace import Workspace, child_environment, open_workspace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
PATIENCE_MS = 60_000
STEPS = 300
"""Enough to be stopped on the way on a machine four times as fast as those that this was written on (0.1 s a step)."""
END_S = 240
"""A busy machine does 1.5 steps a second beside two pages."""
TABS = ("model", "dataset", "hyperparameters", "training", "chat", "export")
# Names that are the same in every language.
INTERNATIONAL = {
    "English",
    "Alpha",
    "rsLoRA",
    "DoRA",
    "LoRA",
    "AdamW",
    "Finetune Studio",
    "CPU",
    "demo",  # the run's name
}


@dataclass
class Window:
    """The running studio, a browser on it, and what the browser complained about."""

    url: str
    workspace: Workspace
    browser: object
    complaints: list[str] = field(default_factory=list)

    def open(self, language: str):
        """Return a page of a browser that speaks `language`, with the token already spent."""
        # Chinese goes with dark, so that what the tests do is done in both languages and in both looks.
        scheme = "dark" if language == "zh-CN" else "light"
        context = self.browser.new_context(
            viewport={"width": 1280, "height": 720}, locale=language, color_scheme=scheme
        )
        context.set_default_timeout(PATIENCE_MS)
        page = self.watch(context.new_page())
        page.goto(self.url)
        page.wait_for_selector("#tab-model-button")
        return page

    def watch(self, page):
        """Collect the page's errors and every request that leaves the machine."""
        page.on("console", lambda line: self.complaints.append(line.text) if is_error(line) else None)
        page.on(
            "pageerror",
            # Gradio's client ends its stream when a page goes; what its abort says reaches nobody.
            lambda error: None if error.name == "AbortError" else self.complaints.append(str(error)),
        )
        page.on(
            "request",
            lambda request: self.complaints.append(request.url) if is_foreign(request.url) else None,
        )
        return page


def is_error(line) -> bool:
    """Return whether a console line is an error of the page.

    The splash page answers 503 until the app is there; connections end with it, and with a page that is left.
    """
    ends = ("503", "ERR_CONNECTION", "ERR_SOCKET_NOT_CONNECTED")
    return line.type == "error" and not any(end in line.text for end in ends)


def is_foreign(url: str) -> bool:
    """Return whether a request leaves this machine."""
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))


@pytest.fixture
def start_studio(tmp_path) -> Iterator:
    """A function `start(language) -> Window`: the real process on a free port in a new workspace."""
    from playwright.sync_api import sync_playwright

    processes = []
    workspace = open_workspace(str(tmp_path / "workspace"))
    with sync_playwright() as playwright, (tmp_path / "studio.log").open("w") as log:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def start(language: str) -> Window:
            environment = child_environment(workspace, os.environ) | {"FINETUNE_STUDIO_LANGUAGE": language}
            environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
            command = [sys.executable, "-m", "studio.cli", "--child", "studio", "--no-browser"]
            command += ["--workspace", str(workspace.root)]
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=workspace.server_cwd,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
            processes.append(process)
            address = workspace.root / "address.json"
            wait_for(address.exists, 30)
            url = json.loads(address.read_text(encoding="utf-8"))["url"]
            return Window(url=url, workspace=workspace, browser=browser)

        yield start
        browser.close()
        for process in processes:
            process.kill()
            process.wait()


def wait_for(holds, seconds: float) -> None:
    """Wait until `holds()`."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.1)


def show_tab(page, name: str) -> None:
    page.click(f"#tab-{name}-button")
    page.wait_for_selector(f"#tab-{name}", state="visible")


def steps_shown(page) -> list[int]:
    """Return the steps that the charts hold."""
    return page.evaluate("document.querySelector('#run-charts .charts')?.steps() || []")


def wait_for_steps(page, count: int) -> None:
    page.wait_for_function(
        f"Number(document.querySelector('#run-charts .charts')?.dataset.points || 0) >= {count}"
    )


def wait_for_state(page, state: str, limit_s: float = 60) -> None:
    """Wait until the page says so; a failure tells what it says instead."""
    from playwright.sync_api import TimeoutError as TooLate

    try:
        page.wait_for_selector(f'#run-status .status[data-state="{state}"]', timeout=limit_s * 1000)
    except TooLate as error:
        shown = page.inner_text("#run-status") + page.inner_text("#run-problems")
        raise AssertionError(f"not {state}, but: {shown}") from error


def labels_of(page) -> list[str]:
    """Return the visible words of labels, buttons, headings, helps and placeholders."""
    return page.evaluate(
        """() => {
          const parts = "[data-testid=block-info], .info-text, button, h1, h2, h3, .lead, .card, .log, label";
          const seen = (query) => [...document.querySelectorAll(query)].filter((part) => part.offsetParent);
          const words = seen(parts).map((part) => part.innerText);
          const hints = seen("[placeholder]").map((part) => part.placeholder);
          return [...words, ...hints].map((one) => one.trim()).filter(Boolean);
        }"""
    )


def english_in(words: list[str]) -> list[str]:
    """Return the texts that hold letters but no Chinese; names, addresses and folders apart."""
    return [
        one
        for one in words
        if re.search("[A-Za-z]{3}", one)
        and not re.search("[\u4e00-\u9fff]", one)
        and one not in INTERNATIONAL
        and not re.match("https?://|/", one)
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_the_demo_by_mouse(start_studio, language):
    window = start_studio(language)
    recipe = change_recipe(read_recipe(DEMO_RECIPE), {"optim.max_steps": STEPS})
    (window.workspace.root / "draft.json").write_text(json.dumps(to_json(recipe)), encoding="utf-8")
    page = window.open(language)
    show_tab(page, "training")
    page.wait_for_selector("#run-problems .check.good")
    page.click("#run-start")
    wait_for_steps(page, 3)

    # Reload in mid-run, then a second tab: every point once in both.
    page.reload()
    page.wait_for_selector("#tab-training-button")
    show_tab(page, "training")
    wait_for_steps(page, 4)
    second = window.watch(page.context.new_page())
    second.goto(page.url)
    second.wait_for_selector("#tab-training-button")
    show_tab(second, "training")
    wait_for_steps(second, 5)
    for one in (page, second):
        shown = steps_shown(one)
        assert shown == list(range(1, len(shown) + 1))
    assert len(steps_shown(page)) < STEPS
    if language == "zh-CN":
        assert english_in(labels_of(page)) == []

    # Stop saves, and both pages hear of it; Resume goes on.
    second.click("#run-stop")
    for one in (page, second):
        wait_for_state(one, "stopped")
    stopped_at = int(page.get_attribute("#run-status .status", "data-step"))
    assert 0 < stopped_at < STEPS
    assert int(page.get_attribute("#run-status .status", "data-saved")) == stopped_at
    page.click("#run-resume")
    for one in (page, second):
        wait_for_state(one, "finished", END_S)
        wait_for_steps(one, STEPS)
        assert steps_shown(one) == list(range(1, STEPS + 1))
    assert re.search(r"\d", page.get_attribute('[data-series="loss"] canvas', "aria-label"))
    second.close()

    # A page that is opened after the end shows the same.
    page.reload()
    page.wait_for_selector("#tab-training-button")
    page.wait_for_timeout(1500)
    show_tab(page, "training")
    wait_for_steps(page, STEPS)
    assert steps_shown(page) == list(range(1, STEPS + 1))
    assert page.evaluate("document.documentElement.lang") == language
    if language == "zh-CN":
        assert english_in(labels_of(page)) == []

    # One that is discarded leaves nothing behind.
    page.click("#run-start")
    wait_for_state(page, "running")
    page.click("#run-discard")
    page.click(".question-box .primary")
    wait_for_state(page, "finished")
    assert len(list((window.workspace.root / "runs").iterdir())) == 1
    assert window.complaints == []
