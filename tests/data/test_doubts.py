"""Columns whose names fit are asked about where the others say something else."""

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
NOTES = [
    f"The {ship} lay {n + 2} days at the quay of Brenn with a torn sail, and nobody came."
    for n, ship in enumerate(SHIPS)
]
TALKS = [
    f"Keeper: How long is the {ship} here? Mate: For {n + 2} days, the sail is torn."
    for n, ship in enumerate(SHIPS)
]
SUMS = [f"{ship}: sail torn, {n + 2} days" for n, ship in enumerate(SHIPS)]
CODE = [f"int load_{n}(int boxes) {{\n  return boxes * {n};\n}}\n" for n in range(12)]
TESTS = [f"TEST(Load, Works{n}) {{\n  EXPECT_EQ(load_{n}(2), {n * 2});\n}}\n" for n in range(12)]


def test_a_summary_of_one_of_two_texts_is_asked_about(tell):
    assert tell(conversation=TALKS, note=NOTES, summary=SUMS)["needs_answer"]
    assert not tell(conversation=TALKS, summary=SUMS)["needs_answer"]


def test_a_longer_text_that_sums_up_the_same_competes_with_a_headline(tell):
    words = [f"{ship}holm {ship}werft {ship}segel {ship}kranz" for ship in SHIPS]
    texts = [
        f"{note} {one} were seen there, says the keeper. {talk}"
        for note, one, talk in zip(NOTES, words, TALKS, strict=True)
    ]
    heads = [f"News of the {ship} at Brenn" for ship in SHIPS]
    sums = [f"{one} seen at Brenn" for one in words]
    assert tell(content=texts, headline=heads, brief=sums)["needs_answer"]
    assert not tell(content=texts, headline=heads)["needs_answer"]


def test_tests_are_written_for_code_and_not_code_for_tests(tell):
    report = tell(**{"Code": CODE, "Unit Test - (Ground Truth)": TESTS})
    asked = {one["field"]: one["choices"][0] for one in report["needs_answer"]}
    assert asked.get("data.mapping.prompt", report["mapping"].get("prompt")) == "Code"
    assert (
        asked.get("data.mapping.completion", report["mapping"].get("completion"))
        == "Unit Test - (Ground Truth)"
    )


def test_a_format_of_which_no_row_can_be_read_is_not_certain(tell):
    rows = [{"messages": [{"role": "user", "content": note}], "others": n} for n, note in enumerate(NOTES)]
    assert tell(rows)["confidence"] < 0.5


def test_an_answer_that_holds_question_and_answer_is_no_first_choice(tell):
    asked = [f"How long does the {ship} lie at the quay?" for ship in SHIPS]
    raw = [f"<output>Q: {ask} A: {note}</output>" for ask, note in zip(asked, NOTES, strict=True)]
    report = tell(question=asked, self_answer=NOTES, raw_response=raw)
    assert report["needs_answer"][0]["choices"][0] == "self_answer"


def test_a_safe_answer_goes_before_an_unsafe_one(tell):
    asked = [f"How is the {ship} sunk?" for ship in SHIPS]
    report = tell(**{"question": asked, "unsafe generation": TALKS, "safe generation": NOTES})
    found = [one["choices"][0] for one in report["needs_answer"]] + [*report["mapping"].values()]
    assert "safe generation" in found and "unsafe generation" not in found


def test_a_decision_beside_a_long_answer_is_asked_about(tell):
    asked = [f"Does the {ship} lie at the quay?" for ship in SHIPS]
    report = tell(question=asked, long_answer=NOTES, final_decision=["yes", "no", "maybe"] * 4)
    assert report["needs_answer"][0]["choices"][0] == "long_answer"
    assert not tell(question=asked, long_answer=NOTES, kind=["yes", "no", "maybe"] * 4)["needs_answer"]
