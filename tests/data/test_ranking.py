"""Which columns are offered as the question and the answer, and which of them first."""

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.format_detection import understand
from studio.data.row import Row

SAID = [
    f"The ferry of {hour} o'clock carries {hour * 7} lorries over to the island today." for hour in range(12)
]
MORE = [
    f"At {hour} sharp a ship with {hour * 7} lorries leaves for the far shore of the bay."
    for hour in range(12)
]


def look(rows, **values):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return understand(columns, rows, DatasetSpec(source="x", **values))


def make(**columns):
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def choices(found):
    return {one.field.removeprefix("data.mapping."): one.choices for one in found.questions}


def last(found, rows):
    conversation, _ = found.read_row(Row(1, rows[0]))
    return conversation.messages[-1].content


def test_a_number_that_judges_two_texts_is_the_first_choice():
    rows = make(one=SAID, two=MORE, relatedness=[number / 4 for number in range(12)])
    asked = choices(look(rows))
    assert asked["prompt"][0] == "one" and asked["completion"][0] == "relatedness"
    found = look(rows, mapping={"prompt": "one", "completion": "relatedness"})
    assert last(found, rows) == "0.0"


def test_labels_are_offered_and_ids_are_not():
    rows = make(a_1=[0, 4] * 6, a_2=range(700, 712), a_3=SAID)
    asked = choices(look(rows))
    assert asked == {"prompt": ("a_3",), "completion": ("a_1", "a_3")}


def test_the_query_of_a_database_is_the_answer():
    written = [f"SELECT name FROM ships WHERE hour = {hour}" for hour in range(12)]
    rows = make(Title=[f"Which ships leave at {hour}?" for hour in range(12)], QueryBody=written)
    found = look(rows)
    assert found.mapping["prompt"] == "Title" and found.mapping["completion"] == "QueryBody"


def test_of_two_languages_the_second_is_the_answer():
    asked = choices(look(make(machine_output=SAID, nb=SAID, pl=MORE)))
    assert asked["prompt"][0] == "nb" and asked["completion"][0] == "pl"


def test_a_text_in_single_words_may_be_read():
    rows = make(tokens=[words.split() for words in SAID], relation=["P1", "P2", "P3"] * 4)
    asked = choices(look(rows))
    assert asked["prompt"] == ("tokens",) and asked["completion"][0] == "relation"
    found = look(rows, mapping={"prompt": "tokens", "completion": "relation"})
    assert found.read_row(Row(1, rows[0]))[0].messages[0].content == SAID[0]


@pytest.mark.parametrize("name", ["answer", "verdicts"])
def test_what_stands_beside_a_text_is_offered_before_the_text_alone(name):
    rows = make(text=SAID, **{name: ["calm", "rough"] * 6})
    asked = look(rows).questions
    assert asked[0].field == "data.format" and asked[0].choices[0] != "text" and "text" in asked[0].choices


def test_what_tells_the_answer_is_left_out_unless_wanted():
    rows = make(question=SAID, thinking_trajectory=MORE, solution=[words + " So six." for words in MORE])
    rows = [{**row, "machine_response": row["solution"] + " Yes."} for row in rows]
    found = look(rows, mapping={"prompt": "question", "completion": "solution"})
    assert not found.questions
    found = look([{**row, "answer_by_hand": row["solution"]} for row in rows])
    for asked in found.questions:
        if asked.field.startswith("data.mapping.material"):
            assert asked.choices[0] == ""


def test_numbers_for_words_never_become_words():
    rows = make(inputs=[[3, 4, 5]] * 12, targets=[[7, 1]] * 12, inputs_plain=SAID, targets_pretokenized=MORE)
    rows = [{**row, "inputs_pretokenized": row.pop("inputs_plain")} for row in rows]
    found = look(rows)
    assert not found.questions
    assert found.mapping == {"prompt": "inputs_pretokenized", "completion": "targets_pretokenized"}


def test_a_column_for_each_speaker_with_the_thoughts_of_one():
    rows = make(user=SAID, reasoning=MORE, assistant=["Six."] * 12)
    found = look(rows)
    assert not found.questions and found.mapping["reasoning"] == "reasoning"
    assert found.read_row(Row(1, rows[0]))[0].messages[-1].reasoning == MORE[0]


@pytest.mark.parametrize(
    ("one", "two", "judgement"), [("sentence1", "sentence2", "score"), ("text_a", "text_b", "class")]
)
def test_of_two_texts_side_by_side_what_was_found_out_is_learned(one, two, judgement):
    rows = make(**{one: SAID, two: MORE, judgement: [number / 4 for number in range(12)]})
    asked = choices(look(rows))
    assert asked["prompt"][0] == one and asked["completion"][0] == judgement


def test_without_a_judgement_the_second_text_is_learned_and_never_a_constant():
    rows = make(text1=SAID, text2=MORE, translation_direction=["de-en"] * 12)
    assert choices(look(rows))["completion"][0] == "text2"


def test_what_was_found_out_goes_before_what_only_sorts():
    rows = make(utterance=SAID, category=["A", "B"] * 6, intent=["ask_time", "cancel"] * 6)
    assert choices(look(rows))["completion"][0] == "intent"


def test_a_program_is_written_and_not_asked():
    code = [f"total = sum(ship.load * {number} for ship in fleet)" for number in range(12)]
    asked = choices(look(make(piece=code, wish=SAID)))
    assert asked["prompt"][0] == "wish" and asked["completion"][0] == "piece"


def test_a_sentence_about_a_mood_is_no_label():
    rows = make(toxic_comment=SAID, neutral_comment=MORE)
    found = look(rows)
    assert found.mapping == {"prompt": "toxic_comment", "completion": "neutral_comment"}
    assert not found.questions and found.confidence == 0.9


def test_what_stands_in_the_question_is_not_learned_as_its_answer():
    note = [f"Boat {number}." for number in range(12)]
    whole = [f"{words} {more}" for words, more in zip(SAID, MORE, strict=True)]
    asked = choices(look(make(whole=whole, part=SAID, remark=[f"{n} It was a quiet day." for n in note])))
    assert asked["prompt"][0] == "whole" and asked["completion"][0] == "remark"


def test_numbers_beside_a_chosen_text_are_asked_about():
    rows = make(remark=SAID, rude=[0, 1] * 6, loud=[1, 1, 0] * 4)
    found = look(rows, mapping={"prompt": "remark"})
    assert choices(found)["completion"][:2] == ("rude", "loud")


def test_of_a_change_the_new_lines_are_learned():
    old, new = ([f"total = {sign}sum(ship.load * {n} for ship in fleet)" for n in range(12)] for sign in "-+")
    found = look(make(old_lines=old, new_lines=new, subject=SAID))
    assert found.mapping == {"prompt": "subject", "completion": "new_lines", "material": "old_lines"}


def test_a_state_in_one_word_is_not_asked_before_a_task_in_sentences():
    code = [f"total = sum(ship.load * {n} for ship in fleet)" for n in range(12)]
    rows = make(exec_outcome=["WRONG"] * 12, prob_desc_text=SAID, fix_code=code)
    assert look(rows).mapping["prompt"] == "prob_desc_text"


def test_two_questions_and_whether_they_are_the_same():
    rows = make(question1=SAID, question2=MORE, is_duplicate=[0, 1] * 6)
    found = look(rows, mapping={"prompt": "question1"})
    assert found.mapping == {"prompt": "question1", "completion": "is_duplicate", "material": "question2"}


def test_a_program_that_gives_the_answer_is_no_first_choice_as_material():
    programs = [f"total = sum(ship.load * {n} for ship in fleet if ship.load > 7)" for n in range(12)]
    rows = make(question=SAID, program=programs, answer=[f"{n} lorries" for n in range(12)])
    assert all(names[0] != "program" for names in choices(look(rows)).values())


def test_two_questions_are_no_prompts_for_rewards_where_they_are_compared():
    found = look(make(question1=SAID, question2=MORE, is_duplicate=["0", "1"] * 6))
    assert found.mapping == {"prompt": "question1", "completion": "is_duplicate", "material": "question2"}


def test_the_second_of_two_questions_is_not_lost_when_the_first_is_named():
    rows = make(question1=SAID, question2=MORE, is_duplicate=["0", "1"] * 6)
    found = look(rows, mapping={"prompt": "question1", "completion": "is_duplicate"})
    assert found.mapping["material"] == "question2" and not found.questions


def test_source_code_is_material_and_no_note_on_where_it_is_from():
    old, new = ([f"total = {sign}sum(ship.load * {n} for ship in fleet)" for n in range(12)] for sign in "-+")
    rows = make(task_text=SAID, bug_source_code=old, fix_source_code=new)
    found = look(rows, mapping={"prompt": "task_text", "completion": "fix_source_code"})
    assert found.mapping["material"] == "bug_source_code" and not found.questions


def test_what_became_of_old_code_is_the_answer_and_no_class_of_its_fault():
    old = [f"def load(n):\n    total = {n}\n    return total" for n in range(12)]
    new = [f"def load(n):\n    return {n}" for n in range(12)]
    rows = make(label=[0, 1, 2] * 4, code_before=old, code_after=new, label_text=["a-1", "b-2", "c-3"] * 4)
    found = look(rows)
    assert found.format.name == "prompt_completion" and not found.questions
    assert found.mapping == {"prompt": "code_before", "completion": "code_after"}


def test_old_lines_are_no_first_answer():
    rows = make(
        subject=SAID,
        old_contents=[f"def load(n):\n    total = {n}\n    return total" for n in range(12)],
        diff=[f"@@ -1,2 +1,2 @@\n-load = {n}\n+load = {n + 1}\n return load" for n in range(12)],
    )
    assert choices(look(rows))["completion"][0] == "diff"


def test_of_several_answers_the_solution_goes_before_its_result_and_ids():
    rows = make(
        problem=SAID,
        answer=[*map(str, range(12))],
        solution=[f"{said} So {n}." for n, said in enumerate(MORE)],
    )
    assert choices(look(rows, format="prompt_completion"))["completion"][0] == "solution"


def test_keywords_are_read_also_where_the_text_made_of_them_stands_first():
    words = [f"ferry, island, lorries, {hour}" for hour in range(12)]
    asked = choices(look(make(keywords=words, article=[one * 4 for one in SAID])))
    assert asked["prompt"][0] == "keywords" and asked["completion"][0] == "article"


def test_a_picture_with_its_description_is_no_first_question():
    rows = make(
        headline=SAID, summary=MORE, image=[{"alt": f"Ship {n} on the sea", "src": "x"} for n in range(12)]
    )
    assert choices(look(rows))["prompt"][0] != "image"


def test_numbers_of_classes_are_no_good_and_bad_answers():
    rows = make(prompt=SAID, completion=MORE, label=[0, 1, 2] * 4)
    assert look(rows).format.name == "prompt_completion"
