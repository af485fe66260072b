"""The studio's own GPU kernels, each beside a PyTorch twin; this package knows nothing of the studio.

Importing it loads neither torch nor triton, so that a machine can be probed before either is trusted.
`studio_kernels.dispatch` binds the ops of one run; each op has a file of its own. To be run in child processes:
`python -m studio_kernels.self_compile` (no GPU needed) and `python -m studio_kernels.self_test`.
"""

from hashlib import sha256
from pathlib import Path

from studio_kernels.op import Implementation, Op, Support

__all__ = ["BEGUN", "TESTED_ALONE", "Implementation", "Op", "Support", "fingerprint"]
BEGUN = "It ended the process."
"""What the self-test says of an op while it is at it: all that is known, if the process ends there."""
TESTED_ALONE = ("adamw", "dropout")
"""Ops that nothing but the self-test proves: who takes over a model sees its results and gradients, not these."""


def fingerprint() -> str:
    """12 hexadecimal digits that change with any of this package's source: what failed in one may work in the next."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
