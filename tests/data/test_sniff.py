"""The format is recognised with a reason, the person's word wins, and where two qualify nothing is guessed."""

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.sniff import Ambiguous, sniff

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
GPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]


def guess(row: dict, format: str = "auto", **mapping: str):
    spec = DatasetSpec(source="x", format=format, mapping=mapping)
    return sniff(tuple(row), [row] * 3, spec)


@pytest.mark.parametrize(
    ("row", "format", "mapping"),
    [
        ({"messages": CHAT}, "messages", {"messages": "messages"}),
        ({"id": "7", "conversations": CHAT}, "messages", {"messages": "conversations"}),
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
        ({"text": "words", "source": "web"}, "text", {"text": "text"}),
    ],
)
def test_formats_are_recognised(row, format, mapping, english):
    found = guess(row)
    assert found.format.name == format
    assert mapping is None or found.mapping == mapping
    assert 0.85 <= found.confidence <= 1.0
    assert next(iter(found.mapping.values())) in english(found.reason)


def test_the_person_wins():
    row = {"prompt": "a", "completion": "b", "text": "c"}
    assert guess(row, "text").format.name == "text"
    found = guess({"ask": "a", "reply": "b"}, "prompt_completion", prompt="ask", completion="reply")
    assert (found.mapping, found.confidence) == ({"prompt": "ask", "completion": "reply"}, 1.0)
    assert (
        guess({"ask": "a", "reply": "b"}, prompt="ask", completion="reply").format.name == "prompt_completion"
    )


def test_two_formats_are_a_question(english):
    with pytest.raises(Ambiguous) as question:
        guess({"prompt": "a", "completion": "b", "text": "something else"})
    assert set(question.value.choices) == {"prompt_completion", "text"}
    assert "data.format" in english(question.value.fix)


@pytest.mark.parametrize(
    ("row", "role"),
    [
        ({"question": "a", "answer": "b", "solution": "c"}, "completion"),
        ({"instruction": "a", "output": "b", "response": "c"}, "output"),
        ({"prompt": "a", "question": "b", "answer": "c"}, "prompt"),
    ],
)
def test_two_columns_are_a_question(row, role, english):
    with pytest.raises(Ambiguous) as question:
        guess(row)
    assert question.value.what.values["role"] == role and len(question.value.choices) == 2
    assert guess(row, **{role: question.value.choices[1]}).mapping[role] == question.value.choices[1]


@pytest.mark.parametrize(
    "row", [{"a": "x", "b": "y"}, {"messages": "not a list"}, {"text": None}, {"chosen": "a"}]
)
def test_unknown_is_a_question(row):
    with pytest.raises(Ambiguous) as question:
        guess(row)
    assert question.value.what.id == "data.sniff.unknown"


@pytest.mark.parametrize(
    ("format", "mapping", "what"),
    [
        ("alpaca", {}, "data.sniff.missing"),
        ("auto", {"prompt": "nowhere"}, "data.sniff.no_column"),
        ("auto", {"wizard": "a"}, "data.sniff.no_role"),
        ("text", {"prompt": "a"}, "data.sniff.no_role"),
        ("nonsense", {}, "data.sniff.no_format"),
    ],
)
def test_refusals(format, mapping, what):
    with pytest.raises(StudioError) as refusal:
        guess({"a": "x", "b": "y"}, format, **mapping)
    assert refusal.value.what.id == what
