"""What becomes of columns beside a question and its answer: read before it, left out, or asked about."""

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
ASKED = [f"How long did the {ship} lie at the quay?" for ship in SHIPS]
SAID = [
    f"The {ship} lay there for {n + 2} days until her sail was sewn again." for n, ship in enumerate(SHIPS)
]
WORSE = [f"Nobody at the quay remembers a ship that is called {ship}." for ship in SHIPS]
OTHER = [f"Wie lange lag die {ship} denn damals am Kai von Brenn?" for ship in SHIPS]
OLD = [f"def load(boxes):\n    total = {n}\n    return total + sum(boxes)\n" for n in range(12)]
NEW = [code.replace("    return", "    # all boxes\n    return") for code in OLD]


def first(report):
    return {one["field"].removeprefix("data.mapping."): one["choices"][0] for one in report["needs_answer"]}


def test_another_version_of_a_column_in_use_is_rather_left_out(tell):
    report = tell(instruction=OTHER, accepted=SAID, rejected=WORSE, instruction_orig=ASKED)
    assert not report["needs_answer"]
    assert report["mapping"] == {"prompt": "instruction", "chosen": "accepted", "rejected": "rejected"}


def test_notes_and_objects_of_unknown_names_are_rather_left_out(tell):
    kinds = [{"major": ["questions of the quay"], "minor": [f"how long the {ship} lay"]} for ship in SHIPS]
    report = tell(instruction=ASKED, input=[""] * 12, output=SAID, sorted_as=kinds)
    assert "material" not in report["mapping"] and first(report) in ({}, {"material": ""})
    told = [[{"kind": "single", "said": said} for said in SAID[n : n + 2]] for n in range(12)]
    report = tell(question=ASKED, annotations=told, answer=SAID)
    assert "material" not in report["mapping"] and first(report) in ({}, {"material": ""})


def test_old_code_is_read_also_where_the_new_code_holds_its_lines(tell):
    report = tell(
        old_contents=OLD, new_contents=NEW, subject=[f"Note what is summed, part {n}" for n in range(12)]
    )
    assert report["mapping"]["completion"] == "new_contents"
    assert "old_contents" in {*report["mapping"].values()} | {*first(report).values()}


def test_halves_of_a_text_in_lists_are_read_both(tell):
    before = [[f"The {ship} came in March.", "It was foggy at the quay of Brenn."] for ship in SHIPS]
    after = [[f"The crew of the {ship} went on in May, when the ice was gone."] for ship in SHIPS]
    report = tell(question=ASKED, answer=SAID, pre_text=before, post_text=after)
    choices = (
        report["needs_answer"][0]["choices"] if report["needs_answer"] else [*report["mapping"].values()]
    )
    assert {"pre_text", "post_text"} <= {*choices}


def test_what_a_yes_or_no_is_said_of_is_asked_about(tell):
    words = [[ship, "quay"] for ship in SHIPS]
    rows = {"abst": SAID, "keyword": words, "label": ["0", "1"] * 6}
    report = tell(answers={"prompt": "abst", "completion": "label"}, **rows)
    assert report["needs_answer"][0]["choices"][0] == "keyword"


def test_another_question_is_rather_left_out(tell):
    again = [f"And where did the {ship} lie in the year before?" for ship in SHIPS]
    report = tell(question=ASKED, answer=SAID, question_on_last_hop=again)
    assert first(report) in ({}, {"material": ""})


def test_the_truth_beside_a_talk_is_rather_left_out(tell):
    talks = [[{"role": "user", "content": ask}, {"role": "assistant", "content": bad}]
             for ask, bad in zip(ASKED, WORSE, strict=True)]  # fmt: skip
    report = tell(conversation=talks, ground_truth=[f"{said} {said}" for said in SAID])
    assert "ground_truth" not in {*report["mapping"].values(), *first(report).values()}


def test_feedback_and_the_truth_beside_an_answer_may_be_what_is_learned(tell):
    remarks = [f"The answer counts {n + 2} days, but the log of the ship has one more." for n in range(12)]
    report = tell(question=ASKED, answer=SAID, feedback=remarks)
    (asked,) = report["needs_answer"]
    assert asked["field"] == "data.mapping.completion" and asked["choices"] == ["answer", "feedback"]
    report = tell(query=ASKED, response=WORSE, ground_truth=SAID)
    (asked,) = report["needs_answer"]
    assert asked["field"] == "data.mapping.completion" and {*asked["choices"]} == {"response", "ground_truth"}


def test_two_texts_that_are_compared_do_not_answer_each_other(tell):
    for names in (("A", "B"), ("left_text", "right_text")):
        report = tell(**dict(zip(names, (SAID, WORSE), strict=True)), how_fluent=["4", "5", "3"] * 4)
        assert report["needs_answer"]


def test_the_name_of_a_person_asks_nothing(tell):
    people = [f"@{ship.lower()}" for ship in SHIPS]
    report = tell(query=ASKED, response=SAID, user=people)
    assert report["mapping"]["prompt"] == "query"


def test_what_an_annotator_decided_is_no_answer(tell):
    spans = [[{"start": 17, "end": 17 + len(ship), "label": "SHIP"}] for ship in SHIPS]
    report = tell(text=ASKED, spans=spans, answer=["accept"] * 12)
    assert report["needs_answer"] and "answer" not in report["mapping"].values()
