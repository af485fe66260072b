"""The result loaded again as anyone would, and compared with what was trained."""

from __future__ import annotations

from studio.engine.artifact import Trained, load_artifact, verify_artifact
from studio.engine.run_context import Run


def verify(run: Run, trained: Trained) -> None:
    """Reload the result and compare it. Raises StudioError when it is another one."""
    with run.phase("verify"):
        reloaded = load_artifact(run.folder.path, run.record, trained.facts, trained.plan, trained.base)
        verify_artifact(reloaded, trained.tokenizer, trained.fingerprint, trained.plan.dtype.value)
