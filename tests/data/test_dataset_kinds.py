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


def test_thoughts_and_the_last_answer_in_chinese_are_no_rivals(tell):
    asked = [f"第{n}艘船什么时候开？" for n in range(12)]
    said = [f"第{n}艘船中午十二点准时出发。" for n in range(12)]
    report = tell(**{"问题": asked, "思维链": [f"先看时刻表。{one}" for one in said], "最终答案": said})
    assert not report["needs_answer"]
    assert report["mapping"] == {"prompt": "问题", "completion": "最终答案", "reasoning": "思维链"}


def test_questions_are_known_by_their_marks_in_every_script(tell):
    asked = [f"ما عمق البحيرة رقم {n}؟" for n in range(12)]
    said = [f"يبلغ عمق البحيرة رقم {n} حوالي {n * 10} مترا والماء صاف." for n in range(12)]
    report = tell(**{"السؤال": asked, "الجواب": said})
    assert not report["needs_answer"] and report["mapping"]["prompt"] == "السؤال"


def test_a_title_that_asks_goes_before_the_text_that_answers(tell):
    titles = [f"Where does the {ship} lie?" for ship in SHIPS]
    report = tell(title=titles, topic=["sea", "land"] * 6, star=list(range(12)), content=PAGES)
    assert (
        first(tell(answers={"prompt": "title"}, title=titles, topic=["sea", "land"] * 6, content=PAGES))[
            "completion"
        ]
        == "content"
    )
    assert report["needs_answer"][0]["choices"][0] == "prompt_completion"


def test_other_languages_are_not_read_before_a_translation(tell):
    found = tell(English=RIGHT, Hausa=WRONG, Igbo=PAGES, Yoruba=[one.upper() for one in RIGHT])
    assert found["needs_answer"]
    report = tell(
        answers={"prompt": "English", "completion": "Hausa"}, English=RIGHT, Hausa=WRONG, Igbo=PAGES
    )
    assert all(one["choices"][0] == "" for one in report["needs_answer"])


def test_what_became_of_a_state_is_not_learned_without_the_state(tell):
    before = [f"n : Nat\n⊢ n + {n} = {n} + n" for n in range(12)]
    after = [f"n : Nat\n⊢ {n} + n = {n} + n" for n in range(12)]
    report = tell(
        state_before=before, step=[f"rw [add_comm n {n}] at this goal" for n in range(12)], state_after=after
    )
    assert report["needs_answer"]


def test_the_reason_of_a_score_is_no_thought_of_the_answer(tell):
    asked = [f"Where does the {ship} lie?" for ship in SHIPS]
    found = first(
        tell(question=asked, context=PAGES, answer=RIGHT, score=[1, 2, 3] * 4, score_rationale=WRONG)
    )
    assert found.get("reasoning") != "score_rationale"


def test_what_stands_in_the_prompt_is_not_read_again(tell):
    prompts = [f"Say in JSON how it is.\n\nReview: {page}" for page in PAGES]
    report = tell(prompt=prompts, review=PAGES, target=[f'{{"days": {n}}}' for n in range(12)])
    assert "review" not in first(report).values()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("correct_answer", "wrong_answer"),
        ("correct_answer", "incorrect_answer"),
        ("correct answer", "wrong answer"),
        ("correct", "incorrect"),
        ("Right Answer", "False Answer"),
    ],
)
@pytest.mark.parametrize("told", [WRONG, RIGHT[1:] + RIGHT[:1]])
def test_a_wrong_answer_is_not_read_before_its_question(tell, right, wrong, told):
    report = tell(
        **{"question": [f"Where does the {ship} lie?" for ship in SHIPS], right: RIGHT, wrong: told}
    )
    assert not report["needs_answer"]
    assert report["mapping"] == {"prompt": "question", "completion": right}


def test_a_faulty_text_is_read_under_its_instruction(tell):
    task = ["Mend the grammar of this line."] * 12
    report = tell(instruction=task, incorrect_sentence=WRONG, correct_sentence=RIGHT)
    assert "incorrect_sentence" in first(report).values()
    assert "wrong" in first(tell(instruction=task, wrong=WRONG, correct=RIGHT)).values()
