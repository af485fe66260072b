"""The format is recognised with a reason, the person's word wins, and where two qualify nothing is guessed."""

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import DatasetSpec
from studio.data.format_detection import ACCEPT, PRESELECT, understand
from studio.data.row import Row, RowError, broken_row

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
OTHER = [CHAT[0], {"role": "assistant", "content": "go away"}]
GPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
PARTS = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}, CHAT[1]]
HH = "\n\nHuman: hi\n\nAssistant: "


def look(*rows: dict, format: str = "auto", **mapping: str):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return understand(columns, rows, DatasetSpec(source="x", format=format, mapping=mapping))


def fields(found) -> list[str]:
    return [question.field for question in found.questions]


@pytest.mark.parametrize(
    ("row", "format", "mapping"),
    [
        ({"messages": CHAT}, "messages", {"messages": "messages"}),
        ({"id": "7", "conversations": CHAT}, "messages", {"messages": "conversations"}),
        ({"messages": CHAT, "tools": "[]"}, "messages", {"messages": "messages", "tools": "tools"}),
        ({"messages": CHAT, "text": "hi ... hello"}, "messages", {"messages": "messages"}),
        ({"messages": str(CHAT)}, "messages", {"messages": "messages"}),
        (
            {"kind": "poem", "input": "a", "target": "b"},
            "prompt_completion",
            {"prompt": "input", "completion": "target"},
        ),
        ({"inputs": "a", "targets": "b"}, "prompt_completion", {"prompt": "inputs", "completion": "targets"}),
        ({"messages": '[{"role":"user","content":"hi"}]'}, "messages", {"messages": "messages"}),
        ({"conversations": GPT, "id": 1}, "sharegpt", {"conversations": "conversations"}),
        ({"conversation": GPT}, "sharegpt", {"conversations": "conversation"}),
        (
            {"instruction": "a", "input": "", "output": "b"},
            "alpaca",
            {"instruction": "instruction", "input": "input", "output": "output"},
        ),
        (
            {"instruction": "a", "context": "c", "response": "b", "category": "qa"},
            "alpaca",
            {"instruction": "instruction", "input": "context", "output": "response"},
        ),
        ({"instruction": "a", "input": "i", "output": "b", "text": "Do: a i\nDone: b"}, "alpaca", None),
        (
            {"指令": "a", "输入": "", "输出": "b"},
            "alpaca",
            {"instruction": "指令", "input": "输入", "output": "输出"},
        ),
        (
            {"\ufeffInstruction ": "a", "OUTPUT": "b"},
            "alpaca",
            {"instruction": "\ufeffInstruction ", "output": "OUTPUT"},
        ),
        (
            {"prompt": "a", "completion": "b"},
            "prompt_completion",
            {"prompt": "prompt", "completion": "completion"},
        ),
        (
            {"Question": "a", "Answer": "b"},
            "prompt_completion",
            {"prompt": "Question", "completion": "Answer"},
        ),
        ({"input": "a", "output": "b"}, "prompt_completion", {"prompt": "input", "completion": "output"}),
        (
            {"question": "1+1?", "answer": 2},
            "prompt_completion",
            {"prompt": "question", "completion": "answer"},
        ),
        ({"问题": "a", "答案": "b"}, "prompt_completion", {"prompt": "问题", "completion": "答案"}),
        ({"問題": "a", "回答": "b"}, "prompt_completion", {"prompt": "問題", "completion": "回答"}),
        ({"Frage": "a", "Antwort": "b"}, "prompt_completion", None),
        ({"pregunta": "a", "respuesta": "b"}, "prompt_completion", None),
        (
            {"system_prompt": "s", "question": "a", "response": "b"},
            "prompt_completion",
            {"prompt": "question", "completion": "response", "system": "system_prompt"},
        ),
        (
            {"problem": "a", "solution": "because", "thinking": "hm"},
            "prompt_completion",
            {"prompt": "problem", "completion": "solution", "reasoning": "thinking"},
        ),
        ({"text": "words", "source": "web"}, "text", {"text": "text"}),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference", None),
        ({"chosen": HH + "hello", "rejected": HH + "no"}, "preference", None),
        (
            {"system": "s", "question": "a", "chosen": "b", "rejected": "c"},
            "preference",
            {"prompt": "question", "chosen": "chosen", "rejected": "rejected", "system": "system"},
        ),
        (
            {"prompt": "hi", "messages": CHAT, "chosen": CHAT, "rejected": OTHER, "score_chosen": 8.0},
            "preference",
            {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
        ),
        ({"instruction": "a", "input": "b", "chosen": "c", "rejected": "d"}, "preference", None),
        ({"conversations": GPT[:1], "chosen": GPT[1], "rejected": OTHER[1]}, "preference", None),
        ({"prompt": "a", "completion": "b", "label": True}, "kto", None),
        (
            {"conversations": GPT, "kto_tag": "false"},
            "kto",
            {"messages": "conversations", "label": "kto_tag"},
        ),
        (
            {"prompt": "a", "ground_truth": "4", "level": 3},
            "rl",
            {"prompt": "prompt", "answer": "ground_truth"},
        ),
        ({"prompt": CHAT[:1], "solution": "\\boxed{4}"}, "rl", {"prompt": "prompt", "answer": "solution"}),
        ({"prompt": CHAT[:1], "reward_model": {"ground_truth": "4"}}, "rl", None),
        ({"images": ["a.png"], "messages": PARTS}, "vision", {"images": "images", "messages": "messages"}),
        (
            {"image": "a.jpg", "conversations": GPT},
            "vision",
            {"images": "image", "messages": "conversations"},
        ),
        ({"image": {"bytes": b"x", "path": None}, "question": "a", "answer": "b"}, "vision", None),
        ({"image": "a.png", "text": "a cat"}, "vision", {"images": "image", "caption": "text"}),
        ({"messages": PARTS}, "vision", {"messages": "messages"}),
        (
            {"input_ids": [1, 2], "labels": [-100, 2], "text": "x"},
            "pretokenized",
            {"input_ids": "input_ids", "labels": "labels"},
        ),
        ({"input_ids": "[1, 2]"}, "pretokenized", None),
    ],
)
def test_formats_are_recognised(row, format, mapping, english):
    found = look(row, row, row)
    assert found.format.name == format and found.questions == () and found.readable
    assert mapping is None or found.mapping == mapping
    assert ACCEPT <= found.confidence <= 1.0
    said = english(found.reason)
    assert next(iter(found.mapping.values())).strip("\ufeff ") in said and "3 of 3" in said
    assert found.ranked[0][:2] == (format, found.confidence)


def test_the_reason_says_what_the_values_showed(english):
    said = english(look({"prompt": "a", "completion": 4, "thinking": "hm", "id": "1"}).reason)
    assert "Numbers in completion" in said and "thinking is read as" in said and "Not used: id" in said
    assert "Passed on as they are: level" in english(
        look({"prompt": "a", "expected": "b", "level": 1}).reason
    )


def test_broken_rows_do_not_hide_the_format():
    found = look({"prompt": "a", "completion": "b"}, {"prompt": None}, {"completion": ""}, {"prompt": {}})
    assert found.format.name == "prompt_completion" and not found.questions
    labels = [{"prompt": "a", "completion": "b", "label": label} for label in (True, False, -1, "maybe")]
    assert look(*labels).format.name == "kto"


def test_the_person_wins():
    row = {"prompt": "a", "completion": "b", "text": "c"}
    assert look(row, format="text").format.name == "text"
    found = look({"ask": "a", "reply": "b"}, format="prompt_completion", prompt="ask", completion="reply")
    assert (found.mapping, found.confidence) == ({"prompt": "ask", "completion": "reply"}, 1.0)
    found = look({"ask": "a", "said": "b"}, prompt="ask", completion="said")
    assert found.format.name == "prompt_completion" and not found.questions


def test_a_role_can_be_left_without_a_column():
    row = {"question": "a", "answer": "b", "thinking": "c"}
    assert "reasoning" not in look(row, reasoning="").mapping


@pytest.mark.parametrize(
    ("row", "choices"),
    [
        ({"prompt": "a", "completion": "b", "text": "something else"}, {"prompt_completion", "text"}),
        ({"problem": "1+1?", "answer": "2"}, {"prompt_completion", "rl"}),
        ({"prompt": "1+1?", "answer": "2"}, {"prompt_completion", "rl"}),
    ],
)
def test_two_formats_are_a_question(row, choices, english):
    found = look(row, row)
    assert fields(found) == ["data.format"] and set(found.questions[0].choices) == choices
    assert found.format.name in choices
    assert all(choice in english(found.questions[0].question) for choice in choices)
    for choice in choices:
        assert look(row, format=choice).questions == ()


@pytest.mark.parametrize(
    ("row", "format"),
    [
        ({"notes": "words"}, "text"),
        ({"instruction": "all answers are empty", "output": ""}, "alpaca"),
        ({"prompt": "only this", "level": 1}, "rl"),
        ({"role": "prompter", "text": "hi", "parent_id": "1"}, "text"),
    ],
)
def test_a_likely_format_is_offered_and_asked_about(row, format):
    found = look(row)
    assert PRESELECT <= found.confidence < ACCEPT
    assert found.format.name == format and fields(found) == ["data.format"]
    assert found.questions[0].choices[0] == format and len(found.questions[0].choices) > 5


@pytest.mark.parametrize(
    ("row", "role"),
    [
        ({"question": "a", "answer": "b", "solution": "c"}, "completion"),
        ({"instruction": "a", "output": "b", "response": "c"}, "output"),
        ({"prompt": "a", "question": "b", "answer": "c"}, "prompt"),
    ],
)
def test_two_columns_are_a_question(row, role, english):
    found = look(row)
    assert fields(found) == [f"data.mapping.{role}"] and role not in found.mapping
    assert not found.readable
    assert len(found.questions[0].choices) == 2
    asked = found.questions[0]
    assert all(
        english(name).startswith(choice) for choice, name in zip(asked.choices, asked.names, strict=True)
    )
    for choice in found.questions[0].choices:
        answered = look(row, format=found.format.name, **{role: choice})
        assert answered.mapping[role] == choice and not answered.questions


@pytest.mark.parametrize("other", ["b", "", None, {"no": 5}])
def test_two_columns_without_doubt(other, english):
    found = look({"question": "a", "answer": "b", "solution": other})
    assert found.mapping["completion"] == "answer" and found.questions == ()
    assert "solution holds" in english(found.reason)


@pytest.mark.parametrize("row", [{"messages": "not a list"}, {"chosen": "a"}, {"input_ids": ["a"]}])
def test_a_known_name_without_what_it_names_is_a_question(row):
    found = look(row)
    assert found.format is None and found.mapping == {} and not found.readable
    assert fields(found) == ["data.format"] and len(found.questions[0].choices) == 10
    assert found.confidence < PRESELECT


def test_unknown_names_are_asked_for_the_question_and_the_answer(english):
    rows = [{"wann": f"2024-01-{i:02}", "kunde": f"Was kostet Artikel {i}?", "wir": f"Er kostet {i} Euro heute.",
             "sie": f"Das macht {i} Euro, bitte sehr."} for i in range(1, 9)]  # fmt: skip
    found = look(*rows)
    assert found.format is None and not found.readable
    assert fields(found) == ["data.mapping.prompt", "data.mapping.completion"]
    assert [question.choices[0] for question in found.questions] == ["kunde", "wir"]
    assert "Was kostet Artikel 1?" in english(found.questions[0].names[0])
    half = look(*rows, prompt="kunde")
    assert fields(half) == ["data.mapping.completion"] and not half.readable
    whole = look(*rows, prompt="kunde", completion="wir", material="")
    assert whole.format.name == "prompt_completion" and not whole.questions and whole.confidence == 1


@pytest.mark.parametrize(
    "row", [{"text": None}, {"a": 3, "b": 0.5}, {"id": "x1", "url": "https://example.org/a"}]
)
def test_what_holds_no_words_is_refused(row):
    with pytest.raises(StudioError) as refusal:
        look(row)
    assert refusal.value.what.id == "data.sniff.nothing"


def test_no_rows_is_a_question():
    assert understand((), (), DatasetSpec(source="x")).format is None


def test_a_chosen_format_asks_for_its_columns():
    found = look({"one": "x", "two": "y", "n": None}, format="alpaca")
    assert fields(found) == ["data.mapping.instruction", "data.mapping.output"]
    assert found.questions[0].choices == ("one", "two") and not found.readable


@pytest.mark.parametrize(
    ("format", "mapping", "what"),
    [
        ("messages", {}, "data.sniff.missing"),
        ("auto", {"prompt": "nowhere"}, "data.sniff.no_column"),
        ("auto", {"wizard": "a"}, "data.sniff.no_role"),
        ("text", {"prompt": "a"}, "data.sniff.no_role"),
        ("nonsense", {}, "data.sniff.no_format"),
    ],
)
def test_refusals(format, mapping, what):
    with pytest.raises(StudioError) as refusal:
        look({"a": "x", "b": "y"}, format=format, **mapping)
    assert refusal.value.what.id == what


def test_columns_that_appear_late():
    found = look({"messages": CHAT})
    late = found.extend(["messages", "id", "tools", "system", "conversation"])
    assert late.mapping == {"messages": "messages", "tools": "tools", "system": "system"}
    assert found.extend(["messages", "id"]) is found
    beside = look({"instruction": "a", "input": "b", "context": "d e", "output": "c"})
    assert beside.mapping == {
        "instruction": "instruction", "input": "input", "output": "output", "material": "context"
    }  # fmt: skip
    assert beside.extend(["instruction", "input", "context", "output", "inputs"]).mapping == beside.mapping


def test_read_row():
    found = look({"prompt": "a", "completion": "b"})
    conversation, notes = found.read_row(Row(1, {"prompt": "a", "completion": "b"}))
    assert conversation.kind == "completion" and notes == ()
    with pytest.raises(RowError) as refusal:
        found.read_row(broken_row(3, "E101", text("data.row.not_object")))
    assert refusal.value.code == "E101"
    with pytest.raises(RowError):
        found.read_row(Row(1, {"prompt": "a"}))


@pytest.mark.computing
def test_odd_samples():
    wide = {f"c{i}": "x" for i in range(500)} | {"text": "words", None: "y", 5: "z", "n" * 10_000: "w"}
    found = understand(list(wide), [wide] * 3, DatasetSpec(source="x"))
    assert found.format.name == "text" and found.mapping == {"text": "text"}
    assert len(found.reason.values["next"].values["columns"]) < 200
    unknown = {f"c{i}": "x" for i in range(500)}
    found = understand(list(unknown), [unknown], DatasetSpec(source="x"))
    assert len(found.questions[0].question.values["columns"]) < 300
    huge = [{"messages": cell + "x" * 5_000_000} for cell in ("[", "[{'", "[{", "{")]
    assert look(*huge).format is None
