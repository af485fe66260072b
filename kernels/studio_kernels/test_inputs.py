"""What an op's sample is made of: tensors drawn from a fixed seed, rounded to a dtype, laid out in memory as asked."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(kw_only=True, slots=True)
class Draws:
    """Draws on the processor, so that every device and both widths (`wide` or not) see the same numbers."""

    dtype: torch.dtype
    device: torch.device | str
    wide: bool = False
    """Hold what was rounded to `dtype` in float64."""
    layout: str = "contiguous"
    """How `normal` lays out its rows: as they are; as columns of a wider tensor, NaN between them; as a transpose."""
    seed: int = 0
    _generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def normal(
        self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Normal values; tensors of two and more dimensions lie in memory as `layout` says."""
        values = torch.randn(shape, generator=self._generator).mul_(scale).add_(mean)
        return self.place(values, dtype)

    def upstream(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A gradient from above; under `expanded` what `y.sum().backward()` sends: one number, every stride 0."""
        values = self.normal(*shape, dtype=dtype)
        if self.layout != "expanded":
            return values
        return torch.ones((), dtype=values.dtype, device=values.device).expand(shape)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Whole numbers from `low` to `high - 1`."""
        return torch.randint(low, high, shape, generator=self._generator).to(dtype).to(self.device)

    def place(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """`values` rounded to `dtype` (this one's own when None), on the device, laid out."""
        rounded = values.to(dtype or self.dtype)
        placed = (rounded.double() if self.wide else rounded).to(self.device)
        return lay_out(placed, self.layout) if values.dim() >= 2 else placed


def lay_out(values: Tensor, layout: str) -> Tensor:
    """The same values, another place in memory; what lies between them is NaN, so that a stray read shows."""
    if layout in ("contiguous", "expanded"):
        return values.contiguous()
    *rows, width = values.shape
    options = {"dtype": values.dtype, "device": values.device}
    if layout == "sliced":
        # 8 elements before: 16-byte loads stay aligned, as in the wider tensors of the decoder.
        view = torch.full((*rows, 2 * width + 8), float("nan"), **options)[..., 8 : 8 + width]
    else:
        view = torch.full((width, *rows), float("nan"), **options).movedim(0, -1)
    return view.copy_(values)
