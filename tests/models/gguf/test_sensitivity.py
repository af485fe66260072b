"""Types by measured loss: at a mix's own size the file is closer to its model, and sizes and losses are kept."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.models.catalog import DEMO_MODEL
from studio.models.gguf.importance import measure_importance
from studio.models.gguf.sensitivity import TooSmall, choose, measure_losses
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.write import plan_file, write_file
from studio.models.gguf.written import compare_file, load_written

pytestmark = pytest.mark.computing


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The demo's folder, model, plan, rows (for measuring, held out), importance and losses."""
    folder = tmp_path_factory.mktemp("demo") / "model"
    shutil.copytree(DEMO_MODEL, folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = (DEMO_MODEL.parent / "demo_data" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    chats = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in lines]
    rows = [tokenizer(words, add_special_tokens=False)["input_ids"] for words in chats]
    plan = plan_file(folder, get_mix("Q4_K_M"), "demo", "demo.gguf")
    importance = measure_importance(
        model, plan.tensors, rows[:8], frozenset(one.inner for one in plan.tensors)
    )
    before = {name: one.clone() for name, one in model.state_dict().items()}
    losses = measure_losses(model, plan, rows[:8], importance)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    return folder, model, plan, rows[20:], importance, losses


@torch.no_grad()
def measure(found, plan, path):
    """Write the plan and return the mean KL of the file from its model, on rows that nothing was measured on."""
    _, model, _, rows, importance, _ = found
    write_file(plan, path, importance)
    compare_file(plan, path)
    assert path.stat().st_size == plan.size_bytes
    packed, total = load_written(plan, path, type(model)), 0.0
    for ids in rows:
        one, other = (each(torch.tensor([ids])).logits[0].log_softmax(-1) for each in (model, packed))
        total += float((one.exp() * (one - other)).sum())
    return total / sum(map(len, rows))


def test_at_the_size_of_a_mix_it_loses_much_less(found, tmp_path):
    plan = found[2]
    chosen = choose(plan, found[5], size_bytes=plan.size_bytes)
    assert plan.size_bytes * 0.99 <= chosen.plan.size_bytes == chosen.point.size_bytes <= plan.size_bytes
    usual, own = (
        measure(found, plan, tmp_path / "usual.gguf"),
        measure(found, chosen.plan, tmp_path / "own.gguf"),
    )
    assert own <= 0.7 * usual
    assert own < 3 * chosen.point.kl and chosen.point.kl < 3 * own


def test_a_loss_is_kept_with_the_smallest_file(found, tmp_path):
    most = math.log(1.01)
    chosen = choose(found[2], found[5], kl=most)
    assert chosen.point.kl <= most and measure(found, chosen.plan, tmp_path / "own.gguf") < 1.5 * most
    sizes = [point.size_bytes for point in chosen.curve]
    assert sizes == sorted(sizes, reverse=True) and chosen.curve[-1].kl > chosen.curve[0].kl
    assert chosen.plan.size_bytes < 0.85 * sizes[0]


def test_what_no_file_can_be_is_refused_with_what_it_can(found):
    plan = found[2]
    with pytest.raises(TooSmall) as refused:
        choose(plan, found[5], size_bytes=plan.size_bytes // 2)
    smallest = refused.value.size_bytes
    assert choose(plan, found[5], size_bytes=smallest).plan.size_bytes == smallest
    with pytest.raises(TooSmall):
        choose(plan, found[5], kl=1e-9)
