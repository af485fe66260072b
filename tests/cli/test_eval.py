"""`eval` on a real run of a tiny model: scores, what is beside them, files of rows, kills, judges, refusals."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from studio.cli.main import main
from tests.conftest import chat_rows, write_jsonl
from tests.hub.test_chat_client import say, server  # noqa: F401 - a fixture
from tests.launched import ROOT, command, environment, launch, read_answer, wait_for, write_recipe

pytestmark = pytest.mark.computing
ROWS = 1000


@pytest.fixture(scope="module")
def shop(tmp_path_factory, tiny_models, know_machine):
    """A folder with a workspace that holds a finished run of 12 steps with checkpoints, and files of questions."""
    folder = tmp_path_factory.mktemp("eval")
    know_machine(folder / "workspace")
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    recipe = write_recipe(
        folder, tiny_models(), data, run={"save_every": 4, "keep_checkpoints": 5, "trial": False}
    )
    write_jsonl(folder / "many.jsonl", [row | {"id": i} for i, row in enumerate(chat_rows(ROWS))])
    write_jsonl(folder / "few.jsonl", chat_rows(10, start=20))
    assert main(["train", str(recipe), "--json", "--child", "--workspace", str(folder / "workspace")]) == 0
    (run,) = (folder / "workspace" / "runs").glob("*/run.json")
    return folder, run.parent.name


@pytest.fixture
def ask(shop, capsys, monkeypatch):
    """A function `ask(*words, code=0) -> dict`: the JSON answer of `eval` on the run, done in this process."""
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
    folder, run = shop

    def go(*words: object, code: int = 0, name: str = run, data: str = "few.jsonl") -> dict:
        capsys.readouterr()
        line = [
            "eval",
            name,
            "--data",
            folder / data,
            "--json",
            "--child",
            "--workspace",
            folder / "workspace",
        ]
        assert main([*map(str, line), "--max-new-tokens", "12", *map(str, words)]) == code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return read_answer(captured.out)

    return go


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_models_beside_each_other(ask, shop, tmp_path):
    out = tmp_path / "rows.jsonl"
    answer = ask("--beside", "base,checkpoints", "--out", out)
    assert list(answer["sides"]) == ["tuned", "base", "step-4", "step-8", "step-12"]
    assert answer["state"] == "finished" and answer["rows"] == answer["asked"] == answer["expected"] == 10
    assert answer["metrics"] == ["exact", "normalised", "perplexity"]
    scores = {name: side["scores"] for name, side in answer["sides"].items()}
    assert scores["tuned"] == scores["step-12"], "the result is what the last checkpoint holds"
    assert scores["tuned"]["perplexity"]["value"] < scores["step-4"]["perplexity"]["value"]
    assert scores["tuned"]["perplexity"]["value"] < scores["base"]["perplexity"]["value"]
    for side in scores.values():
        for bounded in side.values():
            assert bounded["low"] <= bounded["value"] <= bounded["high"] and bounded["rows"] == 10
    # A separate script's figures, from the rows that were written.
    rows = read_rows(out)
    for name, side in scores.items():
        exact = [row[name].strip() == row["messages"][-1]["content"].strip() for row in rows]
        assert side["exact"]["value"] == sum(exact) / 10
        assert [row[f"{name}.exact"] for row in rows] == list(map(float, exact))
    lost = [i for i, row in enumerate(rows, 1) if row["base.exact"] == 1 and row["tuned.exact"] == 0]
    won = [i for i, row in enumerate(rows, 1) if row["base.exact"] == 0 and row["tuned.exact"] == 1]
    exact = answer["against"]["base"]["exact"]
    assert (exact["right_to_wrong"], exact["wrong_to_right"]) == (lost, won)
    assert exact["value"] == scores["tuned"]["exact"]["value"] - scores["base"]["exact"]["value"]


def test_log_probabilities_are_those_of_a_plain_forward_pass(ask, shop, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, run = shop
    out = tmp_path / "rows.jsonl"
    ask("--out", out)
    adapter = folder / "workspace" / "runs" / run / "adapter"
    base = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["model"]["source"]
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(adapter)
    compared = 0
    for row in read_rows(out):
        asked = tokenizer.apply_chat_template(row["messages"][:1], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(asked, add_special_tokens=False, return_tensors="pt")["input_ids"]
        begun = ids.shape[1]
        with torch.no_grad():
            total = 0.0
            for _ in range(row["tuned.tokens"]):
                scores = model(input_ids=ids).logits[0, -1].log_softmax(-1)
                token = scores.argmax()
                total += float(scores[token])
                ids = torch.cat((ids, token.view(1, 1)), 1)
        said = tokenizer.decode(ids[0, begun:], skip_special_tokens=True).strip()
        assert row["tuned"] == said and abs(row["tuned.log_probability"] - total) < 1e-4
        compared += 1
    assert compared == 10


def test_what_was_answered_is_not_asked_again(ask, monkeypatch):
    from studio.engine.chat import Speaker

    first = ask("--beside", "base")
    monkeypatch.setattr(Speaker, "__init__", lambda *_: pytest.fail("loaded"))
    assert ask("--beside", "base", "--metrics", "exact,contains")["sides"]["base"]["answered"] == 10
    assert ask("--beside", "base") == first
    monkeypatch.undo()
    assert ask("--system", "Be brief.")["state"] == "finished"


def test_rows_are_kept_as_they_are_in_csv_too(ask, shop, tmp_path):
    folder, _ = shop
    lines = [
        "question,answer,tuned,note",
        '"say 3",it is 1,mine,=1+1',
        ',,,"no question"',
        '"say 4",it is 8,,"a ""b"""',
    ]
    (folder / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "rows.csv"
    answer = ask("--out", out, data="table.csv")
    assert (answer["rows"], answer["asked"]) == (3, 2)
    rows = list(csv.DictReader(out.read_text(encoding="utf-8-sig").splitlines()))
    assert [row["note"] for row in rows] == ["'=1+1", "no question", 'a "b"'], "no formula"
    assert rows[0]["tuned"] == "mine" and rows[0]["tuned_"], "a column of the file stays as it is"
    assert [bool(row["problem"]) for row in rows] == [False, True, False]
    assert float(rows[0]["tuned.log_probability"]) < 0 and rows[1]["tuned.log_probability"] == ""


def test_a_model_alone_is_measured(ask, tiny_models):
    answer = ask(name=str(tiny_models()))
    assert list(answer["sides"]) == ["base"] and answer["sides"]["base"]["answered"] == 10
    beside = ask("--beside", "base")["sides"]["base"]["scores"]
    assert answer["sides"]["base"]["scores"] == beside, "the base is that model"


def test_what_cannot_be_is_refused(ask, tmp_path):
    cases = [
        (("--metrics", "bleu"), "There is no metric bleu"),
        (("--beside", "other"), "no other to compare"),
        (("--out", tmp_path / "x.txt"), "no known kind"),
        (("--out", tmp_path / "no" / "x.csv"), "There is no folder"),
        (("--metrics", "regex", "--pattern", "("), "no regular expression"),
        (("--metrics", "judge"), "A judge needs a rubric"),
        (("--checkpoint", "7"), "step-00000007"),
    ]
    for words, what in cases:
        error = ask(*words, code=2)["error"]
        assert what in error["what"] and error["why"] and error["fix"], words
    assert "neither a run nor a model" in ask(name="demo-0000", code=2)["error"]["what"]
    (tmp_path / "there.csv").touch()
    assert "there already" in ask("--out", tmp_path / "there.csv", code=2)["error"]["what"]
    assert not list(tmp_path.glob("x.*"))


def test_a_judge_at_an_address_scores_by_the_rubric(ask, server, tmp_path, monkeypatch):  # noqa: F811
    rubric = tmp_path / "rubric.txt"
    rubric.write_text("Right numbers are worth 10.", encoding="utf-8")
    address = server(
        models=(200, b'{"data": [{"id": "wise"}]}'), completions=(200, say("Fine.\nScore: 7/10"))
    )
    words = ("--judge", address, "--rubric", rubric, "--metrics", "exact")
    answer = ask(*words)
    judged = answer["sides"]["tuned"]["scores"]["judge"]
    assert judged["value"] == pytest.approx(0.7) and judged["rows"] == 10
    asked = [body["messages"][0]["content"] for path, _, body in server.seen if path.endswith("completions")]
    assert len(asked) == 10 and all("Right numbers are worth 10." in one and "say 2" in one for one in asked)
    ask(*words)
    assert len([1 for path, *_ in server.seen if path.endswith("completions")]) == 10, "verdicts are kept"
    rubric.write_text("Another rubric.", encoding="utf-8")
    ask(*words)
    assert len([1 for path, *_ in server.seen if path.endswith("completions")]) == 20


def test_a_local_model_judges(ask, shop, tmp_path):
    (tmp_path / "rubric.txt").write_text("Be kind.", encoding="utf-8")
    answer = ask("--judge", shop[1], "--rubric", tmp_path / "rubric.txt")
    assert "judge" in answer["metrics"] and "judge" not in answer["sides"]["tuned"]["scores"], (
        "it names no score"
    )


def test_killed_twice_every_row_is_answered_once(shop, tmp_path):
    folder, run = shop
    workspace, out = folder / "workspace", tmp_path / "rows.jsonl"
    words = [
        "eval",
        run,
        "--data",
        folder / "many.jsonl",
        "--max-new-tokens",
        13,
        "--beside",
        "base",
        "--out",
        out,
    ]
    known = set((workspace / "runs" / run / "evaluations").glob("*.jsonl"))

    def count() -> int:
        found = set((workspace / "runs" / run / "evaluations").glob("*.jsonl")) - known
        return sum(path.read_bytes().count(b'"answer"') for path in found)

    reached = 0
    for _ in range(2):
        process = subprocess.Popen(
            command(*words), env=environment(workspace), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(lambda reached=reached: count() > reached + 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before, reached = reached, count()
        assert before < reached < 2 * ROWS and not out.exists()
    done = launch(workspace, *words, "--json")
    assert done.returncode == 0, done.stderr
    answer, rows = read_answer(done.stdout), read_rows(out)
    assert [row["id"] for row in rows] == list(range(ROWS)) and all(row["tuned.tokens"] for row in rows)
    assert count() == 2 * ROWS, "no row was answered twice"
    for side in ("tuned", "base"):
        exact = sum(row[side].strip() == row["messages"][-1]["content"] for row in rows)
        assert answer["sides"][side]["scores"]["exact"]["value"] == exact / ROWS


def test_a_metric_is_one_file_one_line_and_its_words(shop, tmp_path):
    """In a copy of the checkout: a file, a line of the tuple, a text in each language; the command knows it."""
    folder, run = shop
    for name in ("studio", "assets"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kernels").symlink_to(ROOT / "kernels", target_is_directory=True)
    home = tmp_path / "studio" / "core" / "metrics"
    (home / "first_word.py").write_text(
        '"""The first words are the same."""\n'
        "from studio.core.metrics.metric import AnswerMetric, mark\n"
        "METRIC = AnswerMetric(name='first_word',\n"
        "    count=lambda row, settings: mark(row.given.split()[:1] == row.expected.split()[:1]))\n",
        encoding="utf-8",
    )
    tuple_file = home / "__init__.py"
    words = tuple_file.read_text(encoding="utf-8")
    words = words.replace("    exact,\n", "    exact,\n    first_word,\n").replace(
        "    exact.METRIC,\n", "    exact.METRIC,\n    first_word.METRIC,\n"
    )
    tuple_file.write_text(words, encoding="utf-8")
    for tag in ("en", "zh-CN"):
        path = tmp_path / "assets" / "locales" / f"{tag}.json"
        path.write_text(
            path.read_text(encoding="utf-8").replace("{\n", '{\n "metric.first_word": "first word",\n', 1),
            encoding="utf-8",
        )
    line = ["eval", run, "--data", folder / "few.jsonl", "--max-new-tokens", 12, "--metrics", "first_word"]
    found = subprocess.run(
        [sys.executable, "-m", "studio.cli", *map(str, line), "--child"],
        env=environment(folder / "workspace", tmp_path, tmp_path / "kernels"),
        capture_output=True,
        encoding="utf-8",
        check=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert "first word: tuned" in found.stdout
