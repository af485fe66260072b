"""Cells that are lists: several wordings of a question, answers with scores, answers in parts, texts by language."""

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.format_detection import understand
from studio.data.formats.question_answer import say_answer
from studio.data.list_columns import find_labelled, find_languages, find_ranked, find_rated, find_spread
from studio.data.reshape import find_reshapes
from studio.data.row import Row, RowError, list_columns
from studio.data.talks.selection import find_talks

ASKED = [["When does the ferry go?", "ferry times?"], ["Where is the pier?", "how to find the pier"]]
SAID = ["The ferry goes at noon and at six.", "The pier is behind the old fish market."]


def read(rows):
    """Return the format, and the reshaped rows as Conversations."""
    spec = DatasetSpec(source="x")
    rows = [Row(number, values) for number, values in enumerate(rows, start=1)]
    for step in find_reshapes(spec, rows, "jsonl")[0]:
        rows = list(step.apply(rows))
    found = understand(list_columns(rows), [row.values for row in rows], spec)
    assert not found.questions
    return found, [found.read_row(row)[0] for row in rows]


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"en": one}])
def test_each_wording_of_a_question_gets_the_answer(wrap):
    rows = [
        {"questions": wrap(asked), "answers": wrap([said])} for asked, said in zip(ASKED, SAID, strict=True)
    ]
    found, read_rows = read(rows)
    assert [(row.messages[0].content, row.messages[1].content) for row in read_rows] == [
        (one, said) for asked, said in zip(ASKED, SAID, strict=True) for one in asked
    ]


def test_as_many_questions_as_answers_are_a_talk():
    rows = [{"questions": asked, "answers": SAID} for asked in ASKED]
    assert find_spread(("questions", "answers"), rows) is None


def test_scores_beside_answers_tell_the_better_one():
    rows = [
        {"instruction": "Say when the ferry goes.", "answers": ["No idea.", said], "scores": [2, 9]}
        for said in SAID
    ]
    assert find_rated(("answers", "scores"), rows).scores == "scores"
    found, read_rows = read(rows)
    assert found.format.name == "preference"
    assert [row.chosen[0].content for row in read_rows] == SAID
    assert find_rated(("answers", "scores"), [{"answers": ["a", "b"], "scores": [1]}]) is None


def test_languages_become_columns():
    rows = [{"queries": {"en": "When?", "fr": "Quand ?"}, "translation": {"en": "a", "fr": "b"}}]
    found = find_languages(("queries", "translation"), rows)
    assert found.columns == ("queries",) and not found.single
    made = next(iter(found.apply([Row(1, rows[0])]))).values
    assert made["queries.fr"] == "Quand ?" and "queries" not in made
    assert find_languages(("score",), [{"score": {"total": "3"}}]) is None


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("answers", ["first", "second"], "first"),
        ("answers", {"text": ["worse", "better"], "score": [3, 30]}, "better"),
        ("answers", {"text": ["second", "first"], "rank": [2, 1]}, "first"),
        ("solutions", '["return 1", "return 2"]', "return 1"),
        ("output", '["return 1", "return 2"]', '["return 1", "return 2"]'),
        ("directions", '["Stir it well.", "Bake it, then wait."]', "Stir it well.\nBake it, then wait."),
        ("labels", ["joy", "fear"], "joy, fear"),
        ("labels", ["joy"], "joy"),
        ("ner_tags", [3, 0, 0], "3 0 0"),
        ("target_words", ["no", "one", "is", "on", "board"], "no"),
        ("spoken", ["no", "one", "is", "on", "board"], "no one is on board"),
    ],
)  # fmt: skip
def test_a_list_is_one_answer_in_parts_or_one_of_several(column, cell, words):
    assert say_answer(cell, column) == words


def test_the_rule_is_told():
    told = understand(
        ("question", "answers"),
        [{"question": f"When {i}?", "answers": ["At noon.", "Noon"]} for i in range(9)],
        DatasetSpec(source="x"),
    )
    assert "data.sniff.picked" in str(told.reason)


def test_questions_and_answers_in_an_object_stay_one_talk():
    rows = [
        {
            "questions": ["When does it go?", "And back?"],
            "answers": {"input_text": SAID, "answer_start": [4, 9]},
        }
    ] * 5
    (talk, *_rest), turns = read(rows)[1], ("user", "assistant", "user", "assistant")
    assert len(_rest) == 4 and tuple(one.role for one in talk.messages) == turns
    assert [one.content for one in talk.messages][1::2] == SAID


def test_rated_attempts_are_a_preference():
    rows = [{"instruction": "Say when it goes.", "generations": SAID, "rating": [2, 5]}] * 5
    found, talks = read(rows)
    assert found.format.name == "preference"
    assert talks[0].chosen[0].content == SAID[1] and talks[0].rejected[0].content == SAID[0]


@pytest.mark.parametrize("ranking", [["B", "A", "C"], "B > A > C", ["b", "a", "c"]])
def test_a_ranking_of_answers_in_columns_is_a_preference(ranking):
    row = {"prompt": "Say when it goes.", "answer_a": SAID[0], "answer_b": SAID[1], "answer_c": "No."}
    found, talks = read([{**row, "gold_ranking": ranking}] * 5)
    assert found.format.name == "preference"
    assert talks[0].chosen[0].content == SAID[1] and talks[0].rejected[0].content == "No."


@pytest.mark.parametrize("ranking", [["D", "A"], ["A", "A"], ["A"], 3, None])
def test_what_ranks_other_things_is_left(ranking):
    row = {"answer_a": SAID[0], "answer_b": SAID[1], "ranking": ranking}
    assert find_ranked(tuple(row), [row] * 5) is None


def test_patterns_are_wordings_also_where_there_are_as_many_responses():
    rows = [
        {
            "tag": f"t{i}",
            "context": [""],
            "patterns": [f"When does boat {i} go?", "boat times"],
            "responses": SAID,
        }
        for i in range(5)
    ]
    found = find_spread(tuple(rows[0]), rows)
    assert found.column == "patterns" and len(list(found.apply([Row(1, rows[0])]))) == 2
    assert find_talks(tuple(rows[0]), rows) is None


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ({"head": "pier", "tail": "market"}, '{"head": "pier", "tail": "market"}'),
        ([{"head": "pier", "tail": "Käse"}], '[{"head": "pier", "tail": "Käse"}]'),
    ],
)
def test_an_answer_with_fields_of_its_own_is_learned_as_json(cell, words):
    assert say_answer(cell, "relation") == words


def test_fields_that_are_all_empty_are_no_answer():
    with pytest.raises(RowError):
        say_answer({"text": [], "answer_start": []}, "answers")


@pytest.mark.parametrize(
    ("good", "bad", "said"), [("chosen", "rejected", "messages"), ("winner", "loser", "text")]
)
def test_answers_that_say_which_was_chosen_are_a_column_each(good, bad, said):
    turns = [[{"role": "assistant", "content": one}] if said == "messages" else one for one in SAID]
    asked = [{"role": "user", "content": ASKED[0][0]}]
    rows = [
        {"messages": asked, "candidates": [{"label": bad, said: turns[1]}, {"label": good, said: turns[0]}]}
    ] * 5
    found, read_rows = read(rows)
    assert found.format.name == "preference"
    assert [row.chosen[0].content for row in read_rows] == [SAID[0]] * 5
    assert read_rows[0].rejected[0].content == SAID[1] and read_rows[0].messages[0].content == ASKED[0][0]


@pytest.mark.parametrize("labels", [("noun", "verb"), ("chosen", "chosen"), ("chosen", 3)])
def test_other_labels_choose_nothing(labels):
    row = {"candidates": [{"label": one, "text": said} for one, said in zip(labels, SAID, strict=True)]}
    assert find_labelled(tuple(row), [row] * 5) is None
