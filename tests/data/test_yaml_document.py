"""YAML files: rows as in JSON, talks written as lists of texts, and examples of intents."""

import io

import pytest

from studio.core.errors import StudioError
from studio.data.containers import yaml_document
from studio.data.containers.container import ReadOptions


def read(words):
    rows = yaml_document.iterate(io.BytesIO(words.encode()), "utf-8", ReadOptions(name="a.yaml"))
    return [row.values for row in rows]


def test_rows_of_a_list_and_of_an_object_around_one():
    rows = [{"question": "Where?", "answer": "At the quay."}] * 2
    listed = "- question: Where?\n  answer: At the quay.\n" * 2
    assert read(listed) == rows
    assert read("version: 1\nrows:\n" + listed) == rows


def test_talks_and_intents():
    assert read("categories: [quay]\nconversations:\n- - Where?\n  - There.\n") == [
        {"conversation": ["Where?", "There."]}
    ]
    found = read("nlu:\n- intent: ask\n  examples: |\n    - Where?\n    - Which quay?\n")
    assert found == [{"text": "Where?", "intent": "ask"}, {"text": "Which quay?", "intent": "ask"}]


@pytest.mark.parametrize(
    "words", ["- [1", "words", "a: &a [x]\nb: [*a, *a]\n", "!!python/object/new:os.system [ls]"]
)
def test_what_is_no_data_is_refused(words):
    with pytest.raises(StudioError) as refusal:
        read(words)
    assert refusal.value.why.id == "data.source.yaml"
