"""Brings a hub model onto this disk, through a child process, so that the engine itself always stays offline."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from studio.core.errors import StudioError
from studio.core.events import PhaseStarted, RunEvent
from studio.core.facts import ModelFacts
from studio.core.text import literal, text
from studio.models.catalog import inspect_model

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
INPUT_FAULTS = ("gated", "login", "missing", "revision", "pickle_only", "no_weights", "not_trainable")
"""What the person can correct in the recipe or at the hub (exit code 2); the rest fails during the work (1)."""
POLL_S = 0.2


class DownloadStopped(StudioError):
    """The person asked for the end in the middle of a download."""


def resolve_model(
    source: str, revision: str, emit: Callable[[RunEvent], None], should_stop: Callable[[], bool]
) -> ModelFacts:
    """Return the facts of a model whose files are on this disk, downloading a hub model that is not.

    Raises DownloadStopped when the person stops it; StudioError when the model does not exist, is gated, has no
    safetensors or cannot be trained, the disk is full or the hub does not answer.
    """
    facts = inspect_model(source, revision=revision)
    if facts.folder:
        return facts
    emit(PhaseStarted(phase="download", detail=text("download.start", name=source)))

    def report(done_bytes: int, total_bytes: int) -> None:
        megabytes = {"done_mb": round(done_bytes / 1e6), "total_mb": round(total_bytes / 1e6)}
        emit(PhaseStarted(phase="download", detail=text("download.progress", name=source, **megabytes)))

    folder = download(source, revision, report, should_stop)
    facts = inspect_model(source, revision=revision)
    if not facts.folder:
        facts = inspect_model(str(folder))  # whole but for what a model needs: this says what it lacks
    if not facts.trainable.ok:
        raise _refusal("not_trainable", source, facts.trainable.reason or literal(facts.architecture))
    return facts


def download(
    repo: str, revision: str, report: Callable[[int, int], None], should_stop: Callable[[], bool]
) -> Path:
    """Download `repo` in a child process and return its folder; `report(done_bytes, total_bytes)` as it goes.

    HF_ENDPOINT, HF_HOME, proxies and the person's token count as they do for the hub's own tools. Looks at
    `should_stop()` every POLL_S. Raises StudioError.
    """
    answer: dict[str, str] = {}
    with tempfile.TemporaryFile() as errors:
        child = _start(repo, revision, errors)
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(child.stdout, lines), name="download", daemon=True).start()
        try:
            while not should_stop():
                try:
                    line = lines.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                if line is None:
                    break
                message = json.loads(line)
                if "done_bytes" in message:
                    report(message["done_bytes"], message["total_bytes"])
                else:
                    answer = message
            else:
                answer = {"error": "stopped"}
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
        if "folder" in answer:
            return Path(answer["folder"])
        detail = answer.get("detail", "")
        if not answer:
            errors.seek(0)
            detail = (errors.read().decode("utf-8", errors="replace").strip().splitlines() or [""])[-1]
    raise _refusal(answer.get("error", "ended"), repo, literal(detail))


def _start(repo: str, revision: str, errors: IO[bytes]) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name not in OFFLINE}
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "studio.models.download", repo, *([revision] if revision else [])],
        stdin=subprocess.PIPE,  # closes with us: the child then ends by itself
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _refusal(kind: str, name: str, detail: object) -> StudioError:
    cls = DownloadStopped if kind == "stopped" else StudioError
    return cls(
        text(f"download.{kind}", name=name),
        text(f"download.{kind}.why", name=name, detail=detail),
        text(f"download.{kind}.fix"),
        exit_code=2 if kind in INPUT_FAULTS else 1,
    )
