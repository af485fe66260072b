"""Files that llama.cpp's own converter wrote of tiny models are opened as the models that they were.

golden/NAME.gguf: convert_hf_to_gguf.py of llama.cpp 0.5 on a tiny random model, in fp16, its tokenizer taken for Llama
3's. NAME.json: the class, digests of its weights in fp16, and logits of its last of 12 tokens, by transformers 5.23.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.models.catalog import inspect_model
from studio.models.gguf.facts import read_gguf
from studio.models.gguf.families import FAMILIES
from studio.models.gguf.opened import open_model

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.gguf"))
IDS = torch.tensor([[7, 30, 99, 12, 250, 31, 5, 61, 200, 17, 88, 3]])


@pytest.fixture(autouse=True)
def models_here(tmp_path, monkeypatch):
    """Opened folders go into the test's own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hub"))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_llama_cpp_is_the_model_that_it_was(name):
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    file = GOLDEN / f"{name}.gguf"
    before = inspect_model(str(file))
    folder = open_model(read_gguf(file))
    after = inspect_model(str(file))
    assert before.folder == "" and after.folder == str(folder.resolve())
    differing = {
        field
        for field in before.__dataclass_fields__
        if getattr(before, field) != getattr(after, field)
        and field not in ("folder", "packed", "trainable", "weight_bytes")
    }
    assert differing == set()
    assert (
        abs(after.weight_bytes / before.weight_bytes - 1) < 0.1
    )  # the file's own header beside tiny weights

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(model).__name__ == expected["model_class"]
    found = {
        key: hashlib.sha256(weight.to(torch.float16).contiguous().numpy().tobytes()).hexdigest()[:16]
        for key, weight in model.state_dict().items()
    }
    assert found == expected["weights"]
    stored = load_file(folder / "model.safetensors")
    exact = {key: weight.dtype for key, weight in stored.items() if key.endswith("e_score_correction_bias")}
    assert set(exact.values()) <= {torch.float32} and bool(exact) == (name == "deepseek_v3")
    with torch.no_grad():
        logits = model.eval()(IDS).logits[0, -1, :8]
    assert torch.allclose(logits, torch.tensor(expected["logits"]), atol=2e-3)


def test_the_golden_files_are_there():
    assert len(NAMES) >= 10


def test_its_tokenizer_and_template_come_with_it():
    tokenizer = AutoTokenizer.from_pretrained(open_model(read_gguf(GOLDEN / "llama.gguf")))
    assert (
        tokenizer.decode(tokenizer("Grüße, 你好!", add_special_tokens=False)["input_ids"]) == "Grüße, 你好!"
    )
    talk = [{"role": "user", "content": "Hi"}]
    said = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert said == "<|user|>Hi<|end|><|assistant|>" and tokenizer.eos_token == "<|end|>"


def test_every_family_is_a_class_of_transformers():
    import transformers

    for family in FAMILIES:
        assert hasattr(transformers, family.model_class), family
        assert family.model_type in transformers.CONFIG_MAPPING, family
