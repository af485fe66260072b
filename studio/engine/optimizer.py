"""Optimizers by name, and the optimizer state as data that loads without pickle code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from studio_kernels.adamw import Steps

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import OptimSpec
from studio.engine.flat_adamw import FlatAdamW
from studio.engine.oom_fallback import is_out_of_memory, let_go

SHARE = "rate_share"
"""Key of a group's learning rate as a share of the recipe's, 1.0 where there is none. What is trained in full beside an
adapter takes a tenth unasked: Unsloth's documentation of continued pretraining trains embedding and head at 5e-6 beside
5e-5, and advises 2 to 10 times less."""


def build_optimizer(
    decayed: Sequence[torch.nn.Parameter],
    undecayed: Sequence[torch.nn.Parameter],
    spec: OptimSpec,
    name: str,
    device: torch.device,
    adamw: Callable[[], Steps] | None = None,
    beside: tuple[Sequence[torch.nn.Parameter], Sequence[torch.nn.Parameter]] = ((), ()),
) -> torch.optim.Optimizer:
    """Return the optimizer `name` (`adamw`, `adamw_8bit`, `paged_adamw_8bit`); weight decay applies to `decayed`.

    `adamw` gives the op that computes `adamw` where all that is trained is flat parameters, None elsewhere. `beside`:
    what is trained beside an adapter, with weight decay and without, each a group of its own whose rate is a share of
    the adapter's.
    """
    groups = [
        {"params": list(decayed), "weight_decay": spec.weight_decay},
        {"params": list(undecayed), "weight_decay": 0.0},
    ]
    for parameters, decay in zip(beside, (spec.weight_decay, 0.0), strict=True):
        groups += [{"params": [one], "weight_decay": decay, SHARE: spec.modules_rate} for one in parameters]
    groups = [group for group in groups if group["params"]]
    settings = {"lr": spec.learning_rate, "betas": (spec.beta1, spec.beta2), "eps": spec.epsilon}
    if name == "adamw" and adamw is not None:
        return FlatAdamW(groups, adamw, max_norm=spec.max_grad_norm, **settings)
    if name == "adamw":
        return torch.optim.AdamW(groups, fused=device.type == "cuda", **settings)
    import bitsandbytes

    kind = {
        "adamw_8bit": bitsandbytes.optim.AdamW8bit,
        "paged_adamw_8bit": bitsandbytes.optim.PagedAdamW8bit,
    }[name]
    return kind(groups, **settings)


def apply_gradients(
    scaler: torch.amp.GradScaler,
    optimizer: torch.optim.Optimizer,
    loss: torch.Tensor,
    *,
    again: bool = False,
) -> bool:
    """Step `optimizer`; return whether memory ran out meanwhile and the step was done once more.

    A loss scale was taken out of the gradients before (unscale_). FlatAdamW looks itself whether they and `loss` ()
    are finite, and takes the memory it needs before it changes anything. The others are stepped through `scaler`;
    their first step makes the moments. AdamW of PyTorch and of bitsandbytes count a parameter's step before they
    change it: with none counted no weight has changed, so what was made is dropped and the same gradients are applied
    anew.
    Raises StudioError when memory is out for good; some weights may have changed then, so the step is lost.
    """
    whole = isinstance(optimizer, FlatAdamW)
    try:
        if whole:
            optimizer.step(loss=loss)
        else:
            scaler.step(optimizer)  # without loss scaling this is optimizer.step()
        return again
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        changed = not whole and any(float(moments.get("step", 0)) for moments in optimizer.state.values())
        if again or changed:
            what, why, fix = (text(f"memory.optimizer.full{part}") for part in ("", ".why", ".fix"))
            raise StudioError(what, why, fix, exit_code=1) from error
        let_go(error)
    if not whole:
        optimizer.state.clear()  # a parameter's moments may be there in part
    return apply_gradients(scaler, optimizer, loss, again=True)
