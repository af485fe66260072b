"""Run in a child process: how far Triton gets without running a kernel.

    python -m studio.machine.probes.triton_levels [--helper] cuda:80 hip:gfx1100 ...

Hands over each level as it is reached: importable, then compiles (for the targets named; no GPU is needed for that).
With --helper the C module by which Triton launches kernels is built and loaded too, which needs a driver; with
--torch PyTorch is imported first.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from studio.machine.probes.child import hand_over


def main(arguments: list[str]) -> int:
    """Raise the first error of importing, compiling, building the helper; each as Triton words it."""
    if "--torch" in arguments:
        import torch  # noqa: F401  # on Windows AMD's libraries are found only through it
    try:
        import triton
    except ImportError as error:
        number = read_load_error() if os.name == "nt" else ""
        if number:
            raise ImportError(f"{error} {number}") from error
        raise
    hand_over(triton_level="importable")
    targets = [word for word in arguments if not word.startswith("--")]
    hand_over(triton_compiler=find_compiler(Path(triton.__file__).parent))
    hand_over(triton_assembler=find_assembler(targets))
    from studio_kernels.self_compile import compile_for

    for target in targets:
        compile_for(target)
    hand_over(triton_level="compiles")
    if "--helper" in arguments and any(target.startswith("cuda:") for target in targets):
        from triton.backends.nvidia.driver import CudaUtils

        utilities = CudaUtils()  # the build comes first: where it fails, that is what is to be told
        # The helper asks the driver at once; in a run PyTorch has opened it by then (error 3 on an H200 without).
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuInit(0)
        utilities.get_device_properties(0)
    return 0


def find_compiler(folder: Path, *, windows: bool = os.name == "nt") -> str:
    """Return the C compiler that Triton takes: CC, on Windows Visual Studio's in its prompt, TinyCC; "" for none."""
    chosen = os.environ.get("CC")
    if chosen:
        return chosen
    if windows:
        own = folder / "runtime" / "tcc" / "tcc.exe"
        visual = shutil.which("cl") if os.environ.get("VCINSTALLDIR") else None
        return visual or (str(own) if own.is_file() else shutil.which("cl") or shutil.which("gcc") or "")
    return shutil.which("gcc") or shutil.which("clang") or ""


def find_assembler(targets: list[str]) -> dict[str, str] | None:
    """Return path and release of the ptxas that Triton takes for the first of `targets`; None for AMD."""
    numbers = [int(target[5:]) for target in targets if target.startswith("cuda:")]
    if not numbers:
        return None
    from triton import knobs  # since Triton 3.3

    tool: Any = knobs.nvidia.ptxas
    if numbers[0] >= 100 and hasattr(knobs.nvidia, "ptxas_blackwell"):
        tool = knobs.nvidia.ptxas_blackwell
    return {"path": str(tool.path), "release": str(tool.version)}


def read_load_error() -> str:
    """Return `WinError n: ...` of loading Triton's library by itself: an ImportError does not tell the number."""
    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent / "_C" if spec and spec.origin else None
    for library in sorted(folder.glob("libtriton*.pyd")) if folder else ():
        try:
            ctypes.WinDLL(str(library))
        except OSError as error:
            return f"[WinError {error.winerror}] {error.strerror}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
