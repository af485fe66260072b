"""The studio's own GPU kernels, each beside a PyTorch twin; this package knows nothing of the studio.

Importing it loads neither torch nor triton, so that a machine can be probed before either is trusted.
`studio_kernels.dispatch` binds the ops of one run; each op has a file of its own.
"""

from studio_kernels._probe import probe
from studio_kernels.support import Op, Support

__all__ = ["Op", "Support", "probe"]
