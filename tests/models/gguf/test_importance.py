"""How much each column of a matrix counts, and that packing heeds it."""

from __future__ import annotations

import pytest
import torch

from studio.models.gguf.importance import measure_importance
from studio.models.gguf.quantize import quantize
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.write import plan_file
from tests.models.gguf.models import MODELS, PROMPTS, make_folder
from tests.models.gguf.test_quantize import open_blocks


@pytest.fixture
def found(tmp_path):
    model = make_folder(tmp_path, *MODELS["llama"])
    plan = plan_file(tmp_path, get_mix("F16"), "tiny", "tiny.gguf")
    kept = frozenset(one.inner for one in plan.tensors if one.inner != "attn_output.weight")
    return model, plan, measure_importance(model, plan.tensors, PROMPTS, kept)


def test_it_is_the_mean_square_of_what_a_linear_reads(found):
    model, plan, importance = found
    seen = []
    layer = model.model.layers[1].mlp.down_proj
    hook = layer.register_forward_pre_hook(
        lambda module, given: seen.append(given[0].detach().reshape(-1, 96))
    )
    with torch.no_grad():
        for ids in PROMPTS:
            model(torch.tensor([ids]))
    hook.remove()
    wanted = torch.cat(seen).square().mean(0)
    torch.testing.assert_close(importance["blk.1.ffn_down.weight"], wanted, rtol=1e-5, atol=1e-9)


def test_each_matrix_has_its_own_and_those_whose_columns_move_have_none(found):
    _, plan, importance = found
    expected = {
        one.name for one in plan.tensors
        if len(one.shape) == 2 and one.inner not in ("attn_output.weight", "token_embd.weight")
    }  # fmt: skip
    assert set(importance) == expected
    assert all((one > 0).all() for one in importance.values())
    assert torch.equal(importance["blk.0.attn_q.weight"], importance["blk.0.attn_k.weight"])


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_columns_that_count_lose_less(name):
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    counts = torch.where(torch.arange(512) % 8 == 0, 100.0, 1.0)

    def lose(importance):
        error = (open_blocks(quantize(x, name, importance).numpy(), name) - x).square().mean(0)
        return float(error[::8].mean())

    assert lose(counts) < 0.9 * lose(None)
