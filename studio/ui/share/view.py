"""What is told of sharing: the red banner above all tabs, and the card in Settings."""

from __future__ import annotations

import time
from collections.abc import Callable

from markupsafe import Markup

from studio.services.share_files import WAYS, GuestConnection
from studio.services.sharing import EXPIRES_H, HOURS, SharingView
from studio.ui.quantities import time_words
from studio.ui.templates import render

Say = Callable[..., str]
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
)
SYSTEMS = (
    *(("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows")),
    *(("Mac OS", "macOS"), ("Linux", "Linux")),
)


def share_banner(view: SharingView, say: Say, now_s: float | None = None) -> Markup:
    """Return the banner of an open studio: who may come in until when, how many are in; "" while nothing is shared."""
    words = ""
    if view.on:
        until_s = min(one.expires_s for one in view.openings)
        owner = any(one.role == "owner" for one in view.openings)
        words = say(
            "ui.share.banner.owner" if owner else "ui.share.banner",
            until=_clock(until_s, now_s or time.time()),
            count=len(view.connections),
        )
    return render("share/banner.html", say, view=view, words=words)


def share_card(view: SharingView, say: Say, now_s: float | None = None) -> Markup:
    """Return the card in Settings; its buttons say open, close, renew, disconnect and show, with the role or id."""
    now_s = now_s or time.time()
    return render(
        "share/card.html",
        say,
        view=view,
        offers=not any(one.role == "viewer" for one in view.openings),
        ways=WAYS,
        hours=HOURS,
        chosen_hours=EXPIRES_H,
        openings=[
            (one, _clock(one.expires_s, now_s), time_words(one.expires_s - now_s)) for one in view.openings
        ],
        connections=[
            (one.id, _describe_connection(one, say, now_s))
            for one in sorted(view.connections, key=lambda each: -each.seen_s)
        ],
    )


def _describe_connection(one: GuestConnection, say: Say, now_s: float) -> list[str]:
    seen = say("ui.share.seen", ago=time_words(now_s - one.seen_s))
    return [say(f"ui.share.kind.{one.role}"), describe_agent(one.agent), one.address, seen]


def describe_agent(agent: str) -> str:
    """Return browser and system in two words; what a browser says of itself is only a hint."""
    browser = next((name for sign, name in BROWSERS if sign in agent), "")
    system = next((name for sign, name in SYSTEMS if sign in agent), "")
    return " · ".join(part for part in (browser, system) if part) or agent[:24] or "–"


def _clock(time_s: float, now_s: float) -> str:
    far = time_s - now_s > 20 * 3600
    return time.strftime("%m-%d %H:%M" if far else "%H:%M", time.localtime(time_s))
