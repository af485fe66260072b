"""`import`: another tool's file as a recipe on stdout or in a file, and its refusals by the contract."""

from __future__ import annotations

import json

import pytest

from studio.cli.main import main
from studio.services.recipes import read_recipe
from tests.services.other_tools.files import AXOLOTL, UNSLOTH_SCRIPT


@pytest.fixture
def ask(tmp_path, capsys, monkeypatch):
    """A function `ask(*words, code=0)`: the JSON answer of `import`, done in this process."""
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")

    def go(*words: object, code: int = 0) -> dict:
        capsys.readouterr()
        line = ["import", *map(str, words), "--json", "--child", "--workspace", str(tmp_path / "workspace")]
        assert main(line) == code
        return json.loads(capsys.readouterr().out)

    return go


def test_a_script_becomes_a_recipe_that_train_reads(ask, tmp_path):
    (tmp_path / "train.py").write_text(UNSLOTH_SCRIPT, encoding="utf-8")
    out = tmp_path / "made" / "recipe.json"
    out.parent.mkdir()
    told = ask(tmp_path / "train.py", "--out", out, "--data", "mine.jsonl")
    assert told["tool"] == "Unsloth" and told["open"] == [] and told["path"] == str(out)
    assert {"key", "written", "place", "fate", "setting", "value", "reason"} == set(told["lines"][0])
    made = read_recipe(out)
    assert (made.model.source, made.data.source, made.optim.max_steps) == (
        "mine/llama-4bit",
        "mine.jsonl",
        60,
    )
    assert json.loads(out.read_text(encoding="utf-8")) == told["recipe"]


def test_what_the_file_does_not_name_is_said_and_can_be_given(ask, tmp_path):
    (tmp_path / "c.yml").write_text(AXOLOTL.replace("datasets:", "sets:"), encoding="utf-8")
    told = ask(tmp_path / "c.yml")
    assert told["open"] == ["data.source"] and told["recipe"]["data"]["source"] == ""
    told = ask(tmp_path / "c.yml", "--data", "d.jsonl", "--model", "m", "--objective", "pretrain")
    assert told["open"] == [] and told["recipe"]["objective"] == "pretrain"
    assert told["recipe"]["model"]["source"] == "m"


def test_a_file_is_never_written_over_and_a_refusal_writes_nothing(ask, tmp_path):
    config, out = tmp_path / "c.yml", tmp_path / "out.json"
    config.write_text(AXOLOTL, encoding="utf-8")
    assert ask(config, "--out", config, code=2)["error"]["what"]
    assert config.read_text(encoding="utf-8") == AXOLOTL
    config.write_text(AXOLOTL.replace("adapter: qlora", "adapter: reft\nrl: gdpo"), encoding="utf-8")
    refused = ask(config, "--out", out, code=2)["error"]
    assert len(refused["problems"]) == 2 and "Line 3" in refused["problems"][0]["message"]
    assert not out.exists()
    assert ask(tmp_path / "none.yml", code=2)["error"]["fix"]


def test_a_person_reads_a_table_and_the_recipe(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "zh-CN")
    (tmp_path / "c.yml").write_text(AXOLOTL, encoding="utf-8")
    assert main(["import", str(tmp_path / "c.yml"), "--child", "--workspace", str(tmp_path / "w")]) == 0
    said = capsys.readouterr().out
    assert "原样采用" in said and "5: lora_alpha = 16 → adapter.alpha = 16.0  在这里含义相同。" in said
    assert json.loads(said[said.index("\n{") :])["adapter"]["rank"] == 32
