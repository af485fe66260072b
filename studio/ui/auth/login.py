"""The page that asks a guest for the pass phrase: one small file, no request to anywhere, in the guest's language."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from markupsafe import Markup

from studio.core.i18n import LANGUAGES, Catalogue, load_catalogue, text
from studio.ui.templates import render

LOGIN_PATH = "/login"
FORM_BYTES = 2000
PATIENCE_S = 10.0
# A link may carry the phrase behind a #, which browsers never send: it fills the field. Coming from another site the
# browser keeps back its cookie; asking once more from this page it does not.
SCRIPT = """
const field = document.querySelector("input");
const words = decodeURIComponent(location.hash.slice(1));
if (words) { field.value = words; history.replaceState(null, "", location.pathname); }
if (document.body.dataset.again && !words && !sessionStorage.asked) {
  sessionStorage.asked = "1";
  location.replace("/");
}
field.focus();
"""
STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--page:#f5f7f8;--card:#fff;--line:#cfd7de;--soft:#5d6b7a;--mark:#0b7a6f;
--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e4eaf0;--page:#10161c;--card:#171f27;--line:#33404d;--soft:#9fb0c1;
--mark:#17968a;--bad:#ff8f87}}
*{box-sizing:border-box}body{margin:0;min-height:100vh;display:grid;place-items:center;padding:1rem;
background:var(--page);color:var(--ink);font:16px/1.6 system-ui,"Segoe UI","Microsoft YaHei","PingFang SC",sans-serif}
main{width:100%;max-width:27rem;background:var(--card);border:1px solid var(--line);border-radius:14px;padding:1.75rem}
h1{font-size:1.25rem;margin:0 0 .25rem}p{margin:.25rem 0 1rem;color:var(--soft)}label{font-weight:600;display:block}
input{width:100%;margin:.35rem 0 1rem;padding:.7rem .8rem;font:inherit;color:inherit;background:var(--page);
border:1px solid var(--line);border-radius:9px}button{width:100%;padding:.75rem;font:inherit;font-weight:600;border:0;
border-radius:9px;background:#0b7a6f;color:#fff;cursor:pointer}
:focus-visible{outline:3px solid var(--mark);outline-offset:2px}[role=alert]{color:var(--bad)}
"""


def _digest(words: str) -> str:
    return base64.b64encode(hashlib.sha256(words.encode()).digest()).decode()


LOGIN_POLICY = (
    f"default-src 'none'; script-src 'sha256-{_digest(SCRIPT)}'; style-src 'sha256-{_digest(STYLE)}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def choose_words(accepted: str, language: str) -> Catalogue:
    """Return the words of the first language in an Accept-Language header that the studio speaks, else `language`."""
    for part in accepted.split(",")[:20]:
        tag = part.partition(";")[0].strip().lower()
        for known in LANGUAGES:
            if tag.partition("-")[0] == known.lower().partition("-")[0]:
                return load_catalogue(known)
    return load_catalogue(language)


def login_page(words: Catalogue, *, wait_s: float = 0.0, wrong: bool = False, again: bool = False) -> str:
    """Return the page; `wrong`: the phrase was not the right one or not looked at, for `wait_s` more seconds.

    `again`: the page may ask once more for what it was opened for.
    """

    def say(id: str, **values: object) -> str:
        return words.say(text(id, **values))

    alert = ""
    if wait_s >= 90:
        alert = say("ui.login.locked", minutes=round(wait_s / 60))
    elif wait_s:
        alert = say("ui.login.wait", seconds=max(1, round(wait_s)))
    elif wrong:
        alert = say("ui.login.wrong")
    return render(
        "auth/login.html",
        say,
        language=words.language,
        alert=alert,
        again=again,
        action=LOGIN_PATH,
        style=Markup(STYLE),
        script=Markup(SCRIPT),
    )


async def read_phrase(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> str:
    """Return the phrase of a form; "" for one that is too long, or too slow in coming."""
    body = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            more = True
            while more and len(body) <= FORM_BYTES:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
    except TimeoutError:
        return ""
    if len(body) > FORM_BYTES:
        return ""
    return parse_qs(body.decode("latin-1"), encoding="utf-8").get("phrase", [""])[0]
