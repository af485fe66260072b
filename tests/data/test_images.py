"""Image folders: each row with the path of its image, which is there, inside, and no bomb."""

import json
import struct
import zlib

import pytest
from PIL import Image

from studio.core.recipe import DatasetSpec
from studio.data.containers.images import PIXEL_LIMIT, check_image
from studio.data.row import RowError
from studio.data.source import open_source


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    (root / "deeper").mkdir(parents=True)
    for name in ("a.png", "b.jpg", "deeper/c.webp"):
        Image.new("RGB", (4, 5)).save(root / name)
    return root


def write_metadata(root, rows):
    words = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "metadata.jsonl").write_text(words, encoding="utf-8")


def read(root):
    source = open_source(DatasetSpec(source=str(root)))
    assert source.container == "imagefolder"
    return [row for file in source.splits["train"] for row in file.rows()]


def test_an_image_folder(folder):
    write_metadata(folder, [{"file_name": name, "text": "x"} for name in ("a.png", "b.jpg", "deeper/c.webp")])
    rows = read(folder)
    assert [row.values["image"] for row in rows] == [
        str((folder / name).resolve()) for name in ("a.png", "b.jpg", "deeper/c.webp")
    ]
    assert {row.values["text"] for row in rows} == {"x"} and [row.line for row in rows] == [1, 2, 3]


def test_several_images_a_row(folder):
    write_metadata(folder, [{"file_names": ["a.png", "b.jpg"], "text": "x"}])
    assert len(read(folder)[0].values["images"]) == 2


def test_metadata_as_csv_and_splits(folder):
    (folder / "metadata.csv").write_text("file_name,text\na.png,x\n", encoding="utf-8")
    assert read(folder)[0].values["text"] == "x"
    (folder / "metadata.csv").unlink()
    for split in ("train", "test"):
        (folder / split).mkdir()
        Image.new("RGB", (4, 5)).save(folder / split / "a.png")
        write_metadata(folder / split, [{"file_name": "a.png", "text": split}])
    source = open_source(DatasetSpec(source=str(folder)))
    assert {
        split: [row.values["text"] for row in files[0].rows()] for split, files in source.splits.items()
    } == {
        "train": ["train"],
        "test": ["test"],
    }


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.png", "missing"),
        ("../secret.png", "outside"),
        ("/etc/hostname", "outside"),
        ("C:\\secret.png", "outside"),
        ("\\\\host\\share\\x.png", "outside"),
        ("n" * 5000 + ".png", "missing"),
        ("link.png", "outside"),
        ("deeper", "missing"),
        ("words.png", "broken"),
        (7, "none"),
        ("", "none"),
    ],
)
def test_images_that_cannot_be_used(folder, name, problem, english):
    Image.new("RGB", (4, 5)).save(folder.parent / "secret.png")
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "words.png").write_text("no image", encoding="utf-8")
    write_metadata(folder, [{"file_name": "a.png"}, {"file_name": name}, {"file_name": "b.jpg"}])
    rows = read(folder)
    assert [row.problem and row.problem.code for row in rows] == [None, "E150", None]
    assert rows[1].problem.message.id == f"data.row.image.{problem}" and rows[1].line == 2
    assert len(english(rows[1].problem.message)) < 300


def test_only_the_header_is_looked_at(tmp_path):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(width: int, height: int) -> bytes:
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")

    assert check_image(png(640, 480), "x") == (640, 480)
    with pytest.raises(RowError) as bomb:
        check_image(png(50_000, 50_000), "x")
    assert bomb.value.message.id == "data.row.image.large" and PIXEL_LIMIT < 50_000**2
