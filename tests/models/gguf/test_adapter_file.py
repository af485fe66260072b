"""LoRA adapters as GGUF files: llama.cpp adds them to their base and computes what peft does."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from studio.core.errors import StudioError
from studio.models.gguf.adapter_file import write_adapter
from studio.models.gguf.header import read_header
from studio.models.gguf.llama_cpp import ask
from tests.models.gguf.models import ALIKE, MODELS, PROMPTS, VOCABULARY, list_kl, make_folder, write

FORMS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"q_proj": 40, "down_proj": 3}},
}


def make_adapter(model, folder, **more):
    """Save an adapter that changes a good deal; return the model with it."""
    torch.manual_seed(1)
    tuned = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", **more)
    )
    with torch.no_grad():
        for name, one in tuned.named_parameters():
            if "lora_" in name:
                one.normal_(0.0, 0.15)
    tuned.save_pretrained(folder)
    return tuned.eval()


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("llama", "plain"),
        pytest.param("llama", "patterns", marks=pytest.mark.computing),
        *[
            pytest.param(one, "rslora", marks=pytest.mark.computing)
            for one in ("qwen3", "gemma3", "phi3", "qwen3_5")
        ],
    ],
)
def test_llama_cpp_adds_it_as_peft_does(family, form, tmp_path):
    model = make_folder(tmp_path, *MODELS[family])
    with torch.no_grad():
        before = [model(torch.tensor([ids])).logits[0, -1] for ids in PROMPTS]
    tuned = make_adapter(model, tmp_path / "adapter", **FORMS[form])
    base, file = write(tmp_path, "F16"), tmp_path / "lora.gguf"
    write_adapter(tmp_path / "adapter", tmp_path, "tiny", file)
    with torch.no_grad():
        assert (tuned(torch.tensor([PROMPTS[0]])).logits[0, -1] - before[0]).abs().max() > 0.3
    found = ask(base, {"prompts": PROMPTS, "vocabulary": VOCABULARY, "context": 128, "adapter": str(file)})
    assert max(list_kl(tuned, found["log_probabilities"])) < ALIKE
    without = ask(base, {"prompts": PROMPTS, "vocabulary": VOCABULARY, "context": 128})
    assert max(list_kl(tuned, without["log_probabilities"])) > 100 * ALIKE
    assert str(tmp_path) not in str(read_header(file).metadata)
    assert isinstance(tuned, PeftModel)


@pytest.mark.parametrize("more", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_what_the_file_cannot_say_is_refused_by_name(more, tmp_path):
    make_adapter(make_folder(tmp_path, *MODELS["llama"]), tmp_path / "adapter", **more)
    with pytest.raises(StudioError) as refused:
        write_adapter(tmp_path / "adapter", tmp_path, "tiny", tmp_path / "lora.gguf")
    assert refused.value.why.values["setting"] in more and not (tmp_path / "lora.gguf").exists()
