"""JSON of strangers: whatever is wrong with a file is one refusal with its own words, and deep nesting too."""

from __future__ import annotations

import copy
import os
import sys

import pytest

from studio.core.errors import StudioError
from studio.core.json_file import DEEPEST, TooDeep, parse_json, read_json


def nest(levels: int, kind: str = "[") -> str:
    return '{"a":' * levels + "1" + "}" * levels if kind == "{" else "[" * levels + "]" * levels


@pytest.mark.parametrize("kind", ["[", "{"])
@pytest.mark.parametrize("levels", [DEEPEST + 1, 600, 200_000])
def test_deep_nesting_is_a_value_error_of_its_own(kind, levels):
    with pytest.raises(TooDeep):
        parse_json(nest(levels, kind))
    with pytest.raises(TooDeep):
        parse_json(nest(levels, kind).encode())
    with pytest.raises(ValueError):  # what is not even closed
        parse_json("[" * levels)


def test_what_is_read_can_be_walked_by_python():
    value = parse_json(nest(DEEPEST, "{"))
    assert copy.deepcopy(value) == value
    assert len(parse_json("[" + ",".join(["{}"] * 1000) + "]")) == 1000  # wide is not deep


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{", "file.not_json"),
        (b"\xff\xff{}", "file.not_json"),
        (b'"\\ud800"', "file.not_json"),
        (b"[" * 200_000, "file.deep"),
        (nest(200).encode(), "file.deep"),
        (b"[" + b"7" * 5000 + b"]", "file.number"),
        ('{"a": 1}'.encode("utf-16"), "file.utf16"),
    ],
)
def test_each_fault_has_its_own_words(tmp_path, content, what):
    file = tmp_path / "recipe.json"
    file.write_bytes(content)
    with pytest.raises(StudioError) as caught:
        read_json(file)
    assert caught.value.what.id == what and "recipe.json" in str(caught.value)


def test_what_is_sound_is_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": [1, "\xe4\xbd\xa0"]}')
    assert read_json(file) == {"a": [1, "你"]}
    file.write_bytes(b'"\\udcff"')  # the name of a file that is no text
    assert read_json(file, halves=True) == "\udcff"


def test_what_is_no_file_is_refused_at_once(tmp_path):
    with pytest.raises(StudioError, match=r"cannot be read.*No such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(StudioError, match="cannot be read"):
        read_json(tmp_path)
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe.json")
        with pytest.raises(StudioError, match="a pipe or a device"):
            read_json(tmp_path / "pipe.json")
