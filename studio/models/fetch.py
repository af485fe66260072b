"""Brings a hub model into the user's hub cache, in a child process of its own so that the engine itself stays offline.

As a program (`python -m studio.models.fetch REPO [REVISION]`) it downloads and prints one JSON object a line:
{"file": name, "done_bytes": n, "total_bytes": n} ... {"folder": path} or {"error": kind, "detail": words}.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.events import PhaseStarted, RunEvent
from studio.core.facts import ModelFacts
from studio.core.text import literal, text
from studio.models.catalog import inspect_model

WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files of a model repository that the studio reads: no pickles, no code."""
REPORT_S = 1.0
TRIES = 5
"""A cut connection goes on where it stopped, this often."""


def resolve_model(
    source: str, revision: str, emit: Callable[[RunEvent], None], should_stop: Callable[[], bool]
) -> ModelFacts:
    """Return the facts of a model whose files are on this disk, downloading a hub model that is not.

    Raises StudioError when it does not exist, is gated, the disk is full, the hub does not answer or the person stops.
    """
    facts = inspect_model(source)
    if facts.folder:
        return facts
    emit(PhaseStarted(phase="download", detail=text("download.start", name=source)))
    folder = download(source, revision, _reporter(source, emit), should_stop)
    facts = inspect_model(str(folder))
    return facts if facts.name == source else _rename(facts, source)


def download(
    repo: str, revision: str, report: Callable[[int, int], None], should_stop: Callable[[], bool]
) -> Path:
    """Download `repo` in a child process and return its folder; `report(done_bytes, total_bytes)` as it goes.

    Raises StudioError.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))
    child = subprocess.Popen(
        [sys.executable, "-m", "studio.models.fetch", repo, *([revision] if revision else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment,
        encoding="utf-8",
    )
    answer: dict[str, str] = {"error": "ended", "detail": ""}
    try:
        for line in child.stdout or ():
            if should_stop():
                answer = {"error": "stopped", "detail": ""}
                break
            message = json.loads(line)
            if "done_bytes" in message:
                report(message["done_bytes"], message["total_bytes"])
            else:
                answer = message
    finally:
        child.kill()
        child.wait()
    if "folder" in answer:
        return Path(answer["folder"])
    kind = answer["error"]
    raise StudioError(
        text(f"download.{kind}", name=repo),
        text(f"download.{kind}.why", name=repo, detail=literal(answer["detail"])),
        text(f"download.{kind}.fix"),
        exit_code=2 if kind in ("gated", "missing") else 1,
    )


def _reporter(name: str, emit: Callable[[RunEvent], None]) -> Callable[[int, int], None]:
    def report(done_bytes: int, total_bytes: int) -> None:
        detail = text(
            "download.progress", name=name, done_mb=round(done_bytes / 1e6), total_mb=round(total_bytes / 1e6)
        )
        emit(PhaseStarted(phase="download", detail=detail))

    return report


def _rename(facts: ModelFacts, name: str) -> ModelFacts:
    return dataclasses.replace(facts, name=name, source=name)


def main(arguments: list[str]) -> int:
    """Download the repository named by `arguments`; returns the exit code."""
    from fnmatch import fnmatch

    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    from tqdm import tqdm

    repo, revision = arguments[0], arguments[1] if len(arguments) > 1 else None
    last_s = 0.0
    done_before, total = 0, 0

    class Report(tqdm):
        """hub's progress bar, spoken as JSON lines."""

        def __init__(self, *args, **kwargs):
            kwargs.pop("name", None)
            kwargs["disable"] = False
            kwargs["file"] = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            super().__init__(*args, **kwargs)

        def update(self, n=1):
            nonlocal last_s
            super().update(n)
            if time.monotonic() - last_s > REPORT_S:
                last_s = time.monotonic()
                say({"done_bytes": done_before + int(self.n), "total_bytes": total})

    def say(message: dict) -> None:
        print(json.dumps(message), flush=True)

    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        files = [
            part for part in info.siblings or [] if any(fnmatch(part.rfilename, want) for want in WANTED)
        ]
        total = sum(part.size or 0 for part in files)
        say({"done_bytes": 0, "total_bytes": total})
        folder = ""
        for part in files:
            for attempt in range(TRIES):
                try:
                    path = hf_hub_download(repo, part.rfilename, revision=info.sha, tqdm_class=Report)
                    break
                except (OSError, HfHubHTTPError) as error:
                    if (
                        attempt == TRIES - 1
                        or getattr(error, "errno", None) == 28
                        or isinstance(error, GatedRepoError)
                    ):
                        raise
                    time.sleep(0.5 * 2**attempt)
            done_before += part.size or 0
            say({"done_bytes": done_before, "total_bytes": total})
            if "/" not in part.rfilename:
                folder = str(Path(path).parent)
        say({"folder": folder})
        return 0
    except GatedRepoError as error:
        say({"error": "gated", "detail": str(error)[:300]})
    except RepositoryNotFoundError as error:
        say({"error": "missing", "detail": str(error)[:300]})
    except OSError as error:
        kind = "no_space" if error.errno == 28 or "space" in str(error).lower() else "unreachable"
        say(
            {
                "error": kind,
                "detail": str(error).splitlines()[0][:300] if str(error) else type(error).__name__,
            }
        )
    except HfHubHTTPError as error:
        say({"error": "unreachable", "detail": str(error).splitlines()[0][:300]})
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
