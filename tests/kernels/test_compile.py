"""Every kernel as the ops launch it, compiled for every GPU generation on a machine that has none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import pytest
import torch
import triton
from studio_kernels import rms_norm
from studio_kernels.dispatch import OPS, op_named
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
WIDEST = rms_norm.MAX_WIDTH
LENGTHS = (1, 2, 15, 16, 63, 64, 65, 1000, 2048, 4097)
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
        return self.name, tuple(specialization), self.options["num_warps"]

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
        return triton.compile(source, target=target, options={"num_warps": self.options["num_warps"]})


class Recorder:
    """Stands where a kernel stands and notes its launches instead of making them."""

    def __init__(self, name: str, kernel: JITFunction, launches: list[Launch]) -> None:
        self.name, self.kernel, self.launches = name, kernel, launches

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.launches.append(Launch(self.name, self.kernel, arguments, options))

        return launch


def shipped_kernels() -> dict[str, tuple[object, str, JITFunction]]:
    """Every kernel in the modules of the ops, by `module.function`."""
    found = {}
    for path in {op.triton.__module__ for op in OPS}:
        module = importlib.import_module(path)
        kernels = {name: value for name, value in vars(module).items() if isinstance(value, JITFunction)}
        found |= {f"{path}.{name}": (module, name, value) for name, value in kernels.items()}
    return found


SHIPPED = shipped_kernels()


@pytest.fixture
def launches(monkeypatch, tmp_path):
    """A function (op, dtype, width, rows) -> the launches that the op makes, forward and backward."""
    # A cached result would hide a compiler that fails today.
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    noted: list[Launch] = []
    for name, (module, attribute, kernel) in SHIPPED.items():
        monkeypatch.setattr(module, attribute, Recorder(name, kernel, noted))

    def record(op: str, dtype: torch.dtype, width: int, rows: int = 8) -> list[Launch]:
        noted.clear()
        for call in CALLS[op](dtype, width, rows):
            result = op_named(op).triton(*call)
            result.backward(torch.empty_like(result))
        return list(noted)

    return record


def leaf(*shape: int, dtype: torch.dtype, trained: bool = True) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, requires_grad=trained)


def norm_calls(dtype: torch.dtype, width: int, rows: int):
    """Llama's way and Gemma's, the weight trained and frozen, and in float32 beside a half precision input."""
    for offset, order in ((0, rms_norm.CAST_THEN_SCALE), (1, rms_norm.SCALE_THEN_CAST)):
        for weight_dtype, trained in {(dtype, True), (dtype, False), (torch.float32, False)}:
            weight = leaf(width, dtype=weight_dtype, trained=trained)
            yield leaf(rows, width, dtype=dtype), weight, 1e-6, offset, order


def gate_calls(dtype: torch.dtype, width: int, rows: int):
    """Two projections, and the two halves of one as Phi-3 has them."""
    yield leaf(rows, width, dtype=dtype), leaf(rows, width, dtype=dtype)
    yield leaf(rows, 2 * width, dtype=dtype).chunk(2, dim=-1)


CALLS = {"rms_norm": norm_calls, "swiglu": gate_calls}


def check(launches: list[Launch], name: str) -> None:
    target = TARGETS[name]
    for launch in {each.key(target): each for each in launches}.values():
        compiled = launch.compile(target)
        assert "cubin" in compiled.asm or "hsaco" in compiled.asm
        assert compiled.metadata.shared <= SHARED_BYTES[name], (launch.name, compiled.metadata.shared)
        assert compiled.metadata.shared <= 64 << 10, "sizes are for the smallest card"


def test_the_ops_launch_every_kernel_that_ships(launches):
    made = {launch.name for op in CALLS for launch in launches(op, torch.bfloat16, 128)}
    assert made == set(SHIPPED)
    assert set(CALLS) == {op.name for op in OPS}, "an op without its calls here is never compiled"


@pytest.mark.parametrize("target", TARGETS)
def test_compiles_for_every_generation(launches, target):
    for op in CALLS:
        check(launches(op, torch.float16 if target == "sm_75" else torch.bfloat16, 4096), target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width"),
    [(torch.float16, 128), (torch.bfloat16, WIDEST), (torch.float32, WIDEST)],
    ids=["fp16-narrow", "bf16-widest", "fp32-widest"],
)
@pytest.mark.parametrize("target", TARGETS)
def test_compiles_at_the_edges_of_width_and_dtype(launches, target, dtype, width):
    for op in CALLS:
        check(launches(op, dtype, width), target)


@pytest.mark.parametrize("target", ["sm_75", "sm_90", "gfx942"])
@pytest.mark.parametrize("op", CALLS)
def test_another_length_needs_no_new_kernel(launches, op, target):
    """A batch of 65 rows after one of 64 must not compile in mid-training: that is where runs were seen to stand."""
    for width in (128, 4096):
        keys = {
            rows: {launch.key(TARGETS[target]) for launch in launches(op, torch.bfloat16, width, rows)}
            for rows in LENGTHS
        }
        different = {rows: found - keys[64] for rows, found in keys.items() if found != keys[64]}
        assert not different


def test_a_specialised_length_would_be_noticed(launches):
    launch = launches("swiglu", torch.bfloat16, 128)[0]
    kernel = triton.jit(launch.kernel.fn)  # without do_not_specialize
    target = TARGETS["sm_80"]

    def key(columns: int) -> tuple:
        arguments = (*launch.arguments[:3], columns, *launch.arguments[4:])
        return Launch(launch.name, kernel, arguments, launch.options).key(target)

    assert key(64) != key(65)
