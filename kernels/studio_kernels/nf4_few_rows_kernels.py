"""The kernels of `nf4_few_rows`: few rows by packed weights, which are opened in registers, and the sum of the parts.

The two nibbles of a byte are neighbours in K, so that the product is one over the even columns and one over the odd
ones: the bytes themselves are the tile, and rows are read as pairs of 16-bit numbers. Nibbles become numbers by PRMT,
which picks four bytes of eight by four nibbles: of 16 numbers' upper and lower bytes that takes two picks each, one
more by the nibbles' fourth bits, and one to join both; 21 instructions for 8 numbers, no memory. A block of 64 columns
has one scale, which multiplies the block's sum in float32.
"""

from __future__ import annotations

from studio_kernels._triton import tl, triton

OPEN = tl.constexpr("""
{
    .reg .b32 low, fourth, a, b, c, d;
    and.b32 low, $4, 0x77777777;
    shr.u32 fourth, $4, 1;
    lop3.b32 fourth, fourth, 0x44444444, 0x32103210, 0xEA;
    prmt.b32 a, $5, $9, low;
    prmt.b32 b, $13, $17, low;
    prmt.b32 a, a, b, fourth;
    prmt.b32 c, $21, $25, low;
    prmt.b32 d, $29, $33, low;
    prmt.b32 c, c, d, fourth;
    prmt.b32 $0, a, c, 0x7351;
    prmt.b32 $2, a, c, 0x6240;
    shr.u32 low, low, 16;
    shr.u32 fourth, fourth, 16;
    prmt.b32 a, $5, $9, low;
    prmt.b32 b, $13, $17, low;
    prmt.b32 a, a, b, fourth;
    prmt.b32 c, $21, $25, low;
    prmt.b32 d, $29, $33, low;
    prmt.b32 c, c, d, fourth;
    prmt.b32 $1, a, c, 0x7351;
    prmt.b32 $3, a, c, 0x6240;
}
""")
"""Four bytes ($4) -> their upper nibbles' numbers ($0, $1) and their lower ones' ($2, $3), two of 16 bits a register.
Each of the eight table words is a register for every one of the four bytes, all the same: hence every fourth."""
OPERANDS = tl.constexpr("=&r,=&r,=&r,=&r," + ",".join(["r"] * 33))


@triton.jit
def _open(packed, words, code_pointer, DTYPE: tl.constexpr, PTX: tl.constexpr):
    """The numbers of the upper and of the lower nibbles of bytes, not scaled."""
    if PTX:
        upper, lower = tl.inline_asm_elementwise(
            OPEN,
            OPERANDS,
            [packed, words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]],
            dtype=(tl.int16, tl.int16),
            is_pure=True,
            pack=4,
        )
        upper, lower = upper.to(DTYPE, bitcast=True), lower.to(DTYPE, bitcast=True)
    else:
        whole = packed.to(tl.int32)
        upper = tl.load(code_pointer + (whole >> 4)).to(DTYPE)
        lower = tl.load(code_pointer + (whole & 15)).to(DTYPE)
    return upper, lower


@triton.jit(do_not_specialize=["outputs", "steps", "steps_a_part"])
def _product_kernel(
    x_pointer, packed_pointer, absmax_pointer, words_pointer, code_pointer, nested_absmax_pointer,
    nested_code_pointer, offset_pointer, u_pointer, b_pointer, out_pointer, rows, outputs, steps, steps_a_part,
    x_stride, u_stride, b_stride, NESTED: tl.constexpr, NESTED_BITS: tl.constexpr, TAIL: tl.constexpr,
    TAIL_BLOCK: tl.constexpr, WHOLE: tl.constexpr, PTX: tl.constexpr, WIDE: tl.constexpr, BLOCKS: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """A tile of outputs over a part of the columns. WHOLE: over all of them, which is written as it is."""
    dtype: tl.constexpr = u_pointer.dtype.element_ty
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(1)
    pair = tl.max_contiguous(tl.arange(0, 16), 4)
    row_mask, out_mask = row < rows, output < outputs
    known = tl.where(out_mask, output, 0).to(tl.int64)  # the last tile reads a row that there is
    words = (
        tl.load(words_pointer), tl.load(words_pointer + 1), tl.load(words_pointer + 2), tl.load(words_pointer + 3),
        tl.load(words_pointer + 4), tl.load(words_pointer + 5), tl.load(words_pointer + 6), tl.load(words_pointer + 7),
    )  # fmt: skip
    offset = tl.load(offset_pointer) if NESTED else 0.0
    packed_at = packed_pointer + known[None, :] * (steps * (BLOCKS * 32)) + pair[:, None]
    x_at = x_pointer + row[:, None] * x_stride + pair[None, :]
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for step in tl.range(part * steps_a_part, tl.minimum((part + 1) * steps_a_part, steps)):
        if NESTED:
            # The indices of BLOCKS neighbouring blocks lie in one word.
            indices = tl.load(absmax_pointer + known * steps + step).to(tl.int32)
            outer = tl.load(nested_absmax_pointer + ((known * steps + step) * BLOCKS >> NESTED_BITS))
        for block in tl.static_range(BLOCKS):
            sums = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
            for half in tl.static_range(2):
                at = (step * BLOCKS + block) * 32 + half * 16
                packed = tl.load(packed_at + at)
                pairs = tl.load(x_at + at, mask=row_mask[:, None], other=0)
                upper, lower = _open(packed, words, code_pointer, dtype, PTX)
                even = (pairs & 0xFFFF).to(tl.uint16).to(dtype, bitcast=True)
                odd = ((pairs >> 16) & 0xFFFF).to(tl.uint16).to(dtype, bitcast=True)
                if WIDE:
                    even, odd = even.to(tl.float32), odd.to(tl.float32)
                    upper, lower = upper.to(tl.float32), lower.to(tl.float32)
                sums = tl.dot(odd, lower, tl.dot(even, upper, sums))
            if NESTED:
                scale = tl.load(nested_code_pointer + ((indices >> (block * 8)) & 255)) * outer + offset
            else:
                scale = tl.load(absmax_pointer + (known * steps + step) * BLOCKS + block)
            total += sums * scale[None, :]
    if TAIL:
        if part == 0:
            column = tl.arange(0, TAIL_BLOCK)
            u = tl.load(
                u_pointer + row[:, None] * u_stride + column[None, :],
                mask=row_mask[:, None] & (column < TAIL)[None, :], other=0.0,
            )  # fmt: skip
            b = tl.load(
                b_pointer + known[None, :] * b_stride + column[:, None],
                mask=(column < TAIL)[:, None],
                other=0.0,
            )
            if WIDE:
                u, b = u.to(tl.float32), b.to(tl.float32)
            total = tl.dot(u, b, total)
    mask = row_mask[:, None] & out_mask[None, :]
    if WHOLE:
        to = out_pointer + row[:, None].to(tl.int64) * outputs + output[None, :]
        tl.store(to, total.to(dtype), mask=mask)
    else:
        to = out_pointer + (part * rows + row[:, None]).to(tl.int64) * outputs + output[None, :]
        tl.store(to, total, mask=mask)


@triton.jit(do_not_specialize=["count"])
def _sum_kernel(parts_pointer, out_pointer, count, PARTS: tl.constexpr, ELEMENTS: tl.constexpr):
    """The sum of the parts, in their order."""
    at = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    mask = at < count
    total = tl.zeros((ELEMENTS,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts_pointer + part * count + at, mask=mask, other=0.0)
    tl.store(out_pointer + at, total.to(out_pointer.dtype.element_ty), mask=mask)
