"""The answers of a run, step by step, out of a file that grows, is begun anew, and may be torn."""

from __future__ import annotations

import json

import pytest

from studio.services.run_answers import ANSWERS_FILE, WHICH, AnswerFilter, RunAnswers


def line(step, row, answer, total, *, ended=True, tokens=3, notes=()):
    return json.dumps(
        {
            "step": step, "row": row, "prompt": f"prompt {row}", "answer": answer, "scores": {"exact": total},
            "total": total, "advantage": 0.5, "length_tokens": tokens, "ended": ended, "notes": list(notes),
        }
    ).encode() + b"\n"  # fmt: skip


@pytest.fixture
def answers(workspace):
    """The desk's answers and the file of run `r`."""
    folder = workspace.runs / "r"
    folder.mkdir(parents=True)
    return RunAnswers(workspace), folder / ANSWERS_FILE


def read(answers, **wanted):
    return answers[0].read("r", AnswerFilter(**wanted))


def test_a_run_without_answers_has_none(answers):
    assert read(answers) is None and answers[0].measure("r") == 0


def test_steps_are_found_as_the_file_grows(answers):
    _, file = answers
    file.write_bytes(line(1, 0, "a", 1.0) + line(1, 0, "b", 0.0) + line(2, 1, "c", 1.0)[:-4])
    page = read(answers)
    assert page.step == 1 and [row["answer"] for row in page.rows] == ["a", "b"] and page.names == ("exact",)
    with file.open("ab") as grown:
        grown.write(line(2, 1, "c", 1.0)[-4:] + line(2, 1, "d", 0.0) + line(3, 2, "e", 1.0))
    assert read(answers).step == 3 and read(answers).steps == (1, 2, 3)
    assert [row["answer"] for row in read(answers, step=2).rows] == ["c", "d"]
    assert read(answers, step=99).step == 3


def test_a_file_that_was_begun_anew_is_read_anew(answers):
    _, file = answers
    file.write_bytes(line(1, 0, "a", 1.0) + line(2, 0, "b", 1.0))
    assert read(answers).step == 2
    other = file.with_suffix(".new")
    other.write_bytes(line(1, 0, "other", 1.0) + line(1, 0, "more", 1.0) + line(4, 0, "z", 1.0))
    other.replace(file)
    assert read(answers).steps == (1, 4) and read(answers, step=1).count == 2


def test_filters(answers):
    _, file = answers
    file.write_bytes(
        line(1, 0, "middle", 0.5)
        + line(1, 0, "BEST", 1.0, tokens=9)
        + line(1, 1, "cut", 0.0, ended=False)
        + line(1, 1, "broken", None, notes=["mine: raised: x"])
        + b"no JSON\n"
    )

    def shown(**wanted):
        return [row["answer"] for row in read(answers, **wanted).rows]

    assert shown() == ["middle", "BEST", "cut", "broken"]
    assert shown(which="best")[0] == "BEST" and shown(which="worst")[:2] == ["broken", "cut"]
    assert (
        shown(which="long")[0] == "BEST"
        and shown(which="cut") == ["cut"]
        and shown(which="unscored") == ["broken"]
    )
    assert shown(words="best") == ["BEST"] and shown(words="prompt 1") == ["cut", "broken"]
    assert read(answers, words="nothing").count == 4 and shown(words="nothing") == []
    assert set(WHICH) == {"all", "best", "worst", "long", "cut", "unscored"}
