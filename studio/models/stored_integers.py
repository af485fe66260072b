"""Weights that are stored as packed integers with a scale for each group of inputs: GPTQ, AWQ and compressed-tensors.

    w_oi = (q_oi - z_og) s_og        g: the group of input i, by its place or by a table of its own

Integers of b bits lie behind each other in 32-bit words, the lowest bits first; AWQ turns the order of each eight.
GPTQ (Frantar et al. 2022, arXiv:2210.17323): words go along the inputs of (inputs, outputs); a zero is stored less one
but in its version 2. AWQ (Lin et al. 2023, arXiv:2306.00978): along the outputs of (inputs, outputs).
compressed-tensors (vLLM): along the inputs of (outputs, inputs), q and z count from the middle; in 8 bits unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, Any]
"""A folder's weights as their headers have them: by name something with `dtype` and `shape`."""
Get = Callable[[str], "torch.Tensor | None"]
"""Reads a tensor by its name; None where there is none."""
WORD = 32
"""Bits."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""At which of a word's eight places each of eight neighbours lies."""
PARTS = ("_scale", "_zero_point", "_g_idx", "_shape")
"""What a weight's name goes on with for what compressed-tensors says of it."""
PART_BYTES = 2**26
"""Of integers opened at once."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """`NAME.qweight` (inputs b / 32, outputs), `.qzeros` (groups, outputs b / 32), `.scales` (groups, outputs).

    `.g_idx` (inputs,) may be missing: then inputs of a group are neighbours.
    """

    bits: int
    first_zero: int = 1
    """What is added to a stored zero: 0 in version 2."""

    def is_part(self, key: str, tensors: Tensors) -> bool:
        """See StoredForm."""
        base, _, part = key.rpartition(".")
        return part in ("qzeros", "scales", "g_idx") and base + ".qweight" in tensors

    def find_weight(self, key: str, tensors: Tensors) -> str | None:
        """See StoredForm."""
        base = key.removesuffix(".qweight")
        return f"{base}.weight" if base != key and base + ".scales" in tensors else None

    def shape(self, key: str, tensors: Tensors) -> tuple[int, int] | None:
        """See StoredForm."""
        base = key.removesuffix("qweight")
        words, outputs = tensors[key].shape
        inputs = words * WORD // self.bits
        groups = tensors[base + "scales"].shape[0]
        fits = _fits(tensors, base + "scales", (None, outputs)) and inputs % groups == 0
        if base + "qzeros" in tensors:  # so many words also say that the bits are those of the config
            fits = fits and _fits(tensors, base + "qzeros", (groups, -(-outputs * self.bits // WORD)))
        if base + "g_idx" in tensors:
            fits = fits and _fits(tensors, base + "g_idx", (inputs,))
        return (outputs, inputs) if fits else None

    def open(self, key: str, get: Get) -> torch.Tensor:
        """See StoredForm."""
        base = key.removesuffix("qweight")
        codes, scales, zeros, groups = (
            get(key),
            get(base + "scales"),
            get(base + "qzeros"),
            get(base + "g_idx"),
        )
        middle: torch.Tensor | int = 2 ** (self.bits - 1)
        if zeros is not None:
            middle = (unpack_bits(zeros, self.bits, scales.shape[1]) + self.first_zero & 2**self.bits - 1).T
        return open_groups(codes.T, self.bits, scales.T, middle, groups)


@dataclass(frozen=True, slots=True)
class Awq:
    """`NAME.qweight` (inputs, outputs / 8), `.qzeros` (groups, outputs / 8), `.scales` (groups, outputs); 4 bits."""

    def is_part(self, key: str, tensors: Tensors) -> bool:
        """See StoredForm."""
        base, _, part = key.rpartition(".")
        return part in ("qzeros", "scales") and base + ".qweight" in tensors

    def find_weight(self, key: str, tensors: Tensors) -> str | None:
        """See StoredForm."""
        base = key.removesuffix(".qweight")
        return f"{base}.weight" if base != key and base + ".scales" in tensors else None

    def shape(self, key: str, tensors: Tensors) -> tuple[int, int] | None:
        """See StoredForm."""
        base = key.removesuffix("qweight")
        inputs, words = tensors[key].shape
        fits = _fits(tensors, base + "scales", (None, 8 * words)) and _fits(
            tensors, base + "qzeros", (None, words)
        )
        return (8 * words, inputs) if fits and inputs % tensors[base + "scales"].shape[0] == 0 else None

    def open(self, key: str, get: Get) -> torch.Tensor:
        """See StoredForm."""
        import torch

        base = key.removesuffix("qweight")
        codes, scales, zeros = get(key), get(base + "scales"), get(base + "qzeros")
        inputs, words = codes.shape
        groups = _spread(scales.shape[0], inputs)
        result = torch.empty((8 * words, inputs), dtype=torch.bfloat16)
        for part in _portions(words, 8 * inputs):
            turned = [
                _turn(unpack_bits(one[:, part], 4, 8 * one[:, part].shape[1])).T for one in (codes, zeros)
            ]
            place = slice(8 * part.start, 8 * part.stop)
            result[place] = _scale(turned[0], scales.T[place], turned[1], groups)
        return result


@dataclass(frozen=True, slots=True)
class CompressedIntegers:
    """`NAME.weight_packed` (outputs, inputs b / 32), `.weight_scale` (outputs, groups), `.weight_zero_point`
    (outputs b / 32, groups), `.weight_g_idx`, `.weight_shape`; or `NAME.weight` in int8 with its scales.
    """

    bits: int

    def is_part(self, key: str, tensors: Tensors) -> bool:
        """See StoredForm."""
        base = next((key.removesuffix(end) for end in PARTS if key.endswith(end)), "")
        return base + "_packed" in tensors or getattr(tensors.get(base), "dtype", "") == "I8"

    def find_weight(self, key: str, tensors: Tensors) -> str | None:
        """See StoredForm."""
        base = key.removesuffix("_packed")
        packed = base != key and tensors[key].dtype == "I32"
        plain = base == key and key.endswith(".weight") and tensors[key].dtype == "I8"
        return base if (packed or plain) and base + "_scale" in tensors else None

    def shape(self, key: str, tensors: Tensors) -> tuple[int, int] | None:
        """See StoredForm."""
        base = key.removesuffix("_packed")
        outputs, words = tensors[key].shape
        inputs = words if base == key else words * WORD // self.bits
        scale = tensors[base + "_scale"].shape
        fits = len(scale) == 2 and scale[0] in (1, outputs) and inputs % scale[1] == 0
        return (outputs, inputs) if fits or tuple(scale) in ((1,), ()) else None

    def open(self, key: str, get: Get) -> torch.Tensor:
        """See StoredForm."""
        base = key.removesuffix("_packed")
        codes, scales, zeros = get(key), get(base + "_scale"), get(base + "_zero_point")
        scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
        scales = scales.expand(codes.shape[0], -1)
        if base == key:
            groups = _spread(scales.shape[1], codes.shape[1])
            shift = 0 if zeros is None else zeros.reshape(-1, scales.shape[1]).expand_as(scales)
            return _scale(codes, scales, shift, groups)
        middle = 2 ** (self.bits - 1)
        if zeros is None:
            return open_groups(codes, self.bits, scales, middle, get(base + "_g_idx"))
        if zeros.dtype == codes.dtype:  # packed, along the outputs
            zeros = unpack_bits(zeros.T, self.bits, codes.shape[0]).T
        else:
            zeros = zeros.int() + middle
        return open_groups(codes, self.bits, scales, zeros, get(base + "_g_idx"))


def unpack_bits(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return (..., count) int32 of the integers of `bits` that lie behind each other in (..., n) 32-bit words."""
    import torch

    starts = torch.arange(count) * bits
    first, shift = starts // WORD, starts % WORD
    wide = words.long() & 0xFFFFFFFF
    low = wide[..., first] >> shift
    crosses = shift + bits > WORD
    if crosses.any():
        following = wide[..., (first + 1).clamp_max(words.shape[-1] - 1)] << (WORD - shift)
        low = torch.where(crosses, low | following, low)
    return (low & 2**bits - 1).int()


def open_groups(
    codes: torch.Tensor,  # (outputs, n) int32 words
    bits: int,
    scales: torch.Tensor,  # (outputs, groups)
    zeros: torch.Tensor | int,  # (outputs, groups)
    groups: torch.Tensor | None,  # (inputs,) the group of each input; None: neighbours
) -> torch.Tensor:
    """Return (outputs, inputs) bfloat16 of packed rows."""
    import torch

    inputs = codes.shape[1] * WORD // bits if groups is None else groups.numel()
    groups = _spread(scales.shape[1], inputs) if groups is None else groups.long()
    result = torch.empty((codes.shape[0], inputs), dtype=torch.bfloat16)
    for part in _portions(codes.shape[0], inputs):
        some = zeros if isinstance(zeros, int) else zeros[part]
        result[part] = _scale(unpack_bits(codes[part], bits, inputs), scales[part], some, groups)
    return result


def _scale(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | int, groups: torch.Tensor
) -> torch.Tensor:
    """Return (outputs, inputs) bfloat16 of integers (outputs, inputs)."""
    import torch

    result = torch.empty(codes.shape, dtype=torch.bfloat16)
    for part in _portions(*codes.shape):
        shift = zeros if isinstance(zeros, int) else zeros[part].int()[:, groups]
        result[part] = (codes[part].int() - shift).float() * scales[part].float()[:, groups]
    return result


def _portions(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, PART_BYTES // (8 * columns))
    return (slice(start, start + step) for start in range(0, rows, step))


def _spread(groups: int, inputs: int) -> torch.Tensor:
    """Return the group of each of `inputs` neighbours."""
    import torch

    return torch.arange(inputs) // (inputs // groups)


def _turn(codes: torch.Tensor) -> torch.Tensor:
    """Return (rows, columns) with each eight columns in their own order."""
    rows, columns = codes.shape
    return codes.view(rows, columns // 8, 8)[:, :, list(AWQ_ORDER)].reshape(rows, columns)


def _fits(tensors: Tensors, key: str, shape: Sequence[int | None]) -> bool:
    found = tensors.get(key)
    return (
        found is not None
        and len(found.shape) == len(shape)
        and all(want in (None, one) and one for want, one in zip(shape, found.shape, strict=True))
    )
