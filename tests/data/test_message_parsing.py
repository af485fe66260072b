"""Turns are read however files write them: roles, parts, thoughts, tool calls; what is odd or broken is named."""

import json

import pytest

from studio.core.i18n import LANGUAGES, load_catalogue
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Message, ToolCall, read_stored
from studio.data.format_detection import understand
from studio.data.formats import FORMATS
from studio.data.formats.roles import SPELLINGS
from studio.data.row import RowError

BY_NAME = {format.name: format for format in FORMATS}
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
SIMPLE = (Message("user", "hi"), Message("assistant", "hello"))
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "2"}
ADD = {"name": "add", "parameters": {"type": "object"}}


def read(*turns, **columns):
    values = {"messages": list(turns)} | columns
    format = BY_NAME["messages"]
    return format.read(values, format.match(list(values)).mapping)


def read_gpt(*turns, **columns):
    values = {"conversations": [{"from": who, "value": said} for who, said in turns]} | columns
    format = BY_NAME["sharegpt"]
    return format.read(values, format.match(list(values)).mapping)


def refuse(*turns, **columns) -> tuple[str, str]:
    with pytest.raises(RowError) as refusal:
        read(*turns, **columns)
    for language in LANGUAGES:
        said = load_catalogue(language).say(refusal.value.message)
        assert "{" not in said and "data." not in said and len(said) <= 300
    return refusal.value.code, refusal.value.message.id


@pytest.mark.parametrize(("spelling", "role"), SPELLINGS.items())
def test_spellings(spelling, role):
    turns = [("human", "hi"), (spelling.upper(), '{"name": "f"}'), ("gpt", "hello")]
    if role == "tool":
        turns.insert(1, ("function_call", '{"name": "f"}'))
    elif SPELLINGS[spelling] == "assistant" and "call" in spelling:
        turns.insert(2, ("tool", "2"))
    assert role in [message.role for message in read_gpt(*turns).messages[1:-1]]


def test_content_parts():
    turn = {
        "role": "user",
        "content": [{"type": "text", "text": "a "}, "b", {"type": "input_text", "text": " c"}],
    }
    assert read(turn, ANSWER).messages == (Message("user", "a b c"), SIMPLE[1])


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_thoughts_in_a_turn(key):
    found = read(USER, ANSWER | {key: "let me see"})
    assert found.messages[1] == Message("assistant", "hello", "let me see")
    assert read(USER | {key: "mine"}, ANSWER | {key: None}).messages == SIMPLE


@pytest.mark.parametrize("mark", [{"weight": 0}, {"weight": 0.0}, {"train": False}])
def test_answers_that_the_file_keeps_out_of_training(mark):
    found = read({"role": "user", "content": "hi"} | mark, {"role": "assistant", "content": "hello"} | mark)
    assert [message.learned for message in found.messages] == [True, False]
    assert read_stored(found.to_dict()) == found
    for other in ({"weight": 1}, {"weight": None}, {"train": True}):
        found = read({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"} | other)
        assert found.messages[1].learned


def test_thoughts_in_parts_and_in_a_column():
    parts = [{"type": "thinking", "thinking": "let me see"}, {"type": "text", "text": "hello"}]
    assert read(USER, {"role": "assistant", "content": parts}).messages[1].reasoning == "let me see"
    found = read(USER, ANSWER, USER, ANSWER, thinking="hm")
    assert [message.reasoning for message in found.messages] == ["", "", "", "hm"]
    assert read(USER, ANSWER | {"reasoning": "own"}, thinking="hm").messages[1].reasoning == "own"


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        CALL | {"function": {"name": "add", "arguments": {"a": 1}}},
        {"id": "c1", "name": "add", "arguments": {"a": 1}},
        {"id": "c1", "name": "add", "parameters": '{"a": 1}'},
        json.dumps(CALL),
    ],
)
def test_arguments_become_an_object(call):
    found = read(USER, CALLS | {"tool_calls": [call]}, RESULT, ANSWER)
    assert found.messages[1] == Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1}, "c1"),))
    assert found.messages[2] == Message("tool", "2", call_id="c1")


def test_other_ways_to_call():
    old = {"role": "assistant", "content": "wait", "function_call": {"name": "add", "arguments": ""}}
    found = read(USER, old, {"role": "function", "name": "add", "content": {"sum": 2}}, ANSWER)
    assert found.messages[1] == Message("assistant", "wait", tool_calls=(ToolCall("add", {}),))
    assert found.messages[2] == Message("tool", '{"sum":2}', name="add")
    found = read(USER, CALLS | {"tool_calls": json.dumps([CALL])}, RESULT, ANSWER)
    assert found.messages[1].tool_calls[0].arguments == {"a": 1}
    called = json.dumps([{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {}}])
    found = read_gpt(("human", "hi"), ("function_call", called), ("observation", "2"), ("gpt", "hello"))
    assert [call.arguments for call in found.messages[1].tool_calls] == [{"a": 1}, {}]


def test_calls_in_words_stay_words():
    said = '<tool_call>\n{"name": "add"}\n</tool_call>'
    found = read_gpt(("human", "hi"), ("gpt", said), ("tool", "2"), ("gpt", "hello"))
    assert found.messages[1] == Message("assistant", said)


def test_a_call_may_end_a_conversation():
    assert read(USER, CALLS).messages[1].tool_calls
    assert read(USER, CALLS, RESULT | {"content": ""}, ANSWER).messages[2].content == ""


@pytest.mark.parametrize("tools", [[ADD], ADD, json.dumps([ADD]), json.dumps(ADD), [json.dumps(ADD)]])
def test_tools(tools):
    assert read(USER, ANSWER, tools=tools).tools == ({"type": "function", "function": ADD},)
    whole = {"type": "function", "function": ADD}
    assert read(USER, ANSWER, tools=[whole]).tools == (whole,)


@pytest.mark.parametrize("tools", [None, "", [], "[]"])
def test_no_tools(tools):
    assert read(USER, ANSWER, tools=tools).tools == ()


def test_turns_as_text():
    turns = [USER, ANSWER]
    for written in (json.dumps(turns), str(turns), " " + json.dumps(turns, indent=1)):
        assert BY_NAME["messages"].read({"messages": written}, {"messages": "messages"}).messages == SIMPLE


def test_turns_as_a_transcript():
    end = " <|endoftext|>\n\n\n"
    talk = (
        f"USER: Hi, what is\n\n1 + 1?\n\n\nASSISTANT: <functioncall> {{}}{end}FUNCTION RESPONSE: 2"
        f"\n\n\nASSISTANT: It is 2.\nASSISTANT: so{end}"
    )
    format = BY_NAME["messages"]
    values = {"system": "SYSTEM: You can add.\n", "chat": talk}
    understood = understand(list(values), [values], DatasetSpec(source="x"))
    assert understood.format is format and understood.questions == ()
    wanted = (
        Message("system", "You can add.\n"),
        Message("user", "Hi, what is\n\n1 + 1?"),
        Message("assistant", "<functioncall> {}"),
        Message("tool", "2"),
        Message("assistant", "It is 2.\nASSISTANT: so"),
    )
    assert format.read(values, understood.mapping).messages == wanted
    assert (
        format.read({"chat": talk.replace("\n", "\r\n")}, {"messages": "chat"}).messages[1:3] == wanted[2:4]
    )
    with pytest.raises(RowError):
        format.read({"chat": "USER: hi"}, {"messages": "chat"})


def test_system():
    system = {"role": "system", "content": "be brief"}
    assert read(USER, ANSWER, system="be brief").messages[0] == Message("system", "be brief")
    assert read(system, USER, ANSWER, system="other").messages[0] == Message("system", "be brief")
    assert read(system | {"content": " "}, USER, ANSWER).messages == SIMPLE
    assert read(system | {"role": "developer"}, USER, ANSWER).messages[0].role == "system"


@pytest.mark.parametrize(
    ("turn", "code", "sentence"),
    [
        ("words", "E120", "data.row.turn_shape"),
        (None, "E120", "data.row.turn_shape"),
        ({"content": "hi"}, "E120", "data.row.turn_missing"),
        ({"role": "user"}, "E120", "data.row.turn_missing"),
        ({"role": "user", "content": None}, "E121", "data.row.turn_null"),
        ({"role": "user", "content": ""}, "E122", "data.row.turn_blank"),
        ({"role": "user", "content": " \u200b\ufeff\n"}, "E122", "data.row.turn_blank"),
        ({"role": "user", "content": []}, "E122", "data.row.turn_blank"),
        ({"role": "user", "content": 5}, "E120", "data.row.turn_not_text"),
        ({"role": "user", "content": {"a": 1}}, "E120", "data.row.turn_not_text"),
        ({"role": "user", "content": [{"type": "image"}]}, "E150", "data.row.media.image"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "E120", "data.row.turn_not_text"),
        ({"role": "wizard" * 100, "content": "hi"}, "E130", "data.row.role"),
        ({"role": ["user"], "content": "hi"}, "E130", "data.row.role"),
        ({"role": "assistant", "content": "a", "thinking": 5}, "E120", "data.row.turn_not_text"),
        (CALLS | {"tool_calls": [{"function": {}}]}, "E140", "data.row.call_name"),
        (CALLS | {"tool_calls": "no json"}, "E140", "data.row.call_shape"),
        (CALLS | {"tool_calls": [5]}, "E140", "data.row.call_shape"),
        (CALLS | {"tool_calls": [{"name": "f", "arguments": "[1]"}]}, "E140", "data.row.arguments"),
        (CALLS | {"tool_calls": [{"name": "f", "arguments": "{broken"}]}, "E140", "data.row.arguments"),
        (CALLS | {"tool_calls": [{"name": "f", "arguments": [1]}]}, "E140", "data.row.arguments"),
        ({"role": "function_call", "content": "no json"}, "E140", "data.row.call_shape"),
    ],
)
def test_broken_turn(turn, code, sentence):
    assert refuse(USER, turn, ANSWER) == (code, sentence)


@pytest.mark.parametrize(
    ("turns", "sentence"),
    [
        ((USER, RESULT, ANSWER), "data.row.result_alone"),
        ((USER, ANSWER, RESULT, ANSWER), "data.row.result_alone"),
        ((USER, CALLS, RESULT | {"tool_call_id": "c2"}, ANSWER), "data.row.result_other"),
        ((USER, CALLS, USER, ANSWER), "data.row.call_alone"),
        ((USER, CALLS, ANSWER), "data.row.call_alone"),
        ((USER, CALLS | {"tool_calls": [CALL, CALL | {"id": "c2"}]}, RESULT, ANSWER), "data.row.call_alone"),
    ],
)
def test_calls_and_results_belong_together(turns, sentence):
    assert refuse(*turns) == ("E140", sentence)


def test_no_answer():
    assert refuse(USER) == ("E131", "data.row.no_answer")


def test_tools_that_are_none():
    assert refuse(USER, ANSWER, tools="say hello") == ("E120", "data.row.tools")
    assert refuse(USER, ANSWER, tools=[5]) == ("E120", "data.row.tools")


@pytest.mark.parametrize(
    ("turns", "codes"),
    [
        ((USER, ANSWER), []),
        ((USER, ANSWER, USER), ["E132"]),
        ((USER, USER, ANSWER), ["E133"]),
        ((USER, {"role": "system", "content": "s"}, ANSWER), ["E134"]),
        ((USER, ANSWER, {"role": "system", "content": "s"}, USER, USER), ["E132", "E133", "E134"]),
        ((USER, CALLS, RESULT), ["E132"]),
        ((ANSWER, USER, ANSWER), []),
    ],
)
def test_odd_turns_are_noted(turns, codes, english):
    notes = BY_NAME["messages"].notes(read(*turns))
    assert [code for code, _ in notes] == codes
    assert all("{" not in english(said) and "data." not in english(said) for _, said in notes)
