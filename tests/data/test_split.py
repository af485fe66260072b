"""Validation rows: the same after reordering, duplicates of a prompt on one side, never all and never none."""

import random

import pytest

from studio.data.conversation import Conversation, Message
from studio.data.split import choose_validation


def ask(question: str, answer: str) -> Conversation:
    return Conversation(messages=(Message("user", question), Message("assistant", answer)))


def test_reordering_changes_nothing():
    rows = [ask(f"q{i}", f"a{i}") for i in range(200)]
    chosen = {rows[i] for i in choose_validation(rows, 0.1)}
    random.Random(1).shuffle(rows)
    assert {rows[i] for i in choose_validation(rows, 0.1)} == chosen
    assert 15 <= len(chosen) <= 25


def test_same_prompt_stays_on_one_side():
    rows = [ask(f"q{i % 20}", f"a{i}") for i in range(100)]
    apart = choose_validation(rows, 0.2)
    inside, outside = (
        {rows[i].prompt_key for i in apart},
        {rows[i].prompt_key for i in range(100) if i not in apart},
    )
    assert inside and outside and not inside & outside


def test_system_prompt_does_not_part_duplicates():
    one, other = ask("q", "a"), ask("q", "b").with_system("be kind")
    assert one.prompt_key == other.prompt_key


@pytest.mark.parametrize("share", [0.001, 0.5, 0.99])
def test_never_all_and_never_none(share):
    rows = [ask(f"q{i}", "a") for i in range(3)]
    assert 0 < len(choose_validation(rows, share)) < 3


def test_nothing_to_set_apart():
    assert choose_validation([ask("q", "a"), ask("q", "b")], 0.5) == frozenset()
    assert choose_validation([ask("q", "a"), ask("r", "b")], 0.0) == frozenset()
