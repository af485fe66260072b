"""A folder of images with a metadata.jsonl or metadata.csv that names each by `file_name`; the check of an image."""

from __future__ import annotations

import io
import ntpath
from collections.abc import Iterator
from pathlib import Path

from studio.core.i18n import text
from studio.data.row import Row, RowError, RowProblem
from studio.data.row_codes import RowCode

METADATA = ("metadata.jsonl", "metadata.csv")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""What is tried; of the many others that the library knows some start programs."""
NAME, NAMES = "file_name", "file_names"
COLUMN, COLUMNS = "image", "images"
PIXEL_LIMIT = 178_956_970
"""Pixels: at three bytes each half a GiB, twice what the library itself warns at."""


def place_images(rows: Iterator[Row], folder: Path) -> Iterator[Row]:
    """Yield the rows of a metadata file with `file_name` (`file_names`) as `image` (`images`): paths below `folder`.

    A row whose image is missing, lies outside `folder`, is damaged or has over PIXEL_LIMIT pixels becomes a broken
    row, BAD_IMAGE.
    """
    root = folder.resolve()
    for row in rows:
        if row.problem is None:
            try:
                row.values = _place(row.values, root)
            except RowError as error:
                place = {"line": row.line, "row": row.row, "offset": row.offset, "raw": row.raw}
                row.problem = RowProblem(code=error.code, message=error.message, **place)
                row.values = {}
        yield row


def _place(values: object, root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        if name == NAME:
            found[COLUMN] = _find(value, root)
        elif name == NAMES and isinstance(value, list):
            found[COLUMNS] = [_find(item, root) for item in value]
        else:
            found[name] = value
    return found


def _find(name: object, root: Path) -> str:
    """Return the path of one image, after a look at its header. Raises RowError (BAD_IMAGE)."""
    if not isinstance(name, str) or not name.strip():
        raise RowError(RowCode.BAD_IMAGE, text("data.row.image.none"))
    # Windows' own ways to leave a folder count everywhere: a data set is carried from one machine to another.
    if "\0" in name or ntpath.splitdrive(name)[0] or name.startswith(("/", "\\")):
        raise RowError(RowCode.BAD_IMAGE, text("data.row.image.outside", name=name[:80]))
    try:
        path = (root / name.replace("\\", "/")).resolve()
        if not path.is_relative_to(root):
            raise RowError(RowCode.BAD_IMAGE, text("data.row.image.outside", name=name[:80]))
        if not path.is_file():
            raise RowError(RowCode.BAD_IMAGE, text("data.row.image.missing", name=name[:80]))
    except OSError as error:  # a name that is too long
        raise RowError(RowCode.BAD_IMAGE, text("data.row.image.missing", name=name[:80])) from error
    check_image(path, name)
    return str(path)


def check_image(source: Path | bytes, name: str) -> tuple[int, int]:
    """Return width and height in pixels, reading the header only.

    `name` is how the image is called in the RowError (BAD_IMAGE) that is raised when it is damaged or too large.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(
            io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS
        ) as image:
            width, height = image.size
    except Image.DecompressionBombError as error:
        raise RowError(
            RowCode.BAD_IMAGE, text("data.row.image.large", name=name[:80], limit=PIXEL_LIMIT // 10**6)
        ) from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, OverflowError) as error:
        raise RowError(RowCode.BAD_IMAGE, text("data.row.image.broken", name=name[:80])) from error
    if width * height > PIXEL_LIMIT:
        raise RowError(
            RowCode.BAD_IMAGE, text("data.row.image.large", name=name[:80], limit=PIXEL_LIMIT // 10**6)
        )
    return width, height
