"""Numbers packed into GGUF's blocks: Q8_0 and the K types, each block searched for the scales that lose least.

The search is llama.cpp's (ggml-quants.c, MIT licence, copyright the ggml authors), as arithmetic over all blocks at
once. Without importance it tries as many scales as with it, where llama.cpp tries fewer.

    Q4_K, Q5_K   x = d ls q - dmin lm     8 parts of 32, ls and lm of 6 bits, q of 4 or 5
    Q6_K         x = d ls (q - 32)        16 parts of 16, ls of 8 bits, q of 6
    Q5_0, Q5_1   x = d (q - 16), d q + m  blocks of 32, where rows are no whole blocks of 256
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PART_VALUES = 2**18
"""Numbers packed at once on the processor, whose caches hold the search's ten copies of them: 1.7 times as fast as 2^21
in Q4_K."""
CARD_VALUES, CARD_LEAST = 2**25, 2**21
"""On a card, about 1.2 GB: passes over so many numbers take longer than starting them does. Fewer where there is no
room, down to the second number."""
BLOCK = 256
SHORT = ("Q8_0", "Q5_0", "Q5_1")
"""Forms whose blocks are 32 numbers."""
TINY = 1e-15


def quantize(
    values: torch.Tensor,
    name: str,
    importance: torch.Tensor | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Return the blocks of `values` (rows, columns) as bytes (rows, bytes a row) of the form `name`, where values are.

    importance: (columns,) fp32, above 0: how much an error in each column counts. Columns are whole blocks.
    device: that computes, None for that of `values`. What a card has no room for, not even in smaller parts, the
    processor packs. Raises KeyError for a form that is not written here.
    """
    import torch

    rows, columns = values.shape
    device = values.device if device is None else torch.device(device)
    if device.type == "cpu":
        return _quantize_on_processor(values, name, importance).to(values.device)
    most, parts, start = CARD_VALUES, [], 0
    while start < rows:
        part = values[start : start + max(1, most // columns)]
        try:
            parts.append(_pack_rows(part, name, importance, device).to(values.device))
        except torch.OutOfMemoryError:
            most //= 4
        else:
            start += len(part)
            continue
        torch.cuda.empty_cache()  # the error held what it had no room for
        if most < CARD_LEAST:
            parts.append(_quantize_on_processor(values[start:], name, importance).to(values.device))
            break
    return torch.cat(parts)


def _quantize_on_processor(values: torch.Tensor, name: str, importance: torch.Tensor | None) -> torch.Tensor:
    """Return what quantize() does, on the processor."""
    import torch

    from studio.models.processor_parts import compute_parts

    cpu = torch.device("cpu")
    parts = values.split(max(1, PART_VALUES // values.shape[1]))
    return torch.cat(compute_parts(lambda part: _pack_rows(part, name, importance, cpu), parts))


def _pack_rows(
    rows: torch.Tensor, name: str, importance: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """Return the blocks of `rows` (rows, columns) as bytes (rows, bytes a row), computed and left on `device`."""
    block = 32 if name in SHORT else BLOCK
    weights = None
    if importance is not None:
        weights = importance.to(device).expand(len(rows), -1).reshape(-1, block)
    return PACKED[name](rows.to(device).float().reshape(-1, block), weights).reshape(len(rows), -1)


def _round(values: torch.Tensor) -> torch.Tensor:
    """Round halves away from zero, as C does; PyTorch rounds them to even numbers."""
    import torch

    half = torch.full((), 0.5, dtype=values.dtype, device=values.device)
    return torch.copysign(half, values).add_(values).trunc_()


def _half(values: torch.Tensor) -> torch.Tensor:
    """Return fp16 numbers as two bytes each, (..., 2)."""
    import torch

    return values.to(torch.float16).unsqueeze(-1).view(torch.uint8)


def _pack_q8_0(x: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    import torch

    d = x.abs().amax(-1, keepdim=True) / 127
    q = _round(x * torch.where(d > 0, 1 / d, torch.zeros_like(d))).to(torch.int8)
    return torch.cat((_half(d[:, 0]), q.view(torch.uint8)), dim=-1)


def _weigh(x: torch.Tensor, importance: torch.Tensor | None, part: int) -> torch.Tensor:
    """Return how much an error of each number counts, (blocks, parts, part)."""
    parts = x.reshape(len(x), -1, part)
    if importance is None:
        return parts.square().mean(-1, keepdim=True).sqrt() + parts.abs()
    spread = 2 * x.square().mean(-1)[:, None, None]
    return importance.reshape(parts.shape) * (spread + parts.square()).sqrt()


def search_scale_and_min(x: torch.Tensor, w: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and minus the least value of each part, (..., n) -> (...), so that x = scale q - min, q to `most`.

    37 scales are tried; for each the best line through the rounded numbers is found by weighted least squares.
    """
    import torch

    low, high = x.amin(-1).clamp(max=0.0), x.amax(-1)
    sum_w, sum_x = w.sum(-1), (w * x).sum(-1)
    flat = high <= low
    span = torch.where(flat, torch.ones_like(low), high - low)
    scale, least = span / most, low.clone()
    q = _round((x - low[..., None]) / scale[..., None]).clamp(0, most)
    best = (w * (scale[..., None] * q + low[..., None] - x).square()).sum(-1)
    for trial in range(37):
        inverse = (most - 0.9 + 0.05 * trial) / (high - least).clamp(min=TINY)
        # In place: a card is as fast as its memory here. What is below 0, where halves round otherwise, becomes 0.
        q = (x - least[..., None]).mul_(inverse[..., None]).add_(0.5).floor_().clamp_(0, most)
        wq = w * q
        sum_q, sum_qq, sum_xq = wq.sum(-1), (wq * q).sum(-1), wq.mul_(x).sum(-1)
        det = sum_w * sum_qq - sum_q.square()
        safe = torch.where(det > 0, det, torch.ones_like(det))
        this_scale, this_least = (
            (sum_w * sum_xq - sum_x * sum_q) / safe,
            (sum_qq * sum_x - sum_q * sum_xq) / safe,
        )
        above = this_least > 0
        this_scale = torch.where(above, sum_xq / sum_qq.clamp(min=TINY), this_scale)
        this_least = torch.where(above, torch.zeros_like(this_least), this_least)
        off = q.mul_(this_scale[..., None]).add_(this_least[..., None]).sub_(x)
        error = off.square_().mul_(w).sum(-1)
        better = (det > 0) & (error < best)
        best = torch.where(better, error, best)
        scale, least = torch.where(better, this_scale, scale), torch.where(better, this_least, least)
    return torch.where(flat, torch.zeros_like(scale), scale), -least


def _share_scale(x: torch.Tensor, w: torch.Tensor, most: int = 63) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one scale for the positive numbers of each row, (rows, n) -> (rows,), and what they round to."""
    import torch

    top = x.amax(-1, keepdim=True)
    none = top < TINY
    top = torch.where(none, torch.ones_like(top), top)
    inverse = most / top
    best = (w * (x - _round(inverse * x).clamp(0, most) / inverse).square()).sum(-1, keepdim=True)
    for trial in (-4, -3, -2, -1, 1, 2, 3, 4):
        other = (0.1 * trial + most) / top
        error = (w * (x - _round(other * x).clamp(0, most) / other).square()).sum(-1, keepdim=True)
        better = error < best
        best, inverse = torch.where(better, error, best), torch.where(better, other, inverse)
    q = _round(inverse * x).clamp(0, most)
    for _ in range(5):
        before = q.clone()
        sum_xq, sum_qq = (w * x * q).sum(-1), (w * q * q).sum(-1)
        for place in range(x.shape[-1]):
            one, share, old = x[:, place], w[:, place], q[:, place]
            without_xq, without_qq = sum_xq - share * one * old, sum_qq - share * old * old
            able = (without_xq > 0) & (without_qq > 0)
            ratio = without_qq / torch.where(able, without_xq, torch.ones_like(without_xq))
            new = _round(one * ratio).clamp(0, most)
            new_xq, new_qq = without_xq + share * one * new, without_qq + share * new * new
            better = able & (new != old) & (new_xq.square() * sum_qq > sum_xq.square() * new_qq)
            q[:, place] = torch.where(better, new, old)
            sum_xq, sum_qq = torch.where(better, new_xq, sum_xq), torch.where(better, new_qq, sum_qq)
        if torch.equal(before, q):
            break
    sum_xq, sum_qq = (w * x * q).sum(-1), (w * q * q).sum(-1)
    scale = torch.where(sum_qq > 0, sum_xq / sum_qq.clamp(min=TINY), torch.zeros_like(sum_xq))
    none = none[:, 0]
    return torch.where(none, torch.zeros_like(scale), scale), torch.where(
        none[:, None], torch.zeros_like(q), q
    )


def _pack_with_min(x: torch.Tensor, importance: torch.Tensor | None, most: int) -> tuple[torch.Tensor, ...]:
    """Return what Q4_K and Q5_K hold: d, dmin (blocks,), as fp16 has them, ls, lm (blocks, 8), q (blocks, 8, 32)."""
    import torch

    parts, w = x.reshape(-1, 8, 32), _weigh(x, importance, 32)
    scales, mins = search_scale_and_min(parts, w, most)
    shares = w.sum(-1)
    steps, whole = _share_scale(torch.cat((scales, mins)), torch.cat((shares, shares)))
    (d, dmin), (ls, lm) = steps.chunk(2), whole.chunk(2)

    def fill(d: torch.Tensor, dmin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step, low = d[:, None] * ls, dmin[:, None] * lm
        safe = torch.where(step != 0, step, torch.ones_like(step))[..., None]
        q = _round((parts + low[..., None]) / safe).clamp(0, most)
        q = torch.where(step[..., None] != 0, q, torch.zeros_like(q))
        return q, (w * (step[..., None] * q - low[..., None] - parts).square()).sum((-1, -2))

    d, dmin = (one.to(torch.float16).float() for one in (d, dmin))
    q, error = fill(d, dmin)
    for _ in range(2):  # the best d and dmin for these q, kept where they lose less once both are rounded
        a, b = ls[..., None] * q, -lm[..., None].expand_as(q)
        aa, ab, bb = ((w * one * two).sum((-1, -2)) for one, two in ((a, a), (a, b), (b, b)))
        ax, bx = (w * a * parts).sum((-1, -2)), (w * b * parts).sum((-1, -2))
        det = aa * bb - ab.square()
        safe = torch.where(det > 0, det, torch.ones_like(det))
        new_d = ((ax * bb - bx * ab) / safe).to(torch.float16).float()
        new_min = ((bx * aa - ax * ab) / safe).to(torch.float16).float()
        new_q, new_error = fill(new_d, new_min)
        better = (det > 0) & (new_min >= 0) & (new_d > 0) & (new_error < error)
        d, dmin = torch.where(better, new_d, d), torch.where(better, new_min, dmin)
        q, error = torch.where(better[:, None, None], new_q, q), torch.where(better, new_error, error)
    return d, dmin, ls, lm, q


def _pack_six_bits(ls: torch.Tensor, lm: torch.Tensor) -> torch.Tensor:
    """Return 8 scales and 8 mins of 6 bits as 12 bytes (blocks, 12)."""
    import torch

    s, m = ls.to(torch.int32), lm.to(torch.int32)
    first, second = (one[:, :4] | (one[:, 4:] >> 4) << 6 for one in (s, m))
    return torch.cat((first, second, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4), dim=-1).to(torch.uint8)


def _pack_q4_k(x: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
    import torch

    d, dmin, ls, lm, q = _pack_with_min(x, importance, 15)
    pairs = q.to(torch.uint8).reshape(-1, 4, 2, 32)
    packed = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(x), -1)
    return torch.cat((_half(d), _half(dmin), _pack_six_bits(ls, lm), packed), dim=-1)


def _pack_q5_k(x: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
    import torch

    d, dmin, ls, lm, q = _pack_with_min(x, importance, 31)
    whole = q.to(torch.uint8)
    high = torch.zeros(len(x), 32, dtype=torch.uint8, device=x.device)
    for part in range(8):
        high |= (whole[:, part] >> 4) << part
    pairs = (whole & 15).reshape(-1, 4, 2, 32)
    packed = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(x), -1)
    return torch.cat((_half(d), _half(dmin), _pack_six_bits(ls, lm), high, packed), dim=-1)


def _search_scale(x: torch.Tensor, w: torch.Tensor, most: int) -> torch.Tensor:
    """Return the scale of each part (..., n) -> (...), so that x = scale q, q from -most to most - 1."""
    import torch

    place = x.abs().argmax(-1, keepdim=True)
    top = x.gather(-1, place)
    none = top.abs() < TINY
    top = torch.where(none, torch.ones_like(top), top)
    scale, best, wx = None, None, w * x
    for trial in (0, *range(-9, 0), *range(1, 10)):
        q = _round(-(most + 0.1 * trial) / top * x).clamp_(-most, most - 1)
        sum_xq, sum_qq = (wx * q).sum(-1), (w * q).mul_(q).sum(-1)
        new = torch.where(sum_qq > 0, sum_xq / sum_qq.clamp(min=TINY), torch.zeros_like(sum_xq))
        if scale is None:
            scale, best = new, new * sum_xq
            continue
        better = (sum_qq > 0) & (sum_xq.square() > best * sum_qq)
        scale, best = torch.where(better, new, scale), torch.where(better, new * sum_xq, best)
    return torch.where(none[..., 0], torch.zeros_like(scale), scale)


def _pack_q6_k(x: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
    import torch

    parts = x.reshape(-1, 16, 16)
    w = parts.square() if importance is None else importance.reshape(parts.shape)
    scales = _search_scale(parts, w, 32)
    top = scales.gather(-1, scales.abs().argmax(-1, keepdim=True))
    none = top.abs() < TINY
    inverse = -128 / torch.where(none, torch.ones_like(top), top)
    d = torch.where(none, torch.zeros_like(inverse), 1 / inverse)[:, 0].to(torch.float16).float()
    ls = torch.where(none, torch.zeros_like(scales), _round(inverse * scales).clamp(-128, 127))
    step = (d[:, None] * ls)[..., None]
    q = _round(parts / torch.where(step != 0, step, torch.ones_like(step))).clamp(-32, 31)
    q = (torch.where(step != 0, q, torch.zeros_like(q)) + 32).to(torch.uint8).reshape(-1, 2, 4, 32)
    low, high = q & 15, q >> 4
    lows = torch.stack((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), dim=2)
    highs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    signed = ls.to(torch.int8).view(torch.uint8)
    return torch.cat((lows.reshape(len(x), -1), highs.reshape(len(x), -1), signed, _half(d)), dim=-1)


def _join_five_bits(q: torch.Tensor) -> torch.Tensor:
    """Return numbers 0 to 31 (blocks, 32) as their fifth bits, 4 bytes, and the rest, 16 bytes: (blocks, 20)."""
    import torch

    whole = q.to(torch.int32)
    places = 2 ** torch.arange(8, device=q.device, dtype=torch.int32)
    high = ((whole >> 4).reshape(len(q), 4, 8) * places).sum(-1).to(torch.uint8)
    low = (whole[:, :16] & 15 | (whole[:, 16:] & 15) << 4).to(torch.uint8)
    return torch.cat((high, low), dim=-1)


def _pack_q5_0(x: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
    import torch

    w = _weigh_block(x, importance)
    d = _search_scale(x, w, 16).to(torch.float16).float()
    q = _round(x / torch.where(d != 0, d, torch.ones_like(d))[:, None]).clamp(-16, 15)
    q = torch.where(d[:, None] != 0, q, torch.zeros_like(q)) + 16
    return torch.cat((_half(d), _join_five_bits(q)), dim=-1)


def _pack_q5_1(x: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
    import torch

    scale, least = search_scale_and_min(x, _weigh_block(x, importance), 31)
    d, m = scale.to(torch.float16).float(), (-least).to(torch.float16).float()
    q = _round((x - m[:, None]) / torch.where(d != 0, d, torch.ones_like(d))[:, None]).clamp(0, 31)
    q = torch.where(d[:, None] != 0, q, torch.zeros_like(q))
    return torch.cat((_half(d), _half(m), _join_five_bits(q)), dim=-1)


def _weigh_block(x: torch.Tensor, importance: torch.Tensor | None) -> torch.Tensor:
    """Return how much an error of each number counts, (blocks, 32)."""
    import torch

    if importance is None:
        return torch.ones_like(x)
    return importance * (x.square().mean(-1, keepdim=True) + x.square()).sqrt()


Pack = Callable[["torch.Tensor", "torch.Tensor | None"], "torch.Tensor"]
PACKED: dict[str, Pack] = {
    "Q8_0": _pack_q8_0,
    "Q5_0": _pack_q5_0,
    "Q5_1": _pack_q5_1,
    "Q4_K": _pack_q4_k,
    "Q5_K": _pack_q5_k,
    "Q6_K": _pack_q6_k,
}
