"""The judge of every kernel: each output and gradient of an op's sample against float64, beside the error of its twin.

An op's cases stand in `tests/kernels/cases_<op>.py`: `CASES` for the interpreter and a GPU, `LARGE` for a GPU alone,
and `COMPILE` and `EDGES` for test_compile.py and test_compile_edges.py; each is a tuple of options of the op's
`sample`, dtypes by their names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from studio_kernels.dispatch import OPS
from studio_kernels.op import Implementation, Op


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sample of one op."""

    op: str
    options: Mapping[str, Any]

    @property
    def id(self) -> str:
        """A readable test id, the same in every process."""
        size = "x".join(str(self.options[name]) for name in ("rows", "width") if name in self.options)
        rest = [
            value if isinstance(value, str) else f"{name}={value}"
            for name, value in self.options.items()
            if name not in ("rows", "width")
        ]
        return "-".join([self.op, size, *rest])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far the kernel is from float64 in one output or gradient, and how far it may be."""

    quantity: str
    error: float
    twin_error: float
    limit: float
    dtype: str
    expected_dtype: str

    @property
    def ok(self) -> bool:
        """False for NaN too."""
        return self.error <= self.limit and self.dtype == self.expected_dtype


def options_of(op: str, kind: str) -> tuple[Mapping[str, Any], ...]:
    """What `kind` (CASES, LARGE, COMPILE or EDGES) of the op's cases file holds."""
    return tuple(getattr(importlib.import_module(f"tests.kernels.cases_{op}"), kind))


def cases(*kinds: str) -> list[Case]:
    """Every op's cases of these kinds."""
    return [
        Case(op=op.name, options=given) for op in OPS for kind in kinds for given in options_of(op.name, kind)
    ]


def read(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with dtypes in the place of their names."""
    return {
        k: getattr(torch, v) if k.endswith("dtype") and isinstance(v, str) else v for k, v in options.items()
    }


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Inside, new memory holds NaN (whole numbers: the largest), so that what a kernel forgets to write shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def measure(
    op: Op,
    options: Mapping[str, Any],
    device: str,
    *,
    ours: Implementation | None = None,
    truncated: bool = False,
) -> Iterator[Comparison]:
    """Run kernel, twin and a float64 twin on the same rounded inputs; yields one Comparison a quantity.

    The limit is 1.25 times the twin's error plus 4 units in the last place of the largest value; with `truncated`
    (Triton's interpreter, whose bfloat16 stores truncate) 2 times the error plus 6 units of the sample's own dtype,
    since what is computed from a truncated intermediate is off by as much.
    """
    given = read(options) | {"device": device}
    oracle = op.sample(**given, wide=True)(op.reference)
    run = op.sample(**given)
    theirs = run(op.reference)
    with filled_with_nan():
        mine = run(ours or op.triton)
    assert mine.keys() == theirs.keys() == oracle.keys()
    for name, exact in oracle.items():
        kind = theirs[name].dtype
        coarse = given["dtype"] if truncated and given["dtype"].itemsize < kind.itemsize else kind
        eps = torch.finfo(coarse).eps if kind.is_floating_point else 0.0
        exact = exact.double()
        twin_error, error = (
            (result.double() - exact).abs().max().item() if exact.numel() else 0.0
            for result in (theirs[name], mine[name])
        )
        largest = exact.abs().max().item() if exact.numel() else 0.0
        share, units = (2.0, 6) if truncated else (1.25, 4)
        yield Comparison(
            quantity=name,
            error=error,
            twin_error=twin_error,
            limit=share * twin_error + units * eps * largest,
            dtype=str(mine[name].dtype),
            expected_dtype=str(kind),
        )
