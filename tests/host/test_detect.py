"""The machine's facts are gathered without torch, and nothing that breaks or hangs in a probe reaches us."""

import subprocess
import sys
from pathlib import Path

import pytest

from studio.core.facts import Gpu
from studio.host import detect as module
from studio.host.detect import (
    count_cores,
    detect,
    find_packages,
    read_gpus,
    read_torch_cuda,
    run_probe,
    sample_gpu,
)

ROOT = Path(__file__).resolve().parents[2]


class FakeNvml:
    """Two GPUs as nvidia-ml-py would show them."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0
    NAMES = ("Small 8GB", "Large 24GB")

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 12080

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index > 1:
            raise self.NVMLError("no such device")
        return index

    def nvmlDeviceGetHandleByUUID(self, name):
        return {"GPU-b": 1}[name]

    def nvmlDeviceGetName(self, handle):
        return self.NAMES[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Memory", (), {"total": (8, 24)[handle] * 2**30, "used": 3})

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return [8, 6 + 3 * handle]

    def nvmlDeviceGetUtilizationRates(self, handle):
        return type("Rates", (), {"gpu": 50})

    def nvmlDeviceGetTemperature(self, handle, sensor):
        if handle == 0:
            raise self.NVMLError("not supported")
        return 61

    def nvmlDeviceGetPowerUsage(self, handle):
        return 250_500


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(module, "_open_nvml", FakeNvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


def test_this_machine_is_described_without_torch():
    code = (
        "import sys; from studio.host.detect import detect; facts = detect(); "
        "assert facts.cores >= 1 and facts.ram_bytes > 2**28 and facts.packages['torch']; "
        "assert not {'torch', 'triton', 'transformers', 'bitsandbytes'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_gpus_and_driver(two_gpus):
    gpus, driver = read_gpus()
    assert gpus[1] == Gpu(name="Large 24GB", vram_bytes=24 * 2**30, capability=(8, 9))
    assert [gpu.name for gpu in gpus] == list(FakeNvml.NAMES)
    assert driver == (12, 8)


@pytest.mark.parametrize(
    "visible, names",
    [
        ("1", ["Large 24GB"]),
        ("1,0", ["Large 24GB", "Small 8GB"]),
        ("GPU-b", ["Large 24GB"]),
        ("-1", []),
        ("0,7,1", ["Small 8GB"]),
    ],
)
def test_hidden_gpus_are_not_counted(two_gpus, visible, names):
    def by_uuid(self, name):
        if name != "GPU-b":
            raise FakeNvml.NVMLError(name)
        return 1

    two_gpus.setattr(FakeNvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    two_gpus.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name for gpu in read_gpus()[0]] == names


def test_a_sample_and_a_gpu_that_tells_only_part(two_gpus):
    assert sample_gpu(1) == (0.5, 3, 61.0, 250.5)
    assert sample_gpu(0) == (0.5, 3, 0.0, 250.5)
    assert sample_gpu(5) is None


def test_no_driver_is_a_fact(monkeypatch):
    monkeypatch.setattr(module, "_open_nvml", lambda: None)
    assert read_gpus() == ((), (0, 0))
    assert sample_gpu(0) is None


@pytest.mark.parametrize(
    "line, version",
    [
        ("cuda: Optional[str] = None", ""),
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = '12.8'", "12.8"),
        ("", ""),
    ],
)
def test_torch_build_is_read_as_text(tmp_path, line, version):
    file = tmp_path / "version.py"
    file.write_text(
        f"__version__ = '2.13.0'\ndebug = False\n{line}\nhip: Optional[str] = None\n", encoding="utf-8"
    )
    assert read_torch_cuda(file) == version
    assert read_torch_cuda(tmp_path / "absent.py") == ""


def test_missing_packages_are_left_out():
    assert find_packages(("pytest", "no-such-package-here")).keys() == {"pytest"}


def test_a_probe_may_fail_hang_or_die():
    assert run_probe("pass", 20) == ""
    assert run_probe("raise ImportError('DLL load failed')", 20) == "ImportError: DLL load failed"
    assert "within 0.5 s" in run_probe("import time; time.sleep(30)", 0.5)
    assert "exit code" in run_probe("import os; os._exit(77)", 20)


def test_probes_report_levels(monkeypatch):
    import studio_kernels

    answers = {"ok": True, "reason": ""}
    monkeypatch.setattr(studio_kernels, "probe", lambda timeout_s: type("Support", (), dict(answers)))
    packages = {"triton": "3.7.1", "bitsandbytes": "0.50.2"}
    monkeypatch.setattr(
        module, "run_probe", lambda code, timeout_s: "" if "import triton" in code else "broken"
    )
    assert module._probe_triton({}, True, 5) == ("absent", "")
    assert module._probe_triton(packages, False, 5) == ("installed", "")
    assert module._probe_triton(packages, True, 5) == ("right", "")
    answers |= {"ok": False, "reason": "ptxas failed"}
    assert module._probe_triton(packages, True, 5) == ("importable", "ptxas failed")
    monkeypatch.setattr(module, "run_probe", lambda code, timeout_s: "broken")
    assert module._probe_triton(packages, True, 5) == ("installed", "ptxas failed")
    assert module._probe_bitsandbytes(packages, False, 5) == "broken"
    assert "not installed" in module._probe_bitsandbytes({}, False, 5)


def test_cores_respect_a_containers_quota(monkeypatch):
    monkeypatch.setattr(module, "_read_words", lambda path: ["150000", "100000"])
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert count_cores() == 2
    monkeypatch.setattr(module, "_read_words", lambda path: ["max", "100000"])
    assert count_cores() == 8


def test_a_gpu_beside_a_cpu_build_runs_no_gpu_probe(two_gpus):
    two_gpus.setattr(module, "read_torch_cuda", lambda: "")
    facts = detect(timeout_s=20)
    assert len(facts.gpus) == 2
    assert facts.torch_cuda == "" and facts.triton_level in ("absent", "installed")
