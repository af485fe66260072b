"""Several columns of answers: all are offered, one is chosen; and what is left out beside an answer, or asked about."""

from __future__ import annotations

import json

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe

ASKED = [f"Why does ferry number {n} wait at the pier for so long every morning?" for n in range(12)]


def report(tmp_path, rows, **said):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return describe(DatasetSpec(source=str(path), **said), cache=tmp_path / "cache")


def fields(found):
    return {one["field"]: list(one["choices"]) for one in found["needs_answer"]}


def say(n, who):
    return f"It waits for the {who} of house number {n}, who is late."


@pytest.mark.parametrize(
    "names",
    [("Response (GPT 4)", "Response (Gpt 4o)", "Responses (base)"), ("ideal_answer", "acceptable_answer"),
     ("gold_answer_1", "gold_answer_2", "gold_answer_3")],
)  # fmt: skip
def test_answers_of_several_writers_are_all_offered_and_asked_about_once(tmp_path, names):
    rows = [
        {
            "question": one,
            **{name: say(n, who) for name, who in zip(names, ("baker", "smith", "pilot"), strict=False)},
        }
        for n, one in enumerate(ASKED)
    ]
    assert {*fields(report(tmp_path, rows))["data.mapping.completion"]} == {*names}
    for name in names:
        chosen = report(tmp_path, rows, mapping={"prompt": "question", "completion": name})
        assert fields(chosen) == {} and chosen["rows_used"] == len(ASKED)
        assert chosen["preview"][0]["messages"][1]["content"] == rows[0][name]


def test_names_of_labels_beside_an_answer_ask(tmp_path):
    rows = [
        {
            "question": one,
            "answer": say(n, "baker"),
            "label": n % 3,
            "label_name": ("direct", "evasive", "partly")[n % 3],
        }
        for n, one in enumerate(ASKED)
    ]
    assert fields(report(tmp_path, rows)) == {"data.mapping.completion": ["answer", "label_name"]}


def test_lists_of_key_words_are_left_out_with_a_word(tmp_path):
    rows = [
        {
            "question": one,
            "answer": say(n, "baker"),
            "keywords": ["ferry", "pier", "morning", f"house {n}", "late"] * 4,
        }
        for n, one in enumerate(ASKED)
    ]
    found = report(tmp_path, rows)
    assert fields(found) == {} and "keywords" not in found["mapping"].values()
    assert "keywords" in str(found["reason"])


def test_a_short_ground_truth_in_words_is_learned_beside_a_question_and_a_number_is_checked(tmp_path):
    worded = [{"question": one, "ground_truth": f"the baker of house {n}"} for n, one in enumerate(ASKED)]
    found = report(tmp_path, worded)
    assert (found["format"], fields(found)) == ("prompt_completion", {})
    assert found["mapping"] == {"prompt": "question", "completion": "ground_truth"}
    numbers = [{"question": one, "ground_truth": f"{n}"} for n, one in enumerate(ASKED)]
    assert report(tmp_path, numbers)["format"] == "rl"
    posed = [{"prompt": one, "ground_truth": f"the baker of house {n}"} for n, one in enumerate(ASKED)]
    assert fields(report(tmp_path, posed)) == {"data.format": ["rl", "prompt_completion"]}


def test_an_expected_answer_is_known_in_other_languages(tmp_path):
    for asked, said in (("pergunta", "resposta_esperada"), ("question", "réponse_attendue")):
        rows = [{asked: one, said: say(n, "baker")} for n, one in enumerate(ASKED)]
        found = report(tmp_path, rows)
        assert found["mapping"] == {"prompt": asked, "completion": said} and fields(found) == {}


def test_a_question_that_is_a_key_is_kept(tmp_path):
    path = tmp_path / "asked.json"
    path.write_text(
        json.dumps(
            {one: {"french": f"À midi, {n}.", "english": f"At noon, {n}."} for n, one in enumerate(ASKED)}
        ),
        encoding="utf-8",
    )
    found = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    assert fields(found)["data.mapping.prompt"][0] == "key"
    short = tmp_path / "ids.json"
    short.write_text(
        json.dumps({f"q{n}": {"question": one, "answer": say(n, "baker")} for n, one in enumerate(ASKED)})
    )
    assert "key" not in describe(DatasetSpec(source=str(short)), cache=tmp_path / "cache")["columns"]


def test_a_log_with_some_talks_in_it_is_asked_about(tmp_path):
    talk = [{"role": "user", "content": "When does it go?"}, {"role": "assistant", "content": "At noon."}]
    rows = [
        {"tool": "search" if n % 2 else "reply", "latency_ms": n, **({} if n % 2 else {"messages": talk})}
        for n in range(12)
    ]
    found = report(tmp_path, rows)
    assert fields(found) == {"data.format": ["messages", "text"]}
    assert fields(report(tmp_path, rows, format="messages")) == {}
    few = [{"messages": talk}] * 11 + [{"tool": "search"}]
    assert fields(report(tmp_path, few)) == {}


def test_a_file_that_git_could_not_join_says_so(tmp_path):
    from studio.core.errors import StudioError

    path = tmp_path / "rows.json"
    path.write_text('<<<<<<< HEAD\n[{"a": 1}]\n=======\n[{"a": 2}]\n>>>>>>> other\n', encoding="utf-8")
    with pytest.raises(StudioError) as refusal:
        describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    assert refusal.value.why.id == "data.source.conflict"


def compare(n, **more):
    return {"prompt": ASKED[n], "chosen": say(n, "baker"), "rejected": say(n, "clouds"), **more}


def test_a_context_beside_a_preference_is_read(tmp_path):
    found = report(tmp_path, [compare(n, context=f"The harbour's book of day {n}.") for n in range(12)])
    assert fields(found) == {} and found["rows_used"] == 12
    assert found["mapping"]["prompt"] == "prompt" and found["mapping"]["material"] == "context"
    alone = [compare(n) for n in range(12)]
    alone = [{("context" if key == "prompt" else key): cell for key, cell in row.items()} for row in alone]
    assert report(tmp_path, alone)["mapping"]["prompt"] == "context"


def test_a_prompt_written_out_and_facts_of_a_row_are_not_asked_about(tmp_path):
    facts = {"source": "the harbour's book", "tries": 3, "written": "on the pier, in the rain"}
    rows = [
        compare(n, full_prompt=f"You are a pilot.\n{ASKED[n]}\nBe brief, and friendly.", metadata=facts)
        for n in range(12)
    ]
    found = report(tmp_path, rows)
    assert (found["format"], fields(found)) == ("preference", {})


def test_a_prompt_with_material_alone_is_not_answered_by_it(tmp_path):
    rows = [{"prompt": one, "context": f"The harbour's book of day {n}."} for n, one in enumerate(ASKED)]
    assert fields(report(tmp_path, rows, mapping={"prompt": "prompt"})) == {
        "data.format": ["rl", "prompt_completion"]
    }


def test_what_stands_beside_intents_is_told(tmp_path):
    path = tmp_path / "nlu.yml"
    told = "- synonym: pier\n  examples: |\n    - quay\n    - jetty\n- regex: number\n  examples: |\n    - \\d+\n"
    intents = "- intent: greet\n  examples: |\n    - hello\n    - hi there\n- intent: ask\n  examples: |\n    - when?\n"
    path.write_text(f"nlu:\n{intents}{told}", encoding="utf-8")
    found = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    assert found["rows_read"] == 3
    (note,) = found["source_notes"]
    assert (note.id, note.values["names"]) == ("data.source.intents", "synonym pier, regex number")
    path.write_text(f"nlu:\n{intents}", encoding="utf-8")
    assert describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")["source_notes"] == []


def test_an_object_of_questions_is_rows_in_scripts_without_spaces_and_many_keys_end(tmp_path):
    path = tmp_path / "asked.json"
    told = {f"第{n}艘渡轮为什么每天早上在码头等很久？": f"它在等第{n}家的面包师。" for n in range(40)}
    path.write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")
    found = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    assert (found["rows_read"], fields(found)) == (40, {})
    assert found["mapping"] == {"prompt": "column_1", "completion": "column_2"}
    path.write_text(json.dumps({f"k{n}": f"The keeper of light {n} wrote a letter." for n in range(2500)}))
    found = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")  # took minutes
    assert len(fields(found)["data.mapping.prompt"]) == 200


def test_mails_under_their_subjects_ask_whether_the_subject_is_read(tmp_path):
    rows = [
        {
            "id": n,
            "subject": f"Boat {n}",
            "body": f"Hello, boat {n} waits at the pier, {say(n, 'baker')} Please come.",
        }
        for n in range(12)
    ]
    assert fields(report(tmp_path, rows)) == {"data.format": ["text", "prompt_completion"]}
