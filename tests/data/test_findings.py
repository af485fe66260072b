"""What was found out about a text is learned whole, and what is known to be so goes before what a program said."""

import json

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.formats.question_answer import say_answer

TOLD = [f"Skipper Odd of the tug number {n} paid {n + 3} crowns for rope in Varde." for n in range(24)]
MARKS = [[[8, 11, "WHO"], [text.index("Varde"), text.index("Varde") + 5, "WHERE"]] for text in TOLD]


def write(folder, **columns):
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def follow(source):
    """Return the report when every question is answered by its first choice."""
    said: dict[str, str] = {}
    while (report := describe(DatasetSpec(source=source, **_part(said))))["needs_answer"]:
        said |= {one["field"]: one["choices"][0] for one in report["needs_answer"]}
    return report


def _part(said):
    mapping = {field[13:]: name for field, name in said.items() if field.startswith("data.mapping.")}
    return {"format": said.get("data.format", "auto"), "mapping": mapping}


def choices(report):
    return {one["field"].removeprefix("data.mapping."): one["choices"] for one in report["needs_answer"]}


def test_marked_words_are_learned_whole(tell):
    report = tell(text=TOLD, label=MARKS)
    assert report["needs_answer"] == []
    assert report["preview"][0]["messages"][-1]["content"] == '[[8, 11, "WHO"], [58, 63, "WHERE"]]'


@pytest.mark.parametrize("name", ["cues", "hits", "result"])
def test_places_in_a_text_are_what_was_found_out(tell, name):
    found = [[{"id": "a", "where": [[8, 11]], "kind": "WHO"}] for _ in TOLD]
    report = tell(**{"text": TOLD, name: found})
    assert report["needs_answer"][0]["choices"] == ["prompt_completion", "text"]


def test_numbers_that_are_no_places_are_not(tell):
    report = tell(text=TOLD, seen=[[[n + 900, n + 950]] for n in range(24)])
    assert report["needs_answer"] == [] and report["format"] == "text"


@pytest.mark.parametrize(
    ("cell", "column", "said"),
    [
        ([["tug", "tows", "barge"]], "facts", '[["tug", "tows", "barge"]]'),
        ([["Bergen", "bergen"]], "answers", "Bergen"),
        ({"port": "Varde"}, "slots", '{"port": "Varde"}'),
        ({"intent": "order"}, "parsed", "order"),
        ({"grade": "A 3", "reasons": ["Rope is new."]}, "verdict", '{"grade": "A 3", "reasons": ["Rope is new."]}'),
        ({"text": "In Varde.", "start": 4}, "answers", "In Varde."),
        ([{"who": "Odd", "what": "rope"}, {"who": "Ina", "answer": "tar"}, {"who": "Bo", "what": "oil"}], "deals",
         '[{"who": "Odd", "what": "rope"}, {"who": "Ina", "answer": "tar"}, {"who": "Bo", "what": "oil"}]'),
    ],
)  # fmt: skip
def test_objects_are_not_cut_down_to_one_of_their_words(cell, column, said):
    assert say_answer(cell, column) == said


@pytest.mark.parametrize(
    ("known", "guessed"),
    [("manual_label", "predicted_label"), ("gold", "pred"), ("human_class", "model_class")],
)
def test_what_is_known_goes_before_what_a_program_said(tmp_path, known, guessed):
    kinds = ["buys", "sells", "waits"] * 8
    columns = {"text": TOLD, guessed: kinds[1:] + kinds[:1], known: kinds}
    assert follow(write(tmp_path, **columns))["mapping"]["completion"] == known


def test_what_was_found_in_a_text_is_not_read_with_it(tmp_path):
    columns = dict(note=TOLD, skipper=["Odd"] * 12 + ["Skipper Odd"] * 12, sum=[f"{n + 3} crowns" for n in range(24)],
                   place=["in Varde", "Varde"] * 12, kind=["purchase", "sale", "gift"] * 8)  # fmt: skip
    said = {"prompt": "note", "completion": "kind"}
    report = describe(
        DatasetSpec(source=write(tmp_path, **columns), format="prompt_completion", mapping=said)
    )
    assert all(names[0] == "" for role, names in choices(report).items() if role.startswith("material"))


def test_a_title_that_is_cut_off_is_no_question(tell):
    asked = [
        f"How long did the tug number {n} wait for the tide at the old quay, and who paid?" for n in range(12)
    ]
    report = tell(title=[words[:30] + "..." for words in asked], summary=asked)
    assert report["needs_answer"]


def test_codes_are_what_a_text_is_told_of(tell):
    report = tell(column_1=[f"K{n:03}" for n in range(12)], column_2=TOLD[:12])
    assert choices(report) == {"prompt": ["column_1", "column_2"], "completion": ["column_2", "column_1"]}
