"""Which file holds which split: the names people give, what is left out and why, and what has to be asked."""

import os
import time

import pytest

from studio.core.errors import StudioError
from studio.data import split_discovery as module
from studio.data.split_discovery import find_split, find_suffix, is_data, list_files, plan_files

SHARDS = [f"data/train-{i:05}-of-00012.parquet" for i in range(12)]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.jsonl", "val.jsonl", "eval.csv"], {"train": 1, "validation": 1, "test": 1}),
        (["Train.JSONL", "dev.jsonl.gz"], {"train": 1, "validation": 1}),
        (["my_train_set.csv", "my_valid_set.csv"], {"train": 1, "validation": 1}),
        ([*SHARDS, "data/test-00000-of-00001.parquet"], {"train": 12, "test": 1}),
        (["train/a.jsonl", "train/b.jsonl", "validation/c.jsonl"], {"train": 2, "validation": 1}),
        (["training/x.arrow", "testing/x.arrow"], {"train": 1, "test": 1}),
        (["alone.jsonl"], {"train": 1}),
        (["part-1.jsonl", "part-2.jsonl", "part-10.jsonl"], {"train": 3}),
        (["one.txt", "two.txt", "deeper/three.md"], {"train": 3}),
        (["train.en.jsonl", "x.validation.jsonl"], {"train": 1, "validation": 1}),
    ],
)
def test_splits_by_the_names_people_use(names, splits):
    plan = plan_files(names)
    assert {split: len(files) for split, files in plan.splits.items()} == splits
    assert plan.questions == ()


def test_numbers_are_in_order_and_words_are_whole():
    assert plan_files(["p-10.jsonl", "p-9.jsonl", "p-1.jsonl"]).splits["train"] == (
        *("p-1.jsonl", "p-9.jsonl", "p-10.jsonl"),
    )
    assert find_split("contest.jsonl") == find_split("trained.jsonl") == find_split("values.csv") == ""
    assert find_split("train/test.jsonl") == "test"  # the file's own name says more than its folder's
    assert find_suffix("A/B.JSONL.GZ") == ".jsonl"


def test_other_files_are_left_out_with_a_reason(english):
    names = [
        "train.jsonl",
        "README.md",
        "LICENSE",
        ".gitattributes",
        "state.json",
        "load.py",
        "notes.txt",
        "more.csv",
    ]
    plan = plan_files(names)
    assert plan.splits == {"train": ("train.jsonl",)}
    assert {note.id: note.values["names"] for note in plan.notes} == {
        "data.folder.not_data": ".gitattributes, LICENSE, README.md, load.py, state.json",
        "data.folder.beside": "notes.txt",
        "data.folder.no_split": "more.csv",
    }
    assert "README.md" in english(plan.notes[0])
    assert not is_data("__MACOSX/train.jsonl") and not is_data("a/.hidden/train.jsonl")


def test_the_note_of_many_files_is_short(english):
    plan = plan_files(["train.jsonl", *(f"picture_{i:03}.png" for i in range(900))])
    assert len(english(plan.notes[0])) < 300 and plan.notes[0].values["count"] == 900


def test_unlike_files_are_asked_about():
    names = ["alpaca.jsonl", "dolly.jsonl", "oasst-00.jsonl", "oasst-01.jsonl"]
    [question] = plan_files(names).questions
    assert (question.id, question.field) == ("split", "data.split")
    assert question.choices == ("alpaca", "dolly", "oasst", "all")
    assert plan_files(names, split="oasst").splits == {"train": ("oasst-00.jsonl", "oasst-01.jsonl")}
    assert plan_files(names, split="dolly.jsonl").splits == {"train": ("dolly.jsonl",)}
    every = plan_files(names, split="all")
    assert len(every.splits["train"]) == 4 and not every.questions


def test_two_kinds_of_train_are_asked_about():
    names = ["train_sft.jsonl", "train_prefs.jsonl", "test_sft.jsonl"]
    [question] = plan_files(names).questions
    assert question.choices == ("train_prefs", "train_sft", "all")
    assert plan_files(names, split="train_sft").splits == {
        "train": ("train_sft.jsonl",),
        "test": ("test_sft.jsonl",),
    }


def test_the_same_name_in_two_kinds_is_asked_about():
    [question] = plan_files(["train.csv", "train.jsonl"]).questions
    assert question.choices == ("train.csv", "train.jsonl", "all")


def test_no_train_is_asked_about():
    plan = plan_files(["test.jsonl", "dev.jsonl"])
    assert plan.questions[0].choices == ("validation", "test")
    assert plan_files(["test.jsonl", "dev.jsonl"], split="test").splits == {"train": ("test.jsonl",)}


def test_folders_that_hold_a_data_set_each_are_asked_about():
    names = ["en/train.jsonl", "en/test.jsonl", "de/train.jsonl"]
    plan = plan_files(names)
    assert plan.questions[0].field == "data.config" and plan.questions[0].choices == ("de", "en", "all")
    assert plan_files(names, config="en").splits == {"train": ("en/train.jsonl",), "test": ("en/test.jsonl",)}
    assert len(plan_files(names, config="all").splits["train"]) == 2
    assert not plan_files(["train.jsonl", "old/train.jsonl"]).questions  # what lies at the top is meant


@pytest.mark.parametrize("wrong", [{"split": "trian"}, {"config": "fr"}])
def test_what_is_not_there_cannot_be_chosen(wrong, english):
    with pytest.raises(StudioError) as refusal:
        plan_files(["en/train.jsonl", "de/train.jsonl"], **{"config": "de"} | wrong)
    assert "de" in english(refusal.value.why) or "train" in english(refusal.value.why)


def test_nothing_to_read():
    assert plan_files([]).splits == plan_files(["a.png", "README.md"]).splits == {"train": ()}


def test_files_of_a_folder(tmp_path, monkeypatch):
    for name in ("b/two.jsonl", "one.jsonl", ".git/x.jsonl", ".hidden", "__pycache__/x.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    os.symlink(tmp_path, tmp_path / "b" / "round")  # would be walked without end
    assert [name for name in list_files(tmp_path) if name != "b/round"] == ["b/two.jsonl", "one.jsonl"]
    monkeypatch.setattr(module, "ENTRY_LIMIT", 1)
    with pytest.raises(StudioError) as refusal:
        list_files(tmp_path)
    assert refusal.value.what.id == "data.folder.large"


@pytest.mark.computing
def test_many_names_are_planned_in_time_that_grows_with_them():
    """100,000 members of a zip took minutes: sets were made anew for each name, and tuples grown one by one."""

    def measure(count: int) -> float:
        names = [f"part-{i:06}.txt" for i in range(count)] + [f"train-{i:06}.jsonl" for i in range(count)]
        started_s = time.process_time()
        plan_files(names)
        return time.process_time() - started_s

    measure(100)
    assert measure(16_000) < 12 * measure(2_000)
