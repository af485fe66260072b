"""A folder's tensors as transformers makes the model's weights of them, and back, one group at a time.

Many files name or lay out their tensors otherwise than the model: an expert each, where the model has a stack of all.
transformers knows how (core_model_loading.py, of 5.23) and does it for all weights at once; here for those of a group,
which have to be taken together, such as the experts of a layer. Nothing is computed: numbers are moved alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

from studio.models.catalog import list_weights, read_header

Shape = tuple[int, ...]


@dataclass(slots=True)
class _Group:
    """Tensors of the files that are taken together."""

    transform: Any
    """transformers' own, which is copied before it is used."""
    members: list[tuple[str, str]] = field(default_factory=list)
    """(pattern of transformers, name in the files), in the order in which it wants them."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Weights of a model that are stored together."""

    names: tuple[str, ...]
    """In the model, in its order."""
    shapes: Mapping[str, Shape]
    """By the tensors' names in the files."""


class ConvertedWeights:
    """`read(name)` gives a weight of the model; `store(weights)` makes the files' tensors of a group's, of `groups`."""

    def __init__(self, model: Any, folder: Path, longer: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Read names and shapes alone. longer: tables by name, and how many rows the folder's have and the model's.

        Raises KeyError where a weight of `model` has none in `folder`, or has another shape; what transformers raises
        where it cannot convert.
        """
        self._model = model
        self._places: dict[str, tuple[Path, Shape]] = {
            name: (path, one.shape)
            for path in list_weights(folder)
            for name, one in read_header(path).items()
        }
        self._of: dict[str, _Group] = {}
        own = {name: tuple(one.shape) for name, one in model.named_parameters()}
        mapping = get_model_conversion_mapping(model)
        groups = list(self._group(mapping))
        model._weight_conversions = [one for one in mapping if one.was_used()]
        for group in groups:
            empty = lambda name: torch.empty(self._places[name][1], device="meta")  # noqa: E731 - used at once
            for name, made in self._convert(group, empty).items():
                had = (longer or {}).get(name, made.shape[:1] or (0,))[0]
                if name in own and (had, *own[name][1:]) != tuple(made.shape) and made.shape:
                    raise KeyError(name)
                self._of[name] = group
        if missing := own.keys() - self._of.keys():
            raise KeyError(min(missing))
        self.groups = tuple(self._list_groups(own))

    def _group(self, mapping: list[Any]) -> Iterator[_Group]:
        """Yield what is taken together, as convert_and_load_state_dict_in_model() collects it."""
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        known = {pattern: one for one in converters for pattern in one.source_patterns}
        state = self._model.state_dict()
        prefix, groups = self._model.base_model_prefix, {}
        for name in sorted(self._places, key=dot_natural_key):
            there, pattern = rename_source_key(name, renamings, converters, prefix, state)
            if there not in state and name in state:
                there, pattern = rename_source_key(name, [], [], prefix, state)
            if there not in state:
                continue
            transform = known[pattern] if pattern is not None else WeightRenaming(name, there)
            group = groups.setdefault(there, _Group(transform))
            group.members.append((pattern or name, name))
            self._of.setdefault(there, group)
        for there, group in groups.items():
            group.transform = there, group.transform
            yield group

    def _convert(self, group: _Group, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        there, transform = group.transform
        mine = deepcopy(transform)
        for pattern, name in group.members:
            mine.add_tensor(there, name, pattern, read(name))
        made = mine.convert(there, model=self._model, config=self._model.config)
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}

    def read(self, name: str) -> torch.Tensor:
        """Return a weight by its name in the model, as it is stored; a view of the file where it is a tensor of it."""

        def give(stored: str) -> torch.Tensor:
            with safe_open(self._places[stored][0], framework="pt") as file:
                return file.get_tensor(stored)

        return self._convert(self._of[name], give)[name]

    def _list_groups(self, own: Mapping[str, Shape]) -> Iterator[StoredGroup]:
        """Yield what is stored together, in the order in which the model's own order completes it."""
        together: dict[int, list[str]] = {}
        for name in own:
            together.setdefault(id(self._of[name]), []).append(name)
        last = {names[-1]: names for names in together.values()}
        for name in own:
            if name in last:
                names = tuple(last[name])
                made = self.store({one: torch.empty(own[one], device="meta") for one in names})
                yield StoredGroup(names, {stored: tuple(one.shape) for stored, one in made.items()})

    def store(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the files' tensors, by their names, of the weights of a group, by theirs in the model."""
        return revert_weight_conversion(self._model, dict(weights))
