"""Few rows by 4-bit weights: the picking of bytes that opens nibbles, and what the kernel leaves to its twin."""

from __future__ import annotations

import re

import pytest
import torch
from studio_kernels.nf4 import Nf4
from studio_kernels.nf4_few_rows import NF4_FEW_ROWS, takes
from studio_kernels.nf4_few_rows_kernels import OPEN
from studio_kernels.test_inputs import Draws

from tests.kernels.launches import TARGETS


def prmt(a: int, b: int, selector: int) -> int:
    """Four bytes of the eight in b and a by four nibbles, none of which asks for a sign."""
    source = (a | b << 32).to_bytes(8, "little")
    picks = [selector >> 4 * place & 15 for place in range(4)]
    assert max(picks) < 8
    return int.from_bytes(bytes(source[pick] for pick in picks), "little")


def execute(registers: dict[str, int]) -> dict[str, int]:
    """Run the instructions of OPEN on these operands."""

    def read(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    actions = {
        "and.b32": lambda a, b: a & b,
        "shr.u32": lambda a, b: a >> b,
        "prmt.b32": prmt,
        "lop3.b32": lambda a, b, c, table: (a & b) | c if table == 0xEA else None,
    }
    for line in re.findall(r"^\s*([a-z][^.\s]*\.[a-z]?\d+ [^;]*);", OPEN.value, re.MULTILINE):
        name, operands = line.split(maxsplit=1)
        to, *given = operands.split(", ")
        registers[to] = actions[name](*map(read, given)) & 0xFFFFFFFF
    return registers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_picking_of_bytes_opens_every_nibble(dtype):
    weight = Nf4.drawn(Draws(dtype=torch.float32, device="cpu"), (4, 64), dtype, nested=False)
    words = [word & 0xFFFFFFFF for word in weight.words(dtype).tolist()]
    bits = weight.code.to(dtype).view(torch.int16).tolist()
    for first in range(0, 256, 4):
        found = [first, first + 1, 255 - first, first + 3]
        operands = {"$4": int.from_bytes(bytes(found), "little")}
        operands |= {f"${5 + 4 * place}": word for place, word in enumerate(words)}
        done = execute(operands)
        for shift, outputs in ((4, ("$0", "$1")), (0, ("$2", "$3"))):
            opened = [done[output] >> half & 0xFFFF for output in outputs for half in (0, 16)]
            assert opened == [bits[byte >> shift & 15] & 0xFFFF for byte in found]


def test_what_the_kernel_does_not_take_is_the_twins():
    draws = Draws(dtype=torch.float32, device="cpu")
    weight = Nf4.drawn(draws, (8, 128), torch.float32, nested=True)
    for x in (draws.normal(65, 128).half(), draws.normal(2, 128)):
        assert not takes(x, weight).ok
        twice = [each.forward(x, weight) for each in (NF4_FEW_ROWS.reference, NF4_FEW_ROWS.triton)]
        assert torch.equal(*twice)
    assert takes(draws.normal(64, 128).half(), weight).ok


@pytest.mark.patient
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])
def test_compiles_with_the_picking_of_bytes(launches, target):
    """What launches() notes on a machine without a card looks numbers up."""
    launch = launches(NF4_FEW_ROWS, [{"width": 4096, "few": 1, "rank": 0}], torch.bfloat16)[0]
    launch.options["PTX"] = True
    ptx = launch.compile(TARGETS[target]).asm["ptx"]
    assert ptx.count("and.b32 low") >= 8  # for each half of the four blocks of a step
