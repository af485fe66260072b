"""Pass phrases: long enough, easy to type, and kept as a hash."""

from __future__ import annotations

import re

from studio.services.pass_phrase import hash_phrase, make_phrase, matches


def test_a_phrase_has_128_bits_and_can_be_typed():
    phrases = {make_phrase() for _ in range(200)}
    assert len(phrases) == 200
    words = [word for phrase in phrases for word in phrase.split("-")]
    assert all(re.fullmatch(r"([bdfghjklmnprstvz][aiou]){2}[bdfghjklmnprstvz]", word) for word in words)
    assert {len(phrase.split("-")) for phrase in phrases} == {8}, "16 bits a word"
    assert len(set(words)) > 1500, "and all of them are used"


def test_capitals_and_blanks_do_not_count_and_anything_else_does():
    phrase = make_phrase()
    kept = hash_phrase(phrase, "salt")
    for same in (phrase.upper(), phrase.replace("-", " "), f"  {phrase}\n", phrase.replace("-", "")):
        assert matches(same, "salt", kept)
    for other in ("", phrase[:-1], phrase + "a", make_phrase(), "é" + phrase[1:]):
        assert not matches(other, "salt", kept)
    assert not matches(phrase, "pepper", kept)
    assert phrase not in kept
