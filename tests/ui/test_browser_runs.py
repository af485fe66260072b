"""Home and Runs in a real browser with real runs: start, queue, stop, resume, compare, rename, run again, delete."""

from __future__ import annotations

import json
import re

import pytest

from tests.services.test_run_library import make_run
from tests.ui.browser import (
    english_in,
    labels_of,
    show_tab,
    wait_for_state,
)

pytestmark = pytest.mark.long  # no clock looks at it: a minute for what takes seconds

SMALL = {
    "version": 3,
    "name": "small",
    "model": {"source": "demo"},
    "data": {"source": "demo", "max_length": 128, "max_rows": 60, "validation_share": 0.1},
    "optim": {"max_steps": 3, "batch_size": 2},
    "run": {"trial": False, "eval_every": 2},
}


def rows(page) -> list[str]:
    """Return the ids of the runs that the table shows."""
    return page.evaluate("[...document.querySelectorAll('.runs tr[data-run]')].map((row) => row.dataset.run)")


def states(page) -> list[str]:
    """Return the states of the queue's items in their order."""
    return page.evaluate("[...document.querySelectorAll('.queue li')].map((row) => row.dataset.state)")


def open_panel(page, run: str) -> None:
    """Open what can be done with a run."""
    if not page.query_selector(f'tr[data-panel="{run}"]'):
        page.click(f'[data-focus="actions {run}"]')
    page.wait_for_selector(f'tr[data-panel="{run}"] [data-do="rename"]')


def act(page, run: str, do: str) -> None:
    """Press one of a run's buttons."""
    open_panel(page, run)
    page.click(f'tr[data-panel="{run}"] [data-do="{do}"]')


def focus_of(page) -> str:
    return page.evaluate("document.activeElement.dataset.focus || document.activeElement.tagName")


def wait_for_focus(page, key: str) -> None:
    page.wait_for_function("(key) => document.activeElement?.dataset.focus === key", arg=key)


def wait_for_tab(page, name: str) -> None:
    page.wait_for_function(
        "(name) => document.getElementById(`tab-${name}-button`).classList.contains('selected')", arg=name
    )


def queue_again(page, run: str) -> None:
    """Put the same run into the queue once more."""
    act(page, run, "again")
    page.click('.panel [data-do="again-queue"]')
    page.wait_for_selector("#runs-note .good")


@pytest.mark.parametrize("width", [1024, 700])
def test_what_can_be_done_with_a_run_is_in_reach_on_a_narrow_screen(start_studio, width):
    """At 1024 the actions lay beyond the table's edge, and nothing said so."""
    window = start_studio("en")
    make_run(
        window.workspace.runs, name="a run with a rather long name of its own, and more", total_steps=5_000
    )
    page = window.open("en")
    page.wait_for_selector("body[data-ready]")
    page.set_viewport_size({"width": width, "height": 800})
    page.click("#tab-runs-button")
    page.wait_for_selector(".runs button.menu")
    edges = page.evaluate(
        "['.runs button.menu', '.runs'].map((name) => document.querySelector(name).getBoundingClientRect().right)"
    )
    assert edges[0] <= edges[1] <= width
    page.click(".runs button.menu")
    page.wait_for_selector('tr.panel [data-do="rename"]')


def test_runs_by_mouse_and_keyboard(start_studio, workspace):  # noqa: F811
    window = start_studio("en")
    (window.workspace.root / "draft.json").write_text(json.dumps(SMALL), encoding="utf-8")
    page = window.open("en")
    page.wait_for_selector(".hero dl")
    assert "No runs yet" in page.inner_text("#home-runs")

    # A small run, and the same once more from the table.
    show_tab(page, "training")
    page.click("#run-start")
    wait_for_state(page, "finished")
    show_tab(page, "runs")
    page.wait_for_selector(".runs tr[data-run]")
    (small,) = rows(page)
    assert "Finished" in page.inner_text(".runs tbody") and "3" in page.inner_text(".runs td.steps")
    assert page.get_attribute(".runs svg.spark", "aria-label").startswith("Loss curve")
    act(page, small, "again")
    page.wait_for_selector('.panel [data-do="again-start"]')
    wait_for_focus(page, f"again-start {small} panel")
    page.keyboard.press("Enter")
    wait_for_tab(page, "training")
    page.wait_for_selector(f'#run-status [data-run]:not([data-run="{small}"])')
    wait_for_state(page, "finished")

    # The demo with one key; beside it the queue fills, is put in order, and is held when a person stops the run.
    show_tab(page, "home")
    page.focus("#home-demo")
    page.keyboard.press("Enter")
    wait_for_tab(page, "training")
    wait_for_state(page, "running")
    page.wait_for_function("Number(document.querySelector('#run-status [data-step]')?.dataset.step) >= 2")
    page.focus("#run-queue-add")
    page.keyboard.press("Enter")
    page.click('#run-problems [data-go="runs"]')
    wait_for_tab(page, "runs")
    page.wait_for_selector(".queue [data-state=waiting]")
    page.click('.queue [data-state=waiting] [data-do="drop"]')
    page.wait_for_selector(".queue [data-state=waiting]", state="detached")
    show_tab(page, "home")
    page.wait_for_selector(".now .bar i")
    page.wait_for_function("parseFloat(document.querySelector('.now .bar i').style.width) > 0")
    show_tab(page, "runs")
    page.wait_for_function("document.querySelectorAll('.runs tr[data-run]').length === 3")
    demo, second = rows(page)[:2]
    open_panel(page, demo)
    assert page.is_disabled('.panel [data-do="delete"]') and page.is_disabled('.panel [data-do="resume"]')
    queue_again(page, small)
    queue_again(page, second)
    page.wait_for_function("document.querySelectorAll('.queue [data-state=waiting]').length === 2")
    assert states(page) == ["running", "waiting", "waiting"]
    first, last = page.evaluate(
        "[...document.querySelectorAll('.queue [data-state=waiting]')].map((row) => row.dataset.item)"
    )
    assert page.is_disabled(f'[data-focus="queue up {first}"]')
    page.focus(f'[data-focus="queue up {last}"]')
    page.keyboard.press("Enter")
    page.wait_for_function(f"document.querySelector('.queue [data-state=waiting]').dataset.item === '{last}'")
    page.click(f'[data-focus="queue down {last}"]')
    page.wait_for_function(
        f"document.querySelector('.queue [data-state=waiting]').dataset.item === '{first}'"
    )
    page.click('.queue [data-do="hold"]')
    page.wait_for_selector(".queue .held")
    page.focus('.queue [data-do="go"]')
    page.keyboard.press("Enter")
    page.wait_for_selector(".queue .held", state="detached")
    page.click(f'[data-focus="queue drop {first}"]')
    page.wait_for_function("document.querySelectorAll('.queue [data-state=waiting]').length === 1")
    page.check('.queue [data-do="keep"]')
    page.click('.queue [data-do="stop"]')
    page.wait_for_selector(".queue .held")
    assert page.is_checked('.queue [data-do="keep"]')
    page.wait_for_function(f"document.querySelector('[data-run=\"{demo}\"] .chip.stopped')")
    page.click('.queue [data-do="go"]')
    page.wait_for_function(
        "document.querySelectorAll('.runs tr[data-run]').length === 4 && !document.querySelector('.runs .running')"
    )
    third = rows(page)[0]
    assert "Finished" in page.inner_text(f'tr[data-run="{third}"]')

    # Search; ticks stay with their runs.
    page.check(f'[data-focus="pick {small}"]')
    page.check(f'[data-focus="pick {third}"]')
    page.fill("#runs-search", "stopped")
    page.wait_for_function("document.querySelectorAll('.runs tr[data-run]').length === 1")
    assert rows(page) == [demo] and not page.is_checked(".runs .pick input")
    page.fill("#runs-search", "nothing like that")
    page.wait_for_selector("#runs-body .nothing")
    page.fill("#runs-search", "")
    page.wait_for_function("document.querySelectorAll('.runs tr[data-run]').length === 4")
    assert page.is_checked(f'[data-focus="pick {small}"]')
    page.check(f'[data-focus="pick {demo}"]')
    assert page.inner_text("#runs-ticked") == "3 selected"

    # Side by side: curves with names, and what differs.
    page.click("#runs-compare")
    page.wait_for_selector(".overlay .curves li")
    page.wait_for_function("Number(document.querySelector('.overlay [data-kind=loss]').dataset.points) > 8")
    assert re.search(r"A small.*; B demo", page.get_attribute(".overlay [role=img]", "aria-label"))
    told = page.inner_text("#runs-differences")
    assert "Evaluate every\t2\t0\t2" in told and "Seed" not in told
    page.click('.overlay [data-do="close"]')
    page.wait_for_selector(".overlay", state="hidden")

    # Rename by keyboard, Escape first; the focus comes back to the row.
    act(page, third, "rename")
    wait_for_focus(page, f"name {third} panel")
    page.keyboard.press("Escape")
    wait_for_focus(page, f"actions {third}")
    act(page, third, "rename")
    wait_for_focus(page, f"name {third} panel")
    page.keyboard.type("<b>better</b>")
    page.keyboard.press("Enter")
    page.wait_for_function(
        f"document.querySelector('[data-focus=\"open {third}\"]').innerText === '<b>better</b>'"
    )

    # Settings into the form; chat and export know the run; resume goes on with the demo.
    act(page, demo, "duplicate")
    wait_for_tab(page, "hyperparameters")
    draft = json.loads((window.workspace.root / "draft.json").read_text(encoding="utf-8"))
    assert draft["optim"]["max_steps"] == 0 and draft["data"]["max_length"] == 512
    for do, picker in (("chat", "#chat-run input"), ("export", "#export-run input")):
        show_tab(page, "runs")
        act(page, small, do)
        wait_for_tab(page, do)
        page.wait_for_function(
            "(picker) => document.querySelector(picker)?.value.includes('small')", arg=picker
        )
    show_tab(page, "home")
    page.wait_for_selector('#home-continue[data-do="resume"]')
    page.click("#home-continue")
    wait_for_tab(page, "training")
    wait_for_state(page, "running")
    assert page.get_attribute("#run-status [data-run]", "data-run") == demo
    page.wait_for_function("Number(document.querySelector('#run-status [data-step]')?.dataset.step) >= 3")
    page.click("#run-chip .stop")
    wait_for_state(page, "stopped")
    show_tab(page, "runs")
    act(page, demo, "resume")
    wait_for_tab(page, "training")
    wait_for_state(page, "running")
    page.click("#run-stop")
    wait_for_state(page, "stopped")

    # Delete asks first, and says what it frees; an exported folder comes back by its path.
    show_tab(page, "runs")
    outside = window.workspace.root.parent / "elsewhere"
    (window.workspace.root / "runs" / second).rename(outside)
    page.click("#runs-import summary")
    page.fill("#runs-import-folder", str(outside))
    page.press("#runs-import-folder", "Enter")
    page.wait_for_selector("#runs-note .good")
    assert len(rows(page)) == 4 and outside.is_dir()
    open_panel(page, small)
    page.focus('.panel [data-do="delete"]')
    page.keyboard.press("Enter")
    assert "This frees" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    assert small in rows(page)
    page.click('.panel [data-do="delete"]')
    page.click("dialog .primary")
    page.wait_for_function("document.querySelectorAll('.runs tr[data-run]').length === 3")
    assert not (window.workspace.root / "runs" / small).exists()
    assert focus_of(page) == "search"

    # The same in Chinese, what folds open included; the run on show and its words with it.
    show_tab(page, "settings")
    page.select_option("#settings-language", "zh-CN")
    page.wait_for_function("document.documentElement.lang === 'zh-CN'")
    page.wait_for_selector("body[data-ready]")
    show_tab(page, "runs")
    page.wait_for_selector(".runs tr[data-run]")
    page.check(f'[data-focus="pick {demo}"]')
    page.check(f'[data-focus="pick {third}"]')
    page.click("#runs-compare")
    page.wait_for_selector("#runs-differences th")
    for do in ("rename", "again"):
        act(page, demo, do)
        page.wait_for_selector('.panel [data-do="cancel"]')
        foreign = [words for words in english_in(labels_of(page)) if not re.search("better|small", words)]
        assert foreign == []
        page.click('.panel [data-do="cancel"]')
        page.wait_for_selector('.panel [data-do="cancel"]', state="detached")
    assert window.complaints == []
