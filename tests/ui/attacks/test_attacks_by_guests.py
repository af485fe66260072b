"""Who came in as a guest: handlers and sessions of others, words that would be HTML, pass phrases, logs, floods."""

from __future__ import annotations

import json
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote, urlencode

import pytest

from studio.core.events import Diagnosis, RunFailed, SampleWritten, Warned
from studio.core.i18n import literal
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.engine.crash_records import append_event
from studio.engine.run_folder import create_run
from studio.ui.auth.rate_limit import ALLOWANCES
from tests.shared_studio import JOIN, JSON, Browser
from tests.ui.attacks.attack import (
    PLAIN,
    WORDS,
    check_the_studio,
    ids_of,
    patiently,
    say,
)

pytestmark = pytest.mark.long  # they mostly wait for answers


class Tags(HTMLParser):
    """Collects the tags and the names of attributes of a page."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.feed(words)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found += [(tag, name) for name, _ in attrs] or [(tag, "")]


def test_handlers_of_the_owner(shared, ways, guests, judge):
    owners = ids_of(ways[0][2])
    for guest in guests:
        mine = set(ids_of(guest))
        wrong: list[object] = [number for number in owners if number not in mine]
        wrong += [
            -1,
            10**9,
            10**40,
            1.5,
            True,
            None,
            [],
            {},
            str(owners[-1]),
            "start",
            "__proto__",
            "constructor",
            float("1e308"),
        ]
        for number in wrong:
            body = json.dumps({"data": [], "fn_index": number, "session_hash": "attack", "trigger_id": 1})
            status, _, answer = patiently(guest, JOIN, "POST", body, **JSON)
            taken = status == 200 and number not in (True, None, 1.5)
            judge("handlers", (number, status, answer[:80]), status < 500 and not taken)
        for number in sorted(mine)[:3]:
            for key in ("fn_index", "fn", "api_name", "__proto__"):
                for value in (owners[-1], str(owners[-1])):
                    body = json.dumps({"data": [], key: value, "fn_index": number, "session_hash": "attack"})
                    status = patiently(guest, JOIN, "POST", body, **JSON)[0]
                    judge("handlers", (key, value, status), status < 500)
    assert not list((shared.workspace / "runs").iterdir())


def test_sessions_and_cookies(shared, ways, guests, judge):
    one, two = guests
    number = ids_of(one)[0]
    for session in ("victim", "victim/../x", "__proto__", "%00", "victim\u0000", "1" * 3000):
        body = json.dumps({"data": [], "fn_index": number, "session_hash": session, "trigger_id": None})
        if patiently(one, JOIN, "POST", body, **JSON)[0] != 200:
            continue
        for path in (
            f"/gradio_api/queue/data?session_hash={quote(session)}",
            f"/gradio_api/heartbeat/{quote(session)}",
        ):
            judge("sessions", (session[:20], path[:40]), patiently(two, path)[0] in (400, 403, 404))
        for path in (JOIN, "/gradio_api/cancel", "/gradio_api/reset"):
            judge("sessions", (session[:20], path), patiently(two, path, "POST", body, **JSON)[0] == 403)
    for query in (
        "session_hash=a&session_hash=victim",
        "session_hash[]=victim",
        "session_hash=",
        "session_hash=victim%00",
    ):
        status = patiently(two, f"/gradio_api/queue/data?{query}")[0]
        judge("sessions", (query, status), status < 500)
    for name, stranger, inside in ways:
        label, _, value = inside.cookie.partition("=")
        forged = [
            *(
                f"{label}=",
                f"{label}=null",
                f"{label}={value[:-1]}",
                f"{label}={value}0",
                f"{label}={value.swapcase()}",
            ),
            *(
                f"{label}={'0' * len(value)}",
                f"x{label}={value}",
                f"{label}x={value}",
                f"{label}={value[::-1]}",
            ),
            *(
                f'{label}="{value}',
                f"{label}={label}={value}",
                "role=owner",
                f"{label}=owner",
                f"{label}=1' OR '1'='1",
            ),
            *(other.cookie for kind, _, other in ways if kind.split()[0] != name.split()[0]),
        ]
        for cookie in forged:
            judge("cookies", (name, cookie[:40]), patiently(stranger, "/config", cookie=cookie)[0] == 401)
        for key in (shared.address()["key"], "", "x", "Basic b3duZXI6", "Bearer", f"bearer  {value}"):
            if name != "window" or key != shared.address()["key"]:
                status = patiently(stranger, "/config", authorization=f"Bearer {key}")[0]
                judge("cookies", (name, "key", key[:10]), status == 401)


def read_outputs(browser: Browser, session: str, wait_s: float = 6.0) -> str:
    """Return what the queue sends to a page within a while, or until its handler is done."""
    head = f"GET /gradio_api/queue/data?session_hash={session} HTTP/1.1\r\nHost: {browser.host}\r\n"
    heard = say(
        browser.port,
        f"{head}Cookie: {browser.cookie}\r\n\r\n".encode(),
        wait_s=wait_s,
        close=False,
        until=rb"process_completed.*?\n\n",  # what came of it stands behind the word
    )
    return heard.decode("utf-8", "replace")


def pages_in(words: str) -> Iterator[str]:
    """Yield every text that stands anywhere in the events of a stream."""

    def walk(part: object) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            yield from (found for each in part.values() for found in walk(each))
        elif isinstance(part, list):
            yield from (found for each in part for found in walk(each))

    for line in words.splitlines():
        if line.startswith("data: "):
            try:
                yield from walk(json.loads(line[6:]))
            except ValueError:
                continue


def test_words_come_back_as_words(shared, guests, judge):
    """Names, samples and warnings of runs, and what a guest sends: nothing of it is HTML again in what is served."""
    recipe = Recipe(name=PLAIN, model=ModelChoice(source=PLAIN), data=DatasetSpec(source=PLAIN))
    run = create_run(shared.workspace / "runs", recipe)
    for event in (
        Warned(message=literal(PLAIN)),
        SampleWritten(step=1, prompt=PLAIN, answer=PLAIN, expected=PLAIN, base=PLAIN),
        RunFailed(step=1, diagnosis=Diagnosis(id="x", what=literal(PLAIN), why=literal(PLAIN), fixes=())),
    ):
        append_event(run, event)
    seen = 0
    for guest in guests:
        config = json.loads(patiently(guest, "/config")[2])
        for part in config["dependencies"]:
            for which, words in enumerate(WORDS):
                session = f"words{guest.port}x{part['id']}x{which}"
                said = {"do": words, "value": words, "form": {words: words}, "__proto__": {"x": 1}}
                data = [said if index % 2 else words for index, _ in enumerate(part["inputs"])]
                body = {"data": data, "fn_index": part["id"], "session_hash": session, "trigger_id": None}
                status = patiently(guest, JOIN, "POST", json.dumps(body), **JSON)[0]
                judge("words", (part["id"], words[:20], status), status < 500)
                if status != 200 or which:
                    continue
                shown = read_outputs(guest, session)
                seen += PLAIN[:8] in shown
                raw = [one for one in pages_in(shown) if "<" in one and PLAIN != one and "script>hit" in one]
                tags = [tag for one in raw for tag in Tags(one).found]
                held = not any(tag == "script" or name.startswith("on") for tag, name in tags)
                judge(
                    "words",
                    (part["id"], tags[:3]),
                    held and "Traceback" not in shown and str(shared.workspace) not in shown,
                )
    assert seen, "the run's name was shown to somebody"
    page = patiently(guests[0], "/")[2]
    judge("words", "page", b"<script>hit" not in page)


def test_logs(shared, judge):
    """What a stranger says of itself must not write lines or colours into the terminal or the log."""
    stranger = shared.relayed("viewer")
    for words in (
        "\x1b[31mowned",
        "owned\tINFO all is well",
        "ow\u0085ned",
        "%s%n",
        "owned" * 4000,
        "\u202eowned",
    ):
        head = (
            f"GET /owned HTTP/1.1\r\nHost: {stranger.host}\r\nUser-Agent: {words}\r\nReferer: {words}\r\n\r\n"
        )
        say(stranger.port, head.encode("utf-8"))
        form = urlencode({"phrase": words + "\r\n2026-01-01 INFO owned"})
        kind = "application/x-www-form-urlencoded"
        status = stranger.ask("/login", "POST", form, content_type=kind, user_agent="owned")[0]
        judge("logs", (words[:20], status), status in (401, 429, 413))
    guest = stranger.enter(shared.told("viewer")[1])
    for number in ids_of(guest):
        for words in ("\x1b[31mowned\nINFO owned", "\u202eowned"):
            body = json.dumps({"data": [words], "fn_index": number, "session_hash": f"logs{number}"})
            judge("logs", number, patiently(guest, JOIN, "POST", body, **JSON)[0] < 500)
    time.sleep(2)
    kept = "".join(path.read_text("utf-8", "replace") for path in (shared.workspace / "logs").glob("*"))
    said = "".join(shared.said)
    for words in ("\x1b[31mowned", "\nowned", "\nINFO owned", "\u202eowned"):
        judge("logs", words, words not in kept and words not in said)


def test_pass_phrases(shared, judge):
    guesser, phrase = shared.relayed("viewer"), shared.told("viewer")[1]
    kind = "application/x-www-form-urlencoded"
    guesses = [f"lusab-babad-{i}" for i in range(30)] + [
        *WORDS,
        "",
        " ",
        phrase[:-1],
        phrase + "x",
        phrase[::-1],
    ]
    seen = Counter()
    for guess in guesses:
        form = urlencode({"phrase": guess.encode("utf-8", "replace")})
        status, given, _ = guesser.ask("/login", "POST", form, content_type=kind)
        seen[status] += 1
        judge("phrases", (guess[:20], status), status in (401, 413, 429) and not given.get("set-cookie"))
    judge("phrases", dict(seen), seen[429] > len(guesses) // 2)
    for form in (
        b"",
        b"phrase",
        b"phrase=",
        b"phrase=%",
        b"phrase[]=x",
        b"&" * 9000,
        b"phrase=a&phrase=b",
        b"\xff" * 200,
        b"x" * 70_000,
    ):
        status = guesser.ask("/login", "POST", form, content_type=kind)[0]
        judge("phrases", (form[:20], status), status in (400, 401, 413, 429))
    for target in (
        "/?next=//evil.example",
        "/login?next=http://evil.example",
        "/?token=x",
        "//evil.example/%2f..",
        "/\\evil.example",
    ):
        status, given, _ = guesser.ask(target)
        judge("phrases", (target, status), "evil" not in (given.get("location") or ""))
    # A phrase that begins rightly is not judged longer than one that does not.
    times: dict[str, list[float]] = {"right": [], "wrong": []}
    for _ in range(40):
        for name, guess in (("right", phrase[:-1] + "~"), ("wrong", "~" * len(phrase))):
            started = time.perf_counter()
            guesser.ask("/login", "POST", urlencode({"phrase": guess}), content_type=kind)
            times[name].append(time.perf_counter() - started)
    apart_s = abs(statistics.median(times["right"]) - statistics.median(times["wrong"]))
    judge("phrases", ("timing", apart_s), apart_s < 0.02)


def test_nothing_of_the_past_opens_again(shared, judge):
    """The one-time token, a cookie of a guest that was sent away, and requests said again."""
    address = shared.address()["url"]
    port = int(re.search(r":(\d+)/", address)[1])
    used = address.partition(str(port))[2]
    first, again = Browser(port, f"127.0.0.1:{port}"), Browser(port, f"127.0.0.1:{port}")
    assert patiently(first, used)[0] == 303
    judge("replay", "token", patiently(again, used)[0] == 401)
    for token in ("", "x", "null", "0" * 43, "%00", used[-10:]):
        judge("replay", token, patiently(again, f"/?token={token}")[0] == 401)
    guest = shared.relayed("viewer").enter(shared.told("viewer")[1])
    state = json.loads((shared.workspace / "share.json").read_text(encoding="utf-8"))
    judge("replay", "phrase in share.json", shared.told("viewer")[1] not in json.dumps(state))
    kept = json.dumps(state) + "".join(
        p.read_text("utf-8", "replace") for p in (shared.workspace / "logs").glob("*")
    )
    judge("replay", "cookie in files", guest.cookie.partition("=")[2] not in kept)


def test_many_at_once(ways, judge):
    """A flood of one guest: itself it slows down, nobody else."""
    _, _, guest = ways[2]
    _, _, owner = ways[0]
    answered: Counter[int] = Counter()

    def flood() -> None:
        for _ in range(60):
            try:
                answered[guest.ask("/config")[0]] += 1
            except OSError:
                answered[0] += 1

    threads = [threading.Thread(target=flood) for _ in range(12)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    slowest_s = 0.0
    while any(thread.is_alive() for thread in threads):
        started = time.monotonic()
        assert patiently(owner, "/ready")[0] == 204
        slowest_s = max(slowest_s, time.monotonic() - started)
        time.sleep(0.2)
    allowance = ALLOWANCES["viewer"]
    most = allowance.burst + allowance.rate * (time.monotonic() - begun) + allowance.at_once
    judge("flood", dict(answered), answered[200] <= most and not any(status >= 500 for status in answered))
    judge("flood", slowest_s, slowest_s < 20)


def test_the_studio_is_well(shared, ways, tried):
    """Last."""
    print(dict(tried.kinds))
    assert sum(tried.kinds.values()) >= 700
    check_the_studio(shared, ways)
