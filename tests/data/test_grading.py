"""Labels beside a text are asked about, and whether the text or the label comes first."""

TEXTS = [
    " ".join(f"Line {k} of page {n} tells of the quay of Brenn and its {k * n} ships." for k in range(6))
    for n in range(12)
]
KINDS = ["sea", "land", "ice"] * 4


def formats(report):
    return report["needs_answer"][0]["choices"]


def test_a_category_only_sorts_documents_whose_provenance_is_told(tell):
    origin = {
        "url": [f"https://quay.example/{n}" for n in range(12)],
        "authors": ["Ida Brand", "Ole Holm"] * 6,
    }
    assert formats(tell(text=TEXTS, category=KINDS, **origin)) == ["text", "prompt_completion"]
    assert formats(tell(text=TEXTS, label=KINDS, **origin)) == ["prompt_completion", "text"]
    assert formats(tell(text=TEXTS, category=KINDS)) == ["prompt_completion", "text"]


def test_marks_of_words_beside_a_text_are_asked_about(tell):
    words = [text.split()[:12] for text in TEXTS]
    marks = [[(n + k) % 3 for k in range(12)] for n in range(12)]
    assert formats(tell(text=TEXTS, tokens=words, ner_tags=marks)) == ["prompt_completion", "text"]
    report = tell(
        token=words,
        tag=[["O" if one else "B" for one in row] for row in marks],
        intent=[[one] for one in KINDS],
    )
    asked = {one["field"].removeprefix("data.mapping."): one["choices"][0] for one in report["needs_answer"]}
    assert asked == {"prompt": "token", "completion": "tag"}


def test_of_a_document_and_its_description_the_document_is_read(tell):
    said = [f"A page on the ships of Brenn, part {n}" for n in range(12)]
    report = tell(description=said, transcription=TEXTS, specialty=KINDS)
    assert report["needs_answer"][0]["choices"][0] == "transcription"


def test_a_day_in_words_is_no_text(tell):
    days = [f"Mon Apr {n + 6:02d} 22:19:{n + 10} PDT 2009" for n in range(12)]
    report = tell(posted=days, tweet=[text[:40] for text in TEXTS], polarity=["0", "4"] * 6)
    assert all("posted" not in one["choices"] for one in report["needs_answer"])


def test_what_was_measured_of_a_crawled_document_is_no_label(tell):
    origin = {
        "link": [f"https://quay.example/{n}" for n in range(12)],
        "language": ["en"] * 12,
        "token_count": [n + 80 for n in range(12)],
    }
    report = tell(text=TEXTS, section=KINDS, int_score=[3, 4] * 6, **origin)
    assert not report["needs_answer"] and report["format"] == "text"
    assert formats(tell(text=TEXTS, label=KINDS, **origin)) == ["prompt_completion", "text"]


def test_the_first_rows_of_a_file_sorted_by_its_labels(tell):
    short = [text[:40] for text in TEXTS]
    assert formats(tell(text=short, category=["boats"] * 12)) == ["prompt_completion", "text"]
    assert not tell(text=short, source=["log"] * 12)["needs_answer"]


def test_a_verdict_is_asked_about_also_where_names_decide_what_is_learned(tell):
    said = [f"The quay of Brenn has {n + 3} berths, and each of them is taken in winter." for n in range(12)]
    asked = [f"berths {n}" for n in range(12)]
    report = tell(query=asked, final_answer=said, is_helpful=[True, True, False] * 4)
    (question,) = report["needs_answer"]
    assert question["choices"] == ["prompt_completion", "kto"] and report["confidence"] <= 0.8
    report = tell(query=asked, final_answer=said, is_helpful=[True] * 12)
    assert not report["needs_answer"]
