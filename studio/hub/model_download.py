"""Brings a hub model into the hub's cache on this disk: `python -m studio.hub.model_download REPO [REVISION]`.

The child answers {"folder": path}. Its parent sets HF_ENDPOINT for a mirror: the hub library reads it when it is
imported, so only there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from studio.core.atomic_files import FULL, replace_file
from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.hub import child
from studio.hub.access_token import (
    LOCKED,
    NO_MIRROR,
    Mirror,
    choose_token,
    refuse_without_token,
    show_address,
)
from studio.hub.child import (
    DownloadProgress,
    DownloadStopped,
    Refused,
    Report,
    end_with_parent,
    require_space,
    say,
    say_error,
)

PROGRAM = "studio.hub.model_download"
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
PATIENCE_S = 60.0
"""Without a word from the child for so long, it is started again, this time without the hub's own transfer (Xet)."""
READ = (".json", ".safetensors", ".model", ".txt", ".jinja")
"""Endings of the files at the top of a repository that the studio reads: no pickles, no code."""
SECOND_COPY = "consolidated"
"""Some repositories hold the same weights again, in their authors' own layout, under this name."""
TRIES = 4
"""On top of the hub library's own five of each: it gives up at once when a connection is reset."""
PAUSE_S = 1.0
BLOCK_BYTES = 2**24


def download_model(
    repo: str,
    revision: str,
    report: Report,
    should_stop: Callable[[], bool],
    mirror: Mirror = NO_MIRROR,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> Path:
    """Download `repo` in a child process and return its folder; `report(done_bytes, total_bytes)` as it goes.

    HF_ENDPOINT, HF_HOME and proxies count as they do for the hub's own tools. A child that is silent for
    `patience_s` is replaced once. Raises DownloadStopped, StudioError.
    """
    address = mirror.find_address(os.environ)
    shown = show_address(address)
    if not shown:
        raise refuse("endpoint", repo, endpoint=literal(address))
    token = choose_token(mirror)
    environment = dict(os.environ) | {"HF_ENDPOINT": address} | token.changes
    words = (repo, revision) if revision else (repo,)
    options = {"report": report, "should_stop": should_stop, "patience_s": patience_s, "clock": clock}
    answer = child.ask(PROGRAM, *words, environment=environment, **options)
    if answer.get("error") == "stalled":
        environment["HF_HUB_DISABLE_XET"] = "1"
        answer = child.ask(PROGRAM, *words, environment=environment, **options)
    if "folder" in answer:
        return Path(answer["folder"])
    if answer["error"] in LOCKED and token.withheld:
        raise refuse_without_token(repo, shown, token)
    detail = literal(answer.get("detail", ""))
    raise refuse(answer["error"], repo, detail, endpoint=literal(shown), seconds=round(patience_s))


def refuse(kind: str, name: str, detail: object = "", **values: object) -> StudioError:
    """Return the StudioError that the texts download.KIND say of the model `name`."""
    cls = DownloadStopped if kind == "stopped" else StudioError
    values |= {"name": name, "detail": detail}
    return cls(
        *(text(f"download.{kind}{part}", **values) for part in ("", ".why", ".fix")),
        exit_code=2 if kind in INPUT_FAULTS else 1,
    )


# The child -----------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Download the repository named by `arguments` and return the exit code."""
    end_with_parent()
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        with redirect_stdout(sys.stderr):  # what a library prints is no answer
            folder = fetch_files(arguments[0], arguments[1] if len(arguments) > 1 else "")
        say({"folder": str(folder)})
        return 0
    except Refused as error:
        kind, reason = error.kind, error
    except GatedRepoError as error:
        kind, reason = "gated", error
    except (RepositoryNotFoundError, HFValidationError) as error:
        kind, reason = "missing", error
    except RevisionNotFoundError as error:
        kind, reason = "revision", error
    except HfHubHTTPError as error:
        kind, reason = "login" if error.response.status_code in (401, 403) else "unreachable", error
    except (HTTPError, LocalEntryNotFoundError, ConnectionError) as error:
        kind, reason = "unreachable", error
    except OSError as error:
        kind, reason = "no_space" if error.errno in FULL else "unwritable", error
    say_error(kind, reason)
    return 1


def fetch_files(repo: str, revision: str) -> Path:
    """Bring the wanted files of `repo` into the hub cache and return their folder.

    Raises Refused, OSError, or what the hub library raises.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    info = HfApi().model_info(repo, revision=revision or None, files_metadata=True)
    names = [part.rfilename for part in info.siblings or ()]
    parts = [part for part in info.siblings or () if _is_wanted(part.rfilename)]
    if not any(part.rfilename.endswith(".safetensors") for part in parts):
        pickles = any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names)
        raise Refused("pickle_only" if pickles else "no_weights")
    root = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    folder = root / "snapshots" / info.sha
    absent = [part for part in parts if not (folder / part.rfilename).exists()]
    Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)
    require_space(Path(HF_HUB_CACHE), sum(_missing_bytes(root, part) for part in absent))
    progress = DownloadProgress(sum(part.size or 0 for part in parts))
    progress.add(sum(part.size or 0 for part in parts) - sum(part.size or 0 for part in absent))
    # Small files first: a refusal by the hub shows before gigabytes were fetched.
    for part in sorted(absent, key=lambda part: part.size or 0):
        if part.lfs:
            _fetch_blob(repo, info.sha, part, root, progress)
            hf_hub_download(repo, part.rfilename, revision=info.sha)
        else:
            hf_hub_download(repo, part.rfilename, revision=info.sha, tqdm_class=bar_of(progress.add))
    if revision != info.sha and "config.json" in names:
        # By its branch or tag once more: this records which commit the name stands for, so that it is found offline.
        hf_hub_download(
            repo, "config.json", revision=revision or "main", tqdm_class=bar_of(lambda count_bytes: None)
        )
    return folder


class Bar:
    """The part of tqdm's progress bar that the hub library calls."""

    def __init__(self, add: Callable[[int], None]) -> None:
        self.update = add

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def bar_of(add: Callable[[int], None]) -> Callable[..., Bar]:
    """Return what the hub library takes for a class of progress bars; each counts by `add`."""
    return lambda **_: Bar(add)


def _fetch_blob(repo: str, commit: str, part: Any, root: Path, progress: DownloadProgress) -> None:
    """Fetch a large file to where the hub library looks for it, going on where an earlier attempt stopped.

    The library's own download resumes only within one call, and a stopped one leaves gigabytes that nothing uses.
    """
    from filelock import FileLock
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HTTPError
    from huggingface_hub.file_download import are_symlinks_supported, http_get
    from huggingface_hub.utils import build_hf_headers

    blob = root / "blobs" / part.lfs.sha256
    # Without symbolic links (Windows outside developer mode) a snapshot holds the file itself.
    linked = are_symlinks_supported(root.parent)
    target = blob if linked else root / "snapshots" / commit / part.rfilename
    for parent in (blob.parent, target.parent):
        parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(root, part)
    with FileLock(f"{partial}.lock"):
        if target.exists():
            return progress.add(part.size)
        done_before = progress.done_bytes
        for attempt in range(TRIES):
            had_bytes = partial.stat().st_size if partial.exists() else 0
            progress.add(done_before + had_bytes - progress.done_bytes)
            try:
                with partial.open("ab") as file:
                    http_get(
                        hf_hub_url(repo, part.rfilename, revision=commit),
                        file,
                        resume_size=had_bytes,
                        headers=build_hf_headers(),
                        expected_size=part.size,
                        tqdm_class=bar_of(progress.add),
                    )
                _require_content(partial, part, progress)
                break
            except HfHubHTTPError:
                raise
            except (HTTPError, BrokenFile):
                if attempt == TRIES - 1:
                    raise
                time.sleep(PAUSE_S)
        replace_file(partial, target)


class BrokenFile(OSError):
    """What was fetched is not what the hub announced."""


def _require_content(partial: Path, part: Any, progress: DownloadProgress) -> None:
    """Remove a file whose SHA-256 is not the announced one: after a power cut a partial one may end in zeros."""
    digest = hashlib.sha256()
    with partial.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            progress.beat()
    found = digest.hexdigest()
    if found != part.lfs.sha256:
        partial.unlink()
        raise BrokenFile(errno.EIO, "its checksum is not the hub's", part.rfilename)


def _partial(root: Path, part: Any) -> Path:
    return root / "blobs" / f"{part.lfs.sha256}.studio.incomplete"


def _missing_bytes(root: Path, part: Any) -> int:
    if not part.lfs:
        return part.size or 0
    if (root / "blobs" / part.lfs.sha256).exists():
        return 0
    partial = _partial(root, part)
    return max(0, (part.size or 0) - (partial.stat().st_size if partial.exists() else 0))


def _is_wanted(name: str) -> bool:
    return "/" not in name and name.endswith(READ) and not name.startswith(SECOND_COPY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
