"""What the ops launch, noted on a machine without a card and compiled for any of them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import triton
from studio_kernels.dispatch import OPS
from studio_kernels.op import Op
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

TARGETS = {
    **{f"sm_{n}": GPUTarget("cuda", n, 32) for n in (70, 75, 80, 86, 89, 90, 100, 120)},
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx1100": GPUTarget("hip", "gfx1100", 32),
}
SHARED_BYTES = {
    "sm_70": 96 << 10,
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
    "gfx942": 64 << 10,
    "gfx1100": 64 << 10,
}
"""Most shared memory of one block."""
FAST, FAST_WITH_DOTS = "sm_75", "sm_120"
"""Compiled for each time, but for LONG: of NVIDIA's cards that are given such an op, those with the least shared
memory."""
LONG = (
    "flash", "rope", "dropout", "grouped_matmul", "gated_delta", "lora", "fp8", "linear_cross_entropy", "rms_norm"
)  # fmt: skip
"""Ops whose kernels take longest to compile, 2 to 20 s: test_flash.py compiles attention's each time, for one card."""
DOTLESS = ("sm_70", "sm_75")
"""Given elementwise ops and reductions only, in float16."""
WHOLE = (FAST, FAST_WITH_DOTS, "sm_90", "gfx1100")
"""Compiled for with all cases of an op: the least shared memory of each vendor, and NVIDIA's own way of matrices."""


@dataclass(frozen=True)
class Launch:
    """One call of one kernel, as an op made it."""

    name: str
    kernel: JITFunction
    arguments: tuple
    options: dict

    def read(self, target: GPUTarget) -> tuple[list, dict, object]:
        """What Triton's own launcher makes of the call: specialisation, bound arguments, its backend."""
        backend = make_backend(target)
        binder = create_function_from_signature(self.kernel.signature, self.kernel.params, backend)
        bound, specialization, _ = binder(*self.arguments, **self.options)
        return specialization, bound, backend

    def key(self, target: GPUTarget) -> tuple:
        """What decides whether Triton compiles anew."""
        specialization, _, _ = self.read(target)
        return self.name, tuple(specialization), *self.chosen().items()

    def chosen(self) -> dict:
        """The options that are the compiler's, not the kernel's."""
        names = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
        return {name: self.options[name] for name in names if name in self.options}

    def compile(self, target: GPUTarget):
        """The steps of JITFunction._pack_args, without a driver."""
        specialization, bound, backend = self.read(target)
        types = [kind for kind, _ in specialization]
        constants = {
            path: get_iterable_path(list(bound.values()), path)
            for path in find_paths_if(types, lambda _, kind: kind == "constexpr")
        }
        hints = ["" if kind == "constexpr" else hint for kind, hint in specialization]
        attributes = {
            path: backend.parse_attr(get_iterable_path(hints, path))
            for path in find_paths_if(hints, lambda _, hint: isinstance(hint, str))
        }
        signature = dict(zip([p.name for p in self.kernel.params], types, strict=True))
        source = ASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(source, target=target, options=self.chosen())


class Recorder:
    """Stands where a kernel stands and notes its launches instead of making them."""

    def __init__(self, name: str, kernel: JITFunction, launches: list[Launch]) -> None:
        self.name, self.kernel, self.launches = name, kernel, launches

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.launches.append(Launch(self.name, self.kernel, arguments, options))

        return launch


def shipped_kernels() -> dict[str, tuple[object, str, JITFunction]]:
    """Every launched kernel in the modules of the ops, by `module.function`."""
    found = {}
    for path in {op.triton.forward.__module__ for op in OPS}:
        module = importlib.import_module(path)
        for name, value in vars(module).items():
            if name.endswith("_kernel") and isinstance(value, JITFunction):
                found[f"{path}.{name}"] = module, name, value
    return found


SHIPPED = shipped_kernels()


def check(launches: list[Launch], name: str) -> None:
    """Compile each launch that Triton would compile for the card of this name; its shared memory must suffice."""
    target = TARGETS[name]
    for launch in {each.key(target): each for each in launches}.values():
        compiled = launch.compile(target)
        assert "cubin" in compiled.asm or "hsaco" in compiled.asm
        assert compiled.metadata.shared <= SHARED_BYTES[name], (launch.name, compiled.metadata.shared)


def pairs(fast: bool | None = None) -> list:
    """Ops and the cards that they are given: the one compiled for each time, the others, or (None) all."""
    return [
        pytest.param(op, target, id=f"{op.name}-{target}")
        for op in OPS
        for target in TARGETS
        if not (op.needs_dots and target in DOTLESS)
        and fast in (None, op.name not in LONG and target == (FAST_WITH_DOTS if op.needs_dots else FAST))
    ]


def share(cases: Sequence, op: Op, target: str) -> Sequence:
    """Return those of an op's cases that are compiled for a card: all for WHOLE, else one, another for each card.

    So every card is compiled for with every op, and every case for as many cards as go round.
    """
    cards = [name for name in TARGETS if name not in WHOLE and not (op.needs_dots and name in DOTLESS)]
    return cases if target in WHOLE else [cases[cards.index(target) % len(cases)]]


def half(target: str) -> torch.dtype:
    """The 16-bit dtype that runs on such a card."""
    return torch.float16 if target in DOTLESS else torch.bfloat16
