"""Embedding, head and norms trained in full beside an adapter, from the recipe to what others load."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.core.events import RunPlanned, RunResumed
from studio.core.recipe import Recipe, change_recipe
from studio.engine.chat import Partner, Speaker
from studio.engine.learning_rate import learning_rate
from studio.engine.run_states import RESULT
from studio.models.catalog import inspect_model
from studio.planning import run_plan as planning
from tests.engine.conftest import Ran
from tests.engine.plain_loop import count_labels, make_labels, prepare_rows
from tests.engine.test_new_tokens import TOKENS, export

pytestmark = pytest.mark.computing

ENDS = "embed_tokens, lm_head"


@pytest.fixture
def own(monkeypatch):
    """Has the decoder planned on a processor, too."""
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    return load_file(ran.folder.path / ran.record.artifact / "adapter_model.safetensors")


def freed(ran: Ran) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights(ran).items() if "lora_" not in name}


@pytest.mark.parametrize("tied", [False, True])
def test_a_run_by_the_decoder_is_that_of_the_models_own_code_and_of_plain_peft(
    ran, recipe, make_tiny_model, tmp_path, monkeypatch, tied
):
    source = str(make_tiny_model(tmp_path / "model", tie_word_embeddings=tied))
    changes = {"model.source": source, "adapter.modules_to_save": ENDS + ", norm"}
    changes |= {"optim.modules_rate": 0.5, "optim.learning_rate": 2e-3}
    stock = ran(changes)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    mine = ran(changes)
    assert stock.record.state == mine.record.state == "finished", stock.log + mine.log
    said = [{text.id for text in one.of(RunPlanned)[0].swaps} for one in (mine, stock)]
    assert "run.decoder" in said[0] and "run.decoder" not in said[1]
    assert mine.losses == pytest.approx(stock.losses, abs=1e-4)
    assert len(freed(mine)) == 3
    for name, tensor in weights(stock).items():
        assert (weights(mine)[name] - tensor).abs().max() < 5e-4, name
    plain, tuned = peft_loop(change_recipe(recipe, changes), len(mine.losses), tied)
    assert mine.losses == pytest.approx(plain, abs=1e-4)
    loaded = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), mine.folder.path / "adapter"
    )
    ids = torch.tensor([[5, 9, 60, 100]])
    with torch.no_grad():
        assert (loaded(ids).logits - tuned(ids).logits).abs().max() < 2e-3
        merged = export(mine, source, tmp_path / "merged")
        assert (merged(ids).logits - loaded(ids).logits).abs().max() < 0.05 * loaded(ids).logits.std()
    head, table = merged.get_output_embeddings().weight, merged.get_input_embeddings().weight
    assert (head is table) == tied
    before = AutoModelForCausalLM.from_pretrained(source).get_input_embeddings().weight
    assert (table - before).abs().max() > 5e-4


def peft_loop(recipe: Recipe, steps: int, tied: bool) -> tuple[list[float], PeftModel]:
    """Return the losses of a bare loop over transformers and peft with a learning rate for each, and its model."""
    model = AutoModelForCausalLM.from_pretrained(recipe.model.source, dtype=torch.float32)
    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        r=recipe.adapter.rank, lora_alpha=recipe.adapter.alpha, target_modules="all-linear",
        modules_to_save=["embed_tokens", "model.norm"] if tied else ["embed_tokens", "lm_head", "model.norm"],
        ensure_weight_tying=tied, exclude_modules=["lm_head"],
    )  # fmt: skip
    model = get_peft_model(model, config).train()
    data, spec = prepare_rows(recipe), recipe.optim
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    groups = [
        {
            "params": [one for name, one in named if ("lora_" in name) != beside and (one.ndim < 2) == small],
            "weight_decay": 0.0 if small else spec.weight_decay,
            "share": spec.modules_rate if beside else 1.0,
        }
        for beside in (False, True)
        for small in (False, True)
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], eps=spec.epsilon)
    from studio.engine.batches import StepOrder

    order, losses = StepOrder(len(data.train), spec.batch_size, recipe.seed), []
    for step in range(steps):
        rows = [data.train[i] for i in order.indices(step)]
        tokens = sum(map(count_labels, rows))
        optimizer.zero_grad()
        losses.append(0.0)
        for ids, labels in map(make_labels, rows):
            loss = model(input_ids=ids, labels=labels, num_items_in_batch=tokens).loss
            loss.backward()
            losses[-1] += float(loss.detach())
        torch.nn.utils.clip_grad_norm_([one for _, one in named], spec.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = group["share"] * learning_rate(spec, step, steps)
        optimizer.step()
    return losses, model.eval()


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"model.quantization": "nf4", "model.precision": "bf16", "adapter.tokens": TOKENS},
        {"optim.optimizer": "adamw_8bit"},
    ],
    ids=str,
)
def test_a_stopped_run_goes_on_to_the_same_bits(ran, own, way):
    changes = {"adapter.modules_to_save": ENDS, "run.trial": False} | way
    whole, part = ran(changes), ran(changes, stop_at=3)
    rest = ran(changes, folder=part.folder)
    assert rest.record.state == "finished", rest.log
    assert rest.of(RunResumed)[0].step == 3
    assert whole.losses == part.losses + rest.losses
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(rest)[name], tensor), name


def test_going_on_from_an_adapter_trains_its_modules_and_tokens_again(ran, own, make_tiny_model, tmp_path):
    source = str(make_tiny_model(tmp_path / "model", vocab_size=261))
    changes = {"model.source": source, "adapter.tokens": TOKENS, "adapter.modules_to_save": "embed_tokens"}
    first = ran(changes)
    assert first.record.state == "finished", first.log
    again = ran({"model.source": source, "model.adapter": str(first.folder.path / "adapter")})
    assert again.record.state == "finished", again.log
    assert again.losses[0] < first.losses[0] - 0.1
    before, after = freed(first), freed(again)
    assert before.keys() == after.keys() and len(before) == 2
    for name in before:
        assert not torch.equal(before[name], after[name]), name
    assert len(AutoTokenizer.from_pretrained(again.folder.path / "adapter")) == 264


def test_a_chat_speaks_with_result_and_checkpoint_and_leaves_the_base_as_it_was(ran, own, recipe, machine):
    changes = {"adapter.modules_to_save": "embed_tokens", "adapter.tokens": TOKENS, "run.keep_checkpoints": 3}
    result = ran(changes)
    assert result.record.state == "finished", result.log
    chosen = change_recipe(recipe, changes)
    facts = inspect_model(recipe.model.source)
    given = {"facts": facts, "plan": planning.plan(machine, chosen, facts), "recipe": chosen}
    ids, plain = (
        torch.tensor([[9, 60, 261]]),
        AutoModelForCausalLM.from_pretrained(facts.folder, dtype=torch.float32),
    )
    found = []
    for place in (RESULT, f"step-{result.record.steps:08d}"):
        speaker = Speaker(Partner(folder=result.folder, record=result.record, place=place, **given))
        assert "<|tool|>" in speaker.tokenizer.get_vocab()
        with torch.no_grad():
            found.append(speaker.tuned(ids).logits)
            with speaker.tuned.disable_adapter():
                base = speaker.tuned(ids[:, :2]).logits
            known = plain(ids[:, :2]).logits[..., :261]  # what it knew before there were new tokens
            assert torch.allclose(base[..., :261], known, atol=1e-5)
    assert torch.allclose(found[0], found[1], atol=1e-5)
