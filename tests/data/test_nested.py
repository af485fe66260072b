"""Questions that lie inside of their articles become rows, with what stands around them."""

from studio.data.nested import find_nested
from studio.data.row import Row

ARTICLE = {
    "title": "Mills",
    "paragraphs": [
        {
            "context": "Wind turns it.",
            "qas": [{"question": "What turns it?", "answers": [{"text": "Wind"}], "id": 1}],
        },
        {
            "context": "It grinds.",
            "qas": [{"question": "What does it do?", "answers": [{"text": "It grinds"}], "id": 2}],
        },
    ],
}


def test_questions_of_an_article():
    step = find_nested(["title", "paragraphs"], [ARTICLE])
    assert step.path == ("paragraphs", "qas")
    made = list(step.apply([Row(3, ARTICLE, None, 1, 7), Row(9, {"title": "none"}, None, 2, 70)]))
    assert [row.values.get("context") for row in made] == ["Wind turns it.", "It grinds.", None]
    assert made[0].values == {"title": "Mills", "context": "Wind turns it.", "question": "What turns it?",
                              "answers": [{"text": "Wind"}], "id": 1}  # fmt: skip
    assert [(row.line, row.row, row.offset) for row in made] == [(3, 1, 7), (3, 2, 7), (9, 3, 70)]


def test_rows_that_ask_themselves_stay():
    row = {"question": "q", "answer": "a", "more": [{"question": "x", "answer": "y"}]}
    assert find_nested(["question", "answer", "more"], [row]) is None
    assert find_nested(["tags"], [{"tags": [{"name": "a"}]}]) is None


def test_talks_and_translations_deep_in_lists_are_rows(tell):
    turns = [
        {"who": "A", "said": "Is the tide in already, down at the quay?"},
        {"who": "B", "said": "Not before noon, they say."},
    ]
    report = tell(
        [{"place": f"quay {n}", "days": [{"day": d, "talk": turns} for d in range(2)]} for n in range(6)],
        file="a.json",
    )
    assert report["rows_read"] == 12
    pairs = [
        {"en": f"The quay number {n} is dry.", "de": f"Der Kai Nummer {n} ist trocken."} for n in range(4)
    ]
    report = tell([{"unit": n, "pages": [{"no": 1, "sentences": pairs}]} for n in range(5)], file="b.json")
    assert report["needs_answer"][0]["choices"] == ["en", "de"] and report["rows_read"] == 20


def test_sources_and_what_became_of_them_are_rows():
    pairs = [
        {"source": f"It lies {n} days.", "target": f"It lay for {n} days at the quay."} for n in range(4)
    ]
    rows = [{"title": "Quay", "contents": pairs[:3]}, {"title": "Mill", "contents": pairs[3:]}]
    step = find_nested(["title", "contents"], rows)
    made = [row.values for n, one in enumerate(rows) for row in step.apply([Row(n, one, None, n)])]
    assert made == [{"title": "Quay", **pair} for pair in pairs[:3]] + [{"title": "Mill", **pairs[3]}]
    named = {"title": "Quay", "contents": [{"name": "Alma", "text": "It lies here."}]}
    assert find_nested(["title", "contents"], [named]) is None
