"""Looking at data before a start: what the run will accept is accepted, and nothing is fetched."""

import json

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data import mapping_file, remote
from studio.data.gather import validation_of
from studio.desk.checking import look


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_mapping_kept_in_the_workspace_counts(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", [{"one": f"q {i}", "two": f"a {i}"} for i in range(9)])
    spec, cache = DatasetSpec(source=str(path)), tmp_path / "cache"
    with pytest.raises(StudioError):
        look(spec, cache)
    place = mapping_file._list_places(str(path), cache)[-1]
    place.parent.mkdir(parents=True)
    saved = {"version": 1, "format": "prompt_completion", "mapping": {"prompt": "one", "completion": "two"}}
    place.write_text(json.dumps(saved), encoding="utf-8")
    assert look(spec, cache).format == "prompt_completion"


@pytest.mark.parametrize("fetched", [False, True])
def test_only_what_was_fetched_is_read(tmp_path, monkeypatch, fetched):
    monkeypatch.setattr(remote, "is_fetched", lambda spec, cache: fetched)
    asked = []

    def fetch(spec, cache, *_):
        asked.append(cache)
        raise remote.refuse("unfetched", spec.source)

    monkeypatch.setattr(remote, "fetch_remote", fetch)
    with pytest.raises(StudioError):
        look(DatasetSpec(source="owner/rows"), tmp_path)
    assert asked == [tmp_path] * fetched


def test_what_was_said_of_the_first_file_does_not_hold_for_validation(tmp_path):
    folder = tmp_path / "held_out"
    folder.mkdir()
    write(folder / "rows.jsonl", [{"prompt": "süß", "completion": "ja"}] * 3)
    spec = DatasetSpec(source="x", validation=str(folder), split="part", config="de", encoding="utf-16")
    assert look(validation_of(spec, "prompt_completion")).rows_read == 3
