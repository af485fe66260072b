"""Shapes of small public files that were read wrongly once, in words of our own."""

import csv
import io
import json

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
ASKED = [f"How long did the {ship} lie at the quay of Brenn?" for ship in SHIPS]
SAID = [f"The {ship} lay {n + 2} days there with a torn sail." for n, ship in enumerate(SHIPS)]
WORSE = [f"Nobody knows much of the {ship}, ask the keeper." for ship in SHIPS]
LOGS = [
    f"Day {n + 1}: the {ship} came in at noon. Day {n + 3}: the sail was mended, and the crew ate on board. "
    f"Day {n + 4}: the {ship} went out with the tide and forty barrels of herring, says the keeper."
    for n, ship in enumerate(SHIPS)
]
TOPICS = [("ships", "weather", "food", "law")[n % 4] for n in range(12)]


def choices(report):
    return {one["field"].removeprefix("data.mapping."): one["choices"] for one in report["needs_answer"]}


def turns(report, part="messages"):
    return [(one["role"], one["content"]) for one in report["preview"][0][part]]


def talk(n, last="user"):
    said = [("user", ASKED[n]), ("assistant", SAID[n]), ("user", "And what did it load?")]
    said += [("assistant", "Herring.")] if last == "assistant" else []
    return [{"role": role, "content": words} for role, words in said]


def test_short_options_in_columns_are_options_and_no_material(tell):
    letters = {letter: [f"The {ship}'s {letter} mast" for ship in SHIPS] for letter in "ABCD"}
    answers = ["ABCD"[n % 4] for n in range(12)]
    report = tell(id=[*range(12)], question=ASKED, **letters, answer=answers, explanation=[""] * 12)
    assert report["needs_answer"] == [] and turns(report)[-1] == ("assistant", "The Alma's A mast")


def test_of_several_worse_answers_the_person_chooses_one(tell):
    columns = {"prompt": ASKED, "chosen": SAID, "rejected_rude": WORSE, "rejected_vague": LOGS}
    report = tell(**columns, was_flagged=[n % 2 == 0 for n in range(12)])
    assert report["format"] == "preference"
    assert choices(report)["rejected"] == ["rejected_rude", "rejected_vague"]
    told = tell(**columns, answers=(("rejected", "rejected_vague"),))
    assert told["format"] == "preference" and told["mapping"]["rejected"] == "rejected_vague"


@pytest.mark.parametrize("name", ["rejected_model", "rejected_score", "rejected_reason"])
def test_what_is_told_of_a_worse_answer_is_none(tell, name):
    report = tell(prompt=ASKED, chosen=SAID, **{name: [f"the {ship} kind of model" for ship in SHIPS]})
    assert report["mapping"].get("rejected") != name


def test_a_flag_with_a_verb_in_its_name_is_no_answer(tell):
    report = tell(
        prompt=ASKED,
        original_chosen=WORSE,
        teacher_draft=SAID,
        was_auto_fixed=[n % 2 == 0 for n in range(12)],
    )
    assert choices(report)["completion"][0] not in ("was_auto_fixed", "prompt")


def test_the_number_of_the_better_of_two_answers_makes_a_pair(tell):
    sides = [[{"text": SAID[n], "policy": "one"}, {"text": WORSE[n], "policy": "two"}] for n in range(12)]
    sides = [pair if n % 2 == 0 else pair[::-1] for n, pair in enumerate(sides)]
    report = tell(prompt=ASKED, summaries=sides, choice=[n % 2 for n in range(12)])
    assert report["format"] == "preference" and report["needs_answer"] == []
    assert turns(report, "chosen") == [("assistant", SAID[0])]
    assert turns(report, "rejected") == [("assistant", WORSE[0])]


def test_the_number_of_the_right_option_makes_none(tell):
    options = [[SAID[n], WORSE[n]] for n in range(12)]
    report = tell(question=ASKED, choices=options, choice=[n % 2 for n in range(12)])
    assert report["format"] != "preference"


def test_a_label_that_a_person_was_told_of_stands_first(tell):
    columns = {"Class Index": [1 + n % 4 for n in range(12)], "Title": SAID, "Description": LOGS}
    told = tell(**columns, format="prompt_completion")
    assert choices(told)["completion"][0] == "Class Index"


def test_what_was_measured_is_no_answer(tell):
    report = tell(text=LOGS, expected=TOPICS, predicted=TOPICS[::-1], latency_sec=[n / 7 for n in range(12)])
    assert "latency_sec" not in choices(report).get("completion", ())


def test_one_and_the_same_word_everywhere_is_nothing_to_learn(tell):
    report = tell(prompt_id=[f"{n}a" for n in range(12)], variant_kind=["plain"] * 12, wording=LOGS)
    assert "completion" not in choices(report)


def test_talks_that_end_with_a_question_are_prompts_first(tell):
    rows = [{"messages": talk(n), "plan": ("slow", "fast")[n % 2]} for n in range(12)]
    report = tell(rows)
    assert report["needs_answer"][0]["choices"][0] == "rl"
    answered = tell([{"messages": talk(n, "assistant")} for n in range(12)])
    assert answered["format"] == "messages" and answered["needs_answer"] == []


def test_the_fields_of_a_record_are_no_speakers(tmp_path):
    path = tmp_path / "found.json"
    path.write_text(
        json.dumps([f"Topic: {ship}\n\nQuestion: {asked}" for ship, asked in zip(SHIPS, ASKED, strict=True)])
    )
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert report["format"] == "text" and report["rows_used"] == 12


@pytest.mark.parametrize("outer", [lambda value: value, lambda value: {"intents": value}])
def test_objects_with_questions_and_answers_under_names_are_rows(tmp_path, outer):
    value = {
        ship: {"query": [ASKED[n], f"And the {ship}?"], "response": [SAID[n]]} for n, ship in enumerate(SHIPS)
    }
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(outer(value)))
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert report["mapping"] == {"prompt": "query", "completion": "response"} and report["rows_used"] == 24


def test_the_system_prompt_of_a_whole_file_is_in_every_row(tmp_path):
    path = tmp_path / "talks.json"
    rows = [{"conversations": talk(n, "assistant")} for n in range(12)]
    path.write_text(json.dumps({"system_prompt": "You are a keeper.", "conversations": rows}))
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert turns(report)[0] == ("system", "You are a keeper.") and len(turns(report)) == 5


def test_a_query_of_a_database_beside_a_question_is_asked_about(tell):
    queries = [
        f"SELECT DISTINCT ?x WHERE {{ ?x <http://q.org/lay> <http://q.org/{ship}> . }}" for ship in SHIPS
    ]
    report = tell(question=ASKED, spoken_answer=SAID, query=queries)
    assert report["mapping"] == {"prompt": "question", "completion": "spoken_answer"}
    assert choices(report)["material"] == ["", "query"]


def test_calls_and_facts_are_answers_as_they_stand(tell):
    calls = [[{"tool": "find_ship", "tool_input": json.dumps({"name": ship})}] for ship in SHIPS]
    report = tell(question=ASKED, answer=calls)
    assert report["needs_answer"] == [] and report["mapping"]["completion"] == "answer"
    assert json.loads(turns(report)[-1][1]) == calls[0]


def test_definitions_of_functions_alone_hold_nothing_to_learn(tell):
    with pytest.raises(StudioError):
        tell(
            [
                {"type": "function", "function": {"name": ship, "parameters": {"type": "object"}}}
                for ship in SHIPS
            ]
        )


def test_what_a_program_said_is_held_against_what_is_known(tell):
    report = tell(input=ASKED, output=WORSE, expected=[f"{n + 2} days" for n in range(12)])
    assert choices(report)["completion"] == ["expected", "output"]
    solved = tell(input=ASKED, output=SAID, expected=[f"{n + 2} days" for n in range(12)])
    assert solved["needs_answer"] == []


def test_a_way_and_its_result_are_thoughts_and_an_answer(tell):
    report = tell(question=ASKED, chain=LOGS, result=[str(n % 5 + 2) for n in range(12)])
    assert choices(report)["completion"] == ["result", "chain"]
    told = tell(
        question=ASKED,
        chain=LOGS,
        result=[str(n % 5 + 2) for n in range(12)],
        answers=(("completion", "result"),),
    )
    assert choices(told)["reasoning"] == ["chain", ""]


def test_an_answer_with_colons_in_it_is_no_talk(tell):
    steps = [
        f"Action: look up\nObservation: the {ship} is in\n- Song: {ship} — Band\nFinal: {said}"
        for ship, said in zip(SHIPS, SAID, strict=True)
    ]
    report = tell(reward=[0.5] * 12, completion=steps, prompt=ASKED)
    assert report["mapping"] == {"prompt": "prompt", "completion": "completion"}


def test_speakers_may_stand_below_each_other_without_a_line_between(tell):
    chosen = [f"Human: {asked}\nAssistant: {said}" for asked, said in zip(ASKED, SAID, strict=True)]
    rejected = [f"Human: {asked}\nAssistant: {said}" for asked, said in zip(ASKED, WORSE, strict=True)]
    report = tell(chosen=chosen, rejected=rejected)
    assert turns(report) == [("user", ASKED[0])] and turns(report, "chosen") == [("assistant", SAID[0])]


def test_a_short_note_behind_a_label_is_a_remark(tell):
    notes = [f"a case of the {ship} that is easy" for ship in SHIPS]
    report = tell(input=ASKED, expected_scope=TOPICS, note=notes)
    assert "note" not in report["mapping"].values()
    assert choices(report).get("material", [""])[0] == ""


def test_a_text_with_faults_goes_before_the_same_without(tmp_path):
    lines = [[str(1 + n % 2), said.replace("there", "ther"), said] for n, said in enumerate(SAID)]
    table = io.StringIO()
    csv.writer(table, delimiter="\t").writerows(lines)
    path = tmp_path / "pairs.tsv"
    path.write_text(table.getvalue())
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert choices(report)["prompt"][0] == "column_2" and choices(report)["completion"][0] == "column_3"
    told = describe(DatasetSpec(source=str(path), mapping={"prompt": "column_2"}), rows=1)
    assert choices(told)["completion"][0] == "column_3"


@pytest.mark.parametrize(
    "written",
    [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        "System: Be brief.\n\nHuman: {}\n\nAssistant:",
    ],
)
def test_prompts_that_a_template_wrote_are_turns_again(tell, written):
    end = "<|im_end|>" if "<|" in written else ""
    columns = {"chosen": [f"{one}{end}" for one in SAID], "rejected": [f"{one}{end}" for one in WORSE]}
    report = tell(prompt=[written.format(one) for one in ASKED], **columns)
    assert report["format"] == "preference" and turns(report) == [("system", "Be brief."), ("user", ASKED[0])]
    assert turns(report, "chosen") == [("assistant", SAID[0])]


def test_prompts_that_only_speak_of_turns_stay_as_they_are(tell):
    report = tell(prompt=[f"Human: is a word.\n{one}" for one in ASKED], chosen=SAID, rejected=WORSE)
    assert turns(report) == [("user", f"Human: is a word.\n{ASKED[0]}")]


def test_what_two_answers_were_written_for_may_stand_in_an_object(tell):
    sides = [[{"text": SAID[n]}, {"text": WORSE[n]}] for n in range(12)]
    rows = [
        {
            "info": {"id": f"t{n}", "post": LOGS[n]},
            "summaries": sides[n] if n % 2 else sides[n][::-1],
            "choice": (n + 1) % 2,
        }
        for n in range(12)
    ]
    report = tell(rows)
    assert report["format"] == "preference" and turns(report) == [("user", LOGS[0])]
    assert turns(report, "chosen") == [("assistant", SAID[0])]


def test_an_answer_of_facts_is_learned_with_all_of_them(tell):
    facts = [
        {"ship": ship, "days": str(n + 2), "load": ["herring", "salt"], "crew": []}
        for n, ship in enumerate(SHIPS)
    ]
    report = tell(input=LOGS, output=facts)
    assert report["needs_answer"] == [] and json.loads(turns(report)[-1][1]) == facts[0]


def test_a_pair_inside_of_an_output_is_a_pair(tell):
    pairs = [{"chosen": good, "rejected": bad} for good, bad in zip(SAID, WORSE, strict=True)]
    report = tell(instruction=["Answer."] * 12, input=ASKED, output=pairs)
    assert report["format"] == "preference" and turns(report, "chosen") == [("assistant", SAID[0])]


def test_a_target_with_names_and_colons_in_it_is_no_talk(tell):
    made = [
        f"Puzzle: {log}\nQuestion: {asked}\nAnswer: {n} days"
        for n, (log, asked) in enumerate(zip(LOGS, ASKED, strict=True))
    ]
    report = tell(input_text=[f"Make a puzzle of the {ship}" for ship in SHIPS], target_text=made)
    assert report["needs_answer"] == [] and turns(report)[-1] == ("assistant", made[0])


def test_rows_in_groups_of_groups_are_rows(tmp_path):
    rows = [{"id": str(n), "question": ASKED[n], "answer": SAID[n]} for n in range(12)]
    value = {"plain": {"one": {"easy": rows[:3], "hard": rows[3:6]}}, "mixed": {"two": {"easy": rows[6:]}}}
    path = tmp_path / "groups.json"
    path.write_text(json.dumps(value))
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert report["rows_used"] == 12 and report["mapping"] == {"prompt": "question", "completion": "answer"}


def test_a_label_of_marked_words_is_learned_and_not_the_marks(tell):
    marks = [{"word": ship, "other": "the keeper", "at": 4} for ship in SHIPS]
    report = tell(target=marks, label=[("true", "false")[n % 2] for n in range(12)], text=LOGS)
    assert report["mapping"].get("completion") != "target"


def test_a_label_of_two_texts_is_asked_about_with_both(tell):
    columns = {
        "talk_so_far": [log * 3 for log in LOGS],
        "candidate_response": [f"Go on and tell of the {ship}." for ship in SHIPS],
    }
    report = tell(**columns, label=TOPICS, answers=(("prompt", "talk_so_far"), ("completion", "label")))
    assert choices(report)["material"][0] == "candidate_response"


def test_several_wordings_under_a_short_name_are_wordings(tell):
    report = tell(Q=ASKED, A=[[said, f"I think that {said}", f"{said} So they say."] for said in SAID])
    assert turns(report)[-1] == ("assistant", SAID[0])


def test_what_was_predicted_stands_behind_the_answer(tell):
    report = tell(query=LOGS, answer=TOPICS, predicted_topic=TOPICS[::-1])
    assert choices(report).get("completion", ["answer"])[0] == "answer"


def test_a_flag_for_faults_asks_about_the_answers(tell):
    columns = {"question": ASKED, "answer": SAID, "is_hallucination": [n % 3 == 0 for n in range(12)]}
    report = tell(**columns)
    assert report["needs_answer"][0]["choices"] == ["prompt_completion", "kto"]
    told = tell(**columns, format="kto", answers=(("label", "is_hallucination"),))
    assert told["preview"][0]["label"] is False and told["preview"][1]["label"] is True


def test_texts_with_line_breaks_of_their_own_are_read_in_lines_of_json(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        "".join(
            f'{{"prompt": "{asked}\n\n###\n", "completion": " {said}"}}\n'
            for asked, said in zip(ASKED, SAID, strict=True)
        )
    )
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert report["rows_used"] == 12 and turns(report)[0] == ("user", f"{ASKED[0]}\n\n###\n")


def test_a_reference_beside_what_it_was_found_in_is_the_answer(tell):
    found = [LOGS[n // 3] for n in range(12)]
    kinds = [("one_step", "many_steps")[n % 2] for n in range(12)]
    report = tell(user_input=ASKED, reference_contexts=found, reference=SAID, synthesizer_name=kinds)
    assert report["needs_answer"] == []
    assert report["mapping"] == {
        "prompt": "user_input",
        "completion": "reference",
        "material": "reference_contexts",
    }


def test_facts_in_lists_of_an_answer_are_learned_as_they_stand(tell):
    facts = [{"ships": [{"name": ship, "days": n + 2}], "places": ["Brenn"]} for n, ship in enumerate(SHIPS)]
    report = tell(input=LOGS, output=facts)
    assert report["needs_answer"] == [] and json.loads(turns(report)[-1][1]) == facts[0]


def test_what_a_program_said_is_not_read_before_what_is_known(tell):
    known = [f"{n % 5 + 2} days" for n in range(12)]
    report = tell(input=ASKED, output=LOGS, expected=known, answers=(("completion", "expected"),))
    assert choices(report).get("material", [""])[0] == ""


def test_the_title_above_a_list_is_asked_about_with_it(tell):
    loads = [json.dumps([f"{n + 1} barrels of herring", "a sack of salt"]) for n in range(12)]
    columns = {"title": [f"The {ship}" for ship in SHIPS], "ingredients": loads}
    columns["directions"] = [f"Salt it and wait for {n} days by the fire." for n in range(12)]
    report = tell(**columns, answers=(("prompt", "ingredients"), ("completion", "directions")))
    assert choices(report)["material"] == ["title", ""]
