"""Binds each op to one implementation, once per run: the result holds plain callables, nothing is chosen per call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studio_kernels._triton import ERRORS, importable
from studio_kernels.rms_norm import RMS_NORM
from studio_kernels.support import Op, Support
from studio_kernels.swiglu import SWIGLU

__all__ = ["ERRORS", "IMPLEMENTATIONS", "OPS", "Kernels", "Support", "bind", "importable", "op_named"]

OPS: tuple[Op, ...] = (RMS_NORM, SWIGLU)
IMPLEMENTATIONS = ("reference", "triton")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The ops of one run: one callable an op, under the op's name."""

    rms_norm: Callable
    """(x, weight, eps, offset, order) -> y, see `studio_kernels.rms_norm.reference`."""
    swiglu: Callable
    """(gate, up) -> h, see `studio_kernels.swiglu.reference`."""
    implementations: Mapping[str, str]
    """Op name -> "reference" or "triton", for every op."""


def op_named(name: str) -> Op:
    """The op of that name.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    for op in OPS:
        if op.name == name:
            return op
    raise ValueError(f"There is no op {name!r}; there are {', '.join(op.name for op in OPS)}.")


def bind(choices: Mapping[str, str]) -> Kernels:
    """The callables that `choices` (op name -> implementation) name; ops left out take the reference.

    Raises:
        ValueError: an op or an implementation is unknown, or "triton" is chosen where Triton cannot be imported.
    """
    implementations = {op.name: "reference" for op in OPS}
    for name, implementation in choices.items():
        op_named(name)
        if implementation not in IMPLEMENTATIONS:
            known = " and ".join(IMPLEMENTATIONS)
            raise ValueError(f"{name} has no implementation {implementation!r}; it has {known}.")
        if implementation == "triton" and not importable().ok:
            raise ValueError(f"{name} cannot use Triton. {importable().reason}")
        implementations[name] = implementation
    callables = {op.name: getattr(op, implementations[op.name]) for op in OPS}
    return Kernels(**callables, implementations=implementations)
