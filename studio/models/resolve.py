"""The files of the model that a recipe names: those on this disk, opened where they are packed, else fetched."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from studio.core.events import PhaseStarted, RunEvent
from studio.core.facts import ModelFacts
from studio.core.i18n import literal, text
from studio.hub.access_token import NO_MIRROR, Mirror
from studio.hub.child import DownloadStopped
from studio.hub.model_download import download_model, refuse
from studio.hub.offline import wants_offline
from studio.models.catalog import find_folder, inspect_model, list_weights, read_weights
from studio.models.gguf.facts import find_gguf, read_gguf
from studio.models.gguf.opened import open_model
from studio.models.stored_weights import open_stored

TOLD_S = 5.0


def resolve_model(
    source: str,
    revision: str,
    emit: Callable[[RunEvent], None],
    should_stop: Callable[[], bool],
    mirror: Mirror = NO_MIRROR,
) -> ModelFacts:
    """Return the facts of a model whose files are on this disk: a hub model is downloaded, a packed one opened.

    Raises DownloadStopped when the person stops it; StudioError when the model does not exist, is gated, has no
    safetensors or cannot be trained, the disk is full, the hub does not answer, or the person wants no network.
    """
    facts = inspect_model(source, revision=revision)
    if facts.folder or facts.packed:
        return open_packed(facts, revision, emit, should_stop)
    if wants_offline(os.environ):
        raise refuse("offline", source)
    emit(PhaseStarted(phase="download", detail=text("download.start", name=source)))

    def report(done_bytes: int, total_bytes: int) -> None:
        megabytes = {"done_mb": round(done_bytes / 1e6), "total_mb": round(total_bytes / 1e6)}
        emit(PhaseStarted(phase="download", detail=text("download.progress", name=source, **megabytes)))

    folder = download_model(source, revision, report, should_stop, mirror)
    facts = inspect_model(source, revision=revision)
    if not facts.folder and not facts.packed:
        facts = inspect_model(str(folder))  # whole but for what a model needs: this says what it lacks
    if not facts.trainable.ok:
        raise refuse("not_trainable", source, facts.trainable.reason or literal(facts.architecture))
    return open_packed(facts, revision, emit, should_stop)


def open_packed(
    facts: ModelFacts,
    revision: str = "",
    emit: Callable[[RunEvent], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ModelFacts:
    """Return the facts of a model that is to be loaded: one that is stored packed is opened first, if it is not yet.

    That takes seconds for a small model and minutes for a large one; how far it is, is told every TOLD_S. Raises
    StudioError as resolve_model does, DownloadStopped when the person stops it.
    """
    if not facts.packed:
        return facts
    if not facts.trainable.ok:
        raise refuse("not_trainable", facts.name, facts.trainable.reason or literal(facts.architecture))
    emit(PhaseStarted(phase="open", detail=text("gguf.opening", name=facts.name)))
    told_s = time.monotonic()

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > TOLD_S:
            told_s = time.monotonic()
            megabytes = {"done_mb": round(done_bytes / 1e6), "total_mb": round(total_bytes / 1e6)}
            emit(PhaseStarted(phase="open", detail=text("gguf.progress", name=facts.name, **megabytes)))

    file = find_gguf(facts.source, Path(os.path.expanduser(facts.source)))
    if file is not None:
        opened = open_model(read_gguf(file), report, should_stop)
    else:
        folder = find_folder(facts.source, revision)
        if folder is None:
            raise refuse("missing", facts.source)
        tensors, _ = read_weights(folder, facts.name)
        opened = open_stored(folder, list_weights(folder), tensors, facts.name, report, should_stop)
    if opened is None:
        raise DownloadStopped(*(text(f"gguf.stopped{end}", name=facts.name) for end in ("", ".why", ".fix")))
    return inspect_model(facts.source, revision=revision)
