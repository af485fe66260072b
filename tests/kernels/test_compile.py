"""Every kernel as the ops launch it, compiled for every GPU generation on a machine that has none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import pytest
import torch
import triton
from studio_kernels._triton import hash_triton
from studio_kernels.dispatch import OPS, op_named
from studio_kernels.op import Op
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from tests.kernels.oracle import options_of, read

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
FAST = ("sm_75", "sm_90")
FAST_WITH_DOTS = ("sm_80", "sm_90", "sm_120")
DOTLESS = ("sm_70", "sm_75")
"""Given elementwise ops and reductions only, in float16."""
ALIKE = {"sm_70": "sm_75", "sm_86": "sm_89"}
"""A card that the compiler treats as another one that has as little shared memory: each edge costs seconds."""
LENGTHS = (1, 2, 15, 16, 63, 64, 65, 1000, 2048)
"""Rows of a batch: one, odd, multiples of 16 or not, as the last batch and the evaluation bring them."""


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


@pytest.fixture
def launches(monkeypatch, tmp_path):
    """A function (op, kind of cases, dtype, rows) -> the launches that the op's samples make, forward and backward."""
    # A cached result would hide a compiler that fails today.
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    # What is drawn is never looked at: memory as it comes is as good.
    monkeypatch.setattr(torch, "randn", lambda shape, generator: torch.empty(shape))
    noted: list[Launch] = []
    for name, (module, attribute, kernel) in SHIPPED.items():
        monkeypatch.setattr(module, attribute, Recorder(name, kernel, noted))

    def record(op: Op, kind: str, dtype: torch.dtype, rows: int = 8) -> list[Launch]:
        noted.clear()
        for options in options_of(op.name, kind):
            given = {"dtype": dtype, "rows": rows} | read(options)
            op.sample(**given, device="cpu")(op.triton)
        return list(noted)

    return record


def check(launches: list[Launch], name: str) -> None:
    target = TARGETS[name]
    for launch in {each.key(target): each for each in launches}.values():
        compiled = launch.compile(target)
        assert "cubin" in compiled.asm or "hsaco" in compiled.asm
        assert compiled.metadata.shared <= SHARED_BYTES[name], (launch.name, compiled.metadata.shared)


def pairs(fast: bool | None = None) -> list:
    """Ops and the cards that they are given: those compiled for each time, the others, or (None) all."""
    return [
        pytest.param(op, target, id=f"{op.name}-{target}")
        for op in OPS
        for target in TARGETS
        if not (op.needs_dots and target in DOTLESS)
        and fast in (None, target in (FAST_WITH_DOTS if op.needs_dots else FAST))
    ]


def half(target: str) -> torch.dtype:
    """The 16-bit dtype that runs on such a card."""
    return torch.float16 if target in DOTLESS else torch.bfloat16


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_op_launches_every_kernel_that_it_ships(launches, op):
    made = {launch.name for kind in ("COMPILE", "EDGES") for launch in launches(op, kind, torch.bfloat16)}
    assert made and made == {name for name in SHIPPED if name.startswith(f"{op.triton.forward.__module__}.")}


@pytest.mark.parametrize(("op", "target"), pairs(fast=True))
def test_compiles_for_the_main_generations(launches, op, target):
    check(launches(op, "COMPILE", half(target)), target)


@pytest.mark.slow
@pytest.mark.computing
@pytest.mark.parametrize(("op", "target"), pairs(fast=False))
def test_compiles_for_every_generation(launches, op, target):
    check(launches(op, "COMPILE", half(target)), target)


@pytest.mark.slow
@pytest.mark.computing
@pytest.mark.timeout(900)  # 45 s for the largest where nothing else computes
@pytest.mark.parametrize(("op", "target"), [one for one in pairs() if one.values[1] not in ALIKE])
def test_compiles_at_the_edges_of_width_and_dtype(launches, op, target):
    for dtype in (half(target), torch.float32):
        check(launches(op, "EDGES", dtype), target)


@pytest.mark.slow
@pytest.mark.computing
@pytest.mark.timeout(600)  # lora: 35 s where nothing else computes
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_another_length_needs_no_new_kernel(launches, op):
    """A batch of 65 rows after one of 64 must not compile in mid-training: that is where runs were seen to stand."""
    keys = {
        rows: {
            launch.key(TARGETS[target])
            for launch in launches(op, "COMPILE", torch.bfloat16, rows)
            for target in ("sm_90", "gfx942")
        }
        for rows in LENGTHS
    }
    different = {rows: found - keys[64] for rows, found in keys.items() if found != keys[64]}
    assert not different


def test_a_specialised_length_would_be_noticed(launches):
    launch = launches(op_named("rms_norm"), "COMPILE", torch.bfloat16)[0]
    kernel = triton.jit(launch.kernel.fn)  # without do_not_specialize
    target = TARGETS["sm_80"]
    at = kernel.arg_names.index("rows")

    def key(rows: int) -> tuple:
        arguments = (*launch.arguments[:at], rows, *launch.arguments[at + 1 :])
        return Launch(launch.name, kernel, arguments, launch.options).key(target)

    assert key(64) != key(65)


def test_what_triton_hashes_of_itself_is_had_beforehand():
    """Else the probe at load waits for it: 0.38 of 1.98 s on an H200, Triton 3.6."""
    from triton.runtime.cache import triton_key

    triton_key.cache_clear()
    assert hash_triton()
    assert triton_key.cache_info().currsize == 1
