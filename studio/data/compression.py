"""Compressed files as streams: gz, zst and the members of a zip, within limits that a bomb cannot pass."""

from __future__ import annotations

import gzip
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.packages import import_package

GZIP_MARK, ZSTANDARD_MARK, ZIP_MARK = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
EMPTY_ZIP_MARK = b"PK\x05\x06"
LOCAL_HEADER = struct.Struct("<4s22x2H")
PACKINGS = ("", "gz", "zst", "zip")
RATIO = 250
"""Unpacked bytes a packed byte: real text reaches some 20, deflated zeros 1,030."""
FREE_BYTES = 64 * 2**20
"""The ratio only counts beyond this: so much is harmless, and small files of one repeated row pack very well."""
UNPACKED_BYTES = 2**40
ENTRIES = 100_000
BUFFER_BYTES = 2**18
WINDOW_BYTES = 2**27
"""Memory that a zst stream may ask for: what `zstd --long` uses."""
ARCHIVES = (".zip", ".gz", ".tgz", ".zst", ".bz2", ".xz", ".tar", ".7z", ".rar", ".lz4", ".br")
NOISE = re.compile(r"(^|/)(__MACOSX/|\.DS_Store$|Thumbs\.db$|desktop\.ini$|\._)")
"""What systems add to a zip by themselves."""
OUTSIDE = re.compile(r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)|[\x00-\x1f]")
TAR_MARK = slice(257, 262)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One file inside a zip."""

    name: str
    """With its folders, separated by /."""
    size_bytes: int
    """After unpacking, as the zip says."""
    entry: zipfile.ZipInfo = field(repr=False, compare=False)
    """Where it stands in the zip: with this its directory, as long as there are members, is read once."""


def detect_packing(head: bytes) -> str:
    """Return gz, zst or zip by the first bytes of a file, else "". A workbook (.xlsx) is a zip, too."""
    if head.startswith((ZIP_MARK, EMPTY_ZIP_MARK)):
        return "zip"
    if head.startswith(ZSTANDARD_MARK):
        return "zst"
    return "gz" if head.startswith(GZIP_MARK) else ""


def list_members(path: Path) -> tuple[Member, ...]:
    """Return the files in the zip `path` in their order, without folders and what systems add.

    Raises StudioError: damaged, locked by a password, names that lead out of the folder, archives inside, too many
    files, or a size after unpacking that no real file has. OSError as it comes.
    """
    with _refusing(path, "zip"), zipfile.ZipFile(path) as archive:
        found = archive.infolist()
    if len(found) > ENTRIES:
        raise _refuse(path, "entries", count=len(found), limit=ENTRIES)
    members = []
    for entry in found:
        name = entry.orig_filename.replace("\\", "/") if "\\" in entry.orig_filename else entry.filename
        if OUTSIDE.search(entry.orig_filename):
            raise _refuse(path, "outside", member="".join(c if c.isprintable() else "?" for c in name[:80]))
        if entry.is_dir() or NOISE.search(name):
            continue
        if entry.flag_bits & 1:
            raise _refuse(path, "locked")
        if name.lower().endswith(ARCHIVES):
            raise _refuse(path, "nested", member=name[:80])
        if entry.file_size > FREE_BYTES and entry.file_size > RATIO * max(entry.compress_size, 1):
            raise _refuse(path, "bomb", ratio=RATIO)
        members.append(Member(name=entry.filename, size_bytes=entry.file_size, entry=entry))
    total, packed = sum(member.size_bytes for member in members), path.stat().st_size
    if total > UNPACKED_BYTES or (
        total > FREE_BYTES and total > RATIO * packed
    ):  # entries may share their bytes
        raise _refuse(path, "bomb", ratio=RATIO)
    return tuple(members)


def open_unpacked(path: Path, packing: str, member: Member | None = None) -> BinaryIO:
    """Return a buffered stream of the bytes of `path` after unpacking, to be closed by the caller.

    packing: one of PACKINGS; member: one of list_members when it is zip. A plain file can seek; gz and zip go
    back by unpacking again from their start; zst cannot.
    Opening and reading raise StudioError: damaged or cut short, an archive within, or growing beyond the limits.
    """
    if not packing:
        return path.open("rb", buffering=BUFFER_BYTES)
    with ExitStack() as opened:
        size_bytes = path.stat().st_size
        with _refusing(path, packing):
            if packing == "zip":
                size_bytes = member.entry.compress_size
                inner = opened.enter_context(_open_entry(path, member.entry))
            elif packing == "gz":
                inner = opened.enter_context(gzip.open(path, "rb"))
            else:
                inner = opened.enter_context(_open_zstandard(path))
        stream = io.BufferedReader(_Unpacked(inner, path, packing, size_bytes), BUFFER_BYTES)
        head = stream.peek(BUFFER_BYTES)
        workbook = member is not None and member.name.lower().endswith(".xlsx")
        if (detect_packing(head) and not workbook) or head[TAR_MARK] == b"ustar":
            raise _refuse(path, "nested", member=member.name if member else path.stem)
        stream.raw.opened = opened.pop_all()
    return stream


def _open_entry(path: Path, entry: zipfile.ZipInfo) -> BinaryIO:
    """Return a stream of one entry's bytes, without reading the zip's directory; raises BadZipFile.

    Its local header (APPNOTE 4.3.7): a mark, 22 bytes that the directory repeats, the lengths of name and extra field.
    """
    file = path.open("rb")
    try:
        file.seek(entry.header_offset)
        mark, name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        if mark != ZIP_MARK:
            raise zipfile.BadZipFile("no local header where the directory says")
        file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
        return zipfile.ZipExtFile(file, "r", entry, close_fileobj=True)
    except struct.error as error:
        file.close()
        raise zipfile.BadZipFile("cut short") from error
    except BaseException:
        file.close()
        raise


def _open_zstandard(path: Path) -> BinaryIO:
    """Return a stream of the bytes in `path`. Raises EOFError when it is cut short, which zstandard does not notice."""
    zstandard = import_package("zstandard", "zstandard")
    with path.open("rb") as file:
        for _ in iter(lambda: _pass_frame(file), False):
            pass
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
    return decompressor.stream_reader(path.open("rb"), read_across_frames=True, closefd=True)


def _pass_frame(file: BinaryIO) -> bool:
    """Go on behind one frame of RFC 8878 by the sizes in its headers; return False at the end of the file."""
    zstandard = import_package("zstandard", "zstandard")
    start = file.read(18)
    if not start:
        return False
    if start[1:4] == b"\x2a\x4d\x18" and start[0] >> 4 == 5:  # a frame that holds no data
        _pass_bytes(file, int.from_bytes(start[4:8], "little") + 8 - len(start))
        return True
    _pass_bytes(file, zstandard.frame_header_size(start) - len(start))
    last = False
    while not last:
        header = file.read(3)
        if len(header) < 3:
            raise EOFError
        block = int.from_bytes(header, "little")
        last, repeated = bool(block & 1), block >> 1 & 3 == 1
        _pass_bytes(file, 1 if repeated else block >> 3)
    _pass_bytes(file, 4 if zstandard.get_frame_parameters(start).has_checksum else 0)
    return True


def _pass_bytes(file: BinaryIO, size_bytes: int) -> None:
    """Go on by `size_bytes`, or back. Raises EOFError behind the end."""
    if size_bytes > 0:
        file.seek(size_bytes - 1, io.SEEK_CUR)
        if not file.read(1):
            raise EOFError
    else:
        file.seek(size_bytes, io.SEEK_CUR)


class _Unpacked(io.RawIOBase):
    """The bytes of `inner`, counted against the limits; what is wrong with them is said in words."""

    def __init__(self, inner: BinaryIO, path: Path, packing: str, size_bytes: int) -> None:
        self._inner, self._path, self._packing = inner, path, packing
        self._limit_bytes = min(max(FREE_BYTES, RATIO * size_bytes), UNPACKED_BYTES)
        self.opened = ExitStack()
        """What is closed with this."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._packing != "zst"

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _refusing(self._path, self._packing):
            return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def readinto(self, buffer) -> int:
        with _refusing(self._path, self._packing):
            size = self._inner.readinto(buffer)
        if self._inner.tell() > self._limit_bytes:
            raise _refuse(self._path, "bomb", ratio=RATIO)
        return size

    def close(self) -> None:
        self.opened.close()
        super().close()


@contextmanager
def _refusing(path: Path, packing: str) -> Iterator[None]:
    """Turn what the unpacking libraries raise into a StudioError."""
    broken = (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, KeyError, IndexError, ValueError)
    if packing == "zst":
        zstandard = import_package("zstandard", "zstandard")
        broken += (zstandard.ZstdError,)
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:  # a zip packed in an unusual way, or with a password
        raise _refuse(path, "locked" if "password" in str(error) else "method") from error
    except broken as error:
        raise _refuse(path, "window" if "memory" in str(error).lower() else "broken") from error


def _refuse(path: Path, reason: str, **values: object) -> StudioError:
    return StudioError(
        text("data.source.unreadable", name=path.name),
        text(f"data.packing.{reason}", **values),
        text(f"data.packing.{reason}.fix"),
    )
