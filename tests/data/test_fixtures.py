"""Every file of tests/data/fixtures against what is right for it: expected.json, written by hand, one entry a reading.

An entry's `options` are fields of the recipe's data part; those that say what the file would be taken for are called
`format_given` and the like, since the expected object has them under the plain name. `tokenizer` names one of conftest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.core.recipe import DatasetSpec
from studio.data.charset import ENCODINGS
from studio.data.containers import CONTAINERS
from studio.data.dataset_report import describe
from studio.data.formats import FORMATS
from studio.data.row_codes import RowCode

HERE = Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures"
ENTRIES = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
SLOW = ("hostile/columns.csv.gz",)
"""Read with `--all`, as is every second of the others: its 10,000 columns take seconds."""
ROWS = 10
MESSAGE_CHARACTERS = 300
GIVEN = {
    "format_given": "format",
    "mapping_given": "mapping",
    "encoding_given": "encoding",
    "overlap_rule": "overlap",
}
LIBRARIES = (
    "pyarrow",
    "orjson",
    "openpyxl",
    "zipfile",
    "zstandard",
    "pandas",
    "Traceback",
    "Exception",
    "codec can't",
)


def name_entry(entry: dict[str, Any]) -> str:
    """Return a name for a parametrised test."""
    options = "-".join(
        f"{name}={value}" for name, value in entry["options"].items() if isinstance(value, (str, int))
    )
    return entry["source"] + (f"[{options}]" if options else "")


def show_message(message: dict[str, Any]) -> list[Any]:
    """Return [role, content], and what else a message holds where it holds something."""
    more = {name: value for name, value in message.items() if name not in ("role", "content")}
    return [message["role"], message["content"], *([more] if more else [])]


def show_first(row: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a preview row that `wanted` names."""
    found: dict[str, Any] = {}
    for name in wanted:
        value = row.get(name)
        if name in ("messages", "chosen", "rejected"):
            value = [show_message(message) for message in value or ()]
        if name == "images":
            value = [image.replace("\\", "/").split("/fixtures/")[-1] for image in value or ()]
        found[name] = value
    return found


def show_problem(one: dict[str, Any]) -> list[Any]:
    """Return [code, line, row], then the file where there are several, and the count of an entry for the rest."""
    more = [one["file"]] if one["file"] else []
    return [
        one["code"],
        one["line"],
        one["row"],
        *more,
        *([{"count": one["count"]}] if one["count"] != 1 else []),
    ]


def show_trained(row: dict[str, Any]) -> list[str]:
    """Return the trained stretches of a preview row."""
    stretches, before = [], False
    for token in row["tokens"]:
        if token["trained"]:
            stretches = (
                [*stretches[:-1], stretches[-1] + token["text"]] if before else [*stretches, token["text"]]
            )
        before = token["trained"]
    return stretches


def pick(found: Any, wanted: Any) -> Any:
    """Return those parts of `found` that `wanted` names; secrets by their kind."""
    if isinstance(found, list) and isinstance(wanted, dict):
        found = {one["kind"]: one["rows"] for one in found}
    if isinstance(found, dict) and isinstance(wanted, dict):
        return {name: pick(found.get(name), value) for name, value in wanted.items()}
    return found


def observe(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of `describe` as the parts that `wanted` has."""
    shown: dict[str, Any] = {name: found[name] for name in ("container", "encoding", "format", "mapping")}
    shown["exit"] = 0 if found["rows_used"] and not found["refused"] else 1
    shown["asks"] = []
    for one in found["needs_answer"]:
        expected = next((ask for ask in wanted["asks"] if ask[0] == one["field"]), [])
        # Where the right choices go on beyond those named there, the first ones must be those.
        count = len(expected) - 1 if one["field"] in ("data.encoding", "data.format") else None
        shown["asks"].append([one["field"], *one["choices"][:count]])
    shown["rows"] = {name: found[f"rows_{name}"] for name in ("read", "used", "quarantined", "filtered")}
    shown["problems"] = [show_problem(one) for one in found["problems"]]
    preview = found["preview"]
    if "first" in wanted:
        shown["first"] = show_first(preview[0], wanted["first"]) if preview else {}
    if "answers" in wanted:
        words = [
            next((m["content"] for m in reversed(row["messages"]) if m["role"] == "assistant"), "")
            for row in preview
        ]
        pairs = zip(words, wanted["answers"], strict=False)
        shown["answers"] = [None if right is None else word for word, right in pairs] + words[
            len(wanted["answers"]) :
        ]
    if "trained" in wanted:
        shown["trained"] = show_trained(preview[0]) if preview else []
    if "stats" in wanted:
        shown["stats"] = pick(found["stats"], wanted["stats"])
    return shown


def make_spec(entry: dict[str, Any]) -> DatasetSpec:
    """Return the recipe's part for an entry."""
    options = {
        GIVEN.get(name, name): value for name, value in entry["options"].items() if name != "tokenizer"
    }
    return DatasetSpec(source=str(FIXTURES / entry["source"]), **options)


def read_entry(entry: dict[str, Any], tokenizer_of) -> tuple[dict[str, Any], list[Any]]:
    """Return what describe says as the expected object has it, and all Texts that a person would read."""
    tokenizer = tokenizer_of(entry["options"]["tokenizer"]) if "tokenizer" in entry["options"] else None
    try:
        found = describe(make_spec(entry), tokenizer=tokenizer, rows=ROWS)
    except StudioError as error:
        return {"exit": error.exit_code, "error": [error.what.id, error.why.id]}, [
            error.what,
            error.why,
            error.fix,
        ]
    shown = observe(found, entry["expected"])
    said = [one["message"] for one in found["problems"]]
    said += [one["question"] for one in found["needs_answer"]] + [found["reason"]]
    assert found["rows_read"] == found["rows_used"] + found["rows_quarantined"] + sum(
        found["rows_filtered"].values()
    )
    json.dumps(load_catalogue("en").say_all(found), allow_nan=False)
    return shown, said


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(
            entry,
            marks=[pytest.mark.computing] if number % 2 or entry["source"] in SLOW else [],
            id=name_entry(entry),
        )
        for number, entry in enumerate(ENTRIES)
    ],
)
def test_fixture(entry, tokenizer_of):
    shown, said = read_entry(entry, tokenizer_of)
    wanted = entry["expected"]
    if "asks" in wanted:
        wanted = {**wanted, "asks": sorted(wanted["asks"])}
        shown["asks"] = sorted(shown.get("asks", []))
    assert shown == wanted
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        for one in said:
            words = catalogue.say(one)
            assert 0 < len(words) <= MESSAGE_CHARACTERS, words
            assert not any(name in words for name in LIBRARIES), words
            assert catalogue.has(one.id) and "{" not in words.replace("{{", ""), words


def test_every_kind_occurs():
    done = [entry["expected"] for entry in ENTRIES if "error" not in entry["expected"]]
    assert {one["container"] for one in done} == {container.name for container in CONTAINERS} | {
        "imagefolder"
    }
    assert {one["format"] for one in done} == {format.name for format in FORMATS} | {None}
    assert {problem[0] for one in done for problem in one["problems"]} == set(RowCode)
    met = {one["encoding"] for one in done} - {""}
    assert met <= set(ENCODINGS)
    assert met >= {"utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252", "gb18030", "big5", "shift_jis"}
    assert len({entry["source"] for entry in ENTRIES}) >= 120


def test_every_file_is_expected():
    sources = {entry["source"] for entry in ENTRIES}
    for path in FIXTURES.rglob("*"):
        name = path.relative_to(FIXTURES).as_posix()
        below = any(name.startswith(f"{source}/") for source in sources)
        assert (
            path.is_dir()
            or below
            or name in sources
            or name == "expected.json"
            or path.parent.name
            in (
                "turns",
                "mapped",
            )
        ), name
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) < 2_000_000


@pytest.mark.computing
def test_files_are_those_that_the_script_writes(tmp_path):
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_fixtures", HERE / "make_fixtures.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.main(tmp_path)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 50
    for path in written:
        committed = FIXTURES / path.relative_to(tmp_path)
        # What the libraries pack may differ from version to version; texts, encodings and zips of ours do not.
        assert committed.is_file(), committed
        if path.suffix in (".csv", ".jsonl", ".png"):
            assert committed.read_bytes() == path.read_bytes(), committed
