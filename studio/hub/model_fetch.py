"""Brings a hub model onto this disk, through a child process, so that the engine itself always stays offline."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json
from studio.hub.access_token import NO_MIRROR, Mirror, TokenChoice, choose_token
from studio.hub.offline import OFFLINE

INPUT_FAULTS = (
    "endpoint",
    "offline",
    "gated",
    "login",
    "missing",
    "revision",
    "pickle_only",
    "no_weights",
    "not_trainable",
)
"""What the person can correct in the recipe or at the hub (exit code 2); the rest fails during the work (1)."""
LOCKED = ("gated", "login")
"""What a token could open."""
POLL_S = 0.2
PATIENCE_S = 60.0
"""Without a word from the child for so long, it is started again, this time without the hub's own transfer (Xet)."""


class DownloadStopped(StudioError):
    """The person asked for the end in the middle of a download."""


def download(
    repo: str,
    revision: str,
    report: Callable[[int, int], None],
    should_stop: Callable[[], bool],
    mirror: Mirror = NO_MIRROR,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> Path:
    """Download `repo` in a child process and return its folder; `report(done_bytes, total_bytes)` as it goes.

    HF_ENDPOINT, HF_HOME and proxies count as they do for the hub's own tools. Looks at `should_stop()` every POLL_S. A
    child that is silent for `patience_s` is replaced once. Raises StudioError.
    """
    address = mirror.find_address(os.environ)
    shown = show_address(address)
    if not shown:
        raise refuse("endpoint", repo, endpoint=literal(address))
    token = choose_token(mirror)
    changes = {"HF_ENDPOINT": address} | token.changes
    answer = _ask_child(repo, revision, changes, report, should_stop, patience_s, clock)
    if answer.get("error") == "stalled":
        changes["HF_HUB_DISABLE_XET"] = "1"
        answer = _ask_child(repo, revision, changes, report, should_stop, patience_s, clock)
    if "folder" in answer:
        return Path(answer["folder"])
    if answer["error"] in LOCKED and token.withheld:
        raise refuse_without_token(repo, shown, token)
    detail = literal(answer.get("detail", ""))
    raise refuse(answer["error"], repo, detail, endpoint=literal(shown), seconds=round(patience_s))


def show_address(address: str) -> str:
    """Return a web address without the user's name and password in it; "" when it is none."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    known = parts.scheme in ("http", "https") and parts.hostname
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}" if known else ""


def refuse_without_token(name: str, shown: str, token: TokenChoice) -> StudioError:
    """Return the refusal of a model that asks for a token where none was sent; `shown` is who asked."""
    parts = ("hub.withheld", f"hub.withheld.{token.withheld}.why", f"hub.withheld.{token.withheld}.fix")
    return StudioError(*(text(part, name=name, endpoint=literal(shown)) for part in parts), exit_code=2)


def _ask_child(
    repo: str,
    revision: str,
    changes: Mapping[str, str],
    report: Callable[[int, int], None],
    should_stop: Callable[[], bool],
    patience_s: float,
    clock: Callable[[], float],
) -> dict[str, str]:
    """Return what one child answers: its `folder`, or an `error` and its `detail`."""
    answer: dict[str, str] = {}
    with tempfile.TemporaryFile() as errors:
        child = _start(repo, revision, changes, errors)
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(child.stdout, lines), name="download", daemon=True).start()
        heard_s = clock()
        try:
            while not should_stop():
                try:
                    line = lines.get(timeout=POLL_S)
                except queue.Empty:
                    if clock() - heard_s > patience_s:
                        return {"error": "stalled"}
                    continue
                if line is None:
                    break
                heard_s, message = clock(), parse_json(line)
                if "done_bytes" in message:
                    report(message["done_bytes"], message["total_bytes"])
                else:
                    answer = message
            else:
                return {"error": "stopped"}
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
        if answer:
            return answer
        errors.seek(0)
        said = errors.read().decode("utf-8", errors="replace").strip().splitlines()
    return {"error": "ended", "detail": (said or [""])[-1]}


def _start(repo: str, revision: str, changes: Mapping[str, str], errors: IO[bytes]) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name not in OFFLINE} | dict(changes)
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "studio.hub.model_download", repo, *([revision] if revision else [])],
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


def refuse(kind: str, name: str, detail: object = "", **values: object) -> StudioError:
    """Return the StudioError that the texts download.KIND say of the model `name`."""
    cls = DownloadStopped if kind == "stopped" else StudioError
    values |= {"name": name, "detail": detail}
    return cls(
        *(text(f"download.{kind}{part}", **values) for part in ("", ".why", ".fix")),
        exit_code=2 if kind in INPUT_FAULTS else 1,
    )
