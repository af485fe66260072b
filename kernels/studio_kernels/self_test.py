"""What `probe` runs in its child process: every op, forward and backward, against its PyTorch twin on a GPU.

The last line printed is the answer. Exit code 0: they agree; 3: an orderly refusal; any other: a crash.
"""

from __future__ import annotations

import sys

import torch

from studio_kernels import _triton
from studio_kernels.dispatch import bind
from studio_kernels.support import Support


def run() -> Support:
    """Compares the ops in float16 on 33 rows of 100 columns: masks in both directions are at work."""
    if not _triton.importable().ok:
        return _triton.importable()
    if _triton.interpreted():
        return Support(False, "TRITON_INTERPRET is set: kernels would run in Triton's slow interpreter.")
    if not torch.cuda.is_available():
        return Support(False, "PyTorch sees no GPU that Triton could use.")
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(shape, generator=generator) for shape in ((33, 100), (33, 100), (100,), (33, 100))]
    results = {}
    for implementation in ("reference", "triton"):
        a, b, weight = (x.to("cuda", torch.float16).requires_grad_() for x in draws[:3])
        kernels = bind({"rms_norm": implementation, "swiglu": implementation})
        y = kernels.swiglu(kernels.rms_norm(a, weight, 1e-6, 0, "cast_then_scale"), b)
        gradients = torch.autograd.grad(y, (a, b, weight), draws[3].to("cuda", torch.float16))
        results[implementation] = [tensor.float() for tensor in (y, *gradients)]
    for twin, ours in zip(results["reference"], results["triton"], strict=True):
        error = ((twin - ours).abs().max() / twin.abs().max()).item()
        if not error < 1e-2:
            return Support(False, f"A test kernel returned wrong numbers (relative error {error:.2g}).")
    name, version = torch.cuda.get_device_name(), _triton.triton.__version__
    return Support(True, f"The kernels compiled and ran on {name} with Triton {version}.")


def main() -> int:
    """Prints the reason of the verdict and returns the exit code."""
    support = run()
    print(support.reason)
    return 0 if support.ok else 3


if __name__ == "__main__":
    sys.exit(main())
