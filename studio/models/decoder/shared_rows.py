"""What layers of one micro-step read beside the residual stream, and what comes back to it: see SharedRows."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

Pair = tuple[Tensor, Tensor]


@dataclass(slots=True)
class SharedRows:
    """Inputs of each layer, and keys and values that some layers make for others, of one pass over T rows.

    A backward pass goes from the last layer to the first, so a layer that lends finds the sum of what came back.
    """

    inputs: Tensor | None = None
    """(T, L, P) where layers have inputs of their own (blocks/layer_input.py)."""
    gradients: Tensor | None = None
    """(T, L, P) room for their gradients, where these are wanted."""
    keys: dict[int, Pair] = field(default_factory=dict)
    """k, v (T, key heads, d) as attention reads them, by the number of the layer that makes them."""
    streams: Tensor | None = None
    """(T, n H) the last layer's result, where there are several streams, until their gradient comes."""
    key_gradients: dict[int, Pair] = field(default_factory=dict)

    def start(self, inputs: Tensor | None = None) -> None:
        """Forget all of an earlier pass."""
        self.inputs, self.gradients, self.streams = inputs, None, None
        self.keys.clear()
        self.key_gradients.clear()

    def give_back(self, number: int, dk: Tensor, dv: Tensor) -> None:
        """Add the gradients of what layer `number` has lent; dk and dv are then used up."""
        if number not in self.key_gradients:
            self.key_gradients[number] = dk, dv
            return
        for total, one in zip(self.key_gradients[number], (dk, dv), strict=True):
            total.add_(one)

    def settle(self, number: int, dk: Tensor, dv: Tensor) -> Pair:
        """Return the lender's own gradients with those of all that borrowed, and let go of what was lent."""
        self.keys.pop(number, None)
        for one, more in zip((dk, dv), self.key_gradients.pop(number, ()), strict=False):
            one.add_(more)
        return dk, dv
