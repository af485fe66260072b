"""The journal of answers: what was written is read again, a torn line is not, and another's is left alone."""

from __future__ import annotations

from studio.engine.answer_journal import AnswerJournal, ExpectedLoss, Judgement, WrittenAnswer

ANSWER = WrittenAnswer('words\u2028 "and" more\n', 5, -1.25, "end")


def test_what_was_written_is_read_again(tmp_path):
    journal = AnswerJournal(tmp_path / "a" / "b.jsonl", {"who": "x"})
    assert not (tmp_path / "a").exists(), "nothing is made before there is an answer"
    journal.add(3, "answer", ANSWER)
    journal.add(3, "loss", ExpectedLoss(2.5, 4))
    journal.add(3, "verdict", Judgement(None, "unsure"), "r1")
    journal.close()
    again = AnswerJournal(tmp_path / "a" / "b.jsonl", {"who": "x"})
    assert again.answers == {3: ANSWER} and again.losses == {3: ExpectedLoss(2.5, 4)}
    assert again.verdicts == {(3, "r1"): Judgement(None, "unsure")}


def test_a_line_that_a_killed_process_began_is_written_anew(tmp_path):
    path = tmp_path / "j.jsonl"
    journal = AnswerJournal(path, {"who": "x"})
    for row in (1, 2):
        journal.add(row, "answer", ANSWER)
    journal.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        again = AnswerJournal(path, {"who": "x"})
        for row in (1, 2):
            if row not in again.answers:
                again.add(row, "answer", ANSWER)
        again.close()
        assert path.read_bytes() == whole, cut


def test_what_is_of_others_or_damaged_is_begun_anew(tmp_path):
    path = tmp_path / "j.jsonl"
    journal = AnswerJournal(path, {"who": "x"})
    for row in (1, 2, 3):
        journal.add(row, "answer", ANSWER)
    journal.close()
    assert not AnswerJournal(path, {"who": "y"}).answers
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0\0\0\n", *lines[3:]]))
    again = AnswerJournal(path, {"who": "x"})
    assert set(again.answers) == {1}
    again.add(2, "answer", ANSWER)
    again.close()
    assert set(AnswerJournal(path, {"who": "x"}).answers) == {1, 2}
