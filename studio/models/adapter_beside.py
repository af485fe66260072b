"""What an adapter holds beside its corrections of low rank: modules trained in full, rows of tables, longer tables.

For a drawn model (streamed_model.py): read from the adapter's file when they are asked for, in the place of the base's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from safetensors import safe_open
from torch import nn

from studio.core.json_file import read_json
from studio.models.catalog import read_header
from studio.models.modules_to_save import PREFIX, adapter_state
from studio.models.new_tokens import count_rows

ROWS = ".token_adapter.trainable_tokens_delta"
"""How the name of a table's trained rows goes on behind the table's."""


@dataclass(frozen=True, slots=True)
class AdapterBeside:
    """Weights in the file of an adapter, by the names that the model has them under."""

    path: Path
    whole: Mapping[str, str]
    """Name in the model -> name in the file, of weights trained in full."""
    rows: Mapping[str, tuple[str, tuple[int, ...]]]
    """Name in the model -> name in the file, and which rows of the table it holds."""
    longer: Mapping[str, tuple[int, int]]
    """Name in the model -> rows that the base's table has, and that it gets."""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing beside the corrections."""
        return not (self.whole or self.rows or self.longer)

    def put_corrections(self, model: nn.Module) -> PeftModel | None:
        """Return a drawn `model` with the adapter's corrections alone; None where peft would rename what it holds."""
        config = PeftConfig.from_pretrained(self.path.parent)
        config.modules_to_save = config.trainable_token_indices = None
        config.inference_mode, config.base_model_name_or_path = True, model.name_or_path
        adapted = get_peft_model(model, config)
        beside = {*self.whole.values(), *(name for name, _ in self.rows.values())}
        own, stored = adapter_state(adapted), read_header(self.path).keys() - beside
        if own.keys() != stored:
            return None
        with safe_open(self.path, framework="pt") as file, torch.no_grad():
            for name in stored:
                own[name].copy_(file.get_tensor(name))
        return adapted

    def read(self, read: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
        """Return what gives the weights that `read` gives of the base, with these in their places.

        New rows of a table begin as new_tokens.enlarge() lets them.
        """

        def give(name: str) -> torch.Tensor:
            with safe_open(self.path, framework="pt") as file:
                weight = file.get_tensor(self.whole[name]) if name in self.whole else read(name)
                had, needed = self.longer.get(name, (len(weight) if weight.dim() else 0,) * 2)
                if name not in self.rows and len(weight) == needed:
                    return weight
                table = torch.empty((needed, *weight.shape[1:]))
                table[: len(weight)] = weight
                if len(weight) == had < needed:
                    table[had:] = table[:had].sum(0).div_(had)
                if name in self.rows:
                    stored, places = self.rows[name]
                    table.index_copy_(0, torch.tensor(places), file.get_tensor(stored).float())
                return table

        return give


def find_beside(model: nn.Module, folder: Path) -> AdapterBeside | None:
    """Return what the adapter in `folder` has for a drawn `model` beside its corrections, whose tables grow with it.

    None where it holds something that is no weight of the model: it has to be loaded as a whole.
    """
    path, config = folder / "adapter_model.safetensors", read_json(folder / "adapter_config.json")
    own, stored = dict(model.named_parameters()), read_header(path)
    indices: Any = config.get("trainable_token_indices") or {}
    whole: dict[str, str] = {}
    rows: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in stored:
        plain = name.removeprefix(PREFIX)
        if ".lora_" in name:
            continue
        if plain.endswith(ROWS):
            table = plain.removesuffix(ROWS)
            ids = [one for end, one in indices.items() if f".{table}".endswith(f".{end}")]
            if len(ids) != 1 or len(ids[0]) != stored[name].shape[0] or f"{table}.weight" not in own:
                return None
            rows[f"{table}.weight"] = name, tuple(ids[0])
        elif plain in own:
            whole[plain] = name
        else:
            return None
    longer = _lengthen(model, count_rows(folder))
    own = dict(model.named_parameters())
    fit = all(tuple(own[plain].shape) == tuple(stored[name].shape) for plain, name in whole.items())
    return AdapterBeside(path, whole, rows, longer) if fit and longer is not None else None


def _lengthen(model: nn.Module, needed: int) -> dict[str, tuple[int, int]] | None:
    """Give the tables of a drawn model `needed` rows, where they have fewer: see new_tokens.enlarge()."""
    had = model.get_input_embeddings().weight.shape[0]
    if needed <= had:
        return {}
    ends = [one for one in (model.get_input_embeddings(), model.get_output_embeddings()) if one is not None]
    if any(getattr(one, "bias", None) is not None or len(one.weight) != had for one in ends):
        return None
    names = {id(one): name for name, one in model.named_parameters()}
    longer = {}
    for end in ends:
        longer[names[id(end.weight)]] = had, needed
        if len(end.weight) == had:
            end.weight.data = torch.zeros(()).expand(needed, *end.weight.shape[1:])
        if isinstance(end, nn.Embedding):
            end.num_embeddings = needed
        else:
            end.out_features = needed
    model.config.get_text_config().vocab_size = needed
    return longer
