"""Compiles one small kernel for GPUs that need not be there: shows what Triton's compiler and assembler can do.

    python -m studio_kernels.self_compile cuda:80 hip:gfx1100

Needs no torch. Ends with exit code 0, or with the error of the first target that fails.
"""

from __future__ import annotations

import sys

from studio_kernels._triton import importable, interpreted, tl, triton

WAVES_OF_32 = ("gfx10", "gfx11", "gfx12")
"""AMD's consumer chips run 32 lanes together, the data centre's 64."""


@triton.jit(do_not_specialize=["columns"])
def _softmax_kernel(x_pointer, y_pointer, columns, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    mask = column < columns
    row = tl.program_id(0) * columns
    x = tl.load(x_pointer + row + column, mask=mask, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    y = e / tl.sum(e, axis=0)
    tl.store(y_pointer + row + column, y.to(y_pointer.dtype.element_ty), mask=mask)


def compile_for(target: str) -> None:
    """Compile for `target`: `cuda:` and a compute capability without its dot, or `hip:` and AMD's name of a chip.

    Raises whatever Triton raises (TritonError, RuntimeError, OSError and others); SystemExit under its interpreter.
    """
    if interpreted():
        raise SystemExit("TRITON_INTERPRET is set: kernels would run in Triton's slow interpreter.")
    backend, _, chip = target.partition(":")
    name = int(chip) if backend == "cuda" else chip
    lanes = 32 if backend == "cuda" or chip.startswith(WAVES_OF_32) else 64
    types = {"x_pointer": "*fp16", "y_pointer": "*fp16", "columns": "i32", "COLUMNS": "constexpr"}
    source = triton.compiler.ASTSource(fn=_softmax_kernel, signature=types, constexprs={"COLUMNS": 128})
    triton.compile(source, target=triton.backends.compiler.GPUTarget(backend, name, lanes))


def main(targets: list[str]) -> int:
    """Compile for each of `targets`."""
    support = importable()
    if not support.ok:
        raise SystemExit(support.reason)
    for target in targets:
        compile_for(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
