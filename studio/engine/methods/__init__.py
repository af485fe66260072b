"""The training methods, one file each; adding one is its file and its line in METHODS."""

from __future__ import annotations

from studio.engine.methods.method import Method
from studio.engine.methods.pretrain import PRETRAIN
from studio.engine.methods.sft import SFT

METHODS: tuple[Method, ...] = (SFT, PRETRAIN)


def get_method(name: str) -> Method:
    """Return the method called `name`. Raises KeyError for an unknown name (check() refuses it before)."""
    return {method.name: method for method in METHODS}[name]
