"""Triton's kernels played by PyTorch on a CPU, under the ops' own autograd functions, and faults put into them.

The ops launch `_forward_kernel[grid](...)`; what stands there under these tests computes the same numbers with
PyTorch (not the same bits as the twin), and may be told to fail at a place of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from studio_kernels import _triton, glu, rms_norm

MODULES = {"rms_norm": rms_norm, "glu": glu}


class KernelBroke(RuntimeError):
    """Stands for what a compiler or a driver raises."""


@dataclass(slots=True)
class Now:
    """Where the run is: what the engine's beat told last."""

    phase: str = ""
    step: int = 0
    micro: int = 0

    def beat(self, phase: str, step: int, micro: int) -> None:
        """The engine's `beat`."""
        self.phase, self.step, self.micro = phase, step, micro


@dataclass(slots=True)
class Fault:
    """Makes the launches of one kernel of one op fail from a place on, for as long as they are made."""

    op: str
    kernel: str
    """forward or backward"""
    when: Callable[[Now, tuple], bool]
    """Whether it fails, from where the run is and the launch's arguments."""
    error: Callable[[], Exception] = lambda: KernelBroke("kernel of test broke")
    raised: int = 0


@dataclass(slots=True)
class Kernel:
    """Stands where a launched kernel stands."""

    op: str
    name: str
    compute: Callable[..., None]
    now: Now
    faults: list[Fault]
    launches: list[str] = field(default_factory=list)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            for fault in self.faults:
                if (fault.op, fault.kernel) == (self.op, self.name) and fault.when(self.now, arguments):
                    fault.raised += 1
                    raise fault.error()
            self.launches.append(self.now.phase)
            self.compute(*arguments, **options)

        return launch


def norm_forward(x, residual, add, weight, y, s, r, rows, columns, *strides, EPS, OFFSET, **rest) -> None:  # noqa: N803
    """r, and y = x r (w + c)."""
    r.copy_((x.square().sum(-1) / columns + EPS).rsqrt())
    y.copy_(x * r[:, None] * (weight + OFFSET))


def norm_backward(
    dy, s, weight, r, ds, dx, partial, rows, columns, *strides, OFFSET, DS, WEIGHT_GRADIENT, **rest  # noqa: N803
) -> None:  # fmt: skip
    """dx, with what the residual stream brings, and dw in one partial sum."""
    normal, u = s * r[:, None], dy * (weight + OFFSET)
    given = ds if DS else 0.0
    dx.copy_(given + r[:, None] * (u - normal * ((u * normal).sum(-1, keepdim=True) / columns)))
    if WEIGHT_GRADIENT:
        partial.zero_()
        partial[0] = (dy * normal).sum(0)


def gate_forward(gate, up, h, *rest, **block) -> None:
    """h = silu(g) u."""
    h.copy_(up * (gate / (1 + torch.exp(-gate))))


def gate_backward(dh, gate, up, dgate, dup, *rest, **block) -> None:
    """dg and du."""
    s = 1 / (1 + torch.exp(-gate))
    dup.copy_(dh * gate * s)
    dgate.copy_(dh * up * s * (1 + gate * (1 - s)))


COMPUTE = {
    "rms_norm": {"forward": norm_forward, "backward": norm_backward},
    "glu": {"forward": gate_forward, "backward": gate_backward},
}


def install(monkeypatch: Any, now: Now, faults: list[Fault]) -> dict[str, Kernel]:
    """Put the played kernels into the ops' modules; returns them as `op.forward` and `op.backward`."""
    monkeypatch.setattr(_triton, "interpreted", lambda: True)
    placed = {}
    for op, module in MODULES.items():
        for name, compute in COMPUTE[op].items():
            kernel = placed[f"{op}.{name}"] = Kernel(op, name, compute, now, faults)
            monkeypatch.setattr(module, f"_{name}_kernel", kernel)
    return placed
