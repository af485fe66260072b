"""Parts of a turn as hosted services write them: words, thoughts, calls, results; media are never passed over."""

import pytest

from studio.core.i18n import LANGUAGES, load_catalogue
from studio.data.conversation import Message, ToolCall
from studio.data.formats import FORMATS
from studio.data.formats.content_parts import is_placeholder
from studio.data.formats.message_parsing import read_turns
from studio.data.row import RowError

BY_NAME = {format.name: format for format in FORMATS}
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


def read(*turns, **columns):
    values = {"messages": list(turns)} | columns
    return BY_NAME["messages"].read(values, {name: name for name in values})


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2"}]},
        ),
        (
            {"toolUse": {"toolUseId": "c1", "name": "add", "input": {"a": 1}}},
            {"toolResult": {"toolUseId": "c1", "content": [{"text": "2"}], "status": "success"}},
        ),
        (
            {"functionCall": {"name": "add", "args": {"a": 1}}},
            {"functionResponse": {"name": "add", "response": 2}},
        ),
    ],
    ids=["anthropic", "bedrock", "gemini"],
)
def test_calls_and_results_in_parts(call, result):
    asked = {"role": "user", "content": [result, {"text": "So?"}]}
    found = read(USER, {"role": "assistant", "content": [{"text": "Wait."}, call]}, asked, ANSWER).messages
    assert [one.role for one in found] == ["user", "assistant", "tool", "user", "assistant"]
    assert found[1].content == "Wait." and found[1].tool_calls[0][:2] == ("add", {"a": 1})
    assert found[2].content == "2" and found[2].call_id == found[1].tool_calls[0].id
    assert found[3] == Message("user", "So?")
    assert read(USER, {"role": "assistant", "content": [call]}, asked, ANSWER).messages[1].content == ""


def test_a_result_as_an_object():
    result = {"toolResult": {"toolUseId": "c1", "content": [{"json": {"sum": 2}}]}}
    call = {"toolUse": {"toolUseId": "c1", "name": "add", "input": {}}}
    found = read(
        USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}, ANSWER
    )
    assert found.messages[1].tool_calls == (ToolCall("add", {}, "c1"),)
    assert found.messages[2] == Message("tool", '{"sum":2}', call_id="c1")


@pytest.mark.parametrize(
    "thought",
    [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "x"}}},
        {"text": "hm", "thought": True},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    ],
)
def test_thoughts(thought):
    found = read(USER, {"role": "assistant", "content": [thought, {"type": "output_text", "text": "hello"}]})
    assert found.messages[1] == Message("assistant", "hello", "hm")


def test_refusals_are_answers():
    assert read(USER, {"role": "assistant", "content": None, "refusal": "no"}).messages[1].content == "no"
    part = {"type": "refusal", "refusal": "no"}
    assert read(USER, {"role": "assistant", "content": [part]}).messages[1].content == "no"


@pytest.mark.parametrize(
    ("part", "code", "sentence"),
    [
        ({"type": "input_audio", "input_audio": {"data": "x"}}, "E150", "data.row.media.audio"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "E150", "data.row.media.video"),
        ({"video": {"format": "mp4"}}, "E150", "data.row.media.video"),
        ({"type": "file", "file": {"file_id": "x"}}, "E150", "data.row.media.file"),
        ({"type": "document", "source": {}}, "E150", "data.row.media.file"),
        ({"type": "image_url", "image_url": {"url": "x"}}, "E150", "data.row.media.image"),
        ({"fileData": {"mimeType": "image/png", "fileUri": "x"}}, "E150", "data.row.media.image"),
        ({"inlineData": {"mimeType": "audio/wav", "data": "x"}}, "E150", "data.row.media.audio"),
        ({"type": "hologram", "hologram": "x"}, "E120", "data.row.part"),
        ({"anything": 1}, "E120", "data.row.part"),
        (5, "E120", "data.row.part"),
    ],
)
def test_no_part_is_passed_over(part, code, sentence):
    with pytest.raises(RowError) as refusal:
        read({"role": "user", "content": [{"type": "text", "text": "look"}, part]}, ANSWER)
    assert (refusal.value.code, refusal.value.message.id) == (code, sentence)
    for language in LANGUAGES:
        said = load_catalogue(language).say(refusal.value.message)
        assert "{" not in said and "data." not in said


@pytest.mark.parametrize(
    "words",
    ["<image>\nWhat is it?", "What is it? <video>", "<|audio_1|> hear", "\n<image><image>", "<image_pad/>"],
)
def test_a_placeholder_without_media_is_refused(words):
    assert is_placeholder(words)
    with pytest.raises(RowError) as refusal:
        read({"role": "user", "content": words}, ANSWER)
    assert (refusal.value.code, refusal.value.message.id) == ("E150", "data.row.placeholder")


@pytest.mark.parametrize(
    "words",
    ["<video src='x'> is what?", "How does <video> differ from <audio> here?", "<b>", "a > b", "1 <image"],
)
def test_words_about_media_are_words(words):
    assert read({"role": "user", "content": words}, ANSWER).messages[0].content == words


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "add", "description": "d", "input_schema": {"type": "object"}},
        {"toolSpec": {"name": "add", "description": "d", "inputSchema": {"json": {"type": "object"}}}},
        {"functionDeclarations": [{"name": "add", "description": "d", "parameters": {"type": "object"}}]},
        {
            "tools": [
                {"toolSpec": {"name": "add", "description": "d", "inputSchema": {"json": {"type": "object"}}}}
            ]
        },
    ],
    ids=["anthropic", "bedrock", "gemini", "toolConfig"],
)
def test_tools_of_services(tool):
    function = {"name": "add", "description": "d", "parameters": {"type": "object"}}
    assert read(USER, ANSWER, tools=[tool]).tools == ({"type": "function", "function": function},)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ],
)
def test_images_whose_bytes_stand_in_the_turn(part):
    values = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}, ANSWER]}
    assert BY_NAME["vision"].read(values, {"messages": "messages"}).images == ("row:messages",)


def test_parts_with_a_value():
    said = [
        {"role": "user", "content": [{"type": "text", "value": "Is the bridge open?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "value": "I should look."},
                {"type": "tool_call", "value": '{"name": "look", "arguments": {"at": "bridge"}}'},
            ],
        },
        {"role": "tool", "content": [{"type": "text", "value": "open"}]},
        {"role": "assistant", "content": [{"type": "text", "value": "It is open."}]},
    ]
    turns = read_turns({"messages": said}, "messages")
    assert turns[0].content == "Is the bridge open?" and turns[3].content == "It is open."
    assert turns[1].reasoning == "I should look." and turns[1].tool_calls[0].name == "look"
