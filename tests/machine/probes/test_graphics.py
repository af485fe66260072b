"""NVIDIA's cards from NVML, nvidia-smi or CUDA; AMD's and Intel's from the kernel; a hang or a mismatch is a fact."""

import threading
import time

import pytest

from studio.core.facts import Gpu
from studio.machine.nvml import Driver
from studio.machine.probes import graphics
from studio.machine.probes.probe_context import ProbeContext
from tests.each_time import rarely
from tests.machine.probes.tools import build_libcuda, make_program, make_smi

ROWS = (
    "0, GPU-aaaa, NVIDIA GeForce RTX 2080 Ti, 11264, 7.5, Enabled\\n"
    "1, GPU-bbbb, NVIDIA GeForce RTX 4090, 24564, 8.9, Disabled\\n"
)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """No NVML, no driver of this machine's; PATH holds one empty folder."""
    monkeypatch.setattr(graphics, "read_driver", lambda environment: Driver())
    monkeypatch.setattr(graphics, "has_cuda_library", lambda here: "LD_LIBRARY_PATH" in here.effective)
    monkeypatch.setattr(graphics, "SMI_FOLDERS", ())
    monkeypatch.setattr(graphics, "KERNEL_DRIVER", tmp_path / "version")
    monkeypatch.setattr(graphics, "TOPOLOGY", tmp_path / "nodes")
    monkeypatch.setattr(graphics, "CARDS", tmp_path / "drm")
    monkeypatch.setattr(graphics, "KFD", tmp_path / "kfd")
    return tmp_path


def surroundings(folder, **variables):
    environment = {"PATH": str(folder), **variables}
    return ProbeContext(environment, environment, None, "Linux")


@pytest.mark.parametrize("words", ["CUDA Version", "CUDA UMD Version"])
def test_nvidia_smi_tells_when_nvml_does_not(tools, words):
    make_smi(tools / "bin", ROWS, words=words)
    facts = graphics.look(surroundings(tools / "bin"))
    assert facts["gpus"] == (
        Gpu(name="NVIDIA GeForce RTX 2080 Ti", vram_bytes=11 << 30, capability=(7, 5), display=True),
        Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=24564 << 20, capability=(8, 9), display=False),
    )
    assert facts["driver"] == "581.29" and facts["driver_cuda"] == (13, 0) and facts["driver_error"] == ""


@pytest.mark.parametrize(
    "visible, names",
    [("1", ["4090"]), ("GPU-b,0", ["4090", "2080 Ti"]), ("", []), ("-1", []), ("1,9,0", ["4090"])],
)
def test_hidden_cards_are_left_out_and_the_driver_stays_known(tools, visible, names):
    make_smi(tools / "bin", ROWS)
    facts = graphics.look(surroundings(tools / "bin", CUDA_VISIBLE_DEVICES=visible))
    assert [gpu.name.partition("RTX ")[2] for gpu in facts["gpus"]] == names
    assert facts["driver"] == "581.29"


@pytest.mark.parametrize(
    "script, error",
    [
        rarely("sleep 60", "no answer within 0.5 s"),
        ("echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9", "could not communicate"),
        ("echo garbage", "nvidia-smi: garbage"),
        ("exit 0", "nvidia-smi: no answer"),
    ],
)
def test_a_nvidia_smi_that_is_of_no_use(tools, monkeypatch, script, error):
    monkeypatch.setattr(graphics, "SMI_S", 0.5)
    make_program(tools / "bin", "nvidia-smi", script)
    facts = graphics.look(surroundings(tools / "bin"))
    assert facts["gpus"] == () and error in facts["driver_error"]


def test_without_rows_the_cuda_driver_is_asked(tools):
    make_smi(tools / "bin", "")
    facts = graphics.look(surroundings(tools / "bin"))
    assert facts["gpus"] == () and facts["driver"] == "581.29"
    assert facts["driver_error"] == "nvidia-smi: no graphics card"
    folder = build_libcuda(tools / "lib")
    facts = graphics.look(surroundings(tools / "bin", LD_LIBRARY_PATH=str(folder)))
    assert [gpu.name for gpu in facts["gpus"]] == ["Invented RTX 2080 Ti"]
    assert facts["driver_cuda"] == (12, 8) and facts["driver_error"] == ""


def test_a_driver_that_hangs_in_nvml_does_not_hang_us(tools, monkeypatch):
    awake = threading.Event()
    monkeypatch.setattr(graphics, "read_driver", lambda environment: awake.wait(60))
    monkeypatch.setattr(graphics, "NVML_S", 0.3)
    started = time.monotonic()
    facts = graphics.look(surroundings(tools / "bin"))
    assert time.monotonic() - started < 5
    awake.set()
    assert facts["driver_error"] == "no answer within 0.3 s"


def test_kernel_module_and_library_of_two_versions(tools, monkeypatch):
    line = "NVRM version: NVIDIA UNIX {}  580.65.06  Wed Aug 20\nGCC version: 12.2.0\n"
    (tools / "version").write_text(line.format("Open Kernel Module for x86_64"), encoding="utf-8")
    mismatch = Driver(error="Driver/library version mismatch")
    monkeypatch.setattr(graphics, "read_driver", lambda environment: mismatch)
    facts = graphics.look(surroundings(tools / "bin"))
    assert facts["driver_error"] == "Driver/library version mismatch"
    monkeypatch.setattr(
        graphics, "read_driver", lambda environment: Driver(version="575.57.08", cuda=(12, 9))
    )
    facts = graphics.look(surroundings(tools / "bin"))
    assert (facts["driver"], facts["driver_module"]) == ("575.57.08", "580.65.06")
    (tools / "version").write_text(line.format("x86_64 Kernel Module"), encoding="utf-8")
    assert graphics.read_module_version() == "580.65.06"


def test_amd_cards_with_the_name_of_the_chip(tools):
    for index, chip in enumerate((0, 110000, 90402)):
        node = tools / "nodes" / str(index)
        (node / "mem_banks" / "0").mkdir(parents=True)
        (node / "properties").write_text(
            f"simd_count {96 * bool(chip)}\ngfx_target_version {chip}\n", "utf-8"
        )
        (node / "mem_banks" / "0" / "properties").write_text(
            f"heap_type 1\nsize_in_bytes {24 << 30}\n", "utf-8"
        )
    (tools / "kfd").touch()
    (tools / "kfd").chmod(0)
    facts = graphics.look(surroundings(tools / "bin"))
    assert [(gpu.vendor, gpu.architecture, gpu.vram_bytes) for gpu in facts["gpus"]] == [
        ("amd", "gfx1100", 24 << 30),
        ("amd", "gfx942", 24 << 30),
    ]
    assert [graphics.name_chip(number) for number in (90010, 100300, 120001, 0)] == [
        "gfx90a",
        "gfx1030",
        "gfx1201",
        "",
    ]


def test_amd_without_its_compute_driver_and_intel(tools):
    for name, vendor, device in (
        ("card0", "0x1002", "0x744c"),
        ("card1", "0x8086", "0x56a0"),
        ("card2", "0x8086", "0x3e92"),
    ):
        folder = tools / "drm" / name / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor, "utf-8")
        (folder / "device").write_text(device, "utf-8")
    gpus = graphics.look(surroundings(tools / "bin"))["gpus"]
    assert [(gpu.vendor, gpu.architecture) for gpu in gpus] == [("amd", ""), ("intel", "")]
