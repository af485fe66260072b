"""Validation rows: the same after reordering, duplicates of a prompt on one side, never all and never none."""

import random

import numpy as np
import pytest

from studio.data.conversation import Conversation, Message
from studio.data.convert_part import hash_prompts
from studio.data.split import choose_validation


def ask(question: str, answer: str) -> Conversation:
    return Conversation(messages=(Message("user", question), Message("assistant", answer)))


def choose(rows, share):
    return [rows[i] for i in np.flatnonzero(choose_validation(hash_prompts(rows), share))]


def test_reordering_changes_nothing():
    rows = [ask(f"q{i}", f"a{i}") for i in range(200)]
    chosen = {row.prompt_key for row in choose(rows, 0.1)}
    random.Random(1).shuffle(rows)
    assert {row.prompt_key for row in choose(rows, 0.1)} == chosen
    assert 15 <= len(chosen) <= 25


def test_same_prompt_stays_on_one_side():
    rows = [ask(f"q{i % 20}", f"a{i}") for i in range(100)]
    apart = choose(rows, 0.2)
    inside, outside = {row.prompt_key for row in apart}, {row.prompt_key for row in rows if row not in apart}
    assert inside and outside and not inside & outside


def test_system_prompt_does_not_part_duplicates():
    one, other = ask("q", "a"), ask("q", "b").with_system("be kind")
    assert one.prompt_key == other.prompt_key
    assert len(set(hash_prompts([one, other]).tolist())) == 1


@pytest.mark.parametrize("share", [0.001, 0.5, 0.99])
def test_never_all_and_never_none(share):
    rows = [ask(f"q{i}", "a") for i in range(3)]
    assert 1 <= len(choose(rows, share)) <= 2


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_nothing_to_set_apart(share):
    assert choose([ask("q", "a")] * 5, share) == []
    assert choose([], share) == []


@pytest.mark.parametrize("salt", range(8))
def test_one_question_that_most_rows_ask_does_not_take_them_along(salt):
    rows = [ask(f"most {salt}", f"a{i}") for i in range(90)] + [ask(f"q{i}", "b") for i in range(10)]
    assert 5 <= len(choose(rows, 0.1)) <= 10


def test_the_smaller_of_two_large_groups_is_set_apart():
    rows = [ask("small", f"a{i}") for i in range(30)] + [ask("large", f"a{i}") for i in range(70)]
    assert {row.prompt_key for row in choose(rows, 0.1)} == {rows[0].prompt_key}


def test_answers_that_nobody_asked_for_are_told_apart():
    rows = [
        Conversation(
            messages=(Message("assistant", f"hello {i}"), Message("user", "so"), Message("assistant", "x"))
        )
        for i in range(50)
    ]
    assert 3 <= len(choose(rows, 0.1)) <= 7
