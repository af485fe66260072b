"""What a person may do for a better run on this machine, each with its one command."""

from __future__ import annotations

from studio.core.facts import Distribution, Gpu, MachineFacts, Offer
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe
from studio.machine import versions
from studio.machine.card_abilities import healthy_distribution
from studio.planning.backend_choice import Backend

TORCH_INDEX = "https://download.pytorch.org/whl"
ROCM_CARDS = ("gfx90a", "gfx94", "gfx95", "gfx103", "gfx11", "gfx12")
OFFER_ROWS = frozenset({"windows_ahead_of_triton", "no_triton", "broken_triton", "wsl_is_faster"})
"""Rows in which Triton is what is missing."""


def make_offers(machine: MachineFacts, backend: Backend, recipe: Recipe | None = None) -> tuple[Offer, ...]:
    """Return the Offers for `backend` on `machine`; without a `recipe` those that any recipe may profit from."""
    offers: list[Offer] = []
    on_processor = recipe is not None and recipe.run.device == "cpu"
    rebuild = f"{launcher(machine)} install --rebuild"
    if not on_processor and machine.gpus:
        name = machine.gpus[0].name
        if backend.row == "torch_without_gpu":
            offers.append(_offer("torch_cuda", rebuild, gpu=name))
        elif backend.row == "driver_or_build" and machine.driver_cuda >= (12, 0):
            offers.append(_offer("driver_build", rebuild, gpu=name))
        elif backend.row == "processor" and (other := _undriven(machine)) is not None:
            title = text("plan.offer.other_build", gpu=other.name)
            why = text("plan.offer.torch_cuda.why", gpu=other.name)
            offers.append(Offer(title=title, why=why, command=rebuild))
    asked = recipe is None or recipe.run.kernels != "pytorch"
    if backend.row in OFFER_ROWS and asked:
        offers += _triton_offers(machine, backend)
    if asked and (backend.row in OFFER_ROWS or _wsl_without_triton(machine, backend)):
        offers += _wsl_offers(machine)
    quantized = recipe is not None and recipe.model.quantization != "none"
    small_optimizer = recipe is not None and recipe.optim.optimizer != "adamw"
    if (recipe is None or quantized or small_optimizer) and "bitsandbytes" not in machine.packages:
        if "torch" in machine.packages:
            offers.append(_offer("bitsandbytes", f"{launcher(machine)} install"))
    return tuple(offers)


def launcher(machine: MachineFacts) -> str:
    """Return how launch.py is started there."""
    return "py launch.py" if machine.system == "Windows" else "python3 launch.py"


def pip(machine: MachineFacts) -> str:
    """Return how pip of the studio's own environment is started, from the studio's folder."""
    return r".venv\Scripts\python.exe -m pip" if machine.system == "Windows" else ".venv/bin/python -m pip"


def _undriven(machine: MachineFacts) -> Gpu | None:
    """Return a card for which there is a build of PyTorch, where another one is installed."""
    for gpu in machine.gpus:
        amd = gpu.vendor == "amd" and machine.system == "Linux" and gpu.architecture.startswith(ROCM_CARDS)
        if (amd and not machine.torch_hip) or (
            gpu.vendor == "intel" and "Arc" in gpu.name and not machine.torch_xpu
        ):
            return gpu
    return None


def _triton_offers(machine: MachineFacts, backend: Backend) -> list[Offer]:
    if backend.row == "windows_ahead_of_triton":
        release = versions.latest_windows_release()
        pin = f"triton-windows=={release.triton_windows}"
        values = {"torch": release.torch, "pin": pin}
        command = (
            f"{pip(machine)} install torch=={release.torch}+cu130 {pin} --extra-index-url {TORCH_INDEX}/cu130"
        )
        title, why = text("plan.offer.older_torch", **values), text("plan.offer.older_torch.why")
        return [Offer(title=title, why=why, command=command)]
    needed = versions.pin(machine)
    if backend.row != "no_triton":
        return []
    if machine.system != "Windows" or not needed:
        return [_offer("triton", f"{launcher(machine)} install")]
    why = text("plan.offer.triton.why")
    title = text("plan.offer.triton_pin", pin=needed)
    return [Offer(title=title, why=why, command=f"{pip(machine)} install {needed}")]


def _wsl_without_triton(machine: MachineFacts, backend: Backend) -> bool:
    """Windows with a forced row on which the kernels do not run."""
    return backend.row == "forced" and backend.kernels == "none" and bool(machine.gpus)


def _wsl_offers(machine: MachineFacts) -> list[Offer]:
    if machine.system != "Windows":
        return []
    stay = _offer("stay", "")
    found = healthy_distribution(machine)
    likely = found or _likely_distribution(machine)
    if likely is None:
        return [stay]
    id = "plan.offer.wsl.why" if found else "plan.offer.wsl_maybe.why"
    why: Text = text(id, distribution=likely.name)
    return [Offer(title=text("plan.offer.wsl"), why=why, command=f"{launcher(machine)} wsl"), stay]


def _likely_distribution(machine: MachineFacts) -> Distribution | None:
    """Return a Linux of WSL2 of which nobody asked yet whether it sees the GPU: asking would start it."""
    found = machine.windows.distributions if machine.windows else ()
    unasked = [one for one in found if one.version == 2 and one.gpu is None]
    return next((one for one in unasked if one.default), unasked[0] if unasked else None)


def _offer(id: str, command: str, **values: object) -> Offer:
    return Offer(title=text(f"plan.offer.{id}"), why=text(f"plan.offer.{id}.why", **values), command=command)
