"""Every kernel compiled for every GPU generation, on a machine that has none, within its shared memory."""

from __future__ import annotations

import pytest
import triton
from studio_kernels import rms_norm, swiglu
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_BYTES = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10}
"""Most shared memory of one block, by compute capability."""
WIDTHS = {"narrow": 128, "common": 4096, "widest": rms_norm.MAX_WIDTH}


def variants(dtype: str, width: int) -> list[tuple[object, dict, dict, int]]:
    """(kernel, argument types, constants, warps) of all that a launch on rows of `width` may ask for."""
    found = []
    block = rms_norm.block_shape(width)
    shape = {key: block[key] for key in ("ROWS", "COLUMNS")}
    for cast_first in (True, False):
        types = dict.fromkeys(("x_pointer", "weight_pointer", "y_pointer"), f"*{dtype}") | {
            "r_pointer": "*fp32"
        }
        types |= dict.fromkeys(("rows", "columns", "x_stride"), "i32")
        constants = {"EPS": 1e-6, "OFFSET": int(not cast_first), "CAST_FIRST": cast_first, **shape}
        found.append((rms_norm._forward_kernel, types, constants, block["num_warps"]))
    for trained in (True, False):
        types = dict.fromkeys(("dy_pointer", "x_pointer", "weight_pointer"), f"*{dtype}") | {
            "r_pointer": "*fp32"
        }
        types |= {"dx_pointer": f"*{dtype}", "partial_pointer": "*fp32"}
        types |= dict.fromkeys(("rows", "columns", "dy_stride", "x_stride", "blocks_per_program"), "i32")
        constants = {"OFFSET": 0, "WEIGHT_GRADIENT": trained, **shape}
        found.append((rms_norm._backward_kernel, types, constants, block["num_warps"]))
    block = swiglu.block_shape(width)
    constants = {"COLUMNS": block["COLUMNS"]}
    types = dict.fromkeys(("gate_pointer", "up_pointer", "h_pointer"), f"*{dtype}")
    types |= dict.fromkeys(("columns", "gate_stride", "up_stride"), "i32")
    found.append((swiglu._forward_kernel, types, constants, block["num_warps"]))
    pointers = ("dh_pointer", "gate_pointer", "up_pointer", "dgate_pointer", "dup_pointer")
    types = dict.fromkeys(pointers, f"*{dtype}")
    types |= dict.fromkeys(("columns", "dh_stride", "gate_stride", "up_stride"), "i32")
    found.append((swiglu._backward_kernel, types, constants, block["num_warps"]))
    return found


def check(architecture: int, dtype: str, width: int) -> None:
    target = GPUTarget("cuda", architecture, 32)
    for kernel, types, constants, warps in variants(dtype, width):
        types = types | dict.fromkeys(constants, "constexpr")
        source = ASTSource(fn=kernel, signature=types, constexprs=constants)
        compiled = triton.compile(source, target=target, options={"num_warps": warps})
        assert "cubin" in compiled.asm
        assert compiled.metadata.shared <= SHARED_BYTES[architecture], (kernel, constants)
        assert compiled.metadata.shared <= 64 << 10, "sizes are for the smallest card"


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    """A cached result would hide a compiler that fails today."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))


def test_compiles_for_the_smallest_card():
    check(75, "fp16", 4096)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("architecture", SHARED_BYTES)
def test_compiles_for_every_generation(architecture, dtype, width):
    check(architecture, dtype, width)
