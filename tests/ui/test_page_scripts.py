"""Scripts of the window alone, in a browser without a studio: what a press, a payload, a pause make of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from studio.core.text import load_catalogue, text
from studio.ui.chart import template
from studio.ui.points import Points, payload

pytestmark = pytest.mark.slow

ASSETS = Path(__file__).resolve().parents[2] / "assets"
ENGLISH = load_catalogue("en")
MOUNT = """([html, script]) => {
  document.body.innerHTML = html;
  window.said = [];
  window.props = { value: {} };
  window.element = document.getElementById("part");
  window.trigger = (event) => said.push({ ...props.value });
  window.watch = () => {};
  new Function(script)();
}"""
"""Does with a screen's script what Gradio does: its names are there, and it runs once its HTML is in the page."""


@pytest.fixture
def page(chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    yield page
    page.close()


def mount(page, html: str, script: str) -> None:
    page.evaluate(MOUNT, [html, (ASSETS / script).read_text(encoding="utf-8")])


def test_a_double_click_is_one_wish_and_a_button_that_is_off_stays_off(page):
    html = '<div id="screen"><div id="part"><i data-screen="#screen"></i></div><button data-do="go">go</button></div>'
    mount(page, html, "voice.js")
    page.dblclick("button")
    assert len(page.evaluate("said")) == 1
    page.evaluate(
        "document.querySelector('button').disabled = true"
    )  # by another script, for want of a choice
    page.wait_for_timeout(900)
    assert page.is_disabled("button")
    page.evaluate("document.querySelector('button').disabled = false")
    page.click("button")
    assert [one["number"] for one in page.evaluate("said")] == [1, 2]


def test_a_press_elsewhere_takes_the_focus_for_good(page):
    html = (
        '<div id="screen"><div id="part"><i data-screen="#screen"></i></div>'
        '<p>words</p><div id="card"><button data-do="go" data-focus="go">go</button></div></div>'
    )
    mount(page, html, "voice.js")
    drawn = "document.getElementById('card').innerHTML = document.getElementById('card').innerHTML"
    page.focus("button")
    page.evaluate(drawn)
    page.wait_for_function("document.activeElement.dataset.focus === 'go'")
    page.click("p")
    page.evaluate(drawn)
    page.keyboard.press("Space")
    assert page.evaluate("said") == []


def test_the_charts_keep_their_columns_while_a_run_grows(page):
    def say(id: str, **values: object) -> str:
        return ENGLISH.say(text(id, **values))

    for card in (False, True):
        mount(page, f'<div id="part">{template(say, "page")}</div>', "chart.js")
        points, shown, seen = Points(), {}, []
        for step in range(1, 9):
            page.evaluate(
                "(message) => studioRun.chart.take(message)", payload("a", 0, points, shown, card=card)
            )
            shown = page.evaluate("studioRun.chart.shown()")
            seen.append(page.evaluate("document.querySelector('.charts').classList.contains('without-card')"))
            points = points.add("step", step, step, 2.0, 1e-4, 1.0, 100.0, 0)
        assert set(seen) == {not card}


def test_the_title_tells_how_far_a_run_is_and_that_it_is_paused(page):
    html = '<button id="tab-settings-button"></button><div id="run-chip"></div>'
    page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto("http://studio.test/")  # a page without an address has no history to write into
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    page.evaluate("(script) => (0, eval)(script)()", script)
    page.wait_for_selector("body[data-ready]")
    titles = {"45%": "45% · Finetune Studio", "Paused": "Paused · Finetune Studio", "": "Finetune Studio"}
    for head, title in titles.items():
        chip = f'<span class="chip" data-state="x" data-head="{head}"></span>'
        page.evaluate("(html) => { document.getElementById('run-chip').innerHTML = html; }", chip)
        page.wait_for_timeout(50)
        assert page.title() == title


@pytest.mark.parametrize("button", ['<button data-do="restart">', '<button id="doctor-restart">'])
def test_a_page_comes_back_once_the_studio_that_starts_anew_answers(page, button):
    answers = iter([204, 503, 429, 503])

    def answer(route) -> None:
        ready = route.request.url.endswith("/ready")
        route.fulfill(status=next(answers, 401) if ready else 200, content_type="text/html", body=button)

    page.route("**/*", answer)
    page.goto("http://127.0.0.1:9/")
    page.evaluate((ASSETS / "page.js").read_text(encoding="utf-8"))
    with page.expect_navigation():
        page.click("button")
    assert next(answers, None) is None, "it was there, away, busy, away, and asks to log in"


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/", "http://studio.example/"])
def test_words_are_copied_on_a_page_with_and_without_a_clipboard_of_its_own(page, address):
    html = (
        '<button id="held" data-copy="a link" data-copied="copied">copy</button>'
        '<pre id="part">a recipe</pre><button data-copy-from="part" data-copied="copied">copy</button>'
        '<button data-save-from="part" data-name="recipe.json">save</button>'
        '<textarea id="paste"></textarea>'
    )
    page.route("**/*", lambda route: route.fulfill(content_type="text/html", body=html))
    page.goto(address)
    assert page.evaluate("isSecureContext") == ("127" in address)
    page.evaluate("window.studio = {}")
    page.evaluate((ASSETS / "copies.js").read_text(encoding="utf-8"))
    for button, words in (("#held", "a link"), ("[data-copy-from]", "a recipe")):
        page.click(button)
        page.wait_for_function(
            "(button) => document.querySelector(button).innerText === 'copied'", arg=button
        )
        page.fill("#paste", "")
        page.focus("#paste")
        page.keyboard.press("Control+V")
        assert page.input_value("#paste") == words
    page.evaluate(
        "document.execCommand = () => false; if (navigator.clipboard) navigator.clipboard.writeText = null"
    )
    page.wait_for_function("document.querySelector('#held').innerText === 'copy'")
    assert page.evaluate("window.studio.copy('x')") is False
    with page.expect_download() as taken:
        page.click("[data-save-from]")
    assert taken.value.suggested_filename == "recipe.json"
    assert taken.value.path().read_text(encoding="utf-8") == "a recipe"
