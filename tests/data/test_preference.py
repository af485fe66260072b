"""Pairs of answers in all their forms; the prompt is what both share."""

import pytest

from studio.data.conversation import Message
from studio.data.formats.preference import FORMAT
from studio.data.row import RowError

USER, GOOD, BAD = Message("user", "hi"), Message("assistant", "hello"), Message("assistant", "go")
ASK, SAY, SHOUT = ({"role": one.role, "content": one.content} for one in (USER, GOOD, BAD))
MORE = {"role": "user", "content": "and?"}
HH = "\n\nHuman: hi\n\nAssistant: "


def read(**values):
    return FORMAT.read(values, FORMAT.match(list(values)).mapping)


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": "hi", "chosen": "hello", "rejected": "go"},
        {"question": "hi", "chosen_response": "hello", "rejected_response": "go"},
        {"prompt": [ASK], "chosen": [SAY], "rejected": [SHOUT]},
        {"prompt": "hi", "chosen": [SAY], "rejected": "go"},
        {"chosen": [ASK, SAY], "rejected": [ASK, SHOUT]},
        {"prompt": "hi", "chosen": [ASK, SAY], "rejected": [ASK, SHOUT]},
        {"prompt": None, "chosen": [ASK, SAY], "rejected": [ASK, SHOUT]},
        {"conversations": [{"from": "human", "value": "hi"}], "chosen": SAY, "rejected": SHOUT},
        {"chosen": HH + "hello", "rejected": HH + "go"},
        {"chosen": "hi hello", "rejected": "hi go"},
    ],
)
def test_read(values):
    found = read(**values)
    assert found.kind == "preference" and found.messages == (USER,)
    assert (found.chosen[0].content, found.rejected[0].content) == ("hello", "go")
    assert FORMAT.notes(found) == ()


def test_what_stands_beside():
    found = read(system="s", instruction="do", input="it", chosen="a", rejected="b")
    assert found.messages == (Message("system", "s"), Message("user", "do\n\nit"))
    system = {"role": "system", "content": "s"}
    found = read(prompt="hi", chosen=[system, SAY], rejected=[system, SHOUT])
    assert found.messages == (Message("system", "s"), USER)
    assert read(input="it", chosen="a", rejected="b").messages == (Message("user", "it"),)


def test_answers_of_several_turns():
    found = read(chosen=[ASK, SAY, MORE, SAY], rejected=[ASK, SAY, MORE, SHOUT])
    assert len(found.messages) == 3 and found.rejected == (BAD,)
    found = read(chosen=[ASK, SAY, MORE, SAY], rejected=[ASK, SHOUT])
    assert found.messages == (USER,) and len(found.chosen) == 3
    found = read(chosen=HH + "a\n\nHuman: b\n\nAssistant: c", rejected=HH + "a\n\nHuman: b\n\nAssistant: d")
    assert [message.content for message in found.messages] == ["hi", "a", "b"]
    found = read(chosen=[ASK, SAY], rejected=[ASK, SAY, MORE, SHOUT])
    assert found.messages == (USER,) and len(found.rejected) == 3


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"prompt": "hi", "chosen": "a", "rejected": " a\n"}, "E170"),
        ({"chosen": [ASK, SAY], "rejected": [ASK, SAY]}, "E170"),
        ({"chosen": HH + "a", "rejected": HH + "a "}, "E170"),
        ({"chosen": [ASK, SAY], "rejected": [MORE, SAY]}, "E171"),
        ({"chosen": [ASK, SAY, ASK, SAY], "rejected": [ASK, SAY, MORE, SAY]}, "E171"),
        ({"chosen": [SAY], "rejected": [SHOUT]}, "E171"),
        ({"chosen": HH + "a", "rejected": "\n\nHuman: other\n\nAssistant: b"}, "E171"),
        ({"chosen": "one", "rejected": "two"}, "E171"),
        ({"chosen": [ASK], "rejected": [ASK, SAY]}, "E131"),
        ({"prompt": "hi", "chosen": "a", "rejected": ""}, "E122"),
        ({"prompt": "hi", "chosen": None, "rejected": "a"}, "E121"),
        ({"prompt": "hi", "chosen": {"a": 1}, "rejected": "a"}, "E120"),
        ({"chosen": HH, "rejected": HH + "a"}, "E122"),
        ({"prompt": " ", "chosen": [SAY], "rejected": [SHOUT]}, "E122"),
    ],
)
def test_broken_pairs(values, code, english):
    with pytest.raises(RowError) as refusal:
        read(**values)
    said = english(refusal.value.message)
    assert refusal.value.code == code and "{" not in said and "data." not in said


def test_missing_answer():
    with pytest.raises(RowError) as refusal:
        FORMAT.read(
            {"chosen": "a", "prompt": "b"}, {"chosen": "chosen", "rejected": "rejected", "prompt": "prompt"}
        )
    assert refusal.value.code == "E120"


def test_turns_beside_scored_answers_are_their_prompt(tell):
    def say(words):
        return {"role": "model", "parts": [{"text": words}]}

    rows = [
        {
            "contents": [{"role": "user", "parts": [{"text": f"Is berth {n} free?"}]}],
            "completions": [
                {"score": 1.0, "completion": say(f"From day {n} on.")},
                {"score": 0.0, "completion": say("No.")},
            ],
        }
        for n in range(8)
    ]
    report = tell(rows)
    assert report["format"] == "preference" and not report["needs_answer"]
    assert report["preview"][0]["messages"][0]["content"] == "Is berth 0 free?"


def test_what_was_noted_of_one_of_two_answers_is_not_read(tell):
    notes = {side: [{"reward": n / 9, "said": [f"Berth {n} was named by the {side} one."]} for n in range(8)]
             for side in ("chosen", "rejected")}  # fmt: skip
    rows = [
        {"prompt": f"Is berth {n} free?", "chosen": f"From day {n} on.", "rejected": "No, it is not.",
         "chosen_eval": notes["chosen"][n], "rejected_eval": notes["rejected"][n]}
        for n in range(8)
    ]  # fmt: skip
    assert not tell(rows)["needs_answer"]


TASKS = [f"Name boat {n} of the harbour." for n in range(12)]
LONG = [f"Boat {n} of the harbour is called Alma and lies at the old quay." for n in range(12)]
SHORT = [f"I do not know what boat {n} is called, and nobody does." for n in range(12)]


def test_sides_may_be_called_left_and_right(tell):
    verdicts = ["left", "right"] * 6
    report = tell(instruction=TASKS, left_answer=LONG, right_answer=SHORT, result=verdicts)
    assert report["format"] == "preference" and not report["needs_answer"]
    roles = {"first": "left_answer", "second": "right_answer", "better": "result"}
    assert roles.items() <= report["mapping"].items()
    assert [row["chosen"][0]["content"] for row in report["preview"][:2]] == [LONG[0], SHORT[1]]


def test_what_a_rater_noted_is_not_read(tell):
    noted = [f"It names the boat, number {n}, and the quay where it lies." for n in range(12)]
    report = tell(prompt=TASKS, candidate_a=LONG, candidate_b=SHORT, winner=["a", "b"] * 6, notes=noted)
    assert report["format"] == "preference" and not report["needs_answer"]
    assert "notes" not in report["mapping"].values()


def test_a_task_and_its_answers_may_lie_in_an_object_and_the_verdict_in_another(tell):
    given = [
        {"instruction": one, "left_answer": two, "right_answer": three}
        for one, two, three in zip(TASKS, LONG, SHORT, strict=True)
    ]
    told = [[{"output_values": {"result": ("left", "right", "equal")[n % 3]}}] for n in range(12)]
    report = tell(input_values=given, known_solutions=told)
    assert report["format"] == "preference" and report["mapping"]["better"] == "result"
    assert {problem["code"] for problem in report["problems"]} == {"E172"}  # those that are equal
