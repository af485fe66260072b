"""Child process of test_interpreted_blocks.py: blocks by Triton's kernels in its interpreter, one JSON line a family.

Arguments: families of models.py. Each line: {"family", "loss", "worst", "own"}, the largest relative errors of the loss
and of a gradient, held against the model's own code in fp64, and how far that code is off in fp32.
"""

from __future__ import annotations

import json
import sys

import torch
from studio_kernels import _triton
from studio_kernels.dispatch import bind

from studio.models.adapt import unwrap
from studio.models.decoder.decoder import take_over
from tests.models.decoder.double import in_double
from tests.models.decoder.models import make_model
from tests.models.decoder.test_decoder import ours, stock

OPS = ("rms_norm", "rope", "glu")
"""Whose kernels a processor's interpreter runs in fp32."""


def main(families: list[str]) -> int:
    """Compare each family; fails when the interpreter is not at work (TRITON_INTERPRET must be set before)."""
    if not _triton.interpreted():
        print("the kernels are not interpreted", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    for family in families:
        exact, model = make_model(family).double(), make_model(family)
        with in_double():
            loss, truth = stock(exact, 1.0)
        own = stock(model, 1.0)[1]
        decoder = take_over(unwrap(model), bind(dict.fromkeys(OPS, "triton")), dtype=torch.float32)
        found, mine = ours(model, decoder, 1.0)
        errors = {"loss": abs(found / loss - 1), "worst": worst(mine, truth), "own": worst(own, truth)}
        print(json.dumps({"family": family} | errors), flush=True)
    return 0


def worst(found: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> float:
    return max(((found[name] - one).norm() / one.norm()).item() for name, one in truth.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
