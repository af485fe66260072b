"""Decides what the chosen graphics card can run: one table of named rows, a pure function, first match wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from studio_kernels.op import NEEDS_DOTS, NEEDS_DOTS_WHERE_ASKED

from studio.core.facts import Gpu, MachineFacts
from studio.core.i18n import Text, literal, text
from studio.machine import versions
from studio.machine.card_abilities import (
    ROCM_WITH_TRITON,
    dotted,
    healthy_distribution,
    known_fix,
    old_driver,
    triton_words,
)

Kernels = Literal["all", "elementwise", "none"]

KERNELS_NAMES: dict[Kernels, str] = {"all": "triton", "elementwise": "triton_elementwise", "none": "pytorch"}
ROCM_WITHOUT_BITSANDBYTES = ("gfx906", "gfx900")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """What a row of the table gives: what can be used, where the recipe asks for it."""

    row: str
    """The row's name."""
    name: str
    """What the doctor calls it: cpu, triton, triton_elementwise, pytorch, rocm, ...; none where nothing can train."""
    kernels: Kernels
    four_bit: Literal["nf4", "off"]
    eight_bit: Literal["bitsandbytes", "torch"]
    attention: Literal["sdpa", "sdpa_efficient", "sdpa_math"]
    """PyTorch's fused attention, the form of it that this card can take."""
    multi_gpu: Literal["nccl", "rccl", "single", "off"]
    """How cards of this kind could work together."""
    stop: bool
    """Whether the card must not be used before something is put right."""
    processor: bool
    """Whether no graphics card trains."""
    reason: Text


@dataclass(frozen=True, slots=True)
class Case:
    """What the conditions of the table look at."""

    machine: MachineFacts
    gpu: Gpu | None
    forced: str

    @property
    def card(self) -> Gpu | None:
        """The GPU, when torch sees it."""
        return None if self.machine.torch_sees_gpu is False else self.gpu

    @property
    def windows(self) -> bool:
        return self.machine.system == "Windows"

    @property
    def right(self) -> bool:
        return self.machine.triton_level == "right"

    def nvidia(self, low: tuple[int, int] = (0, 0), below: tuple[int, int] = (99, 0)) -> bool:
        """Whether an NVIDIA card is used whose capability is from `low` to under `below`."""
        card = self.card
        return card is not None and card.vendor == "nvidia" and low <= card.capability < below

    def vendor(self, name: str) -> bool:
        return self.card is not None and self.card.vendor == name


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendRow:
    """One row: when it holds, and what it gives. `kernels` run only where Triton was proved right."""

    name: str
    condition: Callable[[Case], bool]
    reason: Callable[[Case], Text]
    kernels: Kernels = "none"
    four_bit: Literal["nf4", "off"] = "nf4"
    eight_bit: Literal["bitsandbytes", "torch"] = "bitsandbytes"
    attention: Literal["sdpa", "sdpa_efficient", "sdpa_math"] = "sdpa"
    multi_gpu: Literal["nccl", "rccl", "single", "off"] = "single"
    stop: bool = False
    processor: bool = False
    known_as: str = ""
    """Backend.name; "" for the one that its kernels make, as for NVIDIA's cards."""


def choose_backend(machine: MachineFacts, gpu: Gpu | None, forced: str = "") -> Backend:
    """Return the Backend of `gpu` (None: the processor) on `machine`. With several cards ask for the one that trains.

    `forced` is `triton` or `pytorch` where the person decided on the kernels themselves (row `forced`), else "".
    """
    case = Case(machine, gpu, forced)
    row = next(row for row in ROWS if row.condition(case))
    if row.name != "forced":
        return _fill(row, case)
    # What was asked for concerns the kernels; all else is as the machine's own row has it.
    own = choose_backend(machine, gpu)
    if forced == "pytorch" and own.processor:
        return own  # it computes with PyTorch's operations anyway
    kernels = "all" if forced == "triton" and case.right and case.card is not None else "none"
    name = KERNELS_NAMES[kernels]
    return dataclasses.replace(
        own, row=row.name, name=name, processor=False, kernels=kernels, reason=row.reason(case)
    )


def runs_fast(policy: Kernels, op: str) -> bool:
    """Return whether `op` may run as a Triton kernel under a row's policy."""
    return policy == "all" or (
        policy == "elementwise" and not NEEDS_DOTS.get(op, NEEDS_DOTS_WHERE_ASKED.get(op, True))
    )


# The table -----------------------------------------------------------------------------------------------------------


def _torch_fails(case: Case) -> bool:
    return bool(case.machine.torch_error) or "torch" not in case.machine.packages


def _cpu_build(case: Case) -> bool:
    machine, gpu = case.machine, case.gpu
    return gpu is not None and gpu.vendor == "nvidia" and not (machine.torch_cuda or machine.torch_hip)


def _wrong_driver_or_build(case: Case) -> bool:
    machine, gpu = case.machine, case.gpu
    if gpu is None or gpu.vendor != "nvidia" or not machine.torch_cuda:
        return False
    return old_driver(machine) or not versions.has_code(machine, gpu)


def _explain_driver_or_build(case: Case) -> Text:
    machine, gpu = case.machine, case.gpu
    assert gpu is not None
    if old_driver(machine):
        needs = versions.driver_release(machine.torch_cuda, machine.system) or machine.torch_cuda
        has = ".".join(map(str, machine.driver_cuda))
        return text("backend.row.3.driver", gpu=gpu.name, has=has, build=machine.torch_cuda, needs=needs)
    values = {"gpu": gpu.name, "capability": dotted(gpu), "build": machine.torch_cuda}
    oldest = versions.code_range(machine.torch_cuda, machine.packages.get("torch", ""))[0]
    return text("backend.row.3.old_gpu" if gpu.capability < oldest else "backend.row.3.new_gpu", **values)


def _no_gpu_in_wsl(case: Case) -> bool:
    guest = case.machine.guest
    return guest is not None and (guest.version == 1 or not guest.dxg)


def _ahead_of_triton(case: Case) -> bool:
    """Torch of a minor version for which no Triton is out on Windows."""
    torch = versions.minor_of(case.machine.packages.get("torch", ""))
    newest = versions.minor_of(versions.latest_windows_release().torch)
    ahead = torch is not None and newest is not None and torch > newest
    return case.windows and case.nvidia() and ahead and versions.pairs(case.machine) is not True


def _triton_missing(case: Case) -> bool:
    # On Linux pip keeps torch and Triton together, and a pair of another minor that passed its tests serves.
    wrong = case.windows and versions.pairs(case.machine) is False
    return case.nvidia() and (case.machine.triton_level == "absent" or wrong)


def _explain_missing(case: Case) -> Text:
    pin = versions.pin(case.machine)
    if not pin:
        return text("backend.row.10.unknown")
    found = versions.installed_triton(case.machine)
    if found:
        return text("backend.row.10.wrong", pin=pin, found=found)
    return text("backend.row.10", pin=pin)


def _wsl_is_better(case: Case) -> bool:
    better = healthy_distribution(case.machine) is not None and known_fix(case.machine) is None
    return case.windows and case.nvidia() and better


def _explain_broken(case: Case) -> Text:
    reason, fix = triton_words(case.machine), known_fix(case.machine)
    if fix is not None:
        return text("backend.row.11.repair", reason=reason, repair=fix.message)
    return text("backend.row.11", reason=reason)


def _explain_wsl(case: Case) -> Text:
    distribution = healthy_distribution(case.machine)
    assert distribution is not None
    return text("backend.row.12", distribution=distribution.name)


def _explain_forced(case: Case) -> Text:
    state = "ok" if case.right and case.card is not None else "failed"
    reason = triton_words(case.machine)
    return text(f"backend.row.20.{case.forced}", health=text(f"backend.health.{state}", reason=reason))


def _rocm(case: Case, *, windows: bool) -> bool:
    return case.vendor("amd") and bool(case.machine.torch_hip) and case.windows == windows


def _rocm_proved(case: Case) -> bool:
    card = case.card
    listed = card is not None and card.architecture.startswith(ROCM_WITH_TRITON)
    return _rocm(case, windows=False) and listed and case.right


def _mac(case: Case) -> bool:
    return case.machine.system == "Darwin" and case.machine.architecture == "arm64" and case.vendor("apple")


def _say(id: str) -> Callable[[Case], Text]:
    """Return a reason that names the card."""

    def reason(case: Case) -> Text:
        gpu = case.gpu
        named = {"gpu": gpu.name, "architecture": gpu.architecture, "capability": dotted(gpu)} if gpu else {}
        return text(id, **({"gpu": "", "architecture": "", "capability": ""} | named))

    return reason


# First match wins. Three stand before what they would come behind: what the person forced before what they overrule,
# WSL without a GPU before rows of a GPU, and "Linux beside this Windows sees the GPU" before the plain fallback.
# no_triton and broken_triton also hold on Linux. Texts keep the numbers of their ids: stored runs hold them.
ROWS: tuple[BackendRow, ...] = (
    BackendRow(
        name="no_torch",
        condition=_torch_fails,
        reason=lambda case: text(
            "backend.row.1", reason=literal(case.machine.torch_error or "No module named 'torch'")
        ),
        four_bit="off",
        eight_bit="torch",
        multi_gpu="off",
        stop=True,
        processor=True,
        known_as="none",
    ),
    BackendRow(
        name="torch_without_gpu",
        condition=_cpu_build,
        reason=_say("backend.row.2"),
        four_bit="off",
        eight_bit="torch",
        multi_gpu="off",
        stop=True,
        processor=True,
        known_as="cpu",
    ),
    BackendRow(
        name="driver_or_build",
        condition=_wrong_driver_or_build,
        reason=_explain_driver_or_build,
        four_bit="off",
        eight_bit="torch",
        multi_gpu="off",
        stop=True,
        processor=True,
        known_as="cpu",
    ),
    BackendRow(name="forced", condition=lambda case: bool(case.forced), reason=_explain_forced),
    BackendRow(
        name="wsl_without_gpu",
        condition=_no_gpu_in_wsl,
        reason=_say("backend.row.13"),
        four_bit="off",
        eight_bit="torch",
        attention="sdpa_math",
        multi_gpu="off",
        processor=True,
        known_as="cpu",
    ),
    BackendRow(
        name="nvidia",
        condition=lambda case: not case.windows and case.nvidia(low=(8, 0)) and case.right,
        reason=_say("backend.row.4"),
        kernels="all",
        multi_gpu="nccl",
    ),
    BackendRow(
        name="nvidia_turing",
        condition=lambda case: not case.windows and case.nvidia(low=(7, 0), below=(8, 0)) and case.right,
        reason=_say("backend.row.5"),
        kernels="elementwise",
        attention="sdpa_efficient",
        multi_gpu="nccl",
    ),
    BackendRow(
        name="nvidia_old",
        condition=lambda case: case.nvidia(below=(7, 0)),
        reason=_say("backend.row.6"),
        attention="sdpa_math",
        multi_gpu="off",
    ),
    BackendRow(
        name="windows",
        condition=lambda case: (
            case.windows
            and case.nvidia(low=(8, 0))
            and case.right
            and versions.pairs(case.machine) is not False
        ),
        reason=_say("backend.row.7"),
        kernels="all",
    ),
    BackendRow(
        name="windows_turing",
        condition=lambda case: case.windows and case.nvidia(low=(7, 0), below=(8, 0)) and case.right,
        reason=_say("backend.row.5"),
        kernels="elementwise",
        attention="sdpa_efficient",
    ),
    BackendRow(name="windows_ahead_of_triton", condition=_ahead_of_triton, reason=_say("backend.row.9")),
    BackendRow(name="no_triton", condition=_triton_missing, reason=_explain_missing),
    BackendRow(name="wsl_is_faster", condition=_wsl_is_better, reason=_explain_wsl),
    BackendRow(name="broken_triton", condition=lambda case: case.nvidia(), reason=_explain_broken),
    BackendRow(
        name="rocm_triton",
        condition=_rocm_proved,
        reason=_say("backend.row.14"),
        kernels="all",
        multi_gpu="rccl",
        known_as="rocm_triton",
    ),
    BackendRow(
        name="rocm",
        condition=lambda case: _rocm(case, windows=False),
        reason=_say("backend.row.15"),
        attention="sdpa_math",
        multi_gpu="off",
        known_as="rocm",
    ),
    BackendRow(
        name="rocm_windows",
        condition=lambda case: _rocm(case, windows=True),
        reason=_say("backend.row.16"),
        kernels="all",
        known_as="rocm",
    ),
    BackendRow(
        name="xpu",
        condition=lambda case: case.vendor("intel") and case.machine.torch_xpu,
        reason=_say("backend.row.17"),
        kernels="all",
        known_as="xpu",
    ),
    BackendRow(
        name="mps",
        condition=_mac,
        reason=_say("backend.row.18"),
        four_bit="off",
        eight_bit="torch",
        multi_gpu="off",
        known_as="mps",
    ),
    BackendRow(
        name="processor",
        condition=lambda case: True,
        reason=_say("backend.row.19"),
        four_bit="off",
        eight_bit="torch",
        multi_gpu="off",
        processor=True,
        known_as="cpu",
    ),
)


def _fill(row: BackendRow, case: Case) -> Backend:
    """Return what `row` gives on this very machine: no kernel without Triton's proof, no 4 bits without the library."""
    machine, card = case.machine, case.card
    broken = bool(machine.bitsandbytes_error) or "bitsandbytes" not in machine.packages
    too_old = card is not None and (
        (card.vendor == "nvidia" and card.capability < versions.gate("four_bit"))
        or (card.vendor == "amd" and card.architecture.startswith(ROCM_WITHOUT_BITSANDBYTES))
    )
    kernels = row.kernels if case.right else "none"
    return Backend(
        row=row.name,
        name=row.known_as or KERNELS_NAMES[kernels],
        kernels=kernels,
        four_bit="off" if broken or too_old else row.four_bit,
        eight_bit="torch" if broken or too_old else row.eight_bit,
        attention=row.attention,
        multi_gpu=row.multi_gpu,
        stop=row.stop,
        processor=row.processor,
        reason=row.reason(case),
    )
