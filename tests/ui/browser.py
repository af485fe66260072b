"""The browser of the tests, a page on the running studio, and what such tests ask it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from studio.machine.workspace import Workspace
from studio.ui.shell.routes import STREAMS

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
PATIENCE_MS = 60_000
"""How long a page may take for anything: the machine may be busy, and a test that fails has told its reason by then."""
LOOK_MS = 2_000
"""How long a page may take to say what it shows."""
BEGINS, LEAVES = "a page begins", "a page leaves"
TELL = f"""if (window === top) {{
  console.debug("{BEGINS}");
  addEventListener("beforeunload", () => console.debug("{LEAVES}"));
}}"""
"""Runs before every script of a page: what it tells stands in one row with the errors that are its own."""
# Names that are the same in every language.
INTERNATIONAL = {
    "English",
    "Alpha",
    "rsLoRA",
    "DoRA",
    "LoRA",
    "AdamW",
    "Finetune Studio",
    "CPU",
    "demo",  # the run's name
    "apache-2.0",  # a licence as the hub names it
}


@contextmanager
def open_chromium() -> Iterator:
    """Run Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Window:
    """The running studio, a browser on it, and what the browser complained about."""

    url: str
    workspace: Workspace
    browser: object
    complaints: list[str] = field(default_factory=list)

    def open(self, language: str):
        """Return a page of a browser that speaks `language`, with the token already spent."""
        # Chinese goes with dark, so that what the tests do is done in both languages and in both looks.
        scheme = "dark" if language == "zh-CN" else "light"
        context = self.browser.new_context(
            viewport={"width": 1280, "height": 720}, locale=language, color_scheme=scheme
        )
        context.set_default_timeout(PATIENCE_MS)
        page = self.watch(context.new_page())
        page.goto(self.url)
        page.wait_for_selector("#tab-model-button")
        return page

    def watch(self, page):
        """Collect the page's errors and every request that leaves the machine."""
        leaving = False

        def hear(line) -> None:
            nonlocal leaving
            if line.text in (BEGINS, LEAVES):
                leaving = line.text == LEAVES
            elif is_error(line, leaving):
                self.complaints.append(line.text)

        page.add_init_script(TELL)
        page.on("console", hear)
        page.on(
            "pageerror",
            # Gradio's client ends its stream when a page goes; what its abort says reaches nobody.
            lambda error: None if error.name == "AbortError" else self.complaints.append(str(error)),
        )
        page.on(
            "request",
            lambda request: self.complaints.append(request.url) if is_foreign(request.url) else None,
        )
        return page


def describe_page(page) -> str:
    """Return what a page shows, and where its focus is: for the report of a test that failed."""
    from playwright.sync_api import Error

    words = """(body) => {
      const at = document.activeElement;
      return `${body.innerText}\\n\\nfocus: ${at.outerHTML.slice(0, 300)} ${at.value || ""}`;
    }"""
    try:
        return page.locator("body").evaluate(words, timeout=LOOK_MS)
    except Error as error:  # the page does not even answer that
        return str(error)


def is_error(line, leaving: bool = False) -> bool:
    """Return whether a console line is an error of the page, which is `leaving` until the next one begins.

    The splash page answers 503 until the app is there; connections end with it, and with a page that is left: Gradio's
    client ends its stream as soon as a page is to go. A page that asks what is new after that opens another stream; as
    soon as the server sees the end of the first it forgets the page, and cuts off the second ("404: Not Found").
    """
    ends = ("503", "ERR_CONNECTION", "ERR_SOCKET_NOT_CONNECTED", "AbortError", "Connection errored out")
    if leaving:
        ends += ("404", "TypeError: network error")
        ends += ("ERR_INCOMPLETE_CHUNKED_ENCODING",) if STREAMS[0] in line.location["url"] else ()
    return line.type == "error" and not any(end in line.text for end in ends)


def is_foreign(url: str) -> bool:
    """Return whether a request leaves this machine."""
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))


def wait_for(holds, seconds: float = PATIENCE_MS / 1000) -> None:
    """Wait until `holds()`."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.1)


def show_tab(page, name: str) -> None:
    page.click(f"#tab-{name}-button")
    page.wait_for_selector(f"#tab-{name}", state="visible")


def steps_shown(page) -> list[int]:
    """Return the steps that the charts hold."""
    return page.evaluate("document.querySelector('#run-charts .charts')?.steps() || []")


def wait_for_steps(page, count: int) -> None:
    page.wait_for_function(
        f"Number(document.querySelector('#run-charts .charts')?.dataset.points || 0) >= {count}"
    )


def wait_for_state(page, state: str, limit_s: float = 60) -> None:
    """Wait until the page says so; a failure tells what it says instead."""
    from playwright.sync_api import TimeoutError as TooLate

    try:
        page.wait_for_selector(f'#run-status .status[data-state="{state}"]', timeout=limit_s * 1000)
    except TooLate as error:
        shown = page.inner_text("#run-status") + page.inner_text("#run-problems")
        raise AssertionError(f"not {state}, but: {shown}") from error


def labels_of(page) -> list[str]:
    """Return the visible words of labels, buttons, headings, helps and placeholders."""
    return page.evaluate(
        """() => {
          const parts = "[data-testid=block-info], .info-text, button, h1, h2, h3, .lead, .card, .log, label";
          const seen = (query) => [...document.querySelectorAll(query)].filter((part) => part.offsetParent);
          // What a person's data say is in the data's language.
          const ours = seen(parts).filter((part) => !part.querySelector(":scope > [translate=no]"));
          const words = ours.map((part) => part.innerText);
          const hints = seen("[placeholder]").map((part) => part.placeholder);
          return [...words, ...hints].map((one) => one.trim()).filter(Boolean);
        }"""
    )


def english_in(words: list[str]) -> list[str]:
    """Return the texts that hold letters but no Chinese; names, addresses and folders apart."""
    return [
        one
        for one in words
        if re.search("[A-Za-z]{3}", one)
        and not re.search("[\u4e00-\u9fff]", one)
        and one not in INTERNATIONAL
        and not re.match("https?://|/", one)
    ]
