"""Prompts that name columns of their row, and blanks that a template left open."""

from __future__ import annotations

import json

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.filled_prompts import find_filled
from studio.data.formats.open_blanks import find_blank

BOATS = ("ferry", "trawler", "barge", "dinghy", "pilot boat")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def report(path, **said):
    return describe(DatasetSpec(source=str(path), **said), cache=path.parent / "cache")


def ask(report):
    return [example["messages"][0]["content"] for example in report["preview"]]


@pytest.mark.parametrize(
    "template",
    ["Describe the {boat} for {reader}.", "Describe the {{ boat }} for {{reader}}.",
     "Describe the <boat> for <reader>.", "Describe the [BOAT] for [Reader]."],
)  # fmt: skip
def test_a_prompt_is_filled_with_the_columns_that_it_names(tmp_path, template):
    rows = [
        {"prompt": template, "boat": one, "reader": "children", "completion": f"It is a {one} of wood."}
        for one in BOATS
    ]
    found = report(write(tmp_path / "boats.jsonl", rows))
    assert ask(found)[:2] == ["Describe the ferry for children.", "Describe the trawler for children."]
    assert [note.id for note in found["source_notes"]] == ["data.reshape.filled"]
    assert found["source_notes"][0].values["named"] == "boat, reader"
    assert found["needs_answer"] == [] and found["problems"] == []


def test_a_long_text_that_a_prompt_names_is_read_there_alone(tmp_path):
    story = "The keeper of the light wrote a long letter about the sea, and the rain went on for days. " * 5
    rows = [{"prompt": "Sum up: {text}", "text": f"{one} {story}", "completion": one} for one in BOATS]
    found = report(write(tmp_path / "sums.jsonl", rows))
    assert ask(found)[0] == f"Sum up: {BOATS[0]} {story}" and found["needs_answer"] == []


@pytest.mark.parametrize(
    "row",
    [
        {
            "prompt": "Q: {question} A: {answer}",
            "question": "When?",
            "answer": "At noon.",
        },  # tells the answer
        {"prompt": "<boat>ferry</boat> When does it go?", "boat": "ferry", "completion": "At noon."},
        {"prompt": "What is {x}?", "boat": "ferry", "completion": "A variable."},
        {"prompt": "When?", "completion": "At {time}.", "time": "noon"},  # an answer stays as it is written
    ],
)
def test_what_is_no_template_stays(row):
    assert find_filled(tuple(row), [row] * 5) is None


def test_a_name_without_words_in_its_row_stays_and_is_told(tmp_path):
    rows = [{"prompt": "Describe the {boat}.", "boat": one, "completion": f"A {one}."} for one in BOATS]
    rows[4]["boat"] = ""
    found = report(write(tmp_path / "boats.jsonl", rows))
    assert [(problem["code"], problem["line"]) for problem in found["problems"]] == [("E136", 5)]
    assert found["problems"][0]["message"].values["problem"].values["blank"] == "{boat}"
    assert found["rows_used"] == 5


@pytest.mark.parametrize(
    ("words", "blank"),
    [
        ("Dear {name}, the ferry is late.", "{name}"),
        ("Dear {{customer_name}}, it is late.", "{{customer_name}}"),
        ("Call us at [INSERT PHONE NUMBER].", "[INSERT PHONE NUMBER]"),
        ("Yours, [Your Name]", "[Your Name]"),
        ("Sent by [COMPANY_NAME] today", "[COMPANY_NAME]"),
        ("Write to <company name> about it.", "<company name>"),
        ("您好 {用户名}，欢迎。", "{用户名}"),
    ],
)
def test_an_open_blank_is_found(words, blank):
    assert find_blank(words) == blank


@pytest.mark.parametrize(
    "words",
    [
        "print(f'{name} has {count} items')",
        '{"name": "Ida", "age": 4}',
        "The set {x} and \\frac{alpha}{beta} of $\\mathbb{name}$.",
        "See [1], [Figure 2](plan.png) and [the plan][plan].",
        "<think>long words here</think> Yes.",
        "<b>bold</b> and <img src=x> and <tool_call>",
        "[Music] [MASK] [INST] hello [/INST] [CI/CD]",
        "function f() { return name; }\nconst a = {name};\n",
        "Use `{name}` in the template.",
        "It is 3 < 4 and 5 > 4.",
        "GET /rsv/hotels/{hotelId}/reservations and /profiles/{profileId}",
        "The claim is settled in 20 days [FAQ_CLAIM], as the act says [EPF_ACT_CONTRIB].",
    ],
)
def test_code_marks_and_links_are_no_blanks(words):
    assert find_blank(words) == ""
