"""What a process and its machine tell: this very process, a full pipe, fake drivers of NVIDIA and of Windows."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from studio.machine import process_metrics as vitals
from studio.machine.process_metrics import compare, read_output, read_shared, read_vitals


def test_this_process_and_its_machine(tmp_path):
    before = read_vitals(os.getpid(), tmp_path)
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    (tmp_path / "kernel.cubin").write_bytes(b"x" * 1000)
    with (tmp_path / "big").open("wb") as file:
        file.write(b"x" * 5_000_000)
    (tmp_path / "big").unlink()
    measures = compare(before, read_vitals(os.getpid(), tmp_path))
    assert measures["cpu_share"] > 0.3
    assert (measures["cache_growth_files"], measures["cache_growth_bytes"]) == (1.0, 1000.0)
    assert measures["written_bytes_per_s"] > 1e6
    assert measures["rss_bytes"] > 2**20 and measures["ram_total_bytes"] > measures["ram_available_bytes"] > 0
    assert measures["compilers"] == 0 and measures["waits_for_disk"] in (0.0, 1.0)
    assert not {"time_s", "cpu_s", "cache_files", "read_bytes"} & set(measures)


def test_a_compiler_that_runs_is_seen(tmp_path):
    program = tmp_path / "ptxas"
    os.link(os.path.realpath(sys.executable), program) if os.stat(tmp_path).st_dev == os.stat(
        os.path.realpath(sys.executable)
    ).st_dev else program.symlink_to(os.path.realpath(sys.executable))
    child = subprocess.Popen([program, "-c", "import time; time.sleep(30)"])
    try:
        assert read_vitals(os.getpid())["compilers"] == 1
    finally:
        child.kill()
        child.wait()
    assert read_vitals(os.getpid())["compilers"] == 0


def test_a_process_that_is_gone_tells_nothing():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert "rss_bytes" not in read_vitals(child.pid)


def test_a_pipe_that_nobody_reads_is_full():
    reader, writer = os.pipe()
    try:
        assert read_output((writer,)) == {"output_full": 0.0}
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        assert read_output((writer,)) == {"output_full": 1.0}
        assert read_output((writer + 1000,)) == {
            "output_full": 0.0
        }  # closed: a write fails, it does not wait
    finally:
        os.close(reader)
        os.close(writer)


class FakeNvml:
    """NVML of a laptop: it tells no power and counts no replays."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=7, total=8)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return SimpleNamespace(gpu=100)

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        return 300

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
        return 0x40

    def nvmlDeviceGetTemperature(self, handle, kind):  # noqa: N802
        return 91

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        raise self.NVMLError

    def nvmlDeviceGetPcieReplayCounter(self, handle):  # noqa: N802
        raise self.NVMLError


def test_the_gpu_tells_what_it_can(monkeypatch):
    monkeypatch.setattr(vitals, "open_nvml", FakeNvml)
    monkeypatch.setattr(vitals, "visible_handles", lambda nvml, environment: ["handle"])
    assert vitals.read_gpu(0) == {
        "gpu_utilisation": 1.0,
        "vram_used_bytes": 7.0,
        "vram_total_bytes": 8.0,
        "sm_clock_mhz": 300.0,
        "sm_clock_limit_mhz": 1980.0,
        "throttle_reasons": 64.0,
        "temperature_c": 91.0,
    }
    assert vitals.read_gpu(1) == {}
    monkeypatch.setattr(vitals, "open_nvml", lambda: None)
    assert vitals.read_gpu(0) == {}


class FakePdh:
    """pdh.dll with one counter: two instances of process 12, one of another."""

    VALUES = (("pid_12_luid_0x1_phys_0", 300), ("pid_12_luid_0x2_phys_0", 50), ("pid_123_luid_0x1_phys_0", 7))

    def __init__(self, missing: bool = False) -> None:
        self.missing, self.closed, self.path = missing, 0, ""

    def PdhOpenQueryW(self, source, data, query):  # noqa: N802
        return 0

    def PdhAddEnglishCounterW(self, query, path, data, counter):  # noqa: N802
        self.path = path.value
        return 0xC0000BB8 if self.missing else 0

    def PdhCollectQueryData(self, query):  # noqa: N802
        return 0

    def PdhGetFormattedCounterArrayW(self, counter, kind, size, count, buffer):  # noqa: N802
        item = struct_of_item()
        size._obj.value = ctypes.sizeof(item) * len(self.VALUES)
        count._obj.value = len(self.VALUES)
        if buffer is None:
            return 0x800007D2
        items = ctypes.cast(buffer, ctypes.POINTER(item))
        for place, (name, value) in enumerate(self.VALUES):
            items[place].name, items[place].value = name, value
        return 0

    def PdhCloseQuery(self, query):  # noqa: N802
        self.closed += 1


def struct_of_item():
    class Item(ctypes.Structure):
        _fields_ = (("name", ctypes.c_wchar_p), ("status", ctypes.c_ulong), ("value", ctypes.c_longlong))

    return Item


def test_windows_tells_how_much_ram_a_process_uses_as_graphics_memory():
    pdh = FakePdh()
    assert read_shared(12, pdh) == {"shared_used_bytes": 350.0}
    assert pdh.path == r"\GPU Process Memory(*)\Shared Usage" and pdh.closed == 1
    assert read_shared(99, FakePdh()) == {}
    missing = FakePdh(missing=True)
    assert read_shared(12, missing) == {} and missing.closed == 1
