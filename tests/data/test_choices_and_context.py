"""What stands beside a question: material, options and columns left over are used by a rule, or asked about."""

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.format_detection import understand
from studio.data.formats.choices import choose, counts_from, find_series, part_options
from studio.data.formats.column_names import find_core
from studio.data.formats.context import say_material
from studio.data.row import Row, RowError

STORY = "Every morning the mail boat number {} crosses the bay, brings bread to the island and takes the pupils back."


def look(rows, **values):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return understand(columns, rows, DatasetSpec(source="x", **values))


def first(found, rows):
    conversation, _ = found.read_row(Row(1, rows[0]))
    return [(message.role, message.content) for message in conversation.messages]


@pytest.mark.parametrize(
    "name", ["context", "passage", "article", "db_schema", "Kontext", "上下文", "patient_case"]
)
def test_material_stands_before_its_question(name):
    rows = [
        {"id": i, name: STORY.format(i), "question": f"Who goes by boat {i}?", "answer": "The pupils"}
        for i in range(9)
    ]
    found = look(rows)
    assert not found.questions and found.mapping["material"] == name
    assert first(found, rows) == [
        ("user", f"{STORY.format(0)}\n\nWho goes by boat 0?"),
        ("assistant", "The pupils"),
    ]


def test_several_kinds_of_material_are_named():
    rows = [
        {"facts": ["It rained.", "It froze."], "hint": f"Think of {i}.", "question": "Why?", "answer": "Ice."}
        for i in range(9)
    ]
    told = first(look(rows), rows)[0][1]
    assert told == "facts:\nIt rained.\nIt froze.\n\nhint:\nThink of 0.\n\nWhy?"


def test_a_column_that_carries_much_text_is_never_left_out_in_silence():
    rows = [{"question": "Who goes?", "answer": "Nobody", "lagebild": STORY.format(i)} for i in range(9)]
    found = look(rows)
    asked = found.questions[0]
    assert (
        asked.field == "data.mapping.material"
        and asked.choices == ("lagebild", "")
        and found.confidence <= 0.8
    )
    used = look(rows, mapping={"material": "lagebild"})
    assert not used.questions and STORY.format(0) in first(used, rows)[0][1]
    left = look(rows, mapping={"material": ""})
    assert not left.questions and first(left, rows)[0][1] == "Who goes?"


@pytest.mark.parametrize(
    "more",
    [
        {"source": "web", "url": "https://example.org/a/b", "created": "2024-01-02 10:00", "score": 0.5},
        {"text": "Question: Who goes by boat? Answer: The pupils, every day."},
        {"tokens": STORY.split()},
        {"licence": "This text may be used by anybody for any purpose at all."},
    ],
    ids=["facts about the row", "the same once more", "words cut apart", "the same in every row"],
)
def test_what_says_nothing_new_is_not_asked_about(more):
    rows = [{"question": "Who goes by boat?", "answer": "The pupils, every day.", **more} for _ in range(9)]
    assert look(rows).questions == ()


def test_an_explanation_is_asked_about_as_thoughts():
    rows = [
        {
            "question": f"{i} + 1?",
            "answer": str(i + 1),
            "explanation": f"Counting one further from {i} gives {i + 1}.",
        }
        for i in range(9)
    ]
    found = look(rows)
    assert found.questions[0].field == "data.mapping.reasoning" and found.questions[0].choices == (
        "explanation",
        "",
    )


def test_labels_beside_a_text_are_asked_about():
    rows = [{"text": STORY.format(i), "toxic": i % 2, "rude": i % 3 % 2} for i in range(9)]
    found = look(rows)
    assert found.questions[0].field == "data.format" and found.questions[0].choices == (
        "prompt_completion",
        "text",
    )
    rows = [{"text": STORY.format(i), "label": i % 2} for i in range(9)]
    assert look(rows).questions[0].choices == ("prompt_completion", "text")
    told = look(rows, format="prompt_completion")
    assert not told.questions and first(told, rows)[1] == ("assistant", "0")


OPTIONS = ["sand", "water", "dust", "rock"]
LETTERS = dict(zip("ABCD", OPTIONS, strict=True))


@pytest.mark.parametrize(
    "row",
    [
        {"choices": OPTIONS, "answer": 1},
        {"choices": {"text": OPTIONS, "label": list("ABCD")}, "answerKey": "B"},
        {"options": [{"label": mark, "text": words} for mark, words in LETTERS.items()], "answer": "B"},
        {"options": LETTERS, "correct": "b"},
        {"options": str(OPTIONS), "label": "1"},
        {"options": "A) sand B) water C) dust D) rock", "answer": "B"},
        {"options": [f"{mark}. {words}" for mark, words in LETTERS.items()], "answer": "(B)"},
        {"A": "sand", "B": "water", "C": "dust", "D": "rock", "answer": "B"},
        {"option1": "sand", "option2": "water", "option3": "dust", "correct_option": 2},
        {"ending0": "sand", "ending1": "water", "label": "1"},
        {"answers": OPTIONS, "correct_answer_id": 1},
        {"choices": OPTIONS, "answer": "water"},
    ],
    ids=str,
)
def test_the_words_of_an_option_are_learned(row):
    counted = {name: cell for name, cell in row.items() if name == "correct_option"}
    rows = [{"question": "What is wet?", **row}] * 5
    # Rows that tell from which number the options are counted.
    lasts = {"answer": 0, "label": "0", "correct_answer_id": 0, "correct_option": 3}
    rows += [
        {
            "question": "?",
            **row,
            **{name: lasts[name] for name in row if name in lasts and str(row[name]).isdigit()},
        }
    ]
    found = look(rows)
    assert not found.questions, found.questions
    told = first(found, rows)
    assert told[0][1].startswith("What is wet?\n\nA. sand\nB. water") and told[1] == ("assistant", "water")
    assert ("completion_from_1" in found.mapping) is bool(counted)


def test_where_counting_begins_is_asked_where_rows_do_not_tell():
    rows = [{"question": "What is wet?", "choices": OPTIONS, "answer": 1}] * 5
    found = look(rows)
    assert found.questions[0].field == "data.mapping.completion_from_1" and found.confidence <= 0.8
    assert first(look(rows, mapping={"completion_from_1": "answer"}), rows)[1][1] == "sand"
    assert first(look(rows, mapping={"completion_from_1": ""}), rows)[1][1] == "water"


def test_options_and_answers():
    assert counts_from("a", "c", [{"a": 0, "c": OPTIONS}]) == 0
    assert counts_from("a", "c", [{"a": 4, "c": OPTIONS}]) == 1
    assert counts_from("a", "c", [{"a": "B", "c": OPTIONS}]) == 0
    options = part_options(OPTIONS)
    assert choose(options, "B. water", "a") == "water" and choose(options, "all of them", "a") is None
    with pytest.raises(RowError):
        choose(options, 4, "a")
    assert find_series(["id", "opa", "opb", "opc"]) == ("opa", "opb", "opc")
    assert (
        find_series(["a", "b"]) == ("a", "b")
        and find_series(["v1", "v2"]) == ()
        and find_series(["B", "C"]) == ()
    )


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("user_question", "question"), ("questionText", "question"), ("GPT4 Answer", "answer"), ("answer_start", ""),
        ("question_id", ""), ("incorrect_answers", ""), ("final-response", "response"), ("text", ""),
    ],
)  # fmt: skip
def test_what_is_left_of_a_name(name, core):
    assert find_core(name) == core


def test_any_cell_is_said_in_words():
    assert say_material({"title": ["Boats", "Bread"], "n": 3}) == "title: Boats | Bread\nn: 3"
    assert say_material([{"q": "a b"}, {"q": "c"}]) == "q: a b\nq: c"
    assert say_material(["One.", "Two."]) == "One.\nTwo." and say_material("as it is\n") == "as it is\n"


def test_a_column_that_was_left_out_stays_out_when_rows_are_read():
    """Only columns that come later may still take a role: an address is no letter, and "no" is an answer."""
    rows = [
        {
            "customer_email": f"c{i}@mail.example",
            "notes": STORY.format(i),
            "question": f"Q{i}?",
            "answer": "A",
        }
        for i in range(9)
    ]
    found = look(rows, mapping={"material": ""})
    assert "material" not in found.extend((*rows[0], "hint")).mapping
    found = look([{"email": row["customer_email"], "question": "Who?", "answer": "A"} for row in rows])
    assert found.mapping.keys() == {"prompt", "completion"}
    assert found.extend(("email", "question", "answer")).mapping == found.mapping
    assert found.extend(("email", "question", "answer", "context")).mapping["material"] == "context"


def test_an_empty_column_gives_way_to_one_that_holds_the_question():
    rows = [
        {"q_id": f"a{i}", "title": f"Why is {i} odd?", "document": "", "answers": "So."} for i in range(9)
    ]
    found = look(rows)
    assert "document" not in found.mapping.values() and "title" in found.mapping.values()


def test_who_names_the_question_is_asked_for_the_answer():
    rows = [{"xa": f"What is {i}?", "xb": f"It is {i}.", "id": i} for i in range(9)]
    for mapping, asked in ({"prompt": "xa"}, "completion"), ({"completion": "xb"}, "prompt"):
        found = look(rows, mapping=mapping)
        assert [question.field for question in found.questions] == [f"data.mapping.{asked}"]
        assert found.mapping == mapping
    assert not look(rows, mapping={"prompt": "xa", "completion": "xb"}).questions


def test_what_is_asked_for_first_is_likely():
    rows = [
        {
            "intent": f"sort {i} numbers",
            "rewritten": f"sort {i} of them" if i % 2 else None,
            "snippet": f"s({i})",
        }
        for i in range(20)
    ]
    found = look(rows)
    choices = {question.field: question.choices for question in found.questions}
    assert not choices or choices["data.mapping.completion"][0] != "rewritten"


def test_an_answer_that_pandas_wrote_is_opened():
    cell = "{'text': array(['Marta Linwood'], dtype=object), 'answer_start': array([70], dtype=int32)}"
    rows = [{"question": f"Who built {i}?", "answers": cell} for i in range(9)]
    assert first(look(rows), rows)[-1] == ("assistant", "Marta Linwood")


def test_lists_of_texts_are_asked_about():
    rows = [
        {"id": str(i), "data": [f"Tell me of {i}.", "Gladly.", "And then?", "The end."]} for i in range(9)
    ]
    assert look(rows).questions[0].field == "data.format" and look(rows).questions[0].choices == ("messages",)


def test_a_task_beside_a_talk_is_read_however_short():
    talk = [{"role": "user", "content": "Who goes by boat?"}, {"role": "assistant", "content": STORY}]
    rows = [{"instruction": "Answer the islanders.", "messages": talk}] * 8
    found = look(rows)
    assert not found.questions and found.confidence == 0.9
    assert first(found, rows)[0] == ("user", "Answer the islanders.\n\nWho goes by boat?")


def test_a_heading_stands_before_its_text_but_not_where_it_is_the_answer():
    rows = [
        {"subject": f"Boat {i}", "body": STORY.format(i), "answer": f"We will ask about boat number {i}."}
        for i in range(9)
    ]
    found = look(rows, format="prompt_completion")
    assert first(found, rows)[0] == ("user", f"Boat 0\n\n{STORY.format(0)}")
    rows = [{"title": f"Boat {i}", "text": STORY.format(i), "summary": f"A boat, {i}."} for i in range(9)]
    assert look(rows, format="prompt_completion").mapping.get("material") is None


def test_grades_beside_a_text_are_asked_about():
    rows = [{"stars": 1.0 + i % 5, "text": STORY.format(i)} for i in range(12)]
    assert [one.field for one in look(rows).questions] == ["data.format"]
    rows = [{**row, "title": f"Boat {i}"} for i, row in enumerate(rows)]
    assert [one.field for one in look(rows).questions] == ["data.format"]
    rows = [{"int_score": 2 + i / 7, "text": STORY.format(i)} for i in range(12)]
    assert not look(rows).questions


def test_one_and_the_same_word_is_no_answer_where_a_column_tells_rows_apart():
    rows = [
        {"text": STORY.format(i), "answer": "accept", "accept": [("boats",), ("bread",)][i % 2]}
        for i in range(12)
    ]
    found = look(rows, format="prompt_completion")
    assert found.questions[0].choices[0] == "accept"


def test_checksums_are_nothing_to_learn():
    with pytest.raises(StudioError):
        look([{"id": i, "url": f"https://a/{i}", "sha256": f"{i:064x}"} for i in range(9)])


def test_several_flags_beside_a_text_are_asked_about():
    rows = [{"text": STORY.format(i), "joy": i % 2, "fear": i // 2 % 2, "rater_id": 7} for i in range(12)]
    assert [one.field for one in look(rows).questions] == ["data.format"]
    rows = [{"text": STORY.format(i), "is_page": 1, "joy": i % 2} for i in range(12)]
    assert not look(rows).questions


def test_answers_that_a_column_calls_bad_are_asked_about():
    rows = [
        {"prompt": f"Who goes by boat {i}?", "response": STORY.format(i), "is_safe": i % 3 > 0}
        for i in range(12)
    ]
    found = look(rows)
    assert found.questions[0].choices == ("prompt_completion", "kto") and found.confidence <= 0.8
    assert not look(rows, format="prompt_completion").questions
    assert not look([{**row, "is_safe": True} for row in rows]).questions


def test_a_history_of_another_form_is_material():
    past = [{"follow_up_question": "Is it far?", "follow_up_answer": "No."}]
    rows = [{"history": past, "question": f"Who goes by boat {i}?", "answer": "Yes"} for i in range(9)]
    found = look(rows)
    assert "Is it far?" in first(found, rows)[0][1] and first(found, rows)[1] == ("assistant", "Yes")


def test_the_name_of_a_program_is_no_system_prompt():
    row = {"question": "Who goes by boat?", "answer": STORY, "system": "Online-A"}
    assert "system" not in look([row] * 9).mapping
    assert look([{**row, "system": "Be short."}] * 9).mapping["system"] == "system"


def test_attempts_of_models_are_no_first_choice_as_material():
    rows = [
        {
            "question": f"Who goes by boat {i}?",
            "answer": "The pupils",
            "samples": [STORY.format(i), "Nobody at all"],
        }
        for i in range(9)
    ]
    assert all(one.choices[0] != "samples" for one in look(rows).questions)


@pytest.mark.parametrize("flags", [[False, True, False], [0, 1, 0]])
def test_a_list_of_flags_says_which_options_are_right(flags):
    names = ["the mast", "the rudder", "the bell"]
    rows = [
        {"question": f"What steers boat {i}?", "options": names, "right": flags, "kind": "boats"}
        for i in range(6)
    ]
    found = look(rows)
    assert not found.questions and found.mapping["completion"] == "right"
    asked = "What steers boat 0?\n\nA. the mast\nB. the rudder\nC. the bell"
    assert first(found, rows) == [("user", asked), ("assistant", "the rudder")]


def test_several_flags_are_several_options():
    rows = [
        {"question": f"What floats, {i}?", "options": ["cork", "lead", "pine"], "correct": [1, 0, 1]}
        for i in range(6)
    ]
    assert first(look(rows), rows)[1] == ("assistant", "cork, pine")


def test_options_that_are_objects_of_one_mark_each():
    options = [{"A": "a mast"}, {"B": "a rudder"}, {"C": "a bell"}]
    assert part_options(options) == (("A", "a mast"), ("B", "a rudder"), ("C", "a bell"))
    rows = [{"question": f"Which part, {i}?", "options": options, "answer": "ABC"[i % 3]} for i in range(6)]
    found = look(rows)
    assert not found.questions and first(found, rows)[1] == ("assistant", "a mast")


@pytest.mark.parametrize(
    ("asks", "option", "right", "why"),
    [
        ("Question", "Réponse {}", "Bonne réponse", "Explication"),
        ("Pregunta", "Opción {}", "Respuesta correcta", "Explicación"),
        ("Frage", "Antwort {}", "Richtige Antwort", "Erklärung"),
        ("Domanda", "Opzione {}", "Risposta corretta", "Spiegazione"),
        ("Вопрос", "Вариант {}", "Ответ", "Объяснение"),
    ],
)
def test_tests_in_other_languages_have_options_and_a_letter(asks, option, right, why):
    parts = ["the mast", "the rudder", "the bell", "the keel"]
    rows = [
        {"ID": f"T-{i}", asks: f"What is it that boat {i} needs most?", right: "ABCD"[i % 4],
         why: f"Boat {i} has lain at the quay for a long time, and the sea has taken {parts[i % 4]} of it.",
         **{option.format(mark): f"{words} {i}" for mark, words in zip("ABCD", parts, strict=True)}}
        for i in range(12)
    ]  # fmt: skip
    found = look(rows)
    assert found.mapping["choices"] == option.format("A") and found.mapping["completion"] == right
    assert first(found, rows)[1] == ("assistant", "the mast 0")
    # An explanation tells the answer: it is never read before the question unasked, and not put first.
    assert all(question.choices[0] != why for question in found.questions if "material" in question.field)
    assert why not in [column for role, column in found.mapping.items() if role.startswith("material")]


def test_a_number_that_is_an_option_is_a_place_where_the_column_counts():
    rows = [
        {"question": f"{2 * n} : 2 = ?", "option1": "2", "option2": str(n), "option3": str(n + 9),
         "option4": str(n + 7),
         "correct_option_index": 1 + n % 4}
        for n in range(3, 15)
    ]  # fmt: skip
    found = look(rows)
    assert found.mapping["completion_from_1"] == "correct_option_index"
    said = [first(found, rows[n:])[-1][1] for n in range(12)]
    assert said == [row[f"option{row['correct_option_index']}"] for row in rows]


def test_an_answer_in_numbers_is_its_words_where_options_are_numbers():
    assert choose([("A", "2"), ("B", "5"), ("C", "1")], "2", "answer") == "2"
    assert choose([("A", "2"), ("B", "5"), ("C", "1")], "2", "answer_index", by_place=True) == "1"
