"""What a machine and its cards can do, whatever row of the table decides: formats, compiling, the known ways out."""

from __future__ import annotations

from studio.core.facts import Distribution, Gpu, MachineFacts
from studio.core.i18n import Text, literal
from studio.machine import versions
from studio.machine.repairs import Applied, choose_repairs

TRITON_REPAIRS = (
    "own_triton_tools",
    "drop_compiler",
    "drop_toolkit",
    "drop_assembler",
    "plain_temp",
    "wsl_library_path",
    "clean_library_path",
)
"""Repairs of the environment after which Triton may work."""
LINE_LIMIT = 200
ROCM_WITH_TRITON = ("gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")


def has_bf16(machine: MachineFacts, gpu: Gpu) -> bool:
    """Whether `gpu` computes bf16 itself: Turing (7.5) claims it too, but imitates it slowly."""
    if gpu.vendor == "amd":
        return gpu.architecture.startswith(ROCM_WITH_TRITON)
    if gpu.vendor == "intel":
        return machine.torch_xpu
    return gpu.vendor == "nvidia" and gpu.capability >= versions.gate("bf16")


def has_fp8(gpu: Gpu) -> bool:
    """Whether `gpu` computes 8-bit floats."""
    return gpu.vendor == "nvidia" and gpu.capability >= versions.gate("fp8")


def broken_ops(machine: MachineFacts) -> frozenset[str]:
    """Return the ops whose fast kernel failed its test, or an earlier run: each takes its own twin, and no other."""
    return frozenset(test.op for test in machine.kernel_tests if not test.ok) | frozenset(
        machine.broken_kernels
    )


def can_compile(machine: MachineFacts) -> bool:
    """Whether torch.compile may be used: the Triton that torch asks for, and on Windows Microsoft's compiler."""
    has_compiler = machine.system == "Linux" or bool(machine.windows and machine.windows.msvc)
    return machine.triton_level == "right" and versions.pairs(machine) is True and has_compiler


def old_driver(machine: MachineFacts) -> bool:
    """Whether NVIDIA's driver is older than the installed torch needs."""
    floor = versions.driver_floor(machine.torch_cuda)
    return bool(machine.torch_cuda) and machine.driver_cuda != (0, 0) and machine.driver_cuda < floor


def known_fix(machine: MachineFacts) -> Applied | None:
    """Return the repair of our environment that may bring Triton to work and was not made yet; None without one."""
    open_ones = [one for one in choose_repairs(machine) if one.name not in machine.repairs]
    return next((one for one in open_ones if one.name in TRITON_REPAIRS), None)


def triton_words(machine: MachineFacts) -> Text:
    """Return in one line how far Triton came: the error that stopped it, or the level it reached."""
    lines = machine.triton_error.strip().splitlines()
    return literal(lines[0].strip()[:LINE_LIMIT] if lines else machine.triton_level)


def healthy_distribution(machine: MachineFacts) -> Distribution | None:
    """Return the Linux of WSL2 that sees the GPU, the person's default one first."""
    found = machine.windows.distributions if machine.windows else ()
    healthy = [one for one in found if one.version == 2 and one.gpu]
    return next((one for one in healthy if one.default), healthy[0] if healthy else None)


def dotted(gpu: Gpu) -> str:
    """Return a compute capability as it is written: 8.6."""
    return f"{gpu.capability[0]}.{gpu.capability[1]}"
