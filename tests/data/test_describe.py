"""The answer of `launch.py data`: the keys of the contract, problems with their lines, questions, no guesses."""

import json

from studio.data.describe import describe

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
    "preview",
}


def test_clear_data_set(chat_file, tokenizer_of):
    found = describe(str(chat_file), tokenizer=tokenizer_of("chatml"), rows=2)
    assert set(found) == KEYS
    assert (found["container"], found["format"], found["rows_read"], found["rows_used"]) == (
        "jsonl",
        "messages",
        24,
        24,
    )
    assert len(found["preview"]) == 2
    tokens = found["preview"][0]["tokens"]
    assert "".join(token["text"] for token in tokens if token["trained"]) == "it is 0<|im_end|>"


def test_problems_are_told_not_raised(tmp_path, jsonl, english):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "one"}, {"text": ""}, {"text": None}] + [{"text": ""}] * 120)
    found = describe(str(path))
    assert (found["rows_read"], found["rows_used"], found["rows_quarantined"]) == (123, 1, 122)
    assert [(one["code"], one["line"]) for one in found["problems"][:2]] == [("E122", 2), ("E121", 3)]
    assert english(found["problems"][0]["message"]) == "Line 2: The column text is empty."
    assert found["problems"][-1]["count"] == 21 and len(found["problems"]) == 102
    assert found["preview"][0]["text"] == "one" and found["preview"][0]["tokens"] == []


def test_rows_left_out_by_rule(tmp_path, jsonl, tokenizer_of):
    rows = [{"prompt": "p" * length, "completion": "c"} for length in (5, 100)]
    found = describe(str(jsonl(tmp_path / "a.jsonl", rows)), tokenizer=tokenizer_of("chatml"), max_length=64)
    assert found["rows_filtered"] == {"answer_beyond_max_length": 1}
    assert found["rows_read"] == found["rows_used"] + found["rows_quarantined"] + 1


def test_question(tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [{"question": "a", "answer": "b", "solution": "c"}])
    found = describe(str(path))
    assert set(found) == KEYS and found["format"] is None and found["rows_read"] == 1
    assert found["needs_answer"][0]["choices"] == ["answer", "solution"]
    assert describe(str(path), mapping={"completion": "solution"})["mapping"]["completion"] == "solution"


def test_nothing_readable(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{broken\n" * 3, encoding="utf-8")
    found = describe(str(path))
    assert (found["format"], found["rows_read"], found["rows_quarantined"]) == (None, 3, 3)
    assert [one["line"] for one in found["problems"]] == [1, 2, 3]


def test_as_json(chat_file, tokenizer_of):
    from studio.core.codec import to_json

    assert json.loads(json.dumps(to_json(describe(str(chat_file), tokenizer=tokenizer_of("chatml")))))
