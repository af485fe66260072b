"""Templates for Ollama, rendered by Go's own text/template: token for token what the training saw, or refused."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path

import pytest

from studio.core.i18n import load_catalogue
from studio.data.template import ChatTemplate
from studio.data.templates.catalogue import list_names, read_family
from studio.data.templates.ollama import MATRIX, TOOLS, find_family, find_losses, write_template
from tests.go_program import build_program

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "查找 pages & “files”\nby words",
        "parameters": {
            "type": "object",
            "properties": {
                "count": {"type": "integer", "description": "How many"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "words": {"type": "string"},
            },
            "required": ["words"],
        },
    },
}
NOW = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(function, number="abcdefgh1", **arguments):
    return {"id": number, "type": "function", "function": {"name": function, "arguments": arguments}}


def ask(*words, system=None):
    """Return a conversation of questions and answers in turn."""
    roles = ("user", "assistant")
    talk = [turn(roles[place % 2], one) for place, one in enumerate(words)]
    return [turn("system", system), *talk] if system is not None else talk


def result(content, number="abcdefgh1"):
    return turn("tool", content, tool_call_id=number)


def calls(*made, content="", **more):
    return turn("assistant", content, tool_calls=list(made), **more)


PLAIN = [
    ask("Hi"),
    ask("What's 1 < 2 & \"3\"?"),
    ask("你好，世界！"),
    ask("  spaces  around\n\n"),
    ask("😀 emoji\tand tab"),
    ask("Hi", system="Be short."),
    ask("Hi", system="Be “kind” & <short>.\n\n- one\n- two"),
    ask("{{ .Prompt }} {% raw %} \\n", system="你是一个助手。"),
    ask("", system="Say something."),
    ask("Write `x = {\"a\": 1}`", system="You write code."),
]  # fmt: skip
LONG = [
    ask("1", "one", "2"),
    ask("1", "one\n", "2", "two", "3"),
    ask("1", "  one", "2", "two  ", "3", "three", "4", system="Count."),
    ask("Was ist das?", "Ein Haus.", "Und das?", "Ein Baum.\n\nGroß.", "Danke", system="Deutsch"),
    ask("天气", "晴天 ☀", "明天呢？"),
    ask("a", "<b>x</b>", "c", "```py\nprint(1)\n```\n", "e"),
    ask("\n", "x", "\n\n", "y", "z"),
    ask("q1", "", "q2"),
    ask(*[f"turn {number}" for number in range(21)], system="Long."),
    [*ask("one"), turn("user", "two in a row")],
]
TOOLED = [
    (ask("Weather?"), TOOLS),
    (ask("Weather?", system="Use tools."), (*TOOLS, SEARCH, NOW)),
    ([*ask("W?"), calls(call("find_weather", city="Ulm", unit="c")), result("8 °C & <rain>")], TOOLS),
    ([*ask("W?", system="S"), calls(call("find_weather", city="Köln \"Süd\"\n")), result('{"t": 8}')], TOOLS),
    ([*ask("W?"), calls(call("search", count=3, tags=["a", "ü"], words="x < y")), result("[]")], (SEARCH,)),
    ([*ask("W?"), calls(call("now")), result("12:00"), turn("assistant", "Noon."), turn("user", "Ok")], (NOW,)),
    ([*ask("Both?"), calls(call("now"), call("search", "abcdefgh2", words="a")), result("1"),
      result("2", "abcdefgh2")], (NOW, SEARCH)),
    ([*ask("W?"), calls(call("search", words="a", count=1)), result("no")], (SEARCH,)),  # order
    ([*ask("W?"), calls(call("search", count=2.0, words="a")), result("no")], (SEARCH,)),  # a number
    (ask("W?"), ({"type": "function", "function": SEARCH["function"] | {"strict": True}},)),  # a key
]  # fmt: skip
THOUGHT = [
    [*ask("2+2"), turn("assistant", "4", reasoning_content="2 and 2"), turn("user", "3+3")],
    [*ask("2+2"), turn("assistant", "4", reasoning_content="a\n\nb"), turn("user", "3+3"),
     turn("assistant", "6", reasoning_content="three twice"), turn("user", "4+4")],
    [*ask("T?", system="Think."), calls(call("now"), reasoning_content="I need the time."), result("12:00")],
    [*ask("T?"), calls(call("now"), content="Let me see.", reasoning_content="look"), result("12"),
     calls(call("now"), reasoning_content="again"), result("13")],
    [*ask("T?"), calls(call("now")), result("12:00")],
    [*ask("想一想"), turn("assistant", "好", reasoning_content="先想 <1> & 2"), turn("user", "再来")],
    [*ask("a"), turn("assistant", "b", reasoning_content="x" * 500), turn("user", "c"), turn("assistant", "d"),
     turn("user", "e")],
    [*ask("a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d", reasoning_content="late"),
     turn("user", "e")],
    [*ask("T?"), calls(call("search", words="q"), reasoning_content="find"), result("r"),
     turn("assistant", "Found.", reasoning_content="done"), turn("user", "Thanks")],
    [*ask("T?"), calls(call("find_weather", city="Ulm"), reasoning_content="weather?"), result("8"),
     calls(call("find_weather", city="Bonn"), reasoning_content="and Bonn"), result("9")],
]  # fmt: skip
CHATS = [
    *[(one, ()) for one in (*PLAIN, *LONG)],
    *TOOLED,
    *[(one, (NOW, SEARCH, *TOOLS) if any(turn.get("tool_calls") for turn in one) else ()) for one in THOUGHT],
]


@pytest.fixture(scope="session")
def renderer():
    return build_program(Path(__file__).parent / "ollama" / "render.go")


def render_by_go(renderer, words, chats):
    """Return what Ollama's engine makes of conversations."""
    given = []
    for turns, tools in chats:
        messages = copy.deepcopy(list(turns))
        for one in messages:
            one["thinking"] = one.pop("reasoning_content", "")
        given.append({"messages": messages, "tools": list(tools)})
    asked = json.dumps({"template": words, "chats": given}).encode()
    done = subprocess.run([renderer], input=asked, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def compare(renderer, name):
    """Return how many conversations are equal, and the differing ones with what was said of them."""
    template = ChatTemplate(read_family(name), TOKENS)
    wanted = [template.try_render(turns, tools, generation_prompt=True) for turns, tools in CHATS]
    found = render_by_go(renderer, write_template(name, TOKENS, adds_begin=False), CHATS)
    equal, other, silent = 0, [], []
    for (turns, tools), one, two in zip(CHATS, wanted, found, strict=True):
        losses = find_losses(template, name, turns, tools)
        if one is None:
            continue  # training refuses it, too
        equal += one == two
        if one != two:
            (other if losses else silent).append((losses, one, two))
    return equal, other, silent


@pytest.mark.computing
def test_forty_conversations_are_what_the_training_saw_or_are_refused(renderer):
    assert len(CHATS) == 40
    equal, other, silent = compare(renderer, "qwen3")
    assert not silent, silent[0][1:]
    assert equal >= 36 and equal + len(other) == 40
    english = load_catalogue("en")
    reasons = {english.say(one) for losses, *_ in other for one in losses}
    assert len(reasons) == 4 and all(reason.endswith(".") for reason in reasons)


@pytest.mark.computing
@pytest.mark.parametrize("name", list_names())
def test_each_template_is_its_own_in_go(name, renderer):
    equal, other, silent = compare(renderer, name)
    assert not silent, silent[0][1:]
    assert equal >= 15 and (equal >= 4 * len(other) or name == "llama3.1")  # it has functions over many lines


@pytest.mark.parametrize("name", list_names())
def test_a_template_is_found_as_itself(name):
    assert find_family(ChatTemplate(read_family(name), TOKENS), TOKENS) == (name, "")


def test_a_template_with_a_system_prompt_of_its_own_is_found_with_it():
    own = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}{% endif %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert find_family(ChatTemplate(own, TOKENS), TOKENS) == (
        "chatml", "You are a helpful AI assistant named SmolLM",
    )  # fmt: skip


def test_a_template_like_no_other_is_not_found():
    own = read_family("chatml").replace("'\\n' + message.content", "' ' + message.content")
    assert find_family(ChatTemplate(own, TOKENS), TOKENS) is None


def test_the_matrix_loses_nothing_in_ollama():
    for name in list_names():
        template = ChatTemplate(read_family(name), TOKENS)
        for turns, tools in MATRIX:
            losses = find_losses(template, name, turns, tools)
            assert not losses or name == "llama3.1"
