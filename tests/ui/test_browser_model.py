"""The Model screen and the Run card in a real browser: by keyboard and mouse, with a hub of the test's own."""

from __future__ import annotations

import json
import shutil
import threading
import time

import pytest

from studio.models.catalog import DEMO_MODEL
from studio.models.recommended_models import SIZES
from tests.hub.test_search import Hub
from tests.ui.browser import english_in, labels_of, show_tab

pytestmark = pytest.mark.slow

EVIL = '<img src=x onerror="window.caught=1">'


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on loopback that the studio takes for the real one, and empty caches."""
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    config = json.dumps(SIZES["0.5B"]).encode()
    server.add("org/Fine-0.5B", config=config, downloads=98_765)
    server.add(f"org/{EVIL}")
    server.add("org/Gated-fine", gated="manual")
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    monkeypatch.setenv("FINETUNE_STUDIO_OFFLINE", "0")
    for name in ("HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def shelf(tmp_path):
    """A folder with one good model and one of pickles."""
    folder = tmp_path / "shelf"
    shutil.copytree(DEMO_MODEL, folder / "mine" / "good")
    (folder / "old").mkdir()
    (folder / "old" / "config.json").write_text("{}", encoding="utf-8")
    (folder / "old" / "pytorch_model.bin").write_bytes(b"pickle")
    return folder


def source_of(window) -> str:
    """The model that the kept draft names."""
    path = window.workspace.root / "draft.json"
    return json.loads(path.read_text(encoding="utf-8"))["model"]["source"] if path.exists() else ""


def wait_for_draft(window, schedule: str) -> None:
    """Wait until the kept draft has this schedule."""
    until = time.monotonic() + 20
    while (
        json.loads((window.workspace.root / "draft.json").read_text(encoding="utf-8"))["optim"]["schedule"]
        != schedule
    ):
        assert time.monotonic() < until
        time.sleep(0.05)


def wait_for_card(page, words: str) -> None:
    """Wait until the Run card says `words`."""
    page.wait_for_function(
        "words => document.querySelector('#run-card-body')?.innerText.includes(words)", arg=words
    )


def test_model_and_card_by_keyboard_mouse_and_hub(start_studio, hub, shelf, tmp_path):  # noqa: F811
    workspace_settings = tmp_path / "workspace" / "settings.json"
    workspace_settings.write_text(json.dumps({"model_folders": [str(shelf)]}), encoding="utf-8")
    window = start_studio("en")
    page = window.open("en-US")
    show_tab(page, "model")
    row = page.locator(".model-row")
    page.wait_for_selector("section[data-section=picks]")
    assert "Demo model" in row.nth(0).inner_text() and "mine/good" not in page.inner_text("#run-card-body")
    assert row.nth(0).locator("input").is_checked()
    assert page.locator(".refused summary").inner_text().endswith("(1)")

    # Arrow keys choose, as in any group of radio buttons, and the focus stays where it is.
    row.nth(0).locator("input").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "document.querySelector('#model-card .card.model')?.dataset.source.endsWith('good')"
    )
    wait_for_card(page, "good")
    assert source_of(window) == str(shelf / "mine" / "good")
    assert page.evaluate("document.activeElement.value") == str(shelf / "mine" / "good")
    assert page.input_value("#model-source input").endswith("good")
    # The demo's own settings do not stay with another model, whichever screen is open.
    wait_for_draft(window, "cosine")

    # Typing filters without a word to the hub.
    page.fill("#model-filter", "smollm2 135")
    page.wait_for_function("document.querySelectorAll('.model-row:not([hidden])').length === 1")
    page.fill("#model-filter", "no such thing")
    page.wait_for_selector(".models .none", state="visible")
    page.keyboard.press("Enter")
    page.fill("#model-filter", "org")
    assert not hub.asked
    page.click("#model-search-hub")
    page.wait_for_selector("section[data-section=hub]")
    assert len(hub.queries) == 1
    assert page.locator("section[data-section=hub] .model-row:not([hidden])").count() == 2, (
        "ids alone are taken"
    )
    page.click(".model-row:has-text('Fine-0.5B')")
    page.wait_for_selector("#model-card .card.model[data-source='org/Fine-0.5B'] .fit.fits")
    wait_for_card(page, "Fine-0.5B")
    assert "1.2 KiB" in page.inner_text("#run-card-body [data-part=download]"), "as the hub counts it"
    page.click(".model-row:has-text('Gated-fine')")
    page.wait_for_selector("#model-card [data-do=ask]")
    page.click("#model-card [data-do=ask]")
    page.wait_for_selector(".toast-body")
    assert "login" in page.inner_text(".toast-body")
    assert page.evaluate("window.caught") is None

    # The demo again: its card is settled but for training, and leads on.
    page.fill("#model-filter", "")
    page.click(".model-row:has-text('Demo model')")
    page.wait_for_function(
        "document.querySelector('#run-card-body [data-done]')?.dataset.done.startsWith('model dataset')"
    )
    wait_for_card(page, "Ready to start")
    wait_for_draft(window, "linear")
    page.focus("#model-card [data-do=method][data-value=nf4]")
    page.keyboard.press("Enter")
    wait_for_card(page, "QLoRA")
    page.click("#model-card [data-do=method][data-value=none]")
    wait_for_card(page, "Ready to start")
    page.click("#run-card-next button:visible")
    page.wait_for_selector("#tab-dataset", state="visible")
    page.click("#run-card-next button:visible")
    page.wait_for_selector("#tab-hyperparameters", state="visible")

    # The card follows what is typed, the last of it included.
    box = page.locator("#knob-optim-learning-rate input").first
    box.click()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("0.0005", delay=15)
    page.keyboard.press("Tab")
    page.click("#run-card-body details[data-keep=recipe] summary")
    page.wait_for_function(
        "JSON.parse(document.querySelector('#run-card-recipe').textContent).optim.learning_rate === 0.0005"
    )
    assert page.evaluate("document.querySelector('#run-card-body details[data-keep=recipe]').open"), (
        "a fold stays"
    )
    with page.expect_download() as taken:
        page.click("[data-save-from=run-card-recipe]")
    assert json.loads(taken.value.path().read_text(encoding="utf-8"))["optim"]["learning_rate"] == 0.0005
    page.click("#run-card-next button:visible")
    page.wait_for_selector("#tab-training", state="visible")
    assert not page.locator("#run-card-next").is_visible()
    assert "done" in page.get_attribute("#tab-model-button", "class")

    # A telephone: nothing is wider than the page.
    page.set_viewport_size({"width": 390, "height": 800})
    show_tab(page, "model")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
    assert not window.complaints


def test_both_parts_speak_chinese(start_studio, hub):  # noqa: F811
    window = start_studio("zh-CN")
    page = window.open("zh-CN")
    show_tab(page, "model")
    page.wait_for_selector("section[data-section=picks]")
    page.wait_for_selector("#run-card-body .checks-list.good")
    own = page.evaluate(
        "[...document.querySelectorAll('#model-list h3, #model-card h4, #run-card-body h2, #run-card-body h3, "
        "#run-card-body dt, #run-card-body summary, #run-card-body button, #model-search button')]"
        ".map((part) => part.innerText)"
    )
    assert own and not english_in([words for words in own if words.strip()])
    assert labels_of(page) and not window.complaints
