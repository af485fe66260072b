"""Packages that only some files or settings need: who needs one that is not there says so, all else goes on without."""

from __future__ import annotations

import importlib
from types import ModuleType

from studio.core.errors import StudioError
from studio.core.i18n import text


def import_package(module: str, package: str) -> ModuleType:
    """Return `module`, which the distribution `package` brings. Raises StudioError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module != error.name and not module.startswith(f"{error.name}."):
            raise  # it is there, and lacks something itself
        what = text("package.missing", package=package)
        why = text("package.missing.why")
        raise StudioError(what, why, text("package.missing.fix", package=package)) from error
