"""The person's settings: a small JSON file in the workspace, written in one step. No secret is ever in it.

`language` the window's language   `theme` light, dark, "" for the system's   `window` app, tab
`model_folders` further folders with models   `exports_folder` "" for the workspace's   `hub_endpoint` a mirror's
address, "" for the hub itself   `mirror_token` whether that one may have the hub's token
`repairs_off`, `repairs_on` names of machine/repairs.py
and what acts through the environment of the studio's processes, from their next start on (choose_environment):
`gpu` the UUID of the one card to use, "" for all   `memory_share` of what is free   `kernels` auto, off   `offline`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.i18n import LANGUAGES, literal, text
from studio.core.json_file import parse_json
from studio.hub.offline import OFFLINE_VARIABLE
from studio.machine.workspace import KERNELS_VARIABLE, MEMORY_VARIABLE, Workspace

CARDS_VARIABLE = "CUDA_VISIBLE_DEVICES"
CHOSEN_VARIABLE = "FINETUNE_STUDIO_CHOSEN"
"""What the settings changed in a process's environment, as JSON: {variable: value before, null for unset}."""
CHOICES = {
    "language": ("", *LANGUAGES),
    "theme": ("", "light", "dark"),
    "window": ("app", "tab"),
    "kernels": ("auto", "off"),
    "memory_share": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5),
    "offline": (False, True),
    "mirror_token": (False, True),
}
"""Settings with a few values, the default first."""
WORDS = ("hub_endpoint", "exports_folder", "gpu")
LISTS = ("repairs_off", "repairs_on", "model_folders")
LOCK_WAIT_S = 10.0


def read_settings(workspace: Workspace) -> dict[str, Any]:
    """Return the person's settings; a file that cannot be read counts as none, and what it names wrongly is dropped."""
    try:
        return _load(workspace)
    except (OSError, StudioError):
        return {}


def _load(workspace: Workspace) -> dict[str, Any]:
    """Return the settings, none without a file. Raises StudioError for one that is damaged, OSError."""
    try:
        # Notepad of older Windows puts a mark before what a person edits there.
        words = workspace.settings.read_text(encoding="utf-8-sig")
        settings = parse_json(words) if words.strip() else {}  # empty after a power cut: nothing is lost
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _refuse_broken(workspace, str(error)) from error
    if not isinstance(settings, dict):
        raise _refuse_broken(workspace, json.dumps(settings)[:80])
    for name, allowed in CHOICES.items():
        if settings.get(name, allowed[0]) not in allowed:
            settings.pop(name)
    if not settings.get("language"):
        settings.pop("language", None)
    for name in LISTS:
        names = settings.get(name, [])
        settings[name] = [word for word in names if isinstance(word, str)] if isinstance(names, list) else []
    for name in WORDS:
        if not isinstance(settings.get(name, ""), str):
            settings.pop(name)
    return settings


def change_settings(workspace: Workspace, **changes: Any) -> None:
    """Set these settings and leave the others as they are.

    Raises StudioError for a damaged file, which stays as it is: the person's other settings are in it. OSError.
    """
    _change(workspace, lambda settings: changes)


def switch_repair(workspace: Workspace, name: str, *, on: bool) -> None:
    """Let a repair (machine/repairs.py) be done from the next start on, or leave it. Raises as change_settings does."""

    def switch(settings: dict[str, Any]) -> dict[str, Any]:
        off = [word for word in settings.get("repairs_off", []) if word != name]
        wanted = [word for word in settings.get("repairs_on", []) if word != name]
        (wanted if on else off).append(name)
        return {"repairs_off": off, "repairs_on": wanted}

    _change(workspace, switch)


def _change(workspace: Workspace, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Set what `change` makes of the settings; nobody else changes them meanwhile, in another process neither."""
    from filelock import FileLock  # takes 20 ms: the window's first page reads settings and changes none

    with FileLock(workspace.locks / "settings.lock", timeout=LOCK_WAIT_S, mode=0o600, thread_local=False):
        settings = _load(workspace)
        write_json(workspace.settings, settings | change(settings), lasting=True)


def choose_environment(settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `settings` put into a process's environment.

    A variable that the person has set in `environment` stays: who starts the studio so means it so.
    """
    wanted = {}
    if settings.get("gpu"):
        wanted[CARDS_VARIABLE] = settings["gpu"]
    if settings.get("kernels") == "off":
        wanted[KERNELS_VARIABLE] = "pytorch"
    if settings.get("memory_share", 1.0) < 1.0:
        wanted[MEMORY_VARIABLE] = str(settings["memory_share"])
    chosen = {name: value for name, value in wanted.items() if not environment.get(name)}
    return chosen | ({OFFLINE_VARIABLE: "1"} if settings.get("offline") else {})


def apply_choices(settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with what `settings` choose; what it changed stands in CHOSEN_VARIABLE."""
    chosen = choose_environment(settings, environment)
    if not chosen:
        return dict(environment)
    before = {name: environment.get(name) for name in chosen}
    return {**environment, **chosen, CHOSEN_VARIABLE: json.dumps(before)}


def read_chosen(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` that the settings chose, with their values."""
    return {name: environment[name] for name in _read_before(environment) if name in environment}


def undo_choices(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` as it was before apply_choices."""
    original = {name: value for name, value in environment.items() if name != CHOSEN_VARIABLE}
    for name, value in _read_before(environment).items():
        original.pop(name, None)
        if value is not None:
            original[name] = value
    return original


def keep_choices(environment: Mapping[str, str], process: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with the choices that the environment `process` has, in place of its own."""
    noted = {CHOSEN_VARIABLE: process[CHOSEN_VARIABLE]} if CHOSEN_VARIABLE in process else {}
    return {**undo_choices(environment), **read_chosen(process), **noted}


def _refuse_broken(workspace: Workspace, reason: str) -> StudioError:
    path = str(workspace.settings)
    return StudioError(
        text("settings.broken"), literal(reason), text("settings.broken.fix", path=path), exit_code=1
    )


def _read_before(environment: Mapping[str, str]) -> dict[str, str | None]:
    try:
        return dict(parse_json(environment.get(CHOSEN_VARIABLE, "{}")))
    except (ValueError, TypeError):
        return {}
