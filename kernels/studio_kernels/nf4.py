"""Decodes bitsandbytes' 4-bit NormalFloat weights into rows of 16 or 32-bit numbers, bit for bit as bitsandbytes does.

    w_i = code[nibble_i] a_b        b = i div 64        a_b = code2[q_b] a2_c + offset        c = b div 256

i counts the weight's elements row by row, so that a block may begin in one row and end in the next. A byte holds two
elements, the first one in its high half. The second equation stands for the nested form ("double quantisation"),
where the scales a are themselves 8-bit. All products and the sum are float32, each rounded on its own (no fused
multiply-add), and w is rounded once, to the output's dtype; where row r has a factor of its own (DoRA), w is multiplied
by it in float32, after that, and rounded again: what is scaled is the weight that others open. Source: Dettmers et al.
2023, arXiv:2305.14314.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws
from studio_kernels.tuned_configs import choose

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BLOCK = 64
"""Elements that share a scale, unless bitsandbytes is told otherwise."""
WORD = 8
"""Elements in four bytes, what a thread decodes at once: 16 bytes of 16-bit output."""
CHUNK_ELEMENTS = 1 << 22
"""What the reference decodes at a time: its two temporaries, 24 MB together, stay in the L2 of an H200 (50 MB)."""
ELEMENTS = 1024
"""Elements of one program where rows are not whole words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nf4:
    """A 4-bit weight of `shape` = (rows, columns), n elements, as bitsandbytes stores it. Shares its tensors."""

    packed: Tensor
    """(ceil(n / 2),) uint8."""
    absmax: Tensor
    """(ceil(n / block),): float32 scales, or uint8 indices into `nested_code`."""
    code: Tensor
    """(16,) float32: what each nibble stands for. From the checkpoint: computed anew, it differs in the last bit."""
    nested_absmax: Tensor | None = None
    """(ceil(blocks / nested_block),) float32; None where `absmax` holds the scales themselves."""
    nested_code: Tensor | None = None
    """(256,) float32."""
    offset: Tensor | None = None
    """() float32, added to every nested scale."""
    block: int = BLOCK
    nested_block: int = 256
    shape: tuple[int, int]
    dtype: torch.dtype
    """What the weight was before it was packed."""
    pairs: Tensor | None = field(default=None, repr=False)
    """(256,) complex64: the two elements of every byte, for the reference: one look-up a byte, not two. Made of `code`
    where it is not given."""

    _words: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.pairs is None:
            pairs = torch.complex(self.code.repeat_interleave(16), self.code.repeat(16))
            object.__setattr__(self, "pairs", pairs)

    @classmethod
    def of(cls, quant_state: Any, packed: Tensor) -> Nf4:
        """The weight that bitsandbytes holds as `packed` (any shape and dtype of whole bytes) and a `QuantState`.

        Raises:
            ValueError: `readable` says no.
        """
        verdict = readable(quant_state)
        if not verdict.ok:
            raise ValueError(verdict.reason)
        nested = quant_state.state2
        rows, columns = quant_state.shape
        return cls(
            packed=packed.detach().view(torch.uint8).reshape(-1),
            absmax=quant_state.absmax.reshape(-1),
            code=quant_state.code,
            nested_absmax=nested.absmax if nested else None,
            nested_code=nested.code if nested else None,
            offset=quant_state.offset.to(torch.float32) if nested else None,
            block=quant_state.blocksize,
            nested_block=nested.blocksize if nested else 256,
            shape=(rows, columns),
            dtype=quant_state.dtype,
        )

    def words(self, dtype: torch.dtype) -> Tensor:
        """(8,) int32: the bytes of `code` in a 16-bit dtype, four a word; the lower bytes of all 16 come first."""
        known = self._words.get(dtype)
        if known is None:
            bits = self.code.to(dtype).view(torch.uint8).view(16, 2)
            known = self._words[dtype] = bits.T.contiguous().view(torch.int32).view(8)
        return known

    def can_begin(self, row: int) -> bool:
        """Whether a block and its nested block begin with `row`, so that `rows()` may start there."""
        return row * self.shape[1] % (self.block * self.nested_block) == 0

    def rows(self, first: int, last: int) -> Nf4:
        """The rows from `first` to `last`, a view. `first` is one of those of can_begin()."""
        start, end = first * self.shape[1], last * self.shape[1]
        blocks = slice(start // self.block, -(-end // self.block))
        outer = slice(blocks.start // self.nested_block, -(-blocks.stop // self.nested_block))
        return replace(
            self,
            packed=self.packed[start // 2 : -(-end // 2)],
            absmax=self.absmax[blocks],
            nested_absmax=None if self.nested_absmax is None else self.nested_absmax[outer],
            shape=(last - first, self.shape[1]),
        )

    @classmethod
    def drawn(cls, draws: Draws, shape: tuple[int, int], dtype: torch.dtype, *, nested: bool) -> Nf4:
        """A weight of random bytes and scales, for tests and samples."""
        rows, width = shape
        blocks = -(-rows * width // 64)
        code = torch.linspace(-1, 1, 16) ** 3
        packed = draws.integers(0, 256, -(-rows * width // 2), dtype=torch.uint8)
        wide = torch.float32
        absmax = (
            draws.integers(0, 256, blocks, dtype=torch.uint8)
            if nested
            else draws.normal(blocks, dtype=wide).abs_()
        )
        return cls(
            packed=packed,
            absmax=absmax,
            code=code.to(draws.device),
            nested_absmax=draws.normal(-(-blocks // 256), dtype=wide).abs_() if nested else None,
            nested_code=draws.normal(256, dtype=wide) if nested else None,
            offset=draws.normal(1, dtype=wide)[0] if nested else None,
            shape=(rows, width),
            dtype=dtype,
        )


def readable(quant_state: Any) -> Support:
    """Whether `Nf4.of` takes a weight with this bitsandbytes `QuantState`."""
    if quant_state.quant_type != "nf4":
        return Support(False, f"The weight is packed as {quant_state.quant_type}, not as nf4.")
    if len(quant_state.shape) != 2:
        return Support(False, f"The weight has {len(quant_state.shape)} dimensions, not 2.")
    if getattr(quant_state, "packing_format_for_cpu", False):
        return Support(False, "The weight was repacked for generation on a processor.")
    sizes = [quant_state.blocksize, *([quant_state.state2.blocksize] if quant_state.state2 else [])]
    if any(size < WORD or size & (size - 1) for size in sizes):
        return Support(False, f"The weight has blocks of {sizes} elements, not of powers of two from 8 up.")
    return Support(True, "The weight is packed as nf4.")


def reference_forward(weight: Nf4, out: Tensor, row_scale: Tensor | None = None) -> Tensor:
    """Decode `weight` into `out` (rows, columns) of any floating dtype and row stride; returns `out`.

    `row_scale` (rows,) float32: what each row is multiplied by, once it is decoded and rounded.
    """
    rows, columns = weight.shape
    scales = open_scales(weight)
    # Chunks of whole rows and blocks, so that each is a view of `out` and of `scales`.
    step = weight.block // gcd(columns, weight.block)
    step = max(step, CHUNK_ELEMENTS // columns // step * step)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        first, last = start * columns, stop * columns
        packed = weight.packed[first // 2 : -(-last // 2)].int()
        values = torch.view_as_real(weight.pairs.index_select(0, packed)).view(-1)[: last - first]
        scale = scales[first // weight.block : -(-last // weight.block)]
        part = out[start:stop]
        if columns % weight.block == 0:
            # One pass: torch multiplies in float32 and rounds as it stores.
            part = part.unflatten(1, (-1, weight.block))
            torch.mul(values.view(part.shape), scale.view(*part.shape[:2], 1), out=part)
        else:
            spread = scale.repeat_interleave(weight.block)[: last - first]
            part.copy_(values.mul_(spread).view(part.shape))
        if row_scale is not None:
            out[start:stop].mul_(row_scale[start:stop, None])
    return out


def open_scales(weight: Nf4) -> Tensor:
    """The scale of every block, (ceil(n / block),) float32."""
    if weight.nested_absmax is None:
        return weight.absmax.float()
    values = weight.nested_code.index_select(0, weight.absmax.int())
    outer = weight.nested_absmax.repeat_interleave(weight.nested_block)[: values.numel()]
    return values.mul_(outer).add_(weight.offset)


@triton.jit()
def _scale(
    block, mask, absmax_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
    NESTED: tl.constexpr, NESTED_BITS: tl.constexpr,
):  # fmt: skip
    """The float32 scales of blocks."""
    absmax = tl.load(absmax_pointer + block, mask=mask, other=0)
    if NESTED:
        inner = tl.load(nested_code_pointer + absmax.to(tl.int32))
        outer = tl.load(nested_absmax_pointer + (block >> NESTED_BITS), mask=mask, other=0.0)
        return inner * outer + tl.load(offset_pointer)
    return absmax.to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def _words_kernel(
    word_pointer, absmax_pointer, code_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
    row_scale_pointer, out_pointer, rows, words, out_stride,
    NESTED: tl.constexpr, SCALED: tl.constexpr, BLOCK_BITS: tl.constexpr, NESTED_BITS: tl.constexpr,
    ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Rows of whole words of 8 elements; a word lies in one block, and its scale is decoded once."""
    tiles = tl.cdiv(words, WORDS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(0) % tiles * WORDS + tl.arange(0, WORDS)
    mask = (row < rows)[:, None] & (word < words)[None, :]
    index = row[:, None] * words + word[None, :]
    packed = tl.load(word_pointer + index, mask=mask, other=0)
    scale = _scale(
        index >> (BLOCK_BITS - 3), mask, absmax_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
        NESTED, NESTED_BITS,
    )  # fmt: skip
    element = tl.arange(0, 8)
    shift = element // 2 * 8 + (1 - element % 2) * 4  # bytes from the lowest up, each from its high half
    nibble = (packed[:, :, None] >> shift[None, None, :]) & 15
    # Looked up in shared memory, whose addresses have 32 bits: a seventh fewer instructions than through the cache.
    table = tl.load(code_pointer + tl.arange(0, 16))
    values = tl.gather(table, nibble.reshape(ROWS * WORDS * 8), 0).reshape(ROWS, WORDS, 8) * scale[:, :, None]
    if SCALED:
        times = tl.load(row_scale_pointer + row, mask=row < rows, other=0.0)
        values = values.to(out_pointer.dtype.element_ty).to(tl.float32) * times[:, None, None]
    out_at = (
        out_pointer + row[:, None, None] * out_stride + (word[None, :, None] * 8 + element[None, None, :])
    )
    tl.store(out_at, values.to(out_pointer.dtype.element_ty), mask=mask[:, :, None])


@triton.jit(do_not_specialize=["rows"])
def _elements_kernel(
    packed_pointer, absmax_pointer, code_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
    row_scale_pointer, out_pointer, rows, columns, out_stride,
    NESTED: tl.constexpr, SCALED: tl.constexpr, BLOCK_BITS: tl.constexpr, NESTED_BITS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Any number of columns, one element at a time."""
    index = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    row = index // columns
    mask = row < rows
    packed = tl.load(packed_pointer + index // 2, mask=mask, other=0).to(tl.int32)
    scale = _scale(
        index >> BLOCK_BITS, mask, absmax_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
        NESTED, NESTED_BITS,
    )  # fmt: skip
    nibble = (packed >> ((1 - index % 2) * 4).to(tl.int32)) & 15
    values = tl.load(code_pointer + nibble) * scale
    if SCALED:
        values = values.to(out_pointer.dtype.element_ty).to(tl.float32)
        values *= tl.load(row_scale_pointer + row, mask=mask, other=0.0)
    out_at = out_pointer + row * out_stride + (index - row * columns)
    tl.store(out_at, values.to(out_pointer.dtype.element_ty), mask=mask)


def block_shape(columns: int) -> dict[str, int]:
    """Rows and words of one program's tile and its warps, for rows of `columns` elements (whole words).

    Four words a thread, in one row where rows are whole tiles: one load and four stores of 16 bytes each.
    """
    words = columns // WORD
    tile = next(
        (size for size in (512, 256, 128) if words % size == 0), min(128, 1 << (words - 1).bit_length())
    )
    return {"ROWS": 512 // tile, "WORDS": tile, "num_warps": 4}


def triton_forward(weight: Nf4, out: Tensor, row_scale: Tensor | None = None) -> Tensor:
    """`reference_forward` in one launch; `row_scale` contiguous."""
    rows, columns = weight.shape
    nested = weight.nested_absmax is not None
    # Where the scales are not nested, or rows not scaled, nothing is read through these pointers: any tensor will do.
    scales = (weight.absmax, weight.code, weight.nested_absmax, weight.nested_code, weight.offset)
    absmax, code, nested_absmax, nested_code, offset = scales if nested else (*scales[:2], *[weight.code] * 3)
    options = {
        "NESTED": nested,
        "SCALED": row_scale is not None,
        "BLOCK_BITS": weight.block.bit_length() - 1,
        "NESTED_BITS": weight.nested_block.bit_length() - 1,
        "enable_fp_fusion": False,
    }
    times = code if row_scale is None else row_scale
    tensors = (absmax, code, nested_absmax, nested_code, offset, times, out)
    if columns % WORD == 0 and weight.packed.storage_offset() % 4 == 0:
        block = choose("nf4", columns, block_shape(columns), out.device)
        words = columns // WORD
        programs = -(-rows // block["ROWS"]) * -(-words // block["WORDS"])
        with torch.cuda.device_of(out):
            _words_kernel[(programs,)](
                weight.packed.view(torch.int32), *tensors, rows, words, out.stride(0),
                **options, **block,
            )  # fmt: skip
        return out
    programs = -(-rows * columns // ELEMENTS)
    with torch.cuda.device_of(out):
        _elements_kernel[(programs,)](
            weight.packed, *tensors, rows, columns, out.stride(0),
            ELEMENTS=ELEMENTS, num_warps=4, **options,
        )  # fmt: skip
    return out


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernel may decode weights of `width` columns into `dtype` on such a device (see `readable`, too)."""
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    layout: str = "contiguous",
    nested: bool = True,
    scaled: bool = False,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`; `layout` "sliced" decodes into columns of a wider tensor, `scaled` multiplies each row."""
    draws = Draws(dtype=torch.float32, device=device)
    weight = Nf4.drawn(draws, (rows, width), dtype, nested=nested)
    row_scale = draws.normal(rows).abs_() if scaled else None
    options = {"dtype": torch.float64 if wide else dtype, "device": device}

    def run(implementation: Implementation) -> dict[str, Tensor]:
        sliced = layout == "sliced"
        out = torch.full((rows, width + 24 if sliced else width), float("nan"), **options)[:, :width]
        return {"weight": implementation.forward(weight, out, row_scale)}

    return run


NF4 = Op(
    name="nf4",
    reference=Implementation(forward=reference_forward),
    triton=Implementation(forward=triton_forward),
    supports=supports,
    sample=sample,
)
