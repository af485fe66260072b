"""Arrow files and streams, as the datasets library keeps them, and how columns in memory become rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from studio.core.i18n import text
from studio.data.containers.container import Container, ReadOptions, refuse_file
from studio.data.containers.images import check_image
from studio.data.containers.json_text import parse_json
from studio.data.row import Row, RowError, broken_row
from studio.data.row_codes import RowCode

FILE_MARK = b"ARROW1\0\0"
STREAM_MARK = b"\xff\xff\xff\xff"
SLICE_BYTES = 8 * 2**20
"""So many bytes of columns are turned into rows at once: as Python values they take some five times as much."""
SLICE_ROWS = 1024
OTHER_MEDIA = ("Audio", "Video", "Pdf")
"""Features of the datasets library that lie in a file as images do."""
Plain = Callable[[Any], Any]


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the file begins with the mark of an Arrow file, or is a stream and named so."""
    return head.startswith(FILE_MARK[:6]) or (suffix == ".arrow" and head.startswith(STREAM_MARK))


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield the rows; `line` is the row's number, counted from 1. Raises StudioError when the file is damaged."""
    import pyarrow

    try:
        # A file is its mark, a stream, and an index that reading from front to back does not need.
        start = stream.read(len(FILE_MARK))
        source = stream if start == FILE_MARK else _Again(start, stream)
        with pyarrow.ipc.open_stream(pyarrow.PythonFile(source, mode="r")) as reader:
            check_names(reader.schema, options.name)
            yield from read_batches(_check(reader))
    except (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        KeyError,
    ) as error:  # the latter two: names, time zones
        raise refuse_file(options.name, "arrow_broken") from error


class _Again:
    """A stream whose first bytes, already read, come again."""

    closed = False

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self.start, self.rest = start, rest

    def read(self, size: int = -1) -> bytes:
        found, self.start = self.start[:size], self.start[size:]
        return found + self.rest.read(size - len(found)) if len(found) < size else found


def _check(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        batch.validate(full=True)  # the places named in a damaged file may lie outside of it
        yield batch


def check_names(schema: Any, name: str) -> None:
    """Raise StudioError when two columns of a pyarrow.Schema have the same name."""
    twice = [column for column, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise refuse_file(name, "header", columns=twice[:5])


def read_batches(batches: Iterator[Any]) -> Iterator[Row]:
    """Yield the rows of pyarrow.RecordBatches, `line` and `row` counted from 1.

    Images (structs of bytes and path) become "row:COLUMN", after a look at their header; maps become dicts, dates
    ISO text, decimals text.
    """
    number = 0
    for batch in batches:
        readers = [_plain_reader(field, batch.schema) for field in batch.schema]
        step = max(1, min(SLICE_ROWS, SLICE_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            try:
                rows = _read_rows(part, readers)
            except (RowError, ValueError):  # of one row: the others are found one by one
                rows = [_read_row(part.slice(i, 1), readers, number + i + 1) for i in range(part.num_rows)]
            for found in rows:
                number += 1
                if isinstance(found, Row):
                    yield found
                else:
                    yield Row(number, found, None, number)


def _read_rows(batch: Any, readers: list[Plain | None]) -> list[dict[str, Any]]:
    columns = []
    for column, plain in zip(batch.columns, readers, strict=True):
        values = column.to_pylist()
        columns.append(values if plain is None else [None if v is None else plain(v) for v in values])
    names = batch.schema.names
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _read_row(batch: Any, readers: list[Plain | None], number: int) -> dict[str, Any] | Row:
    try:
        return _read_rows(batch, readers)[0]
    except RowError as error:
        return broken_row(number, error.code, error.message, row=number)
    except UnicodeError:
        return broken_row(number, RowCode.BAD_CHARACTERS, text("data.row.not_utf8"), row=number)
    except ValueError:
        return broken_row(number, RowCode.UNREADABLE, text("data.row.value"), row=number)


def _plain_reader(field: Any, schema: Any) -> Plain | None:
    """Return what turns the values of a column into plain ones; None where they are plain already.

    Raises RowError (BAD_IMAGE: a damaged image) and ValueError when it is called.
    """
    kind, reference = field.type, f"row:{field.name}"
    if _is_media(kind):
        checked = _find_feature(schema, field.name) not in OTHER_MEDIA
        return lambda value: _refer(value, reference, checked)
    if _is_list(kind) and _is_media(kind.value_type):
        return lambda values: [_refer(v, f"{reference}[{i}]", True) for i, v in enumerate(values)]
    if _is_plain(kind):
        return None
    return lambda value: _make_plain(value, kind, reference)


def _refer(value: Mapping[str, Any] | None, reference: str, checked: bool) -> str | None:
    if value is None or value["bytes"] is None:
        return value and value["path"]
    if checked:
        check_image(value["bytes"], reference)
    return reference


def _find_feature(schema: Any, name: str) -> str:
    """Return what the datasets library says a column is: "Image", "Audio", ..., or ""."""
    try:
        features = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return str(features[name]["_type"])
    except (ValueError, KeyError, TypeError):
        return ""


def _is_media(kind: Any) -> bool:
    import pyarrow.types as types

    if not types.is_struct(kind) or {kind.field(i).name for i in range(kind.num_fields)} != {"bytes", "path"}:
        return False
    held = kind.field("bytes").type
    return types.is_binary(held) or types.is_large_binary(held)


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_plain(kind: Any) -> bool:
    import pyarrow.types as types

    if _is_list(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return is_number or types.is_null(kind) or _is_string(kind)


def _is_string(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _make_plain(value: Any, kind: Any, reference: str) -> Any:
    import pyarrow.types as types

    if value is None or _is_plain(kind):
        return value
    if _is_list(kind):
        return [_make_plain(item, kind.value_type, reference) for item in value]
    if types.is_map(kind):
        return {str(name): _make_plain(item, kind.item_type, reference) for name, item in value}
    if types.is_struct(kind):
        if _is_media(kind):
            return _refer(value, reference, True)
        fields = (kind.field(i) for i in range(kind.num_fields))
        return {field.name: _make_plain(value[field.name], field.type, reference) for field in fields}
    if types.is_dictionary(kind):
        return _make_plain(value, kind.value_type, reference)
    if isinstance(value, bytes):  # older writers do not mark text as such
        return _read_bytes(value, reference)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if str(kind) == "extension<arrow.json>":
        return parse_json(value.encode("utf-8"))
    return str(value)


def _read_bytes(value: bytes, reference: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return reference


CONTAINER = Container(name="arrow", suffixes=(".arrow",), accepts=accept, iterate=iterate, binary=True)
