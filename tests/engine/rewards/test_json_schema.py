"""The reward json_schema: what follows a schema, and schemas that are refused as a whole."""

from __future__ import annotations

import json

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import RewardSpec
from studio.engine.guarded_code.pool import Failed
from studio.engine.guarded_code.programs.match_schema import check, match
from studio.engine.rewards import make_reward, open_rewards
from studio.engine.rewards.reward import Answered

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/order",
    "$defs": {"item": {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "count": {
        "type": "integer", "minimum": 1}}, "required": ["name"], "additionalProperties": False}},
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1},
                   "city": {"enum": ["Rome", "Oslo"]}},
    "required": ["items"],
}  # fmt: skip
TREE = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (True, [1, None], []),
        (False, [], [1, None, {}]),
        ({"type": "integer"}, [1, 1.0, 10**400], [1.5, True, "1", float("inf"), float("nan")]),
        ({"type": ["string", "null"]}, ["a", None], [0, [], False]),
        ({"type": "number"}, [1, 2.5], [True, "1"]),
        ({"enum": [1, "a", [1]]}, [1.0, "a", [1.0]], [True, "b", [True]]),
        ({"const": {"a": False}}, [{"a": False}], [{"a": 0}, {"a": False, "b": 1}]),
        ({"minimum": 1, "exclusiveMaximum": 3}, [1, 2.9, "text", True], [0, 3]),
        ({"multipleOf": 0.1}, [0.3, 1], [0.25]),
        ({"minLength": 2, "maxLength": 3}, ["ab", "\U0001f600\U0001f600", 5], ["a", "abcd"]),
        ({"pattern": "^a+$"}, ["aa", 7], ["ab", ""]),
        ({"format": "date"}, ["2026-02-28", 5], ["2026-02-30", "20260228", "today"]),
        ({"format": "date-time"}, ["2026-02-28T10:00:00Z", "2026-02-28t10:00:00.5+01:00"], ["2026-02-28"]),
        ({"format": "uuid"}, ["2EB8AA08-AA98-11EA-B4AA-73B441D16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
        ({"uniqueItems": True}, [[1, 2, True]], [[1, 1.0], [{"a": 1}, {"a": 1}]]),
        ({"prefixItems": [{"type": "string"}], "items": False}, [["a"], []], [["a", 1], [1]]),
        ({"contains": {"const": 1}, "maxItems": 2}, [[0, 1]], [[], [1, 1, 1]]),
        ({"required": ["a"], "minProperties": 2}, [{"a": 1, "b": 2}, "text"], [{"a": 1}, {"b": 1, "c": 1}]),
        ({"properties": {"a": {"type": "string"}}, "patternProperties": {"^x": {}}, "additionalProperties": False},
         [{"a": "b", "xy": 1}, {}], [{"a": 1}, {"y": 1}]),
        ({"propertyNames": {"maxLength": 1}, "dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {"c": 1}],
         [{"a": 1}, {"ab": 1}]),
        ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, ["a", 3], [2]),
        ({"oneOf": [{"minimum": 2}, {"maximum": 3}]}, [1, 4], [2, 3]),
        ({"allOf": [{"minimum": 2}, {"maximum": 3}], "not": {"const": 3}}, [2], [1, 3, 4]),
        ({"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
         [{"a": 1, "b": 0}, {"a": 2, "c": 0}], [{"a": 1}, {"a": 2, "b": 0}]),
        (ORDER, [{"items": [{"name": "tea", "count": 2}], "city": "Rome"}],
         [{}, {"items": []}, {"items": [{"name": ""}]}, {"items": [{"name": "a", "more": 1}]},
          {"items": [{"name": "a"}], "city": "Bern"}, [1]]),
        (TREE, [{"left": {"right": {}}}], [{"left": {"up": {}}}]),
        ({"properties": {"a/b": {"$ref": "#/properties/c~1d"}, "c/d": {"type": "null"}}}, [{"a/b": None}],
         [{"a/b": 1}]),
    ],
)  # fmt: skip
def test_what_follows_a_schema(schema, right, wrong):
    cases = [*((value, 1.0) for value in right), *((value, 0.0) for value in wrong)]
    found = match([""] * len(cases), [value for value, _ in cases], [schema] * len(cases))
    assert found == [score for _, score in cases], [
        case for case, score in zip(cases, found, strict=True) if case[1] != score
    ]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"properties": {"a": {"minContains": 2}}}, "#/properties/a/minContains"),
        ({"anyOf": [{"tpye": "string"}]}, "#/anyOf/0/tpye"),
        ({"items": {"type": "text"}}, "#/items/type"),
        ({"properties": {"$id": "x"}}, "#/properties"),
        ({"items": {"$id": "x"}}, "#/items/$id"),
        ({"items": [{"type": "string"}]}, "#/items"),
        ({"exclusiveMinimum": True}, "#/exclusiveMinimum"),
        ({"minLength": -1}, "#/minLength"),
        ({"pattern": "(("}, "#/pattern"),
        ({"format": "email"}, "#/format"),
        ({"$ref": "#/$defs/gone"}, "#/$defs/gone"),
        ({"$ref": "https://example.com/x"}, "https://example.com/x"),
        ({"required": "a"}, "#/required"),
        ("text", "#"),
    ],
)
def test_a_schema_that_is_not_known_whole_is_refused_with_the_place(schema, place):
    with pytest.raises(ValueError) as caught:
        check(schema, schema)
    assert str(caught.value).startswith(f"{place}:")
    with (
        pytest.raises(StudioError) as refused,
        open_rewards(
            [RewardSpec(name="json_schema", options={"schema": json.dumps(schema)})], folder=None, seed=1
        ),
    ):
        pass
    assert place in str(refused.value)


def test_a_schema_that_refers_to_itself_alone_ends():
    with pytest.raises(ValueError, match="without end"):
        match([""], [1], [{"anyOf": [{"$ref": "#"}]}])


@pytest.mark.parametrize("levels", [1, 60, 150])
def test_a_deep_answer_is_judged(levels):
    right, wrong = (json.loads("[" * levels + word + "]" * levels) for word in ("1", "null"))
    lists = {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "integer"}]}
    assert match(["", ""], [right, wrong], [lists] * 2) == [1, 0]


def score_all(options, answers, folder):
    spec = RewardSpec(name="json_schema", options=options)
    with make_reward(spec).opened(folder, 1) as reward:
        return reward.score(answers)


def test_answers_are_scored_by_one_schema_or_each_by_its_own(tmp_path):
    whole = Answered(prompt=(), answer='```json\n{"items": [{"name": "tea"}]}\n```')
    other, none = Answered(prompt=(), answer="[]"), Answered(prompt=(), answer="no JSON")
    options = {"schema": json.dumps(ORDER)}
    assert score_all(options, [whole, other, none], tmp_path) == [1, 0, 0]
    assert score_all(options | {"valid": 0.25}, [whole, other, none], tmp_path) == [1, 0.25, 0]
    tagged = Answered(prompt=(), answer='<think>[]</think> <out>{"items": [{"name": "a"}]}</out>')
    assert score_all(options | {"tag": "out"}, [tagged, whole], tmp_path) == [1, 0]
    rows = [
        Answered(prompt=(), answer="3", columns={"json_schema": {"type": "integer"}}),
        Answered(prompt=(), answer="3", columns={"schema": '{"type": "string"}'}),
        Answered(prompt=(), answer="3", columns={"mine": {"const": 3}, "schema": False}),
        Answered(prompt=(), answer="3"),
    ]
    assert score_all({}, rows, tmp_path) == [1, 0, None, None]
    assert score_all({"schema_column": "mine"}, rows, tmp_path) == [None, None, 1, None]


@pytest.mark.computing
def test_a_row_whose_schema_cannot_be_used_or_never_ends_costs_itself(tmp_path):
    rows = [
        Answered(prompt=(), answer="3", columns={"schema": {"type": "integer"}}),
        Answered(prompt=(), answer="3", columns={"schema": {"unevaluatedItems": False}}),
        Answered(prompt=(), answer=json.dumps("a" * 60 + "b"), columns={"schema": {"pattern": "(a+)+$"}}),
        Answered(prompt=(), answer="3", columns={"schema": "{no JSON"}),
    ]
    good, unknown, *others = score_all({}, rows, tmp_path)
    assert good == 1 and isinstance(unknown, Failed) and all(isinstance(one, Failed) for one in others)
    assert "unevaluatedItems" in unknown.detail
