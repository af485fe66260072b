"""A reading that asks nothing is looked at once more: what it leaves out must not speak against it."""

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.formats.column_names import mend_spelling

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
ASKED = [f"How long did the {ship} lie at the quay of Brenn?" for ship in SHIPS]
SAID = [f"The {ship} lay {n + 2} days there with a torn sail." for n, ship in enumerate(SHIPS)]
LOGS = [
    f"Day {n + 1}: the {ship} came in at noon. Day {n + 3}: the sail was mended, and the crew ate on board. "
    f"Day {n + 4}: the {ship} went out with the tide and forty barrels of herring, says the keeper."
    for n, ship in enumerate(SHIPS)
]
TELLING = [f"Both the crew of the {ship} and the keeper wait for it." for ship in SHIPS]


def choices(report):
    return {one["field"].removeprefix("data.mapping."): one["choices"] for one in report["needs_answer"]}


def test_what_is_called_an_answer_goes_before_what_has_a_word_of_one(tell):
    report = tell(question=ASKED, gold=[f"{n + 2} days" for n in range(12)], tool_output=LOGS)
    assert choices(report)["completion"][0] == "gold"
    assert tell(question=ASKED, response=SAID)["needs_answer"] == []


def test_a_label_beside_a_headline_is_asked_about(tell):
    labels = [("Fake", "Authentic")[n % 3 % 2] for n in range(12)]
    report = tell(headline=SAID, content=LOGS, label=labels)
    assert choices(report)["completion"] == ["label", "headline"]


def test_a_yes_or_no_beside_an_answer_is_a_verdict(tell):
    report = tell(question=ASKED, response=SAID, match=[("yes", "no")[n % 3 % 2] for n in range(12)])
    assert report["needs_answer"][0]["choices"] == ["prompt_completion", "kto"]


def test_a_kind_of_answers_is_asked_about(tell):
    report = tell(prompt=ASKED, response=SAID, label=[("sec", "pc", "dc")[n % 3] for n in range(12)])
    assert choices(report)["completion"] == ["response", "label"]


def test_signs_that_nobody_reads_are_asked_about_where_the_answers_are_signs(tell):
    boards = ["".join("." if (n * n + k) % 3 else str((n + k) % 7) for k in range(30)) for n in range(12)]
    solved = ["".join(str((n * k) % 6 + 1) for k in range(30)) for n in range(12)]
    report = tell(title=[f"The {ship}" for ship in SHIPS], rules=LOGS, board=boards, solution=solved)
    assert "board" in choices(report)["material_2"]


def test_a_flag_that_is_called_reasoning_holds_no_thoughts(tell):
    report = tell(question=ASKED, answer=SAID, reasoning=[n % 2 == 0 for n in range(12)])
    assert "reasoning" not in report["mapping"]
    report = tell(
        question=ASKED, answer=SAID, reasoning=[("deductive", "inductive")[n % 2] for n in range(12)]
    )
    assert "reasoning" not in report["mapping"]


def test_thoughts_beside_several_answers_are_asked_about(tell):
    talks = [
        [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "And then?"},
            {"role": "assistant", "content": "It went out."},
        ]
        for asked, said in zip(ASKED, SAID, strict=True)
    ]
    assert choices(tell(conversation=talks, reasoning_steps=LOGS))["reasoning"][0] == ""
    single = [talk[:2] for talk in talks]
    assert tell(conversation=single, reasoning=LOGS)["needs_answer"] == []


def test_a_talk_under_any_name_is_one_where_it_is_the_only_one(tell):
    talks = [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        for asked, said in zip(ASKED, SAID, strict=True)
    ]
    report = tell(id=[*range(12)], source=["mix"] * 12, chosen=talks)
    assert (report["format"], report["mapping"]) == ("messages", {"messages": "chosen"})


def test_the_same_as_columns_and_as_a_talk_needs_no_question(tell):
    talks = [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        for asked, said in zip(ASKED, SAID, strict=True)
    ]
    report = tell(instruction=ASKED, output=SAID, conversations=talks, instruction_ori=LOGS)
    assert report["format"] == "messages"


def test_rows_that_are_numbered_in_their_talk_are_joined(tell):
    report = tell(
        C_ID=[n // 2 for n in range(12)], T_ID=[n % 2 for n in range(12)], Text=ASKED, Completion=SAID
    )
    assert report["rows_used"] == 6
    assert [turn["content"] for turn in report["preview"][0]["messages"]] == [
        ASKED[0],
        SAID[0],
        ASKED[1],
        SAID[1],
    ]


def test_questions_that_are_numbered_in_their_test_are_no_talk(tell):
    report = tell(
        test=[n // 3 for n in range(12)], no=[n % 3 for n in range(12)], question=ASKED, answer=SAID
    )
    assert report["rows_used"] == 12


def test_code_and_the_same_with_its_imports_is_text(tell):
    code = [f"def load_{n}(boxes):\n    total = boxes * {n}\n    return total\n" for n in range(12)]
    report = tell(
        language=["python"] * 12,
        original_code=code,
        code_with_imports=[f"import os\n\n{one}" for one in code],
    )
    assert "text" in choices(report)


def test_thoughts_are_not_offered_first_as_the_answer(tell):
    report = tell(prompt=ASKED, reasoning=LOGS, ift=SAID)
    assert choices(report)["completion"][0] == "ift"


def test_a_text_before_its_revision_is_not_read_with_it(tell):
    first = [f"{asked} Please." for asked in ASKED]
    report = tell(**{"Pre-Revision Question": first, "Question": ASKED, "Correct Answer": SAID})
    assert report["mapping"].get("prompt") == "Question"
    assert choices(report).get("material", [""])[0] == ""


def test_what_asks_is_read_whatever_it_is_called(tell):
    report = tell(Name=ASKED, Answer=SAID, Tags=["harbour"] * 12)
    assert (choices(report).get("prompt") or [report["mapping"]["prompt"]])[0] == "Name"


def test_a_kind_beside_question_and_answer_sorts_them(tell):
    report = tell(Q=ASKED, A=SAID, label=[n % 3 for n in range(12)])
    assert report["mapping"].get("completion") == "A" or choices(report)["completion"][0] == "A"


def test_grades_and_flags_of_texts_are_asked_about_and_their_tags_are_not(tell):
    assert tell(text=LOGS, generated=[float(n % 2) for n in range(12)])["needs_answer"]
    assert (
        tell(essay_id=[*range(12)], essay=LOGS, rater1_domain1=[n % 4 for n in range(12)])["needs_answer"]
        == []
    )
    assert tell(essay_id=[*range(12)], essay=LOGS, domain1_score=[n % 4 for n in range(12)])["needs_answer"]
    songs = {"title": [f"The {ship}" for ship in SHIPS], "artist": SHIPS, "tag": ["rock", "pop", "rap"] * 4}
    assert tell(**songs, year=[1980 + n for n in range(12)], lyrics=LOGS)["needs_answer"] == []


def test_an_answer_that_is_the_same_everywhere_is_none(tell):
    specs = [f'{{"mark": "bar", "x": "{ship}", "y": "count of boxes"}}' for ship in SHIPS]
    report = tell(query=ASKED, spec=specs, solution=["[]"] * 12)
    assert report["mapping"].get("completion") != "solution"


def test_two_columns_that_make_up_a_third_are_question_and_answer(tell):
    front = [f"def load_{n}(boxes):\n    total = {n}\n" for n in range(12)]
    after = [f"    return total * boxes + {n}\n" for n in range(12)]
    whole = [one + other for one, other in zip(front, after, strict=True)]
    snippets = [f"class Box{n}:\n    size = {n}\n" for n in range(12)]
    report = tell(repo=["a/b"] * 12, snippet=snippets, cropped=front, everything=whole, next_line=after)
    found = choices(report)
    assert (found["prompt"][0], found["completion"][0]) == ("cropped", "next_line")


def test_a_table_is_learned_as_a_whole(tell):
    tables = [{"header": ["House", "Name"], "rows": [["1", ship], ["2", "Nobody"]]} for ship in SHIPS]
    report = tell(
        puzzle=ASKED, solution=tables, answers={"prompt": "puzzle", "completion": "solution"}.items()
    )
    assert "Nobody" in report["preview"][0]["messages"][-1]["content"]


def test_turns_that_their_keys_mark_and_number_are_a_talk(tell):
    talks = [
        {
            "id": {"talk-id": n},
            "content": {"HS01": ASKED[n], "SS01": SAID[n], "HS02": "And who saw it?", "SS02": ""},
        }
        for n in range(12)
    ]
    report = tell(profile=[{"type": "E18"}] * 12, talk=talks)
    assert [turn["role"] for turn in report["preview"][0]["messages"]] == ["user", "assistant", "user"]


def test_reviews_of_the_same_thing_are_no_talk(tell):
    report = tell(
        review_id=[*range(12)],
        business_id=[n // 4 for n in range(12)],
        review_stars=[n % 5 for n in range(12)],
        text=LOGS,
        date=["2018-01-01"] * 12,
        name=SHIPS[:6] * 2,
    )
    assert report["format"] != "messages"


def test_documents_in_lines_are_texts(tell):
    poems = [
        [f"The {ship} goes out", *("with the tide at night", "and nobody waves from the quay") * 3]
        for ship in SHIPS
    ]
    report = tell(
        author=SHIPS, paragraphs=poems, title=[f"To the {ship} at sea" for ship in SHIPS], id=[*range(12)]
    )
    assert "text" in choices(report) or report["format"] == "text"
    report = tell(author=SHIPS, paragraphs=poems, answers={"text": "paragraphs"}.items())
    assert report["preview"][0]["text"] == "\n".join(poems[0])


def test_people_with_marks_of_their_own_are_asked_about(tell):
    rows = {"dialog_id": [n // 4 for n in range(12)], "turn": [n % 4 for n in range(12)], "utt": SAID}
    assert tell(spk=[f"SPK_{n % 2 + 1}" for n in range(12)], **rows)["needs_answer"]
    assert tell(speaker=[f"#Person{n % 2 + 1}#" for n in range(12)], **rows)["needs_answer"] == []


def test_several_findings_beside_a_summary_are_asked_about(tell):
    kinds = [("REFILL", "LAB", "VISIT")[n % 3] for n in range(12)]
    report = tell(
        data=LOGS,
        summary=SAID,
        categories=kinds,
        sub_categories=[("NEW", "CANCEL")[n % 2] for n in range(12)],
    )
    assert choices(report)["completion"][0] == "summary"
    assert tell(data=LOGS, summary=SAID, category=kinds)["needs_answer"] == []


def test_stretches_of_a_text_are_learned_with_what_they_are(tell):
    found = [[{"start": 4, "end": 4 + len(ship), "label": "SHIP", "text": ship}] for ship in SHIPS]
    report = tell(text=SAID, entities=found)
    assert report["needs_answer"][0]["choices"][0] == "prompt_completion"
    report = tell(text=SAID, entities=found, answers={"prompt": "text"}.items())
    assert choices(report)["completion"][0] == "entities"
    report = tell(text=SAID, entities=found, answers={"prompt": "text", "completion": "entities"}.items())
    assert '"label": "SHIP"' in report["preview"][0]["messages"][-1]["content"]


def test_what_has_a_title_of_its_own_is_no_message(tell):
    report = tell(
        title=[f"Mend the {ship}" for ship in SHIPS],
        user=["Ada", "Bo", "Cy"] * 4,
        created_at=[f"2025-01-01T{n:02}:00:00Z" for n in range(12)],
        body=SAID,
    )
    assert report["format"] != "messages"


def test_calls_beside_an_open_talk_are_its_answer(tell):
    asked = [f'[{{"role": "user", "content": "{one}"}}]' for one in ASKED]
    calls = [
        f'{{"tool_calls": [{{"name": "find_ship", "arguments": {{"name": "{ship}"}}}}]}}' for ship in SHIPS
    ]
    tools = ['[{"name": "find_ship", "description": "Find a ship.", "parameters": {"type": "object"}}]'] * 12
    report = tell(tools_json=tools, messages_json=asked, target_json=calls)
    assert report["format"] == "messages" and report["rows_used"] == 12
    assert report["preview"][0]["messages"][-1]["tool_calls"][0]["function"]["name"] == "find_ship"


def test_names_with_one_wrong_letter_are_known(tell):
    report = tell(text=LOGS, instuction=["Answer the harbour office."] * 12, input=ASKED, answear=SAID)
    roles = {"instruction": "instuction", "input": "input", "output": "answear"}
    assert {role: report["mapping"].get(role) for role in roles} == roles
    # what is a word of its own is not mended
    assert mend_spelling("chose") == "chose" and mend_spelling("prompts") == "prompts"
    assert [mend_spelling(word) for word in ("promt", "respnose", "conversaton")] == [
        "prompt",
        "response",
        "conversation",
    ]


def test_options_may_be_empty(tell):
    options = [{"A": said, "B": "Nobody knows.", "C": "A year.", "D": None, "E": None} for said in SAID]
    report = tell(options=options, answer=SAID, question=ASKED, answer_idx=["A"] * 12)
    assert report["mapping"]["choices"] == "options" and not report["needs_answer"]


def test_the_instruction_names_the_language_to_write(tell):
    german = [f"Das Schiff {ship} lag dort mit zerrissenem Segel, sagt der Wärter." for ship in SHIPS]
    for task, target in (("Translate into German.", "de"), ("Translate the German text to English.", "en")):
        report = tell(instruction=[task] * 12, en=SAID, de=german)
        assert (report["mapping"]["output"], report["needs_answer"]) == (target, [])


def test_fields_are_learned_where_input_and_output_are_called_so(tell):
    report = tell(
        instruction=["Find what is asked for."] * 12,
        input=[{"earlier": said, "last": asked} for said, asked in zip(SAID, ASKED, strict=True)],
        output=[{"intent": ("stay", "leave", "mend")[n % 3], "thought": said} for n, said in enumerate(SAID)],
    )
    assert report["format"] == "alpaca" and not report["needs_answer"]


def test_a_name_before_the_only_text_is_asked_about(tell):
    report = tell(category=[("sail", "rope")[n % 2] for n in range(12)], name=SHIPS, cn=LOGS)
    assert [one["choices"][0] for one in report["needs_answer"]] == ["name", "cn"]
    report = tell(title=[f"The {ship} at Brenn" for ship in SHIPS], abstract=LOGS)
    assert report["needs_answer"]


def test_what_answers_are_checked_against_is_not_read_first(tell):
    report = tell(question=ASKED, answer=LOGS, ground_truth=SAID)
    assert choices(report)["material"][0] == ""


def test_code_cut_into_tokens_is_gone_on_with(tell):
    cut = [f"<s> import sails <EOL> def knots_{n} ( rope ) : <EOL> value = {n} <EOL>" for n in range(12)]
    report = tell(id=[*range(12)], input=cut, gt=[f"return rope . length * {n}" for n in range(12)])
    assert (report["mapping"]["prompt"], report["mapping"]["completion"]) == ("input", "gt")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ships.txt", "".join(f"Name: {ship}\nBerth: {n}\n\n" for n, ship in enumerate(SHIPS))),
        ("words.po", "".join(f'msgid "{ship} sails"\nmsgstr "{ship} segelt"\n\n' for ship in SHIPS)),
        ("quiz.txt", "".join(f'{n} "{asked}" "{n} days" "a year"\n' for n, asked in enumerate(ASKED))),
    ],
    ids=["fields", "catalogue", "quoted"],
)
def test_records_in_a_text_are_asked_about(tmp_path, name, words):
    path = tmp_path / name
    path.write_text(words)
    report = describe(DatasetSpec(source=str(path)), rows=1)
    assert report["needs_answer"]
    plain = tmp_path / "logs.txt"
    plain.write_text("\n".join(LOGS))
    assert describe(DatasetSpec(source=str(plain)), rows=1)["needs_answer"] == []


def test_a_text_beside_numbers_alone_is_learned(tell):
    report = tell(page=[*range(12)], ocr_text=LOGS, confidence=[0.93] * 12)
    assert (report["format"], report["mapping"], report["needs_answer"]) == ("text", {"text": "ocr_text"}, [])


def test_words_go_before_the_ids_of_their_tokens(tell):
    report = tell(text=LOGS, tokens=[[n, 2, 3] for n in range(12)])
    assert report["format"] == "text"
    assert tell(input_ids=[[n, 2, 3] for n in range(12)])["format"] == "pretokenized"


def test_what_was_generated_is_an_answer(tell):
    report = tell(prompt=ASKED, description=SAID, generated=LOGS)
    assert report["mapping"]["completion"] == "generated"


def test_questions_alone_are_no_text_to_be_learned(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(["input", *ASKED]) + "\n", encoding="utf-8")
    assert choices(describe(DatasetSpec(source=str(path)), rows=1)) == {"text": ["text"]}


def test_an_answer_beside_its_place_in_the_text(tell):
    rows = [
        {"question": asked, "passage": told, "answers": [[n, said]]}
        for n, (asked, told, said) in enumerate(zip(ASKED, LOGS, SAID, strict=True))
    ]
    report = tell(rows)
    assert report["preview"][0]["messages"][-1]["content"] == SAID[0]


def test_what_raters_gave_on_average_is_asked_about_and_what_was_counted_is_not(tell):
    halves = [n % 5 + 0.5 * (n % 2) for n in range(12)]
    assert (
        choices(tell(id=[*range(12)], text=SAID, originality=halves))["data.format"][0] == "prompt_completion"
    )
    assert tell(id=[*range(12)], text=SAID, seen=[n % 5 for n in range(12)])["needs_answer"] == []


def test_entries_under_titles_of_their_own_are_asked_about(tell):
    titles = [f"Ship {ship}" for ship in SHIPS]
    entries = [log.replace("the ", "this ") for log in LOGS]
    hidden = [entry.replace(ship, "vessel") for entry, ship in zip(entries, SHIPS, strict=True)]
    report = tell(title=titles, content=hidden, tags=["quay"] * 12)
    assert choices(report)["data.format"] == ["text", "prompt_completion"]
    for whole in ({"title": titles, "text": hidden},
                  {"title": titles, "content": hidden, "url": [f"https://a.example/{n}" for n in range(12)]},
                  {"title": SHIPS, "content": entries}):  # fmt: skip
        assert tell(**whole)["needs_answer"] == []


def test_what_a_program_wrote_goes_behind_the_same_from_somebody_else(tell):
    drafts = [f"I think that {log}" for log in LOGS]
    for drafted, known in (("پاسخ RAG", "پاسخ مورد انتظار"), ("Сгенерированный ответ", "Референсный ответ")):
        report = tell(**{"question": ASKED, drafted: drafts, known: SAID})
        assert choices(report)["completion"] == [known, drafted]


def test_remarks_of_a_few_words_are_not_read_before_the_question(tell):
    remarks = [("base", "spoken", "", "with a slip")[n % 4] for n in range(12)]
    assert "notes" not in tell(question=ASKED, answer=SAID, notes=remarks)["mapping"].values()
    assert tell(question=ASKED, answer=SAID, notes=LOGS)["mapping"]["material"] == "notes"


def test_a_reference_goes_before_what_was_answered(tell):
    answers = [f"I would say that {said}" for said in SAID]
    report = tell(
        user_input=ASKED, response=answers, reference=SAID, faithfulness=[n / 12 for n in range(12)]
    )
    assert choices(report)["completion"] == ["reference", "response"]


def test_questions_alone_are_prompts_or_a_text(tell):
    assert choices(tell(rows=[{"text": asked} for asked in ASKED]))["data.format"] == ["rl", "text"]
    assert tell(rows=[{"text": said} for said in SAID])["needs_answer"] == []


def test_the_only_column_called_expected_is_the_answer(tell):
    logs = [log.replace("the ", "this ") for log in LOGS]
    rows = {
        "title": SAID,
        "description": logs,
        "expected_priority": ["HIGH", "LOW"] * 6,
        "rationale": TELLING,
    }
    assert choices(tell(**rows))["completion"][0] == "expected_priority"


def test_key_words_criteria_and_personas_of_a_word_are_rather_left_out(tell):
    words = [[ship, "quay", "sail", f"day {n}", "crew"] for n, ship in enumerate(SHIPS)]
    assert choices(tell(question=ASKED, answer=SAID, key_words=words)).get("material", [""])[0] == ""
    criteria = [f"It must name the {ship}, its sail and how many days it lay there." for ship in SHIPS]
    assert (
        choices(tell(question=ASKED, answer=SAID, evaluation_criteria=criteria)).get("material", [""])[0]
        == ""
    )
    personas = ["Young sailor", "Keeper", "Young sailor"] * 4
    assert "persona" not in tell(question=ASKED, answer=SAID, persona=personas)["mapping"].values()


def test_a_rendered_text_with_a_system_prompt_that_no_column_holds_is_the_talk(tell):
    rendered = [
        f"<|im_start|>system\nAnswer for the keeper of the quay.<|im_end|>\n<|im_start|>user\n{asked}<|im_end|>\n"
        f"<|im_start|>assistant\n{said}<|im_end|>\n"
        for asked, said in zip(ASKED, SAID, strict=True)
    ]
    report = tell(text=rendered, input=ASKED, output=SAID)
    assert choices(report)["data.format"][0] == "messages"
    plain = [one.partition("<|im_end|>\n")[2] for one in rendered]
    assert tell(text=plain, input=ASKED, output=SAID)["needs_answer"] == []
