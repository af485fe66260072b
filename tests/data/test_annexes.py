"""What stands behind a whole answer, or only sorts and numbers the rows, is left out without a question, and told."""

import pytest

MILLS = "Adler Birke Cedar Damm Eiche Furt Grund Halde Insel Joch Kamm Linde".split()
ASKED = [f"Why does the mill at {mill} stand still in the winter?" for mill in MILLS]
SAID = [
    f"Its brook freezes for {n + 5} weeks, and nothing turns the wheel then." for n, mill in enumerate(MILLS)
]
MORE = [
    f"The brook at {mill} comes from the north side of the hill and carries little water, which freezes early."
    for mill in MILLS
]


def asked(report):
    return [one["field"].removeprefix("data.mapping.") for one in report["needs_answer"]]


@pytest.mark.parametrize("name", ["explanation", "justification", "Erklärung", "解释"])
def test_what_explains_a_whole_answer_behind_it_is_left_out(tell, name):
    report = tell(question=ASKED, answer=SAID, **{name: MORE})
    assert asked(report) == [] and name in str(report["reason"])
    assert report["mapping"] == {"prompt": "question", "completion": "answer"}


def test_what_explains_a_short_answer_is_asked_about(tell):
    assert asked(tell(question=ASKED, answer=MILLS, explanation=MORE)) == ["reasoning"]
    assert asked(tell(question=ASKED, explanation=MORE, answer=SAID)) == ["reasoning"]  # before the answer


@pytest.mark.parametrize("name", ["reference", "source", "citation"])
def test_a_book_and_its_page_are_not_read(tell, name):
    report = tell(
        question=ASKED, answer=SAID, **{name: [f"The Millers' Year Book, page {n}" for n in range(12)]}
    )
    assert asked(report) == [] and "material" not in report["mapping"]


@pytest.mark.parametrize("name", ["reference", "source", "citation", "ref"])
def test_a_paragraph_that_every_row_asks_the_same_about_is_not_left_out(tell, name):
    cited = [f"GDPR Art. {n}" for n in range(12)]
    for question in (
        ["What does this article say in plain words?"] * 12,
        ["What does it say?", "Who obeys it?"] * 6,
    ):
        report = tell(question=question, **{name: cited}, answer=SAID)
        offered = [choice for one in report["needs_answer"] for choice in one["choices"]]
        assert name in [*offered, report["mapping"].get("material")]


def test_a_reference_in_sentences_is_asked_about(tell):
    assert asked(tell(question=ASKED, answer=SAID, reference=MORE))


def test_facts_beside_a_text_are_no_text(tell):
    facts = [
        {"heading": f"Of the mill at {mill}", "chapter": n, "words": "many and long"}
        for n, mill in enumerate(MILLS)
    ]
    report = tell(text=[f"{said} {more}" for said, more in zip(SAID, MORE, strict=True)], metadata=facts)
    assert (report["format"], asked(report)) == ("text", [])


def test_numbers_and_ids_beside_a_yes_are_not_read(tell):
    ids = [f"{n:08x}-1b2c-4d3e-8f4a-{n + 9:012x}" for n in range(12)]
    report = tell(
        uid=ids, question=ASKED, answer=["yes", "no"] * 6, boxes=[f"[[{n}, 4, 2], [{n}]]" for n in range(12)]
    )
    offered = {choice for one in report["needs_answer"] for choice in one["choices"]}
    assert not {"uid", "boxes"} & {*report["mapping"].values(), *offered}


def test_a_question_that_its_text_does_not_answer_is_no_broken_row(tell):
    lists = [
        {"text": [mill] if n % 3 else [], "answer_start": [19] if n % 3 else []}
        for n, mill in enumerate(MILLS)
    ]
    report = tell(
        [
            {"context": more, "question": ask, "answers": one}
            for more, ask, one in zip(MORE, ASKED, lists, strict=True)
        ]
    )
    assert report["rows_used"] == 8 and {one["code"] for one in report["problems"]} == {"E124"}
    assert report["trainable"]
    flagged = tell(
        context=MORE,
        question=ASKED,
        answer=[mill if n % 3 else "" for n, mill in enumerate(MILLS)],
        is_impossible=[n % 3 == 0 for n in range(12)],
    )
    assert {one["code"] for one in flagged["problems"]} == {"E123"}
    gaps = tell(context=MORE, question=ASKED, answer=[mill if n % 3 else "" for n, mill in enumerate(MILLS)])
    assert {one["code"] for one in gaps["problems"]} == {"E122"}


@pytest.mark.parametrize("flag", [{}, {"is_impossible": [n % 6 != 0 for n in range(12)]}])
def test_most_answers_are_lost_and_not_lacking_unless_a_flag_says_so(tell, flag):
    lists = [[] if n % 6 else [mill] for n, mill in enumerate(MILLS)]
    report = tell(context=MORE, question=ASKED, answer=lists, **flag)
    assert (report["rows_used"], report["trainable"]) == (2, bool(flag))
    assert {one["code"] for one in report["problems"]} == {"E123" if flag else "E124"}


def test_a_label_of_minus_one_is_no_where_nothing_stands_between(tell):
    rows = [
        {"prompt": ask, "completion": said, "label": label}
        for ask, said in zip(ASKED, SAID, strict=True)
        for label in (1, -1)
    ]
    report = tell(rows)
    assert (report["format"], report["rows_used"], asked(report)) == ("kto", 24, [])
    assert report["preview"][0]["label"] is True and report["preview"][1]["label"] is False
    assert "data.reshape.signed" in str(report["source_notes"])
    worded = tell([{**row, "label": str(row["label"])} for row in rows])
    assert worded["rows_used"] == 24
    between = tell([*rows, {**rows[0], "label": 0}])
    assert between["rows_used"] == 24 and {one["code"] for one in between["problems"]} == {"E172"}
    mixed = tell([{**row, "label": row["label"] == 1 or "no"} for row in rows])
    assert mixed["rows_used"] == 24 and "data.reshape.signed" not in str(mixed["source_notes"])


@pytest.mark.parametrize("labels", [[1, 0, 0, 0, -1, 0], ["1", "-1", "0"], [1.0, -1.0, 0.0]])
def test_an_answer_without_a_vote_is_not_broken(tell, labels):
    votes = [*labels * 4][:12]
    report = tell(question=ASKED, answer=SAID, label=votes)
    left = sum(float(vote) == 0 for vote in votes)
    assert (report["format"], report["rows_used"], report["trainable"]) == ("kto", 12 - left, True)
    assert {one["message"].values["problem"].id for one in report["problems"]} == {"data.row.no_vote"}


def test_a_stance_of_three_classes_stays_a_number(tell):
    post = {"text": SAID, "answer": [f"I say {ask.lower()}" for ask in ASKED], "label": [0, -1, 1] * 4}
    report = tell(**post, answers={"prompt": "text", "completion": "label"}, format="prompt_completion")
    assert [row["messages"][-1]["content"] for row in report["preview"][:2]] == ["0", "-1"]
    report = tell(**post, answers={"prompt": "text", "completion": "label"})
    assert report["preview"][0]["messages"][-1]["content"] == "0"
    assert not tell(**post)["source_notes"]


def test_a_number_that_sorts_texts_stays_a_number(tell):
    report = tell(
        text=SAID,
        label=[1, -1] * 6,
        answers={"prompt": "text", "completion": "label"},
        format="prompt_completion",
    )
    assert report["preview"][1]["messages"][-1]["content"] == "-1"
