"""A decoder that was seen to be right is not looked at again, until anything that this hangs on changes."""

from __future__ import annotations

import dataclasses

import pytest

from studio.core.recipe import change_recipe
from studio.engine import proof_cache, run
from studio.engine.run_folder import create_run
from studio.models import optimize_model as fast
from studio.planning import run_plan as planning
from studio.planning.learned_limits import Remembered
from tests.each_time import some, some_of_several


@pytest.fixture
def looks(monkeypatch):
    """How often a decoder was held against its model; decoders are planned on a processor, too."""
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    real, calls = fast.find_difference, []

    def look(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(fast, "find_difference", look)
    return calls


@pytest.fixture
def train(tmp_path, machine, recipe):
    """A function that trains two steps: `train(changes, store=..., on=machine) -> RunRecord`."""
    store = Remembered(tmp_path / "remembered.json")
    short = {"optim.max_steps": 2, "run.trial": False, "run.save_every": 0, "run.samples": 0}

    def go(changes=None, *, store=store, on=machine):
        chosen = change_recipe(recipe, short | (changes or {}))
        folder = create_run(tmp_path / "runs", chosen)
        record = run.run(chosen, on, folder, lambda event: None, lambda: False, remembered=store)
        assert record.state == "finished", folder.log.read_text(encoding="utf-8")
        return record

    return go


def test_the_second_run_does_not_look_again(train, looks):
    first, second = train(), train()
    assert len(looks) == 1 and first.loss == second.loss
    train({"optim.learning_rate": 1e-3, "data.max_length": 100, "seed": 7})
    assert len(looks) == 1, "none of these is the decoder's business"
    train(store=None)
    assert len(looks) == 2, "nothing is remembered"


@pytest.mark.parametrize(
    "changes",
    some([{"adapter.rank": 4}, {"model.precision": "bf16"}, {"run.kernels": "pytorch"}], {"adapter.rank": 4}),
    ids=str,
)
def test_another_structure_or_arithmetic_is_looked_at(train, looks, changes):
    train()
    train(changes)
    # Without a GPU the kernels are PyTorch's either way.
    assert len(looks) == (1 if "run.kernels" in changes else 2)


@pytest.mark.computing
def test_other_weights_versions_or_code_are_looked_at(
    train, looks, machine, make_tiny_model, tmp_path, monkeypatch
):
    train()
    train({"model.source": str(make_tiny_model(tmp_path / "other", seed=1))})
    assert len(looks) == 2
    packages = {**machine.packages, "transformers": "0.0"}
    train(on=dataclasses.replace(machine, packages=packages))
    assert len(looks) == 3
    changed = tmp_path / "layer.py"
    changed.write_text("x = 1\n", encoding="utf-8")
    real = proof_cache._list_code
    monkeypatch.setattr(proof_cache, "_list_code", lambda of: [*real(of), changed])
    train()
    assert len(looks) == 4


@pytest.mark.parametrize(
    ("file", "counts"),
    some_of_several([("config.json", 1), ("chat_template.jinja", 1), ("README.md", 0)], ("config.json", 1)),
    ids=str,
)
def test_another_configuration_is_looked_at(train, looks, make_tiny_model, tmp_path, file, counts):
    """The weights' hash does not know it."""
    folder = make_tiny_model(tmp_path / "other")
    source = {"model.source": str(folder)}
    train(source)
    (folder / file).open("a", encoding="utf-8").write("\n")
    train(source)
    assert len(looks) == 1 + counts


def test_proofs_hang_on_the_code_that_loads_and_reads():
    names = {file.name for file in proof_cache._list_code("decoder")}
    assert {"norm_probe.py", "adapt.py", "load.py", "layer.py", "gated_mlp.py", "optimize_model.py"} <= names
    assert "preflight_save.py" not in names and "preflight_save.py" in {
        f.name for f in proof_cache._list_code("writing")
    }


@pytest.mark.computing
def test_what_was_refused_is_no_proof(train, looks, monkeypatch):
    wrong = planning.text("model.decoder.mismatch", layer=0, part="y", error=1.0, own=0.0)
    monkeypatch.setattr(fast, "find_difference", lambda *arguments: looks.append(1) or wrong)
    train()
    train()
    assert len(looks) == 2


def test_a_continued_adapter_is_looked_at_each_time(recipe, tmp_path):
    """Its files decide on the structure, and may change."""
    continued = change_recipe(recipe, {"model.adapter": str(tmp_path)})
    store = Remembered(tmp_path / "remembered.json")
    assert not proof_cache.Proof(store, None, "", continued, None, "", lambda: "").holds()


@pytest.mark.computing
def test_what_writes_is_not_tried_again(tmp_path, machine, recipe, monkeypatch):
    from studio.core.events import TrialFinished
    from studio.engine import preflight as trial

    tried = []
    for name in ("sample", "save_and_reload", "save_result", "train_on_longest"):
        real = getattr(trial.Trial, name)
        monkeypatch.setattr(
            trial.Trial, name, lambda self, name=name, real=real: tried.append(name) or real(self)
        )
    store = Remembered(tmp_path / "remembered.json")

    def go(changes=None):
        chosen = change_recipe(recipe, {"optim.max_steps": 1, "run.samples": 0} | (changes or {}))
        events = []
        folder = create_run(tmp_path / "runs", chosen)
        run.run(chosen, machine, folder, events.append, lambda: False, remembered=store)
        [finished] = [event for event in events if isinstance(event, TrialFinished)]
        return finished

    first = go()
    assert not first.left_out
    assert tried == ["train_on_longest", "sample", "save_and_reload", "save_result"]
    second = go({"data.max_length": 100})
    assert (
        second.left_out == ("sample", "checkpoint", "result")
        and second.saving_known
        and tried[4:] == ["train_on_longest"]
    )
    assert not go({"adapter.rank": 2}).left_out


@pytest.mark.computing
def test_a_full_disk_is_found_where_writing_is_proved(tmp_path, machine, recipe, monkeypatch):
    from types import SimpleNamespace

    store = Remembered(tmp_path / "remembered.json")
    chosen = change_recipe(recipe, {"optim.max_steps": 1, "run.samples": 0})
    folder = create_run(tmp_path / "runs", chosen)
    assert run.run(chosen, machine, folder, print, lambda: False, remembered=store).state == "finished"
    usage = SimpleNamespace(total=10**9, used=10**9 - 10_000, free=10_000)
    monkeypatch.setattr("studio.engine.checkpoint.shutil.disk_usage", lambda folder: usage)
    again = create_run(tmp_path / "runs", chosen)
    ended = run.run(chosen, machine, again, print, lambda: False, remembered=store)
    assert ended.state == "failed" and ended.diagnosis.what.id == "disk.full"
