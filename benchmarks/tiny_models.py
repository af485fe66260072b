"""Tiny random models of every family that transformers has for writing text, saved as folders of the hub.

Each has every kind of layer of its family once, norms and biases off their neutral values, a tokenizer of bytes and a
chat template.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path

VOCAB = 384
SMALL = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=128,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    sliding_window=64,
    window_size=64,
    n_embd=64,
    d_model=64,
    n_layer=4,
    n_head=4,
    num_layers=4,
    num_heads=4,
    n_inner=128,
    ffn_dim=128,
    n_positions=512,
    n_ctx=512,
    max_seq_len=512,
    n_heads=4,
    n_layers=4,
    embed_dim=64,
    embedding_size=64,
    emb_dim=64,
    hidden_size_global=64,
    word_embed_proj_dim=64,
    encoder_layers=2,
    decoder_layers=4,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    num_decoder_layers=4,
    num_encoder_layers=2,
    num_decoder_attention_heads=4,
    num_encoder_attention_heads=4,
    dim_head=16,
    dim_ff=128,
    dff=128,
    d_inner=128,
    d_ff=128,
    d_kv=16,
    d_head=16,
    moe_intermediate_size=64,
    num_experts_per_tok=2,
    num_experts=4,
    n_routed_experts=4,
    num_local_experts=4,
    n_group=1,
    topk_group=1,
    n_shared_experts=1,
    num_shared_experts=1,
    moe_num_experts=4,
    moe_topk=2,
    moe_num_shared_experts=1,
    moe_k=2,
    moe_top_k=2,
    shared_expert_intermediate_size=64,
    shared_intermediate_size=64,
    shared_experts_intermediate_size=64,
    moe_shared_expert_intermediate_size=64,
    dense_intermediate_size=128,
    expert_ffn_hidden_size=64,
    ffn_hidden_size=128,
    zero_expert_num=2,
    first_k_dense_replace=1,
    num_dense_layers=1,
    moe_layer_start_index=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    v_head_dim=16,
    kv_lora_rank=32,
    qk_rope_head_dim=16,
    qk_nope_head_dim=16,
    q_lora_rank=32,
    qk_head_dim=32,
    o_lora_rank=32,
    o_groups=2,
    index_head_dim=32,
    index_n_heads=4,
    index_topk=64,
    index_block_size=16,
    index_topk_blocks=4,
    num_mtp_layers=0,
    num_nextn_predict_layers=0,
    mamba_d_state=16,
    mamba_n_heads=8,
    mamba_n_groups=1,
    mamba_chunk_size=16,
    mamba_d_head=16,
    mamba_d_ssm=128,
    mamba_num_heads=8,
    mamba_head_dim=16,
    ssm_state_size=16,
    state_size=16,
    chunk_size=16,
    n_groups=1,
    n_mamba_heads=2,
    mamba_dt_rank=4,
    time_step_rank=4,
    linear_head_dim=16,
    linear_num_heads=4,
    linear_num_key_heads=4,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    attention_hidden_size=64,
    rotary_dim=8,
    kv_channels=16,
    query_pre_attn_scalar=16,
    backbone_hidden_size=64,
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=16,
    sliding_window_size=64,
    d_rel=8,
    rel_extent=64,
    hidden_size_per_layer_input=16,
    vocab_size_per_layer_input=VOCAB,
    num_kv_shared_layers=2,
    laurel_rank=8,
    attn_layer_period=4,
    attn_layer_offset=1,
    intermediate_size_mlp=128,
    no_rope_layer_interval=4,
    num_cross_attention_layers=0,
    original_max_position_embeddings=256,
    lru_width=64,
    attention_window_size=64,
    pretraining_tp=1,
    gated_norm_rank=8,
    global_attn_every_n_layers=4,
    num_centroids=16,
    centroid_intermediate_top_k=4,
    num_global_key_value_heads=2,
    global_head_dim=16,
    pad_token_id=1,
    eos_token_id=0,
    bos_token_id=0,
    sep_token_id=0,
    cls_token_id=0,
    mask_token_id=2,
    decoder_start_token_id=0,
    forced_eos_token_id=None,
    unpadded_vocab_size=VOCAB,
    tie_word_embeddings=False,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    dropout=0.0,
    attention_dropout=0.0,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    hidden_dropout=0.0,
    activation_dropout=0.0,
    layerdrop=0.0,
    decoder_layerdrop=0.0,
    encoder_layerdrop=0.0,
    resid_dropout=0.0,
    embed_dropout=0.0,
    residual_dropout=0.0,
    emb_pdrop=0.0,
    dropout_p=0.0,
    indexer_n_heads=4,
    indexer_kv_heads=1,
    indexer_head_dim=16,
    indexer_budget=64,
    indexer_compress_ratio=4,
    qk_dim_factor=1.0,
)
VISION = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_heads=4,
    intermediate_size=64,
    depth=2,
    image_size=28,
    patch_size=14,
    out_hidden_size=64,
    text_hidden_size=64,
    embed_dim=32,
    mlp_dim=64,
    num_layers=2,
    attention_heads=4,
    output_dim=64,
    projection_dim=32,
    head_dim=8,
    num_position_embeddings=16,
    vision_output_dim=64,
    layers=2,
    encoder_layers=2,
    num_key_value_heads=4,
    d_model=32,
    encoder_ffn_dim=64,
    encoder_attention_heads=4,
    adapter_in_dim=32,
    adapter_input_size=32,
    adapter_out_dim=64,
    projector_input_dim=64,
    projector_output_dim=64,
    num_global_layers=1,
    position_embedding_size=16,
    attention_hidden_size=32,
    fullatt_block_indexes=[1],
    deepstack_visual_indexes=[0],
    intermediate_layers_indices=[0],
    conf_num_hidden_layers=1,
    conf_num_attention_heads=4,
    mm_embed_dim=64,
    n_layer=2,
    n_head=4,
    n_embd=32,
    ffn_dim=64,
)
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
MROPE_GLM = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    }
}
PATTERN = ["sliding_attention", "full_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MINISTRAL = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256}
GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": PATTERN * 3,
    "num_kv_shared_layers": 2,
    "global_head_dim": 32,
}

# Overrides by model_type, where the small sizes above do not make a model.
OVER: dict[str, dict] = {
    "cohere_compass_text": {
        "layer_types": PATTERN * 2,
        "rope_parameters": {k: {"rope_type": "default", "rope_theta": 1e4} for k in PATTERN},
    },
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mpt": {"attn_config": {"attn_pdrop": 0}, "resid_pdrop": 0, "emb_pdrop": 0},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {"attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "attn_pdrop": 0.0, "clip_qkv": 8.0}},
    "bamba": {"attn_layer_indices": [1, 3]},
    "zamba2": {
        "tie_word_embeddings": True,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_key_value_heads": 4,
    },
    "reformer": {"is_decoder": True, "axial_pos_shape": [16, 32], "axial_pos_embds_dim": [32, 32]},
    "qwen2_vl": {"text_config": MROPE},
    "qwen2_5_vl": {"text_config": MROPE},
    "qwen2_5_omni_thinker": {"text_config": MROPE},
    "paddleocr_vl": {"text_config": MROPE},
    "glm4v": {"text_config": MROPE_GLM},
    "glm46v": {"text_config": MROPE_GLM},
    "glmga": {"text_config": MROPE_GLM},
    "glm_ocr": {"text_config": MROPE_GLM},
    "glm4v_moe": {"text_config": MROPE_GLM},
    "gemma4": {"text_config": GEMMA4},
    "gemma4_unified": {"text_config": GEMMA4},
    "ernie4_5_vl_moe": {
        "text_config": {
            "moe_intermediate_size": [64, 64],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]},
        }
    },
    "muse_glimmer": {"vision_config": {}, "projector_hidden_size": 64, "out_hidden_size": 64},
    "cohere2_vision": {"alignment_intermediate_size": 128},
    "minimax_m3_vl": {"projector_hidden_size": 64},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0}},
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 32,
        "swa_kv_lora_rank": 32,
        "swa_head_dim": 32,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
    },
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "downsample_rate": "1/2",
        "vision_config": {"hidden_size": 64},
    },
    "hunyuan_vl": {
        "text_config": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2, 2]}
        }
    },
    "muse_spark": {
        "audio_config": {"num_hidden_layers": 4, "hidden_sizes": [32, 32, 32, 32], "depths": [1, 1, 1, 1]}
    },
    "molmo2": {
        "vision_config": {"image_size": [28, 28]},
        "adapter_config": {
            "vision_feature_layer": [0, 1],
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "intermediate_size": 64,
            "text_hidden_size": 64,
        },
    },
    "cosmos3_edge": {"text_config": MROPE},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense"] + ["sparse"] * 3}},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}},
    "inkling_mm_model": {"vision_config": {"num_hidden_layers": 8}},  # of fewer it needs scipy
    "dots3_note": {"vision_config": {"pyramid_num_routed": [0, 4]}},
    "emu3": {"vocabulary_map": {"<image>": 4, "<|extra_200|>": 5}},
    "nemotron_h_omni": {
        "vision_config": {"video_temporal_patch_size": 2},
        "audio_config": {"projection_hidden_size": 64, "projection_bias": False},
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "cohere_compass": {
        "text_config": {
            "layer_types": PATTERN * 2,
            "rope_parameters": {k: {"rope_type": "default", "rope_theta": 1e4} for k in PATTERN},
        }
    },
}


POPULAR = (
    ("Qwen3 dense", "qwen3", "Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    ("Llama 3.x", "llama", "LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    ("Qwen3.5/3.6 dense", "qwen3_5", "Qwen3_5ForConditionalGeneration", {}),
    ("Qwen2.5", "qwen2", "Qwen2ForCausalLM", {}),
    (
        "Gemma 3 (4B up)",
        "gemma3",
        "Gemma3ForConditionalGeneration",
        {"text_config": {"layer_types": PATTERN * 2}},
    ),
    ("Gemma 4 E2B/E4B", "gemma4", "Gemma4ForConditionalGeneration", {}),
    ("gpt-oss", "gpt_oss", "GptOssForCausalLM", {}),
    ("Mistral", "mistral", "MistralForCausalLM", {"head_dim": 32, "sliding_window": None}),
    ("Qwen3 MoE", "qwen3_moe", "Qwen3MoeForCausalLM", {}),
    ("Gemma 3 text", "gemma3_text", "Gemma3ForCausalLM", {"layer_types": PATTERN * 2}),
    ("Qwen3.5/3.6 MoE", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", {}),
    (
        "Gemma 4 MoE",
        "gemma4",
        "Gemma4ForConditionalGeneration",
        {
            "text_config": {
                "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "final_logit_softcapping": 30.0,
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 64,
            },
            "audio_config": None,
        },
    ),
    (
        "Gemma 4 dense",
        "gemma4",
        "Gemma4ForConditionalGeneration",
        {
            "text_config": {
                "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "final_logit_softcapping": 30.0,
            },
            "audio_config": None,
        },
    ),
    ("Phi-4 / Phi-3", "phi3", "Phi3ForCausalLM", {"sliding_window": 64}),
    (
        "Phi-4-mini",
        "phi3",
        "Phi3ForCausalLM",
        {
            "sliding_window": None,
            "tie_word_embeddings": True,
            "rope_parameters": LONGROPE
            | {"partial_rotary_factor": 0.75, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
        },
    ),
    (
        "Ministral 3",
        "mistral3",
        "Mistral3ForConditionalGeneration",
        {"text_config": {"model_type": "ministral3", "rope_parameters": MINISTRAL}},
    ),
    (
        "Mistral Small 3.x",
        "mistral3",
        "Mistral3ForConditionalGeneration",
        {"text_config": {"model_type": "mistral", "sliding_window": None}},
    ),
    ("Qwen3-VL (text)", "qwen3_vl", "Qwen3VLForConditionalGeneration", {}),
    ("Qwen2.5-VL (text)", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {}),
    ("Gemma 2", "gemma2", "Gemma2ForCausalLM", {}),
    ("Llama 2 / SmolLM2 / TinyLlama", "llama", "LlamaForCausalLM", {"num_key_value_heads": 4}),
    (
        "Gemma 4 12B (unified)",
        "gemma4_unified",
        "Gemma4UnifiedForConditionalGeneration",
        {
            "text_config": {  # as google/gemma-4-12B has it: no layer reads another's keys and values
                "num_kv_shared_layers": 0,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "final_logit_softcapping": 30.0,
            },
        },
    ),
    ("SmolLM3", "smollm3", "SmolLM3ForCausalLM", {"tie_word_embeddings": True}),
    (
        "Granite 3",
        "granite",
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.0625,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "tie_word_embeddings": True,
        },
    ),
    (
        "Granite 4 (dense)",
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "layer_types": ["attention"] * 4,
            "shared_intermediate_size": 128,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.0625,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "position_embedding_type": "rope",
            "tie_word_embeddings": True,
        },
    ),
    ("LFM2 / 2.5", "lfm2", "Lfm2ForCausalLM", {}),
    ("GLM-4.7-Flash", "glm4_moe_lite", "Glm4MoeLiteForCausalLM", {}),
    ("OLMo 2", "olmo2", "Olmo2ForCausalLM", {}),
    ("Qwen3-Next", "qwen3_next", "Qwen3NextForCausalLM", {}),
    ("Gemma 3n", "gemma3n", "Gemma3nForConditionalGeneration", {}),
    ("Nemotron 3 / H", "nemotron_h", "NemotronHForCausalLM", {}),
    ("DeepSeek-V3 / R1", "deepseek_v3", "DeepseekV3ForCausalLM", {}),
    (
        "Granite 4-H",
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {"layer_types": ["mamba", "attention"] * 2},
    ),
    ("GLM-4.5 (Air)", "glm4_moe", "Glm4MoeForCausalLM", {"use_qk_norm": True}),
    ("GLM-4-0414", "glm4", "Glm4ForCausalLM", {}),
    ("Mixtral", "mixtral", "MixtralForCausalLM", {}),
    ("Llama 4", "llama4", "Llama4ForConditionalGeneration", {}),
    ("Llama 3.2 Vision (text)", "mllama", "MllamaForConditionalGeneration", {}),
    ("DeepSeek-V2 (Lite)", "deepseek_v2", "DeepseekV2ForCausalLM", {"q_lora_rank": None}),
    ("OLMo 3", "olmo3", "Olmo3ForCausalLM", {"layer_types": PATTERN * 2}),
    ("Falcon-H1", "falcon_h1", "FalconH1ForCausalLM", {}),
    ("Hunyuan dense", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", {}),
    ("ERNIE 4.5", "ernie4_5", "Ernie4_5ForCausalLM", {}),
    ("ERNIE 4.5 MoE", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {}),
    ("EXAONE 4", "exaone4", "Exaone4ForCausalLM", {"layer_types": PATTERN * 2}),
    ("Gemma 1 / CodeGemma", "gemma", "GemmaForCausalLM", {}),
    ("Command-R", "cohere", "CohereForCausalLM", {"use_qk_norm": False}),
    ("Command-R7B / A", "cohere2", "Cohere2ForCausalLM", {}),
    ("StarCoder 2", "starcoder2", "Starcoder2ForCausalLM", {}),
    ("StableLM 2", "stablelm", "StableLmForCausalLM", {}),
    ("GPT-2", "gpt2", "GPT2LMHeadModel", {"tie_word_embeddings": True}),
    ("GPT-NeoX / Pythia", "gpt_neox", "GPTNeoXForCausalLM", {}),
    ("Phi-2", "phi", "PhiForCausalLM", {}),
    (
        "Falcon",
        "falcon",
        "FalconForCausalLM",
        {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True},
    ),
    ("Falcon 3 / MiMo / Seed-Coder", "llama", "LlamaForCausalLM", {}),
    ("Seed-OSS", "seed_oss", "SeedOssForCausalLM", {}),
    ("Apertus", "apertus", "ApertusForCausalLM", {}),
    ("Muse Glimmer (text)", "muse_glimmer", "MuseGlimmerForConditionalGeneration", {}),
    ("LFM2 MoE", "lfm2_moe", "Lfm2MoeForCausalLM", {}),
    ("Bloom", "bloom", "BloomForCausalLM", {}),
    ("OPT", "opt", "OPTForCausalLM", {}),
    ("Mamba 2", "mamba2", "Mamba2ForCausalLM", {}),
    ("Jamba", "jamba", "JambaForCausalLM", {}),
)


@dataclasses.dataclass(frozen=True)
class Family:
    """One kind of model folder; `rank` orders those that people fine-tune most (0: not among them)."""

    name: str
    model_type: str
    architecture: str
    reads: str
    """text, or pictures."""
    over: dict = dataclasses.field(default_factory=dict)
    rank: int = 0


def list_families() -> list[Family]:
    """Return the popular kinds first, then every other class that writes text, then every one that reads pictures."""
    from transformers.models.auto import modeling_auto as auto

    text, pictures = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    found = [
        Family(name, kind, cls, "pictures" if "Conditional" in cls else "text", over, rank)
        for rank, (name, kind, cls, over) in enumerate(POPULAR, 1)
    ]
    known = {(one.model_type, one.architecture) for one in found}
    popular = {one.model_type for one in found}
    for table, reads in ((text, "text"), (pictures, "pictures")):
        for kind, names in table.items():
            cls = names if isinstance(names, str) else names[0]
            composed = reads == "text" and kind in pictures
            if (
                kind in popular
                or (kind, cls) in known
                or composed
                and kind not in ("fuyu", "git", "mistral4")
            ):
                continue
            known.add((kind, cls))
            found.append(Family(kind, kind, cls, reads))
    return found


def shrink(config_class, over=None, small=SMALL):
    """Return a tiny config of `config_class`: small sizes for the fields it has, every kind of layer once."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    over, kwargs = dict(over or {}), {}
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    for name, field in fields.items():
        if name in small:
            kwargs[name] = small[name]
        elif name.endswith(("_token_id", "_token_index")) and isinstance(field.default, int):
            kwargs[name] = _number(name)
    if "kv_lora_rank" in fields and "num_key_value_heads" in fields:
        kwargs["num_key_value_heads"] = 4
    subs = dict(getattr(config_class, "sub_configs", None) or {}) | dict(
        getattr(config_class, "sub_configs_defaults", None) or {}
    )
    for key, sub in subs.items():
        if key in over and over[key] is None:
            continue
        given = dict(over.pop(key, None) or {})
        if given.get("model_type"):
            sub = CONFIG_MAPPING[given.pop("model_type")]
        elif hasattr(sub, "config_class"):
            sub = (
                CONFIG_MAPPING[sub.model_type]
                if sub.config_class.__name__ == "AutoConfig"
                else sub.config_class
            )
        elif sub.__name__ == "AutoConfig":
            value = getattr(config_class(), key)
            if value is None:
                continue
            sub = type(value)
        table = (
            small if any(word in key for word in ("text", "llm", "decoder", "language")) else SMALL | VISION
        )
        kwargs[key] = shrink(sub, given, table).to_dict()
    kwargs |= over
    config = config_class(**kwargs)
    if "layer_types" in fields and "layer_types" not in over and small is SMALL:
        try:
            kinds = list(dict.fromkeys(config_class().layer_types or []))
        except Exception:
            kinds = []
        mine = list(config.layer_types or [])
        if mine and len(set(mine)) < len(kinds):
            config = config_class(
                **kwargs | {"layer_types": [kinds[i % len(kinds)] for i in range(len(mine))]}
            )
    return config


def make_tiny(family: Family):  # noqa: ANN201
    """Return a tiny random model of `family` in fp32."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = shrink(CONFIG_MAPPING[family.model_type], _merge(OVER.get(family.model_type, {}), family.over))
    cls = getattr(transformers, family.architecture)
    name_tokens(config, cls)
    model = cls(config)
    randomise(model)
    return model


def build_model(family: Family, folder: Path) -> int:
    """Save a tiny random model of `family` with tokenizer and template in `folder`; return its parameters' count."""
    import torch

    model = make_tiny(family)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    model.to(torch.bfloat16).save_pretrained(
        folder
    )  # a merge stores 16 bits: what it must leave is the same to the bit
    make_tokenizer(folder)
    return sum(p.numel() for p in model.parameters())


def name_tokens(config, cls) -> None:
    """Give `config` the special tokens that the code of `cls` reads and its config class does not list.

    Qwen's Omni models keep some in the files of the hub alone.
    """
    code = inspect.getsource(inspect.getmodule(cls))
    for name in sorted(set(re.findall(r"\bself\.config\.(\w+_token_id)\b", code))):
        if not hasattr(config, name):
            setattr(config, name, _number(name))


def _number(name: str) -> int:
    """Return an id of its own for a special token, among those that no text has."""
    return 300 + sum(map(ord, name)) % 80


def _merge(first: dict, second: dict) -> dict:
    return {
        key: _merge(first[key], second[key])
        if isinstance(first.get(key), dict) and isinstance(second.get(key), dict)
        else second.get(key, first.get(key))
        for key in {**first, **second}
    }


def randomise(model) -> None:
    """Make every part count: matrices of spread 0.08, norms and biases off their neutral values."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.is_floating_point():
                continue
            if p.ndim == 1 and "norm" in name and name.endswith("weight"):
                p.add_(torch.randn(p.shape, generator=generator) * 0.1)
            elif p.ndim == 1 and name.endswith("bias") and "dt" not in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.05)
            elif p.ndim == 1 and p.numel() > 1 and p.float().std() == 0:  # scales of 0 let nothing through
                p.add_(torch.randn(p.shape, generator=generator) * 0.1)
            elif p.ndim >= 2 and "A_log" not in name and "conv" not in name:
                spread = p.float().std()
                if 0 < spread < 0.08:
                    p.mul_(0.08 / spread)


TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(folder: Path) -> None:
    """Save a byte-level tokenizer of 261 tokens with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|end|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*specials, *alphabet])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=specials[2:],
        model_max_length=512,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def write_data(path: Path) -> Path:
    """24 short conversations."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"say {i}"},
                {"role": "assistant", "content": f"it is {i * 7 % 10}" + " and on" * (i % 3)},
            ]
        }
        for i in range(24)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
