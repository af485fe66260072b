"""Folders of 16-bit weights that models stored in fewer bits are opened into: made once, whole or not at all, and kept.

They lie beside the hub's own files (in HF_HOME), under a fingerprint of what they were opened from: a copy elsewhere
finds them again, a changed model does not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from studio.core.atomic_files import FULL, SPARE_DISK_BYTES, replace_file
from studio.core.errors import StudioError
from studio.core.i18n import text

if TYPE_CHECKING:
    import torch

VERSION = 1
"""Raised when an opened folder of an earlier version is no longer right."""
SHARD_BYTES = 2**30
"""Weights kept in memory until they are written: what opening needs beside the model itself."""
SAMPLES, SAMPLE_BYTES = 64, 4096
"""How much of a model's data a fingerprint looks at: two tunings of a model differ everywhere."""
Report = Callable[[int, int], None]
"""Told (done_bytes, total_bytes) as weights are written."""


def opened_root() -> Path:
    """Return the folder in which opened models lie: models live where HF_HOME says, on the disk that has room."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "finetune-studio" / "opened"


def name_opened(stem: str, fingerprint: str) -> Path:
    """Return where the model `stem` lies when it is open."""
    plain = re.sub(r"[^\w.-]+", "-", stem)[:60].strip("-.") or "model"
    return opened_root() / f"{plain}-{fingerprint[:16]}-{VERSION}"


def is_open(folder: Path) -> bool:
    """Return whether an opened folder is there: it takes its name when it is whole."""
    return (folder / "config.json").is_file()


def write_opened(folder: Path, name: str, needed_bytes: int, write: Callable[[Path], bool]) -> Path | None:
    """Let `write` fill a folder that then takes the name `folder`; None, and nothing is left, where it returns False.

    `name`: what a person calls the model. Raises StudioError when the disk is full or the place cannot be written.
    """
    if is_open(folder):
        return folder
    staged = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        staged.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(staged).free
        if free_bytes < needed_bytes + SPARE_DISK_BYTES:
            raise _refuse_space(name, needed_bytes, free_bytes)
        if not write(staged):
            return None
        replace_file(staged, folder)
    except OSError as error:
        if is_open(folder):  # another process was faster
            return folder
        if error.errno in FULL:
            raise _refuse_space(name, needed_bytes, 0) from error
        values = {"name": name, "folder": str(opened_root()), "reason": error.strerror or str(error)}
        raise StudioError(
            *(text(f"gguf.unwritable{end}", **values) for end in ("", ".why", ".fix"))
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def _refuse_space(name: str, needed_bytes: int, free_bytes: int) -> StudioError:
    gigabytes = {"needed": f"{needed_bytes / 1e9:.1f}", "free": f"{free_bytes / 1e9:.1f}"}
    values = {"name": name, "folder": str(opened_root())} | gigabytes
    return StudioError(*(text(f"gguf.no_space{end}", **values) for end in ("", ".why", ".fix")))


@dataclass
class WeightShards:
    """Weights that wait to be written into `folder`, and where those already written lie."""

    folder: Path
    waiting: dict[str, torch.Tensor] = field(default_factory=dict)
    waiting_bytes: int = 0
    places: dict[str, int] = field(default_factory=dict)
    count: int = 0
    written_bytes: int = 0

    @property
    def done_bytes(self) -> int:
        """Bytes of all weights taken so far."""
        return self.written_bytes + self.waiting_bytes

    def add(self, name: str, weight: torch.Tensor) -> None:
        """Take a weight; what waits is written where it would be more than a shard with it."""
        if self.waiting_bytes + weight.nbytes > SHARD_BYTES:
            self._write()
        self.waiting[name] = weight
        self.waiting_bytes += weight.nbytes

    def finish(self) -> None:
        """Write the last shard, give all their names of the hub, and write the index where there are several."""
        self._write()
        names = {
            number: f"model-{number:05}-of-{self.count:05}.safetensors"
            if self.count > 1
            else "model.safetensors"
            for number in range(1, self.count + 1)
        }
        for number, name in names.items():
            (self.folder / f"part-{number}.safetensors").rename(self.folder / name)
        if self.count > 1:
            places = {weight: names[number] for weight, number in self.places.items()}
            index = {"metadata": {"total_size": self.written_bytes}, "weight_map": places}
            (self.folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

    def _write(self) -> None:
        from safetensors.torch import save_file

        if not self.waiting:
            return
        self.count += 1
        save_file(self.waiting, self.folder / f"part-{self.count}.safetensors", metadata={"format": "pt"})
        self.places |= dict.fromkeys(self.waiting, self.count)
        self.written_bytes += self.waiting_bytes
        self.waiting, self.waiting_bytes = {}, 0
