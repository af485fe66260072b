"""The forms in which GGUF files store numbers: so many values in a block of so many bytes (ggml's type traits)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """One form; `number` as the file has it."""

    number: int
    name: str
    values: int
    """Numbers in a block; rows are whole blocks."""
    size_bytes: int
    """Bytes of a block."""

    @property
    def plain(self) -> bool:
        """Whether its values are plain floating point numbers."""
        return self.values == 1


BLOCK_TYPES = {
    block_type.number: block_type
    for block_type in (
        BlockType(0, "F32", 1, 4),
        BlockType(1, "F16", 1, 2),
        BlockType(2, "Q4_0", 32, 18),
        BlockType(3, "Q4_1", 32, 20),
        BlockType(6, "Q5_0", 32, 22),
        BlockType(7, "Q5_1", 32, 24),
        BlockType(8, "Q8_0", 32, 34),
        BlockType(10, "Q2_K", 256, 84),
        BlockType(11, "Q3_K", 256, 110),
        BlockType(12, "Q4_K", 256, 144),
        BlockType(13, "Q5_K", 256, 176),
        BlockType(14, "Q6_K", 256, 210),
        BlockType(16, "IQ2_XXS", 256, 66),
        BlockType(17, "IQ2_XS", 256, 74),
        BlockType(18, "IQ3_XXS", 256, 98),
        BlockType(19, "IQ1_S", 256, 50),
        BlockType(20, "IQ4_NL", 32, 18),
        BlockType(21, "IQ3_S", 256, 110),
        BlockType(22, "IQ2_S", 256, 82),
        BlockType(23, "IQ4_XS", 256, 136),
        BlockType(28, "F64", 1, 8),
        BlockType(29, "IQ1_M", 256, 56),
        BlockType(30, "BF16", 1, 2),
        BlockType(34, "TQ1_0", 256, 54),
        BlockType(35, "TQ2_0", 256, 66),
        BlockType(39, "MXFP4", 32, 17),
    )
}
"""Those that weights come in and that the package gguf opens (a test holds both true)."""
