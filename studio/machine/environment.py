"""The environment that a process of the studio starts with: its own variables, repairs, and the person's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from studio.machine.detect import look_around
from studio.machine.nvml import list_cards
from studio.machine.repairs import (
    APPLIED_VARIABLE,
    Applied,
    apply_repairs,
    choose_repairs,
    restore_environment,
)
from studio.machine.settings import apply_choices, read_settings, undo_choices
from studio.machine.workspace import Workspace, child_environment


def prepare_environment(workspace: Workspace, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process of the studio, made from `base` before its interpreter starts.

    Repairs are chosen anew from what `base` was before any earlier ones, as the settings allow them; what they changed
    stands as JSON in APPLIED_VARIABLE. Takes about 0.1 s: the machine is looked at, nothing heavy is loaded.
    """
    original = restore_environment(undo_choices(base))
    settings = read_settings(workspace)
    machine = look_around(original, workspace.root)
    applied = choose_repairs(machine, settings.get("repairs_off", ()), settings.get("repairs_on", ()))
    environment = apply_repairs(child_environment(workspace, original), applied)
    _make_folders(applied)
    if applied:
        before = {repair.name: _before(original, repair) for repair in applied}
        environment[APPLIED_VARIABLE] = json.dumps(before)
    # A card that was taken out would leave the studio without any.
    if settings.get("gpu") and settings["gpu"] not in (uuid for uuid, _ in list_cards()):
        settings = settings | {"gpu": ""}
    return apply_choices(settings, environment)


def _make_folders(applied: tuple[Applied, ...]) -> None:
    """Make the folders that a repair moved temporary files and compiled kernels to, for this user alone.

    A TEMP that is not there counts as none, and who can write into the kernels' folder can have code run.
    """
    moved = [repair.changes for repair in applied if repair.name == "plain_temp"]
    for folder in {Path(changes[name]) for changes in moved for name in changes if changes[name]}:
        # Where it cannot be made, tempfile takes the next folder, and the doctor names the one that failed.
        with suppress(OSError):
            # Python closes a folder of mode 0o700 to others on Windows too (from 3.12.4 and 3.11.10 on).
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)


def _before(original: Mapping[str, str], repair: Applied) -> dict[str, str | None]:
    """Return the variables that `repair` changes as they were, under the names that they had."""
    names = {name.upper(): name for name in original}
    return {
        names.get(name.upper(), name): original.get(names.get(name.upper(), name)) for name in repair.changes
    }
