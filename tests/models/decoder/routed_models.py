"""Tiny random models of families with experts, with adapters on every linear and every expert."""

from __future__ import annotations

import copy

import torch
import transformers
from torch import nn

from studio.core.recipe import AdapterSpec
from studio.models.adapt import adapt
from studio.models.nf4_experts import IMPLEMENTATION, STACKS, Nf4Stack, is_experts, register_implementation
from tests.models.decoder.models import DELTA, GRANITE, MIXED, SHAPE, TOKENS

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
GROUPED = {
    "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
}  # fmt: skip
FAMILIES = {
    "qwen3_moe": (transformers.Qwen3MoeConfig, EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [0]}),
    "mixtral": (transformers.MixtralConfig, {"num_local_experts": 8, "num_experts_per_tok": 3}),
    "olmoe": (transformers.OlmoeConfig, {"num_experts": 8, "num_experts_per_tok": 3} | TOKENS),
    "qwen2_moe": (transformers.Qwen2MoeConfig, EXPERTS | {"shared_expert_intermediate_size": 64}),
    "glm4_moe": (transformers.Glm4MoeConfig, EXPERTS | GROUPED),
    "ernie4_5_moe": (
        transformers.Ernie4_5_MoeConfig,
        {
            "moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32, "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "gpt_oss": (
        transformers.GptOssConfig,
        TOKENS | {
            "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "granitemoe": (transformers.GraniteMoeConfig, {"num_local_experts": 8, "num_experts_per_tok": 3} | GRANITE),
    "deepseek_v3": (
        transformers.DeepseekV3Config,
        TOKENS | GROUPED | {
            "num_experts_per_tok": 3, "moe_intermediate_size": 32, "q_lora_rank": 64, "kv_lora_rank": 64,
            "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4, "head_dim": 8,
        },
    ),
    "gemma4_moe": (
        transformers.Gemma4TextConfig,
        TOKENS | MIXED | {
            "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "global_head_dim": 32, "final_logit_softcapping": 30.0,
            "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32,
        },
    ),
}  # fmt: skip

FOREIGN = {
    "qwen3_next": (
        transformers.Qwen3NextConfig,
        EXPERTS | DELTA | TOKENS | {"shared_expert_intermediate_size": 64, "norm_topk_prob": True},
    ),
    "qwen3_5_moe": (
        transformers.Qwen3_5MoeTextConfig, EXPERTS | DELTA | TOKENS | {"shared_expert_intermediate_size": 64},
    ),
    "granite_4_h": (
        transformers.GraniteMoeHybridConfig,
        GRANITE | {
            "num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 96,
            "layer_types": ["mamba", "attention", "mamba"], "mamba_d_state": 16, "mamba_n_heads": 8,
            "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16,
        },
    ),
    "nemotron_3": (  # layers of one block each, experts without a gate
        transformers.NemotronHConfig,
        TOKENS | GROUPED | {
            "layers_block_type": ["mamba", "moe", "attention"],
            "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "chunk_size": 16,
            "num_experts_per_tok": 3, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64,
        },
    ),
}  # fmt: skip
"""Families whose layers mix tokens by the model's own module, beside experts."""


def make_routed(
    family: str,
    *,
    dtype: torch.dtype = torch.float32,
    packed: bool = False,
    targets: str = "all-linear",
    **shape,
) -> nn.Module:
    """Return a PeftModel in evaluation mode whose corrections and adapters are drawn; `packed`: experts in NF4."""
    torch.manual_seed(0)
    config_class, extra = (FAMILIES | FOREIGN)[family]
    config = config_class(**copy.deepcopy(SHAPE | extra | shape))  # Gemma 4's changes its layer_types
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if "correction" in name:
                values.normal_(0.0, 0.1)
            elif "norm" in name or "sinks" in name or name.endswith("scale"):
                values.add_(torch.randn_like(values) * 0.2)
            elif values.dim() > 1:
                values.mul_(4.0)  # fresh weights are so small that all experts score alike
    if dtype == torch.float64:
        model.config._experts_implementation = "eager"  # PyTorch's grouped product has no fp64
    if packed:
        pack(model)
    adapted = adapt(model, AdapterSpec(rank=12, alpha=24, target_modules=targets))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = torch.empty_like(parameter, dtype=torch.promote_types(dtype, torch.float32))
                parameter.normal_(0.0, 0.1)
    adapted.config.use_cache = False
    return adapted.eval()


def pack(model: nn.Module) -> None:
    """Hold the experts of `model` in 4 bits, as reading with NF4 does."""
    register_implementation()
    for module in [one for one in model.modules() if is_experts(one)]:
        for name in STACKS:
            if hasattr(module, name):
                stack = Nf4Stack(getattr(module, name).data)
                delattr(module, name)
                module.add_module(name, stack)
        module.config._experts_implementation = IMPLEMENTATION
