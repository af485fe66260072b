"""`launch.py data`: one object, its exit codes, its options, and what a person reads."""

import json
import subprocess
import sys

import pytest

from studio.cli.main import main

CHAT = {"messages": [{"role": "user", "content": "say ü"}, {"role": "assistant", "content": "ü"}]}


@pytest.fixture
def ran(tmp_path, capsys, monkeypatch):
    """A function (words) -> (exit code, answer): the object with --json, else the words."""
    monkeypatch.setenv("FINETUNE_STUDIO_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")

    def go(*words):
        code = main(["data", *map(str, words), "--child"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if "--json" in words else said.out + said.err

    return go


def rows_of(count, broken=0):
    return [CHAT | {"id": i} for i in range(count)] + [{"messages": []}] * broken


def test_usable(ran, tmp_path, jsonl):
    code, found = ran(jsonl(tmp_path / "a.jsonl", rows_of(200, 1)), "--json")
    assert code == 0
    assert (found["rows_read"], found["rows_used"], found["rows_quarantined"]) == (201, 200, 1)
    (problem,) = (one for one in found["problems"] if one["code"] == "E122")
    assert (problem["line"], problem["row"], problem["count"]) == (201, 201, 1)
    assert problem["message"].startswith("Line 201") and len(problem["message"]) <= 300


def test_too_many_broken_rows(ran, tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", rows_of(50, 5))
    assert ran(path, "--json")[0] == 1
    code, said = ran(path)
    assert code == 1 and "--accept-bad-rows" in said
    assert ran(path, "--json", "--accept-bad-rows")[0] == 0


def test_nothing_usable(ran, tmp_path, jsonl):
    assert (
        ran(jsonl(tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": " "}]}] * 3), "--json")[0]
        == 1
    )


@pytest.mark.parametrize("words", [["nowhere.jsonl"], ["demo", "--map", "x"], ["demo", "--filter", "y"]])
def test_unreadable_or_wrong(ran, words):
    code, found = ran(*words, "--json")
    assert code == 2 and set(found["error"]) >= {"what", "why", "fix"}


def test_quarantine_is_written_where_asked(ran, tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", rows_of(200, 2))
    code, found = ran(path, "--json", "--quarantine", tmp_path / "bad.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text(encoding="utf-8").splitlines()]
    assert code == 0 and found["quarantine"] == str(tmp_path / "bad.jsonl")
    assert [(one["line"], one["code"]) for one in lines] == [(201, "E122"), (202, "E122")]


def test_rules(ran, tmp_path, jsonl):
    rows = [{"prompt": f"q{i % 4}", "completion": "a" * (1 + i % 4)} for i in range(8)]
    path = jsonl(tmp_path / "a.jsonl", rows)
    found = ran(path, "--json", "--duplicates", "exact", "--filter", "min_answer_characters=2")[1]
    assert found["rows_filtered"] == {"min_answer_characters": 2, "duplicate": 3} and found["rows_used"] == 3


def test_with_a_model_the_mask_is_shown(ran, tmp_path, jsonl, tiny_models):
    path = jsonl(tmp_path / "a.jsonl", rows_of(3))
    code, found = ran(path, "--json", "--model", tiny_models())
    assert code == 0 and found["stats"]["unit"] == "tokens"
    learned = "".join(token["text"] for token in found["preview"][0]["tokens"] if token["trained"])
    assert learned.startswith("ü") or "�" in learned
    assert "[[" in ran(path, "--model", tiny_models())[1]


def test_words_for_a_person(ran, tmp_path, jsonl):
    said = ran(jsonl(tmp_path / "a.jsonl", rows_of(120, 1)))[1]
    for words in ("format messages", "Columns", "Rows", "Problems", "E122", "Line 121", "Lengths", "Next:"):
        assert words in said, words


@pytest.mark.computing
def test_a_process_that_reads_a_tokenizer_leaves_torch_out(ran, tmp_path, jsonl):
    source = jsonl(tmp_path / "a.jsonl", rows_of(20))
    words = ("data", str(source), "--model", "demo", "--json")
    command = [sys.executable, "-X", "importtime", "-m", "studio.cli", *words]
    alone = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    lines = alone.stderr.splitlines()
    assert [line for line in lines if not line.startswith("import time:")] == []
    loaded = {line.rpartition("|")[2].strip() for line in lines}
    assert "transformers" in loaded and "torch" not in loaded
    assert json.loads(alone.stdout) == ran(*words[1:])[1]
