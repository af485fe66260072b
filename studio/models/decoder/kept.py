"""What one layer keeps between its forward and its backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Saved:
    """What a layer's backward pass finds; None: computed again."""

    x: Tensor | None
    """(T, H) the layer's input."""
    qkv: Tensor | None = None
    """(T, q + 2 k) after rotation; before norms and rotation where query and key are normalised."""
    attended: Tensor | None = None
    """(T, q) the attention's result."""
    statistics: tuple[Tensor, ...] = ()
    """What the attention's backward pass needs beside it (log-sum-exp)."""
    branch: Tensor | None = None
    """(T, H) the output projection's result, where a norm follows it."""
    middle: Tensor | None = None
    """(T, H) the residual stream after attention."""
    gate_up: Tensor | None = None
    """(T, 2 I)"""
    down: Tensor | None = None
    """(T, H) the down projection's result, where a norm follows it: always kept."""
    u_qkv: Tensor | None = None
    u_output: Tensor | None = None
    u_gate_up: Tensor | None = None
    u_down: Tensor | None = None

    def move_out(self) -> dict[str, Tensor]:
        """Return the large tensors by name, and let go of them."""
        names = ("x", "qkv", "attended", "branch", "middle", "gate_up", "down")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        for name in found:
            setattr(self, name, None)
        return found

    def move_in(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what move_out() gave."""
        for name, tensor in tensors.items():
            setattr(self, name, tensor)


def replace_rows(kept: Saved, part: slice) -> Saved:
    """Return the MLP's side of `kept` for some of its rows."""

    def cut(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[part]

    return Saved(
        None,
        middle=cut(kept.middle),
        gate_up=cut(kept.gate_up),
        down=cut(kept.down),
        u_gate_up=cut(kept.u_gate_up),
        u_down=cut(kept.u_down),
    )
