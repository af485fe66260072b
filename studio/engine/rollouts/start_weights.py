"""What is trained as it was before the first step, to be put in its place for a moment: the reference of fresh answers.

Right for a new adapter (whose start is the base), one that goes on, and all weights alike; no second model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from studio.core.atomic_files import replace_file
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.engine.checkpoint import require_space

FILE = "start.safetensors"


class StartWeights:
    """The first values of `trained`, on the processor; in the run's folder, so that a run that resumes has them."""

    def __init__(self, trained: Sequence[torch.nn.Parameter], folder: Path, step: int) -> None:
        """Keep them where the run begins, at `step` 0; else read what was kept then.

        Raises StudioError where these are gone, or the disk is full.
        """
        self._trained = trained
        file = folder / FILE
        if not step:
            require_space(folder, sum(one.nbytes for one in trained))
            staged = file.with_suffix(".part")
            save_file({str(i): one.detach().cpu().clone() for i, one in enumerate(trained)}, staged)
            replace_file(staged, file)
        elif not file.exists():
            raise StudioError(
                *(text(f"run.reference_lost{part}") for part in ("", ".why", ".fix")), exit_code=1
            )
        found = load_file(file)
        self._start = [found[str(i)] for i in range(len(trained))]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model be what it was, inside."""
        now = [one.detach().cpu().clone() for one in self._trained]
        try:
            self._put(self._start)
            yield
        finally:
            self._put(now)

    @torch.no_grad()
    def _put(self, values: Sequence[torch.Tensor]) -> None:
        for one, value in zip(self._trained, values, strict=True):
            one.copy_(value)
