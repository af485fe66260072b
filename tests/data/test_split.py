"""Validation rows: the same after reordering, duplicates of a prompt on one side, never all and never none."""

import random

import numpy as np
import pytest

from studio.data.conversation import Conversation, Message
from studio.data.reading import hash_prompts
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
