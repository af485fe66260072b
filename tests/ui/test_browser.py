"""The real app in a real browser: the demo by mouse, and what its pages say in Chinese."""

from __future__ import annotations

import json
import re

import pytest

from studio.core.codec import to_json
from studio.core.recipe import change_recipe
from studio.services.recipes import DEMO_RECIPE, read_recipe
from tests.ui.browser import english_in, labels_of, show_tab, steps_shown, wait_for_state, wait_for_steps

pytestmark = pytest.mark.slow

STEPS = 300
"""Enough to be stopped on the way on a machine four times as fast as those that this was written on (0.1 s a step)."""
CHINESE_STEPS = 100
"""Enough to be stopped after a reload."""
END_S = 240
"""A busy machine does 1.5 steps a second beside two pages."""


def start_demo(start_studio, language: str, steps: int):
    """Return the window and its page, on which the demo has taken three of so many steps."""
    window = start_studio(language)
    recipe = change_recipe(read_recipe(DEMO_RECIPE), {"optim.max_steps": steps})
    (window.workspace.root / "draft.json").write_text(json.dumps(to_json(recipe)), encoding="utf-8")
    page = window.open(language)
    show_tab(page, "training")
    page.wait_for_selector("#run-problems .check.good")
    page.click("#run-start")
    wait_for_steps(page, 3)
    return window, page


@pytest.mark.timeout(600)
def test_the_demo_by_mouse(start_studio):
    window, page = start_demo(start_studio, "en", STEPS)

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
    assert re.search(r"\d", page.get_attribute('[data-series="loss"] [role=img]', "aria-label"))
    second.close()

    # A page that is opened after the end shows the same.
    page.reload()
    page.wait_for_selector("#tab-training-button")
    page.wait_for_timeout(1500)
    show_tab(page, "training")
    wait_for_steps(page, STEPS)
    assert steps_shown(page) == list(range(1, STEPS + 1))
    assert page.evaluate("document.documentElement.lang") == "en"

    # One that is discarded leaves nothing behind.
    page.click("#run-start")
    wait_for_state(page, "running")
    page.click("#run-discard")
    page.click(".question-box .primary")
    wait_for_state(page, "finished")
    assert len(list((window.workspace.root / "runs").iterdir())) == 1
    assert window.complaints == []


def test_the_pages_of_a_run_speak_chinese(start_studio):
    """While it is on, when it was stopped, and to a page that is opened after its end."""
    window, page = start_demo(start_studio, "zh-CN", CHINESE_STEPS)
    page.reload()
    page.wait_for_selector("#tab-training-button")
    show_tab(page, "training")
    wait_for_steps(page, 4)
    assert english_in(labels_of(page)) == []
    page.click("#run-stop")
    wait_for_state(page, "stopped")
    assert english_in(labels_of(page)) == []
    page.click("#run-resume")
    wait_for_state(page, "finished", END_S)
    page.reload()
    page.wait_for_selector("#tab-training-button")
    page.wait_for_timeout(1500)
    show_tab(page, "training")
    wait_for_steps(page, CHINESE_STEPS)
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert english_in(labels_of(page)) == []
    assert window.complaints == []
