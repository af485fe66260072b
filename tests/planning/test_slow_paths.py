"""What makes a run slower than it could be is told with reason and factor, before the start and once it is loaded."""

import dataclasses

import pytest

from studio.core.facts import Gpu, KernelTest
from studio.core.i18n import LANGUAGES, load_catalogue, text
from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.planning.recipe_check import check
from studio.planning.run_plan import choose_device, plan
from studio.planning.slow_paths import find_slower, note_loading, say_slower, say_times
from tests.machine.facts import make_data, make_decoder, make_gpu, make_machine, make_model, make_recipe
from tests.planning.test_speed_estimate import QWEN_06B, SMOLLM

H200 = Gpu(name="NVIDIA H200", vram_bytes=150_000_000_000, capability=(9, 0))
ROOMY = make_machine(H200, ram_available_bytes=64 * 2**30)
STRANGE = dataclasses.replace(
    make_decoder(), linears={**make_decoder().linears, "mlp.router": (8, 4096)}, architecture="NewForCausalLM"
)


def find(changes=None, machine=ROOMY, model=None):
    return plan(
        machine, make_recipe({"data.max_length": 1024} | (changes or {})), model or make_decoder()
    ).slower


def test_the_fast_path_has_nothing_to_tell():
    assert find() == () and find({"model.quantization": "nf4"}) == ()
    assert find(machine=make_machine()) == (), "without a card the processor is no detour"


CASES = [
    ({"adapter.dora": True, "adapter.dropout": 0.1}, ROOMY, None, "decoder", "plan.stock.dora", "adapter.dora"),
    ({"model.quantization": "int8"}, ROOMY, None, "decoder", "plan.stock.quantization", "model.quantization"),
    ({}, ROOMY, STRANGE, "decoder", "model.decoder.unlike", ""),
    ({}, ROOMY, make_model(), "decoder", "plan.stock.structure", ""),
    ({"run.kernels": "pytorch"}, ROOMY, None, "kernels", "plan.kernels.wanted", "run.kernels"),
    ({}, dataclasses.replace(ROOMY, triton_level="absent"), None, "kernels", "backend.row.10.wrong", ""),
    ({"model.precision": "fp32"}, ROOMY, None, "precision", "plan.wanted", "model.precision"),
    ({"run.device": "cpu"}, ROOMY, None, "card", "", "run.device"),
    ({}, make_machine(make_gpu(), torch_cuda=""), None, "card", "", "run.device"),
    ({"optim.micro_batch": 1, "data.max_length": 512}, ROOMY, SMOLLM, "rows", "",
     "optim.micro_batch"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "machine", "model", "id", "reason", "field"), CASES)
def test_each_detour_is_told_with_reason_and_cost(changes, machine, model, id, reason, field):
    (one,) = (one for one in find(changes, machine, model) if one.id == id)
    assert one.factor >= 1.5 and one.field == field
    if reason:
        assert one.reason.values["reason"].id == reason
    for catalogue in map(load_catalogue, LANGUAGES):
        said = catalogue.say(say_slower(one))
        assert "{" not in said and catalogue.say(one.reason) in said
    problems = check(make_recipe({"data.max_length": 1024} | changes), machine, model or make_decoder(), None)
    (told,) = (each for each in problems if each.message == say_slower(one))
    assert told.severity == "warning" and told.field == field
    assert all(catalogue.has(told.fix.id) for catalogue in map(load_catalogue, LANGUAGES))


@pytest.mark.parametrize(
    ("model", "changes", "measured"),
    [
        (make_decoder(), {"model.quantization": "nf4"}, 17_747 / 6_140),
        (make_decoder(), {}, 17_685 / 7_565),
        (QWEN_06B, {"data.max_length": 1024, "optim.batch_size": 2}, 81_764 / 9_724),
        (
            QWEN_06B,
            {"data.max_length": 1024, "optim.batch_size": 2, "model.quantization": "nf4"},
            81_935 / 6_937,
        ),
    ],
)
def test_the_cost_of_the_models_own_code_is_what_was_measured(model, changes, measured):
    """benchmarks/README.md, one H200: ours against HF + PEFT. Rows of half the length, as nothing is known of them."""
    recipe = make_recipe({"data.max_length": 4096} | changes)
    chosen = note_loading(
        plan(ROOMY, recipe, model), text("model.decoder.mismatch"), {}, ROOMY, recipe, model, H200
    )
    (one,) = chosen.slower
    assert measured / 1.6 < one.factor < 1.6 * measured


def test_a_decoder_that_is_refused_once_loaded_takes_the_place_of_what_slowed_it():
    recipe = make_recipe({"run.kernels": "pytorch"})
    chosen = plan(ROOMY, recipe, SMOLLM)
    assert [one.id for one in chosen.slower] == ["kernels"]
    assert note_loading(chosen, None, {}, ROOMY, recipe, SMOLLM, H200) is chosen
    refused = note_loading(chosen, text("model.decoder.trained"), {}, ROOMY, recipe, SMOLLM, H200)
    assert [one.id for one in refused.slower] == ["decoder"] and refused.slower[0].factor > 5
    assert load_catalogue("en").say(say_times(refused.slower)).endswith("× slower")


def test_a_kernel_that_is_wrong_with_this_model_is_told():
    recipe = make_recipe({})
    why = text("model.decoder.mismatch", layer=3, part="y", error=0.2, own=0.01)
    chosen = plan(ROOMY, recipe, SMOLLM)
    given_up = note_loading(chosen, None, {"glu": why}, ROOMY, recipe, SMOLLM, H200)
    assert given_up.kernels["glu"].value == "reference" and given_up.memory == chosen.memory
    (one,) = given_up.slower
    assert one.id == "kernels" and one.factor > 1 and one.reason.values["ops"] == "glu"
    assert one.reason.values["reason"] is why


def test_a_broken_op_is_told_whatever_it_costs():
    failed = KernelTest(op="rope", ok=False, reason="wrong numbers")
    (one,) = find(machine=dataclasses.replace(ROOMY, kernel_tests=(failed,)))
    assert one.id == "kernels" and 1 < one.factor < 1.5 and one.reason.values["ops"] == "rope"
    (one,) = find(machine=dataclasses.replace(ROOMY, broken_kernels={"glu": "illegal memory access"}))
    assert one.reason.values["ops"] == "glu" and "illegal" in load_catalogue("en").say(say_slower(one))


def test_memory_that_is_short_is_told_when_it_costs_much():
    recipe, model = make_recipe({"data.max_length": 1024}), make_decoder()
    chosen = plan(ROOMY, recipe, model)
    for chunk_tokens, told in ((0, []), (32, ["memory"])):
        layers = (LayerPolicy(keep="input"),) * model.layers
        lean = dataclasses.replace(chosen, memory=MemoryPolicy(layers=layers, mlp_chunk_tokens=chunk_tokens))
        found = find_slower(lean, ROOMY, recipe, model, H200, decoder_pays=True)
        assert [one.id for one in found] == told, (
            "all layers computed twice cost 1.3 times, portions of 32 more"
        )


def test_another_card_without_a_driver_does_not_count_on_purpose():
    assert choose_device(ROOMY, make_recipe({"run.device": "cpu"}))[1] is None
    problems = check(make_recipe({"run.device": "cpu"}), ROOMY, make_decoder(), make_data())
    (told,) = (one for one in problems if one.field == "run.device")
    assert told.fix.id == "slower.card.wanted.fix"
