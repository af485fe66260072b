"""The files of the model that a recipe names: those on this disk, else fetched from the hub."""

from __future__ import annotations

import os
from collections.abc import Callable

from studio.core.events import PhaseStarted, RunEvent
from studio.core.facts import ModelFacts
from studio.core.i18n import literal, text
from studio.hub.access_token import NO_MIRROR, Mirror
from studio.hub.model_download import download_model, refuse
from studio.hub.offline import wants_offline
from studio.models.catalog import inspect_model


def resolve_model(
    source: str,
    revision: str,
    emit: Callable[[RunEvent], None],
    should_stop: Callable[[], bool],
    mirror: Mirror = NO_MIRROR,
) -> ModelFacts:
    """Return the facts of a model whose files are on this disk, downloading a hub model that is not.

    Raises DownloadStopped when the person stops it; StudioError when the model does not exist, is gated, has no
    safetensors or cannot be trained, the disk is full, the hub does not answer, or the person wants no network.
    """
    facts = inspect_model(source, revision=revision)
    if facts.folder:
        return facts
    if wants_offline(os.environ):
        raise refuse("offline", source)
    emit(PhaseStarted(phase="download", detail=text("download.start", name=source)))

    def report(done_bytes: int, total_bytes: int) -> None:
        megabytes = {"done_mb": round(done_bytes / 1e6), "total_mb": round(total_bytes / 1e6)}
        emit(PhaseStarted(phase="download", detail=text("download.progress", name=source, **megabytes)))

    folder = download_model(source, revision, report, should_stop, mirror)
    facts = inspect_model(source, revision=revision)
    if not facts.folder:
        facts = inspect_model(str(folder))  # whole but for what a model needs: this says what it lacks
    if not facts.trainable.ok:
        raise refuse("not_trainable", source, facts.trainable.reason or literal(facts.architecture))
    return facts
