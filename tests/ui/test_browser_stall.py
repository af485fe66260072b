"""A run that stands still, in a real browser: the three answers, of which one is given by keyboard alone."""

from __future__ import annotations

import json

import pytest

from studio.core.codec import to_json
from studio.core.recipe import change_recipe
from studio.machine.workspace import open_workspace
from studio.services.recipes import DEMO_RECIPE, read_recipe
from tests.launched import SITECUSTOMIZE, read_events
from tests.ui.browser import PATIENCE_MS, show_tab, wait_for_state
from tests.ui.focus import tab_to
from tests.ui.launched_studio import LaunchedStudio

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
STEP = 7
STALL_S = 30
"""Long enough for the question to be seen and answered on a busy machine; "wait" waits for its end."""
BUDGETS = {"floor": 1.0, "first": 8.0, "check": 0.1, "answer": 120.0, "start": 60.0, "save": 5.0}
CHANGES = {
    "optim.max_steps": 12,
    "run.save_every": 2,
    "run.eval_every": 0,
    "run.trial": False,
    "run.samples": 0,
}


def wait_for_question(page) -> str:
    """Wait until the page asks what to do; return what it says."""
    page.wait_for_selector("#run-stall #run-answer-wait", timeout=2 * PATIENCE_MS)
    return page.inner_text("#run-stall")


def actions(workspace) -> list[str]:
    """Return what was done about each stall, the questions among it."""
    return [event["action"] for event in read_events(workspace.root) if event["kind"] == "run_stalled"]


def test_the_person_is_asked_and_each_answer_does_what_it_says(tmp_path, chromium, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    for name, value in {
        "PYTHONPATH": str(site),
        "TEST_STALL_STEP": str(STEP),
        "TEST_STALL_S": str(STALL_S),
        "FINETUNE_STUDIO_BUDGETS": json.dumps(BUDGETS),
        "FINETUNE_STUDIO_LANGUAGE": "en",
    }.items():
        monkeypatch.setenv(name, value)
    workspace = open_workspace(str(tmp_path / "workspace"))
    recipe = change_recipe(read_recipe(DEMO_RECIPE), CHANGES)
    (workspace.root / "draft.json").write_text(json.dumps(to_json(recipe)), encoding="utf-8")
    studio = LaunchedStudio(workspace.root)
    try:
        page = chromium.new_context(viewport={"width": 1280, "height": 720}).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(studio.url)
        page.wait_for_selector("body[data-ready]")
        show_tab(page, "training")
        page.wait_for_selector("#run-problems .check.good")
        page.keyboard.press("Control+Enter")

        # Start anew: the studio's process is another one, the page stays, and the step is tried again.
        said = wait_for_question(page)
        assert f"step {STEP}" in said and "stand_still" in said
        page.click("#run-answer-restart")
        page.wait_for_selector("#run-answer-wait", state="detached")
        assert "stand_still" in wait_for_question(page)
        page.wait_for_selector(".toast-body.error", state="detached")
        assert actions(workspace) == ["ask", "restart", "ask"]

        # Wait, by keyboard: it comes back by itself, and goes on to its end.
        page.focus("#run-choice")
        tab_to(page, "#run-answer-wait")
        page.keyboard.press("Enter")
        page.wait_for_selector("#run-answer-wait", state="detached")
        wait_for_state(page, "finished")
        assert page.inner_text("#run-stall") == ""
        assert actions(workspace)[:4] == ["ask", "restart", "ask", "wait"], (
            "it asks again after a longer while"
        )

        # Stop: the run is failed, and says where.
        page.keyboard.press("Control+Enter")
        wait_for_question(page)
        page.click("#run-answer-stop")
        wait_for_state(page, "failed")
        # The page loads anew once the studio's new process answers.
        page.wait_for_function(
            "document.querySelector('#run-failure .failure')?.innerText.includes('stand_still')"
        )
    finally:
        studio.close()
