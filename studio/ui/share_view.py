"""The HTML of sharing: the red banner above all tabs, and the card in Settings; every value escaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape

from studio.services.share_files import WAYS, GuestConnection, Opening
from studio.services.sharing import EXPIRES_H, HOURS, SharingView
from studio.ui.cards import time_words

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


def share_banner(view: SharingView, say: Say, now_s: float | None = None) -> str:
    """Return the banner of an open studio: who may come in until when, how many are in; "" while nothing is shared."""
    if not view.on:
        return ""
    until_s = min(one.expires_s for one in view.openings)
    owner = any(one.role == "owner" for one in view.openings)
    words = say(
        "ui.share.banner.owner" if owner else "ui.share.banner",
        until=_clock(until_s, now_s or time.time()),
        count=len(view.connections),
    )
    return (
        f'<div class="share-banner" role="status" data-number="{view.number}"><i aria-hidden="true">●</i>'
        f"<span>{escape(words)}</span>"
        f'<button type="button" data-go="settings">{escape(say("ui.share.manage"))}</button></div>'
    )


def share_card(view: SharingView, say: Say, now_s: float | None = None) -> str:
    """Return the card in Settings; its buttons say open, close, renew, disconnect and show, with the role or id."""
    now_s = now_s or time.time()
    title, lead = escape(say("ui.share.title")), escape(say("ui.share.lead"))
    parts = [_opening(one, say, now_s) for one in view.openings]
    if not any(one.role == "viewer" for one in view.openings):
        parts.insert(0, _offer(say))
    if view.on:
        parts.append(_connections(view.connections, say, now_s))
        parts.append(
            f'<button type="button" class="say danger" data-do="close" data-value="" data-focus="share-close" '
            f'id="share-close">{escape(say("ui.share.close"))}</button>'
        )
    head = f'<h3>{title}</h3><p class="soft">{lead}</p>'
    return f'<div class="card share" data-number="{view.number}">{head}{"".join(parts)}</div>'


def _offer(say: Say) -> str:
    ways = "".join(
        f'<label class="way"><input type="radio" name="way" value="{way}"{" checked" if way == "tunnel" else ""}>'
        f"<span><b>{escape(say(f'ui.share.way.{way}'))}</b><small>{escape(say(f'ui.share.way.{way}.help'))}</small></span></label>"
        for way in WAYS
    )
    hours = "".join(
        f'<option value="{count}"{" selected" if count == EXPIRES_H else ""}>'
        f"{escape(say('ui.share.hours', count=count))}</option>"
        for count in HOURS
    )
    return (
        f'<div class="share-offer" data-form><fieldset><legend>{escape(say("ui.share.way"))}</legend>{ways}</fieldset>'
        f'<label class="share-hours"><span>{escape(say("ui.share.ends"))}</span>'
        f'<select name="hours">{hours}</select></label>'
        f'<button type="button" class="say primary" id="share-open" data-do="open" data-focus="share-open" '
        f'data-confirm="{escape(say("ui.share.ask"))}">{escape(say("ui.share.open"))}</button></div>'
    )


def _opening(one: Opening, say: Say, now_s: float) -> str:
    name = escape(say(f"ui.share.role.{one.role}"))
    until = escape(
        say("ui.share.until", until=_clock(one.expires_s, now_s), left=time_words(one.expires_s - now_s))
    )
    if one.problem:
        link = f'<p class="share-problem" role="alert">{escape(say(one.problem))}</p>'
    elif not one.link:
        link = f'<p class="soft">{escape(say("ui.share.link.wait"))}</p>'
    else:
        link = _copyable("link", say("ui.share.link"), one.link, say)
    invite = ""
    if one.phrase:
        phrase = _copyable("phrase", say("ui.share.phrase"), one.phrase, say, hidden=True)
        if one.link:
            whole = escape(f"{one.link}/#{one.phrase}")
            invite = _copy_button(whole, say("ui.share.invite"), say)
    else:
        phrase = f'<p class="soft">{escape(say("ui.share.phrase.gone"))}</p>'
    renew = (
        f'<button type="button" class="say" data-do="renew" data-value="{one.role}" '
        f'data-focus="share-renew-{one.role}">'
        f"{escape(say('ui.share.renew'))}</button>"
    )
    return (
        f'<section class="share-open" data-role="{one.role}" data-way="{one.way}"><h4>{name}</h4><p>{until}</p>'
        f'{link}{phrase}<div class="answers">{invite}{renew}</div></section>'
    )


def _copyable(kind: str, label: str, words: str, say: Say, *, hidden: bool = False) -> str:
    shown = f"<code>{escape(words)}</code>"
    if hidden:
        shown = f"<details><summary>{escape(say('ui.share.show'))}</summary>{shown}</details>"
    button = _copy_button(escape(words), say("ui.share.copy"), say)
    return f'<div class="share-line" data-kind="{kind}"><span>{escape(label)}</span>{shown}{button}</div>'


def _copy_button(words: str, label: str, say: Say) -> str:
    """`words` are escaped already."""
    return (
        f'<button type="button" class="say" data-copy="{words}" data-copied="{escape(say("ui.share.copied"))}">'
        f"{escape(label)}</button>"
    )


def _connections(connections: Sequence[GuestConnection], say: Say, now_s: float) -> str:
    title = escape(say("ui.share.connections", count=len(connections)))
    rows = []
    for one in sorted(connections, key=lambda each: -each.seen_s):
        about = " · ".join(
            (
                say(f"ui.share.kind.{one.role}"),
                describe_agent(one.agent),
                one.address,
                say("ui.share.seen", ago=time_words(now_s - one.seen_s)),
            )
        )
        name = escape(say("ui.share.disconnect"))
        rows.append(
            f'<li><span>{escape(about)}</span><button type="button" class="say" data-do="disconnect" '
            f'data-value="{escape(one.id)}">{name}</button></li>'
        )
    return f'<section class="share-connections"><h4>{title}</h4><ul>{"".join(rows)}</ul></section>'


def describe_agent(agent: str) -> str:
    """Return browser and system in two words; what a browser says of itself is only a hint."""
    browser = next((name for sign, name in BROWSERS if sign in agent), "")
    system = next((name for sign, name in SYSTEMS if sign in agent), "")
    return " · ".join(part for part in (browser, system) if part) or agent[:24] or "–"


def _clock(time_s: float, now_s: float) -> str:
    far = time_s - now_s > 20 * 3600
    return time.strftime("%m-%d %H:%M" if far else "%H:%M", time.localtime(time_s))
