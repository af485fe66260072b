"""Writes assets/models.json, the models that the Model tab advises: `python assets/make_models.py`.

A config alone does not tell the shapes inside of today's families, and a studio that is just opened has no time to
build them: so each model is built here, without weights, and what is known of its inside is written down.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

APACHE, MIT = "Apache-2.0", "MIT"
QWEN_3 = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960}
QWEN_3_5 = {"vocab_size": 248_320, "head_dim": 256, "max_position_embeddings": 262_144}
MINISTRAL = {"vocab_size": 131_072, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
GEMMA_4 = {"vocab_size": 262_144, "max_position_embeddings": 131_072, "final_logit_softcapping": 30.0}
FULL_EVERY_6 = [*["sliding_attention"] * 5, "full_attention"]

MODELS: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM", APACHE, "llama", {
        "num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49_152, "max_position_embeddings": 8192, "tie_word_embeddings": True}),
    ("Qwen/Qwen3-0.6B", "Qwen3", APACHE, "qwen3", {
        **QWEN_3, "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072,
        "num_attention_heads": 16, "tie_word_embeddings": True}),
    ("Qwen/Qwen3.5-0.8B", "Qwen3.5", APACHE, "qwen3_5", {"text_config": {
        **QWEN_3_5, "num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 3584,
        "num_attention_heads": 8, "num_key_value_heads": 2, "linear_num_value_heads": 16,
        "tie_word_embeddings": True}, "tie_word_embeddings": True, "vision_config": {
        "depth": 12, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12, "out_hidden_size": 1024}}),
    ("HuggingFaceTB/SmolLM3-3B", "SmolLM", APACHE, "smollm3", {
        "max_position_embeddings": 65_536, "tie_word_embeddings": True}),
    ("mistralai/Ministral-3-3B-Instruct-2512-BF16", "Ministral", APACHE, "mistral3", {"text_config": {
        **MINISTRAL, "model_type": "ministral3", "num_hidden_layers": 26, "hidden_size": 3072,
        "intermediate_size": 9216, "tie_word_embeddings": True}, "tie_word_embeddings": True}),
    ("microsoft/Phi-4-mini-instruct", "Phi-4", MIT, "phi3", {
        "num_hidden_layers": 32, "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24,
        "num_key_value_heads": 8, "vocab_size": 200_064, "max_position_embeddings": 131_072,
        "sliding_window": None, "tie_word_embeddings": True}),
    ("Qwen/Qwen3.5-4B", "Qwen3.5", APACHE, "qwen3_5", {"text_config": {
        **QWEN_3_5, "num_hidden_layers": 32, "hidden_size": 2560, "intermediate_size": 9216,
        "num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": True},
        "tie_word_embeddings": True, "vision_config": {"out_hidden_size": 2560}}),
    ("google/gemma-4-E2B-it", "Gemma 4", APACHE, "gemma4", {}),
    ("google/gemma-4-E4B-it", "Gemma 4", APACHE, "gemma4", {"text_config": {
        **GEMMA_4, "num_hidden_layers": 42, "hidden_size": 2560, "intermediate_size": 10_240,
        "num_attention_heads": 8, "num_key_value_heads": 2, "num_kv_shared_layers": 18, "sliding_window": 512,
        "use_double_wide_mlp": False, "layer_types": FULL_EVERY_6 * 7}}),
    ("Qwen/Qwen3-8B", "Qwen3", APACHE, "qwen3", {
        **QWEN_3, "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12_288,
        "num_attention_heads": 32, "tie_word_embeddings": False}),
    ("mistralai/Ministral-3-8B-Instruct-2512-BF16", "Ministral", APACHE, "mistral3", {"text_config": {
        **MINISTRAL, "model_type": "ministral3", "num_hidden_layers": 34, "hidden_size": 4096,
        "intermediate_size": 14_336, "tie_word_embeddings": False}, "tie_word_embeddings": False}),
    ("Qwen/Qwen3.5-9B", "Qwen3.5", APACHE, "qwen3_5", {"text_config": {
        **QWEN_3_5, "tie_word_embeddings": False}}),
    ("mistralai/Ministral-3-14B-Instruct-2512-BF16", "Ministral", APACHE, "mistral3", {"text_config": {
        **MINISTRAL, "model_type": "ministral3", "num_hidden_layers": 40, "hidden_size": 5120,
        "intermediate_size": 16_384, "tie_word_embeddings": False}, "tie_word_embeddings": False}),
    ("microsoft/phi-4", "Phi-4", MIT, "phi3", {
        "num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 17_920, "num_attention_heads": 40,
        "num_key_value_heads": 10, "vocab_size": 100_352, "max_position_embeddings": 16_384,
        "sliding_window": None, "tie_word_embeddings": False}),
    ("openai/gpt-oss-20b", "gpt-oss", APACHE, "gpt_oss", {
        "num_hidden_layers": 24, "num_local_experts": 32, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "tie_word_embeddings": False}),
    ("google/gemma-4-26B-A4B-it", "Gemma 4", APACHE, "gemma4", {"text_config": {
        **GEMMA_4, "max_position_embeddings": 262_144, "num_hidden_layers": 30, "hidden_size": 2816,
        "intermediate_size": 2112, "num_attention_heads": 16, "num_key_value_heads": 8,
        "num_global_key_value_heads": 2, "attention_k_eq_v": True, "sliding_window": 1024,
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": True, "num_experts": 128,
        "top_k_experts": 8, "moe_intermediate_size": 704, "layer_types": FULL_EVERY_6 * 5}}),
    ("Qwen/Qwen3.5-27B", "Qwen3.5", APACHE, "qwen3_5", {"text_config": {
        **QWEN_3_5, "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 17_408,
        "num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48,
        "tie_word_embeddings": False}, "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
        "num_heads": 16, "out_hidden_size": 5120}}),
    ("zai-org/GLM-4.7-Flash", "GLM", MIT, "glm4_moe_lite", {}),
    ("google/gemma-4-31B-it", "Gemma 4", APACHE, "gemma4", {"text_config": {
        **GEMMA_4, "max_position_embeddings": 262_144, "num_hidden_layers": 60, "hidden_size": 5376,
        "intermediate_size": 21_504, "num_attention_heads": 32, "num_key_value_heads": 16,
        "num_global_key_value_heads": 4, "attention_k_eq_v": True, "sliding_window": 1024,
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "layer_types": FULL_EVERY_6 * 10}}),
    ("Qwen/Qwen3.5-35B-A3B", "Qwen3.5", APACHE, "qwen3_5_moe", {"text_config": {
        "max_position_embeddings": 262_144}}),
)  # fmt: skip
"""Hub id, the line that it belongs to, licence, model_type and what its config.json says otherwise; ascending by size.

Of public cards and configs, 2026-11-27; all of them are downloaded without a login.
"""
STORED = {"openai/gpt-oss-20b": 13_800_000_000}
"""Bytes to download of those that are not stored in 16 bits."""


def build_facts(source: str, family: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ModelFacts of a model as JSON has them: built without weights by its own family's code."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from studio.core.codec import to_json
    from studio.core.facts import ModelFacts
    from studio.models.architectures import judge_config
    from studio.models.config_shapes import read_shapes
    from studio.models.sdpa import supports_sdpa

    config = AutoConfig.for_model(family, **settings, dtype="bfloat16")
    text_config = config.get_text_config()
    maker = AutoModelForCausalLM if text_config is config else AutoModelForImageTextToText
    with torch.device("meta"):
        model = maker.from_config(config)
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    architecture = type(model).__name__
    written = {**config.to_dict(), "architectures": [architecture]}
    parameters = sum(map(math.prod, shapes.values()))
    return to_json(
        ModelFacts(
            source=source,
            name=source,
            folder="",
            architecture=architecture,
            family=family,
            parameters=parameters,
            weight_bytes=2 * parameters,
            dtype="bf16",
            quantization="none",
            sdpa=supports_sdpa(family, architecture),
            has_chat_template=True,
            trainable=judge_config(written, architecture, "none"),
            **read_shapes(family, text_config.to_dict(), shapes),
        )
    )


def main() -> int:
    """Write the file."""
    entries = []
    for source, line, licence, family, settings in MODELS:
        facts = build_facts(source, family, settings)
        stored = STORED.get(source, facts["weight_bytes"])
        entries.append({"line": line, "licence": licence, "stored_bytes": stored, "facts": facts})
        print(f"{source}: {facts['parameters'] / 1e9:.2f}e9 parameters, {facts['trainable']['ok']}")
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    (ROOT / "assets" / "models.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
