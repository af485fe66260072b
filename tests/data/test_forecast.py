"""How many rows and tokens a data set has, as its head suggests: within two times of what is counted."""

import gzip
import json

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.data.forecast import TURN_TOKENS, count_tokens
from studio.data.preview import preview
from studio.data.sampling import SAMPLE_ROWS

WORDS = "The harbour opens early, and the boats leave with the tide. "
ROWS = 5000


def make_rows(count=ROWS):
    return [
        {
            "messages": [
                {"role": "user", "content": WORDS * (1 + i % 5)},
                {"role": "assistant", "content": WORDS * 3},
            ]
        }
        for i in range(count)
    ]


def write(path, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode(), 1))
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else lines, encoding="utf-8")
    return DatasetSpec(source=str(path), max_length=1024)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_rows_and_tokens_of_a_file_that_is_not_read_to_its_end(tmp_path, name):
    head = preview(write(tmp_path / name, make_rows()), None, rows=SAMPLE_ROWS)
    rows, tokens = head.expected
    assert not head.whole and 0.8 * ROWS < rows < 1.25 * ROWS
    assert 60 < tokens / rows < 130, "3 + 3 sentences of 13 words on average"


def test_a_small_file_is_counted(tmp_path):
    head = preview(write(tmp_path / "few.jsonl", make_rows(7)), None, rows=SAMPLE_ROWS)
    assert head.whole and head.expected[0] == 7


def test_rows_are_cut_at_the_longest_that_is_kept(tmp_path):
    spec = write(tmp_path / "few.jsonl", make_rows(7))
    short = DatasetSpec(source=spec.source, max_length=20)
    assert preview(short, None, rows=SAMPLE_ROWS).expected == (7, 7 * 20)
    assert preview(DatasetSpec(source=spec.source, max_length=20, too_long="drop"), None).expected[1] > 7 * 20


def test_a_packed_file_is_guessed_by_its_size(tmp_path):
    rows = preview(write(tmp_path / "rows.jsonl.gz", make_rows()), None, rows=SAMPLE_ROWS).expected[0]
    assert rows >= SAMPLE_ROWS, "never fewer than were seen"


def test_a_sign_of_another_script_is_more_of_a_token():
    def tokens(words):
        return count_tokens(Conversation(messages=(Message("user", words),))) - TURN_TOKENS

    assert tokens("港口很早就开放了") > 2 * tokens("harbours") and tokens(WORDS) < len(WORDS) / 2
    assert count_tokens(Conversation(kind="tokens", token_ids=(1, 2, 3))) == 3
