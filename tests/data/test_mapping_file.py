"""A saved mapping lies beside the data in words that a person can read, and is applied again while it fits."""

import json

import pytest

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.format_detection import understand
from studio.data.mapping_file import ENDING, read_mapping, save_mapping

ROW = {"xa": "a", "xb": "b"}
MAPPING = {"prompt": "xa", "completion": "xb"}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "数据 1.csv"
    path.write_text("xa,xb\na,b\n", encoding="utf-8")
    return path


def look(source, row=None, **spec):
    row = row or ROW
    return understand(tuple(row), [row], DatasetSpec(source=str(source), **spec))


def test_saved_and_applied_again(source, english):
    assert look(source).format is None
    path = save_mapping(str(source), "prompt_completion", MAPPING)
    assert path == source.with_name(source.name + ENDING)
    assert list(source.parent.glob(".*")) == []
    assert json.loads(path.read_text(encoding="utf-8"))["mapping"] == MAPPING
    found = look(source)
    assert (found.format.name, found.mapping, found.confidence) == ("prompt_completion", MAPPING, 1.0)
    assert path.name in english(found.reason) and found.questions == ()


def test_what_the_person_says_now_wins(source):
    save_mapping(str(source), "prompt_completion", MAPPING)
    other = {"prompt": "xb", "completion": "xa"}
    assert look(source, format="prompt_completion", mapping=other).mapping == other
    assert look(source, mapping=other).mapping == other


def test_a_mapping_that_fits_no_more(source, english):
    path = save_mapping(str(source), "prompt_completion", MAPPING)
    found = look(source, {"prompt": "a", "completion": "b"})
    assert found.format.name == "prompt_completion" and found.mapping["prompt"] == "prompt"
    assert "no column xa" in english(found.reason) and path.name in english(found.reason)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 50_000,
        b'{"version": 2, "format": "text", "mapping": {"text": "xa"}}',
        b'{"version": 1, "format": "wizard", "mapping": {"text": "xa"}}',
        b'{"version": 1, "format": ["text"], "mapping": {"text": "xa"}}',
        b'{"version": 1, "format": "text", "mapping": {}}',
        b'{"version": 1, "format": "text", "mapping": {"text": 5}}',
        b'{"version": 1, "format": "text", "mapping": {"text": "xa", "wizard": "xb"}}',
        b'{"version": 1, "format": "text", "mapping": {"text": "xa"}, "x": "' + b"x" * 70_000 + b'"}',
    ],
)
def test_a_file_that_is_no_mapping_is_noted(source, words, english):
    source.with_name(source.name + ENDING).write_bytes(words)
    saved, note = read_mapping(str(source), tuple(ROW))
    assert saved is None and "could not be read" in english(note)
    assert "could not be read" in english(look(source).reason)


def test_the_cache_where_the_folder_cannot_be_written(source, tmp_path, monkeypatch):
    cache = tmp_path / "cache"

    def refuse(path, content):
        if path.parent == source.parent:
            raise PermissionError(13, "denied")
        write_file(path, content)

    monkeypatch.setattr("studio.data.mapping_file.write_file", refuse)
    path = save_mapping(str(source), "prompt_completion", MAPPING, cache)
    assert path.parent == cache / "mappings"
    assert read_mapping(str(source), tuple(ROW), cache)[0].mapping == MAPPING
    assert understand(tuple(ROW), [ROW], DatasetSpec(source=str(source)), cache).mapping == MAPPING
    with pytest.raises(StudioError) as refusal:
        save_mapping(str(source), "prompt_completion", MAPPING)
    assert refusal.value.what.id == "data.mapping.unsaved" and refusal.value.exit_code == 1


@pytest.mark.parametrize(
    "source", ["owner/name", "https://example.org/a/chats.jsonl?x=1", "demo", "x" * 5000, "a\0b"]
)
def test_sources_that_are_no_files(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save_mapping(source, "prompt_completion", MAPPING, tmp_path / "cache")
    assert path.parent == tmp_path / "cache" / "mappings"
    assert read_mapping(source, tuple(ROW), tmp_path / "cache")[0].mapping == MAPPING
    assert read_mapping(source + "2", tuple(ROW), tmp_path / "cache") == (None, None)
    assert read_mapping(source, tuple(ROW)) == (None, None)
