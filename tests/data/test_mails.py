"""Mails: headers, bodies in both forms, what is quoted, many in one file; and what merely looks like one."""

from __future__ import annotations

import io
from email.message import EmailMessage

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.containers import mails
from studio.data.source import open_source


def write(subject="Hello", words="My order is late.", sender="Ann Lee <ann@example.org>", **headers):
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, "help@example.org", subject
    mail["Date"] = "Mon, 03 Mar 2025 10:11:00 +0100"
    for name, value in headers.items():
        mail[name.replace("_", "-")] = value
    mail.set_content(words)
    return mail


def read(data: bytes):
    assert mails.accept(data[:65536], "")
    return [row.values for row in mails.iterate(io.BytesIO(data), "", None)]


def test_a_mail_is_a_row_of_its_headers_and_words():
    (found,) = read(
        bytes(write(Message_ID="<1@example.org>", subject="Größe", words="Hä?\n\n-- \nAnn, Sales\n"))
    )
    assert found == {
        "message_id": "<1@example.org>", "in_reply_to": None, "date": "Mon, 03 Mar 2025 10:11:00 +0100",
        "sender": "Ann Lee", "to": "help@example.org", "subject": "Größe", "text": "Hä?",
        "quoted": "-- \nAnn, Sales", "attachments": None,
    }  # fmt: skip


def test_html_is_read_as_words_and_attachments_are_named():
    mail = write()
    mail.clear_content()
    mail.set_content(
        "<style>p {x: y}</style><p>One &amp; two</p><script>bad()</script><p>three</p>", subtype="html"
    )
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="bill.pdf")
    (found,) = read(bytes(mail))
    assert found["text"] == "One & two\nthree"
    assert found["attachments"] == "bill.pdf"


def test_what_an_answer_quotes_at_its_end_is_no_part_of_it():
    words = "It comes on Tuesday.\n\nOn Monday, Ann Lee wrote:\n> My order is late.\n> Where is it?\n"
    (found,) = read(bytes(write(words=words, In_Reply_To="<1@example.org>")))
    assert found["text"] == "It comes on Tuesday."
    assert found["quoted"] == "On Monday, Ann Lee wrote:\n> My order is late.\n> Where is it?"
    below = "> My order is late.\nIt comes on Tuesday."
    (found,) = read(bytes(write(words=below)))
    assert found["text"] == below and found["quoted"] is None


def test_an_mbox_holds_many_and_its_marks_are_no_words():
    one, two = bytes(write()), bytes(write(words="On paper.\n\nFrom here it is far.\n"))
    two = two.replace(b"\nFrom here", b"\n>From here")
    data = b"".join(b"From ann@example.org Mon Mar  3 10:11:00 2025\n" + one + b"\n" for one in (one, two))
    rows = list(mails.iterate(io.BytesIO(data), "", None))
    assert [row.values["text"] for row in rows] == ["My order is late.", "On paper.\n\nFrom here it is far."]
    assert rows[1].line > rows[0].line == 2


def test_a_mail_of_a_broken_encoding_is_read_as_far_as_it_can_be():
    data = (
        b"From: a@example.org\nTo: b@example.org\nSubject: =?no-such?q?x?=\nDate: never\n"
        b"Content-Type: text/plain; charset=no-such\n\nCaf\xe9 at five\n"
    )
    (found,) = read(data)
    assert "at five" in found["text"]


@pytest.mark.parametrize(
    "words",
    [
        b"From: the beginning\nthis is a poem\nTo: nobody\n",
        b"Subject: x\n\nFrom: a\nTo: b\nDate: c\n",
        b"Notes\nFrom: a\nTo: b\nSubject: c\nDate: d\n",
    ],
)
def test_what_only_has_such_words_is_no_mail(words):
    assert not mails.accept(words, ".eml")


def test_mails_that_answer_each_other_are_conversations(tmp_path):
    data = b""
    for number in range(3):
        asked = write(Message_ID=f"<q{number}@x>", words=f"Where is order {number}?")
        said = write(
            Message_ID=f"<a{number}@x>", In_Reply_To=f"<q{number}@x>", sender="Help <help@example.org>",
            subject="Re: Hello", words=f"Order {number} comes soon.",
        )  # fmt: skip
        for mail in (asked, said):
            data += b"From x@example.org Mon Mar  3 10:11:00 2025\n" + bytes(mail) + b"\n"
    path = tmp_path / "help.mbox"
    path.write_bytes(data)
    (file,) = open_source(DatasetSpec(source=str(path), speaker="Help")).splits["train"]
    assert file.container == "mails"
    talks = [[(turn["role"], turn["content"]) for turn in row.values["messages"]] for row in file.rows()]
    assert talks == [
        [("user", f"Where is order {n}?"), ("assistant", f"Order {n} comes soon.")] for n in range(3)
    ]
