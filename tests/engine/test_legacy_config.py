"""A saved model is spelled for older programs, too, and reads as before in ours."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from studio.engine.legacy_config import add_older_spelling

LLAMA_3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [2.0],
    "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e6}


def spell(folder, name, settings):
    (folder / name).write_text(json.dumps(settings), encoding="utf-8")
    add_older_spelling(folder)
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("rope", "added"),
    [
        (PLAIN, {"rope_theta": 1e6, "rope_scaling": None}),
        (
            LLAMA_3,
            {"rope_theta": 5e5, "rope_scaling": {k: v for k, v in LLAMA_3.items() if k != "rope_theta"}},
        ),
        (
            LONG,
            {
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {
                    k: v for k, v in LONG.items() if k not in ("rope_theta", "partial_rotary_factor")
                },
            },
        ),
        (
            {"full_attention": PLAIN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
            {"rope_theta": 1e6, "rope_scaling": None, "rope_local_base_freq": 1e4},
        ),
        ({"rope_type": "default"}, {"rope_scaling": None}),
    ],
    ids=["plain", "llama3", "longrope", "by kind of layer", "no theta"],
)
def test_the_rope_is_spelled_both_ways(tmp_path, rope, added):
    config = {"model_type": "x", "dtype": "bfloat16", "rope_parameters": rope}
    assert spell(tmp_path, "config.json", config) == config | added | {"torch_dtype": "bfloat16"}
    whole = {"model_type": "sees", "text_config": config}
    assert spell(tmp_path, "config.json", whole)["text_config"] == config | added | {
        "torch_dtype": "bfloat16"
    }


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        (
            "mellum",
            {"full_attention": PLAIN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
        ),
        ("beam", {"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
        ("zaya", {"hybrid": PLAIN, "hybrid_sliding": {"rope_type": "default", "rope_theta": 1e4}}),
    ],
)
def test_a_rope_that_the_older_names_would_hide_keeps_its_own_alone(tmp_path, family, rope):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers has no {family}")
    CONFIG_MAPPING[family](rope_parameters=rope).save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(tmp_path).rope_parameters
    add_older_spelling(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters == before
    assert before is not None


def test_what_is_spelled_already_stays(tmp_path):
    config = {"rope_parameters": PLAIN, "rope_theta": 5.0, "rope_scaling": {"a": 1}}
    assert spell(tmp_path, "config.json", config) == config
    assert spell(tmp_path, "config.json", {"model_type": "gpt2"}) == {"model_type": "gpt2"}


def test_a_tokenizer_of_the_new_class_is_that_of_the_old(tmp_path):
    new = {
        "tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "is_local": True,
        "extra_special_tokens": ["<a>"], "eos_token": "</s>",
    }  # fmt: skip
    assert spell(tmp_path, "tokenizer_config.json", new) == {
        "tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<a>"], "eos_token": "</s>",
    }  # fmt: skip
    other = {"tokenizer_class": "Qwen2Tokenizer", "extra_special_tokens": ["<a>"], "backend": "tokenizers"}
    assert spell(tmp_path, "tokenizer_config.json", other) == other


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
def test_ours_reads_it_as_before(tiny_models, tmp_path, family):
    source = tiny_models(family)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(tmp_path).to_dict()
    add_older_spelling(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.config.rope_parameters == before["rope_parameters"]
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert {"rope_theta", "rope_scaling", "torch_dtype"} <= written.keys()
    words = "Hello <|im_end|> 你好"
    assert AutoTokenizer.from_pretrained(tmp_path)(words)["input_ids"] == tokenizer(words)["input_ids"]
