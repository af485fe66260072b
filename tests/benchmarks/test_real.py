"""Real rows are picked and kept as they are, both sides train the same tokens, and the table says what holds."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import real
from benchmarks.real_loop import pad, score
from benchmarks.real_rows import (
    pick_rows,
    read_examples,
    read_list,
    read_messages,
    shape_rows,
    write_examples,
)
from benchmarks.table import append_row, read_rows
from tests.conftest import make_model


def talk(number: int, *words: str) -> dict:
    turns = [{"from": name, "value": said} for name, said in zip(["human", "gpt"] * 4, words, strict=False)]
    return {"id": f"talk{number}_0", "conversations": turns}


@pytest.fixture
def source(tmp_path):
    """A ShareGPT file that is cut off, with rows that no model can learn from."""
    good = [talk(n, f"say {n}", f"it is {n * 7 % 10}") for n in range(60)]
    bad = [talk(90, "why?", "\u200b"), talk(91, "no answer"), talk(92, "long", "x" * 300)]
    words = json.dumps(good[:30] + bad + good[30:])
    path = tmp_path / "chats.json"
    path.write_text(words[:-20], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def rows(source, model, tmp_path):
    """The folder of 40 picked rows and 8 held out."""
    pick_rows(source, model, tmp_path / "rows", train=40, held_out=8, longest=64)
    return tmp_path / "rows"


def test_a_list_that_is_cut_off_is_read_to_its_last_whole_row(source):
    assert len(list(read_list(source))) == 62


@pytest.mark.parametrize(
    ("row", "count"),
    [
        (talk(0, "a", "b"), 2),
        (talk(0, "a", "b", "c", "d"), 4),
        (talk(0, "a"), None),
        (talk(0, "a", "b", "c"), None),
        (talk(0, "a", " \u200b"), None),
        ({"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "b"}]}, None),
        ({}, None),
    ],
)
def test_a_conversation_has_words_in_every_turn_and_ends_with_an_answer(row, count):
    messages = read_messages(row)
    assert messages is None if count is None else len(messages) == count


def test_picked_rows_are_short_and_apart(rows, model):
    examples = read_examples(write_examples(rows, model, 64, real.SEED))
    assert (len(examples["train"]), len(examples["held_out"])) == (40, 8)
    assert all(len(row.token_ids) <= 64 for part in examples.values() for row in part)
    texts = [{bytes(row.token_ids) for row in part} for part in examples.values()]
    assert not texts[0] & texts[1]


def test_a_shapes_rows_are_as_long_as_the_real_ones(rows, model, tmp_path):
    real_rows = read_examples(write_examples(rows, model, 64, real.SEED))["train"]
    shape_rows(rows / "examples.npz", tmp_path / "shaped", train=40, held_out=8)
    shaped = read_examples(write_examples(tmp_path / "shaped", model, 64, real.SEED))["train"]
    assert [len(row.token_ids) for row in shaped] == [len(row.token_ids) for row in real_rows]
    assert [int(row.trained.sum()) for row in shaped] == [int(row.trained.sum()) for row in real_rows]


def test_the_score_is_the_mean_over_all_trained_tokens_however_rows_are_padded(rows, model):
    from transformers import AutoModelForCausalLM

    examples = read_examples(write_examples(rows, model, 64, real.SEED))["held_out"]
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    total, tokens = 0.0, 0
    for row in examples:
        batch = pad([row], torch.device("cpu"))
        count = int((batch["labels"][:, 1:] != -100).sum())
        total, tokens = total + float(loaded(**batch).loss.detach()) * count, tokens + count
    assert score(loaded, examples) == pytest.approx(total / tokens, abs=1e-5)


@pytest.mark.computing
@pytest.mark.timeout(900)
def test_loop_and_studio_come_to_the_same_loss(rows, model, tmp_path, capfd):
    out = tmp_path / "real.csv"
    words = ["all", "--model", model, "--data", rows, "--ways", "lora,full", "--rows-a-step", "4"]
    words += ["--batches", "2,4", "--device", "cpu", "--longest", "64", "--seconds", "800", "--out", out]
    assert real.main([str(word) for word in words]) == 0, capfd.readouterr().out
    found = {(row["way"], row["stack"]): row for row in read_rows(out)}
    assert set(found) == {(way, stack) for way in ("lora", "full") for stack in ("loop", "studio")}
    for way in ("lora", "full"):
        loop, studio = found[way, "loop"], found[way, "studio"]
        assert loop["steps"] == studio["steps"] == "10" and float(studio["tokens_per_s"]) > 0
        assert float(loop["loss_first"]) == pytest.approx(float(studio["loss_first"]), abs=2e-3)
        assert float(loop["held_out"]) < float(loop["held_out_before"])
        assert float(loop["held_out"]) == pytest.approx(float(studio["held_out"]), abs=2e-3)


def test_the_table_says_what_does_not_hold(tmp_path, capsys):
    out = tmp_path / "real.csv"
    same = {"way": "lora", "model": "m", "data": "d", "rows_a_step": "8", "steps": "9"}
    append_row(out, {**same, "stack": "loop", "tokens_per_s": "100", "held_out": "1.5"}, real.COLUMNS)
    append_row(out, {**same, "stack": "studio", "tokens_per_s": "300", "held_out": "1.504"}, real.COLUMNS)
    real.print_table(out)
    told = capsys.readouterr().out
    assert "3.00 times" in told and told.count("NO") == 2
    append_row(out, {**same, "stack": "studio", "tokens_per_s": "700", "held_out": "1.501"}, real.COLUMNS)
    real.print_table(out)
    told = capsys.readouterr().out
    assert "7.00 times" in told and "NO" not in told


def test_eight_rows_a_step_are_the_studios_own(tmp_path):
    assert real.size_step(8) == {} and real.size_step(16) == {"batch_size": 16}
