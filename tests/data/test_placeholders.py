"""What an export writes in place of a picture or a voice message is no message; names and times may stand above one."""

import pytest

from studio.data.formats.placeholders import is_placeholder


@pytest.mark.parametrize(
    "words",
    ["[图片]", "<Media omitted>", "\u200eimage omitted", "[Photo]", "[Voice message 0:12]", "[文件: a.pdf]",
     "<attached: tide.jpg>", "Missed voice call", "Medien ausgeschlossen", '<msg><emoji cdnurl="x"/></msg>',
     "【语音】", "audio omitido"],
)  # fmt: skip
def test_marks_of_what_is_not_there(words):
    assert is_placeholder(words)


@pytest.mark.parametrize(
    "words",
    ["The image is omitted on purpose.", "[see above]", "(I lost the file)", "Send me a photo!", "[1]", "图片很漂亮",
     "<b>file</b>", "[call me]", "", None, 7, "[Photo] of the harbour at dusk"],
)  # fmt: skip
def test_words_about_them_are_words(words):
    assert not is_placeholder(words)


CHAT = ["Is the net ready?", "Tonight it is.", "[图片]", "[Voice message 0:09]", "Shall I bring tar?",
        "Two buckets, please.", "Good.", "See you at the quay."]  # fmt: skip


@pytest.mark.parametrize("form", ["{time} {who}\n{words}\n", "{who} {time}\n{words}\n"])
def test_names_and_times_above_messages(tmp_path, form):
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    lines = [
        form.format(time=f"2024-05-02 10:0{n}:11", who=("Odd", "Marit")[n % 2], words=words)
        for n, words in enumerate(CHAT)
    ]
    path = tmp_path / "chat.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    report = describe(DatasetSpec(source=str(path), speaker="Marit"), rows=2)
    said = [turn["content"] for turn in report["preview"][0]["messages"]]
    assert report["format"] == "messages" and report["rows_used"] == 1
    assert not any("[" in words for words in said) and said[0] == "Is the net ready?"
    assert any(note.values.get("count") == 2 for note in report["source_notes"])
