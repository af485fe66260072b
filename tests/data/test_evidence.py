"""What is read without a question since names, cells and how columns hang together say the same; and what is asked."""

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe

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
     ("aufgabe", "lösung"), ("user", "ai"), ("pregunta_cliente", "respuesta_cliente"), ("request", "reply_text"),
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
    assert tell(tweet=TOLD, sentiment=["calm", "angry"] * 6, category=["sail", "quay", "mill"] * 4)[
        "needs_answer"
    ]


def test_a_text_that_holds_the_answers_is_read_before_the_question(tell):
    report = tell(question=ASKED, answer=[f"{n + 2} days" for n in range(12)], logbuch=TOLD)
    assert turns(report) == [("user", f"{TOLD[0]}\n\n{ASKED[0]}"), ("assistant", "2 days")]


def test_a_remark_on_a_change_is_learned_and_not_the_change(tell):
    report = tell(patch=DIFF, reviewer_comment=WISH)
    assert turns(report) == [("user", DIFF[0]), ("assistant", WISH[0])]
    report = first_choices(tell, issue_body=TOLD, pr_body=SAID, diff_hunk=DIFF, comment=WISH)
    assert report["mapping"]["prompt"] == "diff_hunk" and report["mapping"]["completion"] == "comment"


def test_words_beside_old_and_new_code_say_what_to_change(tell):
    words = [f"Shorten {n}" for n in range(12)]
    report = tell(old_code=OLD, new_code=NEW, subject=words)
    (_, read), (_, learned) = turns(report)
    assert words[0] in read and OLD[0] in read and learned == NEW[0]


def test_both_sides_of_a_gap_are_read(tell):
    front = [f"import math\n\ndef area_{n}(r):\n" for n in range(12)]
    back = [f"    return value * {n}\n" for n in range(12)]
    middle = [f"    value = math.pi * r ** {n}" for n in range(12)]
    report = first_choices(tell, statement=TOLD, prefix=front, suffix=back, middle=middle)
    said = report["preview"][0]["messages"]
    assert front[0].strip() in said[0]["content"] and back[0].strip() in said[0]["content"]
    assert said[1]["content"].strip() == middle[0].strip()


def test_feedback_answers_a_learners_work_and_the_assignment_is_read_with_it(tell):
    task = [f"Say why the {ship} had to wait." for ship in SHIPS]
    report = tell(assignment=task, student_answer=TOLD, mark=[n % 5 for n in range(12)], feedback=WISH)
    assert turns(report) == [("user", f"{task[0]}\n\n{TOLD[0]}"), ("assistant", WISH[0])]


def test_a_query_is_learned_and_not_what_it_gives(tell):
    queries = [f"SELECT berth FROM quay WHERE day > {n}" for n in range(12)]
    report = tell(question=ASKED, sql=queries, answer=[{"berth": ["A", "B"]}] * 12)
    assert asked(report)["completion"][0] == "sql" and report["confidence"] <= 0.8


def test_a_stance_is_learned_and_not_its_target(tell):
    report = first_choices(
        tell, post=TOLD, target=["quay", "sail"] * 6, stance=["for", "against", "none"] * 4
    )
    assert report["mapping"]["completion"] == "stance"


def test_a_class_in_a_table_without_a_header_is_the_answer_and_title_and_text_are_read(tell):
    titles = [f"Barge {ship} waits at the quay" for ship in SHIPS]
    rows = [{"a": n % 3 + 1, "b": titles[n], "c": TOLD[n]} for n in range(12)]
    said = {}
    while (report := tell(rows, file="rows.csv", answers=said))["needs_answer"]:
        question = report["needs_answer"][0]
        said[question["field"].removeprefix("data.mapping.")] = question["choices"][0]
    assert turns(report) == [("user", f"{titles[0]}\n\n{TOLD[0]}"), ("assistant", "1")]


def test_good_and_bad_answers_beside_a_prompt_are_a_preference_and_found_texts_are_none(tell):
    report = tell(prompt=ASKED, pos=SAID, neg=WISH)
    assert report["preview"][0]["kind"] == "preference" and report["mapping"]["rejected"] == "neg"
    with pytest.raises(StudioError):
        tell(query=ASKED, pos=SAID, neg=WISH)


def test_questions_and_queries_in_turn_are_a_talk(tell):
    talk = [{"utterance": ASKED[0], "query": "SELECT day FROM quay"}, {"utterance": "And at night?", "query":
             "SELECT night FROM quay"}]  # fmt: skip
    report = tell([{"db": "port", "interaction": talk}] * 6)
    assert [words for _, words in turns(report)] == [ASKED[0], "SELECT day FROM quay", "And at night?",
                                                     "SELECT night FROM quay"]  # fmt: skip


def test_two_sentences_a_round_are_said_in_turn(tell):
    rounds = [{"mood": "calm", "visitor_line": ASKED[0], "keeper_line": SAID[0]},
              {"mood": "glad", "visitor_line": "And then what?", "keeper_line": WISH[0]}]  # fmt: skip
    said = turns(tell([{"rounds": rounds}] * 6))
    assert said == [
        ("user", ASKED[0]),
        ("assistant", SAID[0]),
        ("user", "And then what?"),
        ("assistant", WISH[0]),
    ]


def test_a_ticket_names_who_asked(tell):
    notes = [
        {"author_id": 31, "body": TOLD[0], "public": True},
        {"author_id": 4, "body": SAID[0], "public": True},
    ]
    rows = [{"id": n, "subject": "Torn sail", "requester_id": 31, "description": TOLD[0], "comments": notes}
            for n in range(6)]  # fmt: skip
    assert turns(tell(rows)) == [("user", TOLD[0]), ("assistant", SAID[0])]


def test_a_log_with_a_flag_for_the_speaker_is_one_talk(tell):
    head = {"user_name": "You", "character_name": "Ilka"}
    rows = [{"name": ("Ilka", "You")[n % 2], "is_user": bool(n % 2), "mes": TOLD[n]} for n in range(1, 9)]
    said = turns(tell([head, *rows]))
    assert len(said) == 8 and said[:2] == [("user", TOLD[1]), ("assistant", TOLD[2])]


def test_lists_of_questions_without_answers_are_refused(tell):
    with pytest.raises(StudioError) as refused:
        tell(nr=list(range(12)), topic=["sail", "quay"] * 6, turns=[[one, "And why?"] for one in ASKED])
    assert refused.value.what.id == "data.sniff.unanswered"


def test_nothing_is_asked_of_talks_without_an_answer(tell):
    rows = [{"vars": {"messages": [{"role": "user", "content": one}]}, "assert": [{"type": "equals", "value": two}]}
            for one, two in zip(ASKED, SAID, strict=True)]  # fmt: skip
    report = tell(rows)
    assert not report["needs_answer"] and not report["rows_used"]


def test_a_thinking_column_with_a_longer_name_is_read_as_thoughts(tell):
    report = tell(question=ASKED, answer=SAID, model_thinking_trace=TOLD)
    assert not report["needs_answer"] and report["mapping"]["reasoning"] == "model_thinking_trace"


def test_words_on_code_and_code_are_written_both_ways(tell):
    assert tell(documentation=TOLD, snippet=NEW)["needs_answer"]


def test_a_chain_of_thought_is_one_word_however_it_is_spelled(tell):
    report = tell(Question=ASKED, Deep_CoT=TOLD, Response=SAID)
    assert not report["needs_answer"] and report["mapping"]["reasoning"] == "Deep_CoT"


@pytest.mark.parametrize(
    ("short", "long"), [("terme", "définition"), ("word", "meaning"), ("keywords", "description")]
)
def test_what_is_explained_is_read_and_the_explanation_learned(tell, short, long):
    terms = [f"sail of the {ship}" for ship in SHIPS]
    assert turns(tell(**{long: TOLD, short: terms})) == [("user", terms[0]), ("assistant", TOLD[0])]


def test_a_message_is_learned_from_changes_in_a_list(tell):
    changes = [[{"old_path": "a.py", "diff": one}] for one in DIFF]
    report = tell(hash=[f"{n:08x}" for n in range(12)], message=WISH, mods=changes)
    said = turns(report)
    assert DIFF[0].splitlines()[1] in said[0][1] and said[1] == ("assistant", WISH[0])


def test_lists_of_rewritten_texts_are_learned(tell):
    assert turns(tell(original=TOLD, simplifications=[[one, "It lay there."] for one in SAID]))[1] == (
        "assistant",
        SAID[0],
    )


def test_as_many_answers_in_an_object_as_questions_in_a_list_are_a_talk(tell):
    rows = [{"context": TOLD[n], "questions": [ASKED[n], "Who waited?"],
             "orig_answers": {"texts": [f"{n + 2} days", "the crew"], "answer_starts": [3, 9]}}
            for n in range(8)]  # fmt: skip
    said = turns(tell(rows))
    assert [words for _, words in said[1:]] == ["2 days", "Who waited?", "the crew"]


def test_an_issue_is_its_text_and_the_comments_of_others(tell):
    rows = [{"number": n, "title": "Torn sail", "body": TOLD[n], "user": {"login": "ilka"},
             "comments": [{"user": {"login": "bo"}, "body": SAID[n]}]} for n in range(6)]  # fmt: skip
    assert turns(tell(rows)) == [("user", TOLD[0]), ("assistant", SAID[0])]


def test_messages_that_begin_with_the_latest_are_turned_round(tell):
    rows = [{"sender_name": ("Ilka", "Bo")[n % 2], "timestamp_ms": 1700000000000 - n * 1000, "content": TOLD[n]}
            for n in range(10)]  # fmt: skip
    assert tell(rows)["preview"][0]["messages"][0]["content"] == TOLD[9]


def test_the_only_sentences_of_numbered_posts_are_the_words_of_a_thread(tell):
    rows = [{"topic_id": n // 2, "post_number": n % 2 + 1, "username": ("ilka", "bo")[n % 2], "raw": TOLD[n]}
            for n in range(12)]  # fmt: skip
    said = tell(rows)["preview"][0]["messages"]
    assert [one["content"] for one in said] == TOLD[:2]


def test_two_numbered_texts_and_a_mark_are_compared(tell):
    report = first_choices(tell, **{"mark": [n % 2 for n in range(12)], "#1 Line": TOLD, "#2 Line": SAID,
                                    "quality": [n % 2 for n in range(12)]})  # fmt: skip
    assert report["mapping"]["completion"] == "quality" and report["mapping"]["material"] == "#2 Line"


def test_a_reference_in_sentences_is_learned_and_one_to_be_checked_is_asked_about(tell):
    assert turns(tell(question=ASKED, reference_answer=SAID)) == [("user", ASKED[0]), ("assistant", SAID[0])]
    assert tell(question=ASKED, reference_answer=[str(n) for n in range(12)])["needs_answer"]


def test_a_label_that_says_whether_an_answer_fits_is_asked_about(tell):
    report = tell(question=ASKED, answer=SAID, label=[n % 2 for n in range(12)], topic=["sail"] * 12)
    assert report["needs_answer"] or report["preview"][0]["kind"] == "kto"
    report = tell(query=ASKED, code=NEW, label=["0", "1"] * 6)
    assert report["needs_answer"]


@pytest.mark.parametrize(
    ("read", "written"), [("log", "root_cause"), ("clause", "plain_words"), ("task", "formula")]
)
def test_causes_plain_words_and_formulas_are_written_for_what_stands_beside(tell, read, written):
    report = first_choices(tell, **{read: TOLD, written: SAID})
    assert report["mapping"] == {"prompt": read, "completion": written}


def test_an_answer_with_a_name_of_its_own_is_learned_beside_a_question_that_is_called_so(tell):
    assert turns(tell(prompt=TOLD, poem=SAID)) == [("user", TOLD[0]), ("assistant", SAID[0])]
    queries = [f"SELECT name FROM ships WHERE days > {n}" for n in range(12)]
    report = tell(**{"question": ASKED, "sql statement": queries, "question style": ["a", "b"] * 6})
    assert turns(report) == [("user", ASKED[0]), ("assistant", queries[0])]


@pytest.mark.parametrize("name", ["negative_prompt", "distractor", "hint_text"])
def test_what_is_no_answer_by_its_name_is_asked_about(tell, name):
    assert tell(prompt=TOLD, **{name: SAID})["needs_answer"]


def test_a_description_beside_code_and_a_headline_beside_a_summary_are_asked_about(tell):
    assert asked(tell(docstring=WISH, code=NEW))["prompt"] == ["docstring", "code"]
    assert asked(tell(text=TOLD, summary=SAID, headline=WISH))["completion"][0] == "summary"


def test_thumbs_beside_an_answer_are_asked_about_and_lead_to_good_and_bad_answers(tell):
    columns = {"user_message": ASKED, "bot_message": SAID, "thumbs_up": [True, False] * 6}
    assert tell(**columns)["needs_answer"]
    assert first_choices(tell, **columns)["preview"][0]["kind"] == "kto"


def test_a_table_that_may_be_the_answer_to_a_query_is_asked_about(tell):
    queries = [f"SELECT name FROM ships WHERE days > {n}" for n in range(12)]
    found = [{"name": [ship], "days": [n]} for n, ship in enumerate(SHIPS)]
    assert tell(question=ASKED, sql=queries, answer=found)["needs_answer"]


def test_a_result_that_stands_in_its_solution_is_no_second_answer(tell):
    solved = [f"{said} So the answer is {n}." for n, said in enumerate(SAID)]
    report = tell(problem=ASKED, answer=[*map(str, range(12))], solution=solved)
    assert turns(report) == [("user", ASKED[0]), ("assistant", solved[0])]


def test_generated_answers_beside_a_chosen_one_are_left_out(tell):
    rows = [{"prompt": one, "all_generated_responses": [said, told, f"{told} Truly."], "chosen": said, "rejected": told}
            for one, said, told in zip(ASKED, SAID, TOLD, strict=True)]  # fmt: skip
    report = tell(rows)
    assert not report["needs_answer"] and report["preview"][0]["kind"] == "preference"


def test_an_order_to_rewrite_is_read_with_what_is_rewritten(tell):
    found = turns(tell(original_text=TOLD, rewrite_prompt=WISH, rewritten_text=SAID))
    assert TOLD[0] in found[0][1] and WISH[0] in found[0][1] and found[1] == ("assistant", SAID[0])


def test_a_column_that_holds_question_and_answer_is_not_read_before_the_answer(tell):
    whole = [f"FINDINGS: {told} IMPRESSION: {said}" for told, said in zip(TOLD, SAID, strict=True)]
    report = first_choices(tell, findings=TOLD, impression=SAID, report=whole)
    assert SAID[0] not in report["preview"][0]["messages"][0]["content"]


def test_a_topic_beside_a_text_is_asked_about(tell):
    topics = [f"How sails of the {ship} are sewn" for ship in SHIPS]
    report = tell(topic=topics, text=[f"{told} {said}" * 3 for told, said in zip(TOLD, SAID, strict=True)])
    assert report["needs_answer"][0]["choices"][0] == "prompt_completion"


def test_faulty_code_is_mended(tell):
    assert turns(tell(faulty_code=OLD, correct_code=NEW)) == [("user", OLD[0]), ("assistant", NEW[0])]


def test_a_truth_in_sentences_is_learned_and_the_text_that_was_found_is_read(tell):
    found = [f"{told} {said} Nobody else was there." * 4 for told, said in zip(TOLD, WISH, strict=True)]
    report = first_choices(tell, ideal_rag=found, question=ASKED, ground_truth=SAID)
    asked, said = (turn["content"] for turn in report["preview"][0]["messages"])
    assert found[0] in asked and ASKED[0] in asked and said == SAID[0]


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


def test_a_rationale_leads_to_a_short_answer_and_an_explanation_may_follow_it(tell):
    short = [f"{n + 2} days" for n in range(12)]
    report = tell(question=ASKED, answer=short, rationale=SAID)
    assert report["mapping"]["reasoning"] == "rationale" and not report["needs_answer"]
    assert tell(question=ASKED, answer=short, explanation=SAID)["needs_answer"]
    assert tell(question=ASKED, answer=TOLD, rationale=SAID)["needs_answer"]


def test_what_ends_with_the_answer_is_not_read_before_the_question(tell):
    marks = [f"{n + 200} boxes" for n in range(12)]
    tries = [f"{TOLD[n]} {SAID[n]} {WISH[n]} So it needs {mark}" for n, mark in enumerate(marks)]
    report = tell(question=ASKED, solution=marks, attempt=tries)
    assert "material" not in report["mapping"]
    assert asked(report).get("material", [""])[0] == ""


def test_a_question_in_two_languages_is_asked_once(tell):
    other = [f"Wie lange lag die {ship} am Kai?" for ship in SHIPS]
    report = first_choices(tell, prompt_en=ASKED, prompt_de=other, code=OLD)
    assert report["mapping"] == {"prompt": "prompt_en", "completion": "code"}


def test_options_from_elsewhere_are_not_read(tell):
    own = [[ship, SHIPS[n - 1], SHIPS[n - 2]] for n, ship in enumerate(SHIPS)]
    more = [[SHIPS[n - 3], SHIPS[n - 4], ship] for n, ship in enumerate(SHIPS)]
    report = tell(question=WISH, answer=SHIPS, options=own, other_options=more)
    assert not report["needs_answer"] and "material" not in report["mapping"]


def test_code_that_was_written_for_a_prompt_is_learned_and_its_tests_are_not_asked_about(tell):
    report = tell(prompt=WISH, code=OLD, test_list=[[f"assert load([{n}]) == {n}"] for n in range(12)])
    assert report["mapping"] == {"prompt": "prompt", "completion": "code"} and not report["needs_answer"]


def test_a_name_in_front_of_the_only_text_is_what_it_was_written_for(tell):
    texts = [f"{a} {b} {c}" for a, b, c in zip(TOLD, SAID, WISH, strict=True)]
    report = tell(act=[f"Keeper of the {ship}" for ship in SHIPS], prompt=texts)
    assert [asked(report)[role][0] for role in ("prompt", "completion")] == ["act", "prompt"]


def test_a_label_of_two_texts_is_learned_though_one_is_called_a_reply(tell):
    report = first_choices(tell, source_text=TOLD, reply_text=SAID, label=[0, 1, 2] * 4)
    assert report["mapping"] == {"prompt": "source_text", "completion": "label", "material": "reply_text"}


def test_weights_of_rows_count_and_those_of_things_do_not(tell):
    weights = [1.0, 0.5, 0.25] * 4
    report = tell(prompt=ASKED, response=TOLD, sample_weight=weights)
    assert report["mapping"]["weight"] == "sample_weight" and not report["needs_answer"]
    assert [row["messages"][-1].get("weight", 1) for row in report["preview"]] == weights[:2]
    assert tell(prompt=ASKED, response=TOLD, weight=weights)["mapping"]["weight"] == "weight"
    assert "weight" not in tell(prompt=ASKED, response=TOLD, weight=[60 + n for n in range(12)])["mapping"]


def test_a_row_whose_weight_is_no_number_is_set_aside(tell):
    weights = ["0.5", "1", *["2"] * 9, "much"]
    report = tell(prompt=ASKED, response=TOLD, sample_weight=weights)
    assert report["rows_used"] == 11 and report["problems"][0]["code"] == "E135"


def test_turns_beside_a_column_that_is_called_no_answer_are_asked_about(tell):
    report = tell(prompt=[[{"role": "user", "content": one}] for one in ASKED], note=SAID)
    assert asked(report)["completion"][0] == "note"


def test_texts_that_were_found_are_no_answers_to_choose_from(tell):
    found = [[{"title": "Quay", "text": one, "score": 9}, {"title": "Mill", "text": two, "score": 2}]
             for one, two in zip(TOLD, SAID, strict=True)]  # fmt: skip
    rows = [{"question": ASKED[n], "answers": [f"{n} days"], "ctxs": found[n]} for n in range(12)]
    report = tell(rows)
    assert report["format"] != "preference"


def test_feedback_is_learned_also_beside_a_model_answer_and_a_verdict(tell):
    columns = {"question": ASKED, "reference_answer": TOLD, "provided_answer": SAID, "answer_feedback": WISH,
               "verification_feedback": ["Correct", "Incorrect", "Partially correct"] * 4}  # fmt: skip
    report = first_choices(tell, **columns)
    assert report["format"] == "prompt_completion" and report["mapping"]["prompt"] == "provided_answer"
    assert (
        report["mapping"]["completion"] == "answer_feedback" and report["mapping"]["material"] == "question"
    )


def test_a_review_with_stars_and_a_headline_is_asked_about(tell):
    report = tell(
        id=[*range(12)],
        product=["tent", "sail"] * 6,
        star_rating=[1, 2, 3, 4, 5, 1] * 2,
        review_headline=[f"Nice {ship}" for ship in SHIPS],
        review_body=[f"{one} {two}" for one, two in zip(TOLD, SAID, strict=True)],
        review_date=[f"2015-08-{n + 10}" for n in range(12)],
    )
    assert report["needs_answer"]


def test_the_words_of_classes_are_learned_and_not_their_numbers(tell, tmp_path):
    kinds = ["drama", "comedy", "thriller"]
    rows = [{"text": TOLD[n % 12], "genre": kinds[n % 3], "label": n % 3} for n in range(24)]
    tell(rows)
    report = describe(DatasetSpec(source=str(tmp_path / "rows.jsonl"), format="prompt_completion"), rows=1)
    assert report["mapping"]["completion"] == "genre"


def test_questions_and_nested_answers_in_turn_are_a_talk(tell):
    rows = [
        {
            "context": TOLD[n],
            "questions": [ASKED[n], "And then?"],
            "answers": {"texts": [[SAID[n]], [WISH[n]]], "answer_starts": [[0], [9]]},
        }
        for n in range(12)
    ]
    assert [words for role, words in turns(tell(rows)) if role == "assistant"] == [SAID[0], WISH[0]]


def test_small_letters_mark_options(tell):
    report = tell(
        Problem=ASKED,
        Rationale=[f"{one} So it is so." for one in SAID],
        options=[f"a ) {n} , b ) {n + 9} , c ) {n + 30} , d ) none of these" for n in range(12)],
        correct=["a", "b", "c", "b"] * 3,
        annotated_formula=[f"multiply({n}, 9)" for n in range(12)],
    )
    assert report["mapping"]["completion"] == "correct" and turns(report)[-1][1] == "0"
