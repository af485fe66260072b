"""Data sets that are known as a whole: faults and their corrections, claims and what they are judged by."""

import pytest

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
RIGHT = [f"The {ship} lies at the quay with a torn sail since {n + 2} days." for n, ship in enumerate(SHIPS)]
WRONG = [one.replace("lies", "lie").replace("torn", "teared") for one in RIGHT]
PAGES = [
    f"{one} Her crew went ashore, and the mate sat down to sew. Nobody else came in that night."
    for one in RIGHT
]
LABELS = ["true", "false", "mixed"] * 4


def first(report):
    asked = {one["field"].removeprefix("data.mapping."): one["choices"][0] for one in report["needs_answer"]}
    return {**report["mapping"], **asked}


@pytest.mark.parametrize(
    ("faulty", "mended"),
    [
        ("incorrect_sentence", "correct_sentence"),
        ("toxic_comment", "neutral_comment"),
        ("noisy_line", "clean_line"),
        ("biased_text", "unbiased_text"),
    ],
)
def test_faults_are_mended_and_not_made(tell, faulty, mended):
    for columns in ({faulty: WRONG, mended: RIGHT}, {mended: RIGHT, faulty: WRONG}):
        report = tell(**columns)
        assert not report["needs_answer"]
        assert (report["mapping"]["prompt"], report["mapping"]["completion"]) == (faulty, mended)


def test_a_wrong_answer_is_no_question(tell):
    asked = [f"Where does the {ship} lie?" for ship in SHIPS]
    found = first(tell(question=asked, correct_answer=RIGHT, incorrect_answer=WRONG))
    assert found["prompt"] == "question" and found.get("completion") != "incorrect_answer"


@pytest.mark.parametrize("around", ["evidence", "context", "article"])
def test_a_claim_is_judged_and_not_its_evidence(tell, around):
    found = first(tell(**{around: PAGES, "claim": RIGHT, "label": LABELS}))
    assert (found["prompt"], found["completion"]) == ("claim", "label")


def test_what_a_stance_is_about_is_no_first_answer(tell):
    targets = ["the mayor", "the keeper"] * 6
    found = first(tell(premise=PAGES, target=targets, hypothesis=RIGHT, stance=[1, -1] * 6, label=[0, 1] * 6))
    assert found["completion"] == "label"


def test_an_author_and_a_chapter_make_no_talk_of_a_book(tell):
    pages = [f"{one} {two}" for one, two in zip(PAGES, PAGES[1:] + PAGES[:1], strict=True)]
    pages = [f"{one} {two}" for one, two in zip(pages, pages[2:] + pages[:2], strict=True)]
    book = {
        "author": ["Ida", "Ole", "Ida"] * 4,
        "story": [n // 3 for n in range(12)],
        "chapter": [1, 2, 3] * 4,
    }
    report = tell(**book, story_title=[f"The Quay {n // 3}" for n in range(12)], text=pages)
    assert all(one["field"] != "data.speaker" for one in report["needs_answer"])
