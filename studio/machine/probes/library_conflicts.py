"""What hides PyTorch's own libraries or a package: folders of another CUDA, a local triton.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from studio.machine.probes.probe_context import PROGRAM, ProbeContext
from studio.machine.repairs import CUDA_LIBRARY_NAMES, WSL_LIBRARIES

MODULES = ("torch", "triton", "bitsandbytes", "transformers", "datasets", "numpy")
WINDOWS_LIBRARIES = ("cudnn", "cudart")


def look(here: ProbeContext) -> dict[str, Any]:
    """Return `shadows`: the entries of the library path as they stand there, and the files or folders."""
    windows = here.system == "Windows"
    names = WINDOWS_LIBRARIES if windows else CUDA_LIBRARY_NAMES
    entries = here.read("PATH" if windows else "LD_LIBRARY_PATH").split(os.pathsep)
    found = [entry for entry in entries if entry and entry != WSL_LIBRARIES and holds(entry, names, windows)]
    return {"shadows": tuple(dict.fromkeys([*found, *find_local_modules(here)]))}


def holds(folder: str, names: tuple[str, ...], windows: bool) -> bool:
    """Return whether `folder` holds a library whose file name begins with one of `names`."""
    try:
        with os.scandir(folder) as files:
            for file in files:
                name = file.name.lower() if windows else file.name
                library = name.endswith(".dll") if windows else ".so" in name
                if library and name.startswith(names):
                    return True
    except OSError:  # an entry that is not there, or may not be read
        return False
    return False


def find_local_modules(here: ProbeContext) -> list[str]:
    """Return what in the working folder, the program's or PYTHONPATH's bears the name of a library's package."""
    folders = [os.getcwd(), str(PROGRAM), *here.read("PYTHONPATH").split(os.pathsep)]
    found = []
    for folder in dict.fromkeys(os.path.abspath(folder) for folder in folders if folder):
        if os.path.basename(folder) in ("site-packages", "dist-packages"):
            continue
        for name in MODULES:
            module, package = Path(folder, f"{name}.py"), Path(folder, name)
            if module.is_file():
                found.append(str(module))
            elif (package / "__init__.py").is_file() and not any(Path(folder).glob(f"{name}-*.dist-info")):
                found.append(str(package))
    return found
