"""Finds by trying what a gated MLP does with its gate where its module names no function (LFM2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from studio_kernels.glu import KINDS, activate
from torch import Tensor, nn

from studio.models.adapt import evaluation_mode
from studio.models.norm_probe import TOLERANCE, relative_error

TOKENS = 5


@torch.no_grad()
def find_gate(mlp: nn.Module, gate_up: Sequence[nn.Module], down: nn.Module) -> str | None:
    """Return the kind of gate (glu.KINDS) with which what `gate_up` give becomes what `down` reads; None: unlike all.

    The random state is left as found.
    """
    given: list[Tensor] = []
    hooks = [linear.register_forward_hook(lambda *call: given.append(call[-1])) for linear in gate_up]
    hooks.append(down.register_forward_pre_hook(lambda module, rows: given.append(rows[0])))
    first = next(p for p in mlp.parameters() if p.is_floating_point())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, TOKENS, int(gate_up[0].in_features), generator=generator) * 4.0
    try:
        with evaluation_mode(mlp):
            mlp(x.to(first.device, first.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    if len(given) != len(gate_up) + 1:
        return None
    gate, up = torch.cat(given[:-1], -1).float().chunk(2, -1)
    found = ((relative_error(activate(gate, kind) * up, given[-1]), kind) for kind in KINDS)
    error, kind = min(found)
    return kind if error <= TOLERANCE else None
