"""The engine on trained weights and real conversations: a plain loop's losses, a resume, a talk, a merged export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from studio.core.events import RunPlanned, RunResumed
from studio.core.recipe import (
    AdapterSpec,
    DatasetSpec,
    ModelChoice,
    OptimSpec,
    Recipe,
    RunSpec,
    change_recipe,
)
from studio.engine.chat import Partner, Sampling, Speaker
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.merged import MERGED
from studio.models.catalog import inspect_model
from studio.models.load import set_evaluation
from studio.planning import run_plan as planning
from tests.engine.conftest import Ran, run_here
from tests.engine.plain_loop import held_out_loss, plain_losses, prepare_rows

pytestmark = [pytest.mark.patient, pytest.mark.timeout(1800)]

STEPS, STOP_AT = 20, 10
WAYS: dict[str, dict[str, Any]] = {
    "lora": {},
    "qlora": {"model.quantization": "nf4"},
    "full": {"adapter.method": "full", "optim.learning_rate": 2e-5},
}
TOLERANCE = 1e-3
"""Between the engine's loss of a step and the plain loop's, both in fp32."""
DECODER_TOLERANCE = 1e-4
QUESTION = {"role": "user", "content": "What is the capital of France?"}


def make_recipe(model: object, chats: object, **changes: Any) -> Recipe:
    """Return LoRA on short real conversations: 20 steps of 2 rows, some 20 rows set apart."""
    recipe = Recipe(
        model=ModelChoice(source=str(model), precision="fp32"),
        data=DatasetSpec(
            source=str(chats), max_length=64, max_rows=160, validation_share=0.25, accept_bad_rows=True
        ),
        adapter=AdapterSpec(rank=8, alpha=16.0),
        optim=OptimSpec(learning_rate=2e-4, max_steps=STEPS, batch_size=2),
        run=RunSpec(samples=0, trial=False, save_every=STOP_AT),
    )
    return change_recipe(recipe, changes)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where the conversations are kept once they are read: that takes 15 s."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def rows(trained_model, real_chats, cache):
    """The examples of every run here."""
    return prepare_rows(make_recipe(trained_model, real_chats), cache)


@pytest.fixture(scope="module")
def finished(trained_model, real_chats, machine, cache, tmp_path_factory):
    """A function `finished(way) -> Ran` that trains each of WAYS once."""
    done: dict[str, Ran] = {}

    def get(way: str) -> Ran:
        if way not in done:
            recipe = make_recipe(trained_model, real_chats, **WAYS[way])
            done[way] = run_here(recipe, machine, tmp_path_factory.mktemp("runs"), data_cache=cache)
            assert done[way].record.state == "finished", done[way].log
        return done[way]

    return get


def attach_adapter(model: Any) -> Any:
    """Return the model with the adapter that a recipe of make_recipe() starts from."""
    torch.manual_seed(42)
    return get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
    )


def open_in_nf4() -> dict[str, Any]:
    """Return from_pretrained's settings for a QLoRA base."""
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    return {"quantization_config": config, "device_map": {"": "cpu"}}


def test_a_real_file_is_read_and_its_broken_rows_are_counted(rows):
    facts = rows.facts
    assert (facts.format, facts.rows_read, facts.rows_refused) == ("sharegpt", 17_672, 384)
    assert facts.rows_used + sum(facts.rows_dropped.values()) == 17_672 - 384
    assert 15 <= len(rows.validation) <= 30 and len(rows.train) >= 2 * STEPS


@pytest.mark.parametrize("way", WAYS)
def test_every_step_has_the_loss_of_the_plain_loop(finished, rows, way):
    result = finished(way)
    adapt = (lambda model: model) if way == "full" else attach_adapter
    settings = open_in_nf4() if way == "qlora" else {}
    expected = plain_losses(result.folder.read_recipe(), STEPS, adapt, rows, **settings)
    assert len(result.losses) == STEPS
    assert result.losses == pytest.approx(expected, abs=TOLERANCE)


def test_a_resumed_run_has_the_same_losses(finished, trained_model, real_chats, machine, cache, tmp_path):
    recipe = make_recipe(trained_model, real_chats)
    part = run_here(recipe, machine, tmp_path, stop_at=STOP_AT, data_cache=cache)
    assert part.record.state == "stopped" and len(part.losses) == STOP_AT
    rest = run_here(recipe, machine, tmp_path, folder=part.folder, data_cache=cache)
    assert rest.of(RunResumed)[0].step == STOP_AT and rest.record.state == "finished", rest.log
    assert part.losses + rest.losses == finished("lora").losses


@pytest.mark.parametrize("way", ["lora", "full"])
def test_our_decoder_has_the_losses_of_the_models_own_code(
    finished, trained_model, real_chats, machine, cache, tmp_path, monkeypatch, way
):
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    recipe = make_recipe(trained_model, real_chats, **WAYS[way])
    mine = run_here(recipe, machine, tmp_path, stop_at=STOP_AT, data_cache=cache)
    assert "run.decoder" in {said.id for said in mine.of(RunPlanned)[0].swaps}, mine.log
    assert len(mine.losses) == STOP_AT
    assert mine.losses == pytest.approx(finished(way).losses[:STOP_AT], abs=DECODER_TOLERANCE)


@pytest.mark.parametrize("way", ["lora", "full"])
def test_the_model_names_paris_before_and_after(finished, machine, way):
    result = finished(way)
    recipe = result.folder.read_recipe()
    facts = inspect_model(recipe.model.source)
    plan = planning.plan(machine, recipe, facts)
    speaker = Speaker(
        Partner(facts=facts, plan=plan, recipe=recipe, folder=result.folder, record=result.record)
    )
    for side in ("base", "tuned"):
        answer = speaker.stream(
            [QUESTION], side, Sampling(max_new_tokens=12), lambda so_far: None, lambda: False
        )
        assert "Paris" in answer.words, (side, answer.words)


def test_a_merged_qlora_is_as_good_as_its_adapter(finished, rows, machine, tmp_path):
    result = finished("qlora")
    recipe = result.folder.read_recipe()
    facts = inspect_model(recipe.model.source)
    MERGED.write(
        ExportJob(result.folder.path, result.record, facts, planning.plan(machine, recipe, facts), tmp_path)
    )
    base = AutoModelForCausalLM.from_pretrained(recipe.model.source, dtype=torch.float32, **open_in_nf4())
    tuned = PeftModel.from_pretrained(base, result.folder.path / result.record.artifact)
    set_evaluation(tuned)
    adapter = held_out_loss(tuned, rows.validation)
    assert adapter == pytest.approx(result.record.eval_loss, abs=TOLERANCE)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert held_out_loss(merged, rows.validation) == pytest.approx(adapter, abs=0.01)
