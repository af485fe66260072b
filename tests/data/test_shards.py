"""Shards: what is written comes back, from any place, also to the datasets library."""

import numpy as np
import pytest

from studio.data import shards as module
from studio.data.conversation import Conversation, Message, ToolCall
from studio.data.convert_part import write_conversation
from studio.data.shards import INDEX, Shards, ShardWriter, join_shards

CALL = ToolCall("f", {"n": 2**80, "words": "ü\u2028"}, "1")
ROWS = [
    Conversation(
        messages=(Message("user", f"q{i}"), Message("assistant", f"a{i} ünï 漢")), tools=({"name": "f"},)
    )
    for i in range(50)
] + [
    Conversation(
        messages=(
            Message("user", "q"),
            Message("assistant", "", "think", (CALL,)),
            Message("tool", "3", "", (), "f", "1"),
        )
    ),
    Conversation(text="a\n\tb", kind="text"),
    Conversation(token_ids=(1, 2, 3), labels=(-100, 2, 3), kind="tokens"),
    Conversation(
        messages=(Message("user", "q"),),
        chosen=(Message("assistant", "a"),),
        rejected=(Message("assistant", "b"),),
        kind="preference",
    ),
    Conversation(messages=(Message("user", "q"), Message("assistant", "a")), label=False, kind="kto"),
]


def write(folder, rows, first=0):
    writer = ShardWriter(folder)
    for start in range(0, len(rows), 7):
        texts = [write_conversation(row) for row in rows[start : start + 7]]
        columns = {name: np.arange(first + start, first + start + len(texts)) for name in INDEX}
        columns["exact"] = np.asarray([exact for _, exact in texts])
        writer.add([text for text, _ in texts], columns)
    writer.close()
    return Shards(folder)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(module, "SHARD_ROWS", 8)


def test_rows_come_back(tmp_path):
    shards = write(tmp_path / "s", ROWS)
    assert len(shards.paths) == 7 and len(shards) == len(ROWS)
    assert [row for _, row in shards.read()] == ROWS
    assert [number for number, _ in shards.read()] == list(range(len(ROWS)))
    wanted = [54, 3, 3, 50, 0]
    assert list(shards.read(wanted)) == [(i, ROWS[i]) for i in wanted]
    assert shards[51] == ROWS[51]
    assert shards.column("line").tolist() == list(range(len(ROWS)))


def test_parts_are_joined(tmp_path):
    parts = [(write(tmp_path / f"p{i}", ROWS[: 20 + i]).folder, {"line": 100 * i}) for i in range(3)]
    join_shards(parts, tmp_path / "whole")
    shards = Shards(tmp_path / "whole")
    assert [row for _, row in shards.read()] == ROWS[:20] + ROWS[:21] + ROWS[:22]
    assert shards.column("line")[[0, 20, 41]].tolist() == [0, 100, 200]
    assert shards.column("row")[[0, 20, 41]].tolist() == [0, 0, 0]


def test_nothing(tmp_path):
    shards = write(tmp_path / "s", [])
    assert len(shards) == 0 and list(shards.read()) == [] and len(shards.column("line")) == 0


def test_the_datasets_library_maps_them(tmp_path):
    from datasets import Dataset, concatenate_datasets

    from studio.data.conversation import read_stored

    shards = write(tmp_path / "s", ROWS[:50])
    found = concatenate_datasets([Dataset.from_file(str(path)) for path in shards.paths])
    assert found.column_names == ["conversation"] and found.num_rows == 50
    import orjson

    assert read_stored(orjson.loads(found[17]["conversation"])) == ROWS[17]
    assert found.cache_files
