"""Tiny random models of the families that GGUF files hold, as folders and as files."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import transformers

from studio.engine.legacy_config import add_older_spelling
from studio.models.catalog import DEMO_MODEL
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.write import plan_file, write_file
from tests.models.decoder.models import DELTA, FAMILIES, FOREIGN, SHAPE, TOKENS

VOCABULARY = 2048
PROMPTS = [[7, 30, 55, 12, 31, 5, 61, 17, 88, 3], [40, 41, 42], [*range(9, 29)]]
ALIKE = 1e-4
"""Most KL of a file in 16 bits, in nats: 4e-6 is seen."""
WINDOWED = {
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    "sliding_window": 8,
    "num_hidden_layers": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MINISTRAL = copy.deepcopy(FAMILIES["ministral3"][1])
MINISTRAL["rope_parameters"] |= {"mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}
MODELS = {
    name: FAMILIES[name]
    for name in ("llama", "llama3", "qwen3", "gemma2", "phi3", "phi4", "phi4_mini", "granite", "olmo2", "glm4",
                 "hunyuan", "ernie4_5")
} | {
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "ministral3": (transformers.Ministral3Config, MINISTRAL | {"max_position_embeddings": 1024}),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {"num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16,
         "layer_types": [*["sliding_attention"] * 5, "full_attention"]},
    ),
    "gemma4": FAMILIES["gemma4"],
    "smollm3": (transformers.SmolLM3Config, TOKENS | {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
    "olmo3": (transformers.Olmo3Config, WINDOWED | TOKENS),
    "cohere2": (transformers.Cohere2Config, WINDOWED | TOKENS),
    "starcoder2": (transformers.Starcoder2Config, TOKENS | {"sliding_window": None}),
    "stablelm": (transformers.StableLmConfig, TOKENS),
    "seed_oss": (transformers.SeedOssConfig, TOKENS),
    "lfm2": FOREIGN["lfm2"],
    "qwen3_5": FOREIGN["qwen3_5"],
    "qwen3_moe": (transformers.Qwen3MoeConfig, EXPERTS | {"norm_topk_prob": True}),
    "mixtral": (transformers.MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": (
        transformers.GptOssConfig,
        TOKENS | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "num_hidden_layers": 4,
                  "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "qwen3_5_moe": (
        transformers.Qwen3_5MoeTextConfig, DELTA | TOKENS | EXPERTS | {"shared_expert_intermediate_size": 64},
    ),
    "deepseek3": (
        transformers.DeepseekV3Config,
        FAMILIES["latent"][1] | {"first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
                                 "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    ),
}  # fmt: skip
MODELS |= {
    "deepseek2": (
        transformers.DeepseekV2Config,
        FAMILIES["latent_v2"][1] | {"first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
                                    "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    ),
    "qwen2": FAMILIES["qwen2"],
    "gemma": (transformers.GemmaConfig, {}),
    "exaone4": (transformers.Exaone4Config, TOKENS | {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "cohere": (transformers.CohereConfig, TOKENS),
    "arcee": (transformers.ArceeConfig, TOKENS),
    "olmoe": (
        transformers.OlmoeConfig,
        TOKENS | {"num_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 16, "num_key_value_heads": 16},
    ),
    "qwen2_moe": (
        transformers.Qwen2MoeConfig,
        EXPERTS | {"shared_expert_intermediate_size": 64, "norm_topk_prob": False},
    ),
    "glm4_moe": (
        transformers.Glm4MoeConfig,
        TOKENS | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
                  "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
}  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 8}
"""Rows of whole blocks of 256, which K types have."""


def widen(settings):
    """Return a model's settings with rows of whole blocks."""
    wide = WIDE | settings
    names = ("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank")
    wide |= {name: 256 for name in names if name in settings}
    return wide | ({"num_key_value_heads": 16} if "kv_lora_rank" in settings else {})


def make_folder(folder: Path, kind, settings):
    """Save a model with the demo's tokenizer; return it."""
    torch.manual_seed(0)
    config = kind(**copy.deepcopy(SHAPE | {"vocab_size": VOCABULARY} | settings))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "norm" in name:
                one.add_(torch.randn_like(one) * 0.2)
            elif name.endswith("bias"):
                one.normal_(0.0, 0.2)
            elif name.endswith(("A_log", "dt_bias")):
                one.normal_(-1.0, 0.3)
            else:
                one.mul_(4.0)
    model.eval().to(torch.bfloat16).float()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((DEMO_MODEL / name).read_bytes())
    # Some families have a tokenizer of their own, whatever the file says: what is loaded is what is kept.
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    add_older_spelling(folder)
    return model


def write(folder: Path, form: str) -> Path:
    path = folder / f"model-{form}.gguf"
    plan = plan_file(folder, get_mix(form), "tiny", path.name)
    write_file(plan, path)
    assert path.stat().st_size == plan.size_bytes
    return path


def differ(model, found) -> float:
    """Return the largest KL of llama.cpp's next token from the model's."""
    return max(list_kl(model, found))


@torch.no_grad()
def list_kl(model, found) -> list[float]:
    """Return the KL of llama.cpp's next token behind each prompt from the model's; none where it is an end."""
    shares = []
    for ids, listed in zip(PROMPTS, found, strict=True):
        wanted = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        if listed:
            other = torch.full_like(wanted, -50.0)
            numbers, logs = zip(*listed, strict=True)
            other[torch.tensor(numbers)] = torch.tensor(logs)
            shares.append(float((wanted.exp() * (wanted - other)).sum()))
    assert shares
    return shares
