"""The Python that runs the studio: where it comes from, and what a C compiler would find of it."""

from __future__ import annotations

import locale
import sys
import sysconfig
from pathlib import Path
from typing import Any

from studio.core.facts import Interpreter
from studio.machine.probes.probe_context import ProbeContext


def look(here: ProbeContext) -> dict[str, Any]:
    """Return the interpreter."""
    windows = here.system == "Windows"
    base = Path(sys.base_exec_prefix)
    include = sysconfig.get_path("include") or ""
    library = f"python{sys.version_info.major}{sys.version_info.minor}.lib"
    gil = getattr(sys, "_is_gil_enabled", lambda: True)
    encodings = {locale.getpreferredencoding(False).lower().replace("-", ""), "utf8"}
    interpreter = Interpreter(
        executable=sys.executable or "",
        implementation={"cpython": "CPython", "pypy": "PyPy"}.get(
            sys.implementation.name, sys.implementation.name
        ),
        bits=64 if sys.maxsize > 2**32 else 32,
        gil=bool(gil()),
        kind=name_kind(base, getattr(sys, "_base_executable", sys.executable) or ""),
        banner=sys.version,
        headers=Path(include, "Python.h").is_file(),
        import_library=not windows
        or any((Path(p) / "libs" / library).is_file() for p in (base, sys.exec_prefix)),
        utf8=bool(sys.flags.utf8_mode) or len(encodings) == 1,
    )
    return {"interpreter": interpreter}


def name_kind(base: Path, executable: str) -> str:
    """Return regular, conda, store or embedded for the Python installed in the folder `base`."""
    if (base / "conda-meta").is_dir():
        return "conda"
    if "WindowsApps" in executable or "PythonSoftwareFoundation.Python" in executable:
        return "store"
    # The embeddable package for Windows fixes its search path in such a file.
    if any(base.glob("python3*._pth")):
        return "embedded"
    return "regular"
