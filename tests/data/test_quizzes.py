"""Quizzes in plain text: a question a row, with its options and the one that is right."""

import io
import time

import pytest

from studio.data.containers import quizzes

AIKEN = "Which rope\nholds best?\nA. Hemp\nB. Sisal\nC) Jute\nANSWER: B\n\n" * 3
GIFT = (
    "$CATEGORY: ropes\n// the first\n::R1:: Which rope holds best? {\n~Hemp #no\n=Sisal #yes\n~%-50%Jute\n}\n\n"
    "Sisal is {T} a rope.\n\n[html]Two knots make {=a bend} on a ship.\n\nTell of ropes. {}\n"
)


def read(words):
    return [row.values for row in quizzes.iterate(io.BytesIO(words.encode()), "utf-8", None)]


def test_aiken():
    expected = {"question": "Which rope\nholds best?", "options": ["Hemp", "Sisal", "Jute"], "answer": "B"}
    assert quizzes.accept(AIKEN.encode(), ".txt") and read(AIKEN) == [expected] * 3


def test_gift():
    assert quizzes.accept(GIFT.encode(), ".txt")
    assert read(GIFT) == [
        {"question": "Which rope holds best?", "options": ["Hemp", "Sisal", "Jute"], "answer": "Sisal"},
        {"question": "Sisal is ____ a rope.", "options": ["True", "False"], "answer": "True"},
        {"question": "Two knots make ____ on a ship.", "options": None, "answer": "a bend"},
    ]


@pytest.mark.parametrize(
    "words",
    [
        "def f(): return {1: 2}\n" * 9,
        "A. Hemp is a plant.\nB. So is jute.\n" * 9,
        "int f() { return x = 1; }\n" * 9,
    ],
)
def test_other_texts_are_no_quiz(words):
    assert not quizzes.accept(words.encode(), ".txt")


def test_a_long_text_without_braces_is_no_quiz_and_takes_no_time() -> None:
    words = ("The keeper wrote down who came and what the weather was. " * 20 + "\n") * 400
    begin_s = time.process_time()
    assert not quizzes.accept(words.encode("utf-8"), ".txt")
    assert (
        time.process_time() - begin_s < 2
    )  # 0.05 s; the pattern for a question with its answers took an hour
