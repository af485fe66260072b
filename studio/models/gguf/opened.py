"""A GGUF file's model as a folder of the hub: 16-bit weights, config, tokenizer, template; made once and kept.

Whatever trains, chats or exports then works on the folder as on any other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.packages import import_package
from studio.models.gguf.families import GgufFamily, build_config, find_family
from studio.models.gguf.header import GgufHeader, read_header, refuse
from studio.models.gguf.keys import GgufKeys
from studio.models.gguf.tensors import choose_dtype, list_shapes, open_tensors
from studio.models.gguf.tokenizer import STRINGS, write_tokenizer
from studio.models.opened_folder import Report, WeightShards, is_open, name_opened, write_opened
from studio.models.packed_facts import ITEM_BYTES

if TYPE_CHECKING:
    pass

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
        return name_opened(self.header.files[0].stem, self.header.fingerprint)

    @property
    def is_open(self) -> bool:
        """Whether the folder is there."""
        return is_open(self.folder)


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
    report: Report = lambda done_bytes, total_bytes: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Path | None:
    """Write the opened folder of `model` and return it; None when `should_stop` said so: nothing is left then.

    Raises StudioError when the disk is full or the folder cannot be written, the package gguf is missing, or the
    tokenizer is not understood.
    """
    name = model.header.files[0].name

    def write(folder: Path) -> bool:
        import_package("gguf", "gguf")  # missing, it is told before minutes have passed
        header = read_header(model.header.files[0], STRINGS)
        write_tokenizer(header, folder, model.config["max_position_embeddings"])
        _write_texts(model, folder)
        return _write_weights(model, folder, report, should_stop)

    return write_opened(model.folder, name, model.opened_bytes, write)


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


def _write_weights(model: GgufModel, folder: Path, report: Report, should_stop: Callable[[], bool]) -> bool:
    """Write the weights in shards; returns False when it was stopped."""
    shards = WeightShards(folder)
    for name, weight in open_tensors(model.family, GgufKeys(model.header), model.config):
        if should_stop():
            return False
        if tuple(weight.shape) != tuple(model.shapes[name]) and weight.numel() != math.prod(
            model.shapes[name]
        ):
            raise refuse("damaged", model.header.files[0].name)
        shards.add(name, weight)
        report(shards.done_bytes, model.opened_bytes)
    shards.finish()
    return True


def list_model_files(folder: Path) -> list[Path]:
    """Return the first files of the GGUF models directly in `folder`, by name."""
    files = sorted(folder.glob("*.gguf"))
    later = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
    return [file for file in files if "mmproj" not in file.name.lower() and not later.search(file.name)]
