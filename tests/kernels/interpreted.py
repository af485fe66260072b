"""Child process of test_interpreter.py: runs cases in Triton's interpreter, one JSON line a comparison.

Arguments: the ids of the cases to run; all of them when there are none.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import torch
from studio_kernels import _triton
from studio_kernels.dispatch import op_named

from tests.kernels.oracle import cases, measure


def main(ids: list[str]) -> int:
    """Prints the results; fails when the interpreter is not at work (TRITON_INTERPRET must be set before)."""
    if not _triton.interpreted():
        print("the kernels are not interpreted", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    for case in cases("CASES"):
        if ids and case.id not in ids:
            continue
        for comparison in measure(op_named(case.op), case.options, "cpu", truncated=True):
            print(json.dumps({"case": case.id, **asdict(comparison)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
