"""Writes a model of a known shape with random weights, a tokenizer and data: `make_model.py llama-1b DIR`.

Speed and memory depend on shapes, not on what the weights know, so a benchmark needs no download.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

LLAMA_3 = {
    "model_type": "llama",
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
QWEN_3 = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}
PHI_3_MEDIUM = {
    "vocab_size": 32064,
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "max_position_embeddings": 4096,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
SHAPES = {
    "llama-8b": {  # Llama-3.1-8B: 8.03e9 parameters, 16.1 GB
        **LLAMA_3,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "tie_word_embeddings": False,
    },
    "llama-1b": {  # Llama-3.2-1B: 1.24e9 parameters, 2.5 GB
        **LLAMA_3,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "rope_parameters": {**LLAMA_3["rope_parameters"], "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {  # 0.60e9 parameters, 1.2 GB
        **QWEN_3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {  # 8.19e9 parameters, 16.4 GB
        **QWEN_3,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "gemma3-4b": {  # the language model of Gemma-3-4B: 3.88e9 parameters, 7.8 GB
        "model_type": "gemma3_text",
        "vocab_size": 262208,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "mistral-7b": {  # Mistral-7B-v0.3: 7.25e9 parameters, 14.5 GB
        "model_type": "mistral",
        "vocab_size": 32768,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "phi3-medium": {"model_type": "phi3", **PHI_3_MEDIUM},  # 14.0e9 parameters, 27.9 GB
    "phi3-medium-split": {
        "model_type": "mistral",
        **PHI_3_MEDIUM,
    },  # the same, with q, k, v, gate and up apart
    "qwen3-30b-a3b-slice": {  # 12 of the 48 layers of Qwen3-30B-A3B: 8.10e9 parameters, 16.2 GB
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
    "gpt-oss-20b-slice": {  # 6 of the 24 layers of gpt-oss-20b, experts in MXFP4: 6.10e9 parameters, 5.2 GB
        "model_type": "gpt_oss",
        "num_hidden_layers": 6,
        "num_local_experts": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["self_attn", "mlp.router", "embed_tokens", "lm_head"],
        },
    },
    "qwen3.5-9b-slice": {  # 8 of the 32 layers of Qwen3.5-9B's language model: 3.76e9 parameters, 7.5 GB
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "num_hidden_layers": 8,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
        "tie_word_embeddings": False,
    },
    "gemma4-26b-slice": {  # 6 of the 30 layers of a model like Gemma-4-26B-A4B: 5.64e9 parameters, 11.3 GB
        "model_type": "gemma4_text",
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_hidden_layers": 6,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "gemma3n-e4b-slice": {  # 10 of the 35 layers of Gemma 3n E4B's language model: 2.35e9 parameters, 4.7 GB
        "model_type": "gemma3n_text",
        "num_hidden_layers": 10,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 2,
        "num_kv_shared_layers": 5,
        "activation_sparsity_pattern": [0.95] * 3 + [0.0] * 7,
    },
    "glm-4.7-flash-slice": {  # 6 of the 47 layers of GLM-4.7-Flash: 3.90e9 parameters, 7.8 GB
        "model_type": "glm4_moe_lite",
        "num_hidden_layers": 6,
        "mlp_layer_types": ["dense", *["sparse"] * 5],
    },
    "llama-3b-slice": {  # six layers of Llama-3.2-3B on a small vocabulary: 0.70e9 parameters, 1.4 GB
        **LLAMA_3,
        "vocab_size": 32768,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 6,
        "num_attention_heads": 24,
        "rope_parameters": {**LLAMA_3["rope_parameters"], "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "smollm-slice": {  # six layers of SmolLM2-135M on a small vocabulary: 26e6 parameters, 52 MB
        "model_type": "llama",
        "vocab_size": 8192,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    "tiny": {  # for a try on a processor
        "model_type": "llama",
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
}
SPREAD = 0.02
"""Standard deviation of the weights, as Llama is initialised."""
SHARD_BYTES = 2 * 2**30
BRANCH_NORM = 0.25
FROM_ZERO = "correct_output_scale"
"""What Gemma 3n begins at zeros: a token's own inputs would be met by nothing."""
APART = ("qwen3_moe", "glm4_moe_lite")
"""Families whose folders hold every expert apart."""
MXFP4_BLOCK, MXFP4_SCALE = 32, 120
"""Values of a block, and its exponent plus 127: of random bytes, SPREAD."""
SPECIALS = ("<|end|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONVERSATIONS = 64


def make_model(shape: str, folder: Path, *, seed: int = 0, device: str = "cpu", tokens: int = 2048) -> Path:
    """Write the model of SHAPES[shape], its tokenizer and `conversations.jsonl` in `folder`; returns `folder`.

    Weights are bfloat16, drawn on `device`; every conversation is longer than `tokens` tokens, so that each row of
    a benchmark is full. Needs the size of one shard in memory, not of the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = build_config(shape)
    config.save_pretrained(folder)
    generator = torch.Generator(device).manual_seed(seed)
    write_weights(config, folder, generator)
    write_tokenizer(folder)
    write_conversations(folder / "conversations.jsonl", tokens, seed)
    return folder


def build_config(shape: str) -> PreTrainedConfig:
    """Return the configuration of SHAPES[shape] with the special tokens of write_tokenizer()."""
    settings = dict(SHAPES[shape])
    config = AutoConfig.for_model(
        settings.pop("model_type"),
        **settings,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    return config


def list_tensors(config: PreTrainedConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every tensor of the model that is stored."""
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(config).state_dict()
    for name, tensor in tensors.items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            yield name, tuple(tensor.shape)


def read_vectors(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Return the tensors of one dimension at most as the family begins them: norms, biases, decays."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for module in model.modules():
        small = {name: one for name, one in module.named_parameters(recurse=False) if one.dim() < 2}
        for name, one in small.items():
            setattr(module, name, torch.nn.Parameter(torch.empty(one.shape, dtype=one.dtype)))
        for name, one in module.named_buffers(recurse=False):
            if one.dim() < 2:
                module.register_buffer(name, torch.ones(one.shape, dtype=one.dtype))
        model.get_decoder()._init_weights(module)  # by the one whose widths it asks for (Gemma 3n)
    return {name: one for name, one in model.state_dict().items() if one.dim() < 2}


def draw_stored(
    config: PreTrainedConfig, name: str, shape: tuple[int, ...], generator: torch.Generator
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors under which the family's folders hold one of more than one dimension, with random values."""

    def draw(*size: int) -> torch.Tensor:
        drawn = torch.randn(size, dtype=torch.bfloat16, device=generator.device, generator=generator)
        return drawn.mul_(SPREAD).cpu()

    place, _, leaf = name.rpartition(".")
    if config.model_type == "gpt_oss" and leaf in ("gate_up_proj", "down_proj"):
        experts, inputs, outputs = shape
        blocks = (experts, outputs, inputs // MXFP4_BLOCK, MXFP4_BLOCK // 2)
        random_bytes = torch.randint(256, blocks, device=generator.device, generator=generator)
        yield f"{name}_blocks", random_bytes.to(torch.uint8).cpu()
        yield f"{name}_scales", torch.full(blocks[:3], MXFP4_SCALE, dtype=torch.uint8)
    elif config.model_type in APART and leaf in ("gate_up_proj", "down_proj") and len(shape) == 3:
        for number in range(shape[0]):
            if leaf == "down_proj":
                yield f"{place}.{number}.down_proj.weight", draw(*shape[1:])
            else:
                for half in ("gate_proj", "up_proj"):
                    yield f"{place}.{number}.{half}.weight", draw(shape[1] // 2, shape[2])
    else:
        yield name, draw(*shape)


def write_weights(config: PreTrainedConfig, folder: Path, generator: torch.Generator) -> None:
    """Draw and write the tensors in shards of about SHARD_BYTES, and the index that names them."""
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    written_bytes = shard_bytes = 0

    def flush() -> None:
        nonlocal written_bytes, shard_bytes
        name = f"model-{len(set(places.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, name))
        written_bytes += shard_bytes
        shard_bytes = 0
        shard.clear()

    vectors = read_vectors(config)
    for name, shape in list_tensors(config):
        known = None
        if len(shape) < 2:
            # After a branch as trained ones are: at 1 every branch is as large as the stream, and routes are chance.
            scale = BRANCH_NORM if "gemma4" in config.model_type and ".post_" in name else 1.0
            vector = torch.ones(shape) if name.endswith(FROM_ZERO) else vectors[name]
            known = [(name, vector.to(torch.bfloat16) * scale)]
        for stored, tensor in known or draw_stored(config, name, shape, generator):
            shard[stored] = tensor
            shard_bytes += tensor.nbytes
            if shard_bytes >= SHARD_BYTES:
                flush()
    if shard:
        flush()
    index = {"metadata": {"total_size": written_bytes}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer, one token a byte, with a chat template; 261 tokens, fewer than any model has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=SPECIALS[0],
        pad_token=SPECIALS[1],
        additional_special_tokens=list(SPECIALS[2:]),
        model_max_length=131072,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def write_conversations(path: Path, tokens: int, seed: int) -> None:
    """Write CONVERSATIONS conversations of random words whose answers alone are longer than `tokens` bytes."""
    source = random.Random(seed)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(2000)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(CONVERSATIONS):
            answer = " ".join(source.choices(words, k=tokens // 6 + 1))
            messages = [
                {"role": "user", "content": " ".join(source.choices(words, k=4))},
                {"role": "assistant", "content": answer},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def main() -> int:
    """Write the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=2048, help="least length of a conversation")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(make_model(options.shape, options.folder, device=device, tokens=options.tokens))
    return 0


if __name__ == "__main__":
    sys.exit(main())
