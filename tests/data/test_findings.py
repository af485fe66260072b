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
    assert "data.sniff.picked" not in str(report["reason"]), (
        "nothing is said to be picked where all is learned"
    )


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


def test_a_text_and_what_was_found_in_it_as_a_list(tell, tmp_path):
    rows = [[text, {"entities": marks}] for text, marks in zip(TOLD, MARKS, strict=True)]
    for name, whole in (("a.json", rows), ("b.json", {"classes": ["WHO", "WHERE"], "annotations": rows})):
        path = tmp_path / name
        path.write_text(json.dumps(whole), encoding="utf-8")
        report = follow(str(path))
        assert report["mapping"] == {"prompt": "text", "completion": "entities"} and report["rows_used"] == 24


def test_a_text_and_its_number_as_a_list(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(
        json.dumps({"about": "0 low, 1 high", "data": [[text, n % 2] for n, text in enumerate(TOLD)]})
    )
    report = follow(str(path))
    assert report["mapping"] == {"prompt": "text", "completion": "label"}


def test_nothing_found_is_an_answer(tmp_path):
    marks = [found if n % 2 else [] for n, found in enumerate(MARKS)]
    report = follow(write(tmp_path, text=TOLD, entities=marks))
    assert report["rows_used"] == 24 and report["preview"][0]["messages"][-1]["content"] == "[]"


def test_events_are_found_by_the_words_that_they_name(tell):
    events = [[{"type": "PAY", "trigger": "paid", "who": "Odd"}] for _ in TOLD]
    assert tell(text=TOLD, event_list=events)["needs_answer"][0]["choices"] == ["prompt_completion", "text"]


def test_what_a_relation_is_between_is_read_with_the_text(tmp_path):
    subj = [{"text": "Odd", "start": 8, "end": 11} for _ in TOLD]
    obj = [{"text": "Varde", "start": text.index("Varde"), "end": len(text) - 1} for text in TOLD]
    kinds = ["lives_in", "none"] * 12
    report = follow(write(tmp_path, text=TOLD, relation=kinds, subj=subj, obj=obj))
    assert report["mapping"]["completion"] == "relation"
    assert {report["mapping"].get("material"), report["mapping"].get("material_2")} == {"subj", "obj"}


def test_two_texts_that_are_judged_are_both_read_beside_all_their_other_forms(tmp_path):
    other = [f"Skipper Odd of the tug number {n} had {n + 1} crowns left over for tar." for n in range(24)]
    forms = {f"statement{k}_{form}": [form + " " + one.upper() for one in texts] for form in ("x", "y", "z")
             for k, texts in ((1, TOLD), (2, other))}  # fmt: skip
    report = follow(write(tmp_path, statement1=TOLD, statement2=other, answer=["yes", "no"] * 12, **forms))
    assert report["mapping"]["prompt"] == "statement1" and report["mapping"]["material"] == "statement2"


@pytest.mark.parametrize(("key", "order"), [("number", "{}.{}"), ("条", "第{}{}条"), ("step", "{}{}")])
def test_numbered_parts_of_a_whole_are_learned_together(tell, key, order):
    parts = [
        [{key: order.format(n, i), "text": f"Part {n} {i} says a thing."} for i in range(1, 5)]
        for n in range(24)
    ]
    report = tell(
        question=[f"What stands in chapter {n} of the act?" for n in range(24)],
        articles=parts,
        answers=(("prompt", "question"), ("completion", "articles")),
    )
    assert report["needs_answer"] == [] and "data.sniff.joined" in str(report["reason"])
    learned = report["preview"][0]["messages"][-1]["content"]
    assert learned.split("\n") == [f"Part 0 {i} says a thing." for i in range(1, 5)]


@pytest.mark.parametrize("key", ["id", "index", "rank"])
def test_numbered_wordings_of_an_answer_are_not(tell, key):
    parts = [[{key: i, "text": f"Draft {i} of {n} says a thing."} for i in range(1, 5)] for n in range(24)]
    report = tell(
        question=[f"What stands in chapter {n} of the act?" for n in range(24)],
        replies=parts,
        answers=(("prompt", "question"), ("completion", "replies")),
    )
    assert report["preview"][0]["messages"][-1]["content"] == "Draft 1 of 0 says a thing."


def test_parts_with_more_than_their_text_keep_all_of_it(tell):
    parts = [[{"step": i, "title": f"T{i}", "text": f"Do {n} {i}."} for i in range(1, 4)] for n in range(24)]
    report = tell(
        question=[f"How is it done in case {n}?" for n in range(24)],
        guide=parts,
        answers=(("prompt", "question"), ("completion", "guide")),
    )
    learned = report["preview"][0]["messages"][-1]["content"]
    assert all(f"T{i}" in learned and f"Do 0 {i}." in learned for i in range(1, 4))
