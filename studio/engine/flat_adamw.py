"""AdamW for flat parameters, by the studio's own op: whether a step is applied is decided where its numbers are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from studio_kernels.adamw import APPLIED, INVERSE_SCALE, LIMIT, NORM, RATE, Steps
from torch import Tensor


class FlatAdamW(torch.optim.AdamW):
    """Clips, steps, and leaves out what is not finite without waiting for the device.

    A step is applied whole or not at all, also where it raises: memory is taken and kernels are compiled before
    anything changes. The state has PyTorch's names and format, and beside them `corrections` (2,), 1 - beta^step as
    the op has counted it; either optimizer takes the other's checkpoint.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        compute: Callable[[], Steps],
        *,
        max_norm: float = 0.0,
        **settings: Any,
    ) -> None:
        """Each of `groups` holds one parameter, (n,) float32; `compute` gives the op as it is bound at the time.

        `max_norm` is the largest norm of a gradient, 0 for any; `settings` are those of torch.optim.AdamW.

        Raises:
            ValueError: a group has another number of parameters, or one is not flat float32.
        """
        super().__init__(groups, **settings)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        flat = all(one.ndim == 1 and one.dtype == torch.float32 for one in parameters)
        if len(parameters) != len(self.param_groups) or not flat:
            raise ValueError("FlatAdamW takes one flat float32 parameter a group.")
        self._compute = compute
        device = parameters[0].device
        self._settings = torch.zeros(3, device=device)
        self._settings[LIMIT] = max_norm
        self._settings[INVERSE_SCALE] = 1.0  # a loss scale is taken out of the gradients before
        self._rates: dict[float, Tensor] = {}
        """The settings of each rate that groups have now."""
        self._counts = torch.zeros(3, device=device)
        self._coefficients = torch.zeros(NORM + 1, device=device)

    def read(self, sums: Tensor) -> tuple[list[float], float, bool]:
        """Return `sums` (M,), the last step's gradient norm before clipping, and whether it was applied; waits once."""
        read = torch.cat((sums, self._coefficients)).tolist()
        coefficients = read[len(sums) :]
        return read[: len(sums)], coefficients[NORM], coefficients[APPLIED] > 0

    @torch.no_grad()
    def step(self, closure: None = None, *, loss: Tensor | None = None) -> None:
        """Enqueue one step; the device leaves it out where the gradient's norm or `loss` () is not finite."""
        groups = [(group, group["params"][0]) for group in self.param_groups]
        op, (beta1, beta2) = self._compute(), groups[0][0]["betas"]
        states = [self._state_of(weights) for _, weights in groups]
        rates = dict.fromkeys(group["lr"] for group, _ in groups)
        if rates.keys() != self._rates.keys():
            self._rates = {rate: self._set_rate(rate) for rate in rates}
        squares = sum(op.squares(weights.grad) for _, weights in groups)
        if loss is not None:
            squares = squares + (loss - loss)  # nothing, or NaN: infinity from infinity is NaN, too
        advanced = {}
        for rate, settings in self._rates.items():
            counts = self._counts.clone()  # the old ones hold until the step is enqueued
            advanced[rate] = op.advance(squares, settings, counts, beta1=beta1, beta2=beta2)
        # One kernel steps all groups, so it compiles or fails at the first: their sizes and places are multiples of 16.
        for (group, weights), state in zip(groups, states, strict=True):
            op.step(
                weights.detach(), weights.grad, state["exp_avg"], state["exp_avg_sq"], advanced[group["lr"]],
                epsilon=group["eps"], weight_decay=group["weight_decay"],
            )  # fmt: skip
        for state in states:
            self._count(state, counts)
        self._coefficients = next(iter(advanced.values()))  # all have one norm

    def state_dict(self) -> dict[str, Any]:
        """Return what load_state_dict() takes; each group has a count of its own, which PyTorch's optimizer raises."""
        data = super().state_dict()
        states = {key: state | {"step": state["step"].clone()} for key, state in data["state"].items()}
        return data | {"state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from state_dict(), or from torch.optim.AdamW's."""
        super().load_state_dict(state_dict)
        group = self.param_groups[0]
        self._counts = torch.zeros_like(self._counts)
        for state in self.state.values():
            applied, corrections = float(state["step"]), state.get("corrections")
            if corrections is None:
                corrections = torch.tensor([1 - beta**applied for beta in group["betas"]])
            counts = torch.tensor([applied, *corrections.tolist()], device=self._counts.device)
            self._count(state, counts)

    def _state_of(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the moments of `weights`, made at the first step: both or none. Raises when memory is out."""
        if "exp_avg" not in self.state.get(weights, ()):
            moments = {name: torch.zeros_like(weights) for name in ("exp_avg", "exp_avg_sq")}
            self._counts = torch.zeros_like(self._counts)
            self.state[weights] = moments
            self._count(self.state[weights], self._counts)
        return self.state[weights]

    def _set_rate(self, rate: float) -> Tensor:
        settings = self._settings.clone()
        settings[RATE].fill_(rate)
        return settings

    def _count(self, state: dict[str, Tensor], counts: Tensor) -> None:
        self._counts = counts
        state["step"], state["corrections"] = counts[0], counts[1:]
