"""Imports Gradio without two things that the window's start would wait for and nobody needs.

At every import Gradio parses the source of each of its 81 components twice and compares it with a `.pyi` file beside,
for the editors of programmers: that took 1.0 of 2.3 s. Here it finds nothing to do, and leaves its folder as pip made
it. The function is left out while Gradio's own module is loaded; where a later Gradio has none of that name, it is
imported as it is. And it imports pandas, for tables that the window does not show: 0.3 s. That is put off until
somebody uses it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MODULE = "gradio.component_meta"
WRITER = "create_or_modify_pyi"
TABLES = "pandas"
TELLING = ("__path__", "__version__")
"""What is asked of a module by who wants the module itself; other names with underscores are asked of every one."""


def import_gradio() -> None:
    """Import Gradio; later imports of it find it loaded."""
    put_off(TABLES)
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("gradio")
    finally:
        sys.meta_path.remove(finder)


def put_off(name: str) -> None:
    """Let the package `name` be loaded when something of it is used first; an `import` alone loads nothing."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is not None:
        module = _Later(name)
        module.__spec__ = spec
        sys.modules[name] = module


class _Later(ModuleType):
    """Stands for a package that is not loaded yet. (importlib's LazyLoader loads at the second `import`.)"""

    _taking = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in TELLING:
            raise AttributeError(name)
        with _Later._taking:  # held for no import: those have locks of their own
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        loaded = importlib.import_module(self.__name__)
        vars(self).update(vars(loaded))
        return getattr(loaded, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds MODULE where Python does, with a loader of ours."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads MODULE; the classes made with it afterwards find a writer that does nothing."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if WRITER in vars(module):
            vars(module)[WRITER] = lambda *_: None
