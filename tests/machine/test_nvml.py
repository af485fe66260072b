"""NVIDIA's driver through NVML: cards in CUDA's order, what a card does just now, and a driver that cannot be asked."""

import sys

import pytest

from studio.core.facts import Gpu
from studio.machine.nvml import Driver, read_driver, sample_gpu


class FakeNvml:
    """Two GPUs as nvidia-ml-py would show them."""

    class NVMLError(Exception):
        value = 999

    NVML_TEMPERATURE_GPU = 0
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NAMES = ("Small 8GB", b"Large 24GB")
    fails = None

    def nvmlInit(self):
        if self.fails:
            raise self.fails

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 12080

    def nvmlSystemGetDriverVersion(self):
        return "570.26"

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 1:
            raise self.NVMLError("no such device")
        return index

    def nvmlDeviceGetHandleByUUID(self, name):
        if name != "GPU-b":
            raise self.NVMLError(name)
        return 1

    def nvmlDeviceGetName(self, handle):
        return self.NAMES[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Memory", (), {"total": (8, 24)[handle] * 2**30, "used": 3})

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return [8, 6 + 3 * handle]

    def nvmlDeviceGetDisplayActive(self, handle):
        if handle == 0:
            raise self.NVMLError("not supported")
        return 1

    def nvmlDeviceGetUtilizationRates(self, handle):
        return type("Rates", (), {"gpu": 50})

    def nvmlDeviceGetTemperature(self, handle, sensor):
        if handle == 0:
            raise self.NVMLError("not supported")
        return 61

    def nvmlDeviceGetPowerUsage(self, handle):
        return 250_500


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_gpus_and_driver(nvml):
    driver = read_driver({})
    assert driver.gpus == (
        Gpu(name="Small 8GB", vram_bytes=8 * 2**30, capability=(8, 6)),
        Gpu(name="Large 24GB", vram_bytes=24 * 2**30, capability=(8, 9), display=True),
    )
    assert (driver.cuda, driver.version, driver.error) == ((12, 8), "570.26", "")


@pytest.mark.parametrize(
    "visible, names",
    [
        ("1", ["Large 24GB"]),
        ("1,0", ["Large 24GB", "Small 8GB"]),
        ("GPU-b", ["Large 24GB"]),
        ("-1", []),
        ("", []),
        ("0,7,1", ["Small 8GB"]),
    ],
)
def test_hidden_gpus_are_not_counted(nvml, visible, names):
    driver = read_driver({"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.name for gpu in driver.gpus] == names
    assert driver.version == "570.26", "the driver is known all the same"


def test_a_sample_and_a_gpu_that_tells_only_part(nvml):
    assert sample_gpu(1) == (0.5, 3, 61.0, 250.5)
    assert sample_gpu(0) == (0.5, 3, 0.0, 250.5)
    assert sample_gpu(5) is None


def test_a_driver_that_cannot_be_asked_says_why(nvml):
    nvml.fails = FakeNvml.NVMLError("Driver/library version mismatch")
    assert read_driver({}) == Driver(error="Driver/library version mismatch")
    assert sample_gpu(0) is None


def test_another_package_called_pynvml_leaves_the_question_to_nvidia_smi(nvml, monkeypatch):
    monkeypatch.delattr(FakeNvml, "nvmlSystemGetCudaDriverVersion_v2")
    answer = read_driver({})
    assert answer.gpus == () and "nvmlSystemGetCudaDriverVersion_v2" in answer.error


def test_no_driver_is_no_error(nvml, monkeypatch):
    nvml.fails = FakeNvml.NVMLError("NVML Shared Library Not Found")
    nvml.fails.value = 12
    assert read_driver({}) == Driver()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_driver({}) == Driver()
    assert sample_gpu(0) is None
