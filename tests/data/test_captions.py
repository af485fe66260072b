"""Subtitles: what is said stays, the numbers and times of the player go."""

import io

import pytest

from studio.data.containers import captions

SRT = (
    "1\r\n00:00:01,000 --> 00:00:02,500\r\nThe tide <i>turns</i>.\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,000\r\nCast off\r\nnow.\r\n"
)
VTT = (
    "WEBVTT\nKind: captions\n\nNOTE made by hand\n\n"
    "00:01.000 --> 00:02.000 align:start\n<v Alma>Cast off &amp; go.\n"
)
SBV = "0:00:01.000,0:00:02.000\nThe tide turns.\n\n0:00:02.000,0:00:03.000\nThe tide turns.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [(SRT, "The tide turns.\nCast off now."), (VTT, "Alma: Cast off & go."), (SBV, "The tide turns.")],
    ids=["srt", "vtt", "sbv"],
)
def test_what_is_said(words, said):
    rows = list(captions.iterate(io.BytesIO(words.encode()), "utf-8", None))
    assert [row.values for row in rows] == [{"text": said}]


def test_a_file_without_captions_has_no_rows():
    assert list(captions.iterate(io.BytesIO(b"WEBVTT\n\nNOTE nothing\n"), "utf-8", None)) == []
