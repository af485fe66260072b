"""Imports Gradio without its writing of type stubs: that took half of the window's start, 1.0 of 2.3 s.

At every import Gradio parses the source of each of its 81 components twice and compares it with a `.pyi` file beside,
for the editors of programmers. Here it finds nothing to do, and leaves its folder as pip made it. The function is left
out while Gradio's own module is loaded; where a later Gradio has none of that name, it is imported as it is.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

MODULE = "gradio.component_meta"
WRITER = "create_or_modify_pyi"


def import_gradio() -> None:
    """Import Gradio; later imports of it find it loaded."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("gradio")
    finally:
        sys.meta_path.remove(finder)


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
