"""Which graphics card trains, and why: the one with the most free memory, of several with about as much the fastest."""

from __future__ import annotations

import dataclasses
import sys

from studio.core.facts import Gpu, MachineFacts
from studio.core.i18n import Text, text
from studio.machine import versions
from studio.machine.matmul_speeds import rate_card
from studio.machine.nvml import list_free_bytes

NEAR_SHARE = 0.1
"""Cards whose free memory is less by at most this share of the freest one's whole memory are as good: a desktop takes
that much, and a slow card must not win by it."""
FREE_STEP_BYTES = 256 * 2**20
"""Free memory is told in such steps: it moves by less all the time, and no plan depends on that."""


def look_at_memory(machine: MachineFacts) -> MachineFacts:
    """Return `machine` with what its NVIDIA cards have free just now; what this process itself holds counts as free.

    Takes 1 ms a card once NVML is open. Where the driver does not tell, `machine` comes back as it is.
    """
    nvidia = [gpu for gpu in machine.gpus if gpu.vendor == "nvidia"]
    free = list_free_bytes() if nvidia else ()
    if len(free) != len(nvidia):
        return machine
    looked = iter(
        dataclasses.replace(gpu, free_bytes=_in_steps(min(gpu.vram_bytes, free_bytes + _own_bytes(index))))
        for index, (gpu, free_bytes) in enumerate(zip(nvidia, free, strict=True))
    )
    gpus = tuple(next(looked) if gpu.vendor == "nvidia" else gpu for gpu in machine.gpus)
    return dataclasses.replace(machine, gpus=gpus)


def _in_steps(size_bytes: int) -> int:
    return max(FREE_STEP_BYTES, size_bytes // FREE_STEP_BYTES * FREE_STEP_BYTES)


def _own_bytes(index: int) -> int:
    """Return what torch holds in this process of card `index`: a run takes it over. Torch is not loaded for this."""
    torch = sys.modules.get("torch")
    ready = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    return torch.cuda.memory_reserved(index) if ready else 0


def choose_card(machine: MachineFacts) -> Gpu | None:
    """Return the card that trains, among those that the installed torch can drive.

    The one with the most free memory; of those with about as much the fastest, then one without a display, then the
    one with the most memory left. Where torch can drive none, the best NVIDIA card, which is then told why it cannot
    be used; None without either.
    """
    cards = list_driven(machine) or [gpu for gpu in machine.gpus if gpu.vendor == "nvidia"]
    near = _list_near(cards)
    return max(near, key=lambda gpu: (rate_card(gpu), not gpu.display, _free(gpu)), default=None)


def list_driven(machine: MachineFacts) -> list[Gpu]:
    """Return the cards that the installed torch has code for."""
    drives = {
        "nvidia": bool(machine.torch_cuda),
        "amd": bool(machine.torch_hip),
        "intel": machine.torch_xpu,
        "apple": machine.system == "Darwin" and machine.architecture == "arm64",
    }
    return [gpu for gpu in machine.gpus if drives.get(gpu.vendor) and versions.has_code(machine, gpu)]


def number_card(machine: MachineFacts, gpu: Gpu) -> int:
    """Return the number of `gpu` among the cards of its maker: i of torch's `cuda:i`.

    MachineFacts.gpus are in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID without those that CUDA_VISIBLE_DEVICES hides,
    and the studio's processes have that order (workspace.child_environment).
    """
    return next(i for i, one in enumerate(_list_same(machine, gpu)) if one is gpu)


def name_card(machine: MachineFacts, device: str) -> str:
    """Return the name of the GPU that `cuda` or `cuda:i` stands for, "" for the processor."""
    kind, _, index = device.partition(":")
    maker = "amd" if machine.torch_hip else "nvidia"
    cards = [gpu for gpu in machine.gpus if gpu.vendor == maker]
    return cards[int(index or 0)].name if kind == "cuda" else ""


def explain_card(machine: MachineFacts, gpu: Gpu) -> Text:
    """Return which card trains and why that one, with those that are not used."""
    same, values = _list_same(machine, gpu), {"gpu": gpu.name, "gigabytes": gigabytes(gpu.vram_bytes)}
    if len(same) == 1:
        return text("plan.device.gpu", **values)
    others = ", ".join(_describe(i, one) for i, one in enumerate(same) if one is not gpu)
    driven = [one for one in list_driven(machine) if one.vendor == gpu.vendor]
    undriven = [one.name for one in same if one not in driven and one.vram_bytes > gpu.vram_bytes]
    if undriven:
        return text("plan.device.best_gpu", others=undriven, **values)
    values |= {"number": number_card(machine, gpu), "free": gigabytes(_free(gpu)), "others": others}
    near = [one for one in _list_near(driven) if one is not gpu]
    if any(rate_card(one) < rate_card(gpu) for one in near):
        return text("plan.device.fastest_gpu", **values)
    if any(one.display and not gpu.display for one in near):
        return text("plan.device.dark_gpu", **values)
    if not gpu.free_bytes:
        return text("plan.device.largest_gpu", **values)
    return text("plan.device.freest_gpu", **values)


def gigabytes(size_bytes: float) -> str:
    """Return a size for a person: GiB with one digit, called GB as graphics cards are sold; small ones as 0.012."""
    return f"{size_bytes / 2**30:.1f}" if size_bytes >= 0.05 * 2**30 else f"{size_bytes / 2**30:.3f}"


def _list_same(machine: MachineFacts, gpu: Gpu) -> list[Gpu]:
    return [one for one in machine.gpus if one.vendor == gpu.vendor]


def _list_near(cards: list[Gpu]) -> list[Gpu]:
    """Return the card with the most free memory and those with about as much."""
    freest = max(cards, key=_free, default=None)
    if freest is None:
        return []
    return [gpu for gpu in cards if _free(gpu) >= _free(freest) - NEAR_SHARE * freest.vram_bytes]


def _free(gpu: Gpu) -> int:
    return gpu.free_bytes or gpu.vram_bytes


def _describe(number: int, gpu: Gpu) -> str:
    """Return a card in few words that every language has: `0 NVIDIA H200 (22.0 / 139.8 GiB)`."""
    free = f"{gigabytes(gpu.free_bytes)} / " if gpu.free_bytes else ""
    return f"{number} {gpu.name} ({free}{gigabytes(gpu.vram_bytes)} GiB)"
