"""The time that a run takes, reckoned before it starts: within two times of what was measured on cards."""

import dataclasses

import pytest

from studio.core.facts import Choice, Gpu, MeasuredSpeed
from studio.core.i18n import LANGUAGES, literal, load_catalogue
from studio.machine.matmul_speeds import find_card, rate_card, read_speeds
from studio.planning.run_plan import plan
from studio.planning.run_time import LONG_S, check_duration, describe, say_duration
from studio.planning.speed_estimate import (
    RowFigures,
    count_run_tokens,
    is_reckonable,
    predict_duration,
    predict_speed,
    read_rows,
    reckon_speed,
)
from tests.machine.facts import make_data, make_decoder, make_gpu, make_machine, make_model, make_recipe

H200 = Gpu(name="NVIDIA H200", vram_bytes=150_000_000_000, capability=(9, 0))


def make_shape(layers, hidden, mlp, heads, keys, head_dim, vocabulary, *, tied=True):
    linears = {
        "self_attn.q_proj": (heads * head_dim, hidden),
        "self_attn.k_proj": (keys * head_dim, hidden),
        "self_attn.v_proj": (keys * head_dim, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    linear = layers * sum(outputs * inputs for outputs, inputs in linears.values())
    return make_model(
        parameters=linear + (1 if tied else 2) * vocabulary * hidden,
        hidden_size=hidden,
        layers=layers,
        vocabulary=vocabulary,
        mlp_width=mlp,
        query_heads=heads,
        key_heads=keys,
        head_dim=head_dim,
        tied_embeddings=tied,
        linear_parameters=linear,
        linears=linears,
        norms={"input_layernorm": hidden, "post_attention_layernorm": hidden},
    )


LLAMA = make_decoder()
QWEN_8B = make_shape(36, 4096, 12288, 32, 8, 128, 151_936, tied=False)
GEMMA_4B = make_shape(34, 2560, 10240, 8, 4, 256, 262_208)
MISTRAL_7B = make_shape(32, 4096, 14336, 32, 8, 128, 32_768, tied=False)
PHI3_MEDIUM = make_shape(40, 5120, 17920, 40, 10, 128, 32_064, tied=False)
QWEN_06B = make_shape(28, 1024, 3072, 16, 8, 128, 151_936)
SMOLLM = make_shape(30, 576, 1536, 9, 3, 64, 49_152)

MEASURED = (
    # benchmarks/README.md, "Every case", one H200: model, rows at once, tokens a row, longest, changes, path, tokens/s
    ("qlora.ours", LLAMA, 2, 2048, {"model.quantization": "nf4"}, "decoder", 17_747),
    ("lora.ours", LLAMA, 2, 2048, {}, "decoder", 17_685),
    ("long.ours", LLAMA, 1, 32_768, {"model.quantization": "nf4"}, "decoder", 8_361),
    ("qlora.ours.no_triton", LLAMA, 2, 2048, {"model.quantization": "nf4", "run.kernels": "pytorch"}, "decoder",
     10_972),
    ("lora.ours.no_triton", LLAMA, 2, 2048, {"run.kernels": "pytorch"}, "decoder", 11_765),
    ("qwen3-8b.ours", QWEN_8B, 2, 2048, {"model.quantization": "nf4"}, "decoder", 17_472),
    ("gemma3-4b.ours", GEMMA_4B, 2, 2048, {"model.quantization": "nf4"}, "decoder", 29_338),
    ("mistral-7b.ours", MISTRAL_7B, 2, 2048, {"model.quantization": "nf4"}, "decoder", 18_663),
    ("phi3-medium.ours", PHI3_MEDIUM, 2, 2048, {"model.quantization": "nf4"}, "decoder", 9_875),
    ("small.lora.ours", QWEN_06B, 2, 512, {}, "decoder", 81_764),
    ("small.qlora.ours", QWEN_06B, 2, 512, {"model.quantization": "nf4"}, "decoder", 81_935),
    ("small.lora.hf", QWEN_06B, 2, 512, {"run.activation_checkpointing": "off"}, "stock", 9_724),
    ("small.qlora.hf", QWEN_06B, 2, 512,
     {"model.quantization": "nf4", "run.activation_checkpointing": "off"}, "stock", 6_937),
    ("qlora.hf", LLAMA, 2, 2048,
     {"model.quantization": "nf4", "run.activation_checkpointing": "on"}, "stock", 6_140),
    ("lora.hf", LLAMA, 2, 2048, {"run.activation_checkpointing": "on"}, "stock", 7_565),
)  # fmt: skip
REAL = (
    # real-models.md, section 3: rows of at most 1,024 tokens with a mean of 501, trained weights; then of real lengths
    ("smollm2, 2 rows", SMOLLM, 2, 501, 1024, {}, "stock", 4_903),
    ("smollm2, 16 rows", SMOLLM, 16, 501, 1024, {}, "stock", 38_835),
    ("smollm2, 16 packed", SMOLLM, 16, 501, 1024, {"data.fill": True}, "stock", 67_933),
    ("smollm2, qlora", SMOLLM, 16, 501, 1024, {"model.quantization": "nf4"}, "stock", 27_788),
    ("smollm2, all weights", SMOLLM, 16, 501, 1024, {"adapter.method": "full"}, "stock", 58_325),
    ("0.6B, 2 rows", QWEN_06B, 2, 440, 2000, {}, "decoder", 37_550),
    ("8B, 2 rows", LLAMA, 2, 440, 2000, {"model.quantization": "nf4"}, "decoder", 12_343),
    ("8B, 8 rows", LLAMA, 8, 440, 2000, {"model.quantization": "nf4"}, "decoder", 16_660),
    ("8B, packed", LLAMA, 2, 440, 2048, {"model.quantization": "nf4", "data.fill": True}, "decoder", 17_809),
)  # fmt: skip
CASES = [(name, model, at_once, mean, mean, changes, path, speed)
         for name, model, at_once, mean, changes, path, speed in MEASURED] + list(REAL)  # fmt: skip


def predict_case(model, at_once, mean, longest, changes, path):
    recipe = make_recipe({"data.max_length": longest, "optim.batch_size": at_once, **changes})
    machine = make_machine(H200, ram_available_bytes=64 * 2**30)
    chosen = plan(machine, recipe, model)
    if path == "stock":
        wanted = recipe.run.activation_checkpointing == "on"
        recompute = Choice(value=wanted, reason=literal(""))
        chosen = dataclasses.replace(chosen, memory=None, checkpointing=recompute)
    rows = RowFigures(count=1000, tokens=1000 * mean)
    return reckon_speed(chosen, machine, model, recipe, H200, rows, path)


@pytest.mark.parametrize(
    ("name", "model", "at_once", "mean", "longest", "changes", "path", "measured"), CASES
)
def test_within_two_times_of_every_measured_row(name, model, at_once, mean, longest, changes, path, measured):
    predicted = predict_case(model, at_once, mean, longest, changes, path)
    assert measured / 2 < predicted < 2 * measured, f"{name}: {predicted:,.0f} for {measured:,}"


TWO_CORES = make_machine(cores=2, processor_rate=160e9)
CHATS = RowFigures(count=15_725, tokens=15_725 * 501)


def plan_chats(changes=None, machine=TWO_CORES, model=SMOLLM):
    recipe = make_recipe({"data.max_length": 1024, "optim.epochs": 1.0} | (changes or {}))
    return recipe, plan(machine, recipe, model)


def test_real_chats_on_two_cores_take_15_to_20_hours():
    # Two steps of smollm2 on this project's two cores: 136 tokens a second of the processor's own time.
    recipe, chosen = plan_chats()
    found = predict_duration(chosen, TWO_CORES, SMOLLM, recipe, None, CHATS)
    assert 136 / 2 < found.speed.tokens_per_s < 2 * 136
    assert 15 / 2 < found.seconds / 3600 < 2 * 20 and found.tokens == CHATS.tokens
    slow = dataclasses.replace(TWO_CORES, processor_rate=0.0)
    assert predict_speed(chosen, slow, SMOLLM, recipe, None, CHATS).reason.id == "speed.cores"


def test_a_long_run_is_a_warning_with_ways_out():
    recipe, chosen = plan_chats({"optim.epochs": 3.0})
    data = make_data(rows_used=0, rows_read=0, expected_rows=15_725, expected_tokens=CHATS.tokens)
    (problem,) = check_duration(recipe, TWO_CORES, SMOLLM, chosen, data)
    assert (problem.field, problem.severity, problem.message.id) == ("optim.epochs", "warning", "check.long")
    changes = [dict(way.change) for way in problem.ways]
    assert changes[0] == {"optim.epochs": 1.0} and changes[1]["data.max_rows"] in range(100, 2000, 100)
    for catalogue in map(load_catalogue, LANGUAGES):
        for words in (problem.message, problem.fix, *(way.title for way in problem.ways)):
            assert catalogue.has(words.id) and "{" not in catalogue.say(words)
    short = dataclasses.replace(data, expected_rows=100, expected_tokens=50_000)
    assert not list(check_duration(recipe, TWO_CORES, SMOLLM, chosen, short))
    assert not list(check_duration(recipe, TWO_CORES, SMOLLM, chosen, None)), "of rows that nobody counted"
    steps, _ = plan_chats({"optim.max_steps": 100_000})
    (problem,) = check_duration(steps, TWO_CORES, SMOLLM, chosen, None)
    assert problem.field == "optim.max_steps" and problem.ways[0].change["optim.max_steps"] < 100_000


def test_a_way_out_ends_within_about_an_hour():
    recipe, chosen = plan_chats()
    rows = dataclasses.replace(make_data(), tokens=CHATS.tokens, rows_used=CHATS.count)
    (problem,) = check_duration(recipe, TWO_CORES, SMOLLM, chosen, rows)
    take = next(way.change["data.max_rows"] for way in problem.ways if "data.max_rows" in way.change)
    fewer, _ = plan_chats({"data.max_rows": take})
    assert predict_duration(chosen, TWO_CORES, SMOLLM, fewer, None, CHATS).seconds <= 3600 < LONG_S


def measured(
    run="run-1", gpu="", path="stock", parameters=SMOLLM.parameters, ratio=0.5, time_s=1.0, **values
):
    known = {"quantization": "none", "method": "lora", "reckoned_tokens_per_s": 100.0, **values}
    return MeasuredSpeed(
        run=run, gpu=gpu, path=path, parameters=parameters, tokens_per_s=100.0 * ratio, time_s=time_s, **known
    )


def test_what_was_measured_here_corrects_by_the_likest_run():
    recipe, chosen = plan_chats()

    def predict(*speeds):
        machine = dataclasses.replace(TWO_CORES, speeds=speeds)
        return predict_speed(chosen, machine, SMOLLM, recipe, None, CHATS)

    plain = predict()
    half = predict(measured())
    assert half.tokens_per_s == pytest.approx(plain.tokens_per_s / 2) and half.reason.values["run"] == "run-1"
    large = measured("large", parameters=8_000_000_000, ratio=3.0)
    assert predict(large, measured()).reason.values["run"] == "run-1"
    assert predict(large).tokens_per_s == pytest.approx(3 * plain.tokens_per_s)
    assert predict(measured(method="full", ratio=4.0), measured("mine")).reason.values["run"] == "mine"
    assert predict(measured(gpu="NVIDIA H200")) == plain, "another device tells nothing"
    stood_still = predict(measured(ratio=1e-6))
    assert stood_still.tokens_per_s == pytest.approx(0.05 * plain.tokens_per_s)


def test_tokens_of_a_run():
    chats = make_recipe({"data.max_length": 1024, "optim.epochs": 2.0})
    assert count_run_tokens(chats, SMOLLM, RowFigures(count=100, tokens=50_000)) == 100_000
    few = make_recipe({"data.max_length": 1024, "optim.epochs": 2.0, "data.max_rows": 10})
    assert count_run_tokens(few, SMOLLM, RowFigures(count=100, tokens=50_000)) == 10_000
    packed = make_recipe({"data.max_length": 1024, "optim.max_steps": 5, "data.fill": True})
    assert count_run_tokens(packed, SMOLLM, RowFigures()) == 5 * 8 * 1024
    assert count_run_tokens(chats, SMOLLM, RowFigures()) == 0
    assert read_rows(None) == RowFigures() and read_rows(make_data(tokens=0)).tokens == 0
    assert read_rows(make_data(rows_used=10, tokens=500)) == RowFigures(count=10, tokens=500)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 88e12),
        ("NVIDIA GeForce RTX 4070", 58e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 0.6 * 165e12),
        ("NVIDIA H2001", None),
    ],
)
def test_cards_by_name(name, known):
    assert find_card(Gpu(name=name, vram_bytes=2**34, capability=(8, 0))) == (known and pytest.approx(known))


def test_a_model_whose_config_names_its_numbers_in_its_own_way_is_not_reckoned():
    assert is_reckonable(LLAMA)
    for name in ("layers", "hidden_size", "parameters"):
        assert not is_reckonable(dataclasses.replace(LLAMA, **{name: 0}))


def test_an_unknown_card_is_reckoned_by_generation_and_memory():
    rates = [rate_card(make_gpu(24, capability, "New")) for capability in ((6, 1), (8, 6), (9, 0), (15, 0))]
    assert rates[0] < rates[1] < rates[2] and rates[3] > 0
    for row in read_speeds()["cards"]:
        assert 1 < row["tflops"]["is"] < 5000 and row["tflops"]["evidence"] in read_speeds()["evidence"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "a minute"), (90, "1.5 minutes"), (125, "2.1 minutes"), (3000, "50 minutes"), (58_000, "16 hours"),
     (7200, "2 hours"), (200_000, "2.3 days"), (86_400_000, "1,000 days")],
)  # fmt: skip
def test_a_duration_is_one_number(seconds, words):
    assert load_catalogue("en").say(say_duration(seconds)) == words


def test_a_time_that_is_not_known_is_not_made_up():
    assert describe(None).id == "plan.time.unknown"
    unknown = make_model(layers=0, hidden_size=0)
    recipe, chosen = plan_chats()
    assert predict_duration(chosen, TWO_CORES, unknown, recipe, None, CHATS) is None
