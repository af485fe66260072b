"""Tokens that a recipe adds, from the recipe to what others load: by the decoder and by the model's own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.core.events import RunPlanned, RunResumed
from studio.core.recipe import Recipe, change_recipe
from studio.data.prepare import prepare
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.merged import MERGED
from studio.models.catalog import inspect_model
from studio.models.tokenizer import load_run_tokenizer
from studio.planning import run_plan as planning
from tests.engine.conftest import Ran
from tests.engine.plain_loop import plain_losses

pytestmark = pytest.mark.computing

TOKENS = ("it is", "<|tool|>", "say")
"""Two that the rows are full of, and one that they lack."""


@pytest.fixture
def own(monkeypatch):
    """Has the decoder planned on a processor, too."""
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)


@pytest.fixture
def source(make_tiny_model, tmp_path) -> str:
    """The folder of a model without a row to spare."""
    return str(make_tiny_model(tmp_path / "model", vocab_size=261))


def reload(ran: Ran, source: str) -> PeftModel:
    """Return the result as somebody without the studio loads it."""
    folder = ran.folder.path / ran.record.artifact
    tokenizer = AutoTokenizer.from_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if len(tokenizer) > base.get_input_embeddings().weight.shape[0]:
        base.resize_token_embeddings(len(tokenizer))
    return PeftModel.from_pretrained(base, folder)


def rows_of(ran: Ran) -> dict[str, torch.Tensor]:
    found = load_file(ran.folder.path / ran.record.artifact / "adapter_model.safetensors")
    return {name: tensor for name, tensor in found.items() if "trainable_tokens" in name}


@pytest.mark.parametrize("tied", [False, True])
def test_a_run_by_the_decoder_is_that_of_the_models_own_code_and_of_plain_peft(
    ran, recipe, make_tiny_model, tmp_path, monkeypatch, tied
):
    source = str(make_tiny_model(tmp_path / "model", vocab_size=261, tie_word_embeddings=tied))
    changes = {"model.source": source, "adapter.tokens": TOKENS, "optim.learning_rate": 2e-3}
    stock = ran(changes)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    mine = ran(changes)
    assert stock.record.state == mine.record.state == "finished", stock.log + mine.log
    said = [{text.id for text in one.of(RunPlanned)[0].swaps} for one in (mine, stock)]
    assert "run.decoder" in said[0] and "run.decoder" not in said[1]
    assert mine.losses == pytest.approx(stock.losses, abs=1e-4)
    for name, rows in rows_of(stock).items():
        assert (rows_of(mine)[name] - rows).abs().max() < 2e-4, name
    assert len(rows_of(mine)) == (1 if tied else 2)
    assert mine.losses == pytest.approx(
        peft_losses(change_recipe(recipe, changes), len(mine.losses), tied), abs=1e-4
    )


def peft_losses(recipe: Recipe, steps: int, tied: bool) -> list[float]:
    """Return the losses of a bare loop over transformers and peft, of the same rows and first weights."""
    source = recipe.model.source
    facts = inspect_model(source)
    tokenizer = load_run_tokenizer(facts, recipe)
    data = prepare(recipe.data, recipe.objective, tokenizer, seed=recipe.seed)
    plain = AutoTokenizer.from_pretrained(source)
    pieces = [plain(token, add_special_tokens=False)["input_ids"] for token in TOKENS]

    def adapt(model):
        torch.manual_seed(recipe.seed)  # which the new rows' first numbers draw from, too
        first = len(plain)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        ids = list(range(first, first + len(TOKENS)))
        with torch.no_grad():
            for end in (model.get_input_embeddings(), model.get_output_embeddings()):
                for row, one in zip(ids, pieces, strict=True):
                    end.weight[row] = end.weight[one].mean(0)
        names = ["embed_tokens"] if tied else ["embed_tokens", "lm_head"]
        config = LoraConfig(
            r=recipe.adapter.rank,
            lora_alpha=recipe.adapter.alpha,
            target_modules="all-linear",
            exclude_modules=["lm_head"],
            trainable_token_indices={name: ids for name in names},
        )
        return get_peft_model(model, config)

    return plain_losses(recipe, steps, adapt, data)


def test_a_stopped_run_goes_on_to_the_same_bits(ran, own, source):
    changes = {"model.source": source, "adapter.tokens": TOKENS, "run.trial": False}
    whole, part = ran(changes), ran(changes, stop_at=3)
    rest = ran(changes, folder=part.folder)
    assert rest.of(RunResumed)[0].step == 3 and rest.record.state == "finished", rest.log
    assert whole.losses == part.losses + rest.losses
    for name, rows in rows_of(whole).items():
        assert torch.equal(rows_of(rest)[name], rows), name


@pytest.mark.parametrize("way", [{}, {"model.quantization": "nf4"}], ids=str)
def test_others_load_the_adapter_and_the_merged_model_with_the_trained_rows(ran, own, source, tmp_path, way):
    changes = {"model.source": source, "adapter.tokens": TOKENS, "adapter.special_tokens": True}
    result = ran(changes | way)
    assert result.record.state == "finished", result.log
    tuned = reload(result, source)
    tokenizer = AutoTokenizer.from_pretrained(result.folder.path / "adapter")
    (row,) = tokenizer("<|tool|>", add_special_tokens=False)["input_ids"]
    assert tokenizer.added_tokens_decoder[row].special
    said = tokenizer("it is 5", add_special_tokens=False)["input_ids"]
    assert said[0] == row - 1
    merged = export(result, source, tmp_path / "merged")
    ids = torch.tensor([[*said, row]])
    assert merged.get_input_embeddings().weight.shape[0] == len(tokenizer) == merged.config.vocab_size
    with torch.no_grad():
        if not way:
            expected = tuned(ids).logits
            assert (merged(ids).logits - expected).abs().max() < 0.05 * expected.std()
        (first,) = (rows for name, rows in rows_of(result).items() if "embed_tokens" in name)
        assert torch.allclose(merged.get_input_embeddings().weight[row], first[1], rtol=2**-7)
        plain = AutoModelForCausalLM.from_pretrained(source).get_input_embeddings().weight
        assert torch.equal(tuned.get_input_embeddings().token_adapter.base_layer.weight[: len(plain)], plain)
    pieces = AutoTokenizer.from_pretrained(source)("say", add_special_tokens=False)["input_ids"]
    start = plain[pieces].mean(0)
    assert (
        not torch.allclose(first[2], start, atol=1e-3)
        and torch.cosine_similarity(first[2], start, dim=0) > 0.3
    )


def export(result: Ran, source: str, target: Path):
    target.mkdir()
    facts = inspect_model(source)
    plan = result.of(RunPlanned)[0].plan
    job = ExportJob(
        run_folder=result.folder.path, record=result.record, facts=facts, plan=plan, target=target
    )
    MERGED.write(job)
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
