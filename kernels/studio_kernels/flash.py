"""Causal attention within packed documents as own kernels: with capped scores, which no library of PyTorch computes.

The mathematics stands in `attention`; the composed form in `attention_reference` is the reference. Tiles of the T x T
scores live in registers alone; tiles that no document, window or causal mask lets through are not visited. Where
documents lie is read on the device (`Documents.starts` and `.positions`), and how many programs run depends on T alone:
nothing waits for the GPU, and a captured graph may be played again for other documents. Sums are taken in an order that
depends on shapes and documents alone, without atomics, so that runs give equal bits.

    forward      a tile of queries and one head a program: keys go by, with a running maximum and sum
    backward     the same for dq, and delta = rowsum(p dp) on the way: exact, unlike rowsum(do o) of the rounded o;
                 then a tile of keys and one key head a program for dk and dv, over all query heads that share it

tanh(x) = 1 - 2 / (1 + exp(2 x)) in float32: absolutely exact to 1e-7, which is 1e-5 of a score capped at 50.
Sources: Dao 2023, arXiv:2307.08691; softcap: Gemma Team 2024, arXiv:2408.00118.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels import attention_reference
from studio_kernels._triton import gpu_support, interpreted
from studio_kernels.flash_kernels import _forward_kernel, _key_kernel, _query_kernel
from studio_kernels.op import NEEDS_DOTS, Implementation, Op, Support
from studio_kernels.test_inputs import Draws
from studio_kernels.varlen import Documents, Heads

DTYPES = (torch.float16, torch.bfloat16)
MOST_HEAD_DIM = 512
NO_WINDOW = 1 << 30
"""Wider than any batch; sums with a row's place stay within 32 bits."""
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program cuts its work."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int

    def options(self, columns: int) -> dict[str, int]:
        """As a kernel takes them."""
        return {
            "QUERIES": self.queries,
            "KEYS": self.keys,
            "COLUMNS": columns,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


TILES: dict[int, dict[int, tuple[Tile, Tile, Tile]]] = {
    # Shared memory of a block in KB -> padded head width in 16 bits -> forward, dq, dk and dv. Those of 512 fit, and
    # were not timed.
    99: {
        64: (Tile(128, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
        128: (Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 64, 4, 2)),
        256: (Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 1)),
        512: (Tile(32, 16, 4, 1), Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)),
    },
    163: {
        64: (Tile(128, 64, 4, 3), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
        128: (Tile(128, 64, 8, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
        256: (Tile(128, 32, 8, 2), Tile(64, 32, 8, 2), Tile(32, 64, 8, 2)),
        512: (Tile(64, 32, 8, 1), Tile(32, 32, 8, 1), Tile(16, 32, 8, 1)),
    },
    227: {
        64: (Tile(128, 128, 8, 2), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
        128: (Tile(128, 64, 8, 3), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
        256: (Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)),
        512: (Tile(64, 32, 8, 2), Tile(32, 32, 8, 2), Tile(16, 32, 8, 2)),
    },
}
SHARED_KB = {(8, 0): 163, (9, 0): 227, (10, 0): 163, (10, 3): 163}
"""By compute capability; the others have 99. 10.x has 227, but Triton puts more into it there than on 9.0."""


def choose_tiles(row_bytes: int, capability: tuple[int, int] | None) -> tuple[Tile, Tile, Tile]:
    """Tiles of the three kernels for padded heads of `row_bytes` a token; None: not an NVIDIA card."""
    return TILES[SHARED_KB.get(capability, 99)][max(64, row_bytes // 2)]


def read_capability(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA card."""
    nvidia = device.type == "cuda" and not torch.version.hip
    return torch.cuda.get_device_capability(device) if nvidia else None


def _pad(head_dim: int) -> int:
    """Columns of a tile: a power of two, 16 at least (a matrix instruction's)."""
    return max(16, 1 << (head_dim - 1).bit_length())


def _factors(heads: Heads) -> tuple[float, float]:
    """The kernels' `inner` and `outer`."""
    if heads.softcap:
        return 2 * heads.scale / heads.softcap * LOG2_E, heads.softcap * LOG2_E
    return 0.0, heads.scale * LOG2_E


def _constants(heads: Heads) -> dict[str, int]:
    return {
        "SHARED": heads.query_heads // heads.key_heads,
        "CAPPED": bool(heads.softcap),
        "HEAD_DIM": heads.head_dim,
        "WIDE": interpreted(),
    }


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Of tokens, then of heads."""
    return *(x.stride(0) for x in tensors), *(x.stride(1) for x in tensors)


def fused_forward(
    q: Tensor,  # (T, nq, d)
    k: Tensor,  # (T, nk, d)
    v: Tensor,  # (T, nk, d)
    documents: Documents,
    heads: Heads,
) -> tuple[Tensor, tuple[Tensor]]:
    """(out (T, nq, d), (log-sums (T, nq) float32,)); any strides but 1 in the last dimension."""
    rows, columns = q.shape[0], _pad(heads.head_dim)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    # One head's lie together, as the kernels read them.
    sums = torch.empty(heads.query_heads, rows, dtype=torch.float32, device=q.device)
    tile, _, _ = choose_tiles(columns * q.element_size(), read_capability(q.device))
    with torch.cuda.device_of(q):
        _forward_kernel[(-(-rows // tile.queries), heads.query_heads)](
            q, k, v, documents.positions, out, sums, rows, heads.window or NO_WINDOW, *_factors(heads),
            *_strides(q, k, v, out), **_constants(heads), **tile.options(columns),
        )  # fmt: skip
    return out, (sums.T,)


def fused_backward(
    dout: Tensor,  # (T, nq, d)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: tuple[Tensor],
    documents: Documents,
    heads: Heads,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) in the shapes of q, k, v."""
    rows, columns = q.shape[0], _pad(heads.head_dim)
    sums = saved[0].T.contiguous()  # as it was made, unless it has been elsewhere meanwhile
    delta = torch.empty_like(sums)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    _, by_queries, by_keys = choose_tiles(columns * q.element_size(), read_capability(q.device))
    numbers, constants = (*_factors(heads), heads.scale), _constants(heads)
    window = heads.window or NO_WINDOW
    with torch.cuda.device_of(q):
        _query_kernel[(-(-rows // by_queries.queries), heads.query_heads)](
            dout, q, k, v, out, sums, documents.positions, dq, delta, rows, window, *numbers,
            *_strides(dout, q, k, v, out, dq), **constants, SUNK=heads.sunk, **by_queries.options(columns),
        )  # fmt: skip
        _key_kernel[(-(-rows // by_keys.keys), heads.key_heads)](
            dout, q, k, v, sums, delta, documents.positions, documents.starts, dk, dv, rows, window,
            len(documents.starts), *numbers, *_strides(dout, q, k, v, dk, dv), **constants,
            **by_keys.options(columns),
        )  # fmt: skip
    return dq, dk, dv


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on such a device; `width`: all query heads together."""
    return gpu_support(device_type, capability, dtype, DTYPES, dots=True)


def supports_heads(
    device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, heads: Heads
) -> Support:
    """Whether the kernels may be used for these heads on such a device."""
    if heads.head_dim > MOST_HEAD_DIM:
        return Support(
            False, f"The kernel takes heads of up to {MOST_HEAD_DIM} numbers, not {heads.head_dim}."
        )
    width = heads.query_heads * heads.head_dim
    return supports(device_type=device_type, capability=capability, dtype=dtype, width=width)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    head_dim: int = 0,
    shared: int = 2,
    window: int = 0,
    softcap: float = 50.0,
    spread: float = 4.0,
    lengths: tuple[int, ...] = (),
    repeats: int = 1,
    empty: int = 0,
    gap: int = 64,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. `width`: of all query heads, of 128 (or as wide as the power of two below `width`) each.

    `shared` query heads read one key head. `spread`: standard deviation of the scores before they are capped.
    `lengths` of the documents, repeated as often as `repeats` says; a last one takes the rest of the rows. Left out:
    three uneven ones. `empty`: so many empty documents follow, as in a captured graph. q, k and v are views of one
    tensor with a tail of `gap` columns. dq and dk are left out where they are 0: a row that sees itself alone.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide)
    head_dim = head_dim or min(128, max(8, 1 << (width.bit_length() - 1)))
    key_heads = max(1, width // head_dim // shared)
    counts = (key_heads * shared, key_heads, key_heads)
    heads = Heads(
        head_dim=head_dim,
        query_heads=counts[0],
        key_heads=key_heads,
        scale=spread * head_dim**-0.5,
        window=window,
        softcap=softcap,
    )
    given = lengths * repeats or (rows // 3, min(1, rows // 5))
    known = Documents.of((*given, max(0, rows - sum(given))), device)
    columns = sum(counts) * head_dim
    qkv = draws.normal(known.tokens, columns + gap)
    q, k, v = qkv[:, :columns].unflatten(1, (-1, head_dim)).split(counts, 1)
    dout = draws.upstream(known.tokens, counts[0], head_dim)
    padded = Documents(
        lengths=known.lengths,
        starts=torch.cat((known.starts, known.starts[-1:].expand(empty))),
        positions=known.positions,
        uniform=known.uniform,
        longest=known.longest,
    )

    def run(implementation: Implementation) -> dict[str, Tensor]:
        out, saved = implementation.forward(q, k, v, padded, heads)
        dq, dk, dv = implementation.backward(dout, q, k, v, out, saved, padded, heads)
        found = {"out": out, "dv": dv}  # the log-sums show in dq and dk
        return found if window == 1 or known.longest == 1 else found | {"dq": dq, "dk": dk}

    return run


FLASH_ATTENTION = Op(
    name="flash",
    reference=Implementation(forward=attention_reference.forward, backward=attention_reference.backward),
    triton=Implementation(forward=fused_forward, backward=fused_backward),
    supports=supports,
    sample=sample,
    needs_dots=NEEDS_DOTS["flash"],
)
