"""What a GGUF file says of itself: metadata, tensor table, where its data lies; nothing of the data is read.

Layout (ggml's docs/gguf.md, version 2 and 3, little endian): `GGUF`, version u32, tensor count u64, key count u64; the
keys (name, type u32, value); the tensors (name, dimensions, fastest first, type u32, offset u64); the data, each
tensor at a multiple of `general.alignment`.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.models.gguf.block_types import BLOCK_TYPES, BlockType
from studio.models.opened_folder import SAMPLE_BYTES, SAMPLES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's letter of a metadata value's type; beside these are strings and arrays."""
STRING, ARRAY = 8, 9
MOST_DIMENSIONS = 4
MOST_NAMES = 1_000_000
"""More keys or tensors than that no model has: the counts are damaged."""
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
"""The end of the name of one file of several that hold a model together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """One tensor of a file; `shape` as PyTorch has it, the fastest dimension last."""

    shape: tuple[int, ...]
    block_type: BlockType
    file: Path
    start_bytes: int
    """Where its data begins in `file`."""

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) // self.block_type.values * self.block_type.size_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHeader:
    """A model's metadata and tensors, of all its files."""

    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    """Arrays of strings are their length alone, but for those that were asked for."""
    tensors: Mapping[str, GgufTensor]
    fingerprint: str
    """Of the header and samples of the data: the same for a copy elsewhere."""

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the family."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as GGUF files do; Ollama's have no ending."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_header(path: Path, strings: Collection[str] = ()) -> GgufHeader:
    """Read the header of `path`, and of the other files of its model; `strings`: arrays of text that are wanted.

    Raises StudioError when it is no GGUF file, of another version, damaged, cut off, or a file of its model is missing.
    """
    try:
        parts = [_read_file(file, strings) for file in list_parts(path)]
    except OSError as error:
        why = literal(error.strerror or str(error))
        raise StudioError(
            text("file.unreadable", path=path.name), why, text("file.unreadable.fix")
        ) from error
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        tensors |= part.tensors
    count = parts[0].metadata.get("split.tensors.count", len(tensors))
    if count != len(tensors):
        raise refuse("damaged", path.name)
    digest = hashlib.sha256("".join(part.fingerprint for part in parts).encode()).hexdigest()
    return GgufHeader(
        files=tuple(file for part in parts for file in part.files),
        metadata=parts[0].metadata,
        tensors=tensors,
        fingerprint=digest if len(parts) > 1 else parts[0].fingerprint,
    )


def list_parts(path: Path) -> tuple[Path, ...]:
    """Return all files of the model that `path` is a file of, first to last. Raises StudioError when one is missing."""
    match = PART.search(path.name)
    if match is None:
        return (path,)
    stem, count = path.name[: match.start()], int(match[2])
    files = tuple(
        path.with_name(f"{stem}-{number:05}-of-{count:05}{path.suffix}") for number in range(1, count + 1)
    )
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise refuse("part_missing", path.name, file=missing.name)
    return files


def refuse(part: str, name: str, /, **values: object) -> StudioError:
    """Return the StudioError that the texts gguf.PART say of the file `name`."""
    return StudioError(*(text(f"gguf.{part}{end}", name=name, **values) for end in ("", ".why", ".fix")))


def _read_file(path: Path, strings: Collection[str]) -> GgufHeader:
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise refuse("damaged", path.name)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != MAGIC:
                raise refuse("damaged", path.name)
            version, tensor_count, key_count = struct.unpack_from("<IQQ", data, 4)
            if version not in VERSIONS:  # the other byte order makes 3 a number of eight digits
                raise refuse("version", path.name, version=version)
            try:
                if max(tensor_count, key_count) > MOST_NAMES:
                    raise ValueError("counts that no model has")
                cursor = _Cursor(data, 24)
                metadata = {}
                for _ in range(key_count):
                    key = cursor.read_string()
                    metadata[key] = cursor.read_value(keep_strings=key in strings)
                table = [cursor.read_tensor() for _ in range(tensor_count)]
            except (struct.error, ValueError, IndexError, OverflowError) as error:
                raise refuse("damaged", path.name) from error
            return _place_tensors(path, data, metadata, table, cursor.place)


def _place_tensors(
    path: Path,
    data: mmap.mmap,
    metadata: Mapping[str, Any],
    table: Sequence[tuple[str, tuple[int, ...], int, int]],
    place: int,
) -> GgufHeader:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise refuse("damaged", path.name)
    start = -(-place // alignment) * alignment
    tensors, end = {}, place
    for name, shape, type_number, offset in table:
        block_type = BLOCK_TYPES.get(type_number)
        if block_type is None:
            raise refuse("block_type", path.name, number=type_number)
        if not shape or shape[-1] % block_type.values:
            raise refuse("damaged", path.name)
        tensor = GgufTensor(shape=shape, block_type=block_type, file=path, start_bytes=start + offset)
        tensors[name] = tensor
        end = max(end, tensor.start_bytes + tensor.size_bytes)
    if len(data) < end:
        raise refuse("short", path.name, size=len(data), expected=end)
    digest = hashlib.sha256(data[:start])
    for number in range(SAMPLES):
        begin = start + max(0, end - start) * number // SAMPLES
        digest.update(data[begin : begin + SAMPLE_BYTES])
    return GgufHeader(files=(path,), metadata=metadata, tensors=tensors, fingerprint=digest.hexdigest())


class _Cursor:
    """A place in the file that moves on with what is read. Raises ValueError for lengths beyond the file."""

    def __init__(self, data: mmap.mmap, place: int) -> None:
        self.data, self.place = data, place

    def read_numbers(self, letters: str) -> tuple[Any, ...]:
        """Return numbers as struct's `letters` name them."""
        values = struct.unpack_from("<" + letters, self.data, self.place)
        self.place += struct.calcsize("<" + letters)
        return values

    def read_string(self) -> str:
        """Return a string: its length in bytes, then UTF-8; a broken character is replaced."""
        (length,) = self.read_numbers("Q")
        if length > len(self.data) - self.place:
            raise ValueError("a string beyond the file")
        words = self.data[self.place : self.place + length]
        self.place += length
        return words.decode("utf-8", "replace")

    def read_value(self, *, keep_strings: bool) -> Any:
        """Return a metadata value; of an array of strings its length, unless they are to be kept."""
        (kind,) = self.read_numbers("I")
        if kind in NUMBERS:
            return self.read_numbers(NUMBERS[kind])[0]
        if kind == STRING:
            return self.read_string()
        if kind != ARRAY:
            raise ValueError(f"a value of type {kind}")
        inner, count = self.read_numbers("IQ")
        if count > len(self.data) - self.place:
            raise ValueError("an array beyond the file")
        if inner in NUMBERS:
            return list(self.read_numbers(f"{count}{NUMBERS[inner]}"))
        if inner != STRING:
            raise ValueError(f"an array of type {inner}")
        if keep_strings:
            return [self.read_string() for _ in range(count)]
        for _ in range(count):
            (length,) = self.read_numbers("Q")
            self.place += length
        return count

    def read_tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return a tensor's name, shape (the fastest dimension last), type and offset."""
        name = self.read_string()
        (dimensions,) = self.read_numbers("I")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        shape = self.read_numbers(f"{dimensions}Q")
        if math.prod(shape) > 2**48:
            raise ValueError("a tensor larger than any")
        return name, tuple(reversed(shape)), *self.read_numbers("IQ")
