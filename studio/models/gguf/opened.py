"""A GGUF file's model as a folder of the hub: 16-bit weights, config, tokenizer, template; made once and kept.

Whatever trains, chats or exports then works on the folder as on any other. It lies beside the hub's own files (in
HF_HOME), under the file's fingerprint: a copy of the file elsewhere finds it again, a changed one does not.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.atomic_files import FULL, SPARE_DISK_BYTES, replace_file
from studio.core.packages import import_package
from studio.models.gguf.families import GgufFamily, build_config, find_family
from studio.models.gguf.header import GgufHeader, read_header, refuse
from studio.models.gguf.keys import GgufKeys
from studio.models.gguf.tensors import choose_dtype, list_shapes, open_tensors
from studio.models.gguf.tokenizer import STRINGS, write_tokenizer

if TYPE_CHECKING:
    import torch

VERSION = 1
"""Raised when an opened folder of an earlier version is no longer right."""
SHARD_BYTES = 2**30
"""Weights kept in memory until they are written: what opening needs beside the file itself."""
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
ENDS = ("eos", "eot", "eom")
"""Tokens that end an answer, as a file names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufModel:
    """What a file holds, understood but not opened."""

    header: GgufHeader
    family: GgufFamily
    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    """Of every weight by transformers' name."""
    dtype: str
    """PyTorch's name of the opened weights' dtype."""

    @property
    def opened_bytes(self) -> int:
        """Bytes of the opened weights."""
        return sum(map(math.prod, self.shapes.values())) * ITEM_BYTES[self.dtype]

    @property
    def stored_bits(self) -> float:
        """Bits of the file's data a weight."""
        return 8 * self.header.data_bytes / self.header.parameters

    @property
    def has_chat_template(self) -> bool:
        """Whether the file brings a chat template."""
        return bool(str(self.header.metadata.get("tokenizer.chat_template") or "").strip())

    @property
    def folder(self) -> Path:
        """Where the opened folder lies, or will."""
        stem = re.sub(r"[^\w.-]+", "-", self.header.files[0].stem)[:60].strip("-.") or "model"
        return opened_root() / f"{stem}-{self.header.fingerprint[:16]}-{VERSION}"

    @property
    def is_open(self) -> bool:
        """Whether the folder is there: it takes its name when it is whole."""
        return (self.folder / "config.json").is_file()


def opened_root() -> Path:
    """Return the folder in which opened models lie: models live where HF_HOME says, on the disk that has room."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "finetune-studio" / "opened"


def understand(path: Path) -> GgufModel:
    """Return what the file at `path` holds, from its header alone. Raises StudioError for what cannot be opened."""
    header = read_header(path)
    keys = GgufKeys(header)
    family = find_family(keys)
    config = build_config(family, keys)
    return GgufModel(
        header=header,
        family=family,
        config=config,
        shapes=list_shapes(family, keys),
        dtype=choose_dtype(header.tensors),
    )


def open_model(
    model: GgufModel,
    report: Callable[[int, int], None] = lambda done_bytes, total_bytes: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Path | None:
    """Write the opened folder of `model` and return it; None when `should_stop` said so: nothing is left then.

    `report(done_bytes, total_bytes)` as weights are written. Raises StudioError when the disk is full or the folder
    cannot be written, the package gguf is missing, or the tokenizer is not understood.
    """
    if model.is_open:
        return model.folder
    name = model.header.files[0].name
    import_package("gguf", "gguf")  # missing, it is told before anything is written
    staged = model.folder.with_name(f".{model.folder.name}.{os.getpid()}")
    try:
        staged.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(staged).free
        if free_bytes < model.opened_bytes + SPARE_DISK_BYTES:
            gigabytes = {"needed": f"{model.opened_bytes / 1e9:.1f}", "free": f"{free_bytes / 1e9:.1f}"}
            raise refuse("no_space", name, folder=str(opened_root()), **gigabytes)
        header = read_header(model.header.files[0], STRINGS)
        write_tokenizer(header, staged, model.config["max_position_embeddings"])
        _write_texts(model, staged)
        if not _write_weights(model, staged, report, should_stop):
            return None
        replace_file(staged, model.folder)
    except OSError as error:
        if model.is_open:  # another process was faster
            return model.folder
        if error.errno in FULL:
            gigabytes = {"needed": f"{model.opened_bytes / 1e9:.1f}", "free": "0.0"}
            raise refuse("no_space", name, folder=str(opened_root()), **gigabytes) from error
        reason = error.strerror or str(error)
        raise refuse("unwritable", name, folder=str(opened_root()), reason=reason) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return model.folder


def _write_texts(model: GgufModel, folder: Path) -> None:
    """Write config.json, generation_config.json and a card with the licence that the file names."""
    config = dict(model.config) | {"dtype": model.dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    metadata = model.header.metadata
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ENDS]
    ids = list(dict.fromkeys(one for one in ends if isinstance(one, int) and one < config["vocab_size"]))
    generation = {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": ids,
        "pad_token_id": config["pad_token_id"],
    }
    (folder / "generation_config.json").write_text(
        json.dumps({key: value for key, value in generation.items() if value not in (None, [])}, indent=2),
        encoding="utf-8",
    )
    licence = str(metadata.get("general.license") or "").strip()
    head = f"---\nlicense: {licence}\n---\n" if re.fullmatch(r"[\w.+-]+", licence) else ""
    card = f"{head}Opened from {model.header.files[0].name}, whose weights take {model.stored_bits:.1f} bits each.\n"
    (folder / "README.md").write_text(card, encoding="utf-8")


@dataclass
class _Shards:
    """Weights that wait to be written, and where those already written lie."""

    folder: Path
    waiting: dict[str, torch.Tensor] = field(default_factory=dict)
    waiting_bytes: int = 0
    places: dict[str, int] = field(default_factory=dict)
    count: int = 0
    written_bytes: int = 0

    def add(self, name: str, weight: torch.Tensor) -> None:
        """Take a weight; what waits is written where it would be more than a shard with it."""
        if self.waiting_bytes + weight.nbytes > SHARD_BYTES:
            self.write()
        self.waiting[name] = weight
        self.waiting_bytes += weight.nbytes

    def write(self) -> None:
        """Write what waits as one shard."""
        from safetensors.torch import save_file

        if not self.waiting:
            return
        self.count += 1
        save_file(self.waiting, self.folder / f"part-{self.count}.safetensors", metadata={"format": "pt"})
        self.places |= dict.fromkeys(self.waiting, self.count)
        self.written_bytes += self.waiting_bytes
        self.waiting, self.waiting_bytes = {}, 0

    def name(self) -> None:
        """Give the shards their names of the hub, and write the index where there are several."""
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


def _write_weights(
    model: GgufModel, folder: Path, report: Callable[[int, int], None], should_stop: Callable[[], bool]
) -> bool:
    """Write the weights in shards; returns False when it was stopped."""
    shards = _Shards(folder)
    for name, weight in open_tensors(model.family, GgufKeys(model.header), model.config):
        if should_stop():
            return False
        if tuple(weight.shape) != tuple(model.shapes[name]) and weight.numel() != math.prod(
            model.shapes[name]
        ):
            raise refuse("damaged", model.header.files[0].name)
        shards.add(name, weight)
        report(shards.written_bytes + shards.waiting_bytes, model.opened_bytes)
    shards.write()
    shards.name()
    return True


def list_model_files(folder: Path) -> list[Path]:
    """Return the first files of the GGUF models directly in `folder`, by name."""
    files = sorted(folder.glob("*.gguf"))
    later = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
    return [file for file in files if "mmproj" not in file.name.lower() and not later.search(file.name)]
