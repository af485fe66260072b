"""What the facts of a machine show before a run: each probe, what follows from what, and peace for what works."""

import re

import pytest

from studio.core.facts import (
    GuestFacts,
    Interpreter,
    Place,
    RuntimeLibrary,
    Tool,
    WindowsFacts,
)
from studio.core.i18n import load_catalogue
from studio.machine.failures import CATALOGUE, find_failures
from studio.machine.repairs import REPAIRS
from tests.machine.facts import PACKAGES, make_gpu, make_machine

WHOLE = {**PACKAGES, "transformers": "5.23.0", "peft": "0.21.2", "datasets": "5.2.0", "numpy": "2.3.5"}
WINDOWS = {key: value for key, value in WHOLE.items() if key != "triton"} | {"triton-windows": "3.7.1.post27"}
TURING = make_gpu(11, (7, 5), "RTX 2080 Ti")
OLD_RUNTIME = {
    name: RuntimeLibrary(path=rf"C:\conda\{name}", version="14.29.30153.0")
    for name in ("msvcp140.dll", "vcruntime140.dll", "vcruntime140_1.dll")
}


def linux(*gpus, **values):
    return make_machine(*(gpus or (make_gpu(),)), **({"packages": WHOLE} | values))


def windows(*gpus, **values):
    return linux(*gpus, **({"system": "Windows", "packages": WINDOWS, "triton_level": "importable"} | values))


def ids(machine):
    return [found.failure.id for found in find_failures(machine)]


FOUND = {
    "python_library": windows(environment={"CC": r"C:\mingw32\bin\gcc.exe"}),
    "compiler_override": windows(environment={"CC": r"C:\mingw32\bin"}, dead_overrides=("CC",)),
    "assembler_old": linux(
        triton_level="importable",
        environment={"TRITON_PTXAS_PATH": "/usr/local/cuda-10.2/bin/ptxas"},
        assemblers=(Tool(path="/usr/local/cuda-10.2/bin/ptxas", release="10.2"),),
    ),
    "libtriton": windows(triton_level="installed", windows=WindowsFacts(runtimes=OLD_RUNTIME)),
    "triton_wrong_package": windows(packages=WHOLE, triton_level="installed"),
    "triton_absent": linux(packages={**WHOLE, "triton": ""}, triton_level="absent"),
    "triton_pair": windows(packages=WINDOWS | {"triton-windows": "3.4.0.post21"}),
    "compiler_path": windows(places={"temp": Place(path=r"C:\Users\张三\Temp", ascii=False, ansi=False)}),
    "path_too_long": windows(places={"triton_cache": Place(path="C:\\...", length=140)}),
    "cuda_path": windows(environment={"cuda_path": r"C:\CUDA\v10.2"}),
    "system_assembler": windows(environment={"TRITON_USE_SYSTEM_PTXAS": "1"}),
    "no_compiler": windows(triton_in_platlib=False, triton_folder=r"C:\Users\me\AppData\Roaming\triton"),
    "foreign_cudnn": windows(shadows=(r"C:\Program Files\NVIDIA\CUDNN\v8.9\bin",), triton_level="right"),
    "triton_shadowed": linux(shadows=("/data/me/triton.py",)),
    "torch_cpu_build": linux(torch_cuda=""),
    "driver_old": linux(driver_cuda=(12, 4), driver="550.54"),
    "gpu_unsupported": linux(make_gpu(8, (6, 1), "GTX 1080"), triton_level="installed"),
    "gpu_too_new": linux(
        make_gpu(32, (12, 0), "RTX 5090"), torch_cuda="12.6", packages=WHOLE | {"torch": "2.6.0"}
    ),
    "mixed_gpus": linux(make_gpu(), make_gpu(8, (6, 1), "GTX 1080")),
    "gpu_hidden": linux(environment={"CUDA_VISIBLE_DEVICES": "-1"}),
    "driver_mismatch": linux(driver="580.65", driver_module="570.26"),
    "driver_silent": linux(driver_error="no answer within 10 s"),
    "visual_runtime": windows(
        packages=WINDOWS | {"torch": "2.14.1+cu130", "triton-windows": "3.8.0.post29"},
        windows=WindowsFacts(runtimes={k: RuntimeLibrary(path=k, version="14.44.1") for k in OLD_RUNTIME}),
        triton_level="right",
    ),
    "cuda_library": linux(shadows=("/usr/local/cuda-11.8/lib64",), triton_level="installed"),
    "pynvml_old": linux(owners={"pynvml": ("nvidia-ml-py", "pynvml")}),
    "bitsandbytes_override": linux(environment={"BNB_CUDA_VERSION": "118"}),
    "wsl_no_gpu": linux(wsl=True, guest=GuestFacts(version=1, distribution="Ubuntu", dxg=False)),
    "libcuda_missing": linux(wsl=True, guest=GuestFacts(linux_driver=True, libcuda="/usr/lib/libcuda.so.1")),
    "wsl_slow_mount": linux(places={"model_cache": Place(path="/mnt/c/models", filesystem="9p")}),
    "python_32bit": windows(interpreter=Interpreter(bits=32), triton_level="right"),
    "python_unsuited": linux(python="3.15.0"),
    "python_3138": linux(python="3.13.8"),
    "torch_absent": linux(packages={k: v for k, v in WHOLE.items() if k != "torch"}),
    "package_missing": linux(packages=PACKAGES),
    "offline": linux(environment={"HF_HUB_OFFLINE": "1"}),
    "hub_unreachable": linux(hub="ConnectError", hub_endpoint="https://hub.example"),
    "window_proxied": linux(environment={"https_proxy": "http://user:secret@proxy:3128"}),
    "disk_full": linux(places={"workspace": Place(path="/data", free_bytes=2**30)}),
    "permission": linux(places={"workspace": Place(path="/data", writable=False)}),
    "paging_file": windows(
        windows=WindowsFacts(commit_limit_bytes=16 * 2**30, commit_free_bytes=2**30), triton_level="right"
    ),
    "shared_memory": linux(container=True, shm_bytes=64 * 2**20),
}


@pytest.mark.parametrize("id", FOUND)
def test_facts_show_it(id):
    found = {found.failure.id: found for found in find_failures(FOUND[id])}
    assert id in found
    evidence = str(found[id].values["evidence"])
    assert evidence and "\n" not in evidence and "secret" not in evidence
    for language in ("en", "zh-CN"):
        catalogue, diagnosis = load_catalogue(language), found[id].diagnose()
        for words in (diagnosis.what, diagnosis.why, *(fix.title for fix in diagnosis.fixes)):
            assert catalogue.has(words.id) and "{" not in catalogue.say(words)


@pytest.mark.parametrize(
    "machine",
    [
        linux(),
        linux(make_gpu(141, (9, 0), "H200")),
        linux(TURING),
        windows(triton_level="right", windows=WindowsFacts(long_paths=True)),
        make_machine(packages=WHOLE | {"torch": "2.13.0+cpu"}),
        make_machine(system="Darwin", packages={**WHOLE, "triton": ""}, bitsandbytes_error="not installed"),
    ],
)
def test_a_healthy_machine_has_nothing(machine):
    assert ids(machine) == []


@pytest.mark.parametrize("gpu", [TURING, make_gpu(12, (8, 6), "RTX 3060")])
@pytest.mark.parametrize("system", ["Windows", "Linux"])
def test_an_older_setup_that_works_is_left_in_peace(gpu, system):
    """CUDA 12.4, Triton 3.1, with every override that would otherwise be suspicious."""
    name = "triton-windows" if system == "Windows" else "triton"
    packages = {key: value for key, value in WHOLE.items() if key != "triton"}
    machine = make_machine(
        gpu,
        system=system,
        packages=packages | {"torch": "2.5.1+cu124", name: "3.1.0"},
        torch_cuda="12.4",
        driver_cuda=(12, 4),
        triton_level="right",
        environment={
            "CC": "gcc",
            "CUDA_PATH": r"C:\CUDA\v12.4",
            "TRITON_PTXAS_PATH": "/usr/local/cuda-10.2/bin/ptxas",
            "TRITON_USE_SYSTEM_PTXAS": "1",
        },
        windows=WindowsFacts(runtimes=OLD_RUNTIME) if system == "Windows" else None,
        triton_error="an older answer: Unsupported .version 8.4",
    )
    assert ids(machine) == []


@pytest.mark.parametrize(
    ("error", "id"),
    [
        (
            "PTXASError: PTXAS error\nptxas fatal   : Unsupported .version 8.4; current version is '6.5'",
            "assembler_old",
        ),
        (
            "ImportError: DLL load failed while importing libtriton: 动态链接库(DLL)初始化例程失败。",
            "libtriton",
        ),
        ("RuntimeError: Failed to find C compiler.", "no_compiler"),
        ("It did not answer within 60 s.", "kernel_compile"),
        ("PermissionError: [WinError 5] Access is denied", "kernel_compile"),
    ],
)
def test_what_triton_said_counts(error, id):
    assert ids(linux(triton_level="importable", triton_error=error)) == [id]


def test_what_follows_is_left_out():
    said = "subprocess.CalledProcessError: Command '['gcc.exe']' returned non-zero exit status 1."
    assert ids(windows(environment={"CC": r"C:\mingw\gcc.exe"}, triton_error=said)) == ["python_library"]
    assert ids(linux(torch_error="It did not answer within 60 s.")) == ["torch_fails"]
    hung = linux(
        make_gpu().__class__(name="Arc", vram_bytes=1, capability=(0, 0), vendor="intel"),
        torch_error="It did not answer within 60 s.",
        torch_cuda="",
        torch_xpu=True,
    )
    assert ids(hung) == ["intel_hang"]
    assert ids(linux(bitsandbytes_error="OSError: libx.so: no")) == ["bitsandbytes_library"]
    assert ids(make_machine(packages=WHOLE, bitsandbytes_error="bitsandbytes is not installed.")) == []


def test_the_worst_comes_first():
    machine = linux(python="3.15.0", environment={"HF_HUB_OFFLINE": "1", "BNB_CUDA_VERSION": "118"})
    assert ids(machine) == ["python_unsuited", "bitsandbytes_override", "offline"]


def test_every_entry_is_named_once_and_its_repair_exists():
    codes = [entry.code for entry in CATALOGUE]
    assert len(set(codes)) == len(codes) >= 100 and all(codes)
    assert {entry.repair for entry in CATALOGUE} - {""} <= {repair.name for repair in REPAIRS}
    founding = {"S1", "S1b", "S1c", "S2", "S2a", "S2b", "S2c", "S3", "S4", "S5", "S6", "S7"}
    assert founding <= set(codes)
    asked = {"foreign_cudnn", "system_assembler", "token_range", "positions_exceeded"}
    assert asked <= {entry.id for entry in CATALOGUE}


def test_what_is_not_confirmed_is_told_as_likely():
    english, chinese = load_catalogue("en"), load_catalogue("zh-CN")
    for id in ("kernel_toolchain", "security_policy"):
        assert re.search(r"\blikely\b", english.words[f"failure.{id}.why"], re.IGNORECASE)
        assert "很可能" in chinese.words[f"failure.{id}.why"]
