"""Which packages are installed, who owns them and what torch was built for, read as text: nothing is imported."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studio.machine.probes.probe_context import ProbeContext

PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
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
    "triton-xpu",
    "nvidia-ml-py",
    "pynvml",
    "numpy",
    "gradio",
    "kernels",
    "flash-attn",
    "xformers",
    "deepspeed",
    "liger-kernel",
    "setuptools",
)
OWNERS = {
    "torch": ("torch",),
    "triton": (
        "triton",
        "triton-windows",
        "triton-xpu",
        "pytorch-triton",
        "pytorch-triton-xpu",
        "pytorch-triton-rocm",
    ),
    "pynvml": ("nvidia-ml-py", "pynvml", "nvidia-ml-py3"),
}
"""Import package -> the distributions that are known to bring it."""
TRITON_NAMES = OWNERS["triton"]


def look(here: ProbeContext) -> dict[str, Any]:
    """Return packages, owners, the builds of torch and bitsandbytes, and where Triton lies."""
    packages = find_packages()
    torch = read_torch_build()
    folder = find_package("triton")
    platlib = sysconfig.get_path("platlib")
    libraries = find_package("bitsandbytes")
    return {
        "packages": packages,
        "owners": {name: owners for name in OWNERS if (owners := find_owners(name))},
        "torch_cuda": torch.get("cuda", ""),
        "torch_hip": torch.get("hip", ""),
        "torch_xpu": bool(torch.get("xpu", "")),
        "triton_level": "installed" if set(TRITON_NAMES) & set(packages) or folder else "absent",
        "triton_folder": str(folder) if folder else "",
        "triton_in_platlib": folder is None or os.path.realpath(folder.parent) == os.path.realpath(platlib),
        "bitsandbytes_error": "" if "bitsandbytes" in packages else "bitsandbytes is not installed.",
        "bitsandbytes_libraries": tuple(
            sorted(
                file.name
                for file in (libraries.glob("libbitsandbytes_*") if libraries else ())
                if file.suffix in (".so", ".dll", ".dylib")
            )
        ),
    }


def find_packages(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return distribution name -> version of those of `names` that are installed."""
    found = {}
    for name in names:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = version or ""  # None where an interrupted installation left an empty folder
    return found


def find_owners(package: str) -> tuple[str, ...]:
    """Return the distributions that own files of the import package; one that only depends on the owner is none."""
    present = []
    for name in OWNERS[package]:
        try:
            present.append(importlib.metadata.distribution(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    if len(present) > 1:  # reading the lists of files takes milliseconds
        files = (f"{package}.py", f"{package}/__init__.py")
        present = [d for d in present if any(str(file).replace("\\", "/") in files for file in d.files or ())]
    found = [d.metadata["Name"] or "" for d in present]
    conda = sorted(Path(sys.prefix, "conda-meta").glob("pytorch-[0-9]*.json")) if package == "torch" else []
    return (*found, *("conda:" + path.stem for path in conda))


def find_package(name: str) -> Path | None:
    """Return the folder of an installed package without importing it, also where this process has hidden it."""
    spec = importlib.machinery.PathFinder.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def read_torch_build(version_file: Path | None = None) -> dict[str, str]:
    """Return what torch/version.py says of cuda, hip and xpu, read as text; what is None there is left out."""
    if version_file is None:
        folder = find_package("torch")
        if folder is None:
            return {}
        version_file = folder / "version.py"
    if not version_file.is_file():
        return {}
    lines = version_file.read_text(encoding="utf-8")
    found = re.findall(r"^(cuda|hip|xpu)(?:\s*:[^=]+)?\s*=\s*(.+)$", lines, re.MULTILINE)
    values = {name: ast.literal_eval(value.strip()) for name, value in found}
    return {name: str(value) for name, value in values.items() if value}
