"""Sends a folder to a repository of the person's own at the hub: `python -m studio.hub.model_upload`, by a child.

Private unless it is asked otherwise; a repository that is public already is refused first. What is there already, by
its checksum, is not sent again, so that calling it once more goes on after a cut. The token is in the child's
environment alone, and is struck from whatever is said of a failure.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json
from studio.hub import child
from studio.hub.access_token import NO_MIRROR, VARIABLES, Mirror, choose_token, show_address
from studio.hub.child import (
    DownloadProgress,
    DownloadStopped,
    Refused,
    Report,
    end_with_parent,
    say,
    say_error,
)
from studio.hub.offline import wants_offline

PROGRAM = "studio.hub.model_upload"
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
SENT = re.compile(
    r"(adapter_config|config|base_config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens"
    r"|vocab|preprocessor_config|processor_config|video_preprocessor_config|model\.safetensors\.index)\.json"
    r"|(adapter_model|model(-\d+-of-\d+)?)\.safetensors|merges\.txt|tokenizer\.model|chat_template\.jinja|Modelfile"
    r"|[\w.-]+\.gguf"
)
"""Names of what is sent, beside the card: an allow-list."""
CARD = "README.md"
SECRETS = (
    (re.compile(rb"hf_[A-Za-z0-9]{20,}"), "token"),
    (re.compile(rb"(?:/home/|/Users/|/root/|[A-Za-z]:\\\\?Users\\\\?)[\w.-]"), "path"),
)
"""What must not leave, and the text that names it."""
READ_BYTES = 2**24
PATIENCE_S = 300.0
INPUT_FAULTS = (
    "name",
    "public",
    "login",
    "forbidden",
    "offline",
    "endpoint",
    "withheld",
    "secret",
    "no_token",
)
"""What the person can correct (exit code 2); the rest fails during the work (1)."""


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A file that would be sent."""

    name: str
    size_bytes: int


def list_files(folder: Path, card: str) -> tuple[UploadFile, ...]:
    """Return every file that would be sent of `folder`, with the card. Raises StudioError where one holds a secret."""
    found = [UploadFile(CARD, len(card.encode("utf-8")))]
    _look_for_secrets(CARD, card.encode("utf-8"))
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink() and SENT.fullmatch(path.name):
            for part in _readable(path):
                _look_for_secrets(path.name, part)
            found.append(UploadFile(path.name, path.stat().st_size))
    return tuple(found)


def upload_folder(
    folder: Path,
    repo: str,
    card: str,
    report: Report,
    should_stop: Callable[[], bool],
    *,
    public: bool = False,
    mirror: Mirror = NO_MIRROR,
    patience_s: float = PATIENCE_S,
) -> dict[str, str]:
    """Send `folder` with `card` to `repo`; return its url, commit and account. Raises DownloadStopped, StudioError."""
    require_name(repo)
    if wants_offline(os.environ):
        raise refuse("offline", repo)
    files = list_files(folder, card)
    address = mirror.find_address(os.environ)
    shown = show_address(address)
    if not shown:
        raise refuse("endpoint", repo, endpoint=literal(address))
    token = choose_token(mirror)
    if token.withheld:
        raise refuse("withheld", repo, endpoint=literal(shown))
    # One's own files by the hub's plain way: its other one (Xet) asks further addresses.
    environment = dict(os.environ) | {"HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1"} | token.changes
    wish = {
        "folder": str(folder),
        "repo": repo,
        "card": card,
        "public": public,
        "files": [one.name for one in files],
    }
    answer = child.ask(
        PROGRAM,
        wish=wish,
        environment=environment,
        report=report,
        should_stop=should_stop,
        patience_s=patience_s,
    )
    if "url" in answer:
        return answer
    detail = strike_token(str(answer.get("detail", "")), environment)
    raise refuse(answer["error"], repo, literal(detail), endpoint=literal(shown), seconds=round(patience_s))


def require_name(repo: str) -> None:
    """Raise StudioError for what is no name of a repository."""
    if not REPOSITORY.fullmatch(repo):
        raise refuse("name", repo[:100])


def refuse(kind: str, name: str, detail: object = "", **values: object) -> StudioError:
    """Return the StudioError that the texts upload.KIND say of the repository `name`."""
    cls = DownloadStopped if kind == "stopped" else StudioError
    values |= {"name": name, "detail": detail}
    parts = (text(f"upload.{kind}{part}", **values) for part in ("", ".why", ".fix"))
    return cls(*parts, exit_code=2 if kind in INPUT_FAULTS else 1)


def strike_token(words: str, environment: Mapping[str, str]) -> str:
    """Return `words` without the token, whoever put it there."""
    for name in VARIABLES:
        if token := environment.get(name, "").strip():
            words = words.replace(token, "…")
    return re.sub(r"hf_[A-Za-z0-9]{8,}", "…", words)


def _readable(path: Path) -> Iterator[bytes]:
    """Yield the parts of a file that are words: all of a text, the header of weights, the front of a GGUF file."""
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            size = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
            yield file.read(min(size, READ_BYTES))
        elif path.suffix == ".gguf":
            yield file.read(READ_BYTES)
        else:
            while block := file.read(READ_BYTES):
                yield block


def _look_for_secrets(name: str, content: bytes) -> None:
    for pattern, kind in SECRETS:
        if pattern.search(content):
            raise refuse("secret", name, text(f"upload.secret.{kind}"))


class ReadFile(io.BufferedReader):
    """A file that tells how much of it was sent: the library reads it once for its checksum, and then sends it."""

    def __init__(self, path: Path, progress: DownloadProgress, before_bytes: int) -> None:
        """`before_bytes`: what was there before this file."""
        super().__init__(io.FileIO(path))
        self._progress, self._before_bytes = progress, before_bytes
        self._size_bytes, self._was_read = path.stat().st_size, False

    def read(self, size: int | None = -1) -> bytes:
        """Read, and tell where that was."""
        data = super().read(size)
        if self._was_read:
            self._progress.set(self._before_bytes + self.tell())
        else:
            self._progress.beat()
            self._was_read = not data and self.tell() == self._size_bytes
        return data


# The child -----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Send what the wish on standard input says and return the exit code."""
    wish = parse_json(sys.stdin.buffer.readline())
    end_with_parent()
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalTokenNotFoundError

    try:
        with redirect_stdout(sys.stderr):
            answer = send_files(wish)
        say(answer)
        return 0
    except Refused as error:
        kind, reason = error.kind, error
    except LocalTokenNotFoundError as error:
        kind, reason = "no_token", error
    except HfHubHTTPError as error:
        status = error.response.status_code
        kinds = {401: "login", 403: "forbidden", 507: "no_space", 413: "no_space"}
        kind, reason = kinds.get(status, "unreachable"), error
    except HFValidationError as error:
        kind, reason = "name", error
    except RuntimeError as error:  # the library's own words around what a file's upload ran into
        status = getattr(getattr(error.__cause__, "response", None), "status_code", 0)
        kind, reason = {413: "no_space", 507: "no_space"}.get(status, "unreachable"), error
    except (HTTPError, ConnectionError) as error:
        kind, reason = "unreachable", error
    except OSError as error:
        kind, reason = "unreadable" if error.errno != errno.EPIPE else "unreachable", error
    say_error(kind, RuntimeError(strike_token(str(reason), os.environ)))
    return 1


def send_files(wish: Mapping[str, Any]) -> dict[str, str]:
    """Make the repository, send what it lacks, the largest last, and return where it is. Raises Refused, OSError."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    account = str(api.whoami()["name"])
    repo = wish["repo"] if "/" in wish["repo"] else f"{account}/{wish['repo']}"
    api.create_repo(repo, private=not wish["public"], exist_ok=True)
    info = api.model_info(repo, files_metadata=True)
    if (
        not info.private and not wish["public"]
    ):  # `private` is not looked at where the repository is there already
        raise Refused("public")
    folder, card = Path(wish["folder"]), wish["card"].encode("utf-8")
    contents: dict[str, Any] = {name: card if name == CARD else folder / name for name in wish["files"]}
    sizes = {name: len(card) if name == CARD else (folder / name).stat().st_size for name in contents}
    there = {part.rfilename: part for part in info.siblings or ()}
    progress = DownloadProgress(sum(sizes.values()))
    missing = []
    for name in sorted(contents, key=lambda one: sizes[one]):
        if name in there and _is_same(there[name], contents[name], progress):
            progress.add(sizes[name])
        else:
            missing.append(name)
    commit = info.sha or ""
    large = [name for name in missing if name.endswith((".safetensors", ".gguf"))]
    parts = [[name for name in missing if name not in large], *([name] for name in large)]
    for names in filter(None, parts):  # each is there for good before the next: a cut loses one file at most
        before_bytes = progress.done_bytes
        with ExitStack() as stack:
            operations = [
                CommitOperationAdd(
                    name,
                    one
                    if isinstance(one, bytes)
                    else stack.enter_context(ReadFile(one, progress, before_bytes)),
                )
                for name, one in ((name, contents[name]) for name in names)
            ]
            done = api.create_commit(
                repo, operations, commit_message=f"Add {', '.join(names)[:60]}", parent_commit=None
            )
        commit = done.oid
        progress.set(before_bytes + sum(sizes[name] for name in names))
    return {"url": f"{api.endpoint}/{repo}", "commit": commit, "account": account}


def _is_same(part: Any, content: Any, progress: DownloadProgress) -> bool:
    """Return whether the hub has these bytes already: by SHA-256 of large files, by git's own name of small ones."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    if part.size != size:
        return False
    wanted = part.lfs.sha256 if part.lfs else part.blob_id
    digest = hashlib.sha256() if part.lfs else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    if isinstance(content, bytes):
        digest.update(content)
    else:
        with content.open("rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
                progress.beat()
    return digest.hexdigest() == wanted


if __name__ == "__main__":
    sys.exit(main())
