"""Secrets: every kind is found in the middle of a text and in a batch, look-alikes are not, and nothing is repeated."""

import random
import time

import pytest

from studio.core.i18n import LANGUAGES, load_catalogue
from studio.data.secrets import SECRETS, find_secrets

# Put together here, so that no scanner takes this file for a leak.
FOUND = {
    "aws": ["AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "Z" * 16],
    "github": ["ghp_" + "a1" * 18, "github_pat_" + "A1b2" * 15],
    "anthropic": ["sk-ant-" + "api03-" + "xY9" * 10],
    "openai": ["sk-" + "aB3" * 16, "sk-proj-" + "Zz0" * 20],
    "slack": ["xoxb-" + "1234567890", "xoxp-" + "12-34-56-abcdef"],
    "google": ["AIza" + "Sy" * 17 + "x"],
    "hugging_face": ["hf_" + "Ab" * 17],
    "private_key": ["-----BEGIN " + "RSA PRIVATE KEY-----", "-----BEGIN " + "PRIVATE KEY-----"],
    "jwt": [".".join(["eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + "zdWIiOiIxMjM0In0", "abcDEF_1234-56"])],
    "email": ["joe.smith+list@mail.example.org", "a@b.de"],
    "phone": ["+49 170 1234567", "555-123-4567", "(555) 123-4567", "+1 (415) 555-2671"],
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
}
CLEAN = [
    "2024-01-02 12:30:11.123456",
    "192.168.100.200:8080",
    "task-force, risk-free, desk-bound",
    "3.14159265358979323846",
    "4111 1111 1111 1112",
    "0000 0000 0000 0000",
    "sha256:" + "ab" * 32,
    "print(self.a_rather_long_name_for_a_thing)",
    "x = y @ z; see @someone",
    "AKIA" + "short",
    "1 + 2345678 = 2345679",
    "",
]


@pytest.mark.parametrize("name", FOUND)
def test_every_kind_is_found_wherever_it_stands(name):
    for words in FOUND[name]:
        for around in ("{}", "The key is {}, keep it.", "值:\n{}\nend", "é" * 100 + " {}"):
            texts = ["nothing here"] * 5 + [around.format(words)] + ["nor here"] * 5
            assert find_secrets(texts) == [(5, name)], around


def test_what_only_looks_alike_is_not_found():
    assert find_secrets(CLEAN) == []
    assert find_secrets([]) == []


def test_one_row_may_hold_several_kinds_and_each_counts_once():
    words = " ".join(each for kind in FOUND.values() for each in kind)
    assert find_secrets(["a", words, words]) == [(row, one.name) for row in (1, 2) for one in SECRETS]


def test_rows_found_alone_are_found_in_any_batch():
    random.seed(1)
    rows = [random.choice([*CLEAN, *(each for kind in FOUND.values() for each in kind)]) for _ in range(500)]
    alone = [(i, name) for i, row in enumerate(rows) for _, name in find_secrets([row])]
    assert find_secrets(rows) == alone and len(alone) > 100


def test_nothing_matches_across_two_rows():
    key = FOUND["aws"][0]
    assert find_secrets([key[:10], key[10:]]) == []


def test_every_kind_has_its_words():
    for language in LANGUAGES:
        words = load_catalogue(language)
        assert [one.name for one in SECRETS if not words.has(f"data.secret.{one.name}")] == []


def test_clean_rows_cost_next_to_nothing():
    random.seed(2)
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(2, 9))) for _ in range(2000)]
    rows = [" ".join(random.choices(words, k=108)) for _ in range(2560)]
    assert 650 < sum(map(len, rows)) / len(rows) < 750
    best = min(_time(rows) for _ in range(5))
    assert best / len(rows) < 5e-6, "about 1 us on a quiet machine"


def _time(rows: list[str]) -> float:
    begin = time.process_time()  # what others do on this machine is no matter
    for start in range(0, len(rows), 256):
        assert find_secrets(rows[start : start + 256]) == []
    return time.process_time() - begin
