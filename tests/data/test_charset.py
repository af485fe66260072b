"""Encodings: marks, UTF-8 by its bytes, older ones guessed and never sure; conversion that breaks only broken rows."""

import io

import pytest

from studio.data import charset
from studio.data.charset import detect_encoding, from_utf8, open_utf8, read_head, skip_mark, to_utf8

TEXTS = {
    "cp1252": "Frage;Antwort\nWie heißt der Fluß?;Die Donau fließt durch Österreich – schön!\n",
    "gb18030": "问题,答案\n中国的首都是哪里？,北京是中国的首都。\n",
    "big5": "問題,答案\n台灣最高的山是什麼？,玉山是台灣最高的山。\n",
    "shift_jis": "質問,答え\n日本の首都はどこですか。,東京です。\n",
    "euc_kr": "질문,답변\n한국의 수도는 어디입니까,서울은 한국의 수도입니다\n",
    "cp1251": "вопрос;ответ\nКакая столица России?;Москва — столица России.\n",
}


def detect(data: bytes, suffix: str = ".csv", **options):
    return detect_encoding(io.BytesIO(data), suffix, **options)


@pytest.mark.parametrize("encoding", TEXTS)
def test_older_encodings_are_guessed_and_asked(encoding):
    guess = detect(TEXTS[encoding].encode(encoding))
    assert (guess.encoding, guess.sure) == (encoding, False)
    assert guess.choices[0] == encoding and guess.choices[-1] == "utf-8" and len(guess.choices) > 1


@pytest.mark.parametrize("text", TEXTS.values())
def test_unicode_is_sure(text):
    assert detect(text.encode("utf-8")) == charset._sure("utf-8")
    assert detect(text.encode("utf-8-sig")) == charset._sure("utf-8-sig")
    assert detect(text.encode("utf-16")) == charset._sure("utf-16")
    assert detect(b"\xfe\xff" + text.encode("utf-16-be")) == charset._sure("utf-16")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "text", ['{"a": "hello"}\n', '{"frage": "Größe"}\n', '{"问题": "你好"}\n{"问题": "好"}\n']
)
def test_utf16_without_a_mark(encoding, text):
    assert detect(text.encode(encoding), ".jsonl") == charset._sure(encoding)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        b'{"a": "x\0y"}\n',
        b'{"a": 1}\n{"a": "\xff"}\n{"a": 2}\n',
        '{"a": "Straße"}\n'.encode() * 5 + b'{"a": "Stra\xdfe"}\n' * 4,
        b'{"a": "ok"}\n{"a": "caf\xe9"}\n{"a": "ok"}\n',
    ],
)
def test_a_few_broken_lines_leave_json_in_utf8(data):
    assert detect(data, ".jsonl") == charset._sure("utf-8")


def test_one_western_line_makes_a_table_western():
    assert detect(b"q,a\nhello,caf\xe9\n").encoding == "cp1252"
    assert detect(b"q,a\nhello,x\xff\xfe\n") == charset._sure("utf-8")


def test_utf32_is_told_apart():
    assert detect("abc".encode("utf-32")).encoding == ""


def test_a_character_between_two_chunks(monkeypatch):
    monkeypatch.setattr(charset, "CHUNK_BYTES", 7)
    assert detect(("日本語" * 20).encode()) == charset._sure("utf-8")
    assert detect(("日本語" * 20).encode()[:-1]) == charset._sure("utf-8")


def test_the_scan_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr(charset, "CHUNK_BYTES", 64)
    data = b"plain ascii text\n" * 40 + TEXTS["cp1252"].encode("cp1252")
    assert detect(data, limit_bytes=128).sure and not detect(data, limit_bytes=0).sure


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", *TEXTS])
def test_conversion_there_and_back(encoding, monkeypatch):
    monkeypatch.setattr(charset, "CHUNK_BYTES", 5)
    words = TEXTS.get(encoding, "äöü 你好 🙂")
    data = words.encode(encoding)
    stream, plain, mark_bytes = skip_mark(io.BytesIO(data), encoding)
    converted = open_utf8(stream, plain).read()
    assert converted.decode() == words
    assert from_utf8(converted, plain) == data[mark_bytes:]
    assert to_utf8(data[mark_bytes:], plain) == converted
    assert read_head(io.BytesIO(data), encoding) == converted


@pytest.mark.parametrize(
    ("encoding", "data"), [("cp1252", b"a\x81b"), ("gb18030", b"a\xff\xffb"), ("shift_jis", b"a\x82\x20b")]
)
def test_broken_bytes_stay_broken_and_can_be_given_back(encoding, data):
    converted = open_utf8(io.BytesIO(data), encoding).read()
    with pytest.raises(UnicodeDecodeError):
        converted.decode("utf-8")
    assert from_utf8(converted, encoding) == data


def test_half_a_character_at_the_end_of_utf16():
    converted = open_utf8(io.BytesIO("ab".encode("utf-16-le") + b"c"), "utf-16-le").read()
    assert converted.startswith(b"ab") and len(converted) > 2


@pytest.mark.parametrize(
    ("encoding", "language", "sure"),
    [
        ("cp1251", "Фонарь на набережной починили после бури, и он горит каждую ночь.", True),
        ("shift_jis", "港の灯りは嵐のあとで直されました。毎晩あかるく光っています。", True),
        ("cp1252", "Die Brücke war für den Kahn zu schmal, hört man später am Flüsschen.", True),
        ("cp1250", "Az árvíztűrő tükörfúrógép műszerét a hűtőházban őrzik.", False),
        ("cp1250", "Zażółć gęślą jaźń, łódź płynie, a książka leży w Łodzi.", False),
        ("koi8_r", "Фонарь на набережной починили после бури, и он горит каждую ночь.", False),
        ("cp1253", "Το φανάρι επισκευάστηκε μετά την καταιγίδα από τη Μάρθα.", False),
    ],
)
def test_many_letters_decide_where_all_read_as_they_should(encoding, language, sure):
    guess = detect("\n".join([language] * 20).encode(encoding), ".txt")
    assert guess.sure == sure and (not sure or guess.encoding == encoding)


def test_signs_scattered_over_english_are_no_chinese():
    lines = [
        "The berth costs \xe5\xa3{0}.50 a night.",
        "That\xe5\xd5s berth {0} by the quay.",
        "Pay \xcc\xbc{0} here.",
    ]
    data = "\n".join(line.format(n) for n in range(4) for line in lines).encode("latin-1")
    assert detect(data).choices[0] == "cp1252"
