"""Data sets that lie elsewhere: data sets of the hub by owner/name, and files at an https address.

Whoever calls decides whether the person may: only the owner of the machine, never a visitor of a shared window.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.i18n import Text, literal
from studio.core.json_file import read_json
from studio.core.recipe import DatasetSpec
from studio.data.dataset_card import SUFFIXES, choose, refuse, show_source
from studio.data.open_question import Question
from studio.data.split_discovery import Plan
from studio.hub import child
from studio.hub.access_token import HUB, NO_MIRROR, find_token
from studio.hub.child import Report
from studio.hub.offline import wants_data_offline

__all__ = (
    "HUB_ID",
    "SUFFIXES",
    "Fetched",
    "RemoteFacts",
    "fetch_remote",
    "look_remote",
    "show_source",
)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
HUB_PAGE = re.compile(r"/datasets/([^/]+/[^/]+)(/.*)?")
LISTING = "listing.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFacts:
    """What is known of a remote data set before it is fetched."""

    source: str
    size_bytes: int | None
    """Of the files that would be fetched; None where the server does not say."""
    files: tuple[str, ...]
    """The files that would be fetched; none while a question has to be answered first."""
    configs: tuple[str, ...]
    splits: tuple[str, ...]
    questions: tuple[Question, ...]
    notes: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """A remote data set, or the part of it that a recipe names, on this disk."""

    folder: Path
    plan: Plan
    """Names below `folder`."""


def is_remote(source: str) -> bool:
    """Return whether `source` is an https address, or a name of the hub that is no path of this computer."""
    source = source.strip()
    if source.lower().startswith("https://"):
        return True
    if not HUB_ID.fullmatch(source) or source.lower().endswith(SUFFIXES):
        return False
    return not os.path.lexists(source)


def look_remote(spec: DatasetSpec, cache: Path) -> RemoteFacts:
    """Ask the server what `spec.source` holds (one small request), and keep the answer in `cache`.

    Raises StudioError: no such data set, gated, no network, an address that is a page, none that may be asked.
    """
    listing = _ask(_describe(spec.source) | {"do": "look"}, spec.source)["listing"]
    root = _root(spec.source, cache)
    root.mkdir(parents=True, exist_ok=True)
    write_file(root / LISTING, json.dumps(listing).encode())
    return _tell(spec, listing)


def fetch_remote(
    spec: DatasetSpec,
    cache: Path,
    on_progress: Report | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Fetched:
    """Return the files of `spec.source` in `cache`; those that are not there are fetched by a child process.

    What was fetched once is not asked for again: `look_remote` does that, and a newer version is then fetched.
    Nothing is fetched while the Plan has a question that decides what would be. Raises DownloadStopped, StudioError.
    """
    listing = _read_listing(spec.source, cache)
    if listing is None:
        look_remote(spec, cache)
        listing = _read_listing(spec.source, cache)
    choice = choose(spec, listing)
    place = _root(spec.source, cache) / listing["version"][:16]
    wanted = {name for names in choice.plan.splits.values() for name in names} if choice.ready else set()
    files = [file for file in listing["files"] if file["name"] in wanted]
    if any(not (place / file["name"]).is_file() for file in files):
        wish = _describe(spec.source) | {"do": "fetch", "files": files, "folder": str(place)}
        _ask(wish, spec.source, on_progress, should_stop)
    if not choice.ready:
        plan = Plan(splits={"train": ()}, questions=choice.plan.questions, notes=choice.plan.notes)
        return Fetched(folder=place, plan=plan)
    return Fetched(folder=place, plan=choice.plan)


def is_fetched(spec: DatasetSpec, cache: Path) -> bool:
    """Return whether fetch_remote would need no network."""
    listing = _read_listing(spec.source, cache)
    if listing is None:
        return False
    place = _root(spec.source, cache) / listing["version"][:16]
    return all((place / name).is_file() for name in _tell(spec, listing).files)


def _tell(spec: DatasetSpec, listing: Mapping[str, Any]) -> RemoteFacts:
    choice = choose(spec, listing)
    sizes = {file["name"]: file["size_bytes"] for file in listing["files"]}
    files = tuple(n for names in choice.plan.splits.values() for n in names) if choice.ready else ()
    found = [sizes[name] for name in files]
    return RemoteFacts(
        source=spec.source,
        size_bytes=None if None in found or not found else sum(found),
        files=files,
        configs=choice.configs,
        splits=choice.splits,
        questions=choice.plan.questions,
        notes=choice.plan.notes,
    )


# Asking --------------------------------------------------------------------------------------------------------------


def _describe(source: str) -> dict[str, Any]:
    """Return what a child process has to know of `source`. Raises StudioError: an endpoint that is none."""
    endpoint = NO_MIRROR.find_address(os.environ)
    if not re.match(r"https?://[^/]+", endpoint):
        raise refuse("endpoint", source, endpoint=literal(endpoint))
    hub = {"endpoint": endpoint, "token": find_token()}
    source = source.strip()
    if not source.lower().startswith("https://"):
        return hub | {"repository": source}
    try:
        parts = urlsplit(source)
        here = parts.hostname in (urlsplit(endpoint).hostname, urlsplit(HUB).hostname)
    except ValueError as error:
        raise refuse("missing", source, detail="") from error
    page = HUB_PAGE.fullmatch(unquote(parts.path)) if here else None
    if page is None:
        return hub | {"address": source}
    if page[2] and page[2].startswith(("/blob/", "/resolve/")):
        return hub | {
            "address": source.replace("/blob/", "/resolve/", 1)
        }  # the file, not the page that shows it
    return hub | {"repository": page[1]}


def _root(source: str, cache: Path) -> Path:
    return cache / f"remote-{hashlib.sha256(source.strip().encode('utf-8')).hexdigest()[:16]}"


def _read_listing(source: str, cache: Path) -> Mapping[str, Any] | None:
    try:
        return read_json(_root(source, cache) / LISTING)
    except StudioError:  # none, or one that was cut by a power failure: asked for again
        return None


def _ask(
    wish: Mapping[str, Any],
    source: str,
    on_progress: Report | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Return what a child process answers. Raises DownloadStopped, StudioError."""
    if wants_data_offline(os.environ):
        raise refuse("offline", source)
    from studio.hub.dataset_download import PROGRAM

    answer = child.ask(PROGRAM, wish=wish, report=on_progress, should_stop=should_stop)
    if "error" in answer:
        raise refuse(answer["error"], source, detail=answer.get("detail", ""))
    return answer
