"""A first use, counted in clicks: the demo trained and exported, and a file of one's own learned from."""

from __future__ import annotations

import pytest

from tests.ui.browser import wait_for_state

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # clicks are counted, no seconds

DEMO_CLICKS, OWN_CLICKS = 5, 8
"""What the studio allows itself, without a key pressed."""
ROWS = 60
PATIENCE_S = 240
"""The demo trains for half a minute on two quiet cores."""


class Hand:
    """A person's hand on the mouse: every click counts, and nothing is typed."""

    def __init__(self, page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, place: str) -> None:
        """Click where a person would see it."""
        self.page.locator(place).locator("visible=true").first.click()
        self.clicks += 1

    def choose(self, place: str, path: str) -> None:
        """Click a drop zone and pick a file in the dialog: two clicks."""
        with self.page.expect_file_chooser() as chooser:
            self.page.locator(place).locator("visible=true").first.click()
        chooser.value.set_files(path)
        self.clicks += 2


@pytest.fixture
def hand(start_studio, request):  # noqa: F811
    """A hand on a new studio's first page, in the parameter's language."""
    window = start_studio(request.param)
    page = window.open(request.param)
    page.wait_for_selector("#home-starts button")
    page.set_default_timeout(PATIENCE_S * 1000)
    yield Hand(page)
    assert window.complaints == []


@pytest.mark.parametrize("hand", ["en"], indirect=True)
def test_the_demo_is_trained_and_exported(hand):
    page = hand.page
    hand.click('#home-starts [data-do="demo"]')
    wait_for_state(page, "finished", PATIENCE_S)
    hand.click('.run-done [data-go="export"]')
    hand.click('#export-targets [data-do="export"][data-value="adapter"]')
    page.wait_for_selector("#export-result .good")
    assert hand.clicks <= DEMO_CLICKS


@pytest.mark.parametrize("hand", ["zh-CN"], indirect=True)
def test_a_file_of_ones_own_is_learned_from(hand, tmp_path):
    page = hand.page
    rows = [f'"What is {i} plus {i}?","It is {2 * i}."' for i in range(ROWS)]
    path = tmp_path / "sums.csv"
    path.write_text("\n".join(["question,answer", *rows]), encoding="utf-8")
    hand.click('#home-starts [data-go="dataset"]')
    hand.choose("#dataset-upload button", str(path))
    page.wait_for_selector('#dataset-verdict .dataset[data-state="done"]')
    hand.click('#run-card [data-from="dataset"]')
    hand.click('#run-card [data-from="hyperparameters"]')
    hand.click("#run-start")
    wait_for_state(page, "finished", PATIENCE_S)
    assert hand.clicks <= OWN_CLICKS
    assert page.inner_text("#run-status")
