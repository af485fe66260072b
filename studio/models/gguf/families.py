"""The families that a GGUF file is opened for: transformers' class, config and names for llama.cpp's.

A family more is an entry of FAMILIES. What llama.cpp's converter changed on the way is undone (family_changes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from studio.models.gguf import family_configs as configs
from studio.models.gguf.family_changes import (
    GROUPED,
    SHIFTED,
    TURNED,
    Change,
    Join,
    add_axis,
    add_row,
    interleave,
    join_latent,
    swap_last,
)
from studio.models.gguf.family_configs import Config
from studio.models.gguf.keys import GgufKeys

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""llama.cpp's names and transformers', of a whole model and inside a layer, as most families have them."""
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
"""`{}`: one tensor an expert, as published folders have them."""
SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that the config is read from."""
GLM_EXPERTS = EXPERTS | {
    "post_attention_norm": "post_attention_layernorm",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
QWEN_EXPERTS = EXPERTS | {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b.weight": "self_attn.kv_b_proj.weight#0",
    "attn_v_b.weight": "self_attn.kv_b_proj.weight#1",
}
DELTA_NET = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
GEMMA4 = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale.weight": "layer_scalar",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
}
MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufFamily:
    """One of llama.cpp's architectures, and what it is to transformers."""

    architecture: str
    model_type: str
    model_class: str
    read_config: Callable[[GgufKeys], Config]
    names: Mapping[str, str] = field(default_factory=dict)
    """What differs from NAMES; a name with its ending (`attn_sinks.weight`) stands for that tensor alone."""
    changes: Mapping[str, Change] = field(default_factory=dict)
    """By llama.cpp's name inside a layer, or of a whole model."""
    joins: Mapping[str, Join] = field(default_factory=dict)
    """How a weight that a file has in two parts is put together, by transformers' name inside a layer."""
    accepts: Callable[[GgufKeys], bool] = field(default=lambda keys: True)
    """Several entries may have an architecture: the first that accepts a file is its family."""


def find_family(keys: GgufKeys) -> GgufFamily:
    """Return the family of a file. Raises StudioError for what is no language model, or of a family not opened here."""
    if keys.header.metadata.get("general.type", "model") not in ("model", "merge", "mixture"):
        raise keys.refuse("part", kind=str(keys.header.metadata["general.type"]))
    for family in FAMILIES:
        if family.architecture == keys.header.architecture and family.accepts(keys):
            return family
    if keys.header.architecture in ("clip", "mmproj"):
        raise keys.refuse("part", kind=keys.header.architecture)
    raise keys.refuse("family", architecture=keys.header.architecture)


def build_config(family: GgufFamily, keys: GgufKeys) -> Config:
    """Return what the file's config.json says. Raises StudioError where a key is missing or cannot be said there."""
    config: Config = {"architectures": [family.model_class], "model_type": family.model_type}
    config |= family.read_config(keys)
    metadata = keys.header.metadata
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[f"{name}_token_id"] = (
            number if isinstance(number, int) and number < config["vocab_size"] else None
        )
    return config


def _family(architecture: str, model_type: str, model_class: str, read: Any, **more: Any) -> GgufFamily:
    values = {"model_type": model_type, "model_class": f"{model_class}ForCausalLM", "read_config": read}
    return GgufFamily(architecture=architecture, **values, **more)


def _has_experts(keys: GgufKeys) -> bool:
    return bool(keys.get("expert_count", 0))


FAMILIES = (
    _family(
        *("llama", "mixtral", "Mixtral", configs.read_mixtral),
        names=MIXTRAL_EXPERTS,
        changes=TURNED,
        accepts=_has_experts,
    ),
    _family("llama", "llama", "Llama", configs.read_llama, changes=TURNED),
    _family(
        *("mistral3", "ministral3", "Ministral3", configs.read_ministral3),
        changes=TURNED,
        accepts=lambda keys: "attention.temperature_scale" in keys and not _has_experts(keys),
    ),
    _family(
        *("mistral3", "llama", "Llama", configs.read_llama),
        changes=TURNED,
        accepts=lambda keys: not _has_experts(keys),
    ),
    _family("qwen2", "qwen2", "Qwen2", configs.read_rms),
    # Of a model that sees, the file holds what reads and writes text: with the same positions on all axes its rotary
    # embedding is the plain one.
    _family("qwen2vl", "qwen2", "Qwen2", configs.read_rms),
    _family("qwen3", "qwen3", "Qwen3", configs.read_biased),
    _family("qwen3vl", "qwen3", "Qwen3", configs.read_biased),
    _family(
        *("qwen2moe", "qwen2_moe", "Qwen2Moe", configs.read_qwen2_moe),
        names=QWEN_EXPERTS,
        changes={"ffn_gate_inp_shexp.weight": add_row},
    ),
    _family("qwen3moe", "qwen3_moe", "Qwen3Moe", configs.read_qwen3_moe, names=EXPERTS),
    _family("qwen3vlmoe", "qwen3_moe", "Qwen3Moe", configs.read_qwen3_moe, names=EXPERTS),
    _family("gemma", "gemma", "Gemma", configs.read_gemma, changes=SHIFTED),
    _family("gemma2", "gemma2", "Gemma2", configs.read_gemma2, names=SANDWICH, changes=SHIFTED),
    _family("gemma3", "gemma3_text", "Gemma3", configs.read_gemma3, names=SANDWICH, changes=SHIFTED),
    _family(
        *("phi3", "phi3", "Phi3", configs.read_phi3),
        names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    _family(
        *("granite", "granite", "Granite", configs.read_granite),
        changes=TURNED,
    ),
    _family(
        *("olmo2", "olmo3", "Olmo3", configs.read_olmo3),
        names=AFTER,
        accepts=lambda keys: "attention.sliding_window" in keys,
    ),
    _family("olmo2", "olmo2", "Olmo2", configs.read_biased, names=AFTER),
    _family("olmoe", "olmoe", "Olmoe", configs.read_olmoe, names=EXPERTS),
    _family("smollm3", "smollm3", "SmolLM3", configs.read_smollm3, changes=TURNED),
    _family(
        *("glm4", "glm4", "Glm4", configs.read_glm4),
        names={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
    ),
    _family("glm4moe", "glm4_moe", "Glm4Moe", configs.read_glm4_moe, names=GLM_EXPERTS),
    _family("exaone4", "exaone4", "Exaone4", configs.read_exaone4, names=AFTER),
    _family("command-r", "cohere", "Cohere", configs.read_cohere),
    _family("cohere2", "cohere2", "Cohere2", configs.read_cohere2),
    _family(
        *("starcoder2", "starcoder2", "Starcoder2", configs.read_starcoder2),
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    _family(
        *("stablelm", "stablelm", "StableLm", configs.read_stablelm),
        accepts=lambda keys: not keys.has("attn_q_norm.weight"),
    ),
    _family("ernie4_5", "ernie4_5", "Ernie4_5", configs.read_ernie),
    _family(
        *("hunyuan-dense", "hunyuan_v1_dense", "HunYuanDenseV1", configs.read_biased),
        names={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    ),
    _family(
        *("seed_oss", "seed_oss", "SeedOss", configs.read_seed_oss),
        names={"post_attention_norm": "post_attention_layernorm"},
    ),
    _family(
        *("gpt-oss", "gpt_oss", "GptOss", configs.read_gpt_oss),
        names={
            "attn_sinks.weight": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_exps.weight": "mlp.experts.gate_up_proj#0",
            "ffn_up_exps.weight": "mlp.experts.gate_up_proj#1",
            "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias#0",
            "ffn_up_exps.bias": "mlp.experts.gate_up_proj_bias#1",
            "ffn_down_exps.weight": "mlp.experts.down_proj",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        changes={
            "ffn_gate_exps.weight": swap_last,
            "ffn_up_exps.weight": swap_last,
            "ffn_down_exps.weight": swap_last,
        },
        joins={"mlp.experts.gate_up_proj": interleave, "mlp.experts.gate_up_proj_bias": interleave},
    ),
    _family(
        *("deepseek2", "deepseek_v3", "DeepseekV3", configs.read_deepseek3),
        names=LATENT | GLM_EXPERTS | {"ffn_norm": "post_attention_layernorm"},
        joins={"self_attn.kv_b_proj.weight": join_latent},
        accepts=lambda keys: keys.has("exp_probs_b.bias"),
    ),
    _family(
        *("deepseek2", "deepseek_v2", "DeepseekV2", configs.read_deepseek2),
        names=LATENT | GLM_EXPERTS | {"ffn_norm": "post_attention_layernorm"},
        joins={"self_attn.kv_b_proj.weight": join_latent},
    ),
    _family(
        *("lfm2", "lfm2", "Lfm2", configs.read_lfm2),
        names={
            "output_norm": "model.embedding_norm",
            "token_embd_norm": "model.embedding_norm",
            "attn_norm": "operator_norm",
            "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "ffn_norm": "ffn_norm",
            "ffn_gate": "feed_forward.w1",
            "ffn_up": "feed_forward.w3",
            "ffn_down": "feed_forward.w2",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
            "shortconv.conv": "conv.conv",
        },
        changes={"shortconv.conv.weight": add_axis},
    ),
    _family(
        *("qwen35", "qwen3_5_text", "Qwen3_5", configs.read_qwen35),
        names=DELTA_NET,
        changes=SHIFTED | GROUPED,
    ),
    _family(
        *("qwen35moe", "qwen3_5_moe_text", "Qwen3_5Moe", configs.read_qwen35_moe),
        names=QWEN_EXPERTS | DELTA_NET,
        changes=SHIFTED | GROUPED | {"ffn_gate_inp_shexp.weight": add_row},
    ),
    _family(
        *("gemma4", "gemma4_text", "Gemma4", configs.read_gemma4),
        names=SANDWICH | GEMMA4,
    ),
    _family("arcee", "arcee", "Arcee", configs.read_llama, changes=TURNED),
)
