"""Scripts of the window alone, in a browser without a studio: what a press, a payload, a pause make of a page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from studio.core.events import Metric
from studio.core.i18n import literal, load_catalogue, text
from studio.ui.metric_columns import Points, label_metrics, payload
from studio.ui.number_input import read_number
from studio.ui.run_state import LiveView, LogLine
from studio.ui.shell.scripts import read_script
from studio.ui.style import style_sheets
from studio.ui.tabs.training.cards import log_card
from studio.ui.tabs.training.charts import SERIES, template
from studio.ui.templates import render

pytestmark = pytest.mark.slow

ASSETS = Path(__file__).resolve().parents[2] / "assets"
ENGLISH = load_catalogue("en")
MOUNT = """([html, script, value]) => {
  document.body.innerHTML = html;
  window.said = [];
  window.props = { value };
  window.element = document.getElementById("part");
  window.trigger = (event) => said.push({ ...props.value });
  window.watch = (name, take) => { window.send = (value) => { props.value = value; take(); }; };
  new Function(script)();
}"""
"""Does with a screen's script what Gradio does: its names are there, and it runs once its HTML is in the page."""


FACT = {
    "id": "field", "path": "x", "label": "x", "range": "", "normal": "", "search": "", "tab": "model", "useful": [],
    "number": True, "low": -1e9, "high": 1e9, "step": 1,
}  # fmt: skip
"""What settings_form.js is told of one field."""


@pytest.fixture
def page(chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    yield page
    page.close()


def mount(page, html: str, script: str, value: dict | None = None) -> None:
    page.evaluate(MOUNT, [html, read_script(script), value or {}])


def test_a_double_click_is_one_wish_and_a_button_that_is_off_stays_off(page):
    html = '<div id="screen"><div id="part"><i data-screen="#screen"></i></div><button data-do="go">go</button></div>'
    mount(page, html, "shell/html_events.js")
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


@pytest.mark.parametrize(
    ("script", "screen"),
    [
        ("shell/html_events.js", "screen"),
        ("tabs/dataset/script.js", "tab-dataset"),
        ("tabs/runs/script.js", "tab-runs"),
    ],
)
def test_a_press_elsewhere_takes_the_focus_for_good(page, script, screen):
    html = (
        f'<div id="{screen}"><div id="part"><i data-screen="#screen"></i><div class="overlay"><ul class="curves"></ul>'
        '</div></div><p>words</p><input id="runs-search"><div id="card">'
        '<button data-do="go" data-focus="go" onclick="pressed = true">go</button></div></div>'
    )
    mount(page, html, script)
    drawn = "document.getElementById('card').innerHTML = document.getElementById('card').innerHTML"
    page.focus("button")
    page.evaluate(drawn)
    page.wait_for_function("document.activeElement.dataset.focus === 'go'")
    page.click("p")
    page.evaluate(drawn)
    page.wait_for_timeout(50)
    page.keyboard.press("Space")
    assert page.evaluate("[said, window.pressed]") == [[], None]
    assert page.evaluate("document.activeElement === document.body")


def test_escape_closes_what_is_open_before_it_stops_an_answer(page):
    html = (
        '<div id="screen"><div id="part"><i data-screen="#screen"></i></div>'
        '<button data-do="stop" onclick="stopped = (window.stopped || 0) + 1">stop</button><div id="open"></div></div>'
    )
    page.evaluate("window.studio = {}")
    mount(page, html, "shell/escape_stops.js")
    page.keyboard.press("Escape")
    assert page.evaluate("stopped") == 1
    for over in (
        "<dialog>sure?</dialog>",
        '<button class="toast-close" onclick="this.remove()"></button>',
        """<input aria-expanded="true" onkeydown="this.setAttribute('aria-expanded', 'false')">""",
        '<p tabindex="0" onkeydown="event.preventDefault(); this.remove()"></p>',
    ):
        page.evaluate("(over) => { document.getElementById('open').innerHTML = over; }", over)
        page.evaluate("document.querySelector('dialog')?.showModal()")
        page.evaluate("document.querySelector('#open :is(input, p)')?.focus()")
        page.keyboard.press("Escape")
        assert page.evaluate("stopped") == 1, over
        page.wait_for_function("!document.querySelector('dialog[open], #open [aria-expanded=true], #open p')")
    page.evaluate("document.getElementById('open').replaceChildren()")
    page.keyboard.press("Escape")
    assert page.evaluate("stopped") == 2


RUNS = """<div id="run-chip"></div><div id="tab-runs"><div id="part"><div class="overlay"><ul class="curves"></ul></div>
</div><span id="runs-ticked" data-help="help" data-count="{count} ticked"></span><input id="runs-search">
<button id="runs-compare"></button><div class="runs"><i class="pick"><input type="checkbox" value="a"></i></div>
<div class="panel"><button data-do="delete" data-value="a" data-confirm="sure?">delete</button>
<button data-do="cancel" onclick="cancelled = true">cancel</button></div></div>"""


def test_a_run_that_ends_while_nobody_looks_is_shown_when_the_window_is(page):
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.away, configurable: true })")
    mount(page, RUNS, "tabs/runs/script.js")
    look = "(away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(look, True)
    page.evaluate("document.getElementById('run-chip').textContent = 'finished'")
    page.wait_for_timeout(500)
    assert page.evaluate("said.length") == 0
    page.evaluate(look, False)
    page.wait_for_function("said.length === 1")
    page.evaluate(look, False)
    page.wait_for_timeout(500)
    assert page.evaluate("said.length") == 1, "nothing is due any more"


def test_a_tick_goes_with_its_run_and_not_with_a_question(page):
    mount(page, RUNS, "tabs/runs/script.js")
    page.check(".pick input")
    page.click('[data-do="delete"]')
    assert page.inner_text("#runs-ticked") == "1 ticked"
    page.evaluate("send({ runs: [], gone: 'a' })")
    assert page.inner_text("#runs-ticked") == "help"


def test_escape_in_a_row_of_runs_lets_a_message_go_first(page):
    mount(page, RUNS, "tabs/runs/script.js")
    page.focus('[data-do="delete"]')
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b class=toast-close></b>')")
    page.keyboard.press("Escape")
    assert page.evaluate("window.cancelled") is None
    page.evaluate("document.querySelector('.toast-close').remove()")
    page.keyboard.press("Escape")
    assert page.evaluate("cancelled")


@pytest.mark.parametrize("whole", [True, False])
def test_arrows_start_from_the_number_that_the_server_reads(page, whole):
    """A step in a field of thousands, of halves, of full-width digits; what is no number stays as it is."""
    fact = FACT | {"whole": whole}
    html = '<div id="part"></div><div id="field"><input></div>'
    mount(page, html, "field_badges.js", {"facts": [fact], "words": {}, "tabs": {}})
    for raw in (
        "1,000",
        "1.000",
        "0,500",
        "0.100",
        "1 000",
        "２，５",
        "1.000,5",
        "1,000.5",
        "1e3",
        "−1",
        "1e-",
        "",
    ):
        page.fill("#field input", raw)
        page.press("#field input", "ArrowUp")
        number, now = read_number(raw, whole=whole), page.input_value("#field input")
        assert now == raw if number is None else float(now) == pytest.approx(number + 1), raw


def say(id: str, **values: object) -> str:
    return ENGLISH.say(text(id, **values))


def mount_styled(page, html: str, script: str) -> None:
    """Mount with the window's sheets: a plot is as large as they say."""
    page.add_style_tag(content="".join(sheet.read_text(encoding="utf-8") for sheet in style_sheets()))
    mount(page, html, script)


def test_the_charts_keep_their_columns_while_a_run_grows(page):
    for card in (False, True):
        mount(page, f'<div id="part">{template(say, "page")}</div>', "tabs/training/chart.js")
        points, shown, seen = Points(), {}, []
        for step in range(1, 9):
            page.evaluate(
                "(message) => studioRun.chart.take(message)", payload("a", 0, points, shown, card=card)
            )
            shown = page.evaluate("studioRun.chart.shown()")
            seen.append(page.evaluate("document.querySelector('.charts').classList.contains('without-card')"))
            points = points.add("step", step, step, 2.0, 1e-4, 1.0, 100.0, 0)
        assert set(seen) == {not card}


def test_each_metric_of_a_run_is_a_chart_of_its_own(page):
    mount_styled(page, f'<div id="part">{template(say, "page")}</div>', "tabs/training/chart.js")
    declared = [
        Metric(name="plain_loss", better="lower"),
        Metric(name="preferred", unit="share", better="higher", first=True),
    ]
    metrics = label_metrics(declared, lambda text: text.id.removeprefix("metric."))
    points, shown = Points(), {}
    for step in range(1, 6):
        for number, value in enumerate((2.5, step / 10)):
            points = points.add("metric", step, step, number, value, 0)
        points = points.add("metric", step, step, 1, 0.75, 1).add(
            "step", step, step, 2.0, 1e-4, 1.0, 100.0, 0
        )
        page.evaluate(
            "(message) => studioRun.chart.take(message)", payload("a", 0, points, shown, metrics=metrics)
        )
        shown = page.evaluate("studioRun.chart.shown()")
    charts = "[...document.querySelectorAll('figure[data-metric]')]"
    page.wait_for_function(
        f"{charts}.length === 2 && {charts}.every((one) => one.querySelector('output').textContent)"
    )
    told = page.evaluate(
        f"{charts}.map((one) => [one.dataset.metric, one.querySelector('output').textContent])"
    )
    assert told == [["preferred", "50 %"], ["plain_loss", "2.5"]]
    series = page.evaluate("[...document.querySelectorAll('figure')].map((one) => one.dataset.series)")
    assert series[:2] == ["metric 1", "loss"], "what says more than the loss stands before it"
    page.evaluate("(message) => studioRun.chart.take(message)", payload("b", 0, Points(), {}))
    assert page.evaluate(f"{charts}.length") == 0, "another run has none"


PICTURE = "(name) => document.querySelector(`[data-series=${name}] canvas`)?.toDataURL() ?? null"
LABELS = "[...document.querySelectorAll('.charts [role=img]')].map((one) => one.getAttribute('aria-label'))"


def test_a_chart_says_what_it_shows_and_has_a_picture_of_what_is_known(page):
    """A gap, noughts under a logarithm, no card; other colours and another width have it drawn anew."""
    mount_styled(page, f'<div id="part">{template(say, "page")}</div>', "tabs/training/chart.js")
    points = Points()
    for step in range(1, 41):
        grad_norm = math.nan if step in (7, 40) else 1.0 + step / 40
        points = points.add(
            "step", step, step, 4 / step, 0.0 if step < 3 else 1e-4 / step, grad_norm, 900.0, 0
        )
    points = points.add("eval", 20, 20, 0.5).add("eval", 40, 40, 0.25)
    page.evaluate("(message) => studioRun.chart.take(message)", payload("a", 0, points, {}))
    empty = say("ui.chart.empty.gpu")
    page.wait_for_function(f"{LABELS}.filter((one) => one.endsWith({empty!r})).length === 2")
    names = [say(f"ui.chart.{name}") for name in SERIES]
    values = ("0.1", "2.5e-6", "1.98", "900", empty, empty)
    assert page.evaluate(LABELS) == [f"{name}: {value}" for name, value in zip(names, values, strict=True)]
    assert page.evaluate(PICTURE, "gpu_memory") is None
    assert page.locator(".keys:visible").count() == 1, "training and validation, where there are both"

    pictures = [page.evaluate(PICTURE, "learning_rate")]
    for change in (
        "document.querySelector('[name=log]').click()",
        "document.body.classList.add('dark')",
        "document.getElementById('part').style.width = '700px'",
    ):
        page.evaluate(change)
        page.wait_for_timeout(200)
        pictures.append(page.evaluate(PICTURE, "learning_rate"))
    assert len(set(pictures)) == len(pictures)
    page.hover("[data-series=loss] [role=img]", position={"x": 60, "y": 60})
    page.wait_for_function("document.querySelector('[data-series=loss] output').textContent.includes('step')")
    said = page.locator(".charts output").all_inner_texts()
    assert len({one.split(" · ")[0] for one in said[:4]}) == 1, "one pointer for all charts"
    page.mouse.move(1, 1)
    page.evaluate("(message) => studioRun.chart.take(message)", payload("b", 0, Points(), {}))
    page.wait_for_function("!document.querySelector('.charts canvas')")
    assert page.evaluate(LABELS)[0] == f"{names[0]}: {say('ui.chart.empty.run')}"
    assert page.locator(".keys:visible").count() == 0


def test_compared_runs_have_letters_at_their_ends_and_values_under_the_pointer(page):
    """Each curve's value nearest to the pointer, a run without evaluations and steps that others lack included."""
    overlay = '<div class="overlay"><ul class="curves"></ul></div>'
    mount_styled(page, RUNS.replace(overlay, render("tabs/runs/overlay.html", say)), "tabs/runs/script.js")
    long = [[step, 3.0 if step % 2 else 1.0] for step in range(1, 201)]
    short = [[10 * step, step / 4 or None] for step in range(5)]
    runs = [
        {"run": "a", "name": "long", "loss": long, "eval": []},
        {"run": "b", "name": "short", "loss": short, "eval": [[20, 0.5], [40, 0.25]]},
    ]
    page.evaluate("(runs) => send({ runs })", runs)
    page.wait_for_selector(".overlay canvas")
    labels = page.locator(".overlay [role=img]").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
    assert [label.split(": ")[1] for label in labels] == ["A long 1; B short 1", "B short 0.25"]
    loss, judged = (page.locator(f".overlay [data-kind={kind}]") for kind in ("loss", "eval"))
    assert loss.locator(".end").all_inner_texts() == ["A", "B"] and judged.locator(
        ".end"
    ).all_inner_texts() == ["B"]
    ends = [end.bounding_box()["x"] for end in loss.locator(".end").all()]
    plot = loss.locator("[role=img]").bounding_box()
    assert ends[1] < plot["x"] + plot["width"] / 2 < ends[0], "each where its curve ends"
    page.mouse.move(plot["x"] + plot["width"] - 40, plot["y"] + 100)
    tip = loss.locator(".tip").inner_text().split("\n")
    assert tip[0].startswith("step 1") and tip[1] in ("A  3", "A  1") and tip[2] == "B  1"
    assert judged.locator(".tip").is_hidden()
    page.mouse.move(1, 1)
    assert loss.locator(".tip").is_hidden()


def open_window(page, html: str) -> None:
    """Open a page with `html`, the buttons of some tabs, and page.js."""
    html += "".join(
        f'<button id="tab-{name}-button"></button>' for name in ("training", "runs", "chat", "settings")
    )
    page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto("http://studio.test/")  # a page without an address has no history to write into
    script = read_script("shell/page.js")
    page.evaluate("(script) => (0, eval)(script)()", script)
    page.wait_for_selector("body[data-ready]")


def test_the_way_to_a_field_ends_in_the_field_itself(page):
    """Not at the help above it; a field in a fold is made when the fold is first opened."""
    filled = "this.nextElementSibling.innerHTML = document.querySelector('template').innerHTML"
    field = '<div id="knob"><button class="knob-help">?</button><input hidden><input id="typed"></div>'
    open_window(
        page,
        f'<template>{field}</template><div id="tab-settings"><div>'
        f'<button class="label-wrap" onclick="this.classList.add(`open`); {filled}"></button>'
        '<div></div></div></div><button data-go="settings" data-mark="knob" id="show">Show it</button>',
    )
    page.click("#show")
    page.wait_for_selector("#knob.marked")
    assert page.evaluate("document.activeElement.id") == "typed"


def test_a_run_goes_along_to_the_tabs_that_take_one(page):
    tabs = {"runs": "", "chat": "one"}
    open_window(
        page, "".join(f'<button data-go="{tab}" data-run-choice="one">{tab}</button>' for tab in tabs)
    )
    for tab, taken in tabs.items():
        page.click(f"[data-go={tab}]")
        assert page.evaluate("studio.takeRun()") == taken
    assert page.evaluate("studio.takeRun()") == "", "once"
    page.evaluate("window.studioRun = { show: (run) => { window.shown = run; } }")
    page.evaluate("studio.go('training', 'two')")
    assert page.evaluate("shown") == "two" and page.evaluate("studio.takeRun()") == ""


def test_the_title_tells_how_far_a_run_is_and_that_it_is_paused(page):
    open_window(page, '<div id="run-chip"></div><i id="page-words" data-silent="No answer"></i>')
    titles = {"45%": "45% · Finetune Studio", "Paused": "Paused · Finetune Studio", "": "Finetune Studio"}
    for head, title in titles.items():
        chip = f'<span class="chip" data-state="x" data-head="{head}"></span>'
        page.evaluate("(html) => { document.getElementById('run-chip').innerHTML = html; }", chip)
        page.wait_for_timeout(50)
        assert page.title() == title
    page.evaluate("document.body.dataset.away = 'yes'")
    page.wait_for_function("document.title === 'No answer · Finetune Studio'")


RUN_ANSWER = {
    "run": "old",
    "active": "",
    "chip": {},
    "state": "",
    "ended": None,
    "points": None,
    "parts": {},
    "marks": {},
}


def watch_run(page, address: str = "", parts: str = "") -> None:
    """Open a page at `address` with the places of a run, and run.js, whose questions are in `asked`.

    They are answered with `answer`; like a studio that is away as long as that is null.
    """
    page.route("**/*", lambda route: route.fulfill(body="<body></body>", content_type="text/html"))
    page.goto(f"http://studio.test/{address}")  # a page without an address has no words behind it
    page.evaluate(
        """(answer) => {
          window.asked = [];
          window.answer = answer;
          window.server = {
            look: async (shown) => { asked.push(structuredClone(shown)); return window.answer || undefined; },
          };
        }""",
        RUN_ANSWER,
    )
    mount(page, f'<div id="part"></div>{parts}', "tabs/training/run.js")


def answer_run(page, **changes: object) -> None:
    """Answer run.js's next question with `changes`, and wait until it has taken it."""
    page.evaluate(
        "(answer) => { window.answer = answer; asked.length = 0; studioRun.look(); }", RUN_ANSWER | changes
    )
    page.wait_for_function("asked.length > 0")
    page.wait_for_timeout(20)


def test_a_reload_asks_for_the_run_of_the_address(page):
    """Of this tab: another tab's run gives way to the one that is on."""
    for address, known in (("?tab=training&run=old", None), ("?tab=chat&run=old", "")):
        watch_run(page, address)
        page.wait_for_function("asked.length > 0")
        first = page.evaluate("asked[0]")
        assert (first["run"], first["active"], first["chip"]) == ("old", known, {})
        page.evaluate("location.href = 'about:blank'")
        page.wait_for_url("about:blank")


def test_the_end_of_each_run_is_told_where_nobody_looks(page):
    watch_run(page)
    page.evaluate(
        """() => {
          window.told = [];
          window.Notification = function (title, { body, tag }) { told.push([title, body, tag]); };
          window.Notification.permission = "granted";
          Object.defineProperty(document, "hidden", { get: () => true });
        }"""
    )
    for run in ("a", "b"):
        answer_run(page, ended={"run": run, "name": f"run {run}", "words": "Finished"})
        answer_run(page)
    assert page.evaluate("told") == [["Finished", "run a", "a"], ["Finished", "run b", "b"]]


def test_a_studio_that_stopped_answering_is_told_once_until_it_answers(page):
    page.clock.install()
    watch_run(page, parts='<p id="studio-away" role="status" data-words="no answer"></p>')
    page.evaluate(
        """() => {
          const place = document.getElementById("studio-away");
          window.told = [];
          new MutationObserver(() => told.push(place.textContent)).observe(place, { childList: true });
        }"""
    )
    page.clock.run_for(12_000)
    assert page.evaluate("told") == []
    page.evaluate("window.answer = null")
    page.clock.run_for(8_000)
    assert page.evaluate("told") == [], "a busy moment is not told of"
    page.clock.run_for(20_000)
    assert page.evaluate("told") == ["no answer"] and page.get_attribute("body", "data-away") == "yes"
    page.evaluate("(answer) => { window.answer = answer; }", RUN_ANSWER)
    page.clock.run_for(2_000)
    assert page.evaluate("told") == ["no answer", ""] and page.get_attribute("body", "data-away") == "no"


def test_a_page_that_nobody_touches_says_so_and_comes_back_when_it_is_told_to(page):
    page.clock.install()
    watch_run(page)
    page.evaluate("window.back = 0; window.studio = { returnLater: () => { window.back += 1; } }")
    rest = "asked[asked.length - 1].rest_s"
    page.clock.run_for(30_000)
    assert page.evaluate(rest) > 25
    page.mouse.move(20, 20)
    page.clock.run_for(2_000)
    assert page.evaluate(rest) < 5
    assert page.evaluate("back") == 0
    page.evaluate("(answer) => { window.answer = answer; }", RUN_ANSWER | {"renews": True})
    page.clock.run_for(1_500)
    assert page.evaluate("back") >= 1
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true })")
    page.mouse.move(30, 30)
    page.clock.run_for(2_000)
    assert page.evaluate(rest) > 1000, "nobody sees it"


def test_a_log_that_cannot_be_fetched_is_said(page):
    watch_run(page, parts='<button id="run-log-download" data-failed="failed">log</button>')
    page.evaluate("server.log = async () => undefined")
    page.click("#run-log-download")
    page.wait_for_function("document.getElementById('run-log-download').textContent === 'failed'")


def test_the_log_can_be_read_while_it_grows(page):
    """The newest 60 lines: old ones go at its top, new ones come at its end."""
    watch_run(page, parts='<div id="run-log"></div>')
    page.add_style_tag(path=ASSETS / "style.css")

    def show(first: int, last: int) -> None:
        lines = (LogLine(time_s=i, level="info", message=literal(f"line {i}")) for i in range(first, last))
        view = LiveView(log=tuple(lines))
        answer_run(page, parts={"log": log_card(view, lambda message: str(message.values["words"]))})

    def at(line: int) -> float:
        place = (
            f"[...document.querySelectorAll('.log p')].find((one) => one.innerText.endsWith('line {line}'))"
        )
        return page.evaluate(f"{place}.getBoundingClientRect().top")

    show(0, 60)
    end = at(59)
    show(5, 65)
    assert at(64) == pytest.approx(end, abs=1), "who reads the newest line gets the next one"
    page.focus(".log")
    page.evaluate("document.querySelector('.log').scrollTop = -300")
    place = at(40)
    show(9, 69)
    assert at(40) == pytest.approx(place, abs=1)
    assert page.evaluate("document.activeElement.className") == "log"
    assert page.locator(".log p").count() == 60
    show(100, 160)  # another run's
    assert at(159) == pytest.approx(end, abs=1)


def test_home_takes_words_of_its_own_run_alone(page):
    html = (
        '<div id="run-chip"></div><div id="tab-home"><div id="part"><section class="now" data-run="a">'
        '<div class="bar"><i></i></div><span class="words">learning</span></section></div></div>'
    )
    mount(page, html, "tabs/home/script.js")

    def tell(run: str, words: str, state: str = "running") -> list:
        page.evaluate(
            """([run, words, state]) => {
              document.getElementById("run-chip").innerHTML = `<span class="chip" data-run="${run}"
                data-state="${state}" data-percent="5%"><button class="link">${words}</button></span>`;
            }""",
            [run, words, state],
        )
        page.wait_for_timeout(50)
        return page.evaluate("[document.querySelector('.words').textContent, said.length]")

    assert tell("a", "Training 5%") == ["Training 5%", 0]
    assert tell("b", "Training 6%") == ["Training 5%", 1], "the next of the queue: the card is asked for anew"
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.away, configurable: true })")
    page.evaluate("window.away = true")
    page.wait_for_timeout(3100)  # home.js leaves so long between two questions
    before = page.evaluate("said.length")
    assert tell("b", "Finished", "finished")[1] == before, "nobody looks"
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    assert page.evaluate("said.length") == before + 1


@pytest.mark.parametrize("button", ['<button data-do="restart">', '<button id="doctor-restart">'])
def test_a_page_comes_back_once_the_studio_that_starts_anew_answers(page, button):
    answers = iter([204, 503, 429, 503])

    def answer(route) -> None:
        ready = route.request.url.endswith("/ready")
        route.fulfill(status=next(answers, 401) if ready else 200, content_type="text/html", body=button)

    page.route("**/*", answer)
    page.goto("http://127.0.0.1:9/")
    page.evaluate(read_script("shell/page.js"))
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
    page.evaluate(read_script("shell/clipboard.js"))
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


def test_that_the_connection_broke_is_said_in_the_pages_language(page):
    mount(
        page,
        '<div id="part"><h1 lang="zh-CN" data-lost="断开" data-kind="不读 {name}：{kinds}"></h1></div>',
        "shell/set_language.js",
    )
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    for said, shown in (
        ("Connection to the server was lost. Attempting...", "断开"),
        ("Too long.", "Too long."),
        ("Invalid file type: a $&.pdf. Only .jsonl, .csv allowed.", "不读 a $&.pdf：.jsonl, .csv"),
    ):
        toast = f'<div class="toast-body error"><p data-testid="toast-text">{said}</p></div>'
        page.evaluate(
            "(toast) => { document.getElementById('part').lastElementChild.innerHTML = toast; }", toast
        )
        page.wait_for_function(
            "(shown) => document.querySelector('.toast-body').innerText === shown", arg=shown
        )
