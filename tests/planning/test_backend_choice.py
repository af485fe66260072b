"""The table of twenty rows: each is reached, what it gives is right, and the features beside it."""

import dataclasses

import pytest

from studio.core.facts import Distribution, Gpu, WindowsFacts
from studio.core.i18n import load_catalogue
from studio.machine.card_abilities import can_compile, has_bf16, has_fp8
from studio.planning import backend_choice as table
from studio.planning.backend_choice import ROWS, choose_backend, runs_fast
from tests.machine.facts import PACKAGES, make_gpu, make_machine

RTX = make_gpu()
TURING = make_gpu(11, (7, 5), "RTX 2080 Ti")
WINDOWS = {
    "system": "Windows",
    "windows": WindowsFacts(),
    "packages": {"torch": "2.13.0", "bitsandbytes": "0.50.2", "triton-windows": "3.7.1.post27"},
}


def amd(architecture="gfx1100", name="Radeon"):
    return Gpu(name=name, vram_bytes=2**34, capability=(0, 0), vendor="amd", architecture=architecture)


def ask(machine, gpu=RTX, forced=""):
    return choose_backend(machine, gpu, forced)


def test_twenty_rows_each_once():
    assert len({row.name for row in ROWS}) == len(ROWS) == 20


def test_the_order_of_the_rows_of_which_the_first_match_wins():
    assert [row.name for row in ROWS] == [
        *("no_torch", "torch_without_gpu", "driver_or_build"),
        *("forced", "wsl_without_gpu"),
        *("nvidia", "nvidia_turing", "nvidia_old"),
        *("windows", "windows_turing", "windows_ahead_of_triton"),
        *("no_triton", "wsl_is_faster", "broken_triton"),
        *("rocm_triton", "rocm", "rocm_windows", "xpu", "mps", "processor"),
    ]


@pytest.mark.parametrize(
    ("row", "gpu", "values", "kernels"),
    [
        ("no_torch", RTX, {"torch_error": "broken"}, "none"),
        ("torch_without_gpu", RTX, {"torch_cuda": ""}, "none"),
        ("driver_or_build", RTX, {"driver_cuda": (12, 9)}, "none"),
        ("nvidia", RTX, {}, "all"),
        ("nvidia_turing", TURING, {}, "elementwise"),
        ("nvidia_old", make_gpu(8, (6, 1)), {"torch_cuda": "12.6"}, "none"),
        ("windows", RTX, WINDOWS, "all"),
        ("windows_turing", TURING, WINDOWS, "elementwise"),
        (
            "windows_ahead_of_triton",
            RTX,
            WINDOWS | {"packages": {"torch": "2.15.0"}, "triton_level": "absent"},
            "none",
        ),
        ("no_triton", RTX, WINDOWS | {"packages": {"torch": "2.13.0"}, "triton_level": "absent"}, "none"),
        (
            "no_triton",
            RTX,
            WINDOWS | {"packages": {"torch": "2.13.0", "triton-windows": "3.5.1.post24"}},
            "none",
        ),
        ("no_triton", RTX, {"triton_level": "absent"}, "none"),
        ("broken_triton", RTX, {"triton_level": "launches"}, "none"),
        ("broken_triton", RTX, WINDOWS | {"triton_level": "importable"}, "none"),
        ("rocm_triton", amd(), {"torch_hip": "7.2", "torch_cuda": ""}, "all"),
        ("rocm", amd("gfx1030"), {"torch_hip": "7.2", "torch_cuda": ""}, "none"),
        ("rocm", amd(), {"torch_hip": "7.2", "torch_cuda": "", "triton_level": "importable"}, "none"),
        (
            "rocm_windows",
            amd(),
            WINDOWS | {"torch_hip": "7.2", "torch_cuda": "", "triton_level": "absent"},
            "none",
        ),
        ("rocm_windows", amd(), WINDOWS | {"torch_hip": "7.2", "torch_cuda": ""}, "all"),
    ],
)
def test_rows(row, gpu, values, kernels):
    found = ask(make_machine(gpu, **values), gpu)
    assert (found.row, found.kernels) == (row, kernels)
    assert found.stop == (row in ("no_torch", "torch_without_gpu", "driver_or_build"))


def test_intel_apple_and_no_card():
    arc = Gpu(name="Arc", vram_bytes=2**33, capability=(0, 0), vendor="intel")
    apple = Gpu(name="M3", vram_bytes=2**34, capability=(0, 0), vendor="apple")
    values = {"torch_cuda": "", "triton_level": "absent"}
    assert ask(make_machine(arc, torch_xpu=True, **values), arc).row == "xpu"
    assert ask(make_machine(arc, **values), arc).row == "processor"
    mac = make_machine(apple, system="Darwin", architecture="arm64", **values)
    assert (ask(mac, apple).row, ask(mac, apple).four_bit) == ("mps", "off")
    assert ask(make_machine(), None).row == "processor"


def test_a_linux_beside_windows_is_only_named_where_nothing_else_helps():
    healthy = (Distribution(name="Ubuntu", version=2, gpu=True),)
    values = WINDOWS | {"windows": WindowsFacts(distributions=healthy), "triton_level": "importable"}
    assert ask(make_machine(RTX, **values)).row == "wsl_is_faster"
    assert ask(make_machine(RTX, **values, environment={"CC": "gcc"})).row == "broken_triton"
    repaired = make_machine(RTX, **values, environment={"CC": "gcc"}, repairs=("drop_compiler",))
    assert ask(repaired).row == "wsl_is_faster"
    for other in (Distribution(name="Old", version=1, gpu=True), Distribution(name="Unasked", version=2)):
        windows = WindowsFacts(distributions=(other,))
        assert ask(make_machine(RTX, **(values | {"windows": windows}))).row == "broken_triton"


def test_decided_for_the_card_that_trains():
    machine = make_machine(TURING, RTX)
    assert [ask(machine, gpu).row for gpu in (TURING, RTX)] == ["nvidia_turing", "nvidia"]


def test_a_processor_computes_with_pytorch_whether_it_was_asked_to_or_not():
    machine = make_machine()
    assert ask(machine, None, "pytorch") == ask(machine, None)
    assert ask(machine, None, "triton").row == "forced", "the wish cannot be met: its own reason says so"


@pytest.mark.parametrize(
    ("forced", "level", "kernels"),
    [("triton", "right", "all"), ("triton", "launches", "none"), ("pytorch", "right", "none")],
)
def test_what_is_forced_still_needs_the_proof(forced, level, kernels):
    found = ask(make_machine(TURING, triton_level=level), TURING, forced)
    assert (found.row, found.kernels) == ("forced", kernels)
    assert found.attention == ask(make_machine(TURING, triton_level=level), TURING).attention


def test_force_does_not_lift_a_stop():
    assert ask(make_machine(RTX, torch_cuda=""), RTX, "triton").row == "torch_without_gpu"


def test_a_kernel_with_dots_stays_in_pytorch_on_older_cards(monkeypatch):
    monkeypatch.setitem(table.NEEDS_DOTS, "matmul", True)
    assert runs_fast("all", "matmul") and not runs_fast("elementwise", "matmul")
    assert runs_fast("elementwise", "rms_norm") and not runs_fast("none", "rms_norm")


def test_4_bits_need_the_library_and_a_card_that_it_serves():
    assert ask(make_machine(RTX)).four_bit == "nf4"
    assert ask(make_machine(RTX, bitsandbytes_error="no binary")).four_bit == "off"
    assert ask(make_machine(RTX, packages={"torch": "2.13.0"})).eight_bit == "torch"
    old = make_gpu(4, (5, 2))
    assert ask(make_machine(old, torch_cuda="12.6"), old).four_bit == "off"
    vega = amd("gfx906")
    assert ask(make_machine(vega, torch_hip="7.2", torch_cuda=""), vega).four_bit == "off"


def test_a_card_that_torch_does_not_see_is_not_used():
    assert ask(make_machine(RTX, torch_sees_gpu=False)).row == "processor"


def test_features_beside_the_table():
    machine = make_machine(RTX)
    assert has_bf16(machine, RTX) and has_fp8(RTX)
    assert not has_bf16(machine, TURING) and not has_fp8(make_gpu(24, (8, 6)))
    assert has_bf16(machine, amd()) and not has_bf16(machine, amd("gfx1030"))
    assert can_compile(machine)
    assert not can_compile(make_machine(RTX, packages=PACKAGES | {"triton": "3.6.0"}))
    assert not can_compile(make_machine(RTX, **WINDOWS))
    with_msvc = WINDOWS | {"windows": WindowsFacts(msvc=r"C:\VC\cl.exe")}
    assert can_compile(make_machine(RTX, **with_msvc))


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_every_reason_has_words(language):
    catalogue = load_catalogue(language)
    machine = make_machine(RTX)
    windows = make_machine(RTX, **WINDOWS)
    healthy = WindowsFacts(distributions=(Distribution(name="Ubuntu", version=2, gpu=True),))
    cases = [
        ask(machine),
        ask(machine, TURING),
        ask(windows),
        ask(dataclasses.replace(windows, triton_level="absent", packages={"torch": "2.99"})),
        ask(dataclasses.replace(windows, triton_level="compiles", triton_error="")),
        ask(dataclasses.replace(windows, triton_level="compiles", environment={"CC": "gcc"})),
        ask(dataclasses.replace(windows, triton_level="compiles", windows=healthy)),
        *(ask(machine, RTX, forced) for forced in ("triton", "pytorch")),
        *(
            ask(dataclasses.replace(machine, triton_level="compiles"), RTX, one)
            for one in ("triton", "pytorch")
        ),
    ]
    for case in cases:
        assert catalogue.has(case.reason.id) and "{" not in catalogue.say(case.reason), case.reason
