"""Writes the fixtures that no editor can: binary files, encodings and what is made to do harm.

The same library versions write the same bytes everywhere; the plain texts beside them are written by hand.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent / "fixtures"
MOMENT = (2025, 1, 1, 0, 0, 0)
"""Stands in every archive, so that writing it again changes nothing."""
BOMB_BYTES = 96 * 2**20
"""Above the 64 MiB that are unpacked without a look at the ratio."""
Rows = list[dict[str, object]]
PAIRS: Rows = [{"prompt": f"q{i}", "completion": f"a{i}"} for i in range(3)]
CHATS: Rows = [
    {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]}
    for i in range(3)
]
GERMAN = (
    "Frage;Antwort\nWas heißt „süß“ – und für wen?;Ein Gefühl, ähnlich wie früher.\n"
    "Wie groß?;Zwölf Meter fünfzig.\n"
)
CHINESE = (
    "问题,回答\n今天天气怎么样?,今天天气很好，适合出去散步。\n你叫什么名字?,我叫小明，很高兴认识你。\n"
    "北京在哪里?,北京是中国的首都，在华北平原的北部。\n"
)
TAIWANESE = (
    "問題,回答\n今天天氣怎麼樣?,今天天氣很好，適合出去散步。\n你叫什麼名字?,我叫小明，很高興認識你。\n"
    "臺北在哪裡?,臺北在臺灣的北部，是一個很大的城市。\n"
)
JAPANESE = (
    "質問,回答\n今日の天気はどうですか?,今日はとても良い天気です。散歩に行きましょう。\nお名前は何ですか?,私の名前は太郎です。よろしくお願いします。\n"
    "東京はどこですか?,東京は日本の首都で、関東地方にあります。\n"
)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


MEMORY = (
    '<?xml version="1.0" encoding="utf-16"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'
    '<tu><tuv xml:lang="en"><seg>The quay of Brenn is long.</seg></tuv>'
    '<tuv xml:lang="de"><seg>Der Kai von Brenn ist lang.</seg></tuv></tu>\n'
    '<tu><tuv xml:lang="en"><seg>The <bpt i="1">b</bpt>ferry<ept i="1"/> leaves at noon.</seg></tuv>'
    '<tuv xml:lang="de"><seg>Die Fähre geht am Mittag.</seg></tuv></tu>\n</body></tmx>\n'
)


def main(folder: Path = FIXTURES) -> None:
    """Write all files below `folder`."""
    for write in (
        write_packed,
        write_encodings,
        write_workbooks,
        write_columns,
        write_images,
        write_archives,
        write_bombs,
    ):
        write(lambda name, data: _put(folder / name, data))


Put = Callable[[str, bytes], None]


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def to_lines(rows: Iterable[object]) -> bytes:
    """Return `rows` as JSON lines in UTF-8."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def to_gzip(data: bytes) -> bytes:
    """Return `data` packed as gz, with neither time nor name in it."""
    return gzip.compress(data, 9, mtime=0)


def to_zip(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a zip of (name, bytes); names are written as they are."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            entry = zipfile.ZipInfo(name, MOMENT)
            entry.create_system = 3  # whichever system writes it
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return out.getvalue()


def write_packed(put: Put) -> None:
    """gz and zst of text files, whole and cut short."""
    import zstandard

    put("packed/rows.jsonl.gz", to_gzip(to_lines(PAIRS)))
    put("packed/two_streams.jsonl.gz", to_gzip(to_lines(PAIRS[:2])) + to_gzip(to_lines(PAIRS[2:])))
    put("packed/no_ending", to_gzip(to_lines(PAIRS)))
    whole = to_gzip(
        to_lines([{"prompt": f"q{i} {i * 7919 % 1009}", "completion": f"a{i * i}"} for i in range(500)])
    )
    put("packed/cut_short.jsonl.gz", whole[: len(whole) // 2])
    put("packed/table.csv.zst", zstandard.ZstdCompressor().compress(b"prompt,completion\nq0,a0\nq1,a1\n"))


def write_encodings(put: Put) -> None:
    """Texts in each encoding, with and without a mark, and one that is not read."""
    umlauts = to_lines(
        [{"prompt": "Größe?", "completion": "Süß, 北京, 😀"}, {"prompt": "Tür?", "completion": "Schön."}]
    )
    put("encodings/memory.tmx", MEMORY.encode("utf-16"))
    put("encodings/utf8.jsonl", umlauts)
    put("encodings/utf8_mark.jsonl", b"\xef\xbb\xbf" + umlauts)
    put("encodings/utf16_little.csv", b"\xff\xfe" + GERMAN.encode("utf-16-le"))
    put("encodings/utf16_big.jsonl", b"\xfe\xff" + umlauts.decode().encode("utf-16-be"))
    put("encodings/utf16_no_mark.csv", GERMAN.encode("utf-16-le"))
    put("encodings/utf32.csv", GERMAN.encode("utf-32"))
    put("encodings/cp1252.csv", GERMAN.encode("cp1252"))
    put("encodings/gb18030.csv", CHINESE.encode("gb18030"))
    put("encodings/big5.csv", TAIWANESE.encode("big5"))
    put("encodings/shift_jis.csv", JAPANESE.encode("shift_jis"))
    put("encodings/big5.jsonl", TAIWANESE_LINES.encode("big5"))
    lines = umlauts + '{"prompt": "Straße?", "completion": "Weiß ich nicht."}\n'.encode("cp1252") + umlauts
    put("encodings/one_line_cp1252.jsonl", lines)


TAIWANESE_LINES = "".join(
    f'{{"prompt": "{question}", "completion": "{answer}"}}\n'
    for question, answer in (line.split(",") for line in TAIWANESE.splitlines()[1:])
)
"""Second bytes of Big5 may be backslashes: lines must be decoded before they are parsed."""


def write_workbooks(put: Put) -> None:
    """Workbooks with one and several sheets, titles, formulas, dates, and one that was cut short."""
    import datetime

    def save(sheets: dict[str, list[list[object]]], formats: dict[str, str] | None = None) -> bytes:
        import openpyxl

        book = openpyxl.Workbook()
        book.remove(book.active)
        for title, rows in sheets.items():
            sheet = book.create_sheet(title)
            for row in rows:
                sheet.append(row)
            for cell, number_format in (formats or {}).items():
                sheet[cell].number_format = number_format
        book.properties.created = book.properties.modified = datetime.datetime(*MOMENT)
        out = io.BytesIO()
        book.save(out)
        with zipfile.ZipFile(out) as archive:
            return to_zip((entry.filename, _still(archive.read(entry))) for entry in archive.infolist())

    pairs = [["prompt", "completion"], ["q0", "a0"], ["q1", "a1"]]
    cells = [
        ["question", "response"],
        ["Number?", 7],
        ["Share?", 0.5],
        ["Day?", datetime.date(2025, 3, 1)],
        ["True?", True],
        ["Text?", "007"],
        ["Nothing?", None],
    ]
    put("xlsx/values.xlsx", save({"Rows": cells}, {"B2": "000"}))
    put("xlsx/two_sheets.xlsx", save({"English": pairs, "Notes": [], "German": [*pairs, ["q2", "a2"]]}))
    titled = [
        ["Support answers 2025"],
        [],
        ["prompt", "completion", "seen"],
        ["q0", "a0", "yes"],
        ["q1", "a1", "no"],
    ]
    put("xlsx/title.xlsx", save({"Rows": titled}))
    formulas = [
        ["prompt", "completion"],
        ["Sum?", "=1+1"],
        ["Link?", '=HYPERLINK("http://x","y")'],
        ["Text?", "a2"],
    ]
    put("xlsx/formulas.xlsx", save({"Rows": formulas}))
    put("xlsx/cut_short.xlsx", save({"Rows": pairs})[:2000])
    put("xlsx/not_a_workbook.xlsx", b"prompt,completion\nq0,a0\n")


def _still(part: bytes) -> bytes:
    """Return a part of a workbook without the moment at which it was saved."""
    head, mark, rest = part.partition(b"<dcterms:modified")
    if not mark:
        return part
    return head + mark + rest.replace(rest[rest.index(b">") + 1 : rest.index(b"<")], b"2025-01-01T00:00:00Z")


def write_columns(put: Put) -> None:
    """Parquet and Arrow: nested, plain, images in the rows, damaged."""
    import pyarrow
    import pyarrow.parquet

    def parquet(table: pyarrow.Table) -> bytes:
        out = io.BytesIO()
        pyarrow.parquet.write_table(table, out)
        return out.getvalue()

    def arrow(table: pyarrow.Table, create: Callable) -> bytes:
        out = io.BytesIO()
        with create(out, table.schema) as writer:
            writer.write_table(table)
        return out.getvalue()

    chats, pairs = pyarrow.Table.from_pylist(CHATS), pyarrow.Table.from_pylist(PAIRS)
    put("parquet/nested.parquet", parquet(chats))
    put("parquet/pairs.parquet", parquet(pairs))
    put(
        "parquet/nulls.parquet",
        parquet(pyarrow.table({"prompt": ["q0", None, "q2"], "completion": ["a0", "a1", ""]})),
    )
    ids = pyarrow.table({"input_ids": [[5, 6, 7], [8, 9]], "labels": [[-100, 6, 7], [-100, 9]]})
    put("parquet/tokens.parquet", parquet(ids))
    shown = [{"image": {"bytes": PNG, "path": None}, "caption": "A dot."}]
    broken = [{"image": {"bytes": b"no image", "path": None}, "caption": "Nothing."}]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", kind), ("caption", pyarrow.string())])
    put("parquet/images.parquet", parquet(pyarrow.Table.from_pylist(shown + broken, schema=schema)))
    put("parquet/cut_short.parquet", parquet(pairs)[:400])
    put("arrow/file.arrow", arrow(chats, pyarrow.ipc.new_file))
    put("arrow/stream.arrow", arrow(pairs, pyarrow.ipc.new_stream))
    put("arrow/cut_short.arrow", arrow(pairs, pyarrow.ipc.new_file)[:300])


def write_images(put: Put) -> None:
    """Folders of images with what is said about them, one image missing, one outside, one damaged, one vast."""
    described = [
        {"file_name": "dot.png", "text": "A dot."},
        {"file_name": "missing.png", "text": "Nothing."},
        {"file_name": "../dot.png", "text": "Outside."},
        {"file_name": "broken.png", "text": "Damaged."},
        {"file_name": "vast.png", "text": "Vast."},
        {"file_name": "deep/dot.png", "text": "A deep dot."},
    ]
    put("images/captions/metadata.jsonl", to_lines(described))
    put("images/captions/dot.png", PNG)
    put("images/captions/deep/dot.png", PNG)
    put("images/captions/broken.png", PNG[:20])
    put("images/captions/vast.png", _make_header(100_000, 100_000))
    put("images/table/metadata.csv", b"file_name,text\ndot.png,A dot.\ndot.png,\n")
    put("images/table/dot.png", PNG)
    turns = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A dot."}]},
    ]
    rows = [{"images": ["dot.png"], "messages": turns}, {"images": [], "messages": turns}]
    rows.append({"images": ["no.png"], "messages": turns})
    put("images/turns/rows.jsonl", to_lines(rows))
    put("images/turns/dot.png", PNG)


def _make_header(width: int, height: int) -> bytes:
    """Return a PNG that says it is so large, and holds nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return PNG[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def write_archives(put: Put) -> None:
    """Zips: one member, splits, several files, an archive inside, a password, names that lead out."""
    put("packed/one.zip", to_zip([("rows.jsonl", to_lines(CHATS))]))
    splits = [
        ("data/train.jsonl", to_lines(PAIRS)),
        ("data/test.jsonl", to_lines(PAIRS[:1])),
        ("README.md", b"# Rows\n"),
    ]
    put("packed/splits.zip", to_zip([*splits, ("__MACOSX/._train.jsonl", b"\0\1")]))
    put(
        "packed/several.zip", to_zip([("a.csv", b"prompt,completion\nq0,a0\n"), ("b.jsonl", to_lines(PAIRS))])
    )
    put("packed/nested.zip", to_zip([("inner.zip", to_zip([("rows.jsonl", to_lines(PAIRS))]))]))
    put("packed/empty.zip", to_zip([]))
    locked = bytearray(to_zip([("rows.jsonl", to_lines(PAIRS))]))
    locked[6] |= 1
    locked[locked.rindex(b"PK\1\2") + 8] |= 1
    put("packed/locked.zip", bytes(locked))
    put(
        "hostile/outside.zip",
        to_zip([("rows.jsonl", to_lines(PAIRS)), ("../../outside.jsonl", to_lines(PAIRS))]),
    )
    put("hostile/absolute.zip", to_zip([("/tmp/rows.jsonl", to_lines(PAIRS))]))


def write_bombs(put: Put) -> None:
    """Small files that would unpack to very much, and a table of 10,000 columns."""
    import zstandard

    zeros = b'{"text": "' + b"0" * BOMB_BYTES + b'"}\n'
    put("hostile/bomb.jsonl.gz", to_gzip(zeros))
    put("hostile/bomb.jsonl.zst", zstandard.ZstdCompressor(level=19).compress(zeros))
    put("hostile/bomb.zip", to_zip([("rows.jsonl", zeros)]))
    names = ",".join(["prompt", "completion", *(f"c{i}" for i in range(9_998))])
    cells = ",".join(["q", "a", *("0" for _ in range(9_998))])
    put("hostile/columns.csv.gz", to_gzip(f"{names}\n{cells}\n{cells[2:]}\n".encode()))
    sheet = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    put(
        "hostile/bomb.xlsx",
        _make_workbook(sheet + b'<row r="1"/>' * (BOMB_BYTES // 12) + b"</sheetData></worksheet>"),
    )
    entities = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>' + sheet
    row = b'<row r="1"><c r="A1" t="inlineStr"><is><t>&b;</t></is></c></row></sheetData></worksheet>'
    put("hostile/entities.xlsx", _make_workbook(entities + row))
    far = b'<row r="1"><c r="A1" t="inlineStr"><is><t>text</t></is></c></row>'
    far += b'<row r="1048576"><c r="XFD1048576" t="inlineStr"><is><t>far</t></is></c></row></sheetData></worksheet>'
    dimension = sheet.replace(b"<sheetData>", b'<dimension ref="A1:XFD1048576"/><sheetData>')
    put("hostile/far_cell.xlsx", _make_workbook(dimension + far))


def _make_workbook(sheet: bytes) -> bytes:
    """Return a workbook with the one sheet whose part is `sheet`."""
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    main_type = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" ContentType='
        f'"application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/xl/workbook.xml" '
        f'ContentType="{main_type}.sheet.main+xml"/><Override PartName="/xl/worksheets/sheet1.xml" '
        f'ContentType="{main_type}.worksheet+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '
        f'xmlns:r="{office}"><sheets><sheet name="Rows" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
    }
    return to_zip(
        [*((name, part.encode()) for name, part in parts.items()), ("xl/worksheets/sheet1.xml", sheet)]
    )


if __name__ == "__main__":
    main()
