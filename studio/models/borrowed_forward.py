"""The `forward` of a transformers class with other functions under the names that it calls: nothing is patched.

Neither the module nor its class nor its file is changed; the borrowed code is called with the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from torch import nn

Function = Callable[..., Any]


def find_function(module: nn.Module, name: str, arguments: Sequence[str]) -> Function | None:
    """Return the function that the code of `module` calls by this name, None where its first `arguments` are others."""
    forward = inspect.unwrap(type(module).forward)
    function = getattr(forward, "__globals__", {}).get(name)
    if function is None or name not in forward.__code__.co_names:
        return None
    first = tuple(inspect.signature(function).parameters)[: len(arguments)]
    return function if first == tuple(arguments) else None


def borrow(module: nn.Module, functions: Mapping[str, Function]) -> Function:
    """Return the `forward` of `module`'s class that calls `functions` by their names."""
    stock = inspect.unwrap(type(module).forward)
    names = stock.__globals__ | functions
    borrowed = FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    borrowed.__kwdefaults__ = stock.__kwdefaults__
    return borrowed
