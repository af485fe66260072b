"""Whether weights are still those that were loaded, and what was saved is what was trained, is seen from their bits."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.core.errors import StudioError
from studio.engine.artifact import fingerprint, sum_frozen, verify_artifact


def make_layer(shape=(300, 70), dtype=torch.float32):
    torch.manual_seed(0)
    layer = torch.nn.Linear(*shape, bias=True, dtype=dtype).requires_grad_(False)
    layer.register_buffer("table", torch.arange(3000))
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("place", [0, 9000, 20_999])
def test_one_changed_bit_is_seen(dtype, place):
    layer = make_layer(dtype=dtype)
    before = sum_frozen(layer)
    assert sum_frozen(layer) == before and set(before) == {"weight", "bias", "table"}
    layer.weight.view(-1).view(torch.uint8)[place * dtype.itemsize] ^= 1
    after = sum_frozen(layer)
    assert [name for name in before if before[name] != after[name]] == ["weight"]


def test_values_that_change_places_are_seen():
    layer = make_layer()
    before = sum_frozen(layer)
    flat = layer.weight.view(-1)
    flat[[0, 9001]] = flat[[9001, 0]]
    assert sum_frozen(layer)["weight"] != before["weight"]


def test_what_is_trained_does_not_count():
    layer = make_layer()
    layer.bias.requires_grad_(True)
    assert set(sum_frozen(layer)) == {"weight", "table"}


def test_a_part_of_a_larger_buffer_and_an_empty_one():
    layer = make_layer()
    whole = torch.arange(20_001, dtype=torch.int16).view(torch.bfloat16)
    layer.weight = torch.nn.Parameter(whole[1:], requires_grad=False)  # begins at no multiple of 8 bytes
    layer.register_buffer("nothing", torch.empty(0))
    before = sum_frozen(layer)
    layer.weight = torch.nn.Parameter(whole[1:].clone(), requires_grad=False)
    assert sum_frozen(layer) == before


def test_a_model_that_loads_its_tensors_wider_is_whole(tiny_models):
    """Routers of experts, for one: trained and stored in 16 bits, loaded as fp32."""
    folder = tiny_models()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = fingerprint(model, list(range(40)))
    verify_artifact(model.float(), tokenizer, expected, "bf16")
    with torch.no_grad():
        model.model.norm.weight[3] *= 1.01
    with pytest.raises(StudioError) as refused:
        verify_artifact(model, tokenizer, expected, "bf16")
    assert refused.value.why.values == {"count": 1, "first": "model.norm.weight"}
