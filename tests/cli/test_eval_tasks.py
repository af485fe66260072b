"""`eval --tasks`: scores of lm-evaluation-harness, the same as its own model for transformers comes to."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from studio.cli.main import main
from tests.conftest import write_jsonl
from tests.launched import ROOT
from tests.side_packages import HARNESS, get_packages, run_beside

OURS = "import sys; from studio.cli.main import main; sys.exit(main(sys.argv[1:]))"
THEIRS = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
model = HFLM(pretrained=sys.argv[1], device="cpu", dtype="float32", batch_size=1)
manager = TaskManager(include_path=sys.argv[2], include_defaults=False)
found = simple_evaluate(model, tasks=sys.argv[3].split(","), task_manager=manager, log_samples=False)
print(json.dumps(found["results"], default=str))
"""
TASK = """
task: local_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{asked}"
doc_to_target: "{wanted}"
{more}
metric_list:
{metrics}
"""
TASKS = {
    "choice": {
        "kind": "multiple_choice", "asked": "{{question}}", "wanted": "{{answer}}",
        "more": "doc_to_choice: '{{choices}}'", "metrics": "  - metric: acc\n  - metric: acc_norm",
    },
    "text": {
        "kind": "loglikelihood_rolling", "asked": "", "wanted": "{{text}}", "more": "",
        "metrics": "  - metric: word_perplexity\n  - metric: bits_per_byte",
    },
    "answer": {
        "kind": "generate_until", "asked": "{{question}}", "wanted": "{{said}}",
        "more": "generation_kwargs: {until: ['\\n', ' say'], max_gen_toks: 12, do_sample: false}",
        "metrics": "  - metric: exact_match",
    },
}  # fmt: skip
NAMES = ",".join(f"local_{name}" for name in TASKS)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with a task of each kind over the same rows."""
    rows = [
        {
            "question": f"say {i}", "choices": ["the quick fox", f" {i}", "jumps over", "say"], "answer": i % 4,
            "said": "fox", "text": f"the quick brown fox jumps over {i} lazy dogs " * (1 + i * 4),
        }
        for i in range(12)
    ]  # fmt: skip
    made = tmp_path / "tasks"
    made.mkdir()
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    for name, parts in TASKS.items():
        (made / f"{name}.yaml").write_text(
            TASK.format(name=name, file=file.as_posix(), **parts), encoding="utf-8"
        )
    return made


@pytest.mark.computing
def test_scores_are_those_of_the_harness_itself(folder, tmp_path, tiny_models, monkeypatch, know_machine):
    know_machine(tmp_path / "workspace")
    packages, model = get_packages(HARNESS), tiny_models()
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'kernels'}")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    line = ("eval", model, "--tasks", NAMES, "--tasks-folder", folder, "--json", "--child")
    ours = json.loads(run_beside(OURS, *line, "--workspace", tmp_path / "workspace", packages=packages))
    theirs = json.loads(run_beside(THEIRS, model, folder, NAMES, packages=packages).splitlines()[-1])
    assert ours["state"] == "finished" and ours["sides"]["base"].keys() == theirs.keys()
    for task, metrics in ours["sides"]["base"].items():
        assert metrics and all(f"{name},none" in theirs[task] for name in metrics)
        for name, score in metrics.items():
            assert score["value"] == pytest.approx(theirs[task][f"{name},none"], rel=1e-4), (task, name)
            assert score["rows"] == 12
    error = ours["sides"]["base"]["local_choice"]["acc"]["error"]
    assert error == pytest.approx(theirs["local_choice"]["acc_stderr,none"], rel=1e-4)


def test_without_the_package_it_is_said_how_to_get_it(tmp_path, tiny_models, capsys, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
    assert importlib.util.find_spec("lm_eval") is None, "the studio must not need it"
    line = [
        "eval",
        str(tiny_models()),
        "--json",
        "--child",
        "--workspace",
        str(tmp_path),
        "--tasks",
        "arc_easy",
    ]
    assert main(line) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert "not installed" in error["what"] and error["fix"].endswith("-m pip install lm_eval")
    assert main([*line, "--data", "x.csv"]) == 2
    assert "--data does not go with --tasks" in json.loads(capsys.readouterr().out)["error"]["what"]
