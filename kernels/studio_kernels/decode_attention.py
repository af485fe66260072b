"""Attention of one new token a slot over keys and values that lie in pages: what a step of generation reads.

    o_h = sum_j p_hj v_j        p_hj = exp(s_hj) / (sum_j exp(s_hj) + exp(z_h))        s_hj = scale q_h . k_j

over the keys j of the slot, of which the last is the new token's own; the last `window` of them where there is a
window, s -> softcap tanh(s / softcap) where scores are capped, and z_h the sinks where a model has them (else left
out). Key j of slot b lies in page `block_table[b, j // page_tokens]` at `j % page_tokens`.

The keys of a slot are cut into parts, each a program's for all query heads that share a key head: the parts keep their
highest score, its sum and their values, and are added as one softmax. How many parts there are depends on shapes alone,
which tiles are whose on the lengths, which are read on the device: nothing waits for the GPU, and a captured graph may
be played again for other lengths and tables. What lies beyond a slot's length is not read; a slot of length 0 gives 0.
Sources: Dao et al. 2023 (Flash-Decoding); Kwon et al. 2023, arXiv:2309.06180 (pages); softcap and sinks as `flash`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, interpreted
from studio_kernels.decode_attention_kernels import _merge_kernel, _part_kernel
from studio_kernels.flash import LOG2_E, NO_WINDOW
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16)
PAGE_TOKENS = 64
"""Tokens of a page."""
PROGRAMS = 528
"""That many parts fill a card: four for each of the 132 multiprocessors of an H200."""
MOST_PARTS = 128
AT_ONCE = 8
LEAST_KEYS = 16
"""What a matrix instruction takes."""


@dataclass(frozen=True, slots=True)
class KeyTile:
    """How one program cuts its work."""

    keys: int
    num_warps: int
    num_stages: int


def choose_tile(head_dim: int) -> KeyTile:
    """The tile for heads of this width: 16 KB of keys and as many of values in 16 bits."""
    keys = max(LEAST_KEYS, 8192 // (1 << max(7, (head_dim - 1).bit_length())))
    return KeyTile(keys=keys, num_warps=4, num_stages=3)


def count_parts(slots: int, key_heads: int, tokens: int, keys: int) -> int:
    """Parts of each slot's keys: enough to fill the card, none without a tile of `keys`; `tokens`: most of a slot."""
    wanted = -(-PROGRAMS // max(1, slots * key_heads))
    return max(1, min(wanted, -(-tokens // keys), MOST_PARTS))


def reference_forward(
    q: Tensor,  # (slots, heads, d), any strides but 1 in the last dimension
    k_pages: Tensor,  # (pages, page_tokens, key heads, d)
    v_pages: Tensor,  # (pages, page_tokens, key heads, d)
    block_table: Tensor,  # (slots, pages a slot) int32
    lengths: Tensor,  # (slots,) int32, the new token's key included
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,  # (heads,)
) -> Tensor:  # (slots, heads, d)
    """The output of every slot. `window` 0: all keys; `softcap` 0: none. On a GPU without waiting for it."""
    page_tokens, key_heads = k_pages.shape[1:3]
    if lengths.device.type == "cpu":  # no more pages than the longest slot has
        most = int(lengths.max()) if len(lengths) else 0
        block_table = block_table[:, : -(-most // page_tokens)]
    wide = torch.promote_types(q.dtype, torch.float32)
    place = torch.arange(block_table.shape[1] * page_tokens, device=q.device)
    seen = place < lengths[:, None]
    if window:
        seen &= place >= lengths[:, None] - window
    used = seen.unflatten(1, (-1, page_tokens)).any(-1)
    table = block_table.long().masked_fill(~used, 0)
    k, v = (pages[table].flatten(1, 2).permute(0, 2, 1, 3).to(wide) for pages in (k_pages, v_pages))
    grouped = q.unflatten(1, (key_heads, -1)).to(wide)
    scores = grouped @ k.transpose(2, 3) * scale
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    seen = seen[:, None, None]
    scores = scores.masked_fill(~seen, -math.inf)
    highest = scores.amax(-1, keepdim=True).clamp_min(-1e30) if scores.shape[-1] else scores.new_zeros(1)
    sums = None
    if sinks is not None:
        own = sinks.to(wide).view(1, key_heads, -1, 1)
        highest = torch.maximum(highest, own)
        sums = (own - highest).exp()
    shares = (scores - highest).exp_()
    total = shares.sum(-1, keepdim=True)
    total = total if sums is None else total + sums
    # What is not seen may hold anything, NaN too.
    values = v.masked_fill(~seen.transpose(2, 3), 0.0)
    out = (shares @ values) / total.masked_fill(total == 0, 1.0)
    return out.flatten(1, 2).to(q.dtype)


def fused_forward(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    parts: int = 0,
    tile: KeyTile | None = None,
) -> Tensor:
    """`reference_forward` in one kernel, or two where the keys are cut into `parts` (0: as many as fill the card)."""
    slots, heads, head_dim = q.shape
    page_tokens, key_heads = k_pages.shape[1:3]
    tile = tile or choose_tile(head_dim)
    parts = parts or count_parts(slots, key_heads, block_table.shape[1] * page_tokens, tile.keys)
    shared, columns = heads // key_heads, max(16, 1 << (head_dim - 1).bit_length())
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not slots:
        return out
    values, highest, total = out, q, q  # nothing is written there where there is one part
    if parts > 1:
        numbers = {"dtype": torch.float32, "device": q.device}
        values = torch.empty(slots, heads, parts, head_dim, **numbers)
        highest, total = (torch.empty(slots, heads, parts, **numbers) for _ in range(2))
    inner, outer = (2 * scale / softcap * LOG2_E, softcap * LOG2_E) if softcap else (0.0, scale * LOG2_E)
    given = q if sinks is None else sinks
    with torch.cuda.device_of(q):
        _part_kernel[(slots, key_heads, parts)](
            q, k_pages, v_pages, block_table, lengths, given, values, highest, total, window or NO_WINDOW, inner,
            outer, *q.stride()[:2], *k_pages.stride()[:3], *v_pages.stride()[:3], block_table.stride(0),
            SHARED=shared, HEAD_DIM=head_dim, PAGE=page_tokens, CAPPED=bool(softcap), SUNK=sinks is not None,
            WHOLE=parts == 1, WIDE=interpreted(), QUERIES=max(16, 1 << (shared - 1).bit_length()), KEYS=tile.keys,
            COLUMNS=columns, num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        if parts > 1:
            _merge_kernel[(slots * heads,)](
                values, highest, total, given, out, heads, parts, HEAD_DIM=head_dim, SUNK=sinks is not None,
                PARTS=MOST_PARTS, COLUMNS=columns, AT_ONCE=AT_ONCE, num_warps=4,
            )  # fmt: skip
    return out


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on such a device; `width`: all query heads together."""
    return gpu_support(device_type, capability, dtype, DTYPES, dots=True)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    slots: int = 3,
    head_dim: int = 0,
    shared: int = 2,
    window: int = 0,
    softcap: float = 0.0,
    sunk: bool = False,
    spread: float = 4.0,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. `rows`: tokens of the longest slot; `width`: of all query heads, of 128 each where they can be.

    The first slot is the longest, the second has no key, the others are uneven; they share pages, as prefixes are.
    Whatever is beyond a slot's length is NaN. `spread`: standard deviation of the scores.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide)
    head_dim = head_dim or min(128, max(16, 1 << (width.bit_length() - 1)))
    key_heads = max(1, width // head_dim // shared)
    pages = -(-rows // PAGE_TOKENS)
    q = draws.normal(slots, key_heads * shared, head_dim)
    k, v = (draws.normal(pages + 1, PAGE_TOKENS, key_heads, head_dim) for _ in range(2))
    for one in (k, v):  # the last page is nobody's, and the last of the longest slot is not full
        one[pages] = math.nan
        one[pages - 1, (rows - 1) % PAGE_TOKENS + 1 :] = math.nan
    counts = [rows, 0, *(1 + place * 37 % rows for place in range(1, slots))][:slots]
    table = torch.full((slots, pages + 2), pages, dtype=torch.int32)
    for slot, count in enumerate(counts):
        used = -(-count // PAGE_TOKENS)
        # Turned round where the page that ends in NaN, the longest slot's last, is not among them.
        order = torch.arange(pages) if slot == 0 or used == pages else torch.arange(pages - 1).flip(0)
        table[slot, :used] = order[:used]
    lengths = torch.tensor(counts, dtype=torch.int32)
    sinks = draws.normal(key_heads * shared) if sunk else None
    options = {"scale": spread * head_dim**-0.5, "window": window, "softcap": softcap, "sinks": sinks}
    placed = table.to(device), lengths.to(device)

    def run(implementation: Implementation) -> dict[str, Tensor]:
        return {"out": implementation.forward(q, k, v, *placed, **options)}

    return run


DECODE_ATTENTION = Op(
    name="decode_attention",
    reference=Implementation(forward=reference_forward),
    triton=Implementation(forward=fused_forward),
    supports=supports,
    sample=sample,
    needs_dots=True,
)
