"""What the names of columns say of each other."""

import pytest

from studio.data.formats.column_names import drop_versions, is_version, simplify
from studio.data.related_names import are_twins, extends, is_in_language, is_renewed

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
ASKED = [f"How long did the {ship} lie at the quay?" for ship in SHIPS]
SAID = [f"The {ship} lay there for {n + 2} days." for n, ship in enumerate(SHIPS)]
TOLD = [f"In that spring the {ship} came late to Brenn, her sail was torn." for ship in SHIPS]
QUERIES = [f"SELECT days FROM ships WHERE name = '{ship}'" for ship in SHIPS]


@pytest.mark.parametrize(
    ("name", "other"),
    [("question_orig", "question"), ("query_toks_no_value", "query"), ("normalized_old_code", "old_code"),
     ("rewritten_intent", "intent"), ("answerProcessed", "answer")],
)  # fmt: skip
def test_other_forms_of_a_column(name, other):
    assert extends(name, other) and not extends(other, name)


@pytest.mark.parametrize(
    ("name", "other"), [("question_context", "question"), ("user_question", "question"), ("answer", "answer")]
)
def test_other_columns_are_no_forms_of_one(name, other):
    assert not extends(name, other)


def test_languages_and_what_became_of_something():
    assert is_in_language("instruction_ko", "instruction") and not is_in_language(
        "instruction_note", "instruction"
    )
    assert is_renewed("correct_sentence", "incorrect_sentence") and not is_renewed(
        "sentence", "wrong_sentence"
    )
    assert is_version("text_clean", "text") and drop_versions(["text", "text_clean", "title"]) == [
        "text",
        "title",
    ]
    assert [simplify(name) for name in ("groundTruth", "userPrompt", "ID", "KTO_tag")] == [
        "ground_truth",
        "user_prompt",
        "id",
        "kto_tag",
    ]


def test_the_processed_form_of_each_column_is_not_used_beside_it(tell):
    low = [[one.lower() for one in column] for column in (ASKED, SAID, TOLD)]
    report = tell(question=ASKED, question_processed=low[0], context=TOLD, context_processed=low[2], answer=SAID,
                  answer_processed=low[1])  # fmt: skip
    used = [*report["mapping"].values(), *(one["choices"][0] for one in report["needs_answer"])]
    assert not [name for name in used if "processed" in name]


def test_the_same_once_more_in_another_language_is_asked_about(tell):
    report = tell(instruction=ASKED, response=SAID, instruction_ko=TOLD, response_ko=TOLD)
    assert "response" in report["mapping"].values()
    assert [one["choices"][0] for one in report["needs_answer"]] == [""]


def test_the_query_goes_before_what_a_machine_answered(tell):
    guesses = [one.replace("days", "*") for one in QUERIES]
    report = tell(question=ASKED, query=QUERIES, answer_from_Mill7=guesses)
    assert report["needs_answer"][0]["choices"][0] == "query"


def test_a_column_that_never_changes_is_no_answer(tell):
    report = tell(question=ASKED, sql=["{'from': {}}"] * 12, query=QUERIES)
    assert report["mapping"].get("completion", "query") == "query"


def test_a_story_is_written_for_its_prompt_whatever_its_title(tell):
    wishes = [f"Write a story about the sail of the {ship} and her mate." for ship in SHIPS]
    pages = [f"{told} {said} {told} {said} {told}" for told, said in zip(TOLD, SAID, strict=True)]
    report = tell(title=[f"The long wait of the {ship}" for ship in SHIPS], story=pages, prompt=wishes)
    assert not report["needs_answer"]
    assert (report["mapping"]["prompt"], report["mapping"]["completion"]) == ("prompt", "story")


@pytest.mark.parametrize(("name", "other", "twins"), [("q1", "q2", True), ("sent_A", "sent_B", True),
                                                     ("q1", "a1", False), ("q", "q2", False)])  # fmt: skip
def test_twins(name, other, twins):
    assert are_twins(name, other) is twins
