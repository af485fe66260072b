"""Collects MachineFacts without importing torch here: what could hang or crash runs in a child with a time limit."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from studio.core.facts import MachineFacts
from studio.host.nvml import read_gpus

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
    "huggingface_hub",
    "safetensors",
    "bitsandbytes",
    "triton",
    "triton-windows",
    "nvidia-ml-py",
    "numpy",
    "gradio",
    "kernels",
)
# bitsandbytes defers a failed load of its native library until first use, so an import proves nothing.
QUANTIZE_ON_GPU = """
import torch
from bitsandbytes import functional
weights = torch.randn(64, 64, device="cuda", dtype=torch.float16)
packed, state = functional.quantize_4bit(weights, quant_type="nf4")
error = (functional.dequantize_4bit(packed, state) - weights).abs().mean().item()
raise SystemExit(0 if error < 0.2 else f"The 4-bit round trip is wrong by {error:.3f} on average.")
"""
# Without a GPU only its CPU library matters, and loading that needs no torch: 0.1 s instead of 5 s.
LOAD_ON_CPU = """
import ctypes, importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("bitsandbytes").origin).parent
libraries = [path for path in folder.glob("libbitsandbytes_cpu.*") if path.suffix in (".so", ".dll", ".dylib")]
if not libraries:
    raise SystemExit("bitsandbytes has no library for this processor.")
ctypes.CDLL(str(libraries[0]))
"""


def detect(timeout_s: float = 60.0) -> MachineFacts:
    """Return the facts of this machine; each probe of a native library is given `timeout_s` and its failure is a fact.

    `gpus` are in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID, without those that CUDA_VISIBLE_DEVICES hides.
    Takes about 0.2 s without a GPU, up to `timeout_s` with one: the caller keeps the result.
    """
    packages = find_packages()
    gpus, driver_cuda = read_gpus()
    torch_cuda = read_torch_cuda()
    on_gpu = bool(gpus and torch_cuda)
    with ThreadPoolExecutor(max_workers=2) as pool:
        triton = pool.submit(_probe_triton, packages, on_gpu, timeout_s)
        bitsandbytes = pool.submit(_probe_bitsandbytes, packages, on_gpu, timeout_s)
    level, triton_error = triton.result()
    return MachineFacts(
        system=platform.system(),
        wsl=_is_wsl(),
        python=platform.python_version(),
        cores=count_cores(),
        ram_bytes=read_ram_bytes(),
        packages=packages,
        gpus=gpus,
        driver_cuda=driver_cuda,
        torch_cuda=torch_cuda,
        triton_level=level,
        triton_error=triton_error,
        bitsandbytes_error=bitsandbytes.result(),
    )


def find_packages(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return distribution name -> version of those of `names` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read_torch_cuda(version_file: Path | None = None) -> str:
    """Return the CUDA version that torch was built for, from torch/version.py as text; "" for a CPU build or none."""
    if version_file is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return ""
        version_file = Path(spec.origin).parent / "version.py"
    if not version_file.is_file():
        return ""
    found = re.search(
        r"^cuda(?:\s*:[^=]+)?\s*=\s*(.+)$", version_file.read_text(encoding="utf-8"), re.MULTILINE
    )
    return str(ast.literal_eval(found.group(1).strip()) or "") if found else ""


def count_cores() -> int:
    """Return the processors that this process may use: its affinity, and a container's quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read_words(Path("/sys/fs/cgroup/cpu.max"))
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        cores = min(cores, max(1, -(-int(quota[0]) // int(quota[1]))))
    return cores


def read_ram_bytes() -> int:
    """Return the memory of the machine, or of the container where that is less."""
    import psutil

    total = psutil.virtual_memory().total
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _read_words(Path(path))
        if limit and limit[0].isdigit():
            total = min(total, int(limit[0]))
    return total


def run_probe(code: str, timeout_s: float) -> str:
    """Run Python `code` in a child process; return "" when it ends well, else the last line that it said."""
    # A file and not a pipe: a compiler left behind by a killed child would keep a pipe open on Windows.
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            exit_code = child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return f"It did not answer within {timeout_s:g} s."
        log.seek(0)
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if exit_code == 0:
        return ""
    return lines[-1] if lines else f"It ended with exit code {exit_code}."


def _probe_triton(packages: Mapping[str, str], on_gpu: bool, timeout_s: float) -> tuple[str, str]:
    if "triton" not in packages and "triton-windows" not in packages:
        return "absent", ""
    if not on_gpu:
        return "installed", ""
    from studio_kernels import probe

    verdict = probe(timeout_s=timeout_s)
    if verdict.ok:
        return "right", ""
    imported = not run_probe("import triton", timeout_s)
    return "importable" if imported else "installed", verdict.reason


def _probe_bitsandbytes(packages: Mapping[str, str], on_gpu: bool, timeout_s: float) -> str:
    if "bitsandbytes" not in packages:
        return "bitsandbytes is not installed."
    return run_probe(QUANTIZE_ON_GPU if on_gpu else LOAD_ON_CPU, timeout_s)


def _is_wsl() -> bool:
    return "microsoft" in " ".join(_read_words(Path("/proc/version"))).lower()


def _read_words(path: Path) -> list[str]:
    """Return the words of a small system file, none where it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
