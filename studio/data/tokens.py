"""All rows as tokens with their loss mask, on disk and mapped into memory; made once for a data set and a tokenizer.

Rows are kept whole: where a length limit cuts is decided when they are used, so that moving it costs nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.atomic_files import replace_file
from studio.core.json_file import read_json
from studio.core.recipe import DatasetSpec
from studio.data.cache import hold, note_use
from studio.data.conversation import Conversation
from studio.data.convert import Converted, PreparationStopped, Progress
from studio.data.convert_part import write_conversation
from studio.data.deadline import Deadline
from studio.data.problems import Problems, read_problems
from studio.data.quarantine import NAME as QUARANTINE
from studio.data.quarantine import QuarantineWriter, join_quarantine
from studio.data.render import Layout, Rendered, Renderer, tokenize_rows
from studio.data.row import RowError, RowProblem

VERSION = 4
BATCH_ROWS = 256
ONES = 2**20
"""Weights that are written at once where the first row with weights comes late."""
ARRAYS = {
    "ids": np.int32,
    "trained": np.bool_,
    "weights": np.float32,
    "edges": np.int64,
    "rows": np.int64,
    "first_trained": np.int64,
    "trained_end": np.int64,
    "trained_counts": np.int64,
    "notes": np.uint8,
    "seconds": np.int64,
    "labels": np.int8,
}
NOTE_BITS = 8
"""So many kinds of notes (render.Layout) are told apart; the rest is counted under the last."""


class Tokens:
    """The tokens of one split's rows in their order; n rows, t tokens together."""

    def __init__(self, folder: Path) -> None:
        manifest = read_json(folder / "manifest.json")
        self.folder = folder
        self.key: str = manifest["key"]
        self.problems: Problems = read_problems(manifest["problems"])
        """Of rows that the chat template or the model's vocabulary refuses."""
        self.refused = np.asarray(manifest["refused"], dtype=np.int64)
        """int64 [refused]: numbers of those rows, rising."""
        self._codes: list[str] = manifest["codes"]
        self.note_names: tuple[str, ...] = tuple(manifest["note_names"])
        self.ids = self._map("ids")
        """int32 [t]"""
        self.trained = self._map("trained")
        """bool [t]"""
        self.weights = self._map("weights")
        """float32 [t]: how much each trained token counts; [0] where all count once."""
        self.edges = self._map("edges")
        """int64 [n + 1]: row i is ids[edges[i]:edges[i + 1]]."""
        self.rows = self._map("rows")
        """int64 [n]: number of the row in the converted split."""
        self.first_trained = self._map("first_trained")
        """int64 [n]: place of the first trained token in its row."""
        self.trained_end = self._map("trained_end")
        """int64 [n]: one past the place of the last trained token; 0 where nothing is trained."""
        self.trained_counts = self._map("trained_counts")
        """int64 [n]"""
        self.notes = self._map("notes")
        """uint8 [n]: bits of `note_names`."""
        self.seconds = self._map("seconds")
        """int64 [n]: where the second sequence of a row begins; 0 where it is one."""
        self.labels = self._map("labels")
        """int8 [n]: 1 for a good answer, 0 for a bad one, -1 where the data do not say."""
        self.full_lengths = np.diff(self.edges)
        """int64 [n]: tokens of each row, uncut."""

    def __len__(self) -> int:
        return len(self.rows)

    def example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (token ids int32, trained bool) of row `i`, uncut."""
        start, stop = int(self.edges[i]), int(self.edges[i + 1])
        return self.ids[start:stop], self.trained[start:stop]

    def sides_of(self, i: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """Return (token ids, trained, weights) of each sequence of row `i`, uncut."""
        (ids, trained), weights, second = self.example(i), self.weights_of(i), int(self.seconds[i])
        parts = (slice(0, second), slice(second, None)) if second else (slice(None),)
        return [(ids[part], trained[part], None if weights is None else weights[part]) for part in parts]

    def weights_of(self, i: int) -> np.ndarray | None:
        """Return how much each token of row `i` counts, float32; None: each once."""
        return self.weights[int(self.edges[i]) : int(self.edges[i + 1])] if len(self.weights) else None

    @property
    def longest_sides(self) -> np.ndarray:
        """int64 [n]: tokens of the longer sequence of each row, which is all of it where it is one."""
        return np.maximum(self.seconds, self.full_lengths - self.seconds)

    def label_of(self, i: int) -> bool | None:
        """Return whether the answer of row `i` is a good one; None where the data do not say."""
        label = int(self.labels[i])
        return None if label < 0 else bool(label)

    def problems_of(self, converted: Converted, rows: np.ndarray, split: str) -> Problems:
        """Return the problems of those of `rows` (int64, refused ones) alone."""
        wanted = set(rows.tolist())
        if len(wanted) == len(self.refused):
            return self.problems
        found = Problems(
            Counter(c for row, c in zip(self.refused.tolist(), self._codes, strict=True) if row in wanted)
        )
        places = {tuple(converted.place(row, split).values()) for row in wanted}
        for problem in self.problems:
            if (problem.line, problem.row, problem.offset, problem.file) in places:
                found.kept[problem.code].append(problem)
        return found

    @property
    def quarantine(self) -> Path:
        """The refused rows, as quarantine.jsonl has them."""
        return self.folder / QUARANTINE

    def _map(self, name: str) -> np.ndarray:
        path, kind = self.folder / f"{name}.bin", np.dtype(ARRAYS[name])
        size = path.stat().st_size // kind.itemsize
        # As a plain array: slicing one a million times takes a tenth of the time that a memmap takes.
        return np.asarray(np.memmap(path, dtype=kind, mode="r", shape=(size,))) if size else np.zeros(0, kind)


def tokenise(
    converted: Converted,
    renderer: Renderer,
    spec: DatasetSpec,
    cache: Path,
    *,
    split: str = "train",
    rows: np.ndarray | None = None,
    on_progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Tokens:
    """Return the tokens of `rows` (numbers in the converted split; None: all), from `cache` when they are there.

    Raises StudioError without a chat template where one is needed, PreparationStopped.
    """
    key = make_key(converted, renderer, spec, split, rows)
    folder = cache / key
    total = len(converted.shards(split)) if rows is None else len(rows)

    def listen() -> None:
        if should_stop is not None and should_stop():
            raise PreparationStopped
        if on_progress is not None:
            on_progress(0, total)

    if not _is_whole(folder):
        cache.mkdir(parents=True, exist_ok=True)
        with hold(cache / f"{key}.lock", listen):
            if not _is_whole(folder):
                _tokenise_all(converted, renderer, spec, folder, split, rows, on_progress, should_stop)
    elif on_progress is not None:
        on_progress(total, total)
    note_use(folder)
    return Tokens(folder)


def _is_whole(folder: Path) -> bool:
    try:
        with (folder / "manifest.json").open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"}"
    except OSError:  # none; or an empty one, since the power went before the disk had it
        return False


def make_key(
    converted: Converted, renderer: Renderer, spec: DatasetSpec, split: str, rows: np.ndarray | None
) -> str:
    """Return what names the folder of these tokens: it changes with the rows, the tokenizer and the mask's rules."""
    chosen = (
        "" if rows is None else hashlib.sha256(np.ascontiguousarray(rows, np.int64).tobytes()).hexdigest()
    )
    facts = [VERSION, converted.key, split, chosen, renderer.train_on, renderer.vocab_size]
    facts += [spec.reasoning, spec.system_prompt, *sorted(renderer.own)]
    digest = hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogatepass"))
    digest.update(hash_tokenizer(renderer.tokenizer))
    digest.update(renderer.source.encode("utf-8", "surrogatepass"))
    return "t" + digest.hexdigest()[:23]


def hash_tokenizer(tokenizer: Any) -> bytes:
    """Return sha256 of all that decides what a tokenizer makes of a text, its chat template included."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        words = backend.to_str()
    else:
        words = json.dumps([tokenizer.__class__.__name__, sorted(tokenizer.get_vocab().items())])
    parts = [
        words,
        str(tokenizer.chat_template),
        json.dumps(tokenizer.special_tokens_map, default=str, sort_keys=True),
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


def _tokenise_all(
    converted: Converted,
    renderer: Renderer,
    spec: DatasetSpec,
    folder: Path,
    split: str,
    rows: np.ndarray | None,
    on_progress: Progress | None,
    should_stop: Callable[[], bool] | None,
) -> None:
    for left in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(left, ignore_errors=True)
    staging = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    staging.mkdir()
    shards = converted.shards(split)
    total = len(shards) if rows is None else len(rows)
    writer = TokenWriter(staging, converted, split)
    try:
        found = shards.read(None if rows is None else rows.tolist())
        done = 0
        with Deadline(number=lambda row: converted.place(row, split)["row"]) as deadline:
            for batch in _batches(found):
                if should_stop is not None and should_stop():
                    raise PreparationStopped
                writer.add(batch, renderer, spec, deadline)
                done += len(batch)
                if on_progress is not None:
                    on_progress(done, total)
        writer.close(folder.name)
        assert done == total == writer.used + len(writer.refused), "rows lost while they were tokenised"
        shutil.rmtree(folder, ignore_errors=True)
        replace_file(staging, folder)
    finally:
        writer.release()  # Windows removes none that is open
        shutil.rmtree(staging, ignore_errors=True)


def _batches(found: Iterator[tuple[int, Conversation]]) -> Iterator[list[tuple[int, Conversation]]]:
    while batch := list(itertools.islice(found, BATCH_ROWS)):
        yield batch


class TokenWriter:
    """Writes the arrays of Tokens as the rows come."""

    def __init__(self, folder: Path, converted: Converted, split: str) -> None:
        self.folder, self.converted, self.split = folder, converted, split
        self.used = 0
        self.refused: list[int] = []
        self._codes: list[str] = []
        self.problems = Problems()
        self._names = []
        self._end = 0
        self._weighed = False
        """Whether a row with weights was met: from then on every token has one."""
        self._files = {name: (folder / f"{name}.bin").open("wb") for name in ARRAYS}
        self._write("edges", [0])
        self._quarantine = QuarantineWriter(folder / "refused.jsonl")

    def add(
        self,
        batch: Sequence[tuple[int, Conversation]],
        renderer: Renderer,
        spec: DatasetSpec,
        deadline: Deadline,
    ) -> None:
        """Render and tokenise rows; those that cannot be are set aside."""
        layouts: list[list[Layout]] = []
        kept: list[tuple[int, Conversation]] = []
        for row, conversation in batch:
            deadline.begin(row)
            try:
                layouts.append([renderer.lay_out(side) for side in dress(conversation, spec).sides])
                kept.append((row, conversation))
            except RowError as error:
                self._refuse(row, conversation, error)
        deadline.rest()
        try:
            rendered: Sequence[tuple[Rendered, int]] = tokenize_rows(renderer, layouts)
        except RowError:  # of one row: the others are found one by one
            rendered, pairs, kept = [], list(zip(kept, layouts, strict=True)), []
            for (row, conversation), layout in pairs:
                try:
                    rendered = [*rendered, *tokenize_rows(renderer, [layout])]
                    kept.append((row, conversation))
                except RowError as error:
                    self._refuse(row, conversation, error)
        self._append(kept, rendered)

    def close(self, key: str) -> None:
        """Complete the files."""
        for file in self._files.values():
            file.close()
        self._quarantine.close()
        join_quarantine([(self.folder / "refused.jsonl", {})], self.folder / QUARANTINE)
        manifest = {
            "version": VERSION,
            "key": key,
            "problems": self.problems.to_dict(),
            "refused": self.refused,
            "codes": self._codes,
            "note_names": self._names,
        }
        (self.folder / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False), encoding="utf-8")

    def release(self) -> None:
        """Let go of files that are not completed."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()
        self._quarantine.release()

    def _append(
        self, kept: Sequence[tuple[int, Conversation]], found: Sequence[tuple[Rendered, int]]
    ) -> None:
        if not kept:
            return
        rows = [row for row, _ in kept]
        self._write("labels", [-1 if one.label is None else int(one.label) for _, one in kept])
        rendered = [one for one, _ in found]
        self._write("seconds", [second for _, second in found])
        lengths = np.asarray([len(one.token_ids) for one in rendered], dtype=np.int64)
        self._write("ids", np.concatenate([one.token_ids for one in rendered]))
        self._write("trained", np.concatenate([one.trained for one in rendered]))
        if not self._weighed and any(one.weights is not None for one in rendered):
            self._weighed = True
            for start in range(0, self._end, ONES):
                self._write("weights", np.ones(min(ONES, self._end - start), np.float32))
        if self._weighed:
            ones = [
                np.ones(len(one.token_ids), np.float32) if one.weights is None else one.weights
                for one in rendered
            ]
            self._write("weights", np.concatenate(ones))
        edges = self._end + np.cumsum(lengths)
        self._write("edges", edges)
        self._end = int(edges[-1])
        self._write("rows", rows)
        counts = [int(np.count_nonzero(one.trained)) for one in rendered]
        self._write("trained_counts", counts)
        pairs = list(zip(rendered, counts, strict=True))
        self._write("first_trained", [int(one.trained.argmax()) if n else 0 for one, n in pairs])
        self._write(
            "trained_end",
            [len(one.trained) - int(one.trained[::-1].argmax()) if n else 0 for one, n in pairs],
        )
        self._write("notes", [sum(1 << self._number(note) for note in set(one.notes)) for one in rendered])
        self.used += len(rows)

    def _number(self, note: str) -> int:
        if note not in self._names:
            self._names.append(note)
        return min(self._names.index(note), NOTE_BITS - 1)

    def _write(self, name: str, values: Any) -> None:
        self._files[name].write(np.asarray(values, dtype=ARRAYS[name]).tobytes())

    def _refuse(self, row: int, conversation: Conversation, error: RowError) -> None:
        place = self.converted.place(row, self.split)
        self.problems.add(RowProblem(code=error.code, message=error.message, **place))
        raw = write_conversation(conversation)[0]
        self._quarantine.add(RowProblem(code=error.code, message=error.message, raw=raw, **place))
        self.refused.append(row)
        self._codes.append(error.code)


def dress(conversation: Conversation, spec: DatasetSpec) -> Conversation:
    """Return a conversation as the recipe wants it rendered: with its system prompt."""
    return conversation.with_system(spec.system_prompt)


def count_notes(tokens: Tokens, chosen: np.ndarray) -> Counter[str]:
    """Return how many of the `chosen` rows (places in `tokens`) carry each note."""
    bits = tokens.notes[chosen]
    counts = {
        name: int(np.count_nonzero(bits & (1 << i))) for i, name in enumerate(tokens.note_names[:NOTE_BITS])
    }
    return Counter({name: count for name, count in counts.items() if count})
