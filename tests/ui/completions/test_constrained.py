"""Answers that have to be JSON, and tools that have to be called: kept to by every token."""

from __future__ import annotations

import json

import openai
import pytest

from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.services.desk import Desk
from studio.ui.completions.app import Completions
from studio.ui.completions.served import OneModel
from studio.ui.completions.server import AddressServer
from tests.conftest import make_model
from tests.engine.generation.test_tool_calls import TEMPLATES

QUESTION = [{"role": "user", "content": "say 3"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["chair", "lamp"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["count", "kind", "tags"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "order", "description": "Orders.", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def client(tmp_path_factory, know_machine):
    """A client of a model with random weights, which would say anything but JSON."""
    folder = tmp_path_factory.mktemp("constrained")
    template = (TEMPLATES / "qwen2.jinja").read_text(encoding="utf-8")
    model = make_model(folder / "model", template=template, max_position_embeddings=2048)
    desk = Desk(know_machine(folder / "workspace"))
    recipe = Recipe(model=ModelChoice(source=str(model)), data=DatasetSpec(source="demo"))
    server = AddressServer(Completions(desk.chat, OneModel("mine", recipe=recipe), lambda: "en"))
    with openai.OpenAI(base_url=server.url, api_key=server.key, max_retries=0, timeout=60) as found:
        yield found
    server.close()
    desk.close()


def ask(client, **fields):
    return client.chat.completions.create(
        **{"model": "mine", "messages": QUESTION, "max_tokens": 400, "temperature": 1.0, "seed": 3} | fields
    )


def check(value: object) -> None:
    assert value.keys() == {"count", "kind", "tags"} and 1 <= value["count"] <= 9
    assert value["kind"] in ("chair", "lamp") and len(value["tags"]) <= 2


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_an_answer_keeps_to_its_schema_and_ends_with_it(client, temperature):
    form = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA, "strict": True}}
    found = ask(client, response_format=form, temperature=temperature, n=4)
    for choice in found.choices:
        check(json.loads(choice.message.content))
        assert choice.finish_reason == "stop"
    stream = ask(client, response_format=form, temperature=temperature, stream=True)
    words = "".join(part.choices[0].delta.content or "" for part in stream)
    assert words == found.choices[0].message.content


def test_any_object_where_no_schema_is_given(client):
    choice = ask(client, response_format={"type": "json_object"}, temperature=1.0, max_tokens=1500).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")


def test_a_tool_that_must_be_called_is_called(client):
    named = {"type": "function", "function": {"name": "order"}}
    for choice, names in (("required", {"order", "stop"}), (named, {"order"})):
        [found] = ask(client, tools=[TOOL, OTHER], tool_choice=choice).choices
        [call] = found.message.tool_calls
        assert found.finish_reason == "tool_calls" and call.function.name in names and call.id
        if call.function.name == "order":
            check(json.loads(call.function.arguments))
    stream = ask(client, tools=[TOOL], tool_choice="required", stream=True)
    parts = [part.choices[0] for part in stream]
    assert not "".join(part.delta.content or "" for part in parts)
    [call] = [one for part in parts for one in part.delta.tool_calls or ()]
    check(json.loads(call.function.arguments))
    assert parts[-1].finish_reason == "tool_calls"


def test_tools_may_be_offered_and_not_be_called(client):
    [found] = ask(client, tools=[TOOL], max_tokens=20).choices
    assert found.message.tool_calls is None and found.message.content
    assert ask(client, tools=[TOOL], tool_choice="none", max_tokens=4).choices[0].message.content


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://example.org/x.json"},
        {"type": "object", "properties": {"a": {"pattern": "(?=a)b", "type": "string"}}},
        {"type": "object", "properties": 3},
        {"description": "x" * 70_000},
    ],
    ids=lambda schema: json.dumps(schema)[:30],
)
def test_a_schema_that_cannot_be_kept_to_is_refused(client, schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, response_format=form)
    assert refused.value.body["message"]
    assert ask(client, max_tokens=2).choices
