"""Which files of a folder, an archive or a repository hold which split of a data set: by the names people give them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.data.open_question import Question

SPLIT_WORDS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation"),
}
TOP = "."
"""The configuration of the files that lie in no folder."""
ALL = "all"
"""The answer that takes every choice, one after another."""
PACKED = (".gz", ".zst")
TEXTS = (".txt", ".md", ".srt", ".vtt", ".sbv", ".gift", ".eml")
CODE = tuple(
    ".py .js .ts .jsx .tsx .java .c .h .cpp .hpp .cs .go .rs .rb .php .swift .kt .scala .r .jl .lua .sh .sql .css .tex "
    ".rst .adoc".split()
)
"""Endings of texts that are read where a folder holds nothing else: beside data they belong to programs."""
SUFFIXES = (
    *(".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".xlsx", ".xlsm", ".parquet", ".arrow", ".tmx"),
    *(".yaml", ".yml", ".ipynb", ".mbox", ".mbx", ".conll", ".conllu", ".iob", ".iob2", ".bio"),
    *TEXTS,
)
"""Endings of the files that may hold rows, in lower case, without PACKED."""
BESIDE = ("readme", "license", "licence", "changelog", "notice", "contributing", "citation", "security")
"""Files that lie beside data and are none, by the name without its ending."""
BESIDE_NAMES = tuple(
    "dataset_info.json dataset_infos.json dataset_dict.json state.json package.json config.json requirements.txt "
    "croissant.json quarantine.jsonl manifest.json".split()
)
MAPPING = ".mapping.json"
"""How files end that hold a saved mapping, see mapping_file."""
SHARD = re.compile(r"[-_.]?\d+(?:[-_]of[-_]\d+)?$")
"""What numbers the parts of one split: train-00000-of-00005, part_3."""
WORDS = re.compile(r"[^\W_]+")
ENTRY_LIMIT = 100_000
DEPTH_LIMIT = 12
SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Which files hold what."""

    splits: Mapping[str, tuple[str, ...]]
    """Names by split; `train` is the best guess where `questions` are open, and empty where no file holds rows."""
    questions: tuple[Question, ...] = ()
    notes: tuple[Text, ...] = ()
    """Which files were left out, and why."""


def list_files(folder: Path) -> list[str]:
    """Return the names of all files below `folder`, with / between folders, sorted; hidden ones are left out.

    Files behind links count, folders behind links do not. Raises OSError, and StudioError for too many files.
    """
    found: list[str] = []

    def fail(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=fail):
        depth = len(Path(here).relative_to(folder).parts)
        folders[:] = sorted(n for n in folders if depth < DEPTH_LIMIT and not n.startswith((".", "__")))
        found += (
            Path(here, name).relative_to(folder).as_posix() for name in names if not name.startswith(".")
        )
        if len(found) > ENTRY_LIMIT:
            raise StudioError(
                text("data.folder.large", name=folder.name),
                text("data.folder.large.why", limit=ENTRY_LIMIT),
                text("data.folder.large.fix"),
            )
    return sorted(found)


def find_suffix(name: str) -> str:
    """Return the ending of a file's name in lower case, without .gz and the like: ".jsonl" for "A.JSONL.gz"."""
    path = PurePosixPath(name.lower())
    if path.suffix in PACKED:
        path = path.with_suffix("")
    return path.suffix


def is_data(name: str) -> bool:
    """Return whether a file of this name may hold rows."""
    path = PurePosixPath(name.lower())
    parts = path.parts
    if any(part.startswith((".", "__macosx")) for part in parts) or path.name in BESIDE_NAMES:
        return False
    if path.name.endswith(MAPPING):
        return False
    return find_suffix(name) in SUFFIXES and path.name.partition(".")[0] not in BESIDE


def find_split(name: str) -> str:
    """Return the split that the file's name says, else the nearest folder's name; "" when none does."""
    path = PurePosixPath(name.lower())
    for part in (path.name.partition(".")[0], *reversed(path.parts[:-1])):
        words = WORDS.findall(part)
        for split, known in SPLIT_WORDS.items():
            if any(word in known for word in words):
                return split
    # train.en.jsonl: only what stands before the first point was looked at.
    words = WORDS.findall(path.name)
    return next((split for split, known in SPLIT_WORDS.items() if any(w in known for w in words)), "")


def plan_files(names: Iterable[str], *, config: str = "", split: str = "", code: bool = False) -> Plan:
    """Return which of `names` (with / between folders) hold which split.

    `config`: a folder that stands for one of several data sets; `split`: a split, a series of files or one file to
    learn from; both as a Question of an earlier Plan offered them. `code`: where nothing else is there, programs are
    the texts; on the hub they are scripts that would make the data. Raises StudioError when one does not exist.
    """
    names = sorted(names, key=_by_number)
    data = [name for name in names if is_data(name)]
    data = data or [name for name in names if PurePosixPath(name).suffix.lower() in CODE and code]
    known = set(data)  # made once: anew for each name, 5,000 names took 1.1 s and 100,000 minutes
    notes = [_note("data.folder.not_data", [name for name in names if name not in known])]
    tables = [name for name in data if find_suffix(name) not in TEXTS]
    if tables and len(tables) < len(data):
        tabled = set(tables)
        told = [name for name in data if name not in tabled and find_split(PurePosixPath(name).name)]
        kept = {*tables, *told}
        notes.append(_note("data.folder.beside", [name for name in data if name not in kept]))
        data = sorted([*tables, *told], key=_by_number)
    questions: list[Question] = []
    data, asked = _choose_config(data, config)
    questions += asked
    groups: dict[str, list[str]] = {}
    for name in data:
        groups.setdefault(find_split(name), []).append(name)
    splits = {split: tuple(found) for split, found in groups.items()}
    untold = splits.pop("", ())
    if splits and split not in (ALL, *untold):
        notes.append(_note("data.folder.no_split", untold))
    elif untold:
        splits["train"] = (*splits.get("train", ()), *untold)
    splits, asked = _choose_train(splits, split)
    return Plan(
        splits={name: splits[name] for name in SPLIT_WORDS if name in splits} or {"train": ()},
        questions=(*questions, *asked),
        notes=tuple(note for note in notes if note is not None),
    )


def _choose_config(data: Sequence[str], config: str) -> tuple[Sequence[str], list[Question]]:
    """Return the files of one folder where several hold a data set each: en/train.jsonl, de/train.jsonl."""
    folders: dict[str, list[str]] = {}
    for name in data:
        folders.setdefault(_find_config(name), []).append(name)
    if config and config != ALL:
        if config not in folders:
            raise _refuse_choice("config", config, list(folders))
        return folders[config], []
    texts_only = all(find_suffix(name) in TEXTS for name in data)
    if len(folders) < 2 or config == ALL or texts_only:
        return data, []
    if any(find_split(name) == "train" for name in folders.get(TOP, ())):
        return folders[TOP], []  # what lies at the top is the data set; folders beside it hold something else
    choices = (*folders, ALL)
    question = text("data.folder.config", count=len(folders))
    return folders[choices[0]], [
        Question(id="config", question=question, choices=choices, field="data.config")
    ]


def _find_config(name: str) -> str:
    """Return the folders of a file that name no split and are not the usual one for data: "en" for data/en/train/1."""
    parents = PurePosixPath(name).parts[:-1]
    return "/".join(part for part in parents if not find_split(part) and part.lower() != "data") or TOP


def _choose_train(
    splits: dict[str, tuple[str, ...]], split: str
) -> tuple[dict[str, tuple[str, ...]], list[Question]]:
    """Return `splits` with what is to be learned from as `train`, and what has to be asked for that."""
    if split and split != ALL:
        return _take(splits, split), []
    if "train" not in splits:
        if not splits:
            return splits, []
        choices = tuple(splits)
        question = Question(
            id="split", question=text("data.folder.no_train"), choices=choices, field="data.split"
        )
        return _take(splits, choices[0]), [question]
    series = _list_series(splits["train"])
    if split == ALL or len(series) < 2:
        return splits, []
    question = Question(
        id="split",
        question=text("data.folder.which", count=len(series)),
        choices=(*series, ALL),
        field="data.split",
    )
    return _take(splits, next(iter(series))), [question]


def _take(splits: dict[str, tuple[str, ...]], split: str) -> dict[str, tuple[str, ...]]:
    every = [name for names in splits.values() for name in names]
    if split in splits and split != "train":
        return {"train": splits[split]}
    series = _list_series(splits.get("train", ()))
    for names in (series, _list_series(every), {"train": splits.get("train", ())}, {n: (n,) for n in every}):
        if names.get(split):
            rest = {name: files for name, files in splits.items() if not set(files) & set(names[split])}
            return rest | {"train": names[split]}
    raise _refuse_choice("split", split, [*splits, *series])


def _list_series(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the files grouped by their name without its number; texts, and what a folder calls one split, are one.

    Where only one of several unlike files stands in a series, its whole name is the series' name.
    """
    texts = all(find_suffix(name) in TEXTS for name in names)
    folder_says = names and all(
        find_split(str(PurePosixPath(name).parent)) and not find_split(_stem(name)) for name in names
    )
    groups: dict[str, list[str]] = {}
    for name in names:
        key = "" if texts or folder_says else SHARD.sub("", _stem(name)) or "part"
        groups.setdefault(key, []).append(name)
    if len({find_suffix(name) for name in names}) > 1 and len(groups) == 1 and not texts:
        groups = {
            name: [name] for name in names
        }  # train.csv beside train.jsonl: the same rows twice, or others
    return {key: tuple(found) for key, found in groups.items()}


def _stem(name: str) -> str:
    stem = PurePosixPath(name).name
    for suffix in (*PACKED, find_suffix(name)):
        if suffix and stem.lower().endswith(suffix):
            stem = stem[: -len(suffix)]
    return stem


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    """Order part-10 behind part-9."""
    return tuple((int(w), "") if w.isdecimal() else (-1, w) for w in re.split(r"(\d+)", name) if w)


def _note(id: str, names: Sequence[str]) -> Text | None:
    if not names:
        return None
    more = len(names) - SHOWN
    shown = ", ".join(names[:SHOWN]) + (f" +{more}" if more > 0 else "")
    return text(id, names=shown[:160], count=len(names))


def _refuse_choice(kind: str, given: str, known: Sequence[str]) -> StudioError:
    values = {"given": given[:80], "known": ", ".join(dict.fromkeys(known))[:160]}
    return StudioError(
        *(
            text(f"data.folder.{kind}{part}", **values)
            for part in (".missing", ".missing.why", ".missing.fix")
        )
    )
