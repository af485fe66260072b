"""The Hyperparameters screen in a real browser: goals, filter, badges, presets, and a draft that nothing loses."""

from __future__ import annotations

import json
import os
import signal

import pytest

from studio.core.recipe import AdapterSpec, DatasetSpec, ModelChoice, Recipe
from studio.engine.run_folder import create_run
from tests.ui.browser import (
    show_tab,
    wait_for,
)

pytestmark = pytest.mark.slow

RATE, RANK = "#knob-optim-learning-rate", "#knob-adapter-rank"


def settings_of(page) -> None:
    """Open the screen and wait until it is drawn."""
    show_tab(page, "hyperparameters")
    page.wait_for_selector(f"{RANK}[data-dressed]")
    page.wait_for_function("document.querySelector('#preset-pick').options.length > 1")


def wait_for_value(page, field: str, value: str) -> None:
    page.wait_for_function(
        "([field, value]) => document.querySelector(`${field} input`)?.value === value", arg=[field, value]
    )


def wait_for_problem(page, field: str, words: str) -> None:
    page.wait_for_function(
        "([field, words]) => document.querySelector(`${field} .knob-problem`)?.textContent.includes(words)",
        arg=[field, words],
    )


def shown(page) -> list[str]:
    """Return the ids of the fields on show."""
    return page.eval_on_selector_all(
        "#tab-hyperparameters [data-dressed]", "parts => parts.filter((p) => p.offsetParent).map((p) => p.id)"
    )


def typed(window) -> dict:
    return json.loads((window.workspace.root / "draft.typed.json").read_text(encoding="utf-8"))


def draft(window) -> dict:
    return json.loads((window.workspace.root / "draft.json").read_text(encoding="utf-8"))


def choose_by_mouse(page, control: str, choice: str) -> None:
    """Choose in one of the plain controls; its button is the label around an unseen radio."""
    page.click(f"label:has(> [name=plain-{control}][value={choice}])")
    page.wait_for_selector(f"[name=plain-{control}][value={choice}]:checked")


def apply_preset(page, id: str) -> None:
    """Choose a preset by its id, and apply it by key."""
    page.select_option("#preset-pick", id)
    page.wait_for_selector(f"#preset-apply[data-value='{id}']")
    page.focus("#preset-apply")
    page.keyboard.press("Enter")
    page.wait_for_selector("#settings-note .done")


def test_settings_are_chosen_found_reset_and_never_lost(start_studio, workspace, tmp_path):  # noqa: F811
    spec = {"model": ModelChoice(source="demo"), "data": DatasetSpec(source="demo")}
    earlier = create_run(workspace.runs, Recipe(name="earlier", adapter=AdapterSpec(rank=24), **spec)).run
    window = start_studio("en")
    page = window.open("en")
    settings_of(page)

    # The three plain controls by mouse, and all settings back to what they come with: no is no.
    choose_by_mouse(page, "length", "quick")
    choose_by_mouse(page, "strength", "strong")
    choose_by_mouse(page, "room", "save")
    wait_for(lambda: draft(window)["adapter"]["rank"] > 8)
    page.click("#settings-reset")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.is_checked("[name=plain-strength][value=strong]")
    page.focus("#settings-reset")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#settings-count').innerText.startsWith('0 ')")
    page.click("#settings-undo")
    page.wait_for_selector("[name=plain-strength][value=strong]:checked")
    choose_by_mouse(page, "length", "balanced")
    choose_by_mouse(page, "strength", "normal")
    choose_by_mouse(page, "room", "auto")

    # A goal by keyboard, what it sets, and the way back.
    page.wait_for_selector("[name=plain-goal][value=format]:checked")  # what the demo learns
    page.focus("[name=plain-goal][value=format]")
    page.keyboard.press("ArrowLeft")
    wait_for_value(page, RANK, "64")
    assert "Epochs 5" in page.inner_text("#settings-plain .sets summary")
    page.click("#settings-undo")
    wait_for_value(page, RANK, "8")
    page.wait_for_selector("[name=plain-goal][value=format]:checked")

    # Typed, chosen, stepped and pasted: each is marked, judged and kept.
    page.fill(f"{RANK} input", "9")
    page.wait_for_selector(f"{RANK} .knob-badge:visible")
    page.wait_for_function("!document.querySelector('[name=plain-strength]:checked')")
    page.click(f"{RANK} .knob-useful button:has-text('64')")
    page.press(f"{RANK} input", "ArrowDown")
    wait_for_value(page, RANK, "32")
    page.fill(f"{RANK} input", "2,5")
    wait_for_problem(page, RANK, "whole numbers")
    assert page.get_attribute(f"{RANK} input", "aria-invalid") == "true"
    page.focus(f"{RANK} input")
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("5000")  # as a paste or an input method does it: without keys
    wait_for_problem(page, RANK, "1024")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.wait_for_function(f"document.querySelector('{RANK} .knob-problem').hidden")
    wait_for(lambda: draft(window)["adapter"]["rank"] == 50)
    page.click(f"{RANK} .knob-badge")
    wait_for_value(page, RANK, "16")
    page.wait_for_selector(f"{RANK} .knob-badge", state="hidden")

    # The filter looks everywhere, also on other tabs; "changed" shows those alone.
    assert "knob-optim-beta1" not in shown(page)
    page.fill("#settings-filter", "warm")
    page.wait_for_selector("#knob-optim-warmup-steps", state="visible")
    page.wait_for_function("!document.querySelector('#knob-adapter-rank').offsetParent")
    assert shown(page) == ["knob-optim-warmup-steps", "knob-optim-warmup-share"]
    page.click("#knob-optim-warmup-steps .knob-help")
    assert "optim.warmup_steps" in page.inner_text("#knob-optim-warmup-steps .knob-more")
    page.fill("#settings-filter", "Rows in one stream")
    page.click("#settings-elsewhere button:has-text('Rows in one stream')")
    page.wait_for_function("document.activeElement.closest('#knob-data-packing')")
    show_tab(page, "hyperparameters")
    page.fill("#settings-filter", "")
    page.click("#settings-changed")
    page.wait_for_function("!document.querySelector('#knob-adapter-rank').offsetParent")
    assert "knob-optim-learning-rate" in shown(page)
    page.click("#settings-changed")

    # A preset tells what it would change; a recipe leaves and comes back, with its slips named.
    page.select_option("#preset-pick", "built_in:low_memory")
    page.wait_for_selector(".differences th:has-text('Optimizer')")
    assert draft(window)["optim"]["optimizer"] == "adamw"
    page.click("#preset-apply")
    wait_for_value(page, RANK, "8")
    page.fill("#preset-name", "<b>mine</b>")
    page.click("#preset-save")
    page.wait_for_selector("#preset-pick option:has-text('<b>mine</b>')", state="attached")
    mine = page.get_attribute("#preset-pick option:has-text('<b>mine</b>')", "value")
    apply_preset(page, f"run:{earlier}")
    wait_for_value(page, RANK, "24")
    apply_preset(page, mine)
    wait_for_value(page, RANK, "8")
    page.select_option("#preset-pick", "built_in:facts")
    page.click("#preset-leave")
    page.wait_for_selector(".differences", state="detached")
    page.select_option("#preset-pick", mine)
    page.click("#preset-delete")
    page.click("dialog .primary")
    page.wait_for_selector("#preset-pick option:has-text('<b>mine</b>')", state="detached")
    with page.expect_download() as download:
        page.click("#settings-export")
    recipe = json.loads(download.value.path().read_text(encoding="utf-8"))
    kept, recipe["adapter"]["rank"] = recipe["adapter"]["rank"], 48
    (tmp_path / "good.json").write_text(json.dumps(recipe), encoding="utf-8")
    page.set_input_files("#settings-file", tmp_path / "good.json")
    page.click("#preset-apply")
    wait_for_value(page, RANK, "48")
    page.click("#settings-undo")
    wait_for_value(page, RANK, str(kept))
    recipe["adapter"]["rnak"] = recipe["adapter"].pop("rank")
    (tmp_path / "slip.json").write_text(json.dumps(recipe), encoding="utf-8")
    page.set_input_files("#settings-file", tmp_path / "slip.json")
    page.wait_for_selector("#settings-presets .problems:has-text('rnak')")

    # What is typed by half outlives a reload and a killed studio; what is typed at once after loading stays.
    page.fill(f"{RATE} input", "3e-")
    wait_for_problem(page, RATE, "3e-")
    assert typed(window)["optim.learning_rate"] == "3e-"
    page.reload()
    settings_of(page)
    assert (page.input_value(f"{RATE} input"), page.input_value(f"{RANK} input")) == ("3e-", "8")
    wait_for_problem(page, RATE, "3e-")
    page.evaluate("window.studio.go('hyperparameters')")
    page.fill("#settings-filter", "seed")
    page.wait_for_selector("#knob-seed", state="visible")
    page.fill("#knob-seed input", "77")
    wait_for(lambda: draft(window)["seed"] == 77)  # half a second on a machine that does nothing else
    address = window.workspace.root / "address.json"
    pid = json.loads(address.read_text(encoding="utf-8"))["pid"]
    page.context.close()
    os.kill(pid, signal.SIGKILL)
    address.unlink()

    window = start_studio("zh-CN")
    page = window.open("zh-CN")
    settings_of(page)
    page.fill(f"{RANK} input", "12")
    assert page.input_value(f"{RATE} input") == "3e-"
    page.click("#settings-check")
    page.wait_for_selector("#settings-problems .problems")
    wait_for_problem(page, RATE, "3e-")
    page.wait_for_function("document.querySelector('#knob-adapter-rank input').value === '12'")
    wait_for(lambda: draft(window)["adapter"]["rank"] == 12)
    assert draft(window)["seed"] == 77
    assert window.complaints == []
