"""One draft in two windows of a real browser: neither undoes what was set in the other."""

from __future__ import annotations

import json

import pytest

from tests.ui.browser import (
    show_tab,
    wait_for,
)

pytestmark = pytest.mark.slow

RANK, ALPHA = "#knob-adapter-rank input", "#knob-adapter-alpha input"
AWAY_MS = 1100


def kept(window, path: str):
    """Return a setting of the draft; None before there is one."""
    file = window.workspace.root / "draft.json"
    part = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in path.split("."):
        part = part.get(name) or {}
    return part or None


def come_back(page) -> None:
    """Leave the window for a second and come back to it: a page without a head never loses the focus by itself."""
    page.evaluate("dispatchEvent(new Event('blur'))")
    page.wait_for_timeout(AWAY_MS)
    page.evaluate("dispatchEvent(new Event('focus'))")


def test_what_is_set_in_one_window_stands_in_the_other(start_studio):  # noqa: F811
    window = start_studio("en")
    first = window.open("en")
    second = window.watch(first.context.new_page())
    second.goto(window.url.partition("?")[0])
    second.wait_for_selector("#tab-model-button")
    for page in (first, second):
        show_tab(page, "hyperparameters")
        page.wait_for_selector(RANK, state="visible")
    first.fill(RANK, "24")
    wait_for(lambda: kept(window, "adapter.rank") == 24, 20)

    come_back(second)
    second.wait_for_function(f"document.querySelector('{RANK}').value === '24'")
    assert "another window" in second.inner_text(".toast-body")
    second.fill(ALPHA, "12")
    wait_for(lambda: kept(window, "adapter.alpha") == 12, 20)
    second.click("[name=plain-length][value=thorough]")
    wait_for(lambda: (kept(window, "optim.epochs") or 0) > 3, 20)
    assert kept(window, "adapter.rank") == 24 and kept(window, "adapter.alpha") == 12

    # Nothing is said to a window that shows what is kept: neither to the one that changed it, nor a second time.
    come_back(first)
    first.wait_for_function(f"document.querySelector('{ALPHA}').value === '12'")
    first.wait_for_selector(".toast-body", state="detached")  # it goes by itself
    for page in (first, first):
        come_back(page)
        page.wait_for_timeout(500)
        assert page.locator(".toast-body").count() == 0
    assert window.complaints == []
