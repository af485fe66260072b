"""The first look: rows, messages and tokens of the head, and what stands in the way."""

import time

from studio.core.recipe import DatasetSpec
from studio.data.preview import preview
from studio.data.render import render


def test_tokens_shown_are_the_tokens_trained(chat_file, tokenizer_of):
    tokenizer = tokenizer_of("chatml")
    shown = preview(DatasetSpec(source=str(chat_file)), tokenizer, rows=3)
    assert (shown.format, shown.mapping, shown.columns) == (
        "messages",
        {"messages": "messages"},
        ("messages",),
    )
    assert len(shown.rows) == len(shown.rendered) == 3 and shown.refusal is None
    row = shown.rendered[1]
    assert [message.content for message in row.messages] == ["say 1", "it is 7"]
    assert "".join(token.text for token in row.tokens) == row.text
    assert "".join(token.text for token in row.tokens if token.trained) == "it is 7<|im_end|>"
    from studio.data.conversation import Conversation

    rendered = render(Conversation(messages=row.messages), tokenizer, "answers", 1024)
    assert [token.id for token in row.tokens] == rendered.token_ids.tolist()


def test_without_a_tokenizer(chat_file):
    shown = preview(DatasetSpec(source=str(chat_file)), None)
    assert len(shown.rendered) == 5
    assert shown.rendered[0].tokens == () and shown.rendered[0].messages[0].content == "say 0"


def test_cut_row(chat_file, tokenizer_of):
    shown = preview(DatasetSpec(source=str(chat_file), max_length=16), tokenizer_of("chatml"), rows=1)
    assert shown.rendered[0].cut and len(shown.rendered[0].tokens) == 16


def test_question_still_shows_the_rows(tmp_path, jsonl, tokenizer_of):
    path = jsonl(tmp_path / "a.jsonl", [{"a": "<b>x</b>", "b": None, "c": [1]}])
    shown = preview(DatasetSpec(source=str(path)), tokenizer_of("chatml"))
    assert shown.format == "" and shown.refusal.what.id == "data.unclear"
    assert shown.questions[0].field == "data.mapping.text"
    assert shown.rows == ({"a": "<b>x</b>", "b": "", "c": "[1]"},)


def test_no_template_still_shows_the_messages(chat_file, tokenizer_of):
    shown = preview(DatasetSpec(source=str(chat_file)), tokenizer_of("plain"), rows=2)
    assert shown.refusal.what.id == "data.render.no_template"
    assert [row.messages[0].content for row in shown.rendered] == ["say 0", "say 1"]


def test_bad_rows_of_the_head_are_named(tmp_path, jsonl, english):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "one"}, {"text": ""}, {"text": "three"}])
    shown = preview(DatasetSpec(source=str(path)), None)
    assert [row.text for row in shown.rendered] == ["one", "three"]
    assert [english(problem) for problem in shown.problems] == ["Line 2: The column text is empty."]


def test_only_the_head_is_read(tmp_path):
    path = tmp_path / "big.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(200):
            file.write('{"text": "' + "words " * 20_000 + '"}\n' * 1)
    begin = time.process_time()  # what others do on this machine is no matter
    assert len(preview(DatasetSpec(source=str(path)), None).rows) == 5
    assert time.process_time() - begin < 2
