"""What a run does when memory runs out: gives back what it can, then takes the next rung, whose result is the same."""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from studio.core.i18n import Text, text
from studio.core.memory_policy import MemoryPolicy
from studio.models.decoder.decoder import Decoder
from studio.models.optimize_model import Fast
from studio.planning.memory_planner import step_down
from studio.planning.policy_candidates import PINNED_SHARE

MEMORY_SHARE = 0.92
"""Share of a GPU's free memory that a run may take. Drivers of Windows and WSL2 spill into the machine's own memory
instead of refusing, and every step then takes many times as long; a refusal of ours lets the ladder act first."""
T = TypeVar("T")
WORDS = re.compile(
    r"out of memory|DefaultCPUAllocator|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation", re.IGNORECASE
)


class MemoryExhausted(Exception):
    """Memory ran out and no rung of the ladder was left: what remains must be asked for, such as shorter examples."""

    failure_id = "memory_exhausted"


class Footing(Protocol):
    """The part of a run's state that rungs change."""

    micro_batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One way to need less memory for the same result; `model` is the model inside any adapter wrapper."""

    name: str
    applies: Callable[[torch.nn.Module, Footing], bool]
    act: Callable[[torch.nn.Module, Footing], Text]
    """Does it and returns what was done, in words."""


def halve(model: torch.nn.Module, state: Footing) -> Text:
    """Halve the micro-batch. A step's examples stay the same, so that there are twice as many micro-batches."""
    state.micro_batch //= 2
    return text("memory.rung.micro_batch", count=state.micro_batch)


def recompute(model: torch.nn.Module, state: Footing) -> Text:
    """Compute activations again in the backward pass instead of keeping them (Chen et al., 2016, arXiv:1604.06174)."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return text("memory.rung.checkpointing")


def recomputes(model: torch.nn.Module) -> bool:
    """Return whether `model` computes activations again; transformers renames its own property for this."""
    return any(getattr(part, "gradient_checkpointing", False) for part in model.modules())


RUNGS: tuple[Rung, ...] = (
    Rung(name="micro_batch", applies=lambda model, state: state.micro_batch > 1, act=halve),
    Rung(
        name="checkpointing",
        applies=lambda model, state: (
            getattr(model, "supports_gradient_checkpointing", False) and not recomputes(model)
        ),
        act=recompute,
    ),
)
"""The ladder, taken from the top each time. Below it only the person can help: shorter examples teach other things."""


def rungs_of(fast: Fast, *, longest_tokens: int = 0, ram_bytes: int = 0) -> tuple[Rung, ...]:
    """Return the ladder of a model: what may go along in a pass of its own does, then the
    decoder keeps less, before anything is done to the micro-batch.

    `longest_tokens`: of an example. `ram_bytes`: the machine's own free memory; no more of it is taken than is planned.
    """
    decoder = fast.decoder
    if decoder is None:
        return RUNGS

    def lower(state: Footing) -> MemoryPolicy | None:
        tokens = state.micro_batch * longest_tokens
        each = max(1, tokens) * _input_bytes(decoder)
        return step_down(decoder.policy, tokens, int(PINNED_SHARE * ram_bytes) // each)

    def keep_less(model: torch.nn.Module, state: Footing) -> Text:
        decoder.follow(lower(state))
        return text("memory.rung.policy")

    def go_apart(model: torch.nn.Module, state: Footing) -> Text:
        decoder.takes_along = False
        return text("memory.rung.apart")

    apart = Rung(name="apart", applies=lambda model, state: decoder.takes_along, act=go_apart)
    less = Rung(name="policy", applies=lambda model, state: lower(state) is not None, act=keep_less)
    return (apart, less, *(rung for rung in RUNGS if rung.name != "checkpointing"))


def _input_bytes(decoder: Decoder) -> int:
    """Return what a layer that keeps its input alone moves out, bytes a token (moved_bytes, layer_memory.py)."""
    layer = decoder.layers[0]
    kept = 1 + (layer.spec.output_norm is not None)
    return decoder.spec.hidden_size * kept * decoder.dtype.itemsize


def climb(
    model: torch.nn.Module, state: Footing, rungs: tuple[Rung, ...] = RUNGS
) -> tuple[Rung, Text] | None:
    """Take the first rung that applies; returns it with what was done, or None when none is left."""
    for rung in rungs:
        if rung.applies(model, state):
            return rung, rung.act(model, state)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory ran out, on the GPU or in the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and WORDS.search(str(error)) is not None


def retry_with_memory(act: Callable[[], T], tell: Callable[[], None]) -> T:
    """Return what `act` returns; when memory runs out, give back what can be, `tell`, and do it once more."""
    try:
        return act()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        let_go(error)
    tell()
    return act()


def let_go(error: BaseException) -> None:
    """Drop what the frames of a failed computation hold (activations, the graph) and give the memory back."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    release_memory()


def release_memory() -> None:
    """Give memory of dropped tensors and models back to the system and the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        # cuBLAS keeps 64 MiB inside the block that a model was loaded into, which then stays reserved whole (5.2 GiB
        # after an 8B model in 4 bits): let go of it first (named in PyTorch's notes on CUDA).
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


@contextmanager
def cap_memory(device: str, share: float = 1.0, held_bytes: int = 0) -> Iterator[int]:
    """Keep this process within `share` of MEMORY_SHARE of what `device` has free, for a block; yields that in bytes.

    `held_bytes`: what the block's own weights take there already; they count as free.

    Beyond it PyTorch raises torch.OutOfMemoryError. Yields 0 and does nothing on a processor.
    """
    if not device.startswith("cuda"):
        yield 0
        return
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    others_bytes = max(0, torch.cuda.memory_reserved(device) - held_bytes)
    limit_bytes = int(others_bytes + MEMORY_SHARE * share * (free_bytes + held_bytes))
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes), device)
    try:
        yield limit_bytes
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def count_vram(device: torch.device) -> int:
    """Return the bytes that tensors take on a card, 0 elsewhere; memory_allocated() sorts 100 numbers for this one."""
    if device.type != "cuda":
        return 0
    return torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["current"]
