"""What the counter for data sets asks of studio.data: the head's report, the report over all rows, cuts, mapping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts
from studio.core.i18n import Text
from studio.core.recipe import DatasetSpec, Recipe
from studio.data import remote
from studio.data.convert import PreparationStopped
from studio.data.dataset_report import report, survey
from studio.data.formats import FORMATS
from studio.data.lengths import Lengths, summarize
from studio.data.mapping_file import save_mapping as write_mapping
from studio.data.pipeline import Gathered, cut_again, tell_refused
from studio.data.prepare import check_usable
from studio.data.preview import preview
from studio.data.source import open_source
from studio.data.templates.fallback_templates import ask_other_template
from studio.machine.workspace import Workspace
from studio.models.catalog import inspect_model

HEAD_ROWS = 8
BINS_AN_OCTAVE = 6
LIMITS_AN_OCTAVE = 16
SHORTEST_LIMIT_TOKENS = 8
PACKING_S = 2.0
"""Packing is worked out for as many limits as this time allows; at the others it is left open."""
Stopped = PreparationStopped
"""What `measure` raises when it is called off."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What a length limit does to all rows."""

    limit_tokens: int
    rows_cut: int
    answers_cut: int
    """Rows of which a part of what is learned is lost."""
    rows_left_out: int
    """Rows of which nothing is left to learn."""
    tokens_lost: int
    tokens: int
    """Of all rows before the cut."""
    packing: float | None
    """Share of packed rows that holds tokens, 0..1; None where it is not worked out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredData:
    """The report over all rows, with what further questions need."""

    report: Mapping[str, Any]
    histogram: Mapping[str, Any] = field(default_factory=dict)
    """edges (ascending), counts (one fewer), p50, p95, max, in tokens; empty without a tokenizer."""
    cuts: tuple[Cut, ...] = ()
    """For the limits that a person may choose, ascending; none where no limit cuts (plain text, learned in blocks)."""
    lengths: Lengths | None = None
    quarantine: Path | None = None
    found: Gathered | None = None
    """All stages of the source; None where the rows were not gathered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What a run makes of all rows under the limits of a recipe: rows_read = rows_used + rows_refused + filtered."""

    rows_read: int
    rows_used: int
    rows_refused: int
    filtered: Mapping[str, int]
    """Rule -> rows."""
    tokens: int = 0
    """Of the rows used, after the cut; 0 without a tokenizer."""
    repeated_tokens: int = 0
    """Those of them that are, in pairs, the prompt before the second answer; where both have the same prompt."""
    rows_cut: int = 0
    tokens_lost: int = 0
    """By the cut."""
    refusal: StudioError | None = None
    """What a run would say instead of training on them."""
    told: Text | None = None
    """How many rows cannot be used, and of what kind; None where there are none."""


def look_at_head(recipe: Recipe, workspace: Workspace, *, tokens: bool) -> dict[str, Any]:
    """Return the report of the data's head, its tokens only when asked: loading a tokenizer takes seconds.

    Raises StudioError when the source cannot be read at all.
    """
    model = find_model(recipe) if tokens else None
    tokenizer = load_tokenizer(model, recipe)
    head = preview(
        recipe.data,
        tokenizer,
        rows=HEAD_ROWS,
        cache=workspace.data_cache,
        method=recipe.objective,
        vocabulary=model.vocabulary if model else None,
        uncut=True,
    )
    examples = [row.to_dict() for row in head.rendered]
    for example in examples:
        join_characters(example["tokens"], tokenizer)
    asked = [name for one in head.questions if one.field == "data.format" for name in one.choices]
    return {
        "source": head.source,
        "container": head.container,
        "encoding": head.encoding,
        "format": head.format or None,
        "confidence": head.confidence,
        "reason": head.reason,
        "mapping": dict(head.mapping),
        "needs_answer": [one.to_dict() for one in head.questions],
        "refusal": None if head.questions else head.refusal,  # the question itself is shown
        "columns": head.columns,
        "rows": head.rows,
        "roles": list_roles(*asked or (head.format,)),
        "specials": list_specials(tokenizer, (example["text"] for example in examples)),
        "problems": head.found.entries(),
        "preview": examples,
    }


def measure(
    recipe: Recipe, workspace: Workspace, on_progress: Progress, should_stop: Callable[[], bool]
) -> MeasuredData:
    """Return what is found over all rows. Raises StudioError, Stopped."""
    model = find_model(recipe)
    found, statistics = survey(
        recipe.data,
        workspace.data_cache,
        tokenizer=load_tokenizer(model, recipe),
        vocabulary=model.vocabulary if model else None,
        method=recipe.objective,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    lengths = make_lengths(found)
    told = report(found, statistics, 0)
    if (other := ask_other_template(found)) is not None:
        told["needs_answer"] = [*told["needs_answer"], other.to_dict()]
    return MeasuredData(
        report=told,
        histogram=make_histogram(lengths.full) if lengths is not None else {},
        cuts=list_cuts(lengths, recipe.data.max_length)
        if lengths is not None and found.method != "pretrain"
        else (),
        lengths=lengths,
        quarantine=found.quarantine,
        found=found,
    )


def count_rows(measured: MeasuredData, spec: DatasetSpec) -> Counted | None:
    """Return what a run makes of the rows that were measured; `spec` may have other limits, and accept broken rows."""
    if measured.found is None:
        return None
    found = cut_again(measured.found, spec)
    try:
        check_usable(found)
        refusal = None
    except StudioError as error:
        refusal = error
    cutting, tokens, repeated, full = found.cutting, 0, 0, 0
    if cutting is not None:
        tokens = int(cutting.examples.lengths.sum())
        rows, stored = cutting.examples.chosen, cutting.examples.tokens
        pairs = rows[stored.seconds[rows] > 0]
        repeated = int(np.maximum(stored.first_trained[pairs] - 1, 0).sum())
        full = int(cutting.examples.tokens.full_lengths[np.unique(cutting.examples.chosen)].sum())
    return Counted(
        rows_read=found.rows_read,
        rows_used=found.rows_used,
        rows_refused=found.refused,
        filtered=dict(found.filtered),
        tokens=tokens,
        repeated_tokens=repeated,
        rows_cut=cutting.cut if cutting is not None else 0,
        tokens_lost=max(0, full - tokens),
        refusal=refusal,
        told=tell_refused(found.rows_read, found.refused, found.problems) if found.refused else None,
    )


def make_lengths(found: Gathered) -> Lengths | None:
    """Return the lengths of the rows that the person's rules keep; None without tokens."""
    tokens = found.tokens
    if tokens is None or not len(tokens):
        return None
    kept = np.isin(tokens.rows, found.rows)
    return Lengths(
        tokens.full_lengths[kept],
        tokens.first_trained[kept],
        tokens.trained_end[kept],
        tokens.trained_counts[kept],
    )


def make_histogram(full: np.ndarray) -> dict[str, Any]:
    """Return int64 [rows] of lengths as bins that double every BINS_AN_OCTAVE, as the screen's axis does."""
    if not len(full):
        return {}
    octaves = math.log2(max(int(full[-1]), 2)) + 1
    powers = 2 ** (np.arange(math.ceil(octaves * BINS_AN_OCTAVE) + 1) / BINS_AN_OCTAVE)
    edges = np.unique(np.ceil(powers).astype(np.int64))
    counts, _ = np.histogram(full, edges)
    summary = summarize(full)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "p50": summary.p50,
        "p95": summary.p95,
        "max": summary.max,
    }


def list_cuts(lengths: Lengths, limit: int) -> tuple[Cut, ...]:
    """Return a Cut for each limit that a line can stand at: multiples of 8 from 8 to the longest row, or `limit`."""
    if not len(lengths):
        return ()
    top = max(int(lengths.full[-1]), limit, 2 * SHORTEST_LIMIT_TOKENS)
    octaves = range(math.ceil(math.log2(top) * LIMITS_AN_OCTAVE) + 1)
    limits = {8 * math.ceil(2 ** (i / LIMITS_AN_OCTAVE) / 8) for i in octaves}
    until = time.monotonic() + PACKING_S
    cuts = []
    # From the top down: a limit near the longest row is the likeliest to be chosen.
    for each in sorted(limits, reverse=True):
        cuts.append(_cut(lengths, each, packed=time.monotonic() < until))
    return tuple(reversed(cuts))


def cut_at(measured: MeasuredData, limit: int) -> Cut | None:
    """Return what `limit` does to the rows that were measured; None where no limit cuts."""
    return (
        _cut(measured.lengths, limit, packed=True) if measured.lengths is not None and measured.cuts else None
    )


def _cut(lengths: Lengths, limit: int, *, packed: bool) -> Cut:
    at = lengths.at(limit)
    return Cut(
        limit_tokens=limit,
        rows_cut=at.rows_cut,
        answers_cut=at.answers_cut,
        rows_left_out=at.prompts_fill,
        tokens_lost=at.tokens_lost,
        tokens=at.tokens_kept + at.tokens_lost,
        packing=lengths.pack_at(limit).efficiency if packed else None,
    )


# Remote sources -------------------------------------------------------------------------------------------------------


def is_remote(spec: DatasetSpec, workspace: Workspace) -> bool:
    """Return whether the source lies on the network and was not fetched yet."""
    return remote.is_remote(spec.source) and not remote.is_fetched(spec, workspace.data_cache)


def ask_size(spec: DatasetSpec, workspace: Workspace) -> tuple[int | None, list[dict[str, Any]]]:
    """Return the bytes that would be fetched (None where nobody says) and what must be answered before.

    Connects. Raises StudioError.
    """
    facts = remote.look_remote(spec, workspace.data_cache)
    return facts.size_bytes, [one.to_dict() for one in facts.questions]


def fetch(
    recipe: Recipe, workspace: Workspace, on_progress: Progress, should_stop: Callable[[], bool]
) -> None:
    """Fetch a remote source into the workspace. Raises StudioError, also when `should_stop`."""
    open_source(recipe.data, cache=workspace.data_cache, on_progress=on_progress, should_stop=should_stop)


# Words ----------------------------------------------------------------------------------------------------------------


def save_mapping(spec: DatasetSpec, found: Mapping[str, Any], workspace: Workspace) -> Path:
    """Write format and columns beside the data, or into the workspace where that cannot be. Raises StudioError."""
    mapping = {**found["mapping"], **{role: name for role, name in spec.mapping.items() if not name}}
    return write_mapping(spec.source, found["format"], mapping, workspace.data_cache)


def find_model(recipe: Recipe) -> ModelFacts | None:
    """Return the recipe's model where it is on this machine; its own screen says what is wrong with others."""
    if not recipe.model.source:
        return None
    try:
        model = inspect_model(recipe.model.source, revision=recipe.model.revision)
    except StudioError:
        return None
    return model if model.folder else None


def load_tokenizer(model: ModelFacts | None, recipe: Recipe) -> Any | None:
    """Return the tokenizer of a run of `recipe`; None without a model. Raises StudioError."""
    if model is None:
        return None
    from studio.models.tokenizer import load_run_tokenizer

    return load_run_tokenizer(model, recipe)


def list_specials(tokenizer: Any | None, texts: Iterable[str]) -> tuple[str, ...]:
    """Return the words of the tokenizer's control tokens that occur in `texts`."""
    if tokenizer is None:
        return ()
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    words = "\n".join(texts)
    return tuple(word for word in {*tokenizer.all_special_tokens, *added} if word.strip() and word in words)


def join_characters(tokens: list[dict[str, Any]], tokenizer: Any | None) -> None:
    """Give characters that are parted among tokens, as bytes are, to the first of them; the others then say nothing."""
    start = 0
    while start < len(tokens):
        stop = start
        while stop < len(tokens) and "\ufffd" in tokens[stop]["text"]:
            stop += 1
        if stop > start + 1:
            ids = [token["id"] for token in tokens[start:stop]]
            words = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            for i, token in enumerate(tokens[start:stop]):
                token["text"] = words if not i else ""
        start = max(stop, start + 1)


def list_roles(*formats: str) -> tuple[str, ...]:
    """Return the roles that columns can play in these formats; in every format where none is known."""
    known = [one for one in FORMATS if one.name in formats] or list(FORMATS)
    return tuple(dict.fromkeys(role for one in known for role in one.roles))
