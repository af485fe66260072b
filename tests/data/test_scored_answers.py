"""Numbers and words that grade answers: told of, never left out in silence; several answers to a question compared."""

from __future__ import annotations

import json

import pytest

from studio.core.i18n import load_catalogue
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.scored_answers import find_scored

ASKED = ["When does the ferry go?", "Where is the pier?", "Who keeps the light?", "What does the bell mean?"]


def report(tmp_path, rows, **said):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return describe(DatasetSpec(source=str(path), **said), cache=tmp_path / "cache")


def say(text, language="en"):
    return load_catalogue(language).say(text)


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("kind", ["columns", "messages"])
def test_what_grades_the_answers_is_told(tmp_path, kind, language):
    rows = []
    for n, question in enumerate(ASKED * 2):
        answer = f"You will find it written on the board, in line {n}."
        talk = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        told = {"messages": talk} if kind == "messages" else {"question": question, "answer": answer}
        rows.append({**told, "rating": 1 + n % 5})
    found = report(tmp_path, rows)
    assert found["needs_answer"] == [] and found["rows_used"] == 8
    reason = say(found["reason"], language)
    sentence = {"en": "rating grades the answers, from 1 to 5", "zh-CN": "rating 给回答打分（1 到 5）"}[
        language
    ]
    assert sentence in reason
    weighed = report(tmp_path, rows, mapping={**found["mapping"], "weight": "rating"})
    assert "grades the answers" not in say(weighed["reason"])


def test_grades_in_words_are_told(tmp_path):
    rows = [
        {"instruction": one, "output": f"Look at line {n} of the board.", "quality": ("good", "bad")[n % 2]}
        for n, one in enumerate(ASKED * 2)
    ]
    assert "quality grades the answers (good, bad)" in say(report(tmp_path, rows)["reason"])


@pytest.mark.parametrize("name", ["id", "prompt_length", "year", "difficulty_score", "question_quality"])
def test_other_numbers_are_not_called_grades(tmp_path, name):
    rows = [
        {"question": one, "answer": f"Look at line {n} of the board.", name: n}
        for n, one in enumerate(ASKED * 2)
    ]
    assert "grades" not in say(report(tmp_path, rows)["reason"])


def several(score):
    return [
        {"question": one, "answer": f"{word} answer to number {n}.", "score": score(n, word)}
        for n, one in enumerate(ASKED)
        for word in ("A weak", "A middling", "A strong")
    ]


def test_several_answers_to_a_question_are_asked_about_and_compared(tmp_path):
    rows = several(lambda n, word: {"A weak": 1, "A middling": 4, "A strong": 9}[word])
    found = report(tmp_path, rows)
    (question,) = found["needs_answer"]
    assert question["choices"] == ["prompt_completion", "preference"] or question["choices"] == (
        "prompt_completion", "preference",
    )  # fmt: skip
    all_learned = report(tmp_path, rows, format="prompt_completion")
    assert all_learned["rows_used"] == 12 and all_learned["needs_answer"] == []
    compared = report(tmp_path, rows, format="preference")
    assert compared["needs_answer"] == [] and compared["rows_used"] == len(ASKED)
    first = compared["preview"][0]
    assert [turn["content"] for turn in first["chosen"]] == ["A strong answer to number 0."]
    assert [turn["content"] for turn in first["rejected"]] == ["A weak answer to number 0."]


def test_one_mark_for_all_answers_compares_nothing():
    rows = several(lambda n, word: n)
    assert find_scored(tuple(rows[0]), rows) is None
    single = [{"question": one, "answer": "Yes.", "score": n} for n, one in enumerate(ASKED)]
    assert find_scored(tuple(single[0]), single) is None
