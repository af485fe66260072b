"""What is read without a question since names, cells and how columns hang together say the same; and what is asked."""

import pytest

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
TOLD = [
    f"The barge {ship} lay {n + 2} days at the quay of Brenn with a torn sail."
    for n, ship in enumerate(SHIPS)
]
SAID = [f"Its crew had sewn the sail of the {ship} by hand and went on after {n + 3} nights."
        for n, ship in enumerate(SHIPS)]  # fmt: skip
ASKED = [f"How long did the {ship} lie at the quay?" for ship in SHIPS]
OLD = [f"def load(boxes):\n    total = {n}\n    for box in boxes:\n        total += box\n    return total"
       for n in range(12)]  # fmt: skip
NEW = [f"def load(boxes):\n    return {n} + sum(boxes)" for n in range(12)]
DIFF = [f"@@ -1,2 +1,2 @@\n-load = {n}\n+load = {n + 1}\n return load" for n in range(12)]
WISH = [f"Please say first why the {ship} needs one box more." for ship in SHIPS]


def turns(report):
    assert not report["needs_answer"]
    return [(turn["role"], turn["content"]) for turn in report["preview"][0]["messages"]]


def asked(report):
    return {one["field"].removeprefix("data.mapping."): one["choices"] for one in report["needs_answer"]}


def first_choices(tell, **columns):
    """What comes out when every question is answered by its first choice."""
    said = {}
    for _ in range(6):
        report = tell(answers=said, **columns)
        if not report["needs_answer"]:
            return report
        question = report["needs_answer"][0]
        said[question["field"].removeprefix("data.mapping.")] = question["choices"][0]
    raise AssertionError("asks without end")


@pytest.mark.parametrize(
    ("read", "written"),
    [("original_sentence", "rewritten_sentence"), ("noisy_text", "clean_text"), ("src_line", "tgt_line"),
     ("aufgabe", "lösung"), ("pregunta_cliente", "respuesta_cliente"), ("request", "reply_text"),
     ("nl", "cmd")],
)  # fmt: skip
def test_names_that_say_what_was_written_for_what_need_no_question(tell, read, written):
    report = tell(id=list(range(12)), **{read: TOLD, written: SAID})
    assert turns(report) == [("user", TOLD[0]), ("assistant", SAID[0])]
    assert 0.85 <= report["confidence"] <= 0.9


def test_what_was_decided_is_told(tell):
    report = tell(noisy_text=TOLD, clean_text=SAID)
    assert "data.evidence.pair" in str(report["reason"]) and report["confidence"] == 0.9


def test_questions_and_what_is_none_are_a_pair_whatever_their_names(tell):
    assert turns(tell(kolonne=ASKED, zeile=SAID)) == [("user", ASKED[0]), ("assistant", SAID[0])]


def test_a_second_column_that_could_be_the_answer_is_asked_about(tell):
    report = tell(request=TOLD, reply_text=SAID, reworded_text=WISH)
    assert report["needs_answer"]
    report = tell(source=TOLD, translation=SAID, reference=WISH, system=["Mill-B"] * 12)
    assert asked(report)["material"]


def test_sentences_that_would_be_left_out_are_asked_about(tell):
    assert tell(request=TOLD, reply_text=SAID, zusatz=WISH)["needs_answer"]


def test_a_translation_goes_both_ways(tell):
    assert tell(en=TOLD, de=SAID)["needs_answer"]


def test_a_label_beside_one_text_stays_a_question(tell):
    assert tell(tweet=TOLD, sentiment=["calm", "angry"] * 6)["needs_answer"]


def test_a_text_whose_origin_is_told_is_learned_as_it_stands(tell):
    lyrics = [f"{a} {b} {a}" for a, b in zip(TOLD, SAID, strict=True)]
    report = tell(
        title=[f"Song of the {ship}" for ship in SHIPS],
        artist=SHIPS,
        year=[*range(1980, 1992)],
        lyrics=lyrics,
    )
    assert report["mapping"] == {"text": "lyrics"} and not report["needs_answer"]
    report = tell(code=OLD, level=[1, 2, 3] * 4, name=SHIPS, problem_id=[*range(12)])
    assert report["mapping"] == {"text": "code"} and not report["needs_answer"]


def test_the_title_of_a_post_is_read_with_its_body(tell):
    report = tell(title=ASKED, question_body=TOLD, answer_body=SAID)
    assert turns(report) == [("user", f"{ASKED[0]}\n\n{TOLD[0]}"), ("assistant", SAID[0])]


def test_a_headline_with_its_date_is_no_answer_without_a_question(tell):
    origin = {
        "url": [f"https://quay.example/{n}" for n in range(12)],
        "date": [f"2020-01-{n + 1:02}" for n in range(12)],
    }
    assert tell(content=TOLD, headline=[f"Barge {ship} waits at the quay" for ship in SHIPS], **origin)[
        "needs_answer"
    ]


def test_a_talk_that_is_answered_is_learned_whatever_answers_are_checked_against(tell):
    talk = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}]
            for a, b in zip(ASKED, SAID, strict=True)]  # fmt: skip
    for name in ("ground_truth", "original_solution"):
        assert turns(tell(messages=talk, **{name: TOLD})) == [("user", ASKED[0]), ("assistant", SAID[0])]


def test_what_was_noted_of_each_turn_of_a_talk_is_left_out(tell):
    talk = [[{"speaker": "user", "text": a}, {"speaker": "system", "text": b}]
            for a, b in zip(ASKED, SAID, strict=True)]  # fmt: skip
    states = [[{"triples": [f"{ship} lies at the quay of Brenn for {n} days"]}, {"triples": ["none"]}]
              for n, ship in enumerate(SHIPS)]  # fmt: skip
    report = tell([{"turns": a, "states": b} for a, b in zip(talk, states, strict=True)], file="rows.jsonl")
    assert turns(report) == [("user", ASKED[0]), ("assistant", SAID[0])]


def test_a_question_beside_one_instruction_for_all_is_read_with_it(tell):
    orders = ["Answer from the log of the harbour."] * 12
    prompts = [f"{orders[0]} {a} {b} So:" for a, b in zip(ASKED, TOLD, strict=True)]
    report = tell(question=ASKED, context=TOLD, answer=SAID, instruction=orders, prompt=prompts)
    said = turns(report)
    assert ASKED[0] in said[0][1] and TOLD[0] in said[0][1] and said[-1] == ("assistant", SAID[0])


def test_who_thought_wrote_the_answer(tell):
    report = tell(problem=ASKED, ground_truth_solution=TOLD, quill_solution=SAID, quill_reasoning=WISH)
    assert asked(report)["completion"][0] == "quill_solution"


def test_a_hallucinated_answer_is_none(tell):
    report = tell(Question=ASKED, **{"Ground Truth": SAID, "Hallucinated Answer": WISH})
    assert report["mapping"].get("completion") != "Hallucinated Answer"


def test_a_template_that_is_the_same_in_all_rows_is_no_question(tell):
    report = tell(prompt_template=["Write it down: {text}"] * 12, request=TOLD, reply_text=SAID)
    assert turns(report) == [("user", TOLD[0]), ("assistant", SAID[0])]


def test_an_address_is_no_question(tell):
    sources = [f"https://quay.example/{n}" for n in range(12)]
    report = tell(name=SHIPS, code=OLD, source=sources, author=SHIPS[::-1])
    assert report["mapping"] == {"text": "code"} and not report["needs_answer"]


def test_published_code_and_its_description_are_written_both_ways(tell):
    origin = {"author": SHIPS, "license": ["mit", "cc"] * 6}
    assert tell(description=TOLD, code=OLD, **origin)["needs_answer"]


def test_a_label_of_pages_whose_address_and_date_are_told_is_a_question(tell):
    pages = [f"{a} {b} {a} {b}" for a, b in zip(TOLD, SAID, strict=True)]
    origin = {"url": [f"https://quay.example/{n}" for n in range(12)], "domain": ["quay.example"] * 12}
    assert tell(text=pages, label=["high", "low", "middle"] * 4, **origin)["needs_answer"]


def test_who_asks_and_who_helps_are_question_and_answer(tell):
    assert turns(tell(Patient=TOLD, Doctor=SAID)) == [("user", TOLD[0]), ("assistant", SAID[0])]
    report = tell(question=ASKED, answer=SAID, doctor=SHIPS)
    assert turns(report) == [("user", ASKED[0]), ("assistant", SAID[0])]


def test_a_table_of_two_columns_without_names_holds_flash_cards(tell):
    rows = [{"a": f"barge {ship}", "b": said} for ship, said in zip(SHIPS, SAID, strict=True)]
    assert turns(tell(rows, file="rows.csv")) == [("user", "barge Alma"), ("assistant", SAID[0])]


def test_lists_of_what_was_written_for_a_text_are_learned(tell):
    report = tell(text=TOLD, paraphrases=[[one, one + " So it was."] for one in SAID], source=["log"] * 12)
    assert turns(report) == [("user", TOLD[0]), ("assistant", SAID[0])]


def test_both_halves_around_a_table_are_read_with_the_question(tell):
    table = [[["ship", "days"], [ship, str(n)]] for n, ship in enumerate(SHIPS)]
    days = [f"{n} days" for n in range(12)]
    report = tell(pre_text=TOLD, post_text=WISH, table=table, question=ASKED, answer=days)
    assert not report["needs_answer"] and {"pre_text", "post_text", "table"} <= {*report["mapping"].values()}
