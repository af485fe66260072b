"""Labels that were found out about a text are its answer; the words that they are about are read with it."""

import pytest

from studio.data.columns import measure_columns
from studio.data.labels import find_label, points_into

SHIPS = "Alma Bruna Cosima Dora Elba Fides Greta Hulda Irma Jutta Klara Luna".split()
TOLD = [
    f"The barge {ship} lay {n + 2} days at the quay of Brenn with a torn sail."
    for n, ship in enumerate(SHIPS)
]
SAID = [f"Its crew had sewn the sail of the {ship} by hand and went on after {n + 3} nights."
        for n, ship in enumerate(SHIPS)]  # fmt: skip
KINDS = ["calm", "angry", "late"] * 4


def label(asked, **columns):
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return find_label(asked, [*measure_columns([*columns], rows).values()], rows)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"label": KINDS}, "label"),
        ({"label": [0, 1] * 6, "raw_text": TOLD}, "label"),
        ({"category": KINDS}, "category"),
        (
            {"category": KINDS, "id": [*range(12)], "date": ["2020-01-01"] * 6 + ["2020-01-02"] * 6},
            "category",
        ),
        ({"v1": KINDS}, "v1"),
        ({"label": [0, 1, 2] * 4, "label_text": KINDS}, "label_text"),
        ({"label": KINDS, "genre": ["log", "letter"] * 6}, "label"),
        ({"intent": KINDS, "level": ["high", "low"] * 6}, ""),
        ({"toxic": [0, 1] * 6, "emotion": KINDS}, ""),
        ({"label": KINDS, "answer": SAID}, ""),
        ({"category": KINDS, "author": SHIPS, "answer": SAID}, ""),
        ({"labels": [["calm"], ["calm", "late"]] * 6}, ""),
        ({"mood": KINDS}, ""),
    ],
    ids=lambda one: " ".join(one),
)
def test_the_label_of_a_text(columns, found):
    assert label("text", text=TOLD, **columns) == found


def test_what_is_said_of_a_claim_and_its_evidence_is_said_of_both():
    assert label("premise", premise=TOLD, hypothesis=SAID, label=KINDS) == "label"
    assert label("prompt", prompt=TOLD, response=SAID, label=[0, 1] * 6) == ""


def test_words_that_stand_in_their_text():
    rows = [{"text": text, "ship": ship, "rank": "third"} for text, ship in zip(TOLD, SHIPS, strict=True)]
    known = measure_columns(["text", "ship", "rank"], rows)
    assert points_into(known["ship"], ["text"], rows)
    assert not points_into(known["rank"], ["text"], rows) and not points_into(known["text"], ["ship"], rows)


def test_the_words_that_a_label_is_about_are_read_with_the_text(tell):
    named = [("prompt", "text"), ("completion", "label")]
    report = tell(text=TOLD, aspect=SHIPS, label=KINDS, answers=named)
    assert report["mapping"] == {"prompt": "text", "completion": "label", "material": "aspect"}
    assert not report["needs_answer"]
