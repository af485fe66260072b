"""Writes python3.dll for a python3XX.dll: a library without code whose every export leads to the other one's."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

SECTION_RVA, ALIGNMENT = 0x1000, 0x200


def read_exports(library: bytes) -> list[str]:
    """Return the sorted names that the 64-bit Windows library `library` exports."""
    header = struct.unpack_from("<I", library, 0x3C)[0]
    sections, optional_size = struct.unpack_from("<H", library, header + 6)[0], 240
    directory_rva = struct.unpack_from("<I", library, header + 24 + 112)[0]
    table = header + 24 + optional_size

    def place(rva: int) -> int:
        for index in range(sections):
            size, start, _, data = struct.unpack_from("<IIII", library, table + 40 * index + 8)
            if start <= rva < start + size:
                return rva - start + data
        raise ValueError(f"no section holds {rva:#x}")

    count = struct.unpack_from("<I", library, place(directory_rva) + 24)[0]
    names_rva = struct.unpack_from("<I", library, place(directory_rva) + 32)[0]
    names = struct.unpack_from(f"<{count}I", library, place(names_rva))
    return sorted(library[place(rva) : library.index(b"\0", place(rva))].decode("ascii") for rva in names)


def make_forwarder(name: str, target: str, exports: list[str]) -> bytes:
    """Return a 64-bit library `name` whose `exports` (sorted) are forwarded to the library `target` (no ".dll")."""
    count = len(exports)
    addresses, names, ordinals = 40, 40 + 4 * count, 40 + 8 * count
    texts, offsets, text_at = bytearray(), [], 40 + 10 * count
    for word in [name, *exports, *(f"{target}.{export}" for export in exports)]:
        offsets.append(SECTION_RVA + text_at + len(texts))
        texts += word.encode("ascii") + b"\0"
    section = struct.pack(
        "<IIHHIIIIIII",
        *(0, 0, 0, 0, offsets[0], 1, count, count),
        *(SECTION_RVA + place for place in (addresses, names, ordinals)),
    )
    section += struct.pack(f"<{count}I", *offsets[1 + count :]) + struct.pack(
        f"<{count}I", *offsets[1 : 1 + count]
    )
    section += struct.pack(f"<{count}H", *range(count)) + bytes(texts)
    padded = section.ljust(-(-len(section) // ALIGNMENT) * ALIGNMENT, b"\0")
    image_size = SECTION_RVA + -(-len(section) // 0x1000) * 0x1000
    headers = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)
    headers += b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 240, 0x2022)
    headers += struct.pack("<HBBIIIII", 0x20B, 14, 0, 0, len(padded), 0, 0, SECTION_RVA)
    headers += struct.pack("<QII", 0x180000000, 0x1000, ALIGNMENT) + struct.pack("<6HI", 6, 0, 0, 0, 6, 0, 0)
    headers += struct.pack("<IIIHH", image_size, ALIGNMENT * 2, 0, 2, 0x0160)
    headers += struct.pack("<4QII", 0x100000, 0x1000, 0x100000, 0x1000, 0, 16)
    headers += struct.pack("<II", SECTION_RVA, len(section)).ljust(128, b"\0")
    characteristics = 0x40000040
    headers += struct.pack(
        "<8sIIIIIIHHI",
        b".edata",
        len(section),
        SECTION_RVA,
        len(padded),
        ALIGNMENT * 2,
        0,
        0,
        0,
        0,
        characteristics,
    )
    return headers.ljust(ALIGNMENT * 2, b"\0") + padded


if __name__ == "__main__":
    library = Path(sys.argv[1])
    exports = [name for name in read_exports(library.read_bytes()) if name.startswith(("Py", "_Py"))]
    Path(sys.argv[2]).write_bytes(make_forwarder("python3.dll", library.stem, exports))
