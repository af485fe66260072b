"""All rows of a data set, read once: checked, written as shards, the broken ones set aside; nothing the second time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.atomic_files import replace_file
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.core.recipe import DatasetSpec
from studio.data.cache import hold, note_use, sweep
from studio.data.conversation import Conversation
from studio.data.convert_part import DataPart, PartResult, read_part, split_files
from studio.data.format_detection import understand
from studio.data.problems import Problems, gather, read_problems
from studio.data.quarantine import NAME as QUARANTINE
from studio.data.quarantine import join_quarantine
from studio.data.row import list_columns
from studio.data.row_stats import RowTraits
from studio.data.shards import Shards, join_shards
from studio.data.source import Source, open_source
from studio.data.understanding import Understanding
from studio.data.unicode_scripts import SCRIPTS
from studio.hub.child import DownloadStopped

MANIFEST = "manifest.json"
VERSION = 17
"""Changes with anything that makes a converted data set look different."""
EDGE_BYTES = 2**16
"""So much of a file's head and tail goes into its key, beside its size and time."""
POOL_BYTES = 96 * 2**20
"""Smaller files are read in less time than other processes need to start."""
WORKERS = 2
"""Each takes 150 MB."""
POLL_S = 0.5
READING_FIELDS = ("format", "mapping", "speaker", "encoding", "sheet", "config", "split")
Progress = Callable[[int, int], None]
"""(done, in all): bytes while reading, rows while tokenising."""


class PreparationStopped(Exception):
    """The person stopped the work while data was being prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitCounts:
    """What became of the rows of one split: rows_read = rows_used + rows_refused."""

    rows_read: int
    rows_used: int
    rows_refused: int


class Converted:
    """A converted data set in its folder of the cache. Without a clear format nothing but its rows is known."""

    def __init__(
        self, folder: Path, source: Source, understanding: Understanding, manifest: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.source = source
        self.understanding = understanding
        """With the columns that appear late."""
        self.key: str = manifest["key"]
        self.content_hash: str = manifest["content_hash"]
        """sha256 of the conversations of the train split."""
        self.columns: tuple[str, ...] = tuple(manifest["columns"])
        self.problems_of: dict[str, Problems] = {
            name: read_problems(found) for name, found in manifest["problems"].items()
        }
        """Of each split; those of one code beyond the first hundred are counted."""
        self.splits: dict[str, SplitCounts] = {
            name: SplitCounts(**counts) for name, counts in manifest["splits"].items()
        }
        self._letters = manifest["letters"]
        self._shards: dict[str, Shards] = {}

    @property
    def counts(self) -> SplitCounts:
        """Those of the train split."""
        return self.splits["train"]

    @property
    def problems(self) -> Problems:
        """Those of the train split."""
        return self.problems_of["train"]

    @property
    def rows(self) -> int:
        """Usable rows of the train split."""
        return self.counts.rows_used

    @property
    def quarantine(self) -> Path:
        """The rows set aside; an empty file where there are none."""
        return self.folder / QUARANTINE

    @property
    def has_rows(self) -> bool:
        """Whether format and columns were clear, so that there are conversations."""
        return self.understanding.readable

    def shards(self, split: str = "train") -> Shards:
        """Return the conversations of a split."""
        if split not in self._shards:
            self._shards[split] = Shards(self.folder / split)
        return self._shards[split]

    def iterate(self, split: str = "train") -> Iterator[tuple[int, Conversation]]:
        """Yield (row, Conversation) of all usable rows, numbered from 0."""
        return self.shards(split).read()

    def traits(self, split: str = "train") -> RowTraits:
        """Return what is cheaply known of every usable row, mapped from disk."""
        column = self.shards(split).column
        names = ("hashes", "characters", "answer_characters", "turns", "flags")
        return RowTraits(
            **{name: column(name) for name in names}, letters=np.asarray(self._letters[split], dtype=np.int64)
        )

    def place(self, row: int, split: str = "train") -> dict[str, Any]:
        """Return line, row, offset and file of a usable row, as a RowProblem has them."""
        shards = self.shards(split)
        found = {name: int(shards.column(name)[row]) for name in ("line", "row", "offset")}
        return found | {"file": self.source.splits[split][int(shards.column("file")[row])].name}


def convert(
    spec: DatasetSpec,
    cache: Path,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    *,
    source: Source | None = None,
) -> Converted:
    """Return the converted rows of `spec.source`, from `cache` when nothing changed since.

    `source`: as open_source returned it, where the caller has it. One process at a time converts the same rows; a
    kill leaves nothing that is taken for whole. Raises StudioError when the source cannot be read, or changes while it
    is; PreparationStopped.
    """
    if source is None:
        try:
            source = open_source(spec, cache=cache, on_progress=on_progress, should_stop=should_stop)
        except DownloadStopped as error:
            raise PreparationStopped from error
    understanding = understand_source(source, spec, cache)
    key = make_key(source, understanding, spec)
    folder = cache / key
    manifest = _read_manifest(folder)
    if manifest is None:
        cache.mkdir(parents=True, exist_ok=True)
        with hold(cache / f"{key}.lock", _make_listener(source, on_progress, should_stop)):
            manifest = _read_manifest(folder)
            if manifest is None:
                manifest = _convert_all(source, understanding, spec, key, folder, on_progress, should_stop)
                sweep(cache, folder)
    note_use(folder)
    return Converted(folder, source, replace(understanding, mapping=manifest["mapping"]), manifest)


def identify(spec: DatasetSpec, cache: Path) -> str:
    """Return the key of the converted rows of `spec.source` as it is now; "" where they are not in `cache`.

    Raises StudioError when the source cannot be read.
    """
    source = open_source(spec, cache=cache)
    key = make_key(source, understand_source(source, spec, cache), spec)
    return key if (cache / key / MANIFEST).exists() else ""


def understand_source(source: Source, spec: DatasetSpec, cache: Path | None = None) -> Understanding:
    """Return what the head, the middle and the tail of a source say about its format. Raises StudioError.

    cache: where mappings of sources lie that have no place of their own.
    """
    rows = [row for row in (*source.sample, *source.sample_more(len(source.sample))) if row.problem is None]
    columns = tuple(dict.fromkeys((*source.columns, *list_columns(rows))))
    found = understand(columns, [row.values for row in rows], spec, cache, source.annotated)
    if found.format is not None and found.format.name == "rl" and source.is_spoken and spec.format == "auto":
        # Who the speakers are was asked, or said: whose talk ends with another one's words is a talk all the same.
        reason = next((told for name, _, told in found.ranked if name == "messages"), found.reason)
        found = understand(columns, [row.values for row in rows], replace(spec, format="messages"), cache)
        found = replace(found, reason=reason)
    broken = next((row.problem.message for row in source.sample if row.problem is not None), None)
    if rows or broken is None:
        return found
    told = text("data.sniff.broken", count=len(source.sample), line=source.sample[0].line, message=broken)
    return replace(found, reason=told)


def make_key(source: Source, understanding: Understanding, spec: DatasetSpec) -> str:
    """Return what names the folder of a converted source: 24 letters that change when a file or its reading does."""
    digest = hashlib.sha256()
    chosen = understanding.format
    facts: list[Any] = [
        VERSION,
        chosen and chosen.name,
        sorted(understanding.mapping.items()),
        understanding.readable,
    ]
    facts += [getattr(spec, name) for name in READING_FIELDS]
    for name, files in source.splits.items():
        for file in files:
            facts += [
                name,
                file.name,
                file.member.name if file.member else "",
                file.container,
                file.packing,
                file.encoding,
                file.sheet,
            ]
            facts += _mark_file(file.path, digest)
    digest.update(json.dumps(facts, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:24]


def _mark_file(path: Path, digest: Any) -> list[Any]:
    stat = path.stat()
    with path.open("rb") as file:
        digest.update(file.read(EDGE_BYTES))
        file.seek(max(0, stat.st_size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        return read_json(folder / MANIFEST)
    except StudioError:  # the power went before the disk had it
        return None


def _convert_all(
    source: Source,
    understanding: Understanding,
    spec: DatasetSpec,
    key: str,
    folder: Path,
    on_progress: Progress | None,
    should_stop: Callable[[], bool] | None,
) -> dict[str, Any]:
    for left in folder.parent.glob(f"{key}.part-*"):  # of a process that was killed; the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    staging = folder.with_name(f"{key}.part-{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        manifest = _write_all(source, understanding, staging, on_progress, should_stop) | {"key": key}
        if make_key(source, understanding, spec) != key:  # rows of two states of a file would be one data set
            raise StudioError(
                text("data.convert.changed", source=spec.source[:200]),
                text("data.convert.changed.why"),
                text("data.convert.changed.fix"),
            )
        written = json.dumps(manifest, ensure_ascii=False, indent=1)
        (staging / MANIFEST).write_text(written, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        replace_file(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return manifest


def _write_all(
    source: Source,
    understanding: Understanding,
    staging: Path,
    on_progress: Progress | None,
    should_stop: Callable[[], bool] | None,
) -> dict[str, Any]:
    parts: list[DataPart] = []
    for split, files in source.splits.items():
        for number, file in enumerate(files):
            for start, stop in split_files(file):
                place = staging / f"part-{len(parts):05d}"
                parts.append(
                    DataPart(split=split, number=number, file=file, start=start, stop=stop, folder=place)
                )
    results = list(_read_parts(parts, understanding, on_progress, should_stop))
    mapping = _join_mappings(results)
    if mapping is None:  # two columns that appear late and play one role: the one that comes first has it
        results, known = [], understanding
        total_bytes = sum(part.size_bytes for part in parts)
        on_part = None if on_progress is None else lambda _: on_progress(total_bytes, total_bytes)
        for part in parts:
            shutil.rmtree(part.folder)
            results.append(read_part(part, known, on_part, _make_stop(should_stop)))
            known = replace(known, mapping=results[-1].mapping)
        mapping = dict(known.mapping)
    return _join(source, parts, results, staging) | {"mapping": mapping}


def _join_mappings(results: Sequence[PartResult]) -> dict[str, str] | None:
    """Return the roles of the columns that appeared in any part; None where two parts differ."""
    together: dict[str, str] = {}
    for result in results:
        for role, column in result.mapping.items():
            if together.setdefault(role, column) != column:
                return None
    return together


def _join(
    source: Source, parts: Sequence[DataPart], results: Sequence[PartResult], staging: Path
) -> dict[str, Any]:
    """Put the parts of each split together, in the order of the files, and return the manifest."""
    added: list[dict[str, int]] = []
    lines = rows = 0
    for part, result in zip(parts, results, strict=True):
        if part.start == 0:
            lines = rows = 0
        added.append({"line": lines, "row": rows, "offset": part.start})
        lines, rows = lines + result.lines, rows + result.rows_read
        result.problems = result.problems.moved(**added[-1])
    splits: dict[str, Any] = {}
    problems: dict[str, Any] = {}
    letters: dict[str, list[int]] = {}
    hashes = {}
    for split in source.splits:
        own = [i for i, part in enumerate(parts) if part.split == split]
        join_shards([(parts[i].folder / "rows", added[i]) for i in own], staging / split)
        counts = SplitCounts(
            rows_read=sum(results[i].rows_read for i in own),
            rows_used=sum(results[i].rows_used for i in own),
            rows_refused=sum(results[i].rows_refused for i in own),
        )
        splits[split] = {name: getattr(counts, name) for name in counts.__slots__}
        none = np.zeros(len(SCRIPTS), np.int64)
        problems[split] = gather(results[i].problems for i in own).to_dict()
        letters[split] = sum((np.asarray(results[i].letters) for i in own), none).tolist()
        hashes[split] = hashlib.sha256("".join(results[i].digest for i in own).encode()).hexdigest()
    refused = sum(counts["rows_refused"] for counts in splits.values())
    places = [(part.folder / QUARANTINE, more) for part, more in zip(parts, added, strict=True)]
    assert join_quarantine(places, staging / QUARANTINE) == refused, (
        "rows lost on their way to the quarantine"
    )
    for part in parts:
        shutil.rmtree(part.folder)
    return {
        "version": VERSION,
        "splits": splits,
        "columns": list(dict.fromkeys(name for result in results for name in result.columns)),
        "letters": letters,
        "content_hash": hashes["train"],
        "problems": problems,
    }


def _read_parts(
    parts: Sequence[DataPart],
    understanding: Understanding,
    on_progress: Progress | None,
    should_stop: Callable[[], bool] | None,
) -> Iterator[PartResult]:
    """Yield the result of each part in order; several processes read large files of lines."""
    total_bytes = sum(part.size_bytes for part in parts)
    done_bytes = 0

    def tell(more_bytes: int) -> None:
        if on_progress is not None:
            on_progress(min(total_bytes, done_bytes + more_bytes), total_bytes)

    workers = min(WORKERS, os.cpu_count() or 1, len(parts))
    ranged = all(part.ranged for part in parts)
    if workers > 1 and ranged and total_bytes >= POOL_BYTES:
        from studio.data.parallel_read import BrokenProcessPool, read_in_pool

        done = 0
        try:
            for result in read_in_pool(parts, understanding, workers, tell, _make_stop(should_stop), POLL_S):
                done_bytes += result.part_bytes
                done += 1
                tell(0)
                yield result
        except BrokenProcessPool:  # too little memory; or a script that does not guard its main part
            parts = parts[done:]
            for part in parts:
                shutil.rmtree(part.folder, ignore_errors=True)
        else:
            return
    for part in parts:
        yield read_part(part, understanding, tell, _make_stop(should_stop))
        done_bytes += part.size_bytes
        tell(0)


def _make_listener(
    source: Source, on_progress: Progress | None, should_stop: Callable[[], bool] | None
) -> Callable[[], None]:
    """Return what is called while another process converts the same: a sign of life, and where a stop takes effect."""
    total_bytes = sum(file.size_bytes for files in source.splits.values() for file in files)

    def listen() -> None:
        _make_stop(should_stop)()
        if on_progress is not None:
            on_progress(0, total_bytes)

    return listen


def _make_stop(should_stop: Callable[[], bool] | None) -> Callable[[], None]:
    """Return a function that raises PreparationStopped once the person asked for the end."""

    def stop() -> None:
        if should_stop is not None and should_stop():
            raise PreparationStopped

    return stop
