"""What a run will use follows from facts alone, and every choice says why in both languages."""

import dataclasses

import pytest

from studio.core.facts import Distribution, Gpu, GuestFacts, KernelTest, WindowsFacts
from studio.core.i18n import load_catalogue
from studio.planning.backend_choice import NEEDS_DOTS
from studio.planning.run_plan import plan
from tests.machine.facts import make_decoder, make_gpu, make_machine, make_model, make_recipe, make_small

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
        (LAPTOP, {"run.device": "gpu"}, "cpu", "no_gpu"),
        (DESKTOP, {}, "cuda:0", "gpu"),
        (DESKTOP, {"run.device": "cpu"}, "cpu", "cpu_wanted"),
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
    "machine, changes, model, value, reason",
    [
        (DESKTOP, {}, make_decoder(2), True, "on"),
        (DESKTOP, {"model.fp8": False}, make_decoder(2), False, "off"),
        (LAPTOP, {}, make_decoder(2), False, "cpu"),
        (DESKTOP, {"run.device": "cpu"}, make_decoder(2), False, "cpu"),
        (make_machine(make_gpu(24, (8, 6))), {}, make_decoder(2), False, "gpu"),
        (TURING, {}, make_decoder(2), False, "gpu"),
        (DESKTOP, {"model.precision": "fp16"}, make_decoder(2), False, "dtype"),
        (DESKTOP, {"model.quantization": "nf4"}, make_decoder(2), False, "quantized"),
        (DESKTOP, {}, make_decoder(2, quantization="nf4"), False, "quantized"),
        (DESKTOP, {"adapter.method": "full"}, make_decoder(2), False, "full"),
        (DESKTOP, {"adapter.dora": True}, make_decoder(2), False, "dora"),
        (DESKTOP, {}, make_small(), False, "stock"),
    ],
)
def test_8_bit_products_only_where_asked_for_and_possible(machine, changes, model, value, reason):
    changes = {"model.fp8": True} | changes
    assert chosen(machine, "fp8", changes, model) == (value, f"plan.fp8.{reason}")
    kernels = plan(machine, make_recipe(changes), model).kernels
    asked = {"fp8": value, "magnitudes": changes.get("adapter.dora")}
    assert set(kernels) == {*NEEDS_DOTS, *(op for op in asked if asked[op])}


@pytest.mark.parametrize(
    "machine, model, wanted, reason, planned",
    [
        (DESKTOP, make_decoder(2), "adamw", "own", True),
        (DESKTOP, make_small(), "adamw", "fused", True),
        (LAPTOP, make_decoder(2), "adamw", "adamw", True),
        (DESKTOP, make_decoder(2), "adamw_8bit", "adamw_8bit", False),
    ],
)
def test_the_studios_own_optimizer_comes_with_its_decoder(machine, model, wanted, reason, planned):
    found = plan(machine, make_recipe({"optim.optimizer": wanted}), model)
    assert (found.optimizer.value, found.optimizer.reason.id) == (wanted, f"plan.optimizer.{reason}")
    assert ("adamw" in found.kernels) == planned


def test_the_lengths_of_weights_have_an_op_of_their_own_where_they_are_trained():
    failed = KernelTest(op="magnitudes", ok=False, reason="off by one")
    sound, broken = (make_machine(make_gpu(), kernel_tests=tests) for tests in ((), (failed,)))
    dora = make_recipe({"adapter.dora": True})
    assert "magnitudes" not in plan(sound, make_recipe({}), make_decoder(2)).kernels
    assert plan(sound, dora, make_decoder(2)).kernels["magnitudes"].value == "triton"
    kernels = dict(plan(broken, dora, make_decoder(2)).kernels)
    assert kernels.pop("magnitudes").value == "reference"
    assert {choice.value for choice in kernels.values()} == {"triton"}


def test_a_quantising_kernel_that_failed_its_test_stays_in_pytorch():
    failed = KernelTest(op="fp8", ok=False, reason="off by one")
    machine = make_machine(make_gpu(), kernel_tests=(failed,))
    made = plan(machine, make_recipe({"model.fp8": True}), make_decoder(2))
    assert made.fp8.value and made.kernels["fp8"].value == "reference"


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
        (DESKTOP, {"run.activation_checkpointing": "on"}, make_small(), True),
        (DESKTOP, {"run.activation_checkpointing": "off", "data.max_length": 8192}, make_model(), False),
    ],
)
def test_activations_are_recomputed_only_where_memory_is_short(machine, changes, model, value):
    assert chosen(machine, "checkpointing", changes, model)[0] is value


@pytest.mark.parametrize(
    "machine, changes, value",
    [
        (DESKTOP, {}, "triton"),
        (DESKTOP, {"run.kernels": "pytorch"}, "reference"),
        (DESKTOP, {"run.device": "cpu"}, "reference"),
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
    assert {op: choice.value for op, choice in kernels.items()} == dict.fromkeys(NEEDS_DOTS, value)


def test_capped_attention_stays_plain():
    assert chosen(DESKTOP, "attention")[0] == "sdpa"
    assert (
        chosen(DESKTOP, "attention", {"model.attention": "sdpa"}, make_small(scores_capped=True))[0]
        == "eager"
    )


def test_offers():
    def commands(machine, changes=None):
        return [offer.command for offer in plan(machine, make_recipe(changes), make_small()).offers]

    assert commands(CPU_BUILD) == ["python3 launch.py install --rebuild"]
    assert commands(CPU_BUILD, {"run.device": "cpu"}) == []
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


# What the table of planning/backend_choice.py decides ----------------------------------------------------------------

WINDOWS = {"system": "Windows", "packages": {"torch": "2.13.0", "bitsandbytes": "0.50.2"}}
WITH_TRITON = {"system": "Windows", "packages": WINDOWS["packages"] | {"triton-windows": "3.7.1.post27"}}
PAIRLESS = WINDOWS["packages"] | {"triton-windows": "3.5.1.post24"}
RADEON = Gpu(name="RX 7900", vram_bytes=24 * 2**30, capability=(0, 0), vendor="amd", architecture="gfx1100")
OLD_RADEON = dataclasses.replace(RADEON, name="RX 6800", architecture="gfx1030")
ARC = Gpu(name="Arc B580", vram_bytes=12 * 2**30, capability=(0, 0), vendor="intel")
APPLE = Gpu(name="M3", vram_bytes=18 * 2**30, capability=(0, 0), vendor="apple")
ROCM = {"torch_cuda": "", "torch_hip": "7.2", "driver_cuda": (0, 0)}
MAC = {"system": "Darwin", "architecture": "arm64", "torch_cuda": "", "driver_cuda": (0, 0)}


def kernels(machine, changes=None):
    made = plan(machine, make_recipe(changes), make_small()).kernels
    return {op: (choice.value, choice.reason.id) for op, choice in made.items()}


def test_a_kernel_that_failed_before_stays_off_and_says_why():
    machine = make_machine(make_gpu(), broken_kernels={"glu": "CompilationError at 12:4"})
    all_right = dict.fromkeys(NEEDS_DOTS, ("triton", "backend.row.4"))
    assert kernels(machine) == all_right | {"glu": ("reference", "plan.kernels.fell_back")}
    assert kernels(machine, {"run.kernels": "triton"})["glu"][0] == "reference"


def test_a_kernel_that_failed_its_test_stays_off_though_the_others_are_right():
    tests = (KernelTest(op="rms_norm", ok=False, reason="differs"), KernelTest(op="glu", ok=True))
    all_right = dict.fromkeys(NEEDS_DOTS, ("triton", "backend.row.4"))
    failed = {"rms_norm": ("reference", "plan.kernels.test_failed")}
    assert kernels(make_machine(make_gpu(), kernel_tests=tests)) == all_right | failed


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (make_machine(make_gpu(), triton_level="installed", triton_error="DLL load failed"), "hidden"),
        (make_machine(triton_level="installed", triton_error="DLL load failed"), "hidden"),
        (make_machine(triton_level="installed"), "cpu"),
        (make_machine(triton_level="compiles"), "cpu"),
    ],
)
def test_a_triton_that_does_not_load_is_said_to_be_hidden(machine, reason):
    assert set(kernels(machine).values()) == {("reference", f"plan.kernels.{reason}")}


@pytest.mark.parametrize(
    ("machine", "wanted", "value", "row"),
    [
        (DESKTOP, "auto", "triton", "nvidia"),
        (DESKTOP, "triton", "triton", "forced"),
        (DESKTOP, "pytorch", "reference", "forced"),
        (make_machine(make_gpu(), triton_level="compiles"), "triton", "reference", "forced"),
        (
            make_machine(make_gpu(), **(WITH_TRITON | {"packages": PAIRLESS})),
            "auto",
            "reference",
            "no_triton",
        ),
        (make_machine(make_gpu(), **(WITH_TRITON | {"packages": PAIRLESS})), "triton", "triton", "forced"),
        (
            make_machine(make_gpu(), environment={"FINETUNE_STUDIO_KERNELS": "pytorch"}),
            "auto",
            "reference",
            "forced",
        ),
        (
            make_machine(make_gpu(), environment={"FINETUNE_STUDIO_KERNELS": "pytorch"}),
            "triton",
            "triton",
            "forced",
        ),
        (
            make_machine(make_gpu(), environment={"FINETUNE_STUDIO_KERNELS": "what"}),
            "auto",
            "triton",
            "nvidia",
        ),
    ],
)
def test_what_the_person_decides(machine, wanted, value, row):
    made = plan(machine, make_recipe({"run.kernels": wanted}), make_small())
    assert ({choice.value for choice in made.kernels.values()}, made.backend) == ({value}, row)


@pytest.mark.parametrize(
    ("machine", "value", "reason"),
    [
        (make_machine(make_gpu(11, (6, 1), "GTX 1080 Ti"), make_gpu(8, (8, 6))), "cuda:1", "best_gpu"),
        (make_machine(make_gpu(), torch_sees_gpu=False), "cpu", "unseen"),
        (make_machine(make_gpu(), torch_cuda="12.6"), "cuda:0", "gpu"),
        (make_machine(make_gpu(32, (12, 0), "RTX 5090"), torch_cuda="12.6"), "cpu", "new_gpu"),
        (make_machine(make_gpu(), torch_error="boom"), "cpu", "no_torch"),
        (make_machine(RADEON, **ROCM), "cuda:0", "gpu"),
        (make_machine(RADEON, torch_cuda="", driver_cuda=(0, 0)), "cpu", "other_build"),
        (make_machine(RADEON, **ROCM, torch_architectures=("gfx942",)), "cpu", "other_build"),
        (make_machine(ARC, make_gpu(), torch_cuda="13.0"), "cuda:0", "gpu"),
        (make_machine(ARC, torch_cuda="", torch_xpu=True, driver_cuda=(0, 0)), "xpu:0", "gpu"),
        (make_machine(APPLE, **MAC), "mps", "gpu"),
        (make_machine(wsl=True, guest=GuestFacts(version=1, dxg=False)), "cpu", "wsl_without_gpu"),
    ],
)
def test_the_device_is_one_that_this_torch_drives(machine, value, reason):
    assert chosen(machine, "device") == (value, f"plan.device.{reason}")


@pytest.mark.parametrize(
    ("machine", "wanted", "value"),
    [
        (make_machine(RADEON, **ROCM), "auto", "bf16"),
        (make_machine(OLD_RADEON, **ROCM), "auto", "fp16"),
        (make_machine(ARC, torch_cuda="", torch_xpu=True), "auto", "bf16"),
        (make_machine(APPLE, **MAC), "auto", "fp32"),
        (make_machine(APPLE, **MAC), "fp16", "fp32"),
        (make_machine(APPLE, **MAC), "bf16", "bf16"),
    ],
)
def test_number_format_beside_nvidia(machine, wanted, value):
    assert chosen(machine, "dtype", {"model.precision": wanted})[0] == value


@pytest.mark.parametrize(
    ("machine", "name", "changes", "value"),
    [
        (make_machine(make_gpu(4, (5, 2)), torch_cuda="12.6"), "quantization", "nf4", "none"),
        (make_machine(make_gpu(8, (6, 1)), torch_cuda="12.6"), "quantization", "nf4", "nf4"),
        (make_machine(make_gpu(8, (6, 1)), torch_cuda="12.6"), "quantization", "int8", "none"),
        (make_machine(APPLE, **MAC), "quantization", "nf4", "none"),
        (make_machine(make_gpu(4, (5, 2)), torch_cuda="12.6"), "optimizer", "adamw_8bit", "adamw"),
        (make_machine(APPLE, **MAC), "optimizer", "adamw_8bit", "adamw"),
    ],
)
def test_what_a_card_cannot_do_is_not_planned(machine, name, changes, value):
    field = "model.quantization" if name == "quantization" else "optim.optimizer"
    assert chosen(machine, name, {field: changes})[0] == value


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (DESKTOP, "single"),
        (LAPTOP, "none"),
        (TWO, "several"),
        (make_machine(make_gpu(), make_gpu(), **WITH_TRITON), "windows"),
        (make_machine(make_gpu(), ARC), "single"),
    ],
)
def test_one_card_trains(machine, reason):
    assert chosen(machine, "multi_gpu") == ("single", f"plan.multi_gpu.{reason}")


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (DESKTOP, "sdpa"),
        (TURING, "efficient"),
        (make_machine(make_gpu(8, (6, 1)), torch_cuda="12.6"), "math"),
        (LAPTOP, "sdpa"),
    ],
)
def test_attention_says_its_form(machine, reason):
    assert chosen(machine, "attention") == ("sdpa", f"plan.attention.{reason}")


def test_offers_on_windows():
    def offers(changes=None, **values):
        made = plan(make_machine(make_gpu(), **(WINDOWS | values)), make_recipe(changes), make_small())
        return [(offer.title.id.removeprefix("plan.offer."), offer.command) for offer in made.offers]

    pip = r".venv\Scripts\python.exe -m pip install"
    stay = ("stay", "")
    assert offers(triton_level="absent") == [("triton_pin", f"{pip} triton-windows==3.7.1.post27"), stay]
    assert offers({"run.kernels": "pytorch"}, triton_level="absent") == []
    assert offers({"run.device": "cpu"}, triton_level="absent") == []
    found = WindowsFacts(distributions=(Distribution(name="Ubuntu", version=2, gpu=True),))
    unasked = WindowsFacts(distributions=(Distribution(name="Ubuntu", version=2),))
    for windows in (found, unasked):
        assert ("wsl", "py launch.py wsl") in offers(triton_level="absent", windows=windows)
    old = WindowsFacts(distributions=(Distribution(name="Ubuntu", version=1),))
    assert ("wsl", "py launch.py wsl") not in offers(triton_level="absent", windows=old)
    works = WITH_TRITON["packages"]
    assert offers(packages=works, windows=found) == []
    assert offers(triton_level="absent", torch_cuda="") == [("torch_cuda", "py launch.py install --rebuild")]
