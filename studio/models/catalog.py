"""What a model folder is, read from its config and its safetensors headers without loading it."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts, Verdict
from studio.core.i18n import text
from studio.core.json_file import TooDeep, parse_json
from studio.hub import modelscope
from studio.models.architectures import judge_config
from studio.models.config_shapes import CONFIG_DTYPES, read_shapes
from studio.models.gguf.facts import describe_gguf, find_gguf, name_gguf, read_gguf
from studio.models.opened_folder import is_open
from studio.models.packed_facts import describe_packed
from studio.models.sdpa import supports_sdpa
from studio.models.stored_weights import OPENED, find_opened, list_opened_shapes, name_form, read_forms

DEMO_MODEL = Path(__file__).resolve().parents[2] / "assets" / "demo_model"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HEADER_LIMIT_BYTES = 100_000_000
"""safetensors' own limit for a header."""
DTYPE_NAMES = {
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
    "F64": "fp64",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
}
LOADED_LATER = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""What transformers reads beside config.json, long after a run has begun."""
# What bitsandbytes stores beside a quantised weight: scales and code books, no parameters of the model.
QUANTIZATION_STATE = re.compile(
    r"\.(absmax|quant_map|nested_absmax|nested_quant_map|SCB|weight_format)$|\.quant_state\.bitsandbytes"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModel:
    """A model that is on this machine, for a picker."""

    source: str
    """What a recipe's `model.source` takes: `demo`, a folder, or a hub id."""
    name: str
    architecture: str
    weight_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """One entry of a safetensors header; `dtype` as safetensors spells it, such as `BF16`."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    start_bytes: int
    """Where its data begins in the file."""


def inspect_model(source: str, *, revision: str = "", cache_lookup: bool = True) -> ModelFacts:
    """Return what `source` is: `demo`, a folder, a GGUF file, or a hub id (looked up in the caches, never downloaded).

    The caches are the hub library's and, without a revision, ModelScope's. A hub model that is not (wholly) in them
    has folder "" and no shape, a GGUF file that is not opened yet folder "" alone. Raises StudioError when there is no
    such folder, or it is no model, or its weights are incomplete, damaged or stored as pickles.
    """
    if source == "demo":
        return _inspect_folder(DEMO_MODEL, source, "demo")
    folder = Path(os.path.expanduser(source))  # Path's own raises RuntimeError for a person who is not there
    file = find_gguf(source, folder) if source else None
    if file is not None:
        return _inspect_gguf(file, source)
    if source and folder.exists():
        return _inspect_folder(folder, source, folder.resolve().name)
    if not HUB_ID.fullmatch(source):
        raise _refusal("model.missing", source=source)
    cached = find_local(source, revision) if cache_lookup else None
    if cached is None:
        return _not_downloaded(source)
    return _inspect_folder(cached, source, source)


def find_cached(hub_id: str, revision: str = "") -> Path | None:
    """Return the folder of a hub model in the local cache, or None unless its config and all its weights are there."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, "config.json", revision=revision or None)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if _is_whole(folder) else None


def find_local(hub_id: str, revision: str = "") -> Path | None:
    """Return the folder of a hub model in the hub library's cache or, of no particular revision, in ModelScope's."""
    cached = find_cached(hub_id, revision)
    if cached is not None or revision:
        return cached
    return next((folder for folder in modelscope.find_folders(hub_id) if _is_usable(folder)), None)


def _is_whole(folder: Path) -> bool:
    """Return whether all weights are there that a folder's index names; pickles count, so that they can be refused."""
    index = folder / "model.safetensors.index.json"
    names = _shard_names(_read_json(index)) if index.is_file() else ["model.safetensors"]
    has_pickles_only = not index.is_file() and any(folder.glob("*.bin"))
    return has_pickles_only or all((folder / name).is_file() for name in names)


def _is_usable(folder: Path) -> bool:
    """Return whether a folder of ModelScope's is whole; one of pickles only must not hide the hub's own model."""
    return _is_whole(folder) and any(folder.glob("*.safetensors"))


def list_local_models(folders: Iterable[str | Path] = ()) -> tuple[LocalModel, ...]:
    """Return the models at or directly below `folders`, then those that are whole in the hub's cache and ModelScope's.

    Reads directory listings and configs only; inspect_model tells whether a model can be trained.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    found: list[LocalModel | None] = []
    for folder in map(Path, folders):
        below = sorted(folder.iterdir()) if folder.is_dir() else []
        found += [_describe_lightly(path, str(path), path.name) for path in (folder, *below)]
    cache = Path(HF_HUB_CACHE)
    for repository in sorted(cache.glob("models--*--*")) if cache.is_dir() else ():
        hub_id = repository.name.removeprefix("models--").replace("--", "/", 1)
        cached = find_cached(hub_id)
        if cached is not None:
            found.append(_describe_lightly(cached, hub_id, hub_id))
    for hub_id, folder in modelscope.list_folders():
        if _is_usable(folder):
            found.append(_describe_lightly(folder, hub_id, hub_id))
    first: dict[str, LocalModel] = {}
    for model in found:
        if model is not None:
            first.setdefault(model.source, model)
    return tuple(first.values())


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors that a safetensors file holds, by name.

    Layout: 8 bytes little-endian header size, the header as JSON, the data. Raises StudioError when the header
    cannot be read or the file is shorter than its header says.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        header_bytes = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < header_bytes <= min(HEADER_LIMIT_BYTES, size_bytes - 8):
            raise _refusal("model.weights.damaged", file=path.name)
        try:
            entries = parse_json(file.read(header_bytes))
            tensors = {
                name: StoredTensor(
                    dtype=entry["dtype"],
                    shape=tuple(entry["shape"]),
                    size_bytes=entry["data_offsets"][1] - entry["data_offsets"][0],
                    start_bytes=8 + header_bytes + entry["data_offsets"][0],
                )
                for name, entry in entries.items()
                if name != "__metadata__"
            }
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise _refusal("model.weights.damaged", file=path.name) from error
    expected_bytes = 8 + header_bytes + sum(tensor.size_bytes for tensor in tensors.values())
    if size_bytes < expected_bytes:
        raise _refusal("model.weights.short", file=path.name, size=size_bytes, expected=expected_bytes)
    return tensors


def _inspect_folder(folder: Path, source: str, name: str) -> ModelFacts:
    config = _read_config(folder, name)
    for path in (folder / name for name in LOADED_LATER):
        if path.is_file():
            _read_json(path)
    tensors, weight_bytes = read_weights(folder, name)
    quantization = name_quantization(config)
    if quantization in OPENED:
        return _describe_stored(folder, source, name, config, tensors)
    shape = config.get("text_config", config)
    stored = _largest_dtype(tensors)
    written = (
        shape.get("dtype") or shape.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    )
    dtype = CONFIG_DTYPES.get(str(written), "fp32") if quantization != "none" else stored
    architecture = next(iter(config.get("architectures") or ()), "")
    family, shapes = str(config.get("model_type", "")), _unpacked_shapes(tensors)
    return ModelFacts(
        source=source,
        name=name,
        folder=str(folder.resolve()),
        architecture=architecture,
        family=family,
        parameters=sum(map(math.prod, shapes.values())),
        weight_bytes=weight_bytes,
        dtype=dtype,
        quantization=quantization,
        sdpa=supports_sdpa(family, architecture),
        has_chat_template=_has_chat_template(folder),
        trainable=judge_config(config, architecture, quantization),
        **read_shapes(family, shape, shapes),
    )


def _inspect_gguf(file: Path, source: str) -> ModelFacts:
    model, name = read_gguf(file), name_gguf(source, file)
    return (
        _inspect_folder(model.folder, source, name) if model.is_open else describe_gguf(model, source, name)
    )


def _describe_stored(
    folder: Path, source: str, name: str, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> ModelFacts:
    """Return the facts of a folder whose weights are opened before they train: those of its opened folder."""
    opened = find_opened(folder, list_weights(folder))
    if is_open(opened):
        return _inspect_folder(opened, source, name)
    shapes = list_opened_shapes(tensors, name, read_forms(config))
    count = sum(map(math.prod, shapes.values()))
    stored_bytes = sum(tensor.size_bytes for tensor in tensors.values())
    values = {"bits": f"{8 * stored_bytes / count:.1f}", "size": f"{2 * count / 1e9:.1f}"}
    return describe_packed(
        source,
        name,
        {key: value for key, value in config.items() if key != "quantization_config"},
        shapes,
        dtype="bfloat16",
        has_chat_template=_has_chat_template(folder),
        opening=text("stored.opened_later", name=name, **values),
    )


def find_folder(source: str, revision: str = "") -> Path | None:
    """Return the folder on this disk that holds the model `source` as it is stored, opened or not."""
    if source == "demo":
        return DEMO_MODEL
    folder = Path(os.path.expanduser(source))
    return folder if folder.is_dir() else find_local(source, revision)


def _not_downloaded(hub_id: str) -> ModelFacts:
    return ModelFacts(
        source=hub_id,
        name=hub_id,
        folder="",
        architecture="",
        family="",
        parameters=0,
        weight_bytes=0,
        dtype="",
        quantization="none",
        hidden_size=0,
        layers=0,
        vocabulary=0,
        max_positions=0,
        has_chat_template=False,
        trainable=Verdict(ok=True, reason=text("model.not_downloaded", name=hub_id)),
    )


def _read_config(folder: Path, name: str) -> dict[str, Any]:
    if folder.is_file():
        raise _refusal(
            "gguf.damaged" if folder.suffix.lower() == ".gguf" else "model.is_file", name=folder.name
        )
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise _refusal("model.adapter", name=name)
    if not (folder / "config.json").is_file():
        raise _refusal("model.no_config", name=name)
    config = _read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise _refusal("model.config_damaged", name=name)
    return config


def read_weights(folder: Path, name: str) -> tuple[dict[str, StoredTensor], int]:
    """Return all tensors of the model `name` by their names, and the bytes of their files. Raises StudioError."""
    paths = list_weights(folder)
    if not paths and any(path.suffix in (".bin", ".pt", ".pth", ".ckpt") for path in folder.iterdir()):
        raise _refusal("model.pickle_only", name=name)
    if not paths:
        raise _refusal("model.weights.missing", name=name)
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        if not path.is_file():
            raise _refusal("model.weights.shard_missing", name=name, file=path.name)
        tensors |= read_header(path)
    return tensors, sum(path.stat().st_size for path in paths)


def list_weights(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files that a model in `folder` consists of: its index's, there or not, or the one.

    Raises StudioError for an index that names none.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _shard_names(_read_json(index))
        if not names:
            raise _refusal("model.weights.damaged", file=index.name)
        return tuple(folder / name for name in names)
    single = folder / "model.safetensors"
    return (single,) if single.is_file() else ()


def _shard_names(index: Any) -> list[str]:
    """Return the file names of a sharded checkpoint's index; a name that leaves the folder is not accepted."""
    weights = index.get("weight_map") if isinstance(index, dict) else None
    names = sorted({str(name) for name in weights.values()}) if isinstance(weights, dict) else []
    return [name for name in names if Path(name).name == name]


def _read_json(path: Path) -> Any:
    """Return the JSON data of a file, None when it is not JSON. Raises StudioError for what is nested too deeply.

    transformers takes no mark before UTF-8, and what is nested deeply ends it with a RecursionError.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except TooDeep as error:
        raise _refusal("model.deep", file=path.name) from error
    except ValueError:
        return None


def _unpacked_shapes(tensors: Mapping[str, StoredTensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter; (n, 1) for one of n weights that are packed two a byte."""
    return {
        name: (2 * math.prod(tensor.shape), 1)
        if tensor.dtype == "U8" and f"{name}.absmax" in tensors
        else tensor.shape
        for name, tensor in tensors.items()
        if not QUANTIZATION_STATE.search(name)
    }


def _largest_dtype(tensors: Mapping[str, StoredTensor]) -> str:
    sizes: dict[str, int] = {}
    for tensor in tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size_bytes
    largest = max(sizes, key=sizes.__getitem__, default="")
    return DTYPE_NAMES.get(largest, largest.lower())


def name_quantization(config: Mapping[str, Any]) -> str:
    """Return how a config says that the stored weights are quantised: none, nf4, int8 or another method's name."""
    settings = config.get("quantization_config")
    if not isinstance(settings, dict):
        return "none"
    if settings.get("load_in_4bit"):
        return str(settings.get("bnb_4bit_quant_type", "nf4"))
    if settings.get("load_in_8bit"):
        return "int8"
    return name_form(settings)


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    settings = folder / "tokenizer_config.json"
    data = _read_json(settings) if settings.is_file() else None
    return isinstance(data, dict) and bool(data.get("chat_template"))


def read_added_words(folder: Path) -> frozenset[str]:
    """Return the words of the added tokens of the tokenizer in `folder`, as its files list them."""
    words: set[str] = set()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        data = _read_json(folder / name) if (folder / name).is_file() else None
        if isinstance(data, dict):
            settings = data.get("added_tokens_decoder")
            tokens = (
                *(data.get("added_tokens") or ()),
                *(settings.values() if isinstance(settings, dict) else ()),
            )
            words |= {
                str(token["content"]) for token in tokens if isinstance(token, dict) and "content" in token
            }
    return frozenset(words)


def _describe_lightly(folder: Path, source: str, name: str) -> LocalModel | None:
    try:
        config = _read_json(folder / "config.json") if (folder / "config.json").is_file() else None
        weights = [path for path in folder.iterdir() if path.suffix == ".safetensors"] if config else []
    except (
        PermissionError,
        StudioError,
    ):  # another user's folder is no model of ours, nor what cannot be read
        return None
    if not weights:
        return None
    architecture = next(iter(config.get("architectures") or ()), "") if isinstance(config, dict) else ""
    size_bytes = sum(path.stat().st_size for path in weights)
    return LocalModel(source=source, name=name, architecture=architecture, weight_bytes=size_bytes)


def _refusal(id: str, **values: object) -> StudioError:
    return StudioError(*(text(f"{id}{part}", **values) for part in ("", ".why", ".fix")))
