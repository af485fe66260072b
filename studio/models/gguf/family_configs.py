"""Configs of transformers from the keys of a GGUF file, family by family.

What a file does not say, because llama.cpp takes it from the architecture (a scale of attention, which layers have a
window), is what the published models of the family have.
"""

from __future__ import annotations

from typing import Any

from studio.models.gguf.keys import GgufKeys
from studio.models.gguf.rope import read_rope

Config = dict[str, Any]


def read_common(keys: GgufKeys) -> Config:
    """Return what every decoder's config has."""
    hidden, heads = keys["embedding_length"], keys.read_one("attention.head_count")
    key_heads = keys.read_one("attention.head_count_kv") if "attention.head_count_kv" in keys else heads
    head_dim = keys.get("attention.key_length", hidden // heads)
    config: Config = {
        "hidden_size": hidden,
        "num_hidden_layers": keys.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_dim,
        "max_position_embeddings": keys["context_length"],
        "vocab_size": keys.tensors["token_embd.weight"].shape[0]
        if "token_embd.weight" in keys.tensors
        else 0,
        "tie_word_embeddings": "output.weight" not in keys.tensors,
        "rope_parameters": read_rope(keys, head_dim),
    }
    if "feed_forward_length" in keys:
        config["intermediate_size"] = keys.read_one("feed_forward_length")
    return config


def read_rms(keys: GgufKeys) -> Config:
    """Return the config of a decoder with RMS norms."""
    return read_common(keys) | {"rms_norm_eps": keys["attention.layer_norm_rms_epsilon"]}


def read_experts(keys: GgufKeys) -> Config:
    """Return what a config says of its experts."""
    return {
        "num_experts": keys["expert_count"],
        "num_experts_per_tok": keys["expert_used_count"],
        "moe_intermediate_size": keys["expert_feed_forward_length"],
    }


def read_llama(keys: GgufKeys) -> Config:
    """Return the config of llama."""
    return read_rms(keys) | {"attention_bias": keys.has("attn_q.bias"), "mlp_bias": keys.has("ffn_gate.bias")}


def read_mixtral(keys: GgufKeys) -> Config:
    """Return the config of mixtral."""
    experts = {"num_local_experts": keys["expert_count"], "num_experts_per_tok": keys["expert_used_count"]}
    return read_rms(keys) | experts | {"sliding_window": None}


def read_ministral3(keys: GgufKeys) -> Config:
    """Return the config of ministral3."""
    config = read_rms(keys) | {"sliding_window": None}
    config["rope_parameters"] |= {
        "mscale_all_dim": keys["rope.scaling.yarn_log_multiplier"],
        "mscale": 1.0,
        "llama_4_scaling_beta": keys["attention.temperature_scale"],
    }
    return config


def read_qwen2_moe(keys: GgufKeys) -> Config:
    """Return the config of qwen2 moe."""
    shared = keys.get("expert_shared_feed_forward_length", 0)
    config = read_rms(keys) | read_experts(keys) | {"shared_expert_intermediate_size": shared}
    return config | {"norm_topk_prob": False, "decoder_sparse_step": 1}


def read_qwen3_moe(keys: GgufKeys) -> Config:
    """Return the config of qwen3 moe."""
    config = read_rms(keys) | read_experts(keys) | {"norm_topk_prob": True, "decoder_sparse_step": 1}
    return config | {"mlp_only_layers": [], "attention_bias": False}


def read_gemma(keys: GgufKeys) -> Config:
    """Return the config of gemma."""
    return read_rms(keys) | {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}


def read_gemma2(keys: GgufKeys) -> Config:
    """Return the config of gemma2."""
    config = read_gemma(keys)
    return config | {
        # The 27B alone scales by the width of all heads together (llama.cpp: by its number of layers).
        "query_pre_attn_scalar": _scale_queries(config, 46),
        "sliding_window": keys["attention.sliding_window"],
        "attn_logit_softcapping": keys["attn_logit_softcapping"],
        "final_logit_softcapping": keys["final_logit_softcapping"],
    }


def read_gemma3(keys: GgufKeys) -> Config:
    """Return the config of gemma3."""
    config = read_gemma(keys)
    window = keys.get("attention.sliding_window", 0)
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10_000.0)}
    return config | {
        "query_pre_attn_scalar": _scale_queries(config, 62),
        "sliding_window": window or config["max_position_embeddings"],
        "layer_types": _list_layer_types(keys, 6 if window else 1),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
    }


def _scale_queries(config: Config, layers_of_27b: int) -> int:
    whole = config["hidden_size"] // config["num_attention_heads"]
    return whole if config["num_hidden_layers"] == layers_of_27b else config["head_dim"]


def _list_layer_types(keys: GgufKeys, period: int) -> list[str]:
    """Return which layers have a window: as the file says, else all but every `period`-th."""
    windowed = keys.get("attention.sliding_window_pattern")
    if not isinstance(windowed, list):
        period = windowed or period
        windowed = [bool((number + 1) % period) for number in range(keys.layers)]
    return ["sliding_attention" if one else "full_attention" for one in windowed[: keys.layers]]


def read_phi3(keys: GgufKeys) -> Config:
    """Return the config of phi3."""
    config = read_rms(keys)
    rope = config["rope_parameters"]
    if "original_max_position_embeddings" in rope:
        config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope["partial_rotary_factor"]
    return config | {"sliding_window": keys.get("attention.sliding_window") or None}


def read_granite(keys: GgufKeys) -> Config:
    """Return the config of granite."""
    return read_llama(keys) | {
        "attention_multiplier": keys["attention.scale"],
        "embedding_multiplier": keys.get("embedding_scale", 1.0),
        "residual_multiplier": keys.get("residual_scale", 1.0),
        "logits_scaling": keys.get("logit_scale", 1.0),
    }


def read_olmo3(keys: GgufKeys) -> Config:
    """Return the config of olmo3."""
    window = keys["attention.sliding_window"]
    config = read_rms(keys)
    local = {"rope_type": "default", "rope_theta": config["rope_parameters"]["rope_theta"]}
    return config | {
        "sliding_window": window,
        "layer_types": _list_layer_types(keys, 4),
        # Layers with a window are never stretched (llama.cpp's olmo2.cpp).
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
    }


def read_olmoe(keys: GgufKeys) -> Config:
    """Return the config of olmoe."""
    experts = {"num_experts": keys["expert_count"], "num_experts_per_tok": keys["expert_used_count"]}
    return read_rms(keys) | experts | {"norm_topk_prob": False}


def read_smollm3(keys: GgufKeys) -> Config:
    """Return the config of smollm3."""
    turned = [int((number + 1) % 4 != 0) for number in range(keys.layers)]
    return read_llama(keys) | {
        "no_rope_layers": turned,
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
    }


def read_glm4(keys: GgufKeys) -> Config:
    """Return the config of glm4."""
    return read_rms(keys) | {"attention_bias": keys.has("attn_q.bias")}


def read_exaone4(keys: GgufKeys) -> Config:
    """Return the config of exaone4."""
    window = keys.get("attention.sliding_window") or None
    kinds = _list_layer_types(keys, 4) if window else ["full_attention"] * keys.layers
    return read_rms(keys) | {"sliding_window": window, "layer_types": kinds}


def read_cohere(keys: GgufKeys) -> Config:
    """Return the config of cohere."""
    norms = {"layer_norm_eps": keys["attention.layer_norm_epsilon"], "logit_scale": keys["logit_scale"]}
    return (
        read_common(keys)
        | norms
        | {"use_qk_norm": keys.has("attn_q_norm.weight"), "tie_word_embeddings": True}
    )


def read_cohere2(keys: GgufKeys) -> Config:
    """Return the config of cohere2."""
    norms = {"layer_norm_eps": keys["attention.layer_norm_epsilon"], "logit_scale": keys["logit_scale"]}
    windows = {"sliding_window": keys["attention.sliding_window"], "layer_types": _list_layer_types(keys, 4)}
    return read_common(keys) | norms | windows | {"tie_word_embeddings": True}


def read_starcoder2(keys: GgufKeys) -> Config:
    """Return the config of starcoder2."""
    config = read_common(keys) | {"norm_epsilon": keys["attention.layer_norm_epsilon"]}
    return config | {"use_bias": keys.has("attn_q.bias"), "sliding_window": None}


def read_stablelm(keys: GgufKeys) -> Config:
    """Return the config of stablelm."""
    config = read_common(keys) | {"layer_norm_eps": keys["attention.layer_norm_epsilon"]}
    return config | {
        "use_qkv_bias": keys.has("attn_q.bias"),
        "use_parallel_residual": not keys.has("ffn_norm.weight"),
        "qk_layernorm": False,
    }


def read_ernie(keys: GgufKeys) -> Config:
    """Return the config of ernie."""
    return read_rms(keys) | {"use_bias": keys.has("attn_q.bias")}


def read_biased(keys: GgufKeys) -> Config:
    """Return the config of biased."""
    return read_rms(keys) | {"attention_bias": keys.has("attn_q.bias")}


def read_seed_oss(keys: GgufKeys) -> Config:
    """Return the config of seed oss."""
    return read_biased(keys) | {"attention_out_bias": keys.has("attn_output.bias"), "mlp_bias": False}


def read_gpt_oss(keys: GgufKeys) -> Config:
    """Return the config of gpt oss."""
    config = read_rms(keys) | {"num_local_experts": keys["expert_count"]}
    config["rope_parameters"]["truncate"] = False
    return config | {
        "intermediate_size": keys["expert_feed_forward_length"],
        "num_experts_per_tok": keys["expert_used_count"],
        "sliding_window": keys["attention.sliding_window"],
        "layer_types": _list_layer_types(keys, 2),
        "attention_bias": True,
    }


def read_glm4_moe(keys: GgufKeys) -> Config:
    """Return the config of glm4 moe."""
    return read_biased(keys) | {
        "moe_intermediate_size": keys["expert_feed_forward_length"],
        "n_routed_experts": keys["expert_count"],
        "num_experts_per_tok": keys["expert_used_count"],
        "n_shared_experts": keys.get("expert_shared_count", 1),
        "first_k_dense_replace": keys.layers - keys.count("ffn_gate_inp.weight"),
        "routed_scaling_factor": keys.get("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(keys.get("expert_weights_norm", True)),
        "use_qk_norm": keys.has("attn_q_norm.weight"),
        "n_group": keys.get("expert_group_count", 1),
        "topk_group": keys.get("expert_group_used_count", 1),
    }


def read_deepseek3(keys: GgufKeys) -> Config:
    """Return the config of DeepSeek 3 and of GLM's flash models: latent attention, experts scored one by one."""
    latent = {
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "kv_lora_rank": keys["attention.kv_lora_rank"],
        "qk_rope_head_dim": keys["rope.dimension_count"],
        "qk_nope_head_dim": keys["attention.key_length_mla"] - keys["rope.dimension_count"],
        "v_head_dim": keys["attention.value_length_mla"],
    }
    config = read_rms(keys) | latent
    rope = read_rope(keys, keys["rope.dimension_count"])
    if "rope.scaling.yarn_log_multiplier" in keys:  # a tenth of it, for reasons of its own history
        rope["mscale"] = rope["mscale_all_dim"] = round(10 * keys["rope.scaling.yarn_log_multiplier"], 6)
    return config | {
        "rope_parameters": rope,
        "head_dim": keys["rope.dimension_count"],
        "num_key_value_heads": config["num_attention_heads"],
        "moe_intermediate_size": keys["expert_feed_forward_length"],
        "n_routed_experts": keys["expert_count"],
        "num_experts_per_tok": keys["expert_used_count"],
        "n_shared_experts": keys.get("expert_shared_count", 0),
        "first_k_dense_replace": keys.layers - keys.count("ffn_gate_inp.weight"),
        "routed_scaling_factor": keys.get("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
        "n_group": keys.get("expert_group_count", 1),
        "topk_group": keys.get("expert_group_used_count", 1),
        "attention_bias": False,
    }


def read_deepseek2(keys: GgufKeys) -> Config:
    """Return the config of DeepSeek 2: experts scored against one another."""
    config = read_deepseek3(keys)
    grouped = config["n_group"] > 1
    return config | {"topk_method": "group_limited_greedy" if grouped else "greedy"}


def read_lfm2(keys: GgufKeys) -> Config:
    """Return the config of LFM 2: short convolutions where a layer has no key heads."""
    heads = keys["attention.head_count_kv"]
    heads = heads if isinstance(heads, list) else [heads] * keys.layers
    hidden, queries = keys["embedding_length"], keys.read_one("attention.head_count")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": keys.layers,
        "num_attention_heads": queries,
        "num_key_value_heads": max(heads),
        "max_position_embeddings": keys["context_length"],
        "vocab_size": keys.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in keys.tensors,
        "intermediate_size": keys.read_one("feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
        "norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "conv_L_cache": keys["shortconv.l_cache"],
        "conv_bias": keys.has("shortconv.conv.bias"),
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "rope_parameters": read_rope(keys, hidden // queries),
    }


def read_qwen35(keys: GgufKeys) -> Config:
    """Return the config of Qwen 3.5: gated delta nets, and full attention where a layer has none."""
    config, heads = read_rms(keys), keys["ssm.time_step_rank"]
    sections = [section for section in keys.get("rope.dimension_sections", []) if section]
    if sections:
        config["rope_parameters"] |= {"mrope_section": sections, "mrope_interleaved": True}
    return config | {
        "linear_conv_kernel_dim": keys["ssm.conv_kernel"],
        "linear_key_head_dim": keys["ssm.state_size"],
        "linear_num_key_heads": keys["ssm.group_count"],
        "linear_num_value_heads": heads,
        "linear_value_head_dim": keys["ssm.inner_size"] // heads,
        "layer_types": [
            "linear_attention" if f"blk.{number}.ssm_a" in keys.tensors else "full_attention"
            for number in range(keys.layers)
        ],
    }


def read_qwen35_moe(keys: GgufKeys) -> Config:
    """Return the config of Qwen 3.5 with experts."""
    shared = {"shared_expert_intermediate_size": keys["expert_shared_feed_forward_length"]}
    return read_qwen35(keys) | read_experts(keys) | shared


def read_gemma4(keys: GgufKeys) -> Config:
    """Return the config of Gemma 4: wider heads in layers without a window, inputs for each layer, shared keys."""
    heads, wide = keys["attention.head_count_kv"], keys["feed_forward_length"]
    kinds = _list_layer_types(keys, 6)
    by_kind = dict(zip(kinds, heads, strict=True)) if isinstance(heads, list) else dict.fromkeys(kinds, heads)
    width = keys.get("embedding_length_per_layer_input", 0)
    turned = keys.read_values("rope_freqs.weight")  # 1: turned, 1e30: as good as not
    full = {"rope_type": "proportional", "rope_theta": keys["rope.freq_base"]}
    config: Config = {
        "hidden_size": keys["embedding_length"],
        "num_hidden_layers": keys.layers,
        "num_attention_heads": keys.read_one("attention.head_count"),
        "num_key_value_heads": by_kind.get("sliding_attention", max(by_kind.values())),
        "num_global_key_value_heads": by_kind.get("full_attention")
        if len(set(by_kind.values())) > 1
        else None,
        "head_dim": keys["attention.key_length_swa"],
        "global_head_dim": keys["attention.key_length"],
        "attention_k_eq_v": keys.count("attn_v.weight") < keys.count("attn_k.weight"),
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers", 0),
        "intermediate_size": min(wide) if isinstance(wide, list) else wide,
        "use_double_wide_mlp": isinstance(wide, list) and min(wide) < max(wide),
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": keys["context_length"],
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "vocab_size": keys.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": True,
        "layer_types": kinds,
        "sliding_window": keys["attention.sliding_window"],
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
        "hidden_size_per_layer_input": width,
        "rope_parameters": {
            "full_attention": full | {"partial_rotary_factor": turned.count(1.0) / len(turned)},
            "sliding_attention": {"rope_type": "default", "rope_theta": keys["rope.freq_base_swa"]},
        },
        "enable_moe_block": keys.has("ffn_down_exps.weight"),
    }
    if width:
        config["vocab_size_per_layer_input"] = keys.tensors["per_layer_token_embd.weight"].shape[0]
    if config["enable_moe_block"]:
        config |= {"num_experts": keys["expert_count"], "top_k_experts": keys["expert_used_count"]}
        config["moe_intermediate_size"] = keys["expert_feed_forward_length"]
    return config
