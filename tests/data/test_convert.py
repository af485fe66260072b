"""Converting: every row at its place, the same in several processes, not done again, whole or not at all."""

import json
import os

import numpy as np
import pytest

from studio.core.recipe import DatasetSpec
from studio.data import convert as module
from studio.data import convert_part
from studio.data.convert import PreparationStopped, convert


def chats(count, broken=()):
    lines = []
    for i in range(count):
        turns = [{"role": "user", "content": f"say {i} ünï"}, {"role": "assistant", "content": f"it is {i}"}]
        lines.append('{"messages": [' if i in broken else json.dumps({"messages": turns}, ensure_ascii=False))
    return lines


def write(path, lines, newline="\n"):
    path.write_bytes(newline.join([*lines, ""]).encode("utf-8"))
    return DatasetSpec(source=str(path))


def read_quarantine(converted):
    return [json.loads(line) for line in converted.quarantine.read_text(encoding="utf-8").splitlines()]


def test_rows_and_places(tmp_path):
    lines = chats(40, broken=(7,))
    lines.insert(3, "")
    spec = write(tmp_path / "a.jsonl", lines, "\r\n")
    found = convert(spec, tmp_path / "cache")
    assert (found.counts.rows_read, found.rows, found.counts.rows_refused) == (40, 39, 1)
    rows = list(found.iterate())
    assert [conversation.messages[1].content for _, conversation in rows] == [
        f"it is {i}" for i in range(40) if i != 7
    ]
    data = (tmp_path / "a.jsonl").read_bytes()
    for row, conversation in rows:
        place = found.place(row)
        line = json.loads(data[place["offset"] :].split(b"\r\n")[0])
        assert line["messages"][0]["content"] == conversation.messages[0].content
        assert data[: place["offset"]].count(b"\n") + 1 == place["line"]
    (refused,) = read_quarantine(found)
    assert (refused["line"], refused["row"], refused["code"]) == (9, 8, "E101")
    assert refused["raw"].startswith('{"messages": [') and refused["message"].startswith("Line 9:")
    assert data[refused["offset"] :].startswith(b'{"messages": [\r\n')


def test_bytes_that_are_no_text_are_kept_as_base64(tmp_path):
    import base64

    path = tmp_path / "a.jsonl"
    raw = b'{"text": "caf\xe9"}'
    path.write_bytes(b'{"text": "one"}\n' + raw + b"\n" + b'{"text": "two"}\n' * 400)
    found = convert(DatasetSpec(source=str(path), encoding="utf-8"), tmp_path / "cache")
    (refused,) = read_quarantine(found)
    assert refused["code"] == "E110" and base64.b64decode(refused["raw_base64"]) == raw


def test_nothing_is_read_again_when_nothing_changed(tmp_path, monkeypatch):
    spec = write(tmp_path / "a.jsonl", chats(30))
    once = convert(spec, tmp_path / "cache")
    monkeypatch.setattr(module, "read_part", None)
    again = convert(spec, tmp_path / "cache")
    assert again.folder == once.folder and again.content_hash == once.content_hash
    assert list(again.iterate()) == list(once.iterate())


@pytest.mark.parametrize("change", ["bytes", "time", "mapping", "encoding"])
def test_a_change_is_noticed(tmp_path, change):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "completion": "b", "other": "c"}\n' * 9, encoding="utf-8")
    spec = DatasetSpec(source=str(path))
    before = convert(spec, tmp_path / "cache")
    if change == "bytes":
        stat = path.stat()
        path.write_text(path.read_text(encoding="utf-8").replace("a", "z"), encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "time":
        os.utime(path, (1, 1))
    else:
        chosen = {"mapping": {"completion": "other"}} if change == "mapping" else {"encoding": "cp1252"}
        spec = DatasetSpec(source=str(path), **chosen)
    assert convert(spec, tmp_path / "cache").key != before.key


def test_stretches_of_a_file_give_the_same_as_the_whole(tmp_path, monkeypatch):
    lines = chats(300, broken=(5, 250))
    lines[100] = json.dumps(json.loads(lines[100]) | {"tools": [{"name": "f"}]})
    spec = write(tmp_path / "a.jsonl", lines)
    whole = convert(spec, tmp_path / "whole")
    monkeypatch.setattr(convert_part, "RANGE_BYTES", 1000)
    parted = convert(spec, tmp_path / "parted")
    compare(whole, parted)
    assert parted.understanding.mapping["tools"] == "tools"


@pytest.mark.computing
def test_several_processes_give_the_same_as_one(tmp_path, monkeypatch):
    spec = write(tmp_path / "a.jsonl", chats(3000, broken=(5, 2500)))
    monkeypatch.setattr(convert_part, "RANGE_BYTES", 50_000)
    alone = convert(spec, tmp_path / "alone")
    monkeypatch.setattr(module, "POOL_BYTES", 0)
    pooled = convert(spec, tmp_path / "pooled")
    compare(alone, pooled)
    assert alone.content_hash == pooled.content_hash


def compare(one, other):
    assert one.splits == other.splits and one.columns == other.columns
    assert list(one.iterate()) == list(other.iterate())
    for name in ("line", "row", "offset", "hashes", "flags", "prompt"):
        assert np.array_equal(one.shards().column(name), other.shards().column(name)), name
    assert read_quarantine(one) == read_quarantine(other)
    assert one.problems.entries() == other.problems.entries()


def test_two_late_columns_for_one_role_the_first_has_it(tmp_path, monkeypatch):
    lines = chats(200)
    lines[120] = json.dumps(json.loads(lines[120]) | {"functions": [{"name": "late"}]})
    lines[60] = json.dumps(json.loads(lines[60]) | {"tools": [{"name": "early"}]})
    spec = write(tmp_path / "a.jsonl", lines)
    monkeypatch.setattr("studio.data.sampling.SAMPLE_ROWS", 10)
    whole = convert(spec, tmp_path / "whole")
    monkeypatch.setattr(convert_part, "RANGE_BYTES", 1000)
    parted = convert(spec, tmp_path / "parted")
    assert parted.understanding.mapping == whole.understanding.mapping
    assert list(parted.iterate()) == list(whole.iterate())


def test_a_stop_leaves_nothing(tmp_path):
    spec = write(tmp_path / "a.jsonl", chats(3000))
    with pytest.raises(PreparationStopped):
        convert(spec, tmp_path / "cache", should_stop=lambda: True)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_what_a_killed_process_left_is_swept(tmp_path):
    spec = write(tmp_path / "a.jsonl", chats(20))
    key = convert(spec, tmp_path / "one").key
    left = tmp_path / "cache" / f"{key}.part-1"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("{}", encoding="utf-8")
    assert convert(spec, tmp_path / "cache").rows == 20
    assert not left.exists()


def test_several_files_keep_their_names(tmp_path, jsonl):
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "train-1.jsonl", chats(5, broken=(2,)))
    write(folder / "train-2.jsonl", chats(5, broken=(3,)))
    found = convert(DatasetSpec(source=str(folder)), tmp_path / "cache")
    assert [(one.file, one.line) for one in found.problems] == [("train-1.jsonl", 3), ("train-2.jsonl", 4)]
    assert [found.place(row)["file"] for row in (0, 7)] == ["train-1.jsonl", "train-2.jsonl"]
    assert found.place(7)["line"] == 5


def test_no_clear_format_counts_the_rows_only(tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [{"a": "x", "b": "y"}] * 12)
    found = convert(DatasetSpec(source=str(path)), tmp_path / "cache")
    assert found.counts.rows_read == 12 and found.rows == 0 and not found.has_rows


def test_a_manifest_that_the_disk_lost_is_made_again(tmp_path):
    spec = write(tmp_path / "a.jsonl", chats(5))
    found = convert(spec, tmp_path / "cache")
    for left in ("", "\0" * 40, '{"version": 1'):
        (found.folder / module.MANIFEST).write_text(left, encoding="utf-8")
        assert convert(spec, tmp_path / "cache").rows == 5


def test_processes_that_die_are_done_without(tmp_path, monkeypatch):
    from studio.data import parallel_read

    spec = write(tmp_path / "a.jsonl", chats(300, broken=(250,)))
    whole = convert(spec, tmp_path / "one")
    monkeypatch.setattr(convert_part, "RANGE_BYTES", 8000)
    monkeypatch.setattr(module, "POOL_BYTES", 1)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    asked = []

    def die(parts, understanding, *_):
        asked.append(len(parts))
        yield convert_part.read_part(parts[0], understanding)
        parts[1].folder.mkdir(parents=True)  # begun, not ended
        raise parallel_read.BrokenProcessPool

    monkeypatch.setattr(parallel_read, "read_in_pool", die)
    found = convert(spec, tmp_path / "two")
    assert asked and asked[0] > 2 and found.counts == whole.counts
    assert read_quarantine(found) == read_quarantine(whole)
    assert [one for _, one in found.iterate()] == [one for _, one in whole.iterate()]


@pytest.mark.parametrize("name", ["_shards", "_quarantine"])
def test_a_full_disk_leaves_no_file_open(tmp_path, monkeypatch, name):
    spec = write(tmp_path / "a.jsonl", chats(30, broken=(3,)))
    made = []

    class Full(convert_part.Sorter):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)
            monkeypatch.setattr(getattr(self, name), "add", self.fail, raising=True)

        def fail(self, *_):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert_part, "Sorter", Full)
    with pytest.raises(OSError, match="No space"):
        convert(spec, tmp_path / "cache")
    (sorter,) = made
    assert all(file.closed for file in sorter._shards._files.values())
    assert sorter._quarantine._file is None or sorter._quarantine._file.closed
    assert not list((tmp_path / "cache").glob("*.part-*"))


@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: Windows has no such names")
def test_a_file_whose_name_is_no_text(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / os.fsdecode(b"caf\xe9.jsonl"), chats(20, broken=(3,)))
    found = convert(DatasetSpec(source=str(folder)), tmp_path / "cache")
    assert found.rows == 19 and read_quarantine(found)[0]["file"] == "caf?.jsonl"
