"""A run's folder from elsewhere: copied file by file, no link followed, and believed only when all of it reads."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from studio.core.atomic_files import replace_file
from studio.core.codec import event_from_json, from_json
from studio.core.errors import StudioError
from studio.core.events import EVENTS, EVENTS_VERSION
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json, read_json
from studio.core.migrate import lift
from studio.core.run_record import RunRecord
from studio.engine.checkpoint import require_space
from studio.engine.run_folder import RUN_NAME, RunFolder
from studio.models.catalog import read_header

TOP_FILES = {
    "recipe.json",
    "run.json",
    "plan.json",
    "events.jsonl",
    "deaths.jsonl",
    "log.txt",
    "stacks.txt",
}
RESULTS = ("adapter", "model")
RESULT_KINDS = {".safetensors", ".json", ".jinja", ".txt", ".md", ".model"}
"""Weights, configuration, chat template, vocabulary, card, and the vocabulary of a sentencepiece tokenizer."""
LEFT_OUT = ("checkpoints",)
"""Holds a pickle of torch for the optimizer's state; what comes from elsewhere is taken without it."""
NEEDED = {"adapter": ("adapter_config.json", "adapter_model.safetensors"), "model": ("config.json",)}
FILES_LIMIT = 2000
SMALL_LIMIT_BYTES = 64 * 2**20
"""Of a JSON file; a tokenizer's is some 20 MB."""
LINE_LIMIT_BYTES = 2**20
NAME_LIMIT = 100
REPARSE_POINT = 0x400
"""Windows' mark of a junction or any other link."""


def import_run(folder: Path, runs: Path) -> str:
    """Copy the run in `folder` into `runs` and return its id: its own, or a new one where that is taken.

    Raises StudioError for anything that a run of this studio does not consist of, a full disk; OSError.
    """
    source = Path(os.path.expanduser(folder)).absolute()
    if not source.is_dir() or _is_link(source.lstat()):
        raise _refusal(source, "folder")
    files = list(_list_files(source))
    require_space(runs, sum(size_bytes for _, size_bytes in files))
    staging = runs / f".import-{secrets.token_hex(4)}"
    try:
        for name, size_bytes in files:
            _copy(source, staging, name, size_bytes)
        # The copy is what is judged: nobody else can change it meanwhile.
        record = _judge(source, RunFolder(staging))
        run = _choose_id(source.name, record.run, runs)
        if record.state in ("running", "waiting"):
            record = dataclasses.replace(record, state="stopped")
        RunFolder(staging).write_record(dataclasses.replace(record, run=run))
        replace_file(staging, runs / run)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return run


def clean_name(name: str) -> str:
    """Return a run's name without signs that no screen shows, cut to NAME_LIMIT characters; "" when nothing is left."""
    return re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in name)).strip()[:NAME_LIMIT]


def _list_files(source: Path) -> Iterator[tuple[str, int]]:
    """Yield (path below `source`, bytes) of all that is taken. Raises StudioError for what has no place in a run."""
    waiting, count = [""], 0
    while waiting:
        below = waiting.pop()
        with os.scandir(source / below) as entries:
            for entry in entries:
                name = f"{below}/{entry.name}" if below else entry.name
                facts = entry.stat(follow_symlinks=False)
                count += 1
                if _is_link(facts):
                    raise _refusal(source, "link", file=name)
                if count > FILES_LIMIT or not RUN_NAME.fullmatch(entry.name):
                    raise _refusal(source, "unknown", file=name)
                if stat.S_ISDIR(facts.st_mode):
                    if below or entry.name not in (*RESULTS, *LEFT_OUT):
                        raise _refusal(source, "unknown", file=name)
                    if entry.name in RESULTS:
                        waiting.append(name)
                    continue
                known = Path(name).suffix in RESULT_KINDS if below else name in TOP_FILES
                if not stat.S_ISREG(facts.st_mode) or not known:
                    raise _refusal(source, "unknown", file=name)
                if name.endswith((".json", ".jinja", ".md", ".model")) and facts.st_size > SMALL_LIMIT_BYTES:
                    raise _refusal(source, "large", file=name)
                yield name, facts.st_size


def _is_link(facts: os.stat_result) -> bool:
    return stat.S_ISLNK(facts.st_mode) or bool(getattr(facts, "st_file_attributes", 0) & REPARSE_POINT)


def _copy(source: Path, staging: Path, name: str, size_bytes: int) -> None:
    """Copy one file, at most the bytes that it had: never through a link that took its place."""
    target = staging / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(_open(source / name), "rb") as read, target.open("wb") as written:
        if not stat.S_ISREG(os.fstat(read.fileno()).st_mode):
            raise _refusal(source, "unknown", file=name)
        left = size_bytes
        while left and (part := read.read(min(left, 2**20))):
            written.write(part)
            left -= len(part)


def _open(path: Path) -> int:
    """Return a descriptor of the file at `path`, never through a link in its place or its folder's. Raises OSError."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if os.open not in os.supports_dir_fd:  # Windows
        return os.open(path, flags | os.O_BINARY)
    folder = os.open(path.parent, flags | os.O_DIRECTORY)
    try:
        return os.open(path.name, flags, dir_fd=folder)
    finally:
        os.close(folder)


def _judge(source: Path, copy: RunFolder) -> RunRecord:
    """Return the record of a copied run whose parts all read. Raises StudioError."""
    try:
        copy.read_recipe()
        record = copy.read_record()
        for path in copy.path.rglob("*.json"):
            if not isinstance(read_json(path), (dict, list)):
                raise _refusal(source, "unreadable", file=path.name)
        for path in copy.path.rglob("*.safetensors"):
            read_header(path)
    except RecursionError as error:
        raise _refusal(source, "nested") from error
    except StudioError as error:
        if error.what.id == "import.refused":
            raise
        raise _refusal(source, "damaged", reason=error.what) from error
    _judge_events(source, copy.events)
    if record.state == "finished":
        if record.artifact not in RESULTS:
            raise _refusal(source, "result")
        for name in NEEDED[record.artifact]:
            if not (copy.path / record.artifact / name).is_file():
                raise _refusal(source, "missing", file=f"{record.artifact}/{name}")
    elif record.artifact not in ("", *RESULTS):
        raise _refusal(source, "result")
    # As they stand in the file: read_record() mends times.
    told = from_json(RunRecord, lift("record", read_json(copy.path / "run.json")))
    numbers = (told.created_s, told.ended_s, told.loss or 0, told.eval_loss or 0)
    if not all(map(math.isfinite, (*numbers, *told.timings_s.values()))):
        raise _refusal(source, "numbers")
    # A run from the future would stand first for ever.
    created_s = min(max(record.created_s, 0.0), time.time())
    return dataclasses.replace(record, name=clean_name(record.name) or record.run, created_s=created_s)


def _judge_events(source: Path, path: Path) -> None:
    """Raise StudioError unless every whole line is an event, each with a higher number than the one before."""
    last, kinds = 0, {event.kind for event in EVENTS}
    if not path.is_file():
        return
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LINE_LIMIT_BYTES + 1):
            number += 1
            if not line.endswith(b"\n") and len(line) <= LINE_LIMIT_BYTES:
                return  # torn by a kill: the log's readers leave it out
            event = _read_event(line)
            seq = event.get("seq")
            if not isinstance(seq, int) or seq <= last or not isinstance(event.get("kind"), str):
                raise _refusal(source, "event", line=number)
            known = event["kind"] in kinds and event.get("version", 1) == EVENTS_VERSION
            if known and event_from_json(event) is None:
                raise _refusal(source, "event", line=number)
            last = seq


def _read_event(line: bytes) -> dict[str, Any]:
    try:
        event = parse_json(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _choose_id(folder: str, recorded: str, runs: Path) -> str:
    """Return the id that the folder's name or the record gives, with other last characters where it is taken."""
    wanted = next((name for name in (recorded, folder) if RUN_NAME.fullmatch(name)), "imported")
    stem = re.sub(r"-[0-9a-f]{4}$", "", wanted)[:60]
    while (runs / wanted).exists():
        wanted = f"{stem}-{secrets.token_hex(2)}"
    return wanted


def _refusal(source: Path, id: str, /, **values: object) -> StudioError:
    return StudioError(
        text("import.refused", name=literal(source.name[:NAME_LIMIT])),
        text(
            f"import.{id}",
            **{key: literal(v[:200]) if isinstance(v, str) else v for key, v in values.items()},
        ),
        text("import.refused.fix"),
    )
