"""Open a data set: which files hold it, how they hold it, and its first rows; nothing is read beyond the head."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.recipe import DatasetSpec
from studio.data import remote
from studio.data.annotations import Annotated
from studio.data.charset import ENCODINGS, SCAN_BYTES
from studio.data.compression import detect_packing, list_members
from studio.data.containers import delimited, images, workbook, yaml_document
from studio.data.containers.container import HEAD_BYTES, ReadOptions, refuse_file
from studio.data.data_file import (
    IMAGE_FOLDER,
    DataFile,
    look_into,
    open_stream,
    part_splits,
    refuse_system,
    refusing,
)
from studio.data.formats.cells import show_names
from studio.data.formats.placeholders import count_placeholders
from studio.data.media import refuse_media, refuse_placeholders
from studio.data.open_question import Question
from studio.data.other_tasks import refuse_foreign
from studio.data.reshape import Threads, find_reshapes
from studio.data.row import Row, list_columns
from studio.data.sampling import SAMPLE_ROWS, sample_head, sample_middle
from studio.data.speakers import Speakers
from studio.data.split_discovery import Plan, find_split, list_files, plan_files
from studio.data.talks.selection import list_unread
from studio.data.transcripts import Transcript
from studio.hub.child import Report

DEMO = "demo"
DEMO_FILE = Path(__file__).resolve().parents[2] / "assets" / "demo_data" / "train.jsonl"
HUB_ID = remote.HUB_ID
SUFFIXES = remote.SUFFIXES
SCANNED_AT_LEAST_BYTES = 2**16
KERNEL_FILES = frozenset((Path("/proc"), Path("/sys")))
"""Folders of Linux whose files say that they are plain ones and are made as they are read."""
__all__ = ("DEMO", "SAMPLE_ROWS", "DataFile", "Source", "open_source")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """An opened data set."""

    source: str
    container: str
    """Of the first file to learn from, as are the three below; "" where nothing is here yet: `questions` say why."""
    encoding: str
    encoding_sure: bool
    encoding_choices: tuple[str, ...]
    splits: Mapping[str, tuple[DataFile, ...]]
    """`train` always; `validation` and `test` where a folder or repository brings them."""
    columns: tuple[str, ...]
    """Of the sample, in the order of their first appearance."""
    sample: tuple[Row, ...]
    """The head of train: at most SAMPLE_ROWS rows and some SAMPLE_BYTES."""
    questions: tuple[Question, ...] = ()
    """What only the person can say; until then the likeliest answer is taken."""
    notes: tuple[Text, ...] = ()
    """What the person should know: files left out, formulas without results, which of two things a name meant."""

    annotated: tuple[str, ...] = ()
    """Columns of what people found out in an annotation tool, where the files are its export."""
    sampled_bytes: tuple[int, ...] = ()
    """Where the last row of `sample` begins, in each file that it is from."""

    @property
    def is_spoken(self) -> bool:
        """Whether a person says, or was asked, whose messages of its talks are learned."""
        steps = [step for files in self.splits.values() for file in files for step in file.reshapes]
        told = any(isinstance(step, Speakers) and step.learned for step in steps)
        return told or any(question.id == "speaker" for question in self.questions)

    def sample_more(self, rows: int) -> tuple[Row, ...]:
        """Return up to `rows` rows of the middle, picked at random, and of the end of train, in their order.

        Only jsonl files that are not packed can be entered anywhere: () for others. The rows are not in `sample`;
        their `line` and `row` are 0, since what lies before them was not counted. The same file gives the same rows.
        """
        starts = (*(offset + 1 for offset in self.sampled_bytes), *(0 for _ in self.splits["train"]))
        return sample_middle(list(zip(self.splits["train"], starts, strict=False)), rows)


def open_source(
    spec: DatasetSpec,
    *,
    cache: Path | None = None,
    on_progress: Report | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Source:
    """Open `spec.source`: a path of this computer, `demo`, a name of the hub or an https address.

    What is here by that name is always meant first. Only a name of the hub or an https address that is not in `cache`
    is fetched, by a child process that reports to `on_progress` (bytes); without `cache` it is refused. Whether the
    person may fetch at all is for the caller to know. Raises StudioError; DownloadStopped when `should_stop`.
    """
    source = spec.source.strip()
    if not source:
        raise _refuse("none", source)
    if spec.encoding not in ("auto", "", *ENCODINGS):
        raise _refuse("encoding_unknown", source, encoding=spec.encoding[:40], known=", ".join(ENCODINGS))
    if source == DEMO:
        return _open_file(DEMO_FILE, spec)
    if "::" in source or ("://" in source and not source.lower().startswith("https://")):
        raise _refuse("scheme", remote.show_source(source))
    if remote.is_remote(source):
        return _open_remote(spec, cache, on_progress, should_stop)
    path, mode = _find_path(source)
    opened = _open_folder(path, spec) if stat.S_ISDIR(mode) else _open_file(path, spec)
    if not HUB_ID.fullmatch(source) or source.lower().endswith(SUFFIXES):
        return opened
    return replace(opened, notes=(text("data.remote.local", source=source), *opened.notes))


# Finding the files ---------------------------------------------------------------------------------------------------


def _find_path(source: str) -> tuple[Path, int]:
    """Return the path that `source` names and its mode. Raises StudioError."""
    try:
        path = Path(os.path.expanduser(source))
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise refuse_file(path.name, "link") from error
        raise _refuse("missing", source[:200]) from error
    except (ValueError, RuntimeError) as error:  # a NUL in it; no home folder
        raise _refuse("missing", source.replace("\0", "\\0")[:200]) from error
    except OSError as error:
        raise refuse_system(path, error) from error
    place = path.resolve()
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) or KERNEL_FILES.intersection((place, *place.parents)):
        # A pipe that nobody writes to would be waited for without end, and so would the kernel's log, /proc/kmsg.
        raise refuse_file(path.name, "special")
    return path, mode


def _open_file(path: Path, spec: DatasetSpec) -> Source:
    with refusing(path):
        with path.open("rb") as file:
            packing = detect_packing(file.read(HEAD_BYTES))
        if packing != "zip" or path.suffix.lower() in workbook.CONTAINER.suffixes:
            packing = "" if packing == "zip" else packing
            found = DataFile(name="", path=path, packing=packing, size_bytes=path.stat().st_size)
            return _assemble(spec, {"train": [found]})
        members = {member.name: member for member in list_members(path)}
    plan = _plan({name: member.size_bytes for name, member in members.items()}, spec)
    splits = {
        split: [
            DataFile(name=n, path=path, member=members[n], packing="zip", size_bytes=members[n].size_bytes)
            for n in names
        ]
        for split, names in plan.splits.items()
    }
    return _assemble(spec, splits, plan)


def _open_folder(path: Path, spec: DatasetSpec) -> Source:
    with refusing(path):
        names = list_files(path)
    described = [name for name in names if PurePosixPath(name).name in images.METADATA]
    pictured = {name for name in names if name.lower().endswith(images.SUFFIXES)}
    if described and pictured:
        groups: dict[str, list[str]] = {}
        for name in described:
            groups.setdefault(find_split(name) or "train", []).append(name)
        if "train" not in groups:
            groups = {"train": described}
        splits = {s: [_find(path, name, IMAGE_FOLDER) for name in found] for s, found in groups.items()}
        return _assemble(spec, splits)
    plan = _plan(names, spec)
    splits = {split: [_find(path, name) for name in found] for split, found in plan.splits.items()}
    return _assemble(spec, splits, plan)


def _open_remote(
    spec: DatasetSpec,
    cache: Path | None,
    on_progress: Report | None,
    should_stop: Callable[[], bool] | None,
) -> Source:
    if cache is None:
        raise remote.refuse("unfetched", spec.source)
    fetched = remote.fetch_remote(spec, cache, on_progress, should_stop)
    names = [name for found in fetched.plan.splits.values() for name in found]
    if not names:
        return Source(
            source=spec.source,
            **{"container": "", "encoding": "", "encoding_sure": True, "encoding_choices": ()},
            **{"splits": fetched.plan.splits, "columns": (), "sample": ()},
            questions=fetched.plan.questions,
            notes=fetched.plan.notes,
        )
    if len(names) == 1:
        opened = _open_file(fetched.folder / names[0], spec)
        questions = (*fetched.plan.questions, *opened.questions)
        return replace(opened, questions=questions, notes=(*fetched.plan.notes, *opened.notes))
    splits = {
        split: [_find(fetched.folder, name) for name in found] for split, found in fetched.plan.splits.items()
    }
    return _assemble(spec, splits, fetched.plan)


def _plan(names: Iterable[str], spec: DatasetSpec) -> Plan:
    plan = plan_files(names, config=spec.config, split=spec.split, code=True)
    if not plan.splits["train"]:
        raise StudioError(
            text("data.folder.no_rows", source=spec.source[:200]),
            text("data.folder.no_rows.why"),
            text("data.folder.no_rows.fix"),
        )
    return plan


def _find(folder: Path, name: str, container: str = "") -> DataFile:
    path, mode = _find_path(str(folder / name))
    if not stat.S_ISREG(mode):
        raise refuse_file(name, "special")
    with refusing(path):
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            packing = detect_packing(file.read(HEAD_BYTES))
    packing = "" if packing == "zip" else packing
    shown = name.encode("utf-8", "replace").decode("utf-8")  # Linux allows names that are no text
    return DataFile(name=shown, path=path, packing=packing, size_bytes=size_bytes, container=container)


def _assemble(
    spec: DatasetSpec, splits: Mapping[str, Sequence[DataFile]], plan: Plan | None = None
) -> Source:
    """Return the Source of files whose split is known."""
    questions = list(plan.questions) if plan else []
    notes = list(plan.notes) if plan else []
    opened: dict[str, tuple[DataFile, ...]] = {}
    empty: list[str] = []
    scan_bytes = SCAN_BYTES
    for split, found in splits.items():
        files = []
        for one in found:
            limit_bytes = max(scan_bytes, SCANNED_AT_LEAST_BYTES)
            scan_bytes -= one.size_bytes
            looked = look_into(one, spec, limit_bytes)
            if looked is None:
                empty.append(one.name)
                continue
            file, asked = looked
            files.append(file)
            questions += [question for question in asked if question.id not in {q.id for q in questions}]
        opened[split] = tuple(files)
    if not opened["train"]:
        raise _refuse("empty", spec.source[:200])
    if len(opened["train"]) == 1 == sum(map(len, opened.values())) and (
        parts := part_splits(opened["train"][0])
    ):
        opened = {split: (file,) for split, file in parts.items()}
        notes.append(text("data.source.splits", names=show_names([file.sheet for file in parts.values()])))
    if empty:
        notes.append(text("data.folder.empty_file", names=", ".join(empty[:5])[:160], count=len(empty)))
    sample, sampled_bytes = sample_head(opened["train"])
    if not sample and not questions:
        raise _refuse("empty", spec.source[:200])
    if not spec.mapping:
        refuse_media(list_columns(sample), [row.values for row in sample])
    if spec.format == "auto" and not spec.mapping:
        refuse_foreign(list_columns(sample), [row.values for row in sample])
    before = [row.values for row in sample]
    reshapes, asked = find_reshapes(spec, sample, opened["train"][0].container)
    if reshapes:
        questions += asked
        notes += [reshape.note for reshape in reshapes]
        talked = any(isinstance(one, (Threads, Transcript, Speakers)) for one in reshapes)
        if talked and (unheard := count_placeholders(before)):
            notes.append(text("data.reshape.placeholders", count=unheard))
        opened = {
            split: tuple(replace(file, reshapes=reshapes) for file in files)
            for split, files in opened.items()
        }
        sample, sampled_bytes = sample_head(opened["train"])
    if not spec.mapping:
        refuse_placeholders(list_columns(sample), [row.values for row in sample])
    unread = list_unread(list_columns(sample), [row.values for row in sample])
    if unread:
        notes.append(text("data.reshape.unread", keys=show_names(unread)))
    if workbook.has_bare_formulas([row.values for row in sample]):
        notes.append(text("data.source.formulas"))
    first = opened["train"][0]
    if first.container == yaml_document.CONTAINER.name:
        with refusing(first.path), open_stream(first) as stream:
            left = yaml_document.list_left_out(stream, first.encoding, ReadOptions(name=first.shown_name))
        if left:
            notes.append(text("data.source.intents", names=show_names(left, 5), count=len(left)))
    if first.container in (delimited.CSV.name, delimited.TSV.name):
        with refusing(first.path), open_stream(first) as stream:
            notes += delimited.list_headers(stream, first.encoding, first.container)
    if first.container == workbook.CONTAINER.name:
        with refusing(first.path), open_stream(first) as stream:
            notes += workbook.list_headers(stream, ReadOptions(name=first.shown_name, sheet=first.sheet))
    choices = next((question.choices for question in questions if question.id == "encoding"), ())
    return Source(
        source=spec.source,
        container=first.container,
        encoding=first.encoding,
        encoding_sure=not choices,
        encoding_choices=choices or (first.encoding,),
        splits={split: files for split, files in opened.items() if files},
        columns=list_columns(sample),
        sample=sample,
        questions=tuple(questions),
        notes=tuple(notes),
        annotated=tuple(name for one in reshapes if isinstance(one, Annotated) for name in one.names),
        sampled_bytes=sampled_bytes,
    )


def _refuse(reason: str, source: str, **values: object) -> StudioError:
    parts = (text(f"data.source.{reason}{part}", source=source, **values) for part in ("", ".why", ".fix"))
    return StudioError(*parts)
