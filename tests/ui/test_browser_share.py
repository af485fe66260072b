"""In a real browser: what comes from data, models and names never runs and never calls home; guests at their page."""

from __future__ import annotations

import json
import re
import threading
from types import SimpleNamespace

import pytest

from studio.core.codec import to_json
from studio.core.events import (
    Diagnosis,
    PhaseStarted,
    RunFailed,
    RunFinished,
    SampleWritten,
    StepLogged,
    Warned,
)
from studio.core.i18n import literal
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.engine.crash_records import append_event
from studio.engine.run_folder import create_run
from studio.machine.workspace import open_workspace
from studio.ui.auth.backends import Doors
from studio.ui.auth.owner import Keys
from studio.ui.context import Context
from studio.ui.listeners import Listeners
from tests.launched import processes_of, start, wait_for
from tests.ui.test_guest import SharedDesk, add_run

pytestmark = pytest.mark.slow
FOREIGN = "http://127.0.0.2:9"
"""Nobody listens there; a request to it is a beacon."""
PAYLOADS = (
    "<script>window.hit=1</script>",
    '"><script>window.hit=1</script>',
    "'><img src=x onerror=window.hit=1>",
    f'<img src="{FOREIGN}/beacon.png">',
    f"![x]({FOREIGN}/beacon.png)",
    f"[click](javascript:window.hit=1) <{FOREIGN}/auto>",
    '<svg onload="window.hit=1"><animate onbegin="window.hit=1" attributeName=x dur=1s></svg>',
    f'<iframe srcdoc="<script>parent.hit=1</script>" src="{FOREIGN}/frame"></iframe>',
    f'<style>@import url("{FOREIGN}/x.css");body{{background:url({FOREIGN}/x.png)}}</style>',
    f'<link rel=stylesheet href="{FOREIGN}/x.css"><meta http-equiv=refresh content="0;url={FOREIGN}/">',
    f'<video poster="{FOREIGN}/p" autoplay onplay="window.hit=1"></video><object data="{FOREIGN}/o"></object>',
    '<details open ontoggle="window.hit=1"><input autofocus onfocus="window.hit=1"><a href="javascript:window.hit=1">',
    "${window.hit=1} {{constructor.constructor('window.hit=1')()}} {{{value}}} <%= window.hit=1 %>",
    "</textarea></title></style></script><script>window.hit=1</script>",
    "```html\n<script>window.hit=1</script>\n``` $$\\href{javascript:window.hit=1}{x}$$",
)
ALL = "\n".join(PAYLOADS)


class Watched:
    """A page that counts what it must not do."""

    def __init__(self, browser, own: str, width: int = 1280) -> None:
        self.page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
        self.page.set_default_timeout(60_000)
        self.own, self.foreign, self.dialogs = own, [], []
        self.page.on("request", lambda request: self._note(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    def _note(self, url: str) -> None:
        if not url.startswith((self.own, "data:", "blob:")):
            self.foreign.append(url)

    def check(self) -> None:
        """Nothing ran, nothing was asked for elsewhere, and no link of a payload can be clicked."""
        assert self.page.evaluate("window.hit") is None
        assert self.foreign == [] and self.dialogs == []
        assert (
            self.page.locator(
                "a[href^='javascript'], iframe, object, [onerror], [onload], [ontoggle]"
            ).count()
            == 0
        )
        assert self.page.url.startswith(self.own)


def evil_events() -> list:
    steps = [
        StepLogged(
            step=i,
            total_steps=2,
            loss=2.0 - i,
            lr=0.1,
            grad_norm=1.0,
            tokens_per_s=9.0,
            vram_bytes=0,
            epoch=1.0,
        )
        for i in (1, 2)
    ]
    texts = [Warned(message=literal(words)) for words in PAYLOADS]
    samples = [
        SampleWritten(step=2, prompt=words, answer=words, expected=words, base=words) for words in PAYLOADS
    ]
    return [PhaseStarted(phase="train", detail=literal(ALL)), *steps, *texts, *samples]


class EvilDesk(SharedDesk):
    """A desk whose models answer with payloads."""

    def answer(self, messages, *, run, max_new_tokens):
        words = ""
        for payload in PAYLOADS:
            words += payload + "\n\n"
            yield SimpleNamespace(words=words)


@pytest.fixture
def guests(workspace):
    """The guests' page at a port of its own, of a desk full of payloads: the link, and the pass phrase."""
    desk = EvilDesk(workspace)
    add_run(desk, "failed", *evil_events(), RunFailed(step=2, diagnosis=Diagnosis(
        id="x", what=literal(ALL), why=literal(ALL), fixes=())), state="failed", name=ALL)  # fmt: skip
    add_run(desk, "done", *evil_events(), RunFinished(step=2, loss=0.5, artifact="adapter"), name=PAYLOADS[2])
    context = Context(desk, workspace, Keys(workspace.root, 7999), "en")
    desk.sharing.begin(Listeners(context, None, Doors()), {"viewer": "lan"})
    opening = desk.sharing.view().openings[0]
    yield f"http://127.0.0.1:{opening.port}", opening.phrase, desk
    desk.sharing.close()


def test_a_guest_from_the_link_to_an_answer(chromium, guests):
    link, phrase, desk = guests
    watched = Watched(chromium, link, width=390)
    page = watched.page
    page.goto(f"{link}/#{phrase}")
    assert page.input_value("#phrase") == phrase and "#" not in page.url, "the link brought the phrase along"
    page.fill("#phrase", "wrong words")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    page.fill("#phrase", phrase.replace("-", " ").title())
    page.keyboard.press("Enter")
    page.wait_for_selector("#guest-status .status[data-run=done]")
    page.wait_for_selector("#guest-log .log p")
    assert page.locator("#guest-samples li").count() == len(PAYLOADS)
    assert page.evaluate("document.documentElement.scrollWidth <= 390"), "fits a phone"
    watched.check()
    again = page.context.new_page()
    again.goto(f"{link}/#{phrase}")
    again.wait_for_selector("#guest-status .status[data-run=done]")
    assert "#" not in again.url, "who is in already keeps no phrase in the address either"
    again.close()
    page.click("#guest-runs button[data-value=failed]")
    page.wait_for_selector("#guest-status .status[data-run=failed]")
    page.wait_for_selector("#guest-status .failure")
    watched.check()

    page.click("#guest-runs button[data-value=done]")
    page.wait_for_selector("#guest-status .status[data-run=done]")
    page.click("#tab-chat-button")
    page.fill("#guest-input textarea", PAYLOADS[3])
    page.click("#guest-send")
    page.wait_for_function("document.querySelectorAll('#guest-talk .bubble').length === 2")
    page.wait_for_function("document.querySelector('#guest-talk').innerText.includes('textarea')")
    page.wait_for_timeout(500)
    watched.check()
    shown = page.inner_text("#guest-talk")
    assert "window.hit=1" in shown, "it is shown as words"

    desk.active = "another"
    page.fill("#guest-input textarea", "and now?")
    page.click("#guest-send")
    page.wait_for_selector("text=A training run is using the computer")
    (connection,) = desk.sharing.view().connections
    desk.sharing.disconnect(connection.id)
    page.goto(link)
    page.wait_for_selector("#phrase")
    watched.check()


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    """A launched studio with two evil runs and an evil data set as its draft; yields its address."""
    folder = tmp_path_factory.mktemp("evil")
    workspace = open_workspace(str(folder / "workspace"))
    rows = folder / "rows.jsonl"
    chats = [
        [{"role": "user", "content": words}, {"role": "assistant", "content": words}] for words in PAYLOADS
    ]
    rows.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), encoding="utf-8")
    recipe = Recipe(
        name="<img src=x onerror=window.hit=1>",
        model=ModelChoice(source="demo"),
        data=DatasetSpec(source=str(rows)),
    )
    (workspace.root / "draft.json").write_text(json.dumps(to_json(recipe)), encoding="utf-8")
    failure = RunFailed(step=2, diagnosis=Diagnosis(id="x", what=literal(ALL), why=literal(ALL), fixes=()))
    for end in (failure, RunFinished(step=2, loss=0.5, artifact="adapter")):
        run = create_run(workspace.runs, recipe)
        for event in [*evil_events(), end]:
            append_event(run, event)
    process = start(workspace.root, "--no-browser", "--share-owner", "--lan")
    said: list[str] = []
    for pipe in (process.stdout, process.stderr):
        threading.Thread(target=lambda pipe=pipe: [said.append(line) for line in pipe], daemon=True).start()
    try:
        wait_for(lambda: (workspace.root / "share.json").exists(), 120)
        yield json.loads((workspace.root / "address.json").read_text(encoding="utf-8"))["url"], workspace
    finally:
        process.kill()
        process.wait()
        wait_for(lambda: not processes_of(workspace.root), 20)


def test_the_window_shows_payloads_as_words_and_its_banner_on_every_tab(chromium, window):
    url, workspace = window
    watched = Watched(chromium, re.match(r"http://[^/]+", url)[0])
    page = watched.page
    page.goto(url)
    page.wait_for_selector("#tab-home-button")
    for tab in ("home", "dataset", "training", "runs", "chat", "export", "settings"):
        page.click(f"#tab-{tab}-button")
        page.wait_for_timeout(1000)
        assert page.locator(".share-banner").is_visible(), tab
        watched.check()
    page.wait_for_selector("#share-card section[data-role=viewer]")
    assert page.locator("#share-card code").first.is_visible()
    page.click("#share-close")
    page.wait_for_selector("#share-open")
    page.wait_for_selector(".share-banner", state="detached")
    assert json.loads((workspace.root / "share.json").read_text(encoding="utf-8"))["openings"] == []

    page.focus("#share-card input[value=tunnel]")
    page.keyboard.press("ArrowDown")
    assert page.is_checked("#share-card input[value=lan]")
    page.focus("#share-open")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert json.loads((workspace.root / "share.json").read_text(encoding="utf-8"))["openings"] == []
    page.click("#share-open")
    page.click("dialog button.primary")
    page.wait_for_selector("#share-card section[data-role=viewer] .share-line[data-kind=link]")
    page.wait_for_selector(".share-banner")
    page.click("#share-card .share-line[data-kind=phrase] summary")
    phrase = page.inner_text("#share-card .share-line[data-kind=phrase] code")
    assert len(phrase.split("-")) == 8
    page.click("#share-card [data-do=renew][data-value=viewer]")
    page.wait_for_function(
        "(phrase) => !document.querySelector('#share-card').textContent.includes(phrase)", arg=phrase
    )
    page.click("#tab-runs-button")
    page.click(".share-banner [data-go=settings]")
    page.wait_for_selector("#share-card", state="visible")
    page.reload()
    page.wait_for_selector(".share-banner")
    watched.check()
