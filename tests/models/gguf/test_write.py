"""Folders written as GGUF files: llama.cpp itself opens them and computes the same, and what it cannot is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from studio.core.errors import StudioError
from studio.models.catalog import DEMO_MODEL
from studio.models.gguf.header import read_header
from studio.models.gguf.keys import GgufKeys
from studio.models.gguf.llama_cpp import LlamaCppError, ask
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.tensors import open_tensors
from studio.models.gguf.write import plan_file
from studio.models.gguf.written import TEXTS, compare_file, read_written
from tests.models.decoder.models import FAMILIES
from tests.models.gguf.models import ALIKE, EXPERTS, MODELS, PROMPTS, VOCABULARY, differ, make_folder, write

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
    "topk_method": (
        transformers.DeepseekV2Config,
        MODELS["deepseek2"][1] | {"n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy"},
    ),
}  # fmt: skip
"""What llama.cpp takes from the architecture: a model that differs there is refused, naming the setting."""


@pytest.mark.parametrize("name", QUICK)
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


def test_a_weight_that_is_asked_for_has_the_numbers_of_the_opened_file_and_is_wide_at_once(tmp_path):
    folder = tmp_path / "demo"
    shutil.copytree(DEMO_MODEL, folder)
    path = write(folder, "Q8_0")
    plan = plan_file(folder, get_mix("Q8_0"), "tiny", path.name)
    read, keys = read_written(plan, path), GgufKeys(read_header(path))
    opened = dict(open_tensors(plan.family, keys, plan.config))
    assert {one.dtype for one in opened.values()} == {torch.bfloat16}
    for name, weight in opened.items():
        found = read(name)
        assert torch.equal(found.float(), weight.float()), name
        assert found.dtype == (torch.float32 if weight.dim() > 1 else torch.bfloat16), name


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
