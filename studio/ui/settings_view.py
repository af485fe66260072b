"""The HTML of the Settings tab: one card a subject, one row a setting, every value escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from studio.core.facts import Gpu
from studio.core.i18n import LANGUAGES
from studio.hub.access_token import NO_MIRROR, Mirror, TokenPlace, takes_token
from studio.services.preferences import PreferencesPart
from studio.ui.cards import size_words

Say = Callable[..., str]
LANGUAGE_NAMES = dict(zip(LANGUAGES, ("English", "简体中文"), strict=True))
LINKS = (("licence", "https://www.apache.org/licenses/LICENSE-2.0"),)


@dataclass(frozen=True, kw_only=True)
class SettingsState:
    """What the tab shows; `said` is (card, words): what came of the last wish."""

    language: str
    choices: dict[str, Any]
    cards: Sequence[tuple[str, Gpu]] = ()
    fixed: Sequence[str] = ()
    restart_waits: bool = False
    workspace: Path = Path()
    parts: Sequence[PreferencesPart] = ()
    model_folders: Sequence[Path] = ()
    exports_folder: str = ""
    token: TokenPlace | None = None
    """None while it is being asked for."""
    token_variable: str = ""
    mirror: Mirror = NO_MIRROR
    versions: Sequence[tuple[str, str]] = ()
    paths: Sequence[tuple[str, Path]] = ()
    working: str = ""
    """What is on: run, export, test, "" nothing."""
    quitting: bool = False
    ended: bool = False
    said: tuple[str, str] = ("", "")


def settings_body(state: SettingsState, say: Say) -> str:
    """Return all cards, in two columns where there is room."""
    if state.ended:
        words = (
            f"<h2>{escape(say('ui.preferences.ended'))}</h2><p>{escape(say('ui.preferences.ended.how'))}</p>"
        )
        return f'<div class="ended" role="alert"><div>{words}</div></div>'
    left = (_look(state, say), _machine(state, say), _hub(state, say))
    right = (_folders(state, say), _about(state, say), _quit(state, say))
    columns = "".join(f"<div>{''.join(cards)}</div>" for cards in (left, right))
    facts = f'data-theme="{escape(state.choices["theme"])}" data-language="{escape(state.language)}"'
    return f'<div class="preferences" {facts}>{columns}</div>'


def window_notice(say: Say) -> str:
    """Return the bar that an open page shows when the studio is opened in another window too (assets/windows.js)."""
    return (
        f'<div class="second-window" role="status" hidden><p>{escape(say("ui.window.second"))}</p>'
        f'<button type="button" class="say primary" data-part="reload">{escape(say("ui.window.reload"))}</button>'
        f'<button type="button" class="say" data-part="hide">{escape(say("ui.window.hide"))}</button></div>'
    )


# Cards ---------------------------------------------------------------------------------------------------------------


def _look(state: SettingsState, say: Say) -> str:
    languages = [(LANGUAGE_NAMES[tag], tag) for tag in LANGUAGES]
    rows = [
        _row(say, "language", _select("language", languages, state.language)),
        _choice_row(say, state, "theme", ("", "light", "dark")),
        _choice_row(say, state, "window", ("app", "tab")),
    ]
    return _card(state, say, "look", "".join(rows))


def _machine(state: SettingsState, say: Say) -> str:
    names = [(say("ui.preferences.gpu.all"), "")]
    names += [(f"{gpu.name} · {gpu.vram_bytes / 2**30:.0f} GiB", uuid) for uuid, gpu in state.cards]
    few = "" if state.cards else say("ui.preferences.gpu.one")
    cards = _select("gpu", names, state.choices["gpu"], off=not state.cards)
    shares = [(f"{share:.0%}", f"{share:g}") for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)]
    share = f"{state.choices['memory_share']:g}"
    rows = [
        _row(say, "gpu", cards, few or _fixed(state, say, "gpu")),
        _row(say, "memory_share", _select("memory_share", shares, share), _fixed(state, say, "memory_share")),
        _choice_row(say, state, "kernels", ("auto", "off")),
        _row(say, "offline", _switch("offline", bool(state.choices["offline"]))),
    ]
    when = say("ui.preferences.restart.waits" if state.restart_waits else "ui.preferences.restart.when")
    restart = _button("restart", say("ui.preferences.restart"), primary=True) if state.restart_waits else ""
    foot = f'<div class="foot"><p class="soft">{escape(when)}</p>{restart}</div>'
    return _card(state, say, "machine", "".join(rows) + foot)


def _hub(state: SettingsState, say: Say) -> str:
    token = state.token
    held = ""
    if token and token.tail:
        shown = escape(say("ui.preferences.token.set", tail=token.tail))
        drop = _button(
            "drop-token", say("ui.preferences.token.drop"), confirm=say("ui.preferences.token.sure")
        )
        held = f'<div class="held"><code>{shown}</code>{drop}</div>'
    where = say(f"ui.preferences.token.{token.place or 'nowhere'}", name=token.name) if token else ""
    outside = say("ui.preferences.token.outside", name=state.token_variable) if state.token_variable else ""
    entry = _field("token", "password", say("ui.preferences.token.new"), "", "keep-token", say)
    address = state.mirror.address
    mirror = _field(
        "mirror", "url", say("ui.preferences.mirror"), address, "mirror", say, "https://hf-mirror.com"
    )
    safe = takes_token(address)
    allowed = _switch("mirror_token", state.mirror.token and safe, off=not safe)
    why_not = say("ui.preferences.mirror_token.http") if address and not safe else ""
    rows = [
        _row(say, "token", held + entry, f"{where} {outside}".strip(), tall=True),
        _row(say, "mirror", mirror, tall=True),
        _row(say, "mirror_token", allowed, why_not),
        f'<p class="soft promise">{escape(say("ui.preferences.telemetry"))}</p>',
    ]
    return _card(state, say, "hub", "".join(rows))


def _folders(state: SettingsState, say: Say) -> str:
    total = sum(part.size_bytes for part in state.parts)
    bars = "".join(
        f'<i class="{part.id}" style="flex-grow:{part.size_bytes}"></i>'
        for part in state.parts
        if part.size_bytes
    )
    legend = "".join(
        f'<li><i class="{part.id}"></i>{escape(say(f"ui.preferences.part.{part.id}"))}'
        f"<b>{escape(size_words(part.size_bytes))}</b></li>"
        for part in state.parts
    )
    caches = next((part.size_bytes for part in state.parts if part.id == "caches"), 0)
    empty = _button(
        "empty",
        say("ui.preferences.empty", size=size_words(caches)),
        confirm=say("ui.preferences.empty.sure", size=size_words(caches)),
    )
    usage = (
        f'<p class="path"><code>{escape(str(state.workspace))}</code></p>'
        f'<div class="usage" aria-hidden="true">{bars}</div><ul class="usage-list">{legend}'
        f"<li><span></span>{escape(say('ui.preferences.part.all'))}<b>{escape(size_words(total))}</b></li></ul>{empty}"
    )
    kept = "".join(
        f"<li><code>{escape(str(path))}</code>"
        f'<button type="button" class="say" data-do="drop-folder" data-value="{escape(str(path))}" '
        f'aria-label="{escape(say("ui.preferences.folder.drop", path=path))}">✕</button></li>'
        for path in state.model_folders
    )
    models = f'<ul class="folders">{kept}</ul>' if kept else ""
    models += _field("folder", "text", say("ui.preferences.folder.new"), "", "add-folder", say)
    exports = _field(
        "exports",
        "text",
        say("ui.preferences.exports"),
        state.exports_folder,
        "exports",
        say,
        str(state.workspace / "exports"),
    )
    rows = [
        _row(say, "workspace", usage, tall=True),
        _row(say, "models", models, tall=True),
        _row(say, "exports", exports, tall=True),
    ]
    return _card(state, say, "folders", "".join(rows))


def _about(state: SettingsState, say: Say) -> str:
    rows = [(name, value) for name, value in state.versions]
    rows += [(say(f"ui.preferences.path.{id}"), str(path)) for id, path in state.paths]
    rows += [(say(f"ui.preferences.link.{id}"), address) for id, address in LINKS]
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    lead = escape(say("ui.preferences.about.lead"))
    return _card(state, say, "about", f'<p class="soft">{lead}</p><dl>{body}</dl>')


def _quit(state: SettingsState, say: Say) -> str:
    if not (state.quitting and state.working):  # it may just have ended
        lead = say(f"ui.preferences.quit.{state.working or 'idle'}")
        button = _button("quit", say("ui.preferences.quit"))
        return _card(
            state, say, "quit", f'<div class="foot"><p class="soft">{escape(lead)}</p>{button}</div>'
        )
    buttons = (
        _button("quit-now", say(f"ui.preferences.quit.now.{state.working}"), primary=True),
        _button("quit-window", say("ui.preferences.quit.window"), client="close"),
        _button("quit-no", say("ui.page.cancel")),
    )
    question = escape(say(f"ui.preferences.quit.question.{state.working}"))
    note = f'<p class="soft" data-part="left" hidden>{escape(say("ui.preferences.quit.left"))}</p>'
    return _card(
        state,
        say,
        "quit",
        f'<p role="alert"><b>{question}</b></p><div class="answers">{"".join(buttons)}</div>{note}',
    )


# Parts ---------------------------------------------------------------------------------------------------------------


def _card(state: SettingsState, say: Say, name: str, body: str) -> str:
    card, words = state.said
    shown = card == name and bool(words)
    # There in any case: Gradio turns the old card into the new one part by part.
    said = f'<p class="said" role="status"{"" if shown else " hidden"}>{escape(words) if shown else ""}</p>'
    title = escape(say(f"ui.preferences.{name}"))
    return (
        f'<section class="card preference-card" id="settings-{name}"><h3>{title}</h3>{said}{body}</section>'
    )


def _row(say: Say, name: str, control: str, note: str = "", *, tall: bool = False) -> str:
    help_words = " ".join(filter(None, (say(f"ui.preferences.{name}.help"), note)))
    return (
        f'<div class="preference{" tall" if tall else ""}"><div><label for="settings-{name}">'
        f"{escape(say(f'ui.preferences.{name}'))}</label><p>{escape(help_words)}</p></div>"
        f'<div class="control">{control}</div></div>'
    )


def _choice_row(say: Say, state: SettingsState, name: str, values: Sequence[str]) -> str:
    choices = [(say(f"ui.preferences.{name}.{value or 'system'}"), value) for value in values]
    return _row(say, name, _select(name, choices, state.choices[name]), _fixed(state, say, name))


def _fixed(state: SettingsState, say: Say, name: str) -> str:
    return say("ui.preferences.fixed") if name in state.fixed else ""


def _select(name: str, choices: Sequence[tuple[str, str]], value: str, *, off: bool = False) -> str:
    options = "".join(
        f'<option value="{escape(one)}"{" selected" if one == value else ""}>{escape(label)}</option>'
        for label, one in choices
    )
    facts = f'id="settings-{name}" data-do="{name}" data-focus="{name}"{" disabled" if off else ""}'
    return f"<select {facts}>{options}</select>"


def _switch(name: str, on: bool, *, off: bool = False) -> str:
    return (
        f'<input type="checkbox" role="switch" class="switch" id="settings-{name}" data-do="{name}" '
        f'data-focus="{name}"{" checked" if on else ""}{" disabled" if off else ""}>'
    )


def _field(name: str, kind: str, label: str, value: str, do: str, say: Say, hint: str = "") -> str:
    button = _button(do, say("ui.preferences.add" if do == "add-folder" else "ui.preferences.keep"))
    return (
        f'<div class="entry" data-form><input type="{kind}" id="settings-{name}" name="{name}" '
        f'aria-label="{escape(label)}" value="{escape(value)}" placeholder="{escape(hint or label)}" '
        f'autocomplete="off" spellcheck="false" data-focus="{name}">{button}</div>'
    )


def _button(do: str, words: str, *, primary: bool = False, confirm: str = "", client: str = "") -> str:
    asked = f' data-confirm="{escape(confirm)}"' if confirm else ""
    what = f'data-part="{client}"' if client else f'data-do="{do}"'
    look = "say primary" if primary else "say"
    return f'<button type="button" class="{look}" {what}{asked} data-focus="{do}">{escape(words)}</button>'
