"""What a run will use follows from facts alone, and every choice says why in both languages."""

import pytest

from studio.core.text import load_catalogue
from studio.host.plan import plan
from tests.host.facts import make_gpu, make_machine, make_model, make_recipe, make_small

LAPTOP = make_machine()
DESKTOP = make_machine(make_gpu())
TURING = make_machine(make_gpu(11, (7, 5), "RTX 2080 Ti"))
TWO = make_machine(make_gpu(8, (8, 6), "RTX 3060"), make_gpu(24))
CPU_BUILD = make_machine(make_gpu(), torch_cuda="", triton_level="installed")
OLD_DRIVER = make_machine(make_gpu(), driver_cuda=(12, 4))
PASCAL = make_machine(make_gpu(11, (6, 1), "GTX 1080 Ti"))
BROKEN = make_machine(make_gpu(), bitsandbytes_error="No compatible CUDA binary")
WITHOUT = make_machine(
    make_gpu(), packages={"torch": "2.13.0"}, triton_level="absent", bitsandbytes_error="absent"
)


def chosen(machine, name, changes=None, model=None):
    choice = getattr(plan(machine, make_recipe(changes), model or make_small()), name)
    return choice.value, choice.reason.id


@pytest.mark.parametrize(
    "machine, changes, value, reason",
    [
        (LAPTOP, {}, "cpu", "no_gpu"),
        (LAPTOP, {"limits.device": "gpu"}, "cpu", "no_gpu"),
        (DESKTOP, {}, "cuda:0", "gpu"),
        (DESKTOP, {"limits.device": "cpu"}, "cpu", "cpu_wanted"),
        (TWO, {}, "cuda:1", "largest_gpu"),
        (CPU_BUILD, {}, "cpu", "cpu_build"),
        (OLD_DRIVER, {}, "cpu", "old_driver"),
        (PASCAL, {}, "cpu", "old_gpu"),
        (make_machine(make_gpu(11, (6, 1)), torch_cuda="12.6"), {}, "cuda:0", "gpu"),
    ],
)
def test_device(machine, changes, value, reason):
    assert chosen(machine, "device", changes) == (value, f"plan.device.{reason}")


@pytest.mark.parametrize(
    "machine, wanted, value",
    [
        (LAPTOP, "auto", "fp32"),
        (LAPTOP, "bf16", "bf16"),
        (LAPTOP, "fp16", "fp32"),
        (DESKTOP, "auto", "bf16"),
        (DESKTOP, "fp16", "fp16"),
        (DESKTOP, "fp32", "fp32"),
        (TURING, "auto", "fp16"),
        (TURING, "bf16", "fp16"),
        (TURING, "fp32", "fp32"),
    ],
)
def test_number_format(machine, wanted, value):
    assert chosen(machine, "dtype", {"model.precision": wanted})[0] == value


@pytest.mark.parametrize(
    "machine, changes, model, value",
    [
        (DESKTOP, {}, None, "none"),
        (DESKTOP, {"model.quantization": "nf4"}, None, "nf4"),
        (LAPTOP, {"model.quantization": "int8"}, None, "int8"),
        (DESKTOP, {}, make_small(quantization="nf4"), "nf4"),
        (DESKTOP, {"model.quantization": "int8"}, make_small(quantization="nf4"), "nf4"),
        (DESKTOP, {"model.quantization": "nf4", "adapter.method": "full"}, None, "none"),
        (BROKEN, {"model.quantization": "nf4"}, None, "none"),
        (WITHOUT, {"model.quantization": "nf4"}, None, "none"),
    ],
)
def test_quantization(machine, changes, model, value):
    assert chosen(machine, "quantization", changes, model)[0] == value


@pytest.mark.parametrize(
    "machine, wanted, value",
    [
        (DESKTOP, "adamw", "adamw"),
        (DESKTOP, "adamw_8bit", "adamw_8bit"),
        (DESKTOP, "paged_adamw_8bit", "paged_adamw_8bit"),
        (LAPTOP, "adamw_8bit", "adamw_8bit"),
        (LAPTOP, "paged_adamw_8bit", "adamw_8bit"),
        (BROKEN, "adamw_8bit", "adamw"),
        (WITHOUT, "paged_adamw_8bit", "adamw"),
    ],
)
def test_optimizer(machine, wanted, value):
    assert chosen(machine, "optimizer", {"optim.optimizer": wanted})[0] == value


def test_the_8_bit_optimizers_run_on_cpu_tensors():
    import bitsandbytes
    import torch

    for name in ("AdamW8bit", "PagedAdamW8bit"):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(128, 64))
        optimizer = getattr(bitsandbytes.optim, name)([weight], lr=1e-2)
        before = weight.square().sum().item()
        for _ in range(5):
            weight.grad = weight.detach().clone()
            optimizer.step()
        assert optimizer.state[weight]["state1"].dtype == torch.uint8
        assert weight.square().sum().item() < before


@pytest.mark.parametrize(
    "machine, changes, model, value",
    [
        (LAPTOP, {}, make_model(), False),
        (DESKTOP, {}, make_small(), False),
        (DESKTOP, {"data.max_length": 8192}, make_model(), True),
        (DESKTOP, {}, make_model(folder="", parameters=0, hidden_size=0, layers=0), True),
        (DESKTOP, {"limits.activation_checkpointing": "on"}, make_small(), True),
        (DESKTOP, {"limits.activation_checkpointing": "off", "data.max_length": 8192}, make_model(), False),
    ],
)
def test_activations_are_recomputed_only_where_memory_is_short(machine, changes, model, value):
    assert chosen(machine, "checkpointing", changes, model)[0] is value


@pytest.mark.parametrize(
    "machine, changes, value",
    [
        (DESKTOP, {}, "triton"),
        (DESKTOP, {"limits.kernels": "pytorch"}, "reference"),
        (DESKTOP, {"limits.device": "cpu"}, "reference"),
        (LAPTOP, {}, "reference"),
        (WITHOUT, {}, "reference"),
        *(
            (make_machine(make_gpu(), triton_level=level), {}, "reference")
            for level in ("installed", "launches")
        ),
    ],
)
def test_kernels_need_a_proof(machine, changes, value):
    kernels = plan(machine, make_recipe(changes), make_small()).kernels
    assert {op: choice.value for op, choice in kernels.items()} == {"rms_norm": value, "swiglu": value}


def test_capped_attention_stays_plain():
    assert chosen(DESKTOP, "attention")[0] == "sdpa"
    assert (
        chosen(DESKTOP, "attention", {"model.attention": "sdpa"}, make_small(family="gemma2"))[0] == "eager"
    )


def test_offers():
    def commands(machine, changes=None):
        return [offer.command for offer in plan(machine, make_recipe(changes), make_small()).offers]

    assert commands(CPU_BUILD) == ["python3 launch.py install --rebuild"]
    assert commands(CPU_BUILD, {"limits.device": "cpu"}) == []
    assert commands(WITHOUT) == ["python3 launch.py install"]
    assert len(commands(WITHOUT, {"model.quantization": "nf4"})) == 2
    assert commands(LAPTOP) == commands(DESKTOP) == []


@pytest.mark.parametrize(
    "machine", [LAPTOP, DESKTOP, TURING, TWO, CPU_BUILD, OLD_DRIVER, PASCAL, BROKEN, WITHOUT]
)
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_every_reason_has_words(machine, language):
    catalogue = load_catalogue(language)
    for changes in (
        {},
        {"model.quantization": "nf4", "optim.optimizer": "paged_adamw_8bit", "model.precision": "bf16"},
    ):
        made = plan(machine, make_recipe(changes), make_small())
        choices = [
            made.device,
            made.dtype,
            made.attention,
            made.quantization,
            made.optimizer,
            made.checkpointing,
        ]
        texts = [choice.reason for choice in (*choices, *made.kernels.values())]
        texts += [words for offer in made.offers for words in (offer.title, offer.why)]
        for message in texts:
            assert catalogue.has(message.id), message.id
            assert "{" not in catalogue.say(message)
