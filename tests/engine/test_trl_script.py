"""A run written as a TRL + PEFT script and notebook, run in a process that knows nothing of the studio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.events import StepLogged
from studio.engine.exporters import get_exporter
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.trl_script import find_problem, make_notebook, read_losses
from studio.models.catalog import inspect_model
from studio.planning.run_plan import plan

SCRIPT = get_exporter("script")
RUN_CELLS = """
import json, sys
for cell in json.load(open("train.ipynb"))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]))
assert not [name for name in sys.modules if name.split(".")[0] == "studio"]
"""


def write_script(result, machine, target: Path) -> Path:
    recipe = result.folder.read_recipe()
    facts = inspect_model(recipe.model.source)
    target.mkdir()
    words = "".join(
        json.dumps(to_json(event)) + "\n" for event in result.events
    )  # as services/event_log.py does
    result.folder.events.write_text(words, encoding="utf-8")
    SCRIPT.write(ExportJob(result.folder.path, result.record, facts, plan(machine, recipe, facts), target))
    return target


def run_alone(folder: Path, *words: str) -> dict:
    """Run Python in `folder` without the studio on its path; return what the script says last."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-I", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.computing
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("train.py",)),
        ({"optim.schedule": "wsd", "optim.warmup_steps": 2, "optim.weight_decay": 0.1}, ("-c", RUN_CELLS)),
        ({"adapter.method": "full", "optim.learning_rate": 1e-3, "optim.batch_size": 10}, ("train.py",)),
        ({"objective": "pretrain", "adapter.dora": True}, ("train.py",)),
    ],
    ids=["lora", "notebook", "full", "pretrain"],
)
def test_the_script_reaches_the_runs_losses(ran, machine, tmp_path, changes, words):
    result = ran(changes)
    assert result.record.state == "finished", result.log
    folder = write_script(result, machine, tmp_path / "script")
    told = run_alone(folder, *words)
    assert told["loss_of_the_run"] == pytest.approx(result.losses[-1])
    assert abs(told["loss"] - result.losses[-1]) < 1e-3 and told["largest_difference"] < 1e-3
    assert list((folder / "out" / "result").glob("*.safetensors"))


def test_what_trl_would_compute_otherwise_is_refused_with_the_reason(ran, machine, tmp_path, monkeypatch):
    result = ran({"optim.max_steps": 1, "run.trial": False})
    recipe = result.folder.read_recipe()
    facts = inspect_model(recipe.model.source)
    job = ExportJob(result.folder.path, result.record, facts, plan(machine, recipe, facts), tmp_path)
    assert find_problem(job) is None
    for old, new, reason in (
        ('"fill": false', '"fill": true', "fill"),
        ('"objective": "auto"', '"objective": "dpo"', "objective"),
        ('"optimizer": "adamw"', '"optimizer": "adamw_8bit"', "optimizer"),
    ):
        words = (result.folder.path / "recipe.json").read_text(encoding="utf-8")
        assert old in words
        (result.folder.path / "recipe.json").write_text(words.replace(old, new), encoding="utf-8")
        assert find_problem(job).id == f"export.script.{reason}"
        with pytest.raises(StudioError):
            SCRIPT.write(job)
        (result.folder.path / "recipe.json").write_text(words, encoding="utf-8")
    data = Path(recipe.data.source)
    lines = data.read_text(encoding="utf-8").splitlines(keepends=True)
    data.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(StudioError) as refused:
        SCRIPT.write(job)
    assert refused.value.why.id == "export.script.data"


def test_a_step_that_was_done_again_counts_once(tmp_path):
    steps = [(1, 3.0), (2, 2.0), (2, 1.5), (3, 1.0)]
    rest = {"total_steps": 3, "epoch": 0.0, "lr": 0.1, "grad_norm": 1.0, "tokens_per_s": 1.0}
    words = [json.dumps(to_json(StepLogged(step=step, loss=loss, **rest))) for step, loss in steps]
    (tmp_path / "events.jsonl").write_text("\n".join([*words, '{"kind": "st']), encoding="utf-8")
    assert list(read_losses(tmp_path / "events.jsonl")) == [3.0, 1.5, 1.0]


def test_the_notebook_holds_all_of_the_script():
    script = (Path(__file__).resolve().parents[2] / "assets" / "examples" / "train_with_trl.py").read_text(
        "utf-8"
    )
    cells = json.loads(make_notebook(script))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    kept = [line for line in code.splitlines() if line.strip()]
    script = script[script.index("# %%") :]
    assert kept == [line for line in script.splitlines() if line.strip() and not line.startswith("# %%")]
