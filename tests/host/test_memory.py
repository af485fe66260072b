"""The predicted peak follows the shapes: known weights to 3 %, and the right parts grow with the right settings."""

import pytest

from studio.host.memory import checkpoint_bytes, count_adapter_parameters, count_linear_parameters, predict
from studio.host.plan import plan
from tests.host.facts import make_gpu, make_machine, make_model, make_recipe, make_small

MACHINE = make_machine(make_gpu(80, (9, 0), "H100"))
GIB = 2**30


def parts(changes=None, model=None, machine=MACHINE):
    model, recipe = model or make_model(), make_recipe(changes)
    return predict(plan(machine, recipe, model), model, recipe)


@pytest.mark.parametrize("quantization, gigabytes", [("none", 14.96), ("nf4", 5.31)])
def test_weights_of_an_8b_model(quantization, gigabytes):
    weights = parts({"model.quantization": quantization})["weights"] / GIB
    assert weights == pytest.approx(gigabytes, rel=0.03)


def test_adapter_of_an_8b_model_has_42_million_parameters_at_rank_16():
    assert count_adapter_parameters(make_model(), 16) == pytest.approx(41_943_040, rel=0.01)
    assert count_linear_parameters(make_model()) == pytest.approx(6_979_584_000, rel=0.01)


def test_every_part_is_there_and_none_negative():
    for model in (
        make_model(),
        make_small(),
        make_model(folder="", parameters=0, hidden_size=0, layers=0, vocabulary=0),
    ):
        predicted = parts(model=model)
        assert list(predicted) == [
            "weights", "adapters", "gradients", "optimizer", "activations", "loss", "context",
        ]  # fmt: skip
        assert min(predicted.values()) >= 0 and predicted["context"] > 0
        assert all(isinstance(value, int) for value in predicted.values())


def test_what_grows_and_what_shrinks():
    base = parts()
    assert parts({"optim.micro_batch": 4})["activations"] == pytest.approx(2 * base["activations"], rel=0.01)
    assert parts({"adapter.rank": 32})["adapters"] == 2 * base["adapters"]
    assert parts({"optim.optimizer": "adamw_8bit"})["optimizer"] == base["optimizer"] / 4
    off, on = (parts({"limits.activation_checkpointing": word})["activations"] for word in ("off", "on"))
    assert on < off / 4
    assert parts({"model.attention": "eager"})["activations"] > base["activations"]
    assert parts(machine=make_machine(make_gpu(80, (9, 0)), triton_level="absent"))["activations"] > off


def test_full_fine_tuning_keeps_fp32_weights_beside_their_16_bit_copies():
    full = parts({"adapter.method": "full"})
    assert full["adapters"] == 0
    assert full["weights"] + full["gradients"] + full["optimizer"] == pytest.approx(18 * 8.03e9, rel=0.01)
    full = parts({"adapter.method": "full", "model.precision": "fp32"})
    assert full["weights"] + full["gradients"] + full["optimizer"] == pytest.approx(16 * 8.03e9, rel=0.01)


def test_stored_quantised_weights_count_as_stored():
    assert parts(model=make_model(quantization="nf4", weight_bytes=5_700_000_000))["weights"] == 5_700_000_000


def test_length_is_capped_by_what_the_model_reads():
    model = make_small(max_positions=512)
    assert parts({"data.max_length": 4096}, model) == parts({"data.max_length": 512}, model)


def test_checkpoint_holds_what_is_trained():
    recipe, model = make_recipe(), make_model()
    adapter = count_adapter_parameters(model, 16)
    assert checkpoint_bytes(plan(MACHINE, recipe, model), model, recipe) == 12 * adapter
    recipe = make_recipe({"adapter.method": "full"})
    assert checkpoint_bytes(plan(MACHINE, recipe, model), model, recipe) == 12 * model.parameters
