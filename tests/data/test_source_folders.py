"""Folders, archives and packed files as a source: read alike, asked about where files are unlike."""

import gzip
import io
import zipfile

import pytest

from studio.data.source import SAMPLE_ROWS
from tests.data.test_source import open_path, read_good, read_rows, refuse


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(b'{"text": "row %d"}\n' % i for i in range(start, start + count))


FILES = {
    "train-00000-of-00002.jsonl": lines(2),
    "train-00001-of-00002.jsonl": lines(2, 2),
    "validation.csv": b"text\nthree\n",
    "README.md": b"# words",
    "LICENSE": b"words",
}


def make_folder(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def make_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("make", [make_folder, make_zip])
def test_a_folder_and_a_zip_are_read_alike(tmp_path, make):
    path = make(tmp_path / "data.zip", FILES)
    source = open_path(path)
    assert {split: [file.name for file in files] for split, files in source.splits.items()} == {
        "train": ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"],
        "validation": ["validation.csv"],
    }
    assert [row.values["text"] for row in source.sample] == ["row 0", "row 1", "row 2", "row 3"]
    assert [row.line for row in source.sample] == [1, 2, 1, 2]  # rows are numbered by file
    assert [row.values for row in read_rows(path, "validation")] == [{"text": "three"}]
    assert source.notes[0].values["names"] == "LICENSE, README.md" and not source.questions
    assert (source.container, source.encoding, source.encoding_sure) == ("jsonl", "utf-8", True)


def test_unlike_files_are_asked_about(tmp_path):
    path = make_folder(tmp_path / "data", {"a.jsonl": lines(1), "b.jsonl": lines(1, 7)})
    source = open_path(path)
    assert source.questions[0].field == "data.split" and len(source.sample) == 1
    assert read_good(path, split="b") == [{"text": "row 7"}]
    assert not open_path(path, split="b").questions
    assert refuse(path, split="c").what.id == "data.folder.split.missing"


def test_empty_files_of_a_folder_are_left_out(tmp_path):
    path = make_folder(
        tmp_path / "d", {"part-1.jsonl": lines(1), "part-2.jsonl": b"", "part-3.jsonl": lines(1)}
    )
    source = open_path(path)
    assert [file.name for file in source.splits["train"]] == ["part-1.jsonl", "part-3.jsonl"]
    assert source.notes[0].id == "data.folder.empty_file"


def test_a_broken_file_of_a_folder_is_named(tmp_path):
    path = make_folder(tmp_path / "d", {"train-1.parquet": b"no", "train-2.jsonl": lines(1)})
    assert refuse(path, split="all").what.values["name"] == "train-1.parquet"


@pytest.mark.parametrize("packing", ["gz", "zst", "zip"])
def test_packed_files(tmp_path, packing):
    import zstandard

    data = lines(3000)
    path = tmp_path / f"train.jsonl.{packing}"
    if packing == "zip":
        make_zip(path, {"inner/train.jsonl": data})
    else:
        path.write_bytes(gzip.compress(data) if packing == "gz" else zstandard.compress(data))
    source = open_path(path)
    assert source.container == "jsonl" and source.splits["train"][0].packing == packing
    assert len(source.sample) == SAMPLE_ROWS and len(read_good(path)) == 3000
    assert source.sample_more(100) == ()


@pytest.mark.parametrize("packing", ["", "gz", "zip"])
def test_tables_are_read_inside_of_packed_files_too(tmp_path, packing):
    import openpyxl
    import pyarrow
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"]}), stream)
    tables = {"train.parquet": stream.getvalue()}
    book = openpyxl.Workbook()
    for row in (["text"], ["a"], ["b"]):
        book.active.append(row)
    stream = io.BytesIO()
    book.save(stream)
    if packing != "gz":
        tables["train.xlsx"] = stream.getvalue()
    for name, data in tables.items():
        path = tmp_path / f"{name}.{packing}" if packing else tmp_path / name
        if packing == "zip":
            make_zip(path, {name: data})
        else:
            path.write_bytes(gzip.compress(data) if packing else data)
        assert read_good(path) == [{"text": "a"}, {"text": "b"}], name


def test_what_the_datasets_library_saves(tmp_path):
    from datasets import Dataset, DatasetDict

    split = {"train": Dataset.from_list([{"text": "a"}]), "test": Dataset.from_list([{"text": "b"}])}
    DatasetDict(split).save_to_disk(tmp_path / "saved")
    source = open_path(tmp_path / "saved")
    assert source.container == "arrow" and set(source.splits) == {"train", "test"}
    assert read_good(tmp_path / "saved") == [{"text": "a"}]


def test_more_of_several_files(tmp_path):
    files = {f"train-{i}.jsonl": lines(2000, 2000 * i) for i in range(3)}
    source = open_path(make_folder(tmp_path / "d", files))
    more = [row.values["text"] for row in source.sample_more(300)]
    assert len(set(more)) == len(more) >= 250 and more[-1] == "row 5999"
    assert not set(more) & {row.values["text"] for row in source.sample}


def test_programs_are_read_where_a_folder_holds_nothing_else(tmp_path):
    root = make_folder(tmp_path / "code", {"src/sail.py": b"def sail():\n    pass\n", "Makefile": b"all:\n"})
    assert [row.values["text"] for row in open_path(root).sample] == ["def sail():\n    pass"]
    (root / "rows.jsonl").write_bytes(b'{"question": "Which?", "answer": "That."}\n')
    assert open_path(root).columns == ("question", "answer")
