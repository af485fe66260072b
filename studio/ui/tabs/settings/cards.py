"""What the Settings tab tells: one card a subject, one row a setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from studio.core.facts import Gpu
from studio.core.i18n import LANGUAGES
from studio.hub.access_token import NO_MIRROR, Mirror, TokenPlace, takes_token
from studio.services.preferences import PreferencesPart
from studio.ui.templates import render

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


def settings_body(state: SettingsState, say: Say) -> Markup:
    """Return all cards, in two columns where there is room."""
    if state.ended:
        return render("tabs/settings/ended.html", say)
    token = state.token
    where = say(f"ui.preferences.token.{token.place or 'nowhere'}", name=token.name) if token else ""
    outside = say("ui.preferences.token.outside", name=state.token_variable) if state.token_variable else ""
    gpus = [(f"{gpu.name} · {gpu.vram_bytes / 2**30:.0f} GiB", uuid) for uuid, gpu in state.cards]
    return render(
        "tabs/settings/body.html",
        say,
        state=state,
        said=state.said,
        languages=[(LANGUAGE_NAMES[tag], tag) for tag in LANGUAGES],
        gpus=[(say("ui.preferences.gpu.all"), ""), *gpus],
        shares=[(f"{share:.0%}", f"{share:g}") for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)],
        memory_share=f"{state.choices['memory_share']:g}",
        token_where=f"{where} {outside}".strip(),
        safe=takes_token(state.mirror.address),
        total=sum(part.size_bytes for part in state.parts),
        caches=next((part.size_bytes for part in state.parts if part.id == "caches"), 0),
        about=[
            *state.versions,
            *((say(f"ui.preferences.path.{id}"), str(path)) for id, path in state.paths),
            *((say(f"ui.preferences.link.{id}"), address) for id, address in LINKS),
        ],
    )
