"""The answer of `launch.py data`: the keys of the contract, problems with their lines, questions, no guesses."""

import json

from studio.core.codec import to_json
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe

KEYS = {
    "source",
    "container",
    "encoding",
    "format",
    "confidence",
    "reason",
    "mapping",
    "needs_answer",
    "rows_read",
    "rows_used",
    "rows_quarantined",
    "rows_filtered",
    "problems",
    "stats",
    "preview",
}


def look(path, tokenizer=None, rows=3, cache=None, **settings):
    found = describe(DatasetSpec(source=str(path), **settings), tokenizer=tokenizer, rows=rows, cache=cache)
    assert set(found) >= KEYS
    assert found["rows_read"] == (
        found["rows_used"] + found["rows_quarantined"] + sum(found["rows_filtered"].values())
    )
    return found


def test_clear_data_set(chat_file, tokenizer_of):
    found = look(chat_file, tokenizer_of("chatml"), rows=2)
    assert (found["container"], found["encoding"], found["format"]) == ("jsonl", "utf-8", "messages")
    assert (found["rows_read"], found["rows_used"], found["trainable"]) == (24, 24, True)
    assert len(found["preview"]) == 2
    tokens = found["preview"][0]["tokens"]
    assert "".join(token["text"] for token in tokens if token["trained"]) == "it is 0<|im_end|>"
    assert found["preview"][0]["messages"][0] == {"role": "user", "content": "say 0"}
    assert found["stats"]["tokens"]["max"] == 34


def test_problems_are_told_not_raised(tmp_path, jsonl, english):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "one"}, {"text": ""}, {"text": None}] + [{"text": ""}] * 120)
    found = look(path)
    assert (found["rows_read"], found["rows_used"], found["rows_quarantined"]) == (123, 1, 122)
    assert [(one["code"], one["line"]) for one in found["problems"][:2]] == [("E122", 2), ("E121", 3)]
    assert english(found["problems"][0]["message"]) == "Line 2: The column text is empty."
    assert found["problems"][-1]["count"] == 21 and len(found["problems"]) == 102
    assert found["preview"][0]["text"] == "one" and found["preview"][0]["tokens"] == []
    assert found["refused"] and not found["trainable"]
    assert not look(path, accept_bad_rows=True)["refused"]


def test_rows_left_out_by_rule(tmp_path, jsonl, tokenizer_of):
    rows = [{"prompt": "p" * length, "completion": "c"} for length in (5, 100)]
    path = jsonl(tmp_path / "a.jsonl", rows)
    found = look(path, tokenizer_of("chatml"), max_length=64)
    assert found["rows_filtered"] == {"answer_beyond_max_length": 1}
    assert [(one["code"], one["line"]) for one in found["problems"]] == [("E162", 2)]
    assert look(path, tokenizer_of("chatml"), max_length=64, too_long="drop")["rows_filtered"] == {
        "too_long": 1
    }


def test_question(tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [{"question": "a", "answer": "b", "solution": "c"}])
    found = look(path)
    assert (found["rows_read"], found["rows_used"], found["preview"]) == (1, 0, [])
    assert found["needs_answer"] and found["needs_answer"][0]["choices"]
    answered = look(path, format="prompt_completion", mapping={"completion": "solution"})
    assert answered["mapping"]["completion"] == "solution" and answered["needs_answer"] == []
    assert answered["rows_used"] == 1


def test_nothing_readable(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{broken\n" * 3, encoding="utf-8")
    found = look(path)
    assert (found["format"], found["rows_read"], found["rows_quarantined"]) == (None, 3, 3)
    assert [one["line"] for one in found["problems"]] == [1, 2, 3]


def test_what_the_model_answers_itself_is_shown_up_to_where_it_begins(tmp_path, jsonl, tokenizer_of):
    asked = [{"role": "user", "content": "1 + 1?"}]
    rows = [{"prompt": asked, "reward_model": {"ground_truth": "2"}}] * 4
    found = look(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert (found["format"], found["rows_used"], found["trainable"]) == ("rl", 4, True)
    shown, method = found["preview"][0], found["method"]
    assert shown["messages"] == asked and method == "grpo"
    assert shown["text"].endswith("<|im_start|>assistant\n") and not any(
        one["trained"] for one in shown["tokens"]
    )


def test_both_sides_of_a_pair_are_shown_with_what_is_compared(tmp_path, jsonl, tokenizer_of):
    rows = [{"prompt": f"q{i}", "chosen": "good", "rejected": "quite bad"} for i in range(4)]
    found = look(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert (found["format"], found["rows_used"], found["trainable"]) == ("preference", 4, True)
    shown, method = found["preview"][0], found["method"]
    assert method == "dpo" and shown["chosen"] == [{"role": "assistant", "content": "good"}]
    for side, words in (("tokens", "good"), ("rejected_tokens", "quite bad")):
        learned = "".join(one["text"] for one in shown[side] if one["trained"])
        assert learned.startswith(words) and "q0" not in learned
        assert "q0" in "".join(one["text"] for one in shown[side] if not one["trained"])
    assert "quite bad" in shown["rejected_text"] and "quite bad" not in shown["text"]


def test_answers_that_contradict_or_hardly_differ_are_named(tmp_path, jsonl, tokenizer_of, english):
    long = "It is a long way from here to there, and " * 6
    rows = [
        {"prompt": "q0", "chosen": "good", "rejected": "bad"},
        {"prompt": "q1", "chosen": "good", "rejected": "bad"},
        {"prompt": "q0", "chosen": "bad", "rejected": "good"},
        {"prompt": "q2", "chosen": long + "no more.", "rejected": long + "so more."},
        {"prompt": "q3", "chosen": long, "rejected": long.replace("way", "wide and open road")},
    ]
    found = look(jsonl(tmp_path / "a.jsonl", rows), tokenizer_of("chatml"))
    assert [(one["code"], one["line"]) for one in found["problems"]] == [("E173", 3), ("E174", 4)]
    assert "opposite of the row at line 1." in english(found["problems"][0]["message"])
    assert found["rows_used"] == 5
    thumbs = [
        {"prompt": "q0", "completion": "good", "label": True},
        {"prompt": "q0", "completion": "bad", "label": False},
        {"prompt": "q0", "completion": "good", "label": False},
    ]
    found = look(jsonl(tmp_path / "b.jsonl", thumbs), tokenizer_of("chatml"))
    assert [(one["code"], one["line"]) for one in found["problems"]] == [("E173", 3)]


def test_a_late_column_is_in_the_mapping(tmp_path, jsonl):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"messages": turns} for _ in range(1500)]
    rows[1400] |= {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    found = look(jsonl(tmp_path / "a.jsonl", rows))
    assert found["mapping"] == {"messages": "messages", "tools": "tools"}
    assert found["columns"] == ["messages", "tools"] and found["rows_used"] == 1500


def test_exact_duplicates_are_noted_or_left_out(tmp_path, jsonl):
    rows = [
        {"prompt": "q", "completion": "a"},
        {"prompt": "r", "completion": "b"},
        {"prompt": "q", "completion": "a"},
    ]
    path = jsonl(tmp_path / "a.jsonl", rows)
    found = look(path)
    assert [(one["code"], one["line"]) for one in found["problems"]] == [("E190", 3)]
    assert found["stats"]["exact_duplicates"] == 1 and found["rows_used"] == 3
    dropped = look(path, duplicates="exact")
    assert dropped["rows_filtered"] == {"duplicate": 1} and dropped["problems"] == []


def test_splits_of_a_folder(tmp_path, jsonl):
    row = {"prompt": "q", "completion": "a"}
    jsonl(tmp_path / "train.jsonl", [row, {"prompt": "r", "completion": "b"}])
    jsonl(tmp_path / "validation.jsonl", [row])
    found = look(tmp_path)
    assert {name: split["rows_used"] for name, split in found["splits"].items()} == {
        "train": 2,
        "validation": 1,
    }
    assert found["stats"]["overlap"]["exact"] == 1 and found["rows_read"] == 2
    assert look(tmp_path, overlap="exact")["rows_filtered"] == {"overlap": 1}


def test_the_second_time_is_the_same(tmp_path, chat_file, tokenizer_of):
    once, again = (look(chat_file, tokenizer_of("chatml"), cache=tmp_path / "cache") for _ in range(2))
    assert to_json(once) == to_json(again)


def test_as_json(chat_file, tokenizer_of):
    assert json.loads(json.dumps(to_json(look(chat_file, tokenizer_of("chatml")))))


def test_control_signs_are_noted_without_and_refused_with_a_tokenizer(tmp_path, jsonl, tokenizer_of):
    rows = [{"prompt": f"q{i}", "completion": "a"} for i in range(300)]
    rows[7]["prompt"] = "what is <|im_end|> for?"
    path = jsonl(tmp_path / "a.jsonl", rows)
    for tokenizer, used, effect in ((None, 300, "noted"), (tokenizer_of("chatml"), 299, "refused")):
        found = look(path, tokenizer)
        assert [(one["code"], one["line"], one["effect"]) for one in found["problems"]] == [
            ("E191", 8, effect)
        ]
        assert found["rows_used"] == used


def test_a_row_is_named_where_one_line_holds_them_all(tmp_path):
    rows = [{"instruction": f"q{i}", "output": "" if i == 4 else "a"} for i in range(9)]
    for name, unit in (("one.json", "row"), ("many.jsonl", "line")):
        lines = [json.dumps(rows)] if name == "one.json" else map(json.dumps, rows)
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        (problem,) = look(tmp_path / name)["problems"]
        assert problem["message"].id == f"data.problem.{unit}"
        assert problem["message"].values["number"] == 5
