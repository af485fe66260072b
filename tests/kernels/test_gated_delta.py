"""The gated delta rule in chunks, by hand, against transformers' own function under autograd."""

from __future__ import annotations

import inspect

import pytest
import torch
from studio_kernels.gated_delta import GATED_DELTA
from studio_kernels.row_chunks import Chunks
from transformers.models.qwen3_5 import modeling_qwen3_5

LENGTHS = (1, 64, 130, 5)
NAMES = ("q", "k", "v", "g", "beta")


def draw(dtype: torch.dtype = torch.float64, fading: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 16), (2, 16), (4, 24), (4,), (4,))
    given = {
        name: torch.randn(sum(LENGTHS), *shape, generator=generator, dtype=torch.float64)
        for name, shape in zip(NAMES, shapes, strict=True)
    }
    given["g"], given["beta"] = -fading * given["g"].abs(), given["beta"].sigmoid()
    return {name: value.to(dtype).requires_grad_() for name, value in given.items()}


def stock(normalise: bool, **given: torch.Tensor) -> torch.Tensor:
    """transformers' function, which computes in float32, in float64; document by document."""
    source = inspect.getsource(inspect.unwrap(modeling_qwen3_5.torch_chunk_gated_delta_rule))
    source = source[source.index("def ") :].replace("torch.float32", "torch.float64")
    names = dict(vars(modeling_qwen3_5))
    exec("from __future__ import annotations\n" + source, names)
    rule = names["torch_chunk_gated_delta_rule"]
    group = given["v"].shape[1] // given["q"].shape[1]
    given |= {
        name: given[name].repeat_interleave(group, 1) for name in ("q", "k")
    }  # transformers 5.17 does not
    parts = zip(*(given[name].split(LENGTHS) for name in NAMES), strict=True)
    rows = [rule(*(one[None] for one in part), use_qk_l2norm_in_kernel=normalise)[0][0] for part in parts]
    return torch.cat(rows)


@pytest.mark.parametrize("normalise, fading", [(True, 1.0), (True, 30.0), (False, 0.01)])
def test_by_hand_it_is_transformers_own_under_autograd(normalise, fading):
    given = draw(fading=fading)
    if not normalise:  # as long as they are with it, or the chunk's inverse grows beyond all bounds
        for name in ("q", "k"):
            given[name] = torch.nn.functional.normalize(given[name].detach(), dim=-1).requires_grad_()
    expected = stock(normalise, **given)
    dout = torch.randn(expected.shape, dtype=torch.float64)
    out = GATED_DELTA.reference(*given.values(), Chunks(LENGTHS, "cpu"), scale=16**-0.5, normalise=normalise)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(out, list(given.values()), dout)
    wanted = torch.autograd.grad(expected, list(given.values()), dout)
    for name, ours, theirs in zip(NAMES, found, wanted, strict=True):
        assert (ours - theirs).abs().max() < 1e-9 * theirs.abs().max(), name


def test_the_twin_sums_in_float32_also_under_autocast():
    given = draw(torch.bfloat16)
    chunks, options = Chunks(LENGTHS, "cpu"), {"scale": 0.25}
    plain = GATED_DELTA.reference(*given.values(), chunks, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(GATED_DELTA.reference(*given.values(), chunks, **options), plain)
    wide = GATED_DELTA.reference(*(value.double() for value in given.values()), chunks, **options)
    assert (plain - wide).abs().max() < 2**-8 * wide.abs().max()


def test_chunks_hold_rows_of_one_document():
    chunks = Chunks(LENGTHS, "cpu")
    assert chunks.table.tolist() == [[0, 1], [1, 65], [65, 129], [129, 193], [193, 195], [195, 200]]
    assert chunks.starts.tolist() == [0, 1, 2, 5, 6]
    assert [sorted(step.tolist()) for step in chunks.steps] == [[0, 1, 2, 5], [3], [4]]
    rows = torch.arange(200.0)[:, None].repeat(1, 6)
    cut = chunks.cut(rows, 3, torch.float64)
    assert cut.shape == (6, 3, 2, 64) and cut[0, 0, 0].count_nonzero() == 0 and cut[5].sum() == 6 * (975 + 10)
    assert torch.equal(chunks.join(cut, torch.float32), rows)
    with pytest.raises(ValueError, match="no rows"):
        Chunks((), "cpu")
