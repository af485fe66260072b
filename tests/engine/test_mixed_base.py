"""Runs on a base in 4 bits that is fitted to their rows: both ways of computing, a resume, a talk, exports."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from studio.core.events import RunFailed, RunPlanned, RunResumed
from studio.engine.chat import Partner, Sampling, Speaker
from studio.engine.checkpoint import list_checkpoints
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.merged import MERGED
from studio.engine.exporters.trl_script import find_problem
from studio.engine.run_states import RESULT
from studio.models.catalog import inspect_model
from studio.models.load import load_model, set_evaluation
from studio.planning import run_plan as planning
from tests.engine.conftest import run_here
from tests.machine.facts import make_recipe

STEPS, STOP_AT = 6, 3
CHANGES = {
    "model.quantization": "mixed",
    "model.more_bits": 0.1,
    "model.precision": "bf16",
    "data.validation_share": 0.05,
    "optim.max_steps": STEPS,
    "optim.learning_rate": 1e-3,
    "run.save_every": STOP_AT,
    "run.samples": 0,
}
pytestmark = pytest.mark.computing


@pytest.fixture(scope="module")
def whole(machine, tmp_path_factory):
    """The demo trained on such a base, once."""
    result = run_here(make_recipe(CHANGES), machine, tmp_path_factory.mktemp("runs"))
    assert result.record.state == "finished", result.log
    return result


@pytest.fixture
def stopped(machine, tmp_path):
    """The same, stopped behind its first checkpoint."""
    part = run_here(make_recipe(CHANGES), machine, tmp_path, stop_at=STOP_AT)
    assert part.record.state == "stopped", part.log
    return part


def make_job(result, machine, target):
    """Return an export of a run into the folder `target`."""
    recipe = result.folder.read_recipe()
    facts = inspect_model(recipe.model.source)
    planned = planning.plan(machine, recipe, facts)
    return ExportJob(result.folder.path, result.record, facts, planned, target)


def told(result):
    return {said.id: said.values for said in result.of(RunPlanned)[0].swaps}


def test_a_run_says_what_it_holds_and_merges_what_it_trained_on(whole, machine, tmp_path):
    held = told(whole)["mixed.held"]
    assert int(held["kept"]) > 0 and float(held["kl"]) < 0.7 * float(held["uniform_kl"])
    job = make_job(whole, machine, tmp_path)
    assert find_problem(job).id == "export.script.mixed"
    MERGED.write(job)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    settings = {"device": "cpu", "dtype": "fp32", "quantization": "mixed"}
    ids, found = torch.arange(20, 60)[None], {}
    for name, base in (("own", whole.folder.mixed_base), ("plain", None)):
        model = load_model(job.facts, base=base, **settings).model
        tuned = PeftModel.from_pretrained(model, whole.folder.path / "adapter")
        set_evaluation(tuned)
        with torch.no_grad():
            found[name] = float((merged(ids).logits - tuned(ids).logits).abs().max())
    assert found["own"] < 0.1 < found["plain"], "merged into another base than it was trained on"


def test_a_stopped_run_goes_on_with_the_same_base(stopped, whole, machine, tmp_path):
    written = stopped.folder.mixed_base.read_bytes()
    assert written == whole.folder.mixed_base.read_bytes()
    rest = run_here(make_recipe(CHANGES), machine, tmp_path, folder=stopped.folder)
    assert rest.of(RunResumed)[0].step == STOP_AT and rest.record.state == "finished", rest.log
    assert stopped.folder.mixed_base.read_bytes() == written
    assert stopped.losses + rest.losses == whole.losses
    assert told(rest)["mixed.held"] == told(whole)["mixed.held"]


def test_without_its_base_a_stopped_run_does_not_go_on(stopped, machine, tmp_path):
    stopped.folder.mixed_base.unlink()
    rest = run_here(make_recipe(CHANGES), machine, tmp_path, folder=stopped.folder)
    assert rest.record.state == "failed" and rest.failure == "refused"
    assert rest.of(RunFailed)[0].diagnosis.what.id == "mixed.file"
    assert not stopped.folder.mixed_base.exists()


def test_our_decoder_computes_it_as_the_models_own_code_does(machine, tmp_path, monkeypatch):
    recipe = make_recipe(CHANGES | {"model.precision": "fp32"})
    stock = run_here(recipe, machine, tmp_path)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    ours = run_here(recipe, machine, tmp_path)
    assert "run.decoder" in told(ours) and "run.decoder" not in told(stock), ours.log
    assert ours.losses == pytest.approx(stock.losses, abs=1e-4)


def test_it_is_talked_to_on_its_own_base(whole, machine):
    recipe = whole.folder.read_recipe()
    facts = inspect_model(recipe.model.source)
    plan = planning.plan(machine, recipe, facts)
    known = {"facts": facts, "plan": plan, "recipe": recipe, "folder": whole.folder, "record": whole.record}
    question = {"role": "user", "content": "Please send four red ladders to Todrichi for Linda."}
    for place in (RESULT, list_checkpoints(whole.folder.checkpoints)[-1].path.name):
        speaker = Speaker(Partner(**known, place=place))
        inner = [one for name, one in speaker.tuned.named_modules() if name.endswith("base_layer")]
        kept = sum(type(one) is torch.nn.Linear for one in inner)
        assert kept == int(told(whole)["mixed.held"]["kept"]), place
        limits = Sampling(max_new_tokens=8)
        assert speaker.stream([question], "tuned", limits, lambda _: None, lambda: False).words
