"""Folders written as GGUF files: llama.cpp itself opens them and computes the same, and what it cannot is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import transformers

from studio.core.errors import StudioError
from studio.engine.legacy_config import add_older_spelling
from studio.models.catalog import DEMO_MODEL
from studio.models.gguf.header import read_header
from studio.models.gguf.llama_cpp import LlamaCppError, ask
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.write import plan_file, write_file
from studio.models.gguf.written import TEXTS, compare_file
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
    "gemma4": FOREIGN["gemma4"],
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
        FOREIGN["latent"][1] | {"first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
                                "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    ),
}  # fmt: skip
QUICK = ("llama", "gemma3", "qwen3_moe")
REFUSED = {
    "layer_types": (transformers.Gemma3TextConfig, FAMILIES["gemma3"][1]),
    "query_pre_attn_scalar": (
        transformers.Gemma2Config, {"sliding_window": 8, "query_pre_attn_scalar": 23},
    ),
    "sliding_window": FAMILIES["mistral"],
    "no_rope_layers": FAMILIES["smollm3"],
    "hidden_act": (transformers.LlamaConfig, {"hidden_act": "gelu"}),
    "norm_topk_prob": (transformers.Qwen3MoeConfig, EXPERTS | {"norm_topk_prob": False}),
}  # fmt: skip
"""What llama.cpp takes from the architecture: a model that differs there is refused, naming the setting."""


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


@torch.no_grad()
def differ(model, found) -> float:
    """Return the largest KL of llama.cpp's next token from the model's."""
    shares = []
    for ids, listed in zip(PROMPTS, found, strict=True):
        wanted = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        if listed:
            other = torch.full_like(wanted, -50.0)
            numbers, logs = zip(*listed, strict=True)
            other[torch.tensor(numbers)] = torch.tensor(logs)
            shares.append(float((wanted.exp() * (wanted - other)).sum()))
    assert shares
    return max(shares)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.computing]) for one in MODELS]
)
def test_llama_cpp_computes_what_the_folder_does(name, tmp_path):
    model = make_folder(tmp_path, *MODELS[name])
    path = write(tmp_path, "F16")
    compare_file(plan_file(tmp_path, get_mix("F16"), "tiny", path.name), path)
    found = ask(path, {"prompts": PROMPTS, "vocabulary": VOCABULARY, "context": 128})
    assert differ(model, found["log_probabilities"]) < ALIKE


@pytest.mark.parametrize("setting", REFUSED)
def test_a_model_that_a_file_cannot_say_is_refused(setting, tmp_path):
    make_folder(tmp_path, *REFUSED[setting])
    with pytest.raises(StudioError) as refused:
        path = write(tmp_path, "F16")
        compare_file(plan_file(tmp_path, get_mix("F16"), "tiny", path.name), path)
    assert (refused.value.what.id, refused.value.why.values["setting"]) == ("gguf.not_said", setting)


@pytest.mark.parametrize("form", ["Q8_0", pytest.param("Q4_K_M", marks=pytest.mark.computing)])
def test_the_demo_in_few_bits_has_the_same_tokens_and_is_close(form, tmp_path):
    folder = tmp_path / "demo"
    folder.mkdir()
    for file in DEMO_MODEL.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    path = write(folder, form)
    compare_file(plan_file(folder, get_mix(form), "tiny", path.name), path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chat = [{"role": "user", "content": "Hi <b>"}]
    found = ask(path, {"texts": TEXTS, "chats": [chat], "prompts": PROMPTS, "vocabulary": VOCABULARY})
    assert found["tokens"] == [tokenizer.encode(words, add_special_tokens=False) for words in TEXTS]
    assert found["rendered"] == [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ]
    assert differ(model, found["log_probabilities"]) < {"Q8_0": 0.02, "Q4_K_M": 0.5}[form]


def test_a_file_that_was_changed_is_found_out(tmp_path):
    make_folder(tmp_path, *MODELS["llama"])
    path = write(tmp_path, "F16")
    plan = plan_file(tmp_path, get_mix("F16"), "tiny", path.name)
    tensor = read_header(path).tensors["blk.1.ffn_up.weight"]
    data = bytearray(path.read_bytes())
    data[tensor.start_bytes : tensor.start_bytes + 4000] = bytes(4000)
    path.write_bytes(data)
    with pytest.raises(StudioError) as refused:
        compare_file(plan, path)
    assert refused.value.what.id == "gguf.packed_wrong" and "ffn_up" in refused.value.why.values["tensor"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda spec: spec["model"].update(type="WordLevel"), "gguf.tokenizer_kind"),
        (lambda spec: spec.update(pre_tokenizer={"type": "Whitespace"}), "gguf.no_pattern"),
        (lambda spec: spec.update(normalizer={"type": "Lowercase"}), "gguf.no_pattern"),
    ],
)
def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(change, reason, tmp_path):
    make_folder(tmp_path, *MODELS["llama"])
    spec = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    change(spec)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(StudioError) as refused:
        plan_file(tmp_path, get_mix("F16"), "tiny", "model.gguf")
    assert refused.value.what.id == reason


def test_what_is_no_model_makes_llama_cpp_fail_and_not_the_studio(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 400)
    with pytest.raises(LlamaCppError):
        ask(path, {"prompts": [[1]]})
