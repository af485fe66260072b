"""One run of the real engine: its events, its folder, its failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from studio.core.events import (
    CheckpointSaved,
    DataPrepared,
    EvalLogged,
    PhaseStarted,
    RunFinished,
    RunPlanned,
    RunStopped,
    StepLogged,
    Warned,
)
from studio.core.i18n import load_catalogue
from studio.core.recipe import change_recipe
from tests.conftest import chat_rows
from tests.each_time import some

ROOT = Path(__file__).resolve().parents[2]


def test_events_tell_the_run_in_order(ran):
    result = ran({"data.validation_share": 0.2, "run.eval_every": 3})
    kinds = [event.kind for event in result.events]
    phases = [event.phase for event in result.of(PhaseStarted)]
    assert phases == ["prepare", "load", "trial", "train", "score", "save", "verify"]
    assert kinds.index("run_planned") < kinds.index("data_prepared") < kinds.index("step_logged")
    assert kinds[-1] == "run_finished"
    steps = result.of(StepLogged)
    assert [event.step for event in steps] == list(range(1, result.record.total_steps + 1))
    assert all(event.tokens_per_s > 0 and event.grad_norm > 0 for event in steps)
    assert len(result.of(EvalLogged)) == result.record.total_steps // 3
    assert result.of(CheckpointSaved) and result.of(DataPrepared)[0].facts.rows_used == 24
    assert result.of(RunFinished)[0].artifact == "adapter"


@pytest.mark.computing
def test_the_first_checkpoint_comes_early_by_itself(ran, monkeypatch):
    chosen = {"run.save_every": 0, "optim.max_steps": 30, "run.trial": False}
    saved = [event.step for event in ran(chosen).of(CheckpointSaved)]
    assert saved == [2, 30], "5 % of the steps, then the end"
    monkeypatch.setattr("studio.engine.save_interval.FIRST_SAVE_S", 0.0)
    assert [event.step for event in ran(chosen).of(CheckpointSaved)] == [1, 30], "or 60 s"
    saved = [event.step for event in ran(chosen | {"run.save_every": 20}).of(CheckpointSaved)]
    assert saved == [20, 30], "what a person set holds"


def test_every_choice_has_words_in_both_languages(ran):
    plan = ran().of(RunPlanned)[0].plan
    choices = [plan.device, plan.dtype, plan.attention, plan.quantization, plan.optimizer, plan.checkpointing]
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        for choice in (*choices, *plan.kernels.values()):
            assert catalogue.has(choice.reason.id), choice.reason.id


def test_folder_holds_what_it_should_and_no_more(ran, tiny_models):
    result = ran()
    names = {path.name for path in result.folder.path.iterdir()}
    assert names == {"recipe.json", "plan.json", "run.json", "checkpoints", "adapter"}
    files = [path for path in result.folder.path.rglob("*") if path.is_file()]
    assert not [
        path for path in files if path.name == "training_args.bin" or path.suffix in (".bin", ".pkl", ".pth")
    ]
    record = json.loads((result.folder.path / "run.json").read_text(encoding="utf-8"))
    assert record["base"] == tiny_models("llama").name and len(record["base_hash"]) == 64
    assert record["packages"]["torch"] and record["timings_s"]["train"] > 0
    config = json.loads((result.folder.path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == tiny_models("llama").name
    local = str(tiny_models("llama").parent)
    for path in (result.folder.path / "adapter").rglob("*"):
        assert local.encode() not in path.read_bytes(), path.name


def test_artefact_loads_with_plain_peft(ran, tiny_models):
    result = ran({"optim.epochs": 4})
    base = AutoModelForCausalLM.from_pretrained(tiny_models("llama"), dtype=torch.float32)
    ids = torch.arange(2, 12)[None]
    before = base(ids).logits
    tuned = PeftModel.from_pretrained(base, result.folder.path / "adapter")
    assert (tuned(ids).logits - before).abs().max() > 0.1


def test_a_secret_in_the_environment_reaches_no_file(ran, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canarycanarycanary")
    result = ran()
    for path in result.folder.path.rglob("*"):
        assert path.is_dir() or b"hf_canary" not in path.read_bytes(), path.name


def test_stop_before_training_saves_nothing(ran, recipe, machine, tmp_path):
    from studio.engine.run import run
    from studio.engine.run_folder import create_run

    events = []
    record = run(recipe, machine, create_run(tmp_path / "runs", recipe), events.append, lambda: True)
    assert record.state == "stopped"
    assert [event.saved for event in events if isinstance(event, RunStopped)] == [False]


@pytest.mark.computing
def test_a_stop_after_the_last_step_loses_nothing(ran):
    stopped = ran(stop_at=6)
    assert (stopped.record.state, stopped.record.steps) == ("stopped", 6)
    assert [event.saved for event in stopped.of(RunStopped)] == [True]
    resumed = ran(folder=stopped.folder)
    assert resumed.record.state == "finished" and resumed.losses == []


@pytest.mark.computing
def test_a_stop_in_the_middle_of_a_window_leaves_that_step_to_the_resume(ran, recipe, machine, tmp_path):
    """Asked for in step 4, in the second of four micro-batches, with gradients there and random numbers drawn."""
    from studio.engine.run import run
    from studio.engine.run_folder import create_run

    changes = {"adapter.dropout": 0.1, "optim.batch_size": 8, "optim.micro_batch": 2}
    calm = ran(changes)
    folder = create_run(tmp_path / "cut", change_recipe(recipe, changes))
    events, beats = [], []

    def should_stop():
        return ("train", 4, 1) in beats

    record = run(
        folder.read_recipe(), machine, folder, events.append, should_stop, lambda *beat: beats.append(beat)
    )
    assert (record.state, record.steps) == ("stopped", 3) and ("train", 4, 2) not in beats
    assert (folder.checkpoints / "step-00000003").is_dir()
    resumed = ran(folder=folder)
    mine, theirs = (
        load_file(r.folder.path / "adapter" / "adapter_model.safetensors") for r in (resumed, calm)
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert resumed.losses == calm.losses[3:]


@pytest.mark.computing
def test_a_stop_in_the_last_evaluation_leaves_no_half_measured_loss(recipe, machine, tmp_path):
    from studio.engine.run import run
    from studio.engine.run_folder import create_run

    changes = {"data.validation_share": 0.4, "run.trial": False}
    folder, events = create_run(tmp_path / "cut", change_recipe(recipe, changes)), []

    asked = []

    def should_stop():
        if any(isinstance(event, PhaseStarted) and event.phase == "score" for event in events):
            asked.append(True)
        return len(asked) > 2

    record = run(folder.read_recipe(), machine, folder, events.append, should_stop)
    assert record.state == "stopped" and record.eval_loss is None
    whole = run(folder.read_recipe(), machine, folder, events.append, lambda: False)
    assert whole.state == "finished" and whole.eval_loss > 1


@pytest.mark.computing
def test_a_data_set_that_changed_between_stop_and_resume_is_told(ran, recipe):
    stopped = ran(stop_at=2)
    assert not stopped.of(Warned)
    data = Path(recipe.data.source)
    data.write_text(data.read_text(encoding="utf-8").replace("it is", "it was"), encoding="utf-8")
    resumed = ran(folder=stopped.folder)
    assert [event.message.id for event in resumed.of(Warned)] == ["run.data_changed"]


def test_what_refuses_a_run_for_its_data_comes_before_a_model_is_loaded(ran, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr("studio.engine.phases.load.load_fast", lambda *_: pytest.fail("loaded"))
    data = jsonl(tmp_path / "broken.jsonl", [*chat_rows(10), {"messages": []}])
    result = ran({"data.source": str(data)})
    assert result.failure == "refused" and [event.phase for event in result.of(PhaseStarted)] == ["prepare"]


def test_rows_left_out_are_told(ran, jsonl, tmp_path):
    result = ran({"data.source": str(jsonl(tmp_path / "few.jsonl", [*chat_rows(24), {"messages": []}]))})
    assert [event.message.id for event in result.of(Warned)] == ["data.prepare.left_out"]


def test_a_failure_becomes_a_diagnosis_with_its_traceback(ran, jsonl, tmp_path):
    result = ran({"data.source": str(tmp_path / "nowhere.jsonl")})
    assert result.record.state == "failed" and result.failure == "refused"
    assert "Traceback" in result.log
    assert result.record.diagnosis is not None


def test_three_steps_that_are_not_finite_end_with_a_diagnosis(ran, monkeypatch):
    from studio.engine.loss_head import LossHead

    real = LossHead.token_losses
    seen = []

    def spoil(self, batch):
        seen.append(batch)
        return real(self, batch) * (float("nan") if len(seen) > 6 else 1.0)

    monkeypatch.setattr(LossHead, "token_losses", spoil)
    result = ran({"optim.epochs": 6, "run.save_every": 1, "run.trial": False})
    assert result.record.state == "failed" and result.failure == "non_finite"
    assert result.record.skipped_steps == 3
    state = load_file(max(result.folder.checkpoints.glob("step-*")) / "trained.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in state.values())


def test_a_wrong_artefact_never_counts_as_finished(ran, monkeypatch):
    """One tensor changed between saving and reloading: the run fails instead of ending green."""
    import studio.engine.phases.verify as module

    real = module.load_artifact

    def harm_then_load(folder, record, *rest):
        path = folder / record.artifact / "adapter_model.safetensors"
        tensors = load_file(path)
        name = sorted(tensors)[-1]
        tensors[name] = tensors[name] + 1.0
        save_file(tensors, path, metadata={"format": "pt"})
        return real(folder, record, *rest)

    monkeypatch.setattr(module, "load_artifact", harm_then_load)
    result = ran()
    assert result.record.state == "failed"
    assert result.record.diagnosis.what.id == "artifact.differs"


@pytest.mark.parametrize("harmed", some([False, True], True))
def test_the_base_is_read_again_only_where_it_changed_in_memory(ran, monkeypatch, harmed):
    """A base that training harmed would compute with the adapter what nobody else's does: its files decide."""
    import studio.engine.artifact as artifact
    import studio.engine.phases.save as module

    real_fingerprint, real_load, read = module.fingerprint, artifact.load_model, []

    def harm_then_compute(model, ids):
        if harmed:
            with torch.no_grad():
                next(p for n, p in model.named_parameters() if "down_proj.base_layer" in n).mul_(1.5)
        return real_fingerprint(model, ids)

    monkeypatch.setattr(module, "fingerprint", harm_then_compute)
    monkeypatch.setattr(
        artifact, "load_model", lambda *given, **more: read.append(1) or real_load(*given, **more)
    )
    result = ran({"optim.epochs": 1})
    assert bool(read) is harmed
    assert result.record.state == ("failed" if harmed else "finished")
    if harmed:
        assert result.record.diagnosis.what.id == "artifact.differs"


def test_a_small_change_on_the_way_to_the_disk_is_seen(ran, monkeypatch):
    """One tensor of one layer, by a millionth: no logit shows it."""
    from safetensors.torch import load_file, save_file

    import studio.engine.phases.save as module

    real_save = module.save_artifact

    def save(model, tokenizer, folder, facts, record):
        name = real_save(model, tokenizer, folder, facts, record)
        file = folder / name / "adapter_model.safetensors"
        tensors = load_file(file)
        first = min(tensors)
        save_file(tensors | {first: tensors[first] * (1 + 1e-6)}, file)
        return name

    monkeypatch.setattr(module, "save_artifact", save)
    result = ran({"optim.epochs": 1, "run.trial": False})
    assert result.record.state == "failed" and result.record.diagnosis.what.id == "artifact.differs"
    assert result.record.diagnosis.why.values["count"] == 1


BROKEN_TRITON = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "triton" or name.startswith("triton."):
            raise ImportError("DLL load failed while importing libtriton: A dynamic link library (DLL) "
                              "initialization routine failed.")
        return None
sys.meta_path.insert(0, Finder())
"""
TRAIN = """
import json, sys
from pathlib import Path
from studio.core.codec import from_json
from studio.core.recipe import Recipe
from studio.engine.run_folder import create_run
from studio.engine.run import run
from studio.machine.detect import detect
recipe = from_json(Recipe, json.loads(Path(sys.argv[1]).read_text()))
losses = []
def emit(event):
    if event.kind == "step_logged":
        losses.append(event.loss)
record = run(recipe, detect(), create_run(Path(sys.argv[2]), recipe), emit, lambda: False)
print(json.dumps([record.state, losses]))
"""


@pytest.mark.computing
@pytest.mark.parametrize("state", ["absent", "broken"])
def test_training_without_a_working_triton(ran, tmp_path, state):
    from studio.core.codec import to_json

    expected = ran({"optim.epochs": 1})
    (tmp_path / "recipe.json").write_text(
        json.dumps(to_json(expected.folder.read_recipe())), encoding="utf-8"
    )
    prelude = BROKEN_TRITON if state == "broken" else "import sys\nsys.modules['triton'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + TRAIN, str(tmp_path / "recipe.json"), str(tmp_path / "other")],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ended, losses = json.loads(done.stdout.splitlines()[-1])
    assert ended == "finished" and losses == pytest.approx(expected.losses, abs=1e-6)


def test_the_mirror_of_the_settings_reaches_the_download(machine, recipe, tmp_path, monkeypatch):
    from studio.engine import run as module
    from studio.engine.run_folder import create_run
    from studio.hub.access_token import Mirror

    asked = []
    monkeypatch.setattr(module, "resolve_model", lambda *arguments: asked.append(arguments[-1]) or 1 / 0)
    folder = create_run(tmp_path / "runs", recipe)
    module.run(recipe, machine, folder, [].append, lambda: False, mirror=Mirror("https://mirror.example"))
    assert asked == [Mirror("https://mirror.example")]
