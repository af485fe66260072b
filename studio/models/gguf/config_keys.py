"""The keys of a GGUF file from a config of transformers: what family_configs.py reads, written.

Whether a file says all that a config does is not decided here: the written file is read again and its config compared
(written.py), so a key that is forgotten is a refusal, and never a wrong model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from studio.models.gguf.rope import stretch_llama3

Keys = dict[str, Any]
KEPT = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logit_scale",
    "logits_scaling": "logit_scale",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "conv_L_cache": "shortconv.l_cache",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
}
"""Numbers that a config and a file call differently, and that are the same."""
WINDOWED = "sliding_attention"


class Unsaid(Exception):
    """A GGUF file has no place for a setting of a config; the text is its name."""


def list_keys(family: str, config: Mapping[str, Any]) -> tuple[Keys, Keys]:
    """Return the keys of an architecture without its name in front, and short tensors of factors by their names.

    `family`: transformers' model_type; `config`: that of the language model as a dict.
    Raises Unsaid, and KeyError for a setting that llama.cpp wants and the config lacks.
    """
    keys = {key: config[name] for name, key in KEPT.items() if config.get(name) is not None}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if "head_dim" not in config and family == "lfm2":
        del keys["attention.key_length"], keys["attention.value_length"]
    rope = config.get("rope_parameters") or {}
    factors: Keys = {}
    if family == "olmo3" and "full_attention" in rope:  # layers with a window are never stretched
        rope = rope["full_attention"]
    if "rope_type" in rope or "rope_theta" in rope:
        factors = _add_rope(keys, rope, head_dim, config)
    if family in SPECIAL:
        factors |= SPECIAL[family](keys, config) or {}
    return {key: value for key, value in keys.items() if value is not None}, factors


def _add_rope(keys: Keys, rope: Mapping[str, Any], head_dim: int, config: Mapping[str, Any]) -> Keys:
    """Add how queries and keys turn; returns the tensors that llama.cpp keeps of it."""
    import numpy as np

    kind, theta = rope.get("rope_type", "default"), float(rope["rope_theta"])
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    turned = int(head_dim * share)
    keys |= {"rope.freq_base": theta, "rope.dimension_count": turned}
    if kind == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    elif kind == "yarn":
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        named = (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow"))
        for name, key in (*named, ("attention_factor", "yarn_attn_factor")):
            if rope.get(name) is not None:
                keys[f"rope.scaling.{key}"] = float(rope[name])
    elif kind == "llama3":
        length = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        waves = [theta ** (2 * place / turned) * 2 * math.pi for place in range(turned // 2)]
        values = [stretch_llama3(wave, rope["factor"], low, high, length) for wave in waves]
        return {"rope_freqs.weight": np.asarray(values, dtype=np.float32)}
    elif kind == "longrope":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        keys["rope.scaling.attn_factor"] = scale_longrope(rope, config["max_position_embeddings"])
        return {
            f"rope_factors_{part}.weight": np.asarray(rope[f"{part}_factor"], dtype=np.float32)
            for part in ("long", "short")
        }
    return {}


def scale_longrope(rope: Mapping[str, Any], longest: int) -> float:
    """Return by how much queries and keys are scaled: as a config says, else LongRoPE's sqrt(1 + ln s / ln n).

    s: how much longer than n, the first length, a text may be (Ding et al., LongRoPE, arXiv 2402.13753).
    """
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    first = rope["original_max_position_embeddings"]
    stretch = longest / first
    return math.sqrt(1 + math.log(stretch) / math.log(first)) if stretch > 1 else 1.0


def _list_windows(config: Mapping[str, Any]) -> list[bool]:
    return [kind == WINDOWED for kind in config["layer_types"]]


def _add_gemma3(keys: Keys, config: Mapping[str, Any]) -> Keys:
    rope = config["rope_parameters"]
    factors = _add_rope(keys, rope["full_attention"], config["head_dim"], config)
    keys["rope.freq_base_swa"] = float(rope[WINDOWED]["rope_theta"])
    if not any(_list_windows(config)):
        keys["attention.sliding_window"] = 0
    return factors


def _read_layer(config: Mapping[str, Any], number: int, name: str, usual: Any) -> Any:
    """Return what a config says of one layer, where it says something else than of all."""
    layers = config.get("per_layer_config") or {}
    return (layers.get(str(number)) or layers.get(number) or {}).get(name, usual)


def _add_gemma4(keys: Keys, config: Mapping[str, Any]) -> Keys:
    import numpy as np

    rope, windows = config["rope_parameters"], _list_windows(config)
    full, first = rope["full_attention"], windows.index(False)
    wide = _read_layer(config, first, "head_dim", config.get("global_head_dim") or config["head_dim"])
    keys |= {
        "rope.freq_base": float(full["rope_theta"]),
        "rope.freq_base_swa": float(rope[WINDOWED]["rope_theta"]),
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": config["head_dim"],
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.sliding_window_pattern": windows,
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
    }
    own = config["num_key_value_heads"]
    shared = _read_layer(
        config, first, "num_key_value_heads", config.get("num_global_key_value_heads") or own
    )
    if shared != own:
        keys["attention.head_count_kv"] = [own if one else shared for one in windows]
    if config.get("use_double_wide_mlp") and config["num_kv_shared_layers"]:
        own = config["num_hidden_layers"] - config["num_kv_shared_layers"]
        narrow = config["intermediate_size"]
        keys["feed_forward_length"] = [
            narrow if number < own else 2 * narrow for number in range(len(windows))
        ]
    turned = int(full.get("partial_rotary_factor", 1.0) * wide / 2)
    return {"rope_freqs.weight": np.asarray([1.0] * turned + [1e30] * (wide // 2 - turned), dtype=np.float32)}


def _add_exaone4(keys: Keys, config: Mapping[str, Any]) -> None:
    if config.get("sliding_window") and (config["num_hidden_layers"], config["sliding_window"]) != (64, 4096):
        raise Unsaid("sliding_window")  # llama.cpp knows the windows of the 32B model alone, by its 64 layers


def _add_windows(keys: Keys, config: Mapping[str, Any]) -> None:
    if not config.get("sliding_window"):
        return
    keys["attention.sliding_window_pattern"] = _list_windows(config)


def _add_phi3(keys: Keys, config: Mapping[str, Any]) -> None:
    keys["attention.sliding_window"] = config.get("sliding_window") or 0
    keys.setdefault(
        "rope.scaling.original_context_length",
        config.get("original_max_position_embeddings") or config["max_position_embeddings"],
    )


def _add_ministral3(keys: Keys, config: Mapping[str, Any]) -> None:
    rope = config["rope_parameters"]
    keys["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
    keys["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])


def _add_layer_norms(keys: Keys, config: Mapping[str, Any]) -> None:
    keys["use_parallel_residual"] = bool(config.get("use_parallel_residual", True))


def _add_experts(keys: Keys, config: Mapping[str, Any]) -> None:
    keys["expert_weights_norm"] = bool(config["norm_topk_prob"])
    keys["expert_gating_func"] = 2  # scores one by one, by the sigmoid


def _add_shared_expert(keys: Keys, config: Mapping[str, Any]) -> None:
    keys.setdefault("feed_forward_length", config["shared_expert_intermediate_size"])


def _add_gpt_oss(keys: Keys, config: Mapping[str, Any]) -> None:
    keys["expert_feed_forward_length"] = config["intermediate_size"]


def _add_lfm2(keys: Keys, config: Mapping[str, Any]) -> None:
    heads = config["num_key_value_heads"]
    keys["attention.head_count_kv"] = [
        heads if kind == "full_attention" else 0 for kind in config["layer_types"]
    ]
    # A folder's config may name the width before it is rounded (`block_auto_adjust_ff_dim`): the matrix has it.


def _add_qwen35(keys: Keys, config: Mapping[str, Any]) -> None:
    keys["ssm.inner_size"] = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    rope = config["rope_parameters"]
    if rope.get("mrope_section"):
        keys["rope.dimension_sections"] = [*rope["mrope_section"], 0]
    kinds = config["layer_types"]
    keys["full_attention_interval"] = (
        kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds)
    )
    if "shared_expert_intermediate_size" in config:
        keys.setdefault("feed_forward_length", config["shared_expert_intermediate_size"])


def _add_latent(keys: Keys, config: Mapping[str, Any]) -> None:
    turned, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    keys |= {
        "rope.dimension_count": turned,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.head_count_kv": 1,
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_gating_func": 2,
    }
    rope = config["rope_parameters"]
    if rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * float(rope["mscale_all_dim"])


def _add_latent_v2(keys: Keys, config: Mapping[str, Any]) -> None:
    if config["topk_method"] != "greedy" and config["n_group"] > 1:
        raise Unsaid("topk_method")  # llama.cpp ranks groups by the two best of each, DeepSeek V2 by the best
    _add_latent(keys, {**config, "norm_topk_prob": False})  # which its code never looks at
    keys["expert_gating_func"] = 1


Add = Callable[[Keys, Mapping[str, Any]], Keys | None]
SPECIAL: Mapping[str, Add] = {
    "gemma3_text": _add_gemma3,
    "gemma4_text": _add_gemma4,
    "phi3": _add_phi3,
    "ministral3": _add_ministral3,
    "stablelm": _add_layer_norms,
    "glm4_moe": _add_experts,
    "qwen2_moe": _add_shared_expert,
    "gpt_oss": _add_gpt_oss,
    "lfm2": _add_lfm2,
    "qwen3_5_text": _add_qwen35,
    "qwen3_5_moe_text": _add_qwen35,
    "deepseek_v3": _add_latent,
    "deepseek_v2": _add_latent_v2,
    "olmo3": _add_windows,
    "exaone4": _add_exaone4,
}
"""What a family's file has beside KEPT."""
