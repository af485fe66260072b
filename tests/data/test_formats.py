"""Each format turns a row into the same Conversation, and says of a bad row what is wrong with it."""

import pytest

from studio.data.conversation import Conversation, Message
from studio.data.formats import FORMATS
from studio.data.row import RowError

BY_NAME = {format.name: format for format in FORMATS}
SIMPLE = (Message("user", "hi"), Message("assistant", "hello"))


def read(name: str, values: dict) -> Conversation:
    format = BY_NAME[name]
    return format.read(values, format.match(list(values)).mapping)


@pytest.mark.parametrize(
    ("name", "values", "messages"),
    [
        (
            "messages",
            {"messages": [{"role": "user", "content": "hi"}, {"role": "model", "content": "hello"}]},
            SIMPLE,
        ),
        (
            "messages",
            {"conversation": [{"role": "Human", "content": "hi"}, {"role": "bot", "content": "hello"}]},
            SIMPLE,
        ),
        (
            "messages",
            {"messages": '[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]'},
            SIMPLE,
        ),
        (
            "messages",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                    {"role": "ai", "content": "hello"},
                ]
            },
            SIMPLE,
        ),
        (
            "messages",
            {
                "messages": [
                    {"role": "system", "content": ""},
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "hello"},
                ]
            },
            SIMPLE,
        ),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
            SIMPLE,
        ),
        (
            "sharegpt",
            {
                "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}],
                "system": "be brief",
            },
            (Message("system", "be brief"), *SIMPLE),
        ),
        ("alpaca", {"instruction": "hi", "input": "", "output": "hello"}, SIMPLE),
        ("alpaca", {"Instruction": "hi", "input": None, "response": "hello"}, SIMPLE),
        (
            "alpaca",
            {"instruction": "sum up", "input": "a text", "output": "short"},
            (Message("user", "sum up\n\na text"), Message("assistant", "short")),
        ),
        ("prompt_completion", {"prompt": "hi", "completion": "hello"}, SIMPLE),
        ("prompt_completion", {"question": "hi", "answer": "hello"}, SIMPLE),
        (
            "prompt_completion",
            {
                "prompt": [{"role": "user", "content": "hi"}],
                "completion": [{"role": "assistant", "content": "hello"}],
            },
            SIMPLE,
        ),
        ("prompt_completion", {"prompt": [{"role": "user", "content": "hi"}], "completion": "hello"}, SIMPLE),
    ],
)
def test_read(name, values, messages):
    assert read(name, values).messages == messages


def test_kinds():
    assert read("text", {"text": " a text "}) == Conversation(text=" a text ", kind="text")
    assert read("prompt_completion", {"prompt": "a", "completion": "b"}).kind == "completion"
    assert read("alpaca", {"instruction": "a", "output": "b"}).kind == "chat"


@pytest.mark.parametrize(
    ("name", "values", "code", "message"),
    [
        ("messages", {"messages": None}, "E121", "data.row.null"),
        ("messages", {"messages": []}, "E122", "data.row.blank"),
        ("messages", {"messages": "words"}, "E120", "data.row.not_turns"),
        ("messages", {"messages": ["words"]}, "E120", "data.row.turn_shape"),
        ("messages", {"messages": [{"content": "hi"}]}, "E120", "data.row.turn_missing"),
        ("messages", {"messages": [{"role": "user"}]}, "E120", "data.row.turn_missing"),
        ("messages", {"messages": [{"role": "user", "content": None}]}, "E121", "data.row.turn_null"),
        ("messages", {"messages": [{"role": "user", "content": " "}]}, "E122", "data.row.turn_blank"),
        ("messages", {"messages": [{"role": "user", "content": 5}]}, "E120", "data.row.turn_not_text"),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "E120",
            "data.row.turn_not_text",
        ),
        ("messages", {"messages": [{"role": "wizard", "content": "hi"}]}, "E130", "data.row.role"),
        ("messages", {"messages": [{"role": "user", "content": "hi"}]}, "E131", "data.row.no_answer"),
        (
            "messages",
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}]},
            "E140",
            "data.row.tool_calls",
        ),
        ("sharegpt", {"conversations": [{"from": "human", "value": "hi"}]}, "E131", "data.row.no_answer"),
        ("alpaca", {"instruction": "hi", "output": ""}, "E122", "data.row.blank"),
        ("alpaca", {"instruction": None, "output": "x"}, "E121", "data.row.null"),
        ("alpaca", {"instruction": "hi", "input": 3, "output": "x"}, "E120", "data.row.not_text"),
        ("prompt_completion", {"prompt": "hi", "completion": 4}, "E120", "data.row.not_text"),
        ("text", {"text": None}, "E121", "data.row.null"),
        ("text", {"text": "\n"}, "E122", "data.row.blank"),
    ],
)
def test_bad_row(name, values, code, message):
    with pytest.raises(RowError) as refusal:
        read(name, values)
    assert (refusal.value.code, refusal.value.message.id) == (code, message)


@pytest.mark.parametrize("name", BY_NAME)
def test_missing_cell(name):
    format = BY_NAME[name]
    mapping = {role: names[0] for role, names in format.roles.items()}
    with pytest.raises(RowError) as refusal:
        format.read({"other": "x"}, mapping)
    assert refusal.value.code == "E120"


def test_every_format_has_its_words():
    from studio.core.text import LANGUAGES, load_catalogue

    for language in LANGUAGES:
        for format in FORMATS:
            assert load_catalogue(language).has(f"data.format.{format.name}.reason")
