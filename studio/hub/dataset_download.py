"""A program that looks at a remote data set and brings its files here: `python -m studio.hub.dataset_download`.

It reads one JSON object from its standard input (see `answer`), prints one a line: {"done_bytes": n, "total_bytes": n}
as it goes, at the end {"listing": {...}}, {"fetched": [names]} or {"error": kind, "detail": words}. It ends by itself
when its standard input closes: then its parent is gone.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

from studio.core.atomic_files import FULL, replace_file
from studio.core.json_file import parse_json
from studio.hub.child import DownloadProgress, Refused, end_with_parent, require_space, say
from studio.hub.https_client import Web

PROGRAM = "studio.hub.dataset_download"
LIMIT_BYTES = 200 * 10**9
LISTING_LIMIT_BYTES = 64 * 2**20
TRIES, PAUSE_S = 4, 1.0
BLOCK_BYTES = 2**20
SPARE_BYTES = 2**28
"""What is left free on the disk."""
HUB_FAULTS = {"GatedRepo": "gated", "RepoNotFound": "missing", "RevisionNotFound": "missing"}
KINDS = {
    "application/json": ".json",
    "application/jsonl": ".jsonl",
    "application/x-ndjson": ".jsonl",
    "application/x-jsonlines": ".jsonl",
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "text/plain": ".txt",
    "text/markdown": ".md",
    "application/zip": ".zip",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.apache.parquet": ".parquet",
}
"""Endings for addresses that have none, by what the server says."""


def main() -> int:
    """Do what the first line of the standard input asks and return the exit code."""
    wish = parse_json(sys.stdin.buffer.readline())
    end_with_parent()
    try:
        say(answer(wish))
        return 0
    except Refused as error:
        kind, reason = error.kind, error
    except urllib.error.HTTPError as error:
        kind, reason = classify(error.code, error.headers), error
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        TimeoutError,
        ConnectionError,
        ssl.SSLError,
    ) as error:
        kind, reason = "unreachable", getattr(error, "reason", error)
    except OSError as error:
        kind, reason = "no_space" if error.errno in FULL else "unwritable", error
    say({"error": kind, "detail": " ".join(str(reason).split())[:200]})
    return 1


def answer(wish: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to one wish.

    {"do": "look", "repository": "owner/name", "endpoint": address, "token": words} or {"do": "look", "address": ...}:
    {"listing": {"version", "files": [{"name", "size_bytes", "sha256", "address"}], "configs"}}.
    {"do": "fetch", "files": [as in a listing], "folder": path, "endpoint", "token"}: {"fetched": names}.
    Raises Refused and what the network and the disk raise.
    """
    web = Web(wish.get("endpoint", ""), wish.get("token", ""))
    if wish["do"] == "fetch":
        return {"fetched": fetch(web, wish["files"], Path(wish["folder"]))}
    if "repository" in wish:
        return {"listing": list_repository(web, wish["repository"])}
    return {"listing": list_address(web, wish["address"])}


def list_repository(web: Web, repository: str) -> dict[str, Any]:
    """Return the listing of a data set of the hub: one request, and one more for a card that it does not include."""
    quoted = urllib.parse.quote(repository, safe="/")
    with web.open(f"{web.endpoint}/api/datasets/{quoted}/revision/main?blobs=true") as opened:
        data = opened.read(LISTING_LIMIT_BYTES + 1)
    if len(data) > LISTING_LIMIT_BYTES:
        raise Refused("large")
    try:
        found = parse_json(data)
        version = str(found["sha"])
        if not re.fullmatch(r"[0-9a-f]{7,64}", version):
            raise ValueError(version)
        base = f"{web.endpoint}/datasets/{quoted}/resolve/{version}/"
        files = [
            {
                "name": part["rfilename"],
                "size_bytes": part.get("size"),
                "sha256": (part.get("lfs") or {}).get("sha256", ""),
                "address": base + urllib.parse.quote(part["rfilename"]),
            }
            for part in found["siblings"]
            if is_safe(part["rfilename"])
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused("no_hub", str(error)) from error
    card = found.get("cardData")
    names = [part["name"] for part in files]
    if not isinstance(card, dict) and "README.md" in names:
        card = _read_card(web, base + "README.md")
    configs = card.get("configs") if isinstance(card, dict) else None
    return {"version": version, "files": files, "configs": configs if isinstance(configs, list) else []}


def _read_card(web: Web, address: str) -> object:
    """Return what stands between the lines of three dashes at the top of a README."""
    import yaml

    with web.open(address) as opened:
        words = opened.read(LISTING_LIMIT_BYTES).decode("utf-8", errors="replace")
    front = re.match(r"\s*---\r?\n(.*?)\n---", words, re.DOTALL)
    try:
        return yaml.safe_load(front[1]) if front and len(front[1]) < 2**20 else None
    except (yaml.YAMLError, RecursionError) as error:
        raise Refused("card", str(error)) from error


def list_address(web: Web, address: str) -> dict[str, Any]:
    """Return the listing of one file: its answer's head is read, no more."""
    with web.open(address) as opened:
        headers, final = opened.headers, opened.geturl()
    kind = headers.get_content_type()
    name = name_file(headers, final)
    if kind in ("text/html", "application/xhtml+xml"):
        raise Refused("page")
    if headers.get("Content-Encoding", "identity") == "gzip":
        name += ".gz"
    size_bytes = _read_size(headers)
    version = headers.get("ETag") or headers.get("Last-Modified") or str(size_bytes)
    version = hashlib.sha256(f"{version} {size_bytes}".encode()).hexdigest()
    file = {"name": name, "size_bytes": size_bytes, "sha256": "", "address": address}
    return {"version": version, "files": [file], "configs": []}


def name_file(headers: Message, address: str) -> str:
    """Return a name for the file at `address` that is safe on every system."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(address).path)
    name = headers.get_filename() or path
    name = re.sub(r"[^\w.-]+", "_", re.split(r"[/\\]", name)[-1]).lstrip(".")[-80:] or "data"
    if PurePosixPath(name).suffix:
        return name
    return name + KINDS.get(headers.get_content_type(), "")


def is_safe(name: str) -> bool:
    """Return whether a file's name stays below the folder that it is put in, on Windows too."""
    parts = PurePosixPath(name).parts
    odd = any(part == ".." or re.search(r'[\\:*?"<>|\0-\x1f]', part) for part in parts)
    return bool(parts) and not odd and not name.startswith("/")


def fetch(web: Web, files: list[dict[str, Any]], folder: Path) -> list[str]:
    """Bring `files` into `folder`, each under its name once it is whole; those that are there stay."""
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        absent = [file for file in files if not (folder / file["name"]).exists()]
        total_bytes = sum(file["size_bytes"] or 0 for file in absent)
        if total_bytes > LIMIT_BYTES:
            raise Refused("large", f"{total_bytes / 1e9:.1f} GB")
        require_space(folder, total_bytes, SPARE_BYTES)
        progress = DownloadProgress(total_bytes)
        for file in absent:
            if not is_safe(file["name"]):
                raise Refused("unwritable", file["name"])
            target = folder / file["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(target.name + ".part")
            _fetch_file(web, file, partial, progress)
            replace_file(partial, target)
    return [file["name"] for file in files]


def _fetch_file(web: Web, file: Mapping[str, Any], partial: Path, progress: DownloadProgress) -> None:
    """Fetch one file into `partial`, going on where an earlier attempt stopped. Raises Refused, OSError."""
    before_bytes = progress.done_bytes
    for attempt in range(1, TRIES + 1):
        try:
            _fetch_rest(web, file, partial, progress, before_bytes)
            return _check(file, partial)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # what is here cannot be gone on from
                partial.unlink(missing_ok=True)
            elif error.code < 500 and error.code != 429 or attempt == TRIES:
                raise
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            TimeoutError,
            ConnectionError,
            _Broken,
        ) as error:
            certificate = isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)
            if certificate or attempt == TRIES:
                raise
        time.sleep(PAUSE_S * attempt)
    raise Refused("unreachable")


class _Broken(ConnectionError):
    """What came is not what was announced."""


def _fetch_rest(
    web: Web, file: Mapping[str, Any], partial: Path, progress: DownloadProgress, before_bytes: int
) -> None:
    marker = partial.with_name(partial.name + ".tag")
    had_bytes = partial.stat().st_size if partial.exists() else 0
    tag = marker.read_text(encoding="utf-8") if had_bytes and marker.exists() else ""
    headers = {"Range": f"bytes={had_bytes}-", "If-Range": tag} if tag else {}
    with web.open(file["address"], headers) as opened:
        goes_on = opened.status == 206 and f"bytes {had_bytes}-" in opened.headers.get("Content-Range", "")
        found_tag = opened.headers.get("ETag") or opened.headers.get("Last-Modified") or ""
        # A weak tag does not promise the same bytes, and cannot be asked for again.
        marker.write_text("" if found_tag.startswith("W/") else found_tag, encoding="utf-8")
        done_bytes = had_bytes if goes_on else 0
        announced = _read_size(opened.headers)
        with partial.open("ab" if goes_on else "wb") as target:
            while block := opened.read(BLOCK_BYTES):
                done_bytes += len(block)
                if before_bytes + done_bytes > LIMIT_BYTES:
                    raise Refused("large", f"{done_bytes / 1e9:.1f} GB")
                if not file["size_bytes"]:
                    require_space(partial.parent, 0, SPARE_BYTES)
                target.write(block)
                progress.set(before_bytes + done_bytes)
        if announced is not None and done_bytes != announced + (had_bytes if goes_on else 0):
            raise _Broken("cut short")
    marker.unlink()


def _check(file: Mapping[str, Any], partial: Path) -> None:
    """Remove a file that is not the announced one. Raises _Broken."""
    size_bytes = partial.stat().st_size
    sound = file["size_bytes"] in (None, size_bytes)
    if sound and file["sha256"]:
        with partial.open("rb") as opened:
            sound = hashlib.file_digest(opened, "sha256").hexdigest() == file["sha256"]
    if not sound:
        partial.unlink()
        raise _Broken("not the announced content")


def classify(status: int, headers: Message) -> str:
    """Return the kind of refusal that an answer of the server means."""
    if kind := HUB_FAULTS.get(headers.get("X-Error-Code", "")):
        return kind
    return {401: "login", 403: "login", 404: "missing", 410: "missing"}.get(status, "unreachable")


def _read_size(headers: Message) -> int | None:
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


if __name__ == "__main__":
    sys.exit(main())
