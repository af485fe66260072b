"""What may be trained is read from a config: who writes text, also after pictures, and why others do not."""

import json

import pytest

from studio.models import architectures
from studio.models.architectures import judge_config, name_auto_class, read_architecture


def reason(family, architecture, **values):
    verdict = judge_config({"model_type": family, **values}, architecture, "none")
    return "" if verdict.ok else verdict.reason.id.removeprefix("model.trainable.")


@pytest.mark.parametrize(
    "family, architecture",
    [
        ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("mistral3", "Mistral3ForConditionalGeneration"),
        ("modernbert-decoder", "ModernBertDecoderForCausalLM"),
        ("openai-gpt", "OpenAIGPTLMHeadModel"),
        ("gpt_oss", "GptOssForCausalLM"),
    ],
)
def test_who_writes_text_is_trained(family, architecture):
    assert reason(family, architecture) == ""


@pytest.mark.parametrize(
    "family, architecture, why",
    [
        ("roberta", "RobertaForCausalLM", "both_sides"),
        ("electra", "ElectraForCausalLM", "both_sides"),
        ("bert", "BertLMHeadModel", "both_sides"),
        ("whisper", "WhisperForCausalLM", "half"),
        ("florence2", "Florence2ForConditionalGeneration", "half"),
        ("blip-2", "Blip2ForConditionalGeneration", "needs_pictures"),
        ("idefics", "IdeficsForVisionText2Text", "needs_pictures"),
        ("kosmos-2", "Kosmos2ForConditionalGeneration", "needs_pictures"),
        ("shieldgemma2", "Gemma3ForConditionalGeneration", "other_aim"),
        ("diffusion_gemma", "DiffusionGemmaForBlockDiffusion", "other_aim"),
        ("bert", "BertForMaskedLM", "both_sides"),
        ("llama", "LlamaForSequenceClassification", "not_decoder"),
    ],
)
def test_who_does_not_is_refused_with_the_reason(family, architecture, why):
    assert reason(family, architecture) == why


def test_a_language_model_of_two_halves_inside_is_seen():
    assert (
        reason("blip-2", "Blip2ForConditionalGeneration", text_config={"is_encoder_decoder": True}) == "half"
    )


def test_a_missing_package_is_named_before_anything_is_loaded(monkeypatch):
    config = {"model_type": "gemma3n", "vision_config": {"model_type": "gemma3n_vision"}}
    found = architectures.importlib.util.find_spec
    monkeypatch.setattr(
        architectures.importlib.util, "find_spec", lambda name: None if name == "timm" else found(name)
    )
    verdict = judge_config(config, "Gemma3nForConditionalGeneration", "none")
    assert verdict.reason.id == "model.trainable.package" and verdict.reason.values["package"] == "timm"
    monkeypatch.setattr(
        architectures.importlib.util, "find_spec", lambda name: found("json" if name == "timm" else name)
    )
    assert judge_config(config, "Gemma3nForConditionalGeneration", "none").ok


def test_the_tables_are_those_of_transformers():
    from transformers.models.auto import modeling_auto as auto

    known = architectures.list_writers()
    for title in architectures.TABLES:
        values = getattr(auto, title).values()
        names = {name for value in values for name in ((value,) if isinstance(value, str) else value)}
        assert names and names <= known


def test_the_class_that_loads_a_folder_or_its_adapter(tmp_path):
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"auto_mapping": {"base_model_class": "Qwen3VLForConditionalGeneration"}}),
        encoding="utf-8",
    )
    assert name_auto_class(read_architecture(tmp_path)) == "AutoModelForImageTextToText"
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3ForCausalLM"]}), encoding="utf-8"
    )
    assert name_auto_class(read_architecture(tmp_path)) == "AutoModelForCausalLM"
    assert read_architecture(tmp_path / "nowhere") == ""


@pytest.mark.parametrize("value", ["x", 0, -1, True, 2.5, float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads"])
def test_a_count_that_counts_nothing_is_refused_before_loading(key, value):
    assert reason("llama", "LlamaForCausalLM", **{key: value}) == "count"
    assert reason("gemma3", "Gemma3ForConditionalGeneration", text_config={key: value}) == "count"
    assert reason("llama", "LlamaForCausalLM", **{key: 64}) == ""
    assert reason("llama", "LlamaForCausalLM", **{key: [4, 8]}) == ""
