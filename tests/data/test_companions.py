"""What columns are to the question and the answer beside them: stand-ins, siblings, the same once more, row numbers."""

from __future__ import annotations

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.format_detection import understand
from studio.data.row import RowError

THINGS = ("bees", "tides", "bread", "chess", "rails", "wolves", "lamps", "storms", "coins", "maps")
ASKED = [f"What should a child know about {thing} before going out?" for thing in THINGS]
SAID = [f"The first thing about {thing} is that people have known them for long." for thing in THINGS]
OTHER = [f"Nobody in this town can say much that is sure about {thing}, I fear." for thing in THINGS]
TOLD = [
    f"In the old harbour a keeper kept {thing} for many years. {SAID[n]} The papers wrote of it twice, and then the "
    f"matter was forgotten until a teacher found the letters again under the roof of the school."
    for n, thing in enumerate(THINGS)
]


def look(*, mapping=None, format="auto", **columns):
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return rows, understand([*columns], rows, DatasetSpec(source="x", mapping=mapping or {}, format=format))


def read(found, values):
    return found.format.convert(values, found.mapping)


def ask_first(found):
    return {one.id: one.choices[0] for one in found.questions}


def test_code_that_stands_in_the_answer_is_not_read_before_it():
    code = [f"def count_{thing}(items):\n    return len(items)" for thing in THINGS]
    told = [f"Here is one way:\n```python\n{one}\n```" for one in code]
    _, found = look(instruction=ASKED, output=told, code=code)
    assert not found.questions and "code" not in found.mapping.values()


def test_a_title_asks_where_the_question_is_empty_in_some_rows():
    details = [told if n % 3 else "" for n, told in enumerate(TOLD)]
    rows, found = look(question_title=ASKED, question_content=details, best_answer=SAID)
    assert (found.mapping["prompt"], found.mapping["material"]) == ("question_title", "question_content")
    assert read(found, rows[0]).messages[0].content == ASKED[0]


def test_as_many_steps_as_ingredients_are_no_talk():
    parts = [[f"two {thing}", "a litre of stock", "salt"] for thing in THINGS]
    steps = [[f"Chop the {thing}.", "Boil the stock.", "Add the salt and serve."] for thing in THINGS]
    rows, found = look(recipe_name=[f"{thing} soup" for thing in THINGS], ingredients=parts, directions=steps)
    said = read(found, rows[0]).messages
    assert len(said) == 2 and said[0].content.startswith("bees soup\n\ntwo bees")


def test_the_right_one_of_marked_answers_is_learned():
    targets = [
        {"choices": [OTHER[n], SAID[n]] if n % 2 else [SAID[n], OTHER[n]], "labels": [n % 2 ^ 1, n % 2]}
        for n in range(10)
    ]
    rows, found = look(input=ASKED, targets=targets)
    assert [read(found, row).messages[-1].content for row in rows] == SAID


def test_numbers_of_rows_are_no_prompts():
    columns = {"Prompt #": [str(n) for n in range(1, 11)], "Ask": ASKED, "Reply": SAID}
    assert look(**columns)[1].mapping.get("prompt") != "Prompt #"


def test_of_answers_from_several_sources_a_persons_is_offered_first():
    _, found = look(input=ASKED, answer_doctor_lee=SAID, answer_chatgpt=OTHER)
    assert ask_first(found)["mapping.completion"] == "answer_doctor_lee"


def test_a_corrected_answer_is_offered_before_the_first_one():
    _, found = look(instruction=ASKED, output=OTHER, corrected=SAID)
    assert ask_first(found)["mapping.output"] == "corrected"


def test_what_takes_up_the_words_of_its_text_is_learned_from_it():
    words = [[f"{thing}{chr(97 + k) * 3}" for k in range(25)] for thing in THINGS]
    _, found = look(text=[" ".join(one) for one in words], ingress=[" ".join(one[3:21:3]) for one in words])
    assert found.questions[0].choices[0] == "prompt_completion"


def test_tables_are_read_with_the_question():
    table = [[["year", "sold"], ["2008", str(n)]] for n in range(10)]
    _, found = look(question=ASKED, table=table, answer=SAID)
    assert found.mapping["material"] == "table"


def test_a_prompt_written_out_around_the_task_is_not_read_twice():
    wrapped = [f"You are kind and patient.\n### Task\n{asked}\n### Answer" for asked in ASKED]
    _, found = look(prompt=wrapped, instruction=ASKED, response=SAID)
    assert "prompt" not in [one.choices[0] for one in found.questions]


def test_flags_for_the_winner_of_two_answers_are_a_preference():
    columns = {
        "prompt": [f'["{one}"]' for one in ASKED],
        "response_a": [f'["{one}"]' for one in SAID],
        "response_b": [f'["{one}"]' for one in OTHER],
        "winner_model_a": [1, 0] * 5,
        "winner_model_b": [0, 1] * 5,
    }
    rows, found = look(**columns)
    said = read(found, rows[1])
    assert said.kind == "preference" and said.messages[0].content == ASKED[1]
    assert said.chosen[0].content == OTHER[1] and said.rejected[0].content == SAID[1]
    with pytest.raises(RowError):  # the rounds of a talk
        read(found, {**rows[0], "prompt": '["One?", "Two?"]'})


def test_labels_with_fields_are_offered_and_learned_as_json():
    rows, found = look(
        format="prompt_completion",
        text=TOLD,
        labels=[{"mood": "good", "lang": f"l{n % 3}"} for n in range(10)],
    )
    assert ask_first(found) == {"mapping.completion": "labels"}
    _, found = look(
        format="prompt_completion",
        mapping={"completion": "labels"},
        text=TOLD,
        labels=[row["labels"] for row in rows],
    )
    assert read(found, rows[0]).messages[-1].content == '{"mood": "good", "lang": "l0"}'
