"""Tiny random models of every family that the decoder covers, with adapters that do something."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
import transformers
from peft import LoraConfig, get_peft_model
from studio_kernels.dispatch import Kernels, bind
from studio_kernels.gated_delta import GATED_DELTA
from studio_kernels.op import Implementation
from torch import nn

from studio.models.adapter_targets import PEFT_REFUSED_TYPES, PEFT_REFUSES
from studio.models.decoder.structure import STREAM_COUNT, STREAM_MAPS
from studio.models.modules_to_save import free_modules
from studio.models.new_tokens import name_ends

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
GRANITE = {
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.3,
    "embedding_multiplier": 4.0,
    "logits_scaling": 3.0,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
    },
}  # fmt: skip
FAMILIES = {
    "llama": (transformers.LlamaConfig, {}),
    "llama3": (
        transformers.LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": (transformers.MistralConfig, {"sliding_window": 8}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3Config, {}),
    "gemma2": (transformers.Gemma2Config, {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": (transformers.Gemma3TextConfig, MIXED | {"query_pre_attn_scalar": 16}),
    "phi3": (transformers.Phi3Config, {"sliding_window": None}),
    "phi4": (
        transformers.Phi3Config,
        {
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "phi4_mini": (
        transformers.Phi3Config,
        {
            "sliding_window": None, "max_position_embeddings": 512, "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                "short_factor": [1.0] * 6, "long_factor": [2.0] * 6, "original_max_position_embeddings": 256,
            },
        },
    ),
    "smollm3": (transformers.SmolLM3Config, {"no_rope_layers": [1, 0, 1], **TOKENS}),
    "granite": (transformers.GraniteConfig, GRANITE),
    "granite_dense": (
        transformers.GraniteMoeHybridConfig,
        GRANITE | {
            "num_local_experts": 0, "shared_intermediate_size": 96, "layer_types": ["full_attention"] * 3,
            "position_embedding_type": "rope",
        },
    ),
    "ministral3": (
        transformers.Ministral3Config,
        {
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 8,
            },
            "max_position_embeddings": 128,
        },
    ),
    "olmo2": (transformers.Olmo2Config, TOKENS),
    "olmo3": (transformers.Olmo3Config, MIXED | TOKENS),
    "exaone4": (transformers.Exaone4Config, MIXED | {"sliding_window_pattern": 2} | TOKENS),
    "glm": (transformers.GlmConfig, TOKENS),
    "glm4": (transformers.Glm4Config, TOKENS),
    "hunyuan": (transformers.HunYuanDenseV1Config, TOKENS),
    "ernie4_5": (transformers.Ernie4_5Config, TOKENS),
    "helium": (transformers.HeliumConfig, TOKENS),
    "gemma4": (
        transformers.Gemma4TextConfig,
        TOKENS | MIXED | {
            "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "global_head_dim": 32, "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4_e2b": (  # inputs of each layer, keys and values of others, wider MLPs there
        transformers.Gemma4TextConfig,
        TOKENS | {
            "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 8,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "num_kv_shared_layers": 3,
            "global_head_dim": 32, "final_logit_softcapping": 30.0, "use_double_wide_mlp": True,
        },
    ),
    "gemma3n": (  # several residual streams, a narrow map beside attention, gates that are cut
        transformers.Gemma3nTextConfig,
        TOKENS | {
            "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 8,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "num_kv_shared_layers": 3,
            "laurel_rank": 16, "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.0, 0.7],
            "final_logit_softcapping": 30.0,
        },
    ),
    "latent": (  # DeepSeek-V3's attention, in a model without experts
        transformers.DeepseekV3Config,
        TOKENS | {
            "first_k_dense_replace": 3, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8,
        },
    ),
    "latent_v2": (  # of DeepSeek V2 Lite: queries come from the layer's rows, and tables are complex
        transformers.DeepseekV2Config,
        TOKENS | {
            "first_k_dense_replace": 3, "q_lora_rank": None, "kv_lora_rank": 64, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 24, "num_key_value_heads": 4, "head_dim": 8,
        },
    ),
    "minicpm3": (  # the same without experts, its branches multiplied
        transformers.MiniCPM3Config,
        TOKENS | {
            "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
            "num_key_value_heads": 4, "head_dim": 8, "scale_depth": 1.1, "dim_model_base": 32,
        },
    ),
    "latent_halves": (
        transformers.DeepseekV3Config,
        TOKENS | {
            "first_k_dense_replace": 3, "rope_interleave": False, "attention_bias": True, "q_lora_rank": 64,
            "kv_lora_rank": 64, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
            "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8,
        },
    ),
}  # fmt: skip
FOREIGN = {
    "qwen3_5": (transformers.Qwen3_5TextConfig, DELTA | TOKENS),
    "lfm2": (
        transformers.Lfm2Config,
        TOKENS | {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "granite_hybrid": (
        transformers.GraniteMoeHybridConfig,
        GRANITE | {
            "num_local_experts": 0, "shared_intermediate_size": 96,
            "layer_types": ["mamba", "attention", "mamba"], "position_embedding_type": "rope",
            "mamba_d_state": 16, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
    ),
    "nemotron_h": (  # layers of one block each: state space, attention, MLP; with experts: routed_models.py
        transformers.NemotronHConfig,
        TOKENS | {
            "layers_block_type": ["mamba", "attention", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 16,
            "ssm_state_size": 16, "n_groups": 2, "chunk_size": 16,
        },
    ),
}  # fmt: skip
"""Families of which some layers mix tokens by the model's own module."""
TARGETS = "all-linear"


def list_excluded(model: nn.Module) -> list[str] | None:
    """Return what the studio's own "all-linear" leaves out and peft's does not (models/adapter_targets.py)."""
    if hasattr(model.config, STREAM_COUNT):
        return list(STREAM_MAPS)
    return sorted(PEFT_REFUSES) if model.config.model_type in PEFT_REFUSED_TYPES else None


def make_model(
    family: str, *, dtype: torch.dtype = torch.float32, dropout=0.0, targets=TARGETS, rank=4,
    attention="eager", dora=False, tokens=(), modules=(), **shape
) -> nn.Module:  # fmt: skip
    """Return a PeftModel in evaluation mode whose norms, biases and adapters are all drawn at random.

    `tokens`: ids whose rows of embedding and head are trained, too; `modules`: what is trained in full.
    """
    torch.manual_seed(0)
    config_class, extra = (FAMILIES | FOREIGN)[family]
    config = config_class(**copy.deepcopy(SHAPE | extra | shape))  # Gemma 4's changes its layer_types
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype)
    for name, scalar in model.named_buffers():
        if name.endswith("layer_scalar"):
            scalar.fill_(0.625)
    adapted = get_peft_model(
        model,
        LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            lora_dropout=dropout,
            target_modules=targets,
            exclude_modules=list_excluded(model),
            use_dora=dora,
            task_type="CAUSAL_LM",
            trainable_token_indices={name: list(tokens) for name in name_ends(model)} if tokens else None,
        ),
    )
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith(("bias", "correct_output_scale")):
                parameter.normal_(0.0, 0.2)
            elif "magnitude" in name:
                parameter.mul_(1.0 + 0.2 * torch.randn_like(parameter))
            elif "lora_" in name or "trainable_tokens" in name:
                parameter.normal_(0.0, 0.1)
            elif name.endswith(("A_log", "dt_bias")):
                parameter.normal_(-1.0, 0.3)  # a state that lasts for some tokens
            else:
                parameter.mul_(4.0)  # fresh weights are so small that attention is nearly even
    if modules:
        free_modules(adapted, modules)
    adapted.config.use_cache = False
    return adapted.eval()


def make_whole_model(family: str, *, dtype: torch.dtype = torch.float32, **shape) -> nn.Module:
    """Return a model of which every weight is trained, in evaluation mode; norms and biases are drawn at random."""
    torch.manual_seed(0)
    config_class, extra = (FAMILIES | FOREIGN)[family]
    config = config_class(**copy.deepcopy(SHAPE | extra | shape))  # Gemma 4's changes its layer_types
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            else:
                parameter.mul_(4.0)
    model.config.use_cache = False
    return model.eval()


def twins_as_kernels(twin: Implementation = GATED_DELTA.reference) -> Kernels:
    """Return ops of which `twin` stands for the kernels of a delta rule."""
    bound = bind({})
    named = {**bound.implementations, "gated_delta": "triton"}
    return replace(bound, ops={**bound.ops, "gated_delta": twin}, implementations=named)
