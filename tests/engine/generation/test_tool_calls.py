"""How a template writes calls is found out, and what a model says in that form is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.data.conversation import Message, ToolCall
from studio.engine.generation.answer_request import AnswerRequest
from studio.engine.generation.prompts import PromptWriter
from studio.engine.stop_tokens import find_ends
from tests.conftest import make_tokenizer

TEMPLATES = Path(__file__).parents[3] / "studio" / "data" / "templates"
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}
    for name in ("find", "look")
)
OTHER = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<do>{{ c.function.name }}({{ c.function.arguments.city }})</do>{% endfor %}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Calls in no JSON."""


def make_writer(folder: Path, source: str) -> PromptWriter:
    tokenizer = make_tokenizer(folder, source)
    return PromptWriter(tokenizer, find_ends(tokenizer, None))


@pytest.mark.parametrize(
    ("family", "keys", "mark"),
    [
        ("qwen2", ("name", "arguments"), "<tool_call>"),
        ("qwen3", ("name", "arguments"), "<tool_call>"),
        ("llama3.1", ("name", "parameters"), ""),
        ("mistral", ("name", "arguments"), "[TOOL_CALLS] ["),
    ],
)
def test_calls_are_read_as_the_template_writes_them(tmp_path, family, keys, mark):
    writer = make_writer(tmp_path, (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8"))
    form = writer._read_form()
    assert ((form.name, form.arguments), form.mark) == (keys, mark)
    turns = writer._writer(True)
    call = ToolCall("find", {"city": "Köln", "n": [1, {"a": "}"}]})
    question = Message("user", "ask")
    prompt = turns.template.render(turns.write([question]), TOOLS, generation_prompt=True)
    whole = turns.template.render(
        turns.write([question, Message("assistant", "", tool_calls=(call,))]), TOOLS
    )
    answer = whole.removeprefix(prompt)
    assert answer != whole
    words, calls = form.read(answer, TOOLS)
    assert [(one.name, one.arguments) for one in calls] == [("find", call.arguments)]
    assert "find" not in words
    for place in range(len(answer)):
        told = form.hold(answer[:place])
        assert form.hold(answer).startswith(told) and "find" not in told, "no part of a call is told as words"
    assert form.read("It rains.", TOOLS) == ("It rains.", ())
    strange = answer.replace("find", "kill")
    assert form.read(strange, TOOLS) == (strange, ()), "what is no tool stays words"
    cut = answer[: answer.index("Köln")]
    assert form.read(cut, TOOLS) == (cut, ())


def test_two_calls_and_words_before_them(tmp_path):
    form = make_writer(tmp_path, (TEMPLATES / "qwen2.jinja").read_text(encoding="utf-8"))._read_form()
    one, two = (
        f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": 1}}}}\n</tool_call>'
        for name in ("find", "look")
    )
    words, calls = form.read(f"I look it up.\n{one}\n{two}", TOOLS)
    assert (words, [call.name for call in calls]) == ("I look it up.", ["find", "look"])
    assert form.hold("I look it up.\n<tool_") == "I look it up.\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "answers.no_tools.why"),
        (None, "answers.no_tools.why"),
        (OTHER, "answers.no_json.why"),
    ],
)
def test_a_model_that_takes_no_tools_says_so(tmp_path, source, why):
    with pytest.raises(StudioError) as refused:
        make_writer(tmp_path, source).begin(
            AnswerRequest(tell=print, messages=[{"role": "user", "content": "x"}], tools=TOOLS), 0
        )
    assert refused.value.why.id == why


def test_a_talk_with_calls_and_their_results_is_written_by_the_template(tmp_path):
    writer = make_writer(tmp_path, (TEMPLATES / "qwen2.jinja").read_text(encoding="utf-8"))
    call = {"id": "call_1", "function": {"name": "find", "arguments": {"city": "Köln"}}}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain 7", "tool_call_id": "call_1"},
    ]
    ids = writer.read_ids(AnswerRequest(tell=print, messages=messages, tools=TOOLS), 0)
    words = writer.tokenizer.decode(ids)
    assert '"Köln"' in words and "rain 7" in words and '"look"' in words
