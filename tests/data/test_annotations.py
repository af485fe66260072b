"""What annotation tools export is read as columns named as in their forms."""

import json

import pytest

TOLD = [f"The barge number {n} lay {n + 2} days at the quay of Brenn with a torn sail." for n in range(24)]
MOODS = ["calm", "angry", "late"] * 8


def tell_rows(tell, rows):
    return tell(rows, file="rows.json")


def result(name, **value):
    return {"from_name": name, "to_name": "text", "type": "choices", "value": value}


def task(n, *results, cancelled=False):
    return {"id": n, "data": {"text": TOLD[n]}, "predictions": [],
            "annotations": [{"result": [*results], "was_cancelled": cancelled, "lead_time": 3.5}]}  # fmt: skip


def answers(report):
    assert not report["needs_answer"]
    return [row["messages"][-1]["content"] for row in report["preview"]]


def test_choices_of_tasks_are_labels(tell):
    report = tell_rows(tell, [task(n, result("mood", choices=[MOODS[n]])) for n in range(24)])
    assert report["columns"] == ["id", "text", "mood"] and report["rows_used"] == 24
    assert answers(report)[0] == "calm" and report["confidence"] == 0.9


def test_two_things_that_were_asked_of_one_text_are_a_question(tell):
    rows = [
        task(n, result("mood", choices=[MOODS[n]]), result("place", choices=[MOODS[n - 1]]))
        for n in range(24)
    ]
    assert tell_rows(tell, rows)["needs_answer"]


def test_a_flat_export_tells_by_its_notes_that_a_column_is_a_label(tell):
    rows = [
        {"id": n, "text": TOLD[n], "mood": MOODS[n], "annotator": 1, "annotation_id": n, "lead_time": n + 0.5}
        for n in range(24)
    ]
    report = tell_rows(tell, rows)
    assert answers(report)[0] == "calm" and report["mapping"] == {"prompt": "text", "completion": "mood"}
    plain = [{"text": row["text"], "mood": row["mood"]} for row in rows]
    assert tell_rows(tell, plain)["needs_answer"]


def test_texts_that_people_wrote_are_answers(tell):
    rows = [task(n, result("summary", text=[f"Barge {n} waited at the quay."])) for n in range(24)]
    assert answers(tell_rows(tell, rows))[0] == "Barge 0 waited at the quay."


def test_marked_words_keep_their_labels(tell):
    rows = [task(n, result("entities", start=4, end=9, text="barge", labels=["SHIP"])) for n in range(24)]
    report = tell_rows(tell, rows)
    assert "entities" in report["columns"] and "annotations" not in report["columns"]


def test_a_task_that_was_cancelled_has_no_answer(tell):
    rows = [task(n, result("sentiment", choices=[MOODS[n]]), cancelled=n == 3) for n in range(24)]
    report = tell_rows(tell, rows)
    assert report["rows_read"] == 24 and report["rows_used"] == 23


@pytest.mark.parametrize("status", ["submitted", "discarded"])
def test_responses_count_where_they_were_submitted(tell, status):
    given = ["submitted"] * 23 + [status]
    rows = [
        {"id": str(n), "fields": {"text": TOLD[n]}, "suggestions": {}, "metadata": {},
         "responses": {"sentiment": [{"value": MOODS[n], "status": given[n], "user_id": "a"}]}}
        for n in range(24)
    ]  # fmt: skip
    report = tell_rows(tell, rows)
    assert answers(report)[0] == "calm" and report["rows_used"] == 23 + (status == "submitted")


def test_accepted_options_are_labels_in_words(tell):
    options = [{"id": f"k{n}", "text": mood} for n, mood in enumerate(MOODS[:3])]
    rows = [
        {"text": TOLD[n], "options": options, "accept": [f"k{n % 3}"], "_task_hash": n,
         "answer": "accept" if n else "reject"}
        for n in range(24)
    ]  # fmt: skip
    report = tell_rows(tell, rows)
    assert answers(report)[0] == "angry" and report["rows_used"] == 23
    assert json.dumps(report["source_notes"], default=str)


def test_what_was_rejected_as_it_stood_does_not_count(tell):
    rows = [
        {
            "text": TOLD[n],
            "label": "DELAY",
            "_input_hash": n,
            "_task_hash": n,
            "answer": ("accept", "reject", "ignore")[n % 3],
        }
        for n in range(24)
    ]
    report = tell_rows(tell, rows)
    assert report["mapping"] == {"prompt": "text", "completion": "label", "weight": "weight"}
    assert answers(report)[0] == "DELAY"
    weights = [row["messages"][-1].get("weight", 1) for row in report["preview"]]
    assert weights == [1, 0]


def test_marked_words_that_were_accepted_are_learned_with_their_labels(tell):
    rows = [
        {"text": TOLD[n], "spans": [{"start": 4, "end": 9, "label": "SHIP"}] if n % 2 else [], "tokens": [],
         "_input_hash": n, "_task_hash": n, "answer": "accept"}
        for n in range(24)
    ]  # fmt: skip
    assert answers(tell_rows(tell, rows)) == ["[]", '[{"text": "barge", "label": "SHIP"}]']


def test_jobs_of_a_labelling_service_are_columns(tell):
    jobs = [{"MOOD": {"categories": [{"name": MOODS[n], "confidence": 100}]}} for n in range(24)]
    rows = [
        {"id": n, "content": TOLD[n], "labels": [{"labelType": "DEFAULT", "jsonResponse": jobs[n]}]}
        for n in range(24)
    ]
    report = tell_rows(tell, rows)
    assert report["mapping"] == {"prompt": "content", "completion": "MOOD"} and answers(report)[0] == "calm"
