"""Which build of PyTorch this machine needs, from its drivers and graphics cards; run as a file it prints the facts.

Standard library only, imports nothing of studio, parses and runs on Python 3.8: it works before .venv exists.
Floors and architectures are those of torch 2.13: cu126 has code for compute capability 5.0 to 9.0, cu129 and cu130 for
7.5 to 12.0; CUDA 13 needs a driver of branch 580 or newer, which reports CUDA 13.0.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
import urllib.request

WHEELS = "https://download.pytorch.org/whl"
ANSWER_S = 5.0
ROCM_BUILDS = ("rocm7.2", "rocm7.1", "rocm7.0", "rocm6.4")
# First two digits of the device ids of Intel's Arc cards and of the processors whose graphics run the XPU build.
INTEL_DEVICES = ("56", "e2", "7d", "64", "b0")
MAJOR_ATTRIBUTE, MINOR_ATTRIBUTE = 75, 76  # of cuDeviceGetAttribute


def choose_builds(facts):
    """Return the names of PyTorch's builds that suit `facts`, best first; () for the default index's own.

    `facts`: system ("Linux", "Windows", "Darwin"), cuda_driver (13000 for CUDA 13.0, 0 without NVIDIA),
    capabilities ([[9, 0], ...] of the NVIDIA cards, maybe empty), amd, intel (bools).
    """
    if facts["cuda_driver"]:
        return _cuda_builds(facts["cuda_driver"], [tuple(pair) for pair in facts["capabilities"]])
    if facts["system"] == "Darwin":
        return ()
    if facts["amd"] and facts["system"] == "Linux":
        return ROCM_BUILDS
    return ("xpu",) if facts["intel"] else ("cpu",)


def _cuda_builds(driver, capabilities):
    oldest = min(capabilities, default=(8, 0))
    newest = max(capabilities, default=(8, 0))
    builds = []
    if oldest >= (7, 5):
        builds += ["cu130"] if driver >= 13000 else []
        builds += ["cu129"] if driver >= 12080 else []
    if driver >= 12000 and newest < (10, 0):
        builds.append("cu126")
    return tuple(builds) or ("cpu",)


def read_pin(root):
    """Return the version of torch in ROOT/constraints.txt, "" for none."""
    with open(os.path.join(str(root), "constraints.txt"), encoding="utf-8") as file:
        pin = re.search(r"^torch==([\w.]+)", file.read(), re.M)
    return pin.group(1) if pin else ""


def choose_arguments(python, version, offline):
    """Return [(build, pip's arguments)] for torch `version` on this machine, best first, for a .venv's `python`.

    The last one takes what pip's own servers have. PyTorch's are asked only when pip is not `offline`.
    """
    builds = choose_builds(read_facts(python))
    tag = subprocess.check_output([python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"])
    offered = "" if offline else find_offered(builds, version, tag.decode().strip())
    plain = ("PyPI", ["torch==" + version])
    if offered:
        index = f"{WHEELS}/{offered}"
        return [(offered, [f"torch=={version}+{offered}", "--extra-index-url", index]), plain]
    # pip's own configuration may offer the build by name, and a CPU build saves gigabytes of CUDA libraries.
    return [(build, [f"torch=={version}+{build}"]) for build in builds[:1]] + [plain]


def is_wrong(folder, python):
    """Return whether the .venv `folder` has a CPU edition of torch though this machine's NVIDIA card runs another.

    The name of the package does not tell: PyPI's for Windows are CPU editions without a label.
    """
    files = glob.glob(
        os.path.join(glob.escape(str(folder)), "lib", "python*", "site-packages", "torch", "version.py")
    )
    files.append(os.path.join(str(folder), "Lib", "site-packages", "torch", "version.py"))
    for name in filter(os.path.exists, files):
        with open(name, encoding="utf-8") as file:
            is_cpu = re.search(r"^cuda\b[^=\n]*=\s*None\b", file.read(), re.M) is not None
        builds = choose_builds(read_facts(str(python))) if is_cpu else ()
        return any(build.startswith("cu") for build in builds)
    return False


def find_offered(builds, version, tag, wheels=WHEELS):
    """Return the first of `builds` whose index lists torch `version` for the Python `tag` ("cp311"); "" for none.

    Gives up after ANSWER_S in all: without that, a blocked site would hold up every installation for minutes.
    """
    answers, ends_s = {}, time.monotonic() + ANSWER_S

    def ask():
        for build in builds:
            if time.monotonic() >= ends_s:  # nobody waits any more
                return
            try:
                with urllib.request.urlopen(f"{wheels}/{build}/torch/", timeout=ANSWER_S) as page:
                    text = page.read().decode("utf-8", "replace")
            except OSError:
                continue
            local = "%2B" + build
            if f"torch-{version}{local}-{tag}" in text or f"torch-{version}+{build}-{tag}" in text:
                answers["first"] = build
                return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return answers.get("first", "")


def read_facts(python):
    """Return the facts of this machine, collected by a child of `python`: a broken driver can only end that."""
    plain = {"system": platform.system(), "cuda_driver": 0, "capabilities": [], "amd": False, "intel": False}
    try:
        answer = subprocess.run(
            [python, os.path.abspath(__file__)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=15
        )
        return json.loads(answer.stdout.decode("utf-8"))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return plain


def collect_facts():
    """Return the facts of this machine, asking the drivers in this process."""
    driver, capabilities = _ask_cuda()
    return {
        "system": platform.system(),
        "cuda_driver": driver,
        "capabilities": capabilities,
        "amd": os.path.exists("/dev/kfd"),
        "intel": _has_intel_windows() if os.name == "nt" else _has_intel_linux(),
    }


def _ask_cuda():
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return 0, []
    number = ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return 0, []
    driver, capabilities = number.value, []
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(number)) == 0:
        for index in range(number.value):
            pair = []
            for attribute in (MAJOR_ATTRIBUTE, MINOR_ATTRIBUTE):
                value = ctypes.c_int(0)
                if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, index) == 0:
                    pair.append(value.value)
            if len(pair) == 2:
                capabilities.append(pair)
    return driver, capabilities


def _has_intel_linux():
    for vendor in glob.glob("/sys/class/drm/card*/device/vendor"):
        try:
            with open(vendor, encoding="ascii") as file:
                maker = file.read().strip()
            with open(os.path.join(os.path.dirname(vendor), "device"), encoding="ascii") as file:
                device = file.read().strip()
        except (OSError, ValueError):
            continue
        if maker == "0x8086" and device[2:4].lower() in INTEL_DEVICES:
            return True
    return False


def _has_intel_windows():
    import winreg

    adapters = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
    for index in range(16):
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, f"{adapters}\\{index:04d}") as key:
                name = str(winreg.QueryValueEx(key, "DriverDesc")[0])
        except OSError:
            continue
        if "intel" in name.lower() and "arc" in name.lower():
            return True
    return False


if __name__ == "__main__":
    json.dump(collect_facts(), sys.stdout)
