"""Wheels of a tiny package, made on the spot."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, version: str, requires: str = "", name: str = "tiny", files: dict | None = None
) -> None:
    """Write a wheel of the package `name` into `folder`; `files` are its modules, NAME.py with the version without."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = dict(files or {f"{name}.py": f"version = {version!r}\n"})
    contents |= {
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, words in contents.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(words.encode()).digest()).decode().rstrip("=")
            record += f"{path},sha256={digest},{len(words.encode())}\n"
            wheel.writestr(path, words)
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
