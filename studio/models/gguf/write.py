"""A folder of a model as one GGUF file, written tensor by tensor: in memory is the largest, and what packs it.

plan_file()    what the file will say and hold, from the folder's config, tokenizer and shapes: no weights are read
write_file()   the file
compare_file() the file read again as any other: its config, tokens and weights are the folder's
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.models.catalog import list_weights, read_header
from studio.models.gguf.block_types import BlockType
from studio.models.gguf.config_keys import Unsaid, list_keys
from studio.models.gguf.families import FAMILIES, GgufFamily
from studio.models.gguf.file_tensors import FileTensor, build_stored, list_stored
from studio.models.gguf.file_writer import GgufWriter, measure_file
from studio.models.gguf.header import refuse
from studio.models.gguf.quantize import CARD_VALUES, quantize
from studio.models.gguf.tensor_types import BY_NAME, TypeMix, choose_types
from studio.models.gguf.tokenizer_keys import list_tokenizer_keys

if TYPE_CHECKING:
    import torch

STAND_INS = {"mistral": "llama"}
"""Families whose models are another's where they have no window: that one's files hold them."""
TIED = "lm_head.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePlan:
    """What a file will say and hold."""

    folder: Path
    family: GgufFamily
    config: Mapping[str, Any]
    """Of the language model, as its class writes it."""
    tensors: tuple[FileTensor, ...]
    types: Mapping[str, BlockType]
    """By the tensors' names."""
    metadata: Mapping[str, Any]
    factors: Mapping[str, Any]
    """Short tensors that the config makes, as numpy has them."""

    @property
    def table(self) -> list[tuple[str, tuple[int, ...], BlockType]]:
        """Name, shape and form of each tensor, in their order."""
        made = [(name, one.shape, BY_NAME["F32"]) for name, one in self.factors.items()]
        return made + [(one.name, one.shape, self.types[one.name]) for one in self.tensors]

    @property
    def size_bytes(self) -> int:
        """Bytes of the file, exactly."""
        return measure_file(self.metadata, self.table)


def find_written(model_type: str) -> GgufFamily | None:
    """Return the family that a model of `model_type` is written as; None for one that is not written here."""
    named = STAND_INS.get(model_type, model_type)
    return next((family for family in FAMILIES if family.model_type == named), None)


def plan_file(folder: Path, mix: TypeMix, name: str, file: str) -> FilePlan:
    """Return what the file of the model in `folder` will hold.

    `name`: what the model is called in the file; `file`: the file's own name, for refusals. Raises StudioError for a
    family, a setting, a tokenizer or a weight that a GGUF file cannot hold.
    """
    from transformers import AutoConfig

    written = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    inner = written.get_text_config()
    family = find_written(inner.model_type)
    if family is None:
        raise refuse("no_family", file, family=inner.model_type)
    config = config_as_family(inner, family, file)
    shapes = {key: tensor.shape for path in list_weights(folder) for key, tensor in read_header(path).items()}
    tied = TIED not in {key.rpartition("language_model.")[2] for key in shapes}
    config |= {"tie_word_embeddings": tied}
    tensors = list_stored(family, shapes, config, file)
    rows = next(one.shape[0] for one in tensors if one.name == "token_embd.weight")
    try:
        keys, factors = list_keys(family.model_type, config)
    except (Unsaid, KeyError) as error:
        setting = str(error.args[0])
        raise refuse("not_said", file, setting=setting, value=str(config.get(setting))[:60]) from error
    metadata: dict[str, Any] = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": name,
        "general.file_type": mix.number,
        "general.quantization_version": 2,
    }
    metadata |= {f"{family.architecture}.{key}": value for key, value in keys.items()}
    metadata |= list_tokenizer_keys(folder, rows, family.architecture, file)
    types = choose_types(mix, tensors, tied=tied)
    return FilePlan(
        folder=folder, family=family, config=config, tensors=tensors, types=types, metadata=metadata, factors=factors
    )  # fmt: skip


def write_file(
    plan: FilePlan,
    path: Path,
    importance: Mapping[str, torch.Tensor] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
    *,
    goes_on: bool = False,
) -> None:
    """Write the file. `importance`: by a tensor's name, how much an error in each of its columns counts.

    goes_on: what a dead process wrote of the same file is kept, up to its last whole tensor; the caller lets the
    journal beside it go. report: told (bytes written, in all) after each part, may raise. Raises OSError.
    """
    import torch

    device = torch.device(
        "cuda" if torch.cuda.is_available() else "cpu"
    )  # the search is 60 times as fast there
    with ExitStack() as stack:
        read = open_folder(plan.folder, stack)
        file = stack.enter_context(GgufWriter(path, plan.metadata, plan.table, goes_on=goes_on))
        for place, values in enumerate(plan.factors.values()):
            if place >= file.kept:
                file.write(values.tobytes())
        for place, tensor in enumerate(plan.tensors, len(plan.factors)):
            if place < file.kept:
                continue
            weight = build_stored(plan.family, tensor, plan.config, read)
            form = plan.types[tensor.name]
            for data in pack_tensor(weight, form, (importance or {}).get(tensor.name), device):
                file.write(data)
                report(file.size_bytes, plan.size_bytes)


def pack_tensor(
    weight: torch.Tensor,
    form: BlockType,
    importance: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, a part at a time, packed on `device` as far as there is room.

    importance: (columns,), or (experts, columns) for a tensor of as many experts.
    """
    import torch

    plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    columns = weight.shape[-1] if weight.dim() else 1
    if importance is not None and importance.dim() == 2:
        for part, own in zip(weight, importance, strict=True):
            yield from pack_tensor(part, form, own, device)
        return
    rows = weight.reshape(-1, columns)
    step = max(1, CARD_VALUES // columns)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        if form.name in plain:
            packed = part.to(plain[form.name]).contiguous().view(torch.uint8)
        else:
            packed = quantize(part, form.name, importance, device)
        yield memoryview(packed.contiguous().numpy()).cast("B")


def open_folder(folder: Path, stack: ExitStack) -> Callable[[str], torch.Tensor]:
    """Return what reads a weight of the folder by its name."""
    from safetensors import safe_open

    places: dict[str, Any] = {}
    for path in list_weights(folder):
        shard = stack.enter_context(safe_open(path, framework="pt"))
        places |= dict.fromkeys(shard.keys(), shard)
    return lambda name: places[name].get_tensor(name)


def config_as_family(inner: Any, family: GgufFamily, file: str) -> dict[str, Any]:
    """Return a config as the family's class has it. Raises StudioError where that family has no such setting."""
    from transformers import CONFIG_MAPPING

    config = inner.to_dict()
    if inner.model_type == family.model_type:
        return config
    if config.get("sliding_window"):
        raise refuse("not_said", file, setting="sliding_window", value=str(config["sliding_window"]))
    known = CONFIG_MAPPING[family.model_type]().to_dict()
    return CONFIG_MAPPING[family.model_type](
        **{key: value for key, value in config.items() if key in known and key != "model_type"}
    ).to_dict()
