"""What a person sets for the studio as a whole, checked, kept, and asked for where it acts."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import Gpu
from studio.core.i18n import literal, text
from studio.hub.access_token import VARIABLES, TokenPlace, keep_token, look_at_token
from studio.machine.environment import prepare_environment
from studio.machine.nvml import list_cards
from studio.machine.settings import (
    CHOICES,
    change_settings,
    choose_environment,
    read_chosen,
    read_settings,
    undo_choices,
)
from studio.machine.workspace import Workspace, clear_caches, count_bytes

TOKEN = re.compile(r"[\x21-\x7e]{8,400}")
PACKAGES = ("torch", "transformers", "peft", "trl", "bitsandbytes", "triton", "gradio")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencesPart:
    """A part of the workspace: `id` is runs, exports, datasets, caches or logs."""

    id: str
    path: Path
    size_bytes: int


class Preferences:
    """One workspace's settings. `is_busy` tells whether something works with the caches, such as a run or an export."""

    def __init__(self, workspace: Workspace, is_busy: Callable[[], bool] = lambda: False) -> None:
        self.workspace = workspace
        self._is_busy = is_busy
        self._token: TokenPlace | None = None

    # Choices ------------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """Return every choice of CHOICES, and `gpu`, as it stands in the settings."""
        settings = read_settings(self.workspace)
        return {name: settings.get(name, allowed[0]) for name, allowed in CHOICES.items()} | {
            "gpu": settings.get("gpu", "")
        }

    def choose(self, name: str, value: Any) -> None:
        """Keep one choice. Raises StudioError for a value that is none, OSError."""
        allowed = CHOICES.get(name, ("", *(uuid for uuid, _ in self.cards())) if name == "gpu" else ())
        if value not in allowed:
            raise _refuse("choice", value=str(value)[:80])
        change_settings(self.workspace, **{name: value})

    def cards(self) -> tuple[tuple[str, Gpu], ...]:
        """Return (UUID, Gpu) of the cards that there are to choose from; none where fewer than two are known."""
        cards = list_cards()
        return cards if len(cards) > 1 else ()

    def fixed(self) -> tuple[str, ...]:
        """Return the settings that the person's own environment decides, whatever is chosen here."""
        original = undo_choices(os.environ)
        wanted = {"gpu": "x", "kernels": "off", "memory_share": CHOICES["memory_share"][-1]}
        free = choose_environment(wanted, {})
        left = choose_environment(wanted, original)
        names = dict(zip(wanted, free, strict=True))
        return tuple(name for name, variable in names.items() if variable not in left)

    def restart_waits(self) -> bool:
        """Return whether the settings ask for another environment than this process started with."""
        return read_chosen(prepare_environment(self.workspace, os.environ)) != read_chosen(os.environ)

    # Folders ------------------------------------------------------------------------------------------------------

    def model_folders(self) -> tuple[Path, ...]:
        """Return the further folders that are looked through for models."""
        return tuple(Path(path) for path in read_settings(self.workspace).get("model_folders", ()))

    def add_model_folder(self, words: str) -> Path:
        """Have a folder looked through for models. Raises StudioError: no folder, not to be read, there already."""
        path = _read_folder(words)
        known = self.model_folders()
        if path in known:
            raise _refuse("folder_known", path=str(path))
        change_settings(self.workspace, model_folders=[str(one) for one in (*known, path)])
        return path

    def drop_model_folder(self, words: str) -> None:
        """Look through a folder no longer; the folder itself stays as it is."""
        kept = [str(path) for path in self.model_folders() if str(path) != words]
        change_settings(self.workspace, model_folders=kept)

    def chosen_exports_folder(self) -> str:
        """Return where exports go instead of the workspace's own folder, "" for nowhere else."""
        return read_settings(self.workspace).get("exports_folder", "")

    def set_exports_folder(self, words: str) -> None:
        """Let exports go to another folder, "" for the workspace's own. Raises StudioError when it cannot be used."""
        if not words.strip():
            change_settings(self.workspace, exports_folder="")
            return
        path = _read_folder(words)
        if not os.access(path, os.W_OK):
            raise _refuse("folder_closed", path=str(path))
        change_settings(self.workspace, exports_folder=str(path))

    def parts(self) -> tuple[PreferencesPart, ...]:
        """Return what the workspace holds, with sizes; takes 0.1 s for ten thousand files."""
        space = self.workspace
        caches = (space.root / "cache", space.tmp)
        named = {"runs": (space.runs,), "exports": (space.exports,), "datasets": (space.datasets,)}
        named |= {"caches": caches, "logs": (space.logs,)}
        return tuple(
            PreferencesPart(id=id, path=paths[0], size_bytes=sum(map(count_bytes, paths)))
            for id, paths in named.items()
        )

    def empty_caches(self) -> int:
        """Delete what is made again when it is needed; returns the bytes. Raises StudioError while it is, OSError."""
        if self._is_busy():
            raise _refuse("caches_used")
        return clear_caches(self.workspace)

    # The hub's token ----------------------------------------------------------------------------------------------

    def token(self, *, wait: bool = True) -> TokenPlace | None:
        """Return where the token is kept and how it ends, never the token; asked for once, which takes 0.2 s or more.

        Without `wait` None while it is not known.
        """
        if self._token is None and wait:
            self._token = look_at_token()
        return self._token

    def token_variable(self) -> str:
        """Return the variable of the person's environment whose token goes before ours; "" without one."""
        return next((name for name in VARIABLES if os.environ.get(name, "").strip()), "")

    def keep_token(self, words: str) -> None:
        """Keep a token for the model hub, "" for none. Raises StudioError when it is none or cannot be kept."""
        token = words.strip()
        if token and not TOKEN.fullmatch(token):
            raise _refuse("token")
        kept = keep_token(token)
        self._token = None
        if not kept:
            raise _refuse("token_lost")

    # About --------------------------------------------------------------------------------------------------------

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return (name, version) of the studio, Python and the libraries that matter; those that are absent are not."""
        found = [("Finetune Studio", _own_version()), ("Python", platform.python_version())]
        for name in PACKAGES:
            try:
                found.append((name, version(name)))
            except PackageNotFoundError:
                continue
        return tuple(found)

    def paths(self) -> tuple[tuple[str, Path], ...]:
        """Return (id, path): the program, its Python, the workspace."""
        return (("program", ROOT), ("python", Path(sys.executable)), ("workspace", self.workspace.root))


def _own_version() -> str:
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    return found.group(1) if found else ""


def _read_folder(words: str) -> Path:
    """Return the folder that a person named. Raises StudioError when it is none that can be read."""
    plain = words.strip().strip('"')
    path = Path(os.path.expanduser(plain))
    if not plain or not path.is_absolute():
        raise _refuse("folder_relative", path=plain)
    if not path.is_dir():
        raise _refuse("folder_absent", path=str(path))
    try:
        next(path.iterdir(), None)
    except OSError as error:
        raise _refuse("folder_closed", path=str(path)) from error
    return path.resolve()


def _refuse(kind: str, **values: str) -> StudioError:
    said = {name: literal(value) for name, value in values.items()}
    return StudioError(*(text(f"preferences.{kind}{part}", **said) for part in ("", ".why", ".fix")))
