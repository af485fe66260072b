"""Writes the keys and values of new tokens where their slots' pages have room for them, in one launch.

Token t of slot b goes to page `block_table[b, t // page_tokens]`, place `t % page_tokens`, with t = lengths[b] - 1: the
new token counts. A slot of length 0 writes nothing. Tables and lengths are read on the device, so that a captured graph
may be played again for other ones. Keys come rotated (`rope` works in place on the joint projection, whose columns may
be given as they lie).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.decode_attention import PAGE_TOKENS
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def reference_forward(
    k: Tensor,  # (slots, key heads, d), any strides but 1 in the last dimension
    v: Tensor,  # (slots, key heads, d)
    k_pages: Tensor,  # (pages, page_tokens, key heads, d)
    v_pages: Tensor,  # (pages, page_tokens, key heads, d)
    block_table: Tensor,  # (slots, pages a slot) int32
    lengths: Tensor,  # (slots,) int32, the new token included
) -> None:
    """Write each slot's row of k and v into its page. On a GPU without waiting for it."""
    page_tokens = k_pages.shape[1]
    token = lengths.long() - 1
    idle = token < 0
    page = block_table.gather(1, (token.clamp_min(0) // page_tokens)[:, None])[:, 0].long()
    # Without waiting for the device rows cannot be left out: an idle slot writes to the first place of all what is
    # there already, or what the slot writes whose place it is.
    page, token = page.masked_fill(idle, 0), (token % page_tokens).masked_fill(idle, 0)
    owns = (page == 0) & (token == 0) & ~idle
    owner = owns.int().argmax(0, keepdim=True)
    for rows, pages in ((k, k_pages), (v, v_pages)):
        stays = torch.where(owns.any(), rows.index_select(0, owner)[0].to(pages.dtype), pages[0, 0])
        pages[page, token] = torch.where(idle[:, None, None], stays, rows.to(pages.dtype))


@triton.jit(do_not_specialize=["lengths_pointer"])
def _write_kernel(
    k_pointer, v_pointer, k_pages_pointer, v_pages_pointer, table_pointer, lengths_pointer,
    k_slot, k_head, v_slot, v_head, k_page, k_token, k_to, v_page, v_token, v_to, table_slot,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The keys and values of one slot."""
    slot = tl.program_id(0).to(tl.int64)
    token = tl.load(lengths_pointer + slot) - 1
    head, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    mask = (head < HEADS) & (column < HEAD_DIM) & (token >= 0)
    page = tl.load(table_pointer + slot * table_slot + token // PAGE, mask=token >= 0, other=0).to(tl.int64)
    place = token % PAGE
    k = tl.load(k_pointer + slot * k_slot + head * k_head + column, mask=mask)
    v = tl.load(v_pointer + slot * v_slot + head * v_head + column, mask=mask)
    to = k_pages_pointer + page * k_page + place * k_token + head * k_to + column
    tl.store(to, k.to(k_pages_pointer.dtype.element_ty), mask=mask)
    to = v_pages_pointer + page * v_page + place * v_token + head * v_to + column
    tl.store(to, v.to(v_pages_pointer.dtype.element_ty), mask=mask)


def fused_forward(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor
) -> None:
    """`reference_forward` in one kernel."""
    slots, heads, head_dim = k.shape
    if not slots:
        return
    with torch.cuda.device_of(k):
        _write_kernel[(slots,)](
            k, v, k_pages, v_pages, block_table, lengths, *k.stride()[:2], *v.stride()[:2],
            *k_pages.stride()[:3], *v_pages.stride()[:3], block_table.stride(0),
            HEADS=heads, HEAD_DIM=head_dim, PAGE=k_pages.shape[1], ROWS=1 << (heads - 1).bit_length(),
            COLUMNS=1 << (head_dim - 1).bit_length(), num_warps=4,
        )  # fmt: skip


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernel may be used on such a device; `width`: all key heads together."""
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    heads: int = 2,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """`rows` slots, 64 at most, of `heads` key heads, `width` numbers together; see `Op.sample`.

    Each has pages of its own. Every fifth slot is idle, the second of all among them. k and v lie in wider rows.
    """
    slots, head_dim = min(rows, 64), max(1, width // heads)
    draws = Draws(dtype=dtype, device=device, wide=wide)
    columns = heads * head_dim
    k, v = (draws.normal(slots, columns + 64)[:, :columns].unflatten(1, (heads, -1)) for _ in range(2))
    table = torch.arange(2 * slots, dtype=torch.int32).flip(0).view(slots, 2).to(device)
    lengths = draws.integers(1, 2 * PAGE_TOKENS + 1, slots, dtype=torch.int32)
    lengths[1::5] = 0

    def run(implementation: Implementation) -> dict[str, Tensor]:
        pages = [
            torch.zeros(2 * slots, PAGE_TOKENS, heads, head_dim, dtype=k.dtype, device=device) for _ in "kv"
        ]
        implementation.forward(k, v, *pages, table, lengths)
        return dict(zip("kv", pages, strict=True))

    return run


WRITE_PAGES = Op(
    name="write_pages",
    reference=Implementation(forward=reference_forward),
    triton=Implementation(forward=fused_forward),
    supports=supports,
    sample=sample,
)
