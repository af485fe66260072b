"""`reward`: rewards listed, tried, refused with the reason, on files and on the demo model's own answers."""

from __future__ import annotations

import json

import pytest

from studio.cli.main import main
from studio.engine.rewards import REWARDS
from studio.machine.workspace import Workspace
from studio.services.desk import Desk
from studio.services.recipes import read_recipe
from tests.conftest import write_jsonl
from tests.launched import launch, read_answer

CITIES = (("Lisbon", "Portugal"), ("Rome", "Italy"), ("Oslo", "Norway"), ("Lima", "Peru"))


@pytest.fixture
def ask(tmp_path, capsys, monkeypatch, know_machine):
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
    rows = [{"prompt": f"Where is {city}?", "answer": land} for city, land in CITIES]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)

    def go(*words, code=0, data=data, as_json=True):
        capsys.readouterr()
        line = ["reward", *words, "--workspace", tmp_path / "workspace", *(["--json"] if as_json else [])]
        if words[0] == "test":
            line += ["--data", data]
        assert main(list(map(str, line))) == code
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return read_answer(said.out) if as_json else said.out

    return go


def test_list_names_every_reward_with_its_options(ask):
    found = {one["name"]: one for one in ask("list")["rewards"]}
    assert set(found) == {kind.name for kind in REWARDS} | {"file:PATH"}
    assert found["number"]["options"] == {"column": "", "tag": "", "tolerance": "1e-06"}


def test_a_reward_of_the_library(ask):
    found = ask("test", "exact")
    assert found["refused"] is None and found["wins"] == 1.0 and found["compared"] == found["rows"] == 4
    assert {case["kind"] for case in found["cases"]} == {"given", "other", "empty", "cut"}
    assert ask("test", "exact", as_json=False).splitlines()[0].endswith("on 4 of 4 rows.")


def test_a_reward_that_tells_nothing_apart_is_refused(ask, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def mine(completions, **columns):\n    return [1.0] * len(completions)\n", encoding="utf-8"
    )
    found = ask("test", path, code=1)
    assert found["rewards"] == [{"name": "mine", "weight": 1.0}] and "4 of 4" in found["refused"]
    path.write_text(
        "def mine(completions, answer, **columns):\n    return [float(a in c) for a, c in zip(answer, completions)]\n",
        encoding="utf-8",
    )
    assert ask("test", path)["refused"] is None


ALIKE = "def mine(completions, **columns):\n    return [1.0] * len(completions)\n"


def write_recipe(folder, insist, objective="grpo"):
    """A step that draws two answers of 4 tokens to one question, by mine.py beside it; returns its path."""
    recipe = {
        "objective": objective,
        "model": {"source": "demo"},
        "data": {"source": str(folder / "rows.jsonl"), "max_length": 128},
        "sampling": {"group_size": 2, "answer_tokens": 4},
        "rewards": [{"name": "file:mine.py", "insist": insist}],
        "optim": {"max_steps": 1, "batch_size": 1},
        "run": {"trial": False, "device": "cpu", "samples": 0},
    }
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


def test_what_the_test_refused_is_an_error_until_it_changes_or_a_person_insists(ask, tmp_path):
    code, data = tmp_path / "mine.py", tmp_path / "rows.jsonl"
    code.write_text(ALIKE, encoding="utf-8")
    desk = Desk(Workspace(tmp_path / "workspace"), keep_queue=False)

    def check(insist=False, objective="grpo"):
        recipe = read_recipe(write_recipe(tmp_path, insist, objective))
        return [one for one in desk.recipes.check(recipe) if one.field == "rewards"]

    assert check() == []
    ask("test", code, code=1)
    (told,) = check()
    assert told.severity == "error" and told.message.values["why"].values["rows"] == 4
    (told,) = check(insist=True)
    assert told.severity == "warning" and told.message.values["why"].values["rows"] == 4
    assert check(objective="sft") == [], "who learns from examples has no use for rewards"
    code.write_text(ALIKE + "# mended\n", encoding="utf-8")
    assert check() == [], "other code has not been tested"
    code.write_text(ALIKE, encoding="utf-8")
    words = data.read_text(encoding="utf-8")
    data.write_text(words + "\n", encoding="utf-8")
    assert check() == [], "nor has it on other data"
    ask("test", code, code=1)
    ask("test", "exact")
    assert check(), "another reward that passes changes nothing"


@pytest.mark.computing
def test_no_run_starts_with_what_the_test_refused_and_one_that_insists_tells(tmp_path):
    workspace, data = tmp_path / "workspace", tmp_path / "rows.jsonl"
    write_jsonl(data, [{"prompt": f"Where is {city}?", "answer": land} for city, land in CITIES])
    (tmp_path / "mine.py").write_text(ALIKE, encoding="utf-8")
    tested = launch(workspace, "reward", "test", tmp_path / "mine.py", "--data", data, "--json")
    assert tested.returncode == 1, tested.stderr
    for command in ("check", "train"):
        refused = launch(workspace, command, write_recipe(tmp_path, insist=False), "--json")
        assert refused.returncode == 2 and "4 of 4" in refused.stdout, refused.stderr
    assert not list((workspace / "runs").glob("*/"))
    done = launch(workspace, "train", write_recipe(tmp_path, insist=True), "--json")
    assert done.returncode == 0, done.stderr
    (run,) = (workspace / "runs").iterdir()
    assert json.loads((run / "recipe.json").read_text(encoding="utf-8"))["rewards"][0]["insist"] is True
    assert "run.reward_insisted" in (run / "events.jsonl").read_text(encoding="utf-8")


def test_rewards_of_a_recipe_with_a_file_beside_it(ask, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def compute_score(solution_str, ground_truth): return 2.0", encoding="utf-8"
    )
    recipe = {
        "model": {"source": "demo"},
        "data": {"source": "demo"},
        "rewards": [{"name": "exact", "weight": 3}, {"name": "file:mine.py", "weight": 0.5}],
    }
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    found = ask("test", path)
    assert [one["name"] for one in found["rewards"]] == ["exact", "compute_score"]
    given = next(case for case in found["cases"] if case["kind"] == "given")
    assert given["scores"] == {"exact": 1.0, "compute_score": 2.0} and given["total"] == 4.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("exakt",), "exakt"),
        (("exact", "--option", "colum=x"), "column"),
        (("number", "--option", "tolerance=much"), "much"),
        (("exact,length", "--option", "tokens=5"), "one reward"),
        (("nowhere.py",), "nowhere.py"),
        (("",), "nothing to try"),
    ],
)
def test_what_is_wrong_is_refused(ask, words, said):
    error = ask("test", *words, code=2)["error"]
    assert said in " ".join(error[part] for part in ("what", "why", "fix"))


def test_code_that_is_no_python_is_refused_with_its_line(ask, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("x = 1\ndef mine(completions:\n", encoding="utf-8")
    assert "ine 2" in ask("test", path, code=2)["error"]["why"]
    path.write_text("raise ValueError('no data')\ndef mine(completions): pass\n", encoding="utf-8")
    assert "ValueError: no data (line 1)" in ask("test", path, code=2)["error"]["why"]


@pytest.mark.computing
def test_the_demo_models_answers_are_scored(ask, tmp_path):
    odd = write_jsonl(
        tmp_path / "odd.jsonl", [{"prompt": f"{i} vub {i * 7} ?!", "answer": "x"} for i in range(4)]
    )
    words = [
        "test",
        "length",
        "--model",
        "demo",
        "--samples",
        "3",
        "--max-new-tokens",
        "16",
        "--option",
        "tokens=8",
    ]
    found = ask(*words, data=odd)
    drawn = [case for case in found["cases"] if case["kind"] == "sample"]
    assert len(drawn) == 12 and found["sampled"] == 12 and sum(found["histogram"]["counts"]) == 12
    assert all(0 < case["length_tokens"] <= 16 for case in drawn)
    assert len({case["answer"] for case in drawn}) > 6, "drawn at temperature 1"
    again = ask(*words, data=odd)
    assert again["cases"] == found["cases"], "and the same again"
