"""A run in a real browser: pause, reload, a second page, a frozen page, kill -9 of the studio, a fix; points once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from studio.core.codec import to_json
from studio.core.events import Diagnosis, Fix, PhaseStarted, RunFailed
from studio.core.i18n import literal, load_catalogue, text
from studio.core.recipe import change_recipe
from studio.engine.crash_records import append_event
from studio.engine.run_folder import create_run
from studio.machine.workspace import open_workspace
from studio.services.recipes import DEMO_RECIPE, read_recipe
from tests.ui.launched_studio import LaunchedStudio
from tests.ui.sample_run import SampleRun

pytestmark = pytest.mark.slow

STEPS = 240
CHANGES = {
    "optim.max_steps": STEPS,
    "run.save_every": 20,
    "run.eval_every": 40,
    "data.validation_share": 0.05,
    "run.samples": 2,
    "run.trial": False,
}


def open_training(context, address: str):
    """Return a page that shows the Training tab."""
    page = context.new_page()
    page.set_default_timeout(180_000)
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    page.click("#tab-training-button")
    return page


def steps_of(page) -> list[int]:
    return page.evaluate("document.querySelector('#run-charts .charts')?.steps() || []")


def wait_for_steps(page, count: int) -> None:
    page.wait_for_function(
        f"(document.querySelector('#run-charts .charts')?.steps() || []).length >= {count}"
    )


def wait_for_state(page, state: str) -> None:
    page.wait_for_selector(f'#run-status .status[data-state="{state}"]')


def once(page) -> list[int]:
    """The steps on show, each of which is there once and in order."""
    steps = steps_of(page)
    assert steps == list(range(1, len(steps) + 1))
    return steps


def fail_a_run(workspace) -> None:
    """Leave a run of the demo that failed, with a fix that changes a setting."""
    changes = {"name": "failed", "optim.max_steps": 2, "run.trial": False}
    run = create_run(workspace.runs, change_recipe(read_recipe(DEMO_RECIPE), changes))
    fixes = (Fix(title=literal("take one at a time"), change={"optim.micro_batch": 1}),)
    diagnosis = Diagnosis(id="memory", what=literal("too little memory"), why=literal("eight"), fixes=fixes)
    for event in (PhaseStarted(phase="load"), RunFailed(step=0, diagnosis=diagnosis)):
        append_event(run, event)


def test_nothing_of_a_run_is_lost(tmp_path, chromium, monkeypatch):
    """In Chinese and in the dark, as the other test of this file is in English and in the light."""
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "zh-CN")
    workspace = open_workspace(str(tmp_path / "workspace"))
    recipe = change_recipe(read_recipe(DEMO_RECIPE), CHANGES)
    (workspace.root / "draft.json").write_text(json.dumps(to_json(recipe)), encoding="utf-8")
    studio = LaunchedStudio(workspace.root)
    try:
        context = chromium.new_context(viewport={"width": 1280, "height": 720}, color_scheme="dark")
        page = open_training(context, studio.url)
        page.wait_for_selector("#run-problems .check.good")
        page.keyboard.press("Control+Enter")
        wait_for_state(page, "running")
        wait_for_steps(page, 3)

        page.click("#run-pause")
        wait_for_state(page, "paused")
        assert page.is_hidden("#run-start") and page.is_visible("#run-queue-add")
        assert page.is_visible("#run-queue-why"), "why it stands there alone"
        paused = load_catalogue("zh-CN").say(text("ui.state.paused"))
        page.wait_for_function("(paused) => document.title.startsWith(paused)", arg=paused)
        held = once(page)
        time.sleep(2)
        assert len(once(page)) <= len(held) + 1, "a paused run takes no further step"
        page.click("#run-pause")
        wait_for_state(page, "running")

        address = page.url
        assert "tab=training" in address and "run=demo" in address
        page.reload()
        page.wait_for_selector("body[data-ready]")
        second = open_training(context, address)
        wait_for_steps(page, len(held) + 2)
        wait_for_steps(second, len(held) + 2)
        once(page), once(second)

        # A page that the browser froze, as it does with tabs that nobody looked at for long, comes back whole.
        devtools = context.new_cdp_session(second)
        devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
        before = len(once(page))
        wait_for_steps(page, before + 5)

        child = next(
            one
            for one in psutil.Process(studio.process.pid).children(recursive=True)
            if "--child" in one.cmdline()
        )
        # A click that the studio dies of: the page has lost its connection, and must not stay deaf once it is back.
        child.suspend()
        page.click("#run-pause")
        page.wait_for_timeout(500)
        child.kill()
        lost = load_catalogue("zh-CN").say(text("ui.page.lost"))
        page.wait_for_function(
            "(lost) => document.querySelector('[data-testid=toast-text]')?.innerText === lost", arg=lost
        )
        size = page.evaluate("getComputedStyle(document.querySelector('.toast-title')).fontSize")
        assert size == "0px", "Gradio's English word for the kind of message"
        wait_for_steps(page, before + 30)
        page.wait_for_selector(".toast-body.error", state="detached")
        page.click("#run-pause")
        wait_for_state(page, "paused")
        page.click("#run-pause")
        wait_for_state(page, "running")
        devtools.send("Page.setWebLifecycleState", {"state": "active"})
        for one in (page, second):
            wait_for_state(one, "finished")
            wait_for_steps(one, STEPS)
            assert once(one)[-1] == STEPS
        assert page.get_attribute("#run-status .status", "data-run") in address

        options = page.eval_on_selector_all("#run-samples option", "(all) => all.map((one) => one.value)")
        assert options[-1] == "0" and str(STEPS) in options
        page.select_option("#run-samples select", "0")
        page.wait_for_selector('#run-samples .samples[data-step="0"]')
        page.select_option("[data-level]", "bad")
        assert page.locator("#run-log p:visible").count() == page.locator("#run-log p.bad").count()
        with page.expect_download() as saved:
            page.click("#run-log-download")
        assert str(STEPS) in Path(saved.value.path()).read_text(encoding="utf-8")
        page.click('.run-done [data-go="chat"]')
        page.wait_for_selector("#tab-chat-button.selected")
    finally:
        studio.close()


def test_charts_can_be_read_by_everyone(tmp_path, chromium):
    workspace = open_workspace(str(tmp_path / "workspace"))
    fail_a_run(workspace)
    SampleRun(workspace, 3000, 6000)
    studio = LaunchedStudio(workspace.root)
    try:
        context = chromium.new_context(viewport={"width": 1280, "height": 1200}, reduced_motion="reduce")
        page = open_training(context, studio.url)
        wait_for_steps(page, 3000)
        wait_for_state(page, "interrupted")
        loss = '[data-series="loss"]'

        def words(series: str = loss) -> str:
            page.wait_for_timeout(300)
            return page.inner_text(f"{series} output")

        plot = f"{loss} [role=img]"
        assert words() and page.get_attribute(plot, "aria-label").endswith(words())
        latest = words()
        page.hover(plot, position={"x": 100, "y": 60})
        assert "step" in words() and words() != latest
        assert "step" in words('[data-series="grad_norm"]'), "one pointer for all charts"
        page.mouse.move(5, 5)

        def picture() -> str:
            page.wait_for_timeout(300)
            return page.eval_on_selector(f"{loss} canvas", "(one) => one.toDataURL()")

        seen = [picture()]
        page.check(".chart-tools [name=log]")
        seen.append(picture())
        page.select_option(".chart-tools [name=window]", "steps 100")
        seen.append(picture())
        page.fill(".chart-tools [name=smooth]", "95")
        seen.append(picture())
        assert len(set(seen)) == len(seen), "each control changes the curve"
        page.select_option('[data-series="gpu_utilisation"] select', "gpu_temperature")
        assert "°C" in words('[data-series="gpu_utilisation"]')
        page.click(".chart-table summary")
        assert page.inner_text(".chart-table tbody tr:first-child td:first-child") == "3000"
        assert page.locator(".chart-table tbody tr").count() == 20
        page.reload()
        page.wait_for_selector("body[data-ready]")
        page.click("#tab-training-button")
        wait_for_steps(page, 3000)
        assert page.is_checked(".chart-tools [name=log]"), "how charts are drawn is remembered"

        # What failed says what happened; its fix is applied and started by one key.
        failed = page.get_attribute("#run-choice option:has-text('failed')", "value")
        page.focus("#run-choice")
        page.select_option("#run-choice", failed)
        page.wait_for_selector("#run-failure .failure")
        page.focus("#run-fix-1")
        page.keyboard.press("Enter")
        page.wait_for_selector(f'#run-status .status:not([data-run="{failed}"])[data-state="finished"]')
        mended = page.get_attribute("#run-status .status", "data-run")
        recipe = json.loads((workspace.runs / mended / "recipe.json").read_text(encoding="utf-8"))
        assert recipe["optim"]["micro_batch"] == 1 and recipe["optim"]["max_steps"] == 2
    finally:
        studio.close()
