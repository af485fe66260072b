"""The whole way of a first run without a mouse: model, data, settings, start, a question answered by Escape, stop."""

from __future__ import annotations

import pytest

from tests.ui.browser import (
    wait_for_state,
)
from tests.ui.focus import tab_to

pytestmark = pytest.mark.slow

ROWS = 400
"""150 steps at three epochs: enough to be stopped on the way."""


def wait_for_tab(page, name: str) -> None:
    page.wait_for_selector(f"#tab-{name}", state="visible")


def focused(page, place: str) -> None:
    """Wait until what `place` names has the focus."""
    page.wait_for_function("(place) => document.activeElement?.matches(place)", arg=place)


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_a_list_that_is_left_by_tab_closes(start_studio):
    """Gradio leaves it open: it covered what is below, and after a change of tabs hung over the page as a strip."""
    page = start_studio("en").open("en")
    page.wait_for_selector("body[data-ready]")
    page.click("#tab-model-button")
    page.click("#knob-model-quantization input")
    page.wait_for_selector("[role=listbox] [role=option]")
    page.keyboard.press("Tab")
    page.wait_for_function("!document.querySelector('[role=listbox]')?.checkVisibility()")
    page.click("#knob-model-quantization input")
    page.click("[role=listbox] [role=option] >> nth=1")
    page.wait_for_function("document.querySelector('#knob-model-quantization input').value !== 'None'")


@pytest.mark.parametrize("language", ["zh-CN"])
def test_a_first_run_by_keys_alone(start_studio, tmp_path, language):  # noqa: F811
    rows = [f'"What is {i} plus {i}?","It is {2 * i}."' for i in range(ROWS)]
    file = tmp_path / "sums.csv"
    file.write_text("\n".join(["question,answer", *rows]), encoding="utf-8")
    window = start_studio(language)
    page = window.open(language)
    page.wait_for_selector("body[data-ready]")

    # Tabs are one stop; arrows go along them, and round.
    page.keyboard.press("Tab")
    tab_to(page, "#tab-home-button")
    press(page, "ArrowLeft")
    focused(page, "#tab-settings-button")
    press(page, "ArrowRight", "ArrowRight")
    focused(page, "#tab-model-button")
    wait_for_tab(page, "model")
    page.wait_for_selector("section[data-section=picks]")
    page.wait_for_selector("#run-card-body .checks-list.good")

    # A model by arrows, and the demo again; the next button leads on, and the keys with it.
    tab_to(page, ".model-row input")
    press(page, "ArrowDown")
    page.wait_for_function("document.querySelector('#model-card .card.model')?.dataset.source !== 'demo'")
    press(page, "ArrowUp")
    page.wait_for_selector("#model-card .card.model[data-source=demo]")
    page.wait_for_selector("#run-card-body .checks-list.good")
    focused(page, ".model-row input[value=demo]")
    tab_to(page, "#run-card-next button")
    press(page, "Enter")
    wait_for_tab(page, "dataset")
    focused(page, "#tab-dataset-button")

    # A file of one's own by its path.
    tab_to(page, "#dataset-source :is(input, textarea)")
    press(page, "Control+A")
    page.keyboard.type(str(file))
    press(page, "Enter")
    page.wait_for_selector('#dataset-rows select.used[data-column="answer"]')
    page.wait_for_selector('#dataset-verdict .dataset[data-state="done"]')
    page.wait_for_function(f"document.querySelector('#run-card-body').innerText.includes('{ROWS}')")
    tab_to(page, "#run-card-next button")
    press(page, "Enter")
    wait_for_tab(page, "hyperparameters")
    focused(page, "#tab-hyperparameters-button")
    page.wait_for_selector("#knob-adapter-rank[data-dressed]")
    tab_to(page, "[name=plain-length]")
    press(page, "ArrowRight")
    page.wait_for_selector("[name=plain-length][value=thorough]:checked")
    tab_to(page, "#run-card-next button")
    press(page, "Enter")
    wait_for_tab(page, "training")
    page.wait_for_selector("#run-problems .check.good")

    # Started from wherever the keys are; Escape is no, and the focus is where the question came from.
    press(page, "Control+Enter")
    wait_for_state(page, "running")
    page.wait_for_function("Number(document.querySelector('#run-status [data-step]')?.dataset.step) >= 2")
    tab_to(page, "#run-discard")
    press(page, "Enter")
    page.wait_for_selector("dialog[open]")
    tab_to(page, "dialog button")
    press(page, "Escape")
    page.wait_for_selector("dialog", state="detached")
    wait_for_state(page, "running")
    focused(page, "#run-discard")

    # The strip is drawn anew each second; what has the focus in it keeps it.
    page.focus("#run-chip .stop")
    step = page.get_attribute("#run-status [data-step]", "data-step")
    page.wait_for_function(
        f"Number(document.querySelector('#run-status [data-step]').dataset.step) > {step} + 5"
    )
    focused(page, "#run-chip .stop")
    press(page, "Enter")
    wait_for_state(page, "stopped")
    assert window.complaints == []
