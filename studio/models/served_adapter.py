"""What vLLM asks of a LoRA adapter that it is to serve beside its base, without loading either.

Sources: vLLM's documentation of LoRA adapters, and the reasons that its loader gives (vllm/lora, Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.models.gguf.adapter_file import CONFIG, WEIGHTS, find_unsaid

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` takes; without it 16."""
NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_[AB]\.weight")
ENDS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")
"""Last names of what vLLM adapts for some models alone: embeddings and the output head."""


def find_unserved(folder: Path) -> Text | None:
    """Return why vLLM does not serve the adapter in `folder`, or would by other numbers; None when it does."""
    from safetensors import safe_open

    config = read_json(folder / CONFIG)
    setting = find_unsaid(folder) or ("" if config.get("bias", "none") == "none" else "bias")
    if setting:
        return text("served_adapter.setting", setting=setting)
    rank = _read_rank(config)
    if config.get("alpha_pattern") or {*(config.get("rank_pattern") or {}).values()} - {rank}:
        return text("served_adapter.scales")  # it multiplies every map by one alpha / r
    if rank > RANKS[-1]:
        return text("served_adapter.rank", rank=rank, most=RANKS[-1])
    with safe_open(folder / WEIGHTS, framework="numpy") as file:
        names = [*file.keys()]
    found = [NAME.fullmatch(name) for name in names]
    odd = next((name for name, one in zip(names, found, strict=True) if one is None), "")
    if odd:
        return text("served_adapter.name", name=odd)
    end = next((one["module"] for one in found if one and one["module"].rsplit(".", 1)[-1] in ENDS), "")
    return text("served_adapter.end", name=end) if end else None


def serve_command(folder: Path, base: str, name: str, said: str = "") -> str:
    """Return the command by which vLLM serves the adapter in `folder` as the model `name`.

    find_unserved() has said that it can. said: how the command names the folder, where not by its path.
    """
    rank = _read_rank(read_json(folder / CONFIG))
    most = next(one for one in RANKS if one >= rank)
    return f"vllm serve {base} --enable-lora --lora-modules {name}={said or folder} --max-lora-rank {most}"


def _read_rank(config: Mapping[str, Any]) -> int:
    """Return the rank in an adapter's config; 8 is peft's own."""
    return int(config.get("r", 8))
