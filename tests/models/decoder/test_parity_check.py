"""The probe accepts what is right and refuses what is wrong, in every dtype: faults are planted in one middle layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from studio_kernels.dispatch import bind
from torch import nn

from studio.models.adapt import unwrap
from studio.models.decoder import parity_check as probe
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.fp8_weights import use_fp8
from studio.models.decoder.parity_check import find_difference
from studio.models.decoder.probe_states import sample_ids
from studio.models.decoder.rotary import NO_ROTARY
from studio.models.decoder.structure import STREAM_MAPS
from studio.models.load import set_evaluation
from tests.each_time import some, some_of_several
from tests.models.decoder import planted
from tests.models.decoder.models import FAMILIES, FOREIGN, SHAPE, list_excluded, make_model
from tests.models.decoder.planted import FAULTS, change_eps, change_spec, change_window, drop_rotary

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "nf4": torch.bfloat16}
DEMO = Path(__file__).parents[3] / "assets" / "demo_model"
EACH_TIME = (
    drop_rotary, change_eps, change_window, planted.map_key_heads_wrongly, planted.change_bias,
    planted.keep_stale_adapter, planted.swap_gate_and_up, planted.leak_between_documents, planted.lose_a_gradient,
    planted.interleave_rotary, planted.lose_a_mixers_gradient, planted.forget_the_value_norm,
    planted.hear_the_first_head_alone, planted.forget_the_narrow_map, planted.let_the_whole_gate_pass,
    planted.mix_streams_the_other_way, planted.lose_the_streams_slope,
)  # fmt: skip


def attach(model: nn.Module, dora: bool = False) -> nn.Module:
    """Return `model` with adapters on all linears."""
    torch.manual_seed(0)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules="all-linear",
        exclude_modules=list_excluded(model),
        task_type="CAUSAL_LM",
        use_dora=dora,
    )
    adapted = get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    set_evaluation(adapted)
    return adapted


def load(folder: Path | str, name: str, dora: bool = False) -> nn.Module:
    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["lm_head", *STREAM_MAPS],
    )  # fmt: skip
    options = {"quantization_config": quantization} if name == "nf4" else {}
    return attach(
        transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[name], attn_implementation="eager", **options
        ),
        dora,
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A function that returns the folder of a tiny model of a family whose activations have outliers."""
    known: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in known:
            # bitsandbytes 0.50.2 opens rows of 96 wrongly on a processor with AVX-512: a multiple of its blocks.
            model = make_model(family, intermediate_size=128).unload()
            # Linears without a norm before them read the channels as they are.
            times = 30.0 if hasattr(model.get_decoder().layers[0], "input_layernorm") else 8.0
            with torch.no_grad():  # as in trained models: a few channels are large, and some tokens' values
                for name, parameter in model.named_parameters():
                    if "down_proj" in name or "embed_tokens" in name:
                        (parameter if "down" in name else parameter.T)[3] *= times
                    if "correct_output_scale" in name:  # fresh ones are zeros
                        parameter.uniform_(0.5, 1.5)
            if family == "gemma2":
                model.config.attn_logit_softcapping = 2.0  # as near to the scores as that of a trained one
            known[family] = tmp_path_factory.mktemp(family)
            model.save_pretrained(known[family])
        return known[family]

    return get


def take(model: nn.Module, name: str) -> Decoder:
    decoder = take_over(unwrap(model), bind({}), dtype=DTYPES[name])
    assert isinstance(decoder, Decoder), decoder
    return decoder


def ask(model: nn.Module, decoder: Decoder, name: str, texts=None):
    dtype = DTYPES[name]
    return find_difference(unwrap(model), decoder, None if dtype == torch.float32 else dtype, texts)


ACCEPTED = [
    (family, name)
    for family in sorted({*FAULTS.values(), *FOREIGN, "llama3", "phi4", "qwen3", "latent_halves"})
    for name in DTYPES
    # bitsandbytes opens this mixer's weights, and on a processor it cuts bits off: a loss is 0.013 off.
    if (family, name) != ("gemma4", "nf4")
]


@pytest.mark.parametrize(
    "family, name",
    some_of_several(
        ACCEPTED, *((family, "bf16") for family in ("llama", "glm4", "lfm2", "gemma4", "latent"))
    ),
)
def test_what_is_right_is_accepted(stored, family, name):
    model = load(stored(family), name)
    assert ask(model, take(model, name), name) is None


@pytest.mark.parametrize("name", some(DTYPES, "nf4"))
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_magnitudes_are_accepted_and_wrong_ones_are_not(stored, family, name):
    model = load(stored(family), name, dora=True)
    decoder = take(model, name)
    assert ask(model, decoder, name) is None
    magnitudes = decoder.layers[1].groups[3].magnitudes
    refresh = magnitudes.refresh

    def stretch(*given) -> None:
        refresh(*given)
        magnitudes.scale[::2] *= 1.05

    magnitudes.refresh = stretch
    assert ask(model, decoder, name) is not None


@pytest.mark.parametrize("name", some(["fp32", "bf16"], "fp32"))
def test_a_query_scale_that_grows_with_the_position_is_seen(name):
    """Ministral 3: from original_max_position_embeddings on, where none of the texts stands that the probe reads."""
    rope = {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16384,
    }  # fmt: skip
    config = transformers.Ministral3Config(
        **SHAPE, sliding_window=None, max_position_embeddings=262144, rope_parameters=rope
    )
    torch.manual_seed(0)
    plain = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    model = attach(plain.to(DTYPES[name]))
    decoder = take(model, name)
    assert ask(model, decoder, name) is None
    change_spec(decoder.layers[1], query_scale=None)
    found = ask(model, decoder, name)
    assert found is not None and found.id == "model.decoder.mismatch" and found.values["layer"] == 1


@pytest.mark.parametrize("name", some(DTYPES, "bf16"))
@pytest.mark.parametrize("fault", some(FAULTS, *EACH_TIME), ids=lambda fault: fault.__name__)
def test_every_fault_is_refused(stored, fault, name):
    model = load(stored(FAULTS[fault]), name)
    decoder = take(model, name)
    fault(decoder, decoder.layers[1])
    found = ask(model, decoder, name)
    assert found is not None and found.id == "model.decoder.mismatch"
    assert found.values.keys() == {"layer", "part", "error", "own"}


@pytest.mark.parametrize(
    "fault", some([None, drop_rotary, change_eps], None, drop_rotary), ids=["right", "rotary", "eps"]
)
def test_large_biases_of_queries_and_keys_are_held_against_fp64(tmp_path, monkeypatch, fault):
    """As Qwen2.5's: in fp32, too, their scores leave few bits for what differs, and equal arithmetic is not equal."""
    model, asked = make_model("qwen2", intermediate_size=128).unload(), []
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.bias", "k_proj.bias")):
                parameter.copy_(30.0 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(tmp_path)
    run_finer = probe.run_finer
    monkeypatch.setattr(probe, "run_finer", lambda *given: asked.append(1) or run_finer(*given))
    model = load(tmp_path, "bf16")
    decoder = take(model, "bf16")
    if fault is not None:
        fault(decoder, decoder.layers[1])
    assert (ask(model, decoder, "bf16") is None) == (fault is None)
    assert asked


@pytest.mark.parametrize(
    "fault", some([drop_rotary, change_window, change_eps], change_window), ids=lambda fault: fault.__name__
)
def test_a_fault_in_8_bits_is_refused(fault):
    model = make_model("mistral")
    decoder = take(model, "fp32")
    assert use_fp8(decoder) is None
    fault(decoder, decoder.layers[1])
    assert ask(model, decoder, "fp32") is not None


@pytest.mark.parametrize("name", some(DTYPES, "fp32"))
def test_layers_with_and_without_rotary_are_told_apart(tmp_path, name):
    config = transformers.SmolLM3Config(
        **{
            **SHAPE,
            "intermediate_size": 128,
            "no_rope_layers": [1, 1, 0],
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data *= 4.0 if parameter.dim() == 2 else 1.0
    model.save_pretrained(tmp_path)
    model = load(tmp_path, name)
    decoder = take(model, name)
    assert [layer.spec.rotary for layer in decoder.layers] == ["", "", NO_ROTARY]
    assert ask(model, decoder, name) is None
    change_spec(decoder.layers[2], rotary="")
    assert ask(model, decoder, name).values["layer"] == 2


@pytest.mark.parametrize("few", [False, True], ids=["every layer", "some layers"])
def test_all_is_left_as_it_was(monkeypatch, few):
    if few:
        monkeypatch.setattr(probe, "ALL_WEIGHTS", 0)
    model = make_model("gemma3").train()
    decoder = take(model, "fp32")
    decoder.store.gradients.fill_(0.5)
    weights, random = decoder.store.weights.clone(), torch.get_rng_state()
    assert ask(model, decoder, "fp32") is None
    assert torch.equal(decoder.store.weights, weights) and torch.equal(torch.get_rng_state(), random)
    assert decoder.store.gradients.eq(0.5).all() and all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(p.dtype == torch.float32 for p in model.parameters()) and model.dtype == torch.float32


def test_every_kind_of_layer_is_chosen_of_a_large_model(monkeypatch):
    monkeypatch.setattr(probe, "ALL_WEIGHTS", 0)
    monkeypatch.setattr(probe, "LARGEST_LAYERS", 1)
    model = make_model("gemma3")
    chosen, first = probe._Probe(unwrap(model), take(model, "fp32"), None, None)._choose()
    assert first == {0, 1} and {0, 1, 2} == chosen


@pytest.mark.computing
@pytest.mark.parametrize("name", DTYPES)
def test_the_trained_demo_model_is_accepted_and_a_fault_in_it_refused(name):
    model = load(DEMO, name)
    texts = sample_ids(transformers.AutoTokenizer.from_pretrained(DEMO))
    decoder = take(model, name)
    assert ask(model, decoder, name, texts) is None
    drop_rotary(decoder, decoder.layers[2])
    assert ask(model, decoder, name, texts).values["layer"] == 2


def test_families_are_those_of_the_decoder():
    assert set(FAULTS.values()) <= {*FAMILIES, *FOREIGN}
