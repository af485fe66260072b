"""What helps against more than one failure, and the recipe changes that go with it."""

from __future__ import annotations

from typing import Any

from studio.core.recipe import Recipe, settle_rate
from studio.machine.failures.failure import Remedy


def halve_batch(recipe: Recipe | None) -> dict[str, Any]:
    """Halve how many examples go at once; those of a step stay, and so does the result."""
    if recipe is None:
        return {"optim.micro_batch": 1}
    most = min(recipe.optim.batch_size, recipe.optim.micro_batch or recipe.optim.batch_size)
    return {"optim.micro_batch": most // 2} if most > 1 else {}


def shorten(recipe: Recipe | None) -> dict[str, Any]:
    """Halve the longest example, down to 256 tokens."""
    if recipe is None or recipe.data.max_length <= 256:
        return {}
    return {"data.max_length": max(256, recipe.data.max_length // 2)}


def recompute(recipe: Recipe | None) -> dict[str, Any]:
    """Turn activation checkpointing on."""
    if recipe is not None and recipe.run.activation_checkpointing == "on":
        return {}
    return {"run.activation_checkpointing": "on"}


def hold_in_4_bits(recipe: Recipe | None) -> dict[str, Any]:
    """Hold the frozen weights in nf4, where there are frozen weights."""
    if recipe is None or recipe.adapter.method == "full" or recipe.model.quantization in ("nf4", "mixed"):
        return {}
    return {"model.quantization": "nf4"}


def lower_rate(recipe: Recipe | None) -> dict[str, Any]:
    """Take a quarter of the learning rate, where it is known: that of an objective `auto` hangs on the data."""
    if recipe is None or (recipe.objective == "auto" and not recipe.optim.learning_rate):
        return {}
    return {"optim.learning_rate": settle_rate(recipe).optim.learning_rate / 4}


def leave_fp16(recipe: Recipe | None) -> dict[str, Any]:
    """Compute in fp32 where fp16 was asked for."""
    return {"model.precision": "fp32"} if recipe is not None and recipe.model.precision == "fp16" else {}


def avoid_bitsandbytes(recipe: Recipe | None) -> dict[str, Any]:
    """Use neither quantised weights nor an 8-bit optimizer."""
    return {"model.quantization": "none", "optim.optimizer": "adamw"}


SMALLER_BATCH = Remedy("smaller_batch", halve_batch)
RECOMPUTE = Remedy("recompute", recompute)
FOUR_BITS = Remedy("four_bits", hold_in_4_bits)
SHORTER = Remedy("shorter", shorten)
SMALLER_MODEL = Remedy("smaller_model")
LOWER_RATE = Remedy("lower_rate", lower_rate)
LEAVE_FP16 = Remedy("leave_fp16", leave_fp16)
USE_FP16 = Remedy("use_fp16", {"model.precision": "fp16"})
PYTORCH_KERNELS = Remedy("pytorch_kernels", {"run.kernels": "pytorch"})
NO_BITSANDBYTES = Remedy("no_bitsandbytes", avoid_bitsandbytes)
ON_PROCESSOR = Remedy("on_processor", {"run.device": "cpu"})
RESUME = Remedy("resume")
RESTART = Remedy("restart")
INSTALL = Remedy("install")
REBUILD = Remedy("rebuild")
UPDATE_DRIVER = Remedy("update_driver")
CLOSE_PROGRAMS = Remedy("close_programs")
FREE_DISK = Remedy("free_disk")
FETCH_AGAIN = Remedy("fetch_again")
CHECK_DATA = Remedy("check_data")
LOCAL_MODEL = Remedy("local_model")
