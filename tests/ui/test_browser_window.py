"""The window in a real browser: how soon it is there, Settings by hand in both languages, a second page, the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from studio.machine.settings import read_settings
from studio.machine.workspace import open_workspace
from studio.ui.app import TABS
from tests.slowness import processor_slowness, slowness
from tests.ui.browser import CHROMIUM, FLAGS, PATIENCE_MS, wait_for
from tests.ui.launched_studio import has_torch, used_s

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TRIES = 10
"""So many at most, until the best of them is within the limits: other programs share the machine's two processors."""
FIRST_PAGE_S, REACTS_S, TAB_MS = 1.0, 4.0, 300
USED_S = 3.9
"""What launch.py and the window may use of a processor until a tab reacts. It is 2.9 s beside ten other programs, too;
there a time that is divided by the machine's slowness no longer tells half more from noise."""
TOKEN = "hf_canaryCANARY1234567890wxyz"
SWITCH = """(name) => new Promise((done) => {
  const begun = performance.now();
  document.getElementById(`tab-${name}-button`).click();
  const painted = (then) => requestAnimationFrame(() => requestAnimationFrame(then));
  const end = () => done(performance.now() - begun);
  const look = () => document.getElementById(`tab-${name}`)?.offsetParent ? painted(end) : requestAnimationFrame(look);
  look();
})"""


@contextmanager
def studio(folder: Path, *words: str, **variables: str):
    """Start launch.py as a person whose system sets `variables` does; yield the process and its workspace, end it."""
    workspace = open_workspace(str(folder / "workspace"))
    environment = dict(os.environ, XDG_CONFIG_HOME=str(folder / "config"), FINETUNE_STUDIO_LANGUAGE="en")
    environment |= {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring", **variables}
    (workspace.root / "address.json").unlink(missing_ok=True)
    command = [
        sys.executable,
        str(ROOT / "launch.py"),
        "--here",
        "--no-browser",
        "--workspace",
        str(workspace.root),
    ]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, *words], cwd=folder, env=environment, **quiet)
    try:
        yield process, workspace
    finally:
        process.terminate()
        process.wait(30)


def wait_for_address(workspace) -> str:
    until = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < until:
        try:
            return json.loads((workspace.root / "address.json").read_text(encoding="utf-8"))["url"]
        except (OSError, ValueError):
            time.sleep(0.01)
    raise AssertionError("no address")


@dataclass(frozen=True)
class Start:
    """From the start of launch.py to the first page and to a tab that reacts, the processor time of that, and each tab.

    Each as two quiet cores would have needed: divided by the slowness of the machine before or after, the lesser of
    both. A neighbour who comes or goes meanwhile spoils a try, and lets no slow window pass.
    """

    first_s: float
    reacts_s: float
    used_s: float
    tabs_ms: dict[str, float]

    def is_soon(self) -> bool:
        """Return whether everything is within its limit."""
        soon = self.first_s <= FIRST_PAGE_S and self.reacts_s <= REACTS_S and self.used_s <= USED_S
        return soon and max(self.tabs_ms.values()) <= TAB_MS


def measure_start(browser, folder: Path) -> Start:
    """Start the studio and go through its tabs."""
    slow, processor_slow = slowness(), processor_slowness()
    page = browser.new_context(viewport={"width": 1280, "height": 720}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    begun = time.monotonic()
    with studio(folder) as (process, workspace):
        # Not until it has loaded: while the page is read it fetches the app's files in advance.
        page.goto(wait_for_address(workspace), wait_until="commit")
        page.wait_for_selector("h1")
        first_s = time.monotonic() - begun
        page.wait_for_selector("#tab-settings-button", state="attached")
        page.evaluate(SWITCH, "settings")
        reacts_s = time.monotonic() - begun
        computed_s = used_s(process)
        assert not has_torch(process)
        page.wait_for_selector("body[data-ready]")
        page.wait_for_timeout(2000)
        switches: dict[str, float] = {}
        for name in TABS * 2:  # the second time everything of a tab has been made
            taken_ms = page.evaluate(SWITCH, name)
            switches[name] = min(taken_ms, switches.get(name, taken_ms))
            page.wait_for_timeout(300)
        page.context.close()
    slow, processor_slow = min(slow, slowness()), min(processor_slow, processor_slowness())
    print(
        f"first page {first_s:.2f} s, reacts {reacts_s:.2f} s, {computed_s:.2f} s computed, tabs {switches}"
    )
    print(f"slowness {slow:.2f}, of the processor {processor_slow:.2f}")
    tabs_ms = {name: taken_ms / slow for name, taken_ms in switches.items()}
    return Start(first_s / slow, reacts_s / slow, computed_s / processor_slow, tabs_ms)


def best_of(tries: list[Start]) -> Start:
    """Return the shortest of each time that was measured."""
    shortest = [min(getattr(one, name) for one in tries) for name in ("first_s", "reacts_s", "used_s")]
    return Start(*shortest, {name: min(one.tabs_ms[name] for one in tries) for name in TABS})


@pytest.mark.timeout(1800)  # a try takes 16 s on two quiet cores
def test_the_window_is_there_soon(chromium, tmp_path, record_property):
    tries = []
    # A browser of its own, as a double-click opens one: that of the other tests has shown hundreds of pages.
    with closing(chromium.browser_type.launch(executable_path=CHROMIUM, args=FLAGS)) as fresh:
        measure_start(fresh, tmp_path)  # fills the caches of the system and notes what a page is made of
        for _ in range(TRIES):
            tries.append(measure_start(fresh, tmp_path))
            best = best_of(tries)
            if best.is_soon():
                break
        else:
            pytest.fail(f"{best}, the best of {tries}")
    record_property("first_page_s", best.first_s)
    record_property("reacts_s", best.reacts_s)
    record_property("used_s", best.used_s)


def choose_by_key(page, place: str, key: str, value: str) -> None:
    """Choose in a list by `key` alone, and wait until the studio has it: its card is drawn anew."""
    page.focus(place)
    page.keyboard.press(key)
    page.wait_for_function(
        "([place, value]) => document.querySelector(place).value === value", arg=[place, value]
    )


def mend_by_key(page) -> None:
    """Press the fix button of what Home finds missing: the repair counts from the next start on."""
    page.wait_for_selector('[data-problem="bitsandbytes_override"] [data-do="fix"]')
    page.focus('#home-missing [data-do="fix"]')
    page.keyboard.press("Enter")
    page.wait_for_selector("#home-missing [data-do=restart]")


def read_doctor(page) -> None:
    """The repair that was made is listed and ticked; the report is copied by key, and can be read as JSON."""
    page.click("#tab-doctor-button")
    page.wait_for_selector("#doctor-repairs input:checked")
    page.wait_for_selector("#doctor-report .checks")
    page.focus("#doctor-copy")
    page.keyboard.press("Enter")
    page.wait_for_selector("#doctor-note .good")
    report = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert any(one["id"] == "bitsandbytes_override" and one["repaired"] for one in report["problems"])
    page.focus("#doctor-repairs input")
    page.keyboard.press("Space")
    page.wait_for_selector("#doctor-restart", state="visible")
    page.keyboard.press("Space")
    page.wait_for_selector("#doctor-restart", state="hidden")
    page.click("#doctor-again")
    page.wait_for_selector("#doctor-report .checks")


def test_settings_by_hand(chromium, tmp_path):
    settings = open_workspace(str(tmp_path / "workspace")).root / "settings.json"
    settings.write_text(json.dumps({"repairs_off": ["drop_bitsandbytes_version"]}), encoding="utf-8")
    with studio(tmp_path, BNB_CUDA_VERSION="118") as (process, workspace):
        context = chromium.new_context(viewport={"width": 1280, "height": 720}, color_scheme="light")
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: None if error.name == "AbortError" else errors.append(str(error)))
        page.goto(wait_for_address(workspace))
        page.wait_for_selector("body[data-ready]")
        mend_by_key(page)
        page.click("#tab-settings-button")
        page.wait_for_selector("#settings-quit")
        page.wait_for_function("document.querySelector('#settings-hub').innerText.includes('hub-token')")

        page.select_option("#settings-theme", "dark")
        page.wait_for_function("document.body.classList.contains('dark')")
        page.fill("#settings-token", TOKEN)
        page.press("#settings-token", "Enter")
        page.wait_for_selector(".held")
        assert "…wxyz" in page.inner_text(".held") and page.input_value("#settings-token") == ""
        assert TOKEN not in page.content()
        page.fill("#settings-folder", str(tmp_path))
        page.click("[data-do=add-folder]")
        page.wait_for_selector(".folders li")
        page.focus(".folders [data-do=drop-folder]")
        page.keyboard.press("Enter")
        page.wait_for_selector(".folders li", state="detached")
        page.fill("#settings-exports", str(tmp_path))
        page.click("[data-do=exports]")
        page.fill("#settings-mirror", "http://127.0.0.1:9")
        page.click("[data-do=mirror]")
        wait_for(lambda: read_settings(workspace).get("hub_endpoint") == "http://127.0.0.1:9")
        assert read_settings(workspace)["exports_folder"] == str(tmp_path)
        choose_by_key(page, "#settings-window", "ArrowDown", "tab")
        page.focus("#settings-offline")
        page.keyboard.press("Space")
        wait_for(lambda: read_settings(workspace).get("offline") is True)
        for button in ("[data-do=empty]", "[data-do=drop-token]"):
            page.click(button)
            page.keyboard.press("Escape")
            page.wait_for_selector("dialog", state="detached")
        assert page.is_visible(".held"), "Escape is no"
        page.click("[data-do=empty]")
        page.click("dialog .primary")
        page.wait_for_selector("#settings-folders .said:visible")
        page.select_option("#settings-kernels", "off")
        page.wait_for_selector("#settings-machine [data-do=restart]")
        assert page.input_value("#settings-memory_share") == "1", (
            "a field stays itself when its card is drawn anew"
        )

        page.click("#tab-hyperparameters-button")
        page.fill("#knob-optim-learning-rate input", "0.000321")
        page.press("#knob-optim-learning-rate input", "Tab")
        draft = workspace.root / "draft.json"
        wait_for(lambda: draft.exists() and "0.000321" in draft.read_text(encoding="utf-8"))
        page.click("#tab-settings-button")
        page.wait_for_selector("#settings-language")
        page.select_option("#settings-language", "zh-CN")
        page.wait_for_function("document.documentElement.lang === 'zh-CN'")
        page.wait_for_selector("#settings-quit")
        assert page.is_visible("#settings-body") and page.evaluate("document.body.classList.contains('dark')")
        page.click("#tab-hyperparameters-button")
        assert page.input_value("#knob-optim-learning-rate input") == "0.000321"

        page.click("#tab-settings-button")
        page.wait_for_selector("#settings-machine [data-do=restart]")
        page.click("#tab-home-button")
        page.evaluate("window.before = true")
        page.click("#home-missing [data-do=restart]")
        page.wait_for_selector("#home-missing .note.good")
        assert all(page.inner_text(f"#home-{part}") for part in ("machine", "starts", "runs"))
        page.wait_for_function("!window.before && document.body.dataset.ready", timeout=PATIENCE_MS)
        assert read_settings(workspace)["kernels"] == "off"
        page.click("#tab-settings-button")
        page.wait_for_selector("#settings-machine")
        assert not page.query_selector("#settings-machine [data-do=restart]")
        read_doctor(page)
        page.click("#tab-settings-button")
        page.click("[data-do=drop-token]")
        page.click("dialog .primary")
        page.wait_for_selector(".held", state="detached")
        assert not (tmp_path / "config" / "finetune-studio" / "hub-token").exists()

        other = context.new_page()
        other.goto(page.url)
        other.wait_for_selector("body[data-ready]")
        page.wait_for_selector(".second-window:not([hidden])")
        other.close()
        page.click('.second-window [data-part="hide"]')

        page.click("#settings-quit [data-do=quit]")
        page.wait_for_selector(".ended")
        assert process.wait(30) == 0
        assert not errors, errors
        context.close()
    for file in workspace.root.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file
