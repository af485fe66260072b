"""What is kept of the sharing: share.json, which the window writes, link.json, the supervisor's answer, share.log."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studio.core.atomic_files import trim_log
from studio.core.codec import from_json
from studio.core.errors import StudioError
from studio.core.i18n import Text
from studio.core.json_file import read_json
from studio.machine.workspace import Workspace

WAYS = ("tunnel", "lan")
ROLES = ("viewer", "owner")
LOG_LIMIT_BYTES = 1_000_000
SESSION_VARIABLE = "FINETUNE_STUDIO_SESSION"
"""Made by the supervisor at its start: what was open under another one is not opened again."""
PHRASES_VARIABLE = "FINETUNE_STUDIO_PHRASES"
"""JSON, role -> pass phrase: what the supervisor tells its terminal; taken out of the environment at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestConnection:
    """One browser that came in with the phrase. Times in Unix seconds; `seen_s` is its last request."""

    id: str
    role: str
    token_hash: str
    address: str
    agent: str
    since_s: float
    seen_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """One role's way in. `phrase` is "" where it is not known any more, `link` "" until there is one."""

    role: str
    way: str
    port: int
    opened_s: float
    expires_s: float
    salt: str
    phrase_hash: str
    phrase: str = field(default="", repr=False)
    link: str = ""
    problem: Text | None = None


def state_file(workspace: Workspace) -> Path:
    """Return where the openings are noted: the supervisor reads there which tunnels are wanted."""
    return workspace.root / "share.json"


def link_file(workspace: Workspace) -> Path:
    """Return where the supervisor notes the links of its tunnels: {session, links: {role: {port, link, problem}}}."""
    return workspace.root / "link.json"


def read_state(workspace: Workspace) -> dict[str, Any]:
    """Return what is noted as open, as _save() wrote it; {} for nothing and for a damaged file."""
    try:
        state = read_json(state_file(workspace))
        for part, cls in (("openings", Opening), ("connections", GuestConnection)):
            if not all(one.role in ROLES for one in [from_json(cls, data) for data in state[part]]):
                return {}
    except (KeyError, TypeError, AttributeError, StudioError):
        return {}
    return state if all(one["way"] in WAYS for one in state["openings"]) else {}


def read_links(
    workspace: Workspace, known: tuple[int, dict[str, Any]], session: str
) -> tuple[int, dict[str, Any]]:
    """Return (when the supervisor wrote it, role -> {port, link, problem}) for `session`; `known` when nothing is new.

    A damaged file, and one of another session, hold no link.
    """
    path = link_file(workspace)
    try:
        changed = path.stat().st_mtime_ns
        if changed == known[0]:
            return known
        told = read_json(path)
        links = told["links"].items() if told.get("session") == session else ()
        return changed, {role: one for role, one in links if isinstance(one, Mapping)}
    except (OSError, KeyError, TypeError, AttributeError, StudioError):
        return 0, {}


def note(workspace: Workspace, event: str, **values: object) -> None:
    """Add one line to the book of who came and went; it holds no phrase and no cookie."""
    line = {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "event": event, **values}
    with suppress(OSError):  # a full disk: no reason to keep a guest in, or out
        path = trim_log(workspace.logs / "share.log", LOG_LIMIT_BYTES)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
