"""Adapters for vLLM: what its rules take is said to be served, and the rest is refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from studio.core.i18n import load_catalogue
from studio.core.recipe import AdapterSpec
from studio.models.adapt import adapt
from studio.models.gguf.adapter_file import CONFIG, WEIGHTS
from studio.models.served_adapter import find_unserved, serve_command
from tests.models.gguf.models import MODELS, make_folder

PLAIN = ("llama", "qwen3", "gemma3", "phi3")


def split_as_vllm(name: str) -> str:
    """Return the module that vLLM's loader puts a tensor into; raises ValueError for a name that it does not take.

    By the documented rule: the front `base_model.model.` is taken off, and what is left is a module, `lora_A` or
    `lora_B`, and `weight`.
    """
    parts = name.removeprefix("base_model.model.").split(".")
    if (
        not name.startswith("base_model.model.")
        or parts[-1] != "weight"
        or parts[-2] not in ("lora_A", "lora_B")
    ):
        raise ValueError(name)
    return ".".join(parts[:-2])


def save(tmp_path, family="llama", **spec):
    """Save the studio's own adapter on a tiny model; return its folder and the model."""
    (tmp_path / "base").mkdir()
    model = make_folder(tmp_path / "base", *MODELS[family])
    linears = {name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    adapt(model, AdapterSpec(**spec)).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", linears


@pytest.mark.parametrize(
    "family", [PLAIN[0], *(pytest.param(one, marks=pytest.mark.computing) for one in PLAIN[1:])]
)
def test_every_name_of_an_adapter_is_a_linear_map_of_its_base(family, tmp_path):
    folder, linears = save(tmp_path, family, rank=24)
    assert find_unserved(folder) is None
    modules = {split_as_vllm(name) for name in load_file(folder / WEIGHTS)}
    assert len(modules) > 6 and modules <= linears
    said = serve_command(folder, "owner/base", "mine")
    assert said == f"vllm serve owner/base --enable-lora --lora-modules mine={folder} --max-lora-rank 32"


@pytest.mark.parametrize(
    ("spec", "change", "told"),
    [
        ({"dora": True}, {}, "use_dora"),
        ({}, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({}, {"bias": "all"}, "bias"),
        ({}, {"peft_type": "IA3"}, "peft_type=IA3"),
        ({}, {"alpha_pattern": {"q_proj": 3}}, "scales of their own"),
        ({}, {"rank_pattern": {"q_proj": 4}}, "scales of their own"),
        ({}, {"r": 1024}, "1024"),
    ],
)
def test_what_vllm_does_not_take_is_refused_by_name(spec, change, told, tmp_path):
    folder, _ = save(tmp_path, **spec)
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    (folder / CONFIG).write_text(json.dumps(config | change), encoding="utf-8")
    reason = find_unserved(folder)
    assert reason is not None and told in load_catalogue("en").say(reason)


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.experts.lora_A", "base_model.model.lm_head.lora_A.weight"]
)
def test_tensors_of_other_parts_are_refused_by_name(name, tmp_path):
    folder, _ = save(tmp_path)
    other = shutil.copytree(folder, tmp_path / "other")
    save_file(load_file(folder / WEIGHTS) | {name: torch.zeros(2, 2)}, other / WEIGHTS)
    reason = find_unserved(other)
    assert reason is not None and name.split(".lora_A")[0].split("model.")[-1] in load_catalogue("en").say(
        reason
    )
