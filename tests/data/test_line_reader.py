"""Lines: numbers and byte offsets in every encoding and newline style, text that looks like a line end, and bounds."""

import io

import pytest

from studio.data.line_reader import KEPT_BYTES, LineReader


def read(data: bytes, encoding: str = "utf-8", **options) -> list[tuple[int, int, bytes, bool]]:
    return list(LineReader(io.BytesIO(data), encoding, **options))


class Dripping(io.RawIOBase):
    """Gives `size` bytes a read, whatever is asked for."""

    def __init__(self, data: bytes, size: int) -> None:
        self.rest, self.size = data, size

    def read(self, size: int = -1) -> bytes:
        chunk, self.rest = self.rest[: self.size], self.rest[self.size :]
        return chunk


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", [(1, 0, b"a"), (2, 2, b"b")]),
        (b"a\nb", [(1, 0, b"a"), (2, 2, b"b")]),
        (b"a\r\n\r\nb\r\n", [(1, 0, b"a\r"), (2, 3, b"\r"), (3, 5, b"b\r")]),
        (b"a\rb\r\rc", [(1, 0, b"a"), (2, 2, b"b"), (3, 4, b""), (4, 5, b"c")]),
        (b"a\rb\nc", [(1, 0, b"a\rb"), (2, 4, b"c")]),
        (b"\xef\xbb\xbfa\nb", [(1, 3, b"a"), (2, 5, b"b")]),
        (b"\n\n", [(1, 0, b""), (2, 1, b"")]),
        (b"", []),
    ],
)
def test_line_ends(data, lines):
    assert [line[:3] for line in read(data)] == lines
    assert all(line[3] for line in read(data))


def test_only_newlines_end_a_line():
    words = "form\x0cfeed\x0b\x1c\x1d\x1e next\x85line \u2028 and \u2029 end"
    for encoding in ("utf-8", "utf-16-le", "utf-16-be", "gb18030"):
        lines = read(f"{words}\n{words}".encode(encoding), encoding)
        assert [line[2].decode(encoding) for line in lines] == [words, words]


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "gb18030", "big5", "shift_jis", "cp1252"]
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_offsets_are_those_of_the_file(encoding, newline):
    words = ["é" if encoding == "cp1252" else "中" * 3, "", "x", "y" * 40]
    if encoding.startswith("utf-16"):
        words[0] += "\u0a0d\u0d0a\u0a00"  # hold the bytes of line ends
    data = newline.join(words).encode(encoding)
    reader = LineReader(io.BytesIO(data), encoding)
    assert reader.encoding == {"utf-16": "utf-16-le"}.get(encoding, encoding)
    for number, offset, raw, _ in reader:
        assert data[offset : offset + len(raw)] == raw
        assert raw.decode(reader.encoding).removesuffix("\r") == words[number - 1]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_chunks_of_any_size_give_the_same_lines(size, encoding):
    data = "one\r\ntwo\n\nthree and more".encode(encoding)
    assert list(LineReader(Dripping(data, size), encoding)) == read(data, encoding)


def test_a_line_beyond_the_limit_is_cut_and_the_next_is_whole():
    long = b"x" * (3 * KEPT_BYTES)
    lines = read(b"a\n" + long + b"\nb\n" + long, limit_bytes=KEPT_BYTES + 5)
    assert [(number, offset, len(raw), whole) for number, offset, raw, whole in lines] == [
        (1, 0, 1, True),
        (2, 2, KEPT_BYTES, False),
        (3, 2 + len(long) + 1, 1, True),
        (4, 2 + len(long) + 3, KEPT_BYTES, False),
    ]


def test_a_line_within_the_limit_is_whole_over_many_chunks():
    long = b"x" * (5 * KEPT_BYTES + 1)
    assert read(long + b"\ny") == [(1, 0, long, True), (2, len(long) + 1, b"y", True)]


def test_a_part_of_a_file_keeps_its_place():
    assert read(b"c\nd", number=3, offset=4) == [(3, 4, b"c", True), (4, 6, b"d", True)]
