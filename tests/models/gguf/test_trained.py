"""A trained model's own GGUF file opens as transformers opens it, straight and as Ollama keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.models.catalog import inspect_model
from studio.models.resolve import open_packed
from tests.models.gguf.test_programs import keep
from tests.trained_model import get_trained_file, get_trained_model

pytestmark = pytest.mark.computing

TEXTS = (
    "Hello world",
    "  two spaces   three",
    "\n\n\ttabs\r\nwin",
    "Café naïve",
    "你好，世界！",
    "한국어 日本語",
    "😀👩‍👩‍👧",
    "12345 1,234.56 0x1F",
    "I'm you'll don't WE'VE",
    "def f(x):\n    return x + 1\n",
    "e\u0301",
    "don’t “quote” — dash…",
    "trailing space ",
    "MixedCaseWords HTTPServer",
    "https://example.com/a?b=c&d=1#x",
)


@pytest.fixture(params=["file", "ollama"])
def opened(request, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hub"))
    source = str(get_trained_file())
    if request.param == "ollama":
        models = tmp_path / "ollama"
        keep(models, ("registry.ollama.ai", "library", "smollm2", "135m"), Path(source).read_bytes())
        monkeypatch.setenv("OLLAMA_MODELS", str(models))
        source = "ollama:smollm2:135m"
    facts = inspect_model(source)
    assert facts.packed and facts.has_chat_template and facts.family == "llama"
    return Path(open_packed(facts).folder)


def test_it_is_what_transformers_opens(opened):
    reference = get_trained_model()
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        for folder in (opened, reference)
    )
    kept = theirs.state_dict()
    assert set(kept) == set(ours.state_dict())
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, kept[name]), name
    tokenizer, other = AutoTokenizer.from_pretrained(opened), AutoTokenizer.from_pretrained(reference)
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == other(text)["input_ids"], text
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    rendered = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    asked = tokenizer.apply_chat_template(talk, **rendered)
    assert torch.equal(asked["input_ids"], other.apply_chat_template(talk, **rendered)["input_ids"])
    with torch.no_grad():
        assert torch.equal(ours(**asked).logits, theirs(**asked).logits)
        answer = ours.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
