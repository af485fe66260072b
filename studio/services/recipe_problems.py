"""Every problem of a recipe before it starts: its model's files and its data's head are read, nothing is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from studio.core.errors import Problem, RecipeError, StudioError
from studio.core.facts import DataFacts, MachineFacts, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import SAMPLING, DatasetSpec, Recipe, settle_objective
from studio.data import remote
from studio.data.asked_format import settle_asked
from studio.data.convert import Converted, convert, identify
from studio.data.filters import read_filters
from studio.data.pipeline import (
    UNTRAINED,
    refuse_kind,
    refuse_rows,
    refuses_training,
    source_of,
    tell_refused,
    validation_of,
)
from studio.data.prepare import read_weight
from studio.data.preview import preview
from studio.data.sampling import SAMPLE_ROWS
from studio.data.source import open_source
from studio.data.templates.catalogue import read_choice
from studio.data.templates.fitting import find_fitting, find_split_end
from studio.models.catalog import inspect_model, read_added_words
from studio.planning.recipe_check import check
from studio.services.dataset_report import Counted
from studio.services.reward_verdicts import find_refusal

TEMPLATE_FREE = ("text", "prompt_completion", "pretokenized")
"""Formats that are rendered without a chat template where there is none."""
LOST_SHARE = 0.03
"""Of the tokens: what a limit of length may take away without a word."""
QUICK_BYTES = 16 * 2**20
"""Read in some 3 seconds: 7 MB/s on one of two busy cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceProblem(Problem):
    """A model or data set that cannot be used: the refusal itself, in its three sentences."""

    error: StudioError

    @property
    def asks(self) -> bool:
        """Whether an answer of the person's is all that is missing."""
        return self.error.what.id in ("data.unclear", "check.no_template")


def find_problems(
    recipe: Recipe,
    machine: MachineFacts,
    free_disk_bytes: int,
    cache: Path | None = None,
    counted: Counted | None = None,
    refused: Text | None = None,
) -> tuple[Problem, ...]:
    """Return every Problem of `recipe` at once, errors first; a source that cannot be read is one of them.

    cache: where fetched data sets and saved mappings are; nothing is fetched into it. counted: what a run makes of the
    rows, where all of them were measured before. refused: why the test of its rewards refused them on its data.
    """
    problems: list[Problem] = []
    model = data = None
    try:
        model = inspect_model(recipe.model.source, revision=recipe.model.revision)
    except StudioError as error:
        problems.append(_say("model.source", error))
    try:
        data = look(recipe.data, cache, recipe.objective)
    except StudioError as error:
        problems.append(_say("data.source", error))
    if data is not None and counted is not None:
        if counted.refusal is not None:
            problems.append(_say("data.source", counted.refusal))
        data = _add_counted(data, counted, recipe.data.accept_bad_rows)
        problems += _look_at_cut(counted, recipe.data.max_length)
    if data is not None and recipe.data.validation:
        try:
            look(validation_of(recipe.data, data.format), cache)
        except StudioError as error:
            problems.append(_say("data.validation", error))
    for field, ask in (
        ("data.filters", lambda: read_filters(recipe.data.filters)),
        ("data.template", lambda: recipe.data.template and read_choice(recipe.data.template)),
        ("data.mix", lambda: _look_at_mix(recipe.data, cache)),
    ):
        try:
            ask()
        except StudioError as error:
            problems.append(_say(field, error))
    if data is not None:
        problems += [
            Problem(
                field="data.source", message=told, fix=text("data.prepare.left_out.fix"), severity="warning"
            )
            for told in data.problems
        ]
    if model is not None and data is not None:
        problems += _look_at_template(recipe, model, data)
    if refused is not None and settle_objective(recipe, data.format if data else "").objective in SAMPLING:
        problems.append(find_refusal(recipe.rewards, refused))
    found = check(recipe, machine, model, data, free_disk_bytes=free_disk_bytes)
    told = {problem.field for problem in found}  # a source that is empty needs no second sentence
    together = (*(problem for problem in problems if problem.field not in told), *found)
    return tuple(sorted(together, key=lambda problem: problem.severity != "error"))


def look(spec: DatasetSpec, cache: Path | None = None, objective: str = "auto") -> DataFacts:
    """Return what the head of a data set says; its rows are counted (else 0) when all can be read in seconds.

    cache: as in find_problems; objective: the recipe's, which may say what the data leave open.

    Raises StudioError when it cannot be read, its format is not clear, or too many of its rows are broken.
    """
    spec = settle_asked(spec, objective, _without_network(spec, cache))
    head = preview(spec, None, rows=SAMPLE_ROWS, cache=_without_network(spec, cache))
    if head.refusal is not None:
        raise head.refusal
    rows_read, refused, found, whole = len(head.rows), head.found.refused, head.found, head.whole
    counted = None if whole else _read_quickly(spec, _without_network(spec, cache))
    if counted is not None and counted.has_rows:
        rows_read, refused = counted.counts.rows_read, counted.counts.rows_refused
        found, whole = counted.problems, True
    # Of a head alone nobody knows whether the rest is as broken: the run counts, before it loads anything.
    broken = refuses_training(rows_read, refused, found) and not spec.accept_bad_rows
    if whole and refused and (broken or refused == rows_read):
        raise refuse_rows(rows_read, refused, found)
    if head.format in UNTRAINED:
        raise refuse_kind(head.format)
    return DataFacts(
        source=spec.source,
        format=head.format,
        reason=head.reason or text("data.format.chosen", format=head.format),
        mapping=head.mapping,
        columns=head.columns,
        rows_read=rows_read if whole else 0,
        rows_used=rows_read - refused if whole else 0,
        rows_refused=refused if whole else 0,
        expected_rows=head.expected[0],
        expected_tokens=head.expected[1],
        content_hash="",
        problems=(tell_refused(rows_read, refused, found),)
        if whole and refused and not spec.accept_bad_rows
        else (),
    )


def _add_counted(data: DataFacts, counted: Counted, accepted: bool) -> DataFacts:
    """Return `data` with what was measured over all rows; a refusal says everything of them already."""
    if counted.refusal is not None:
        return dataclasses.replace(data, rows_read=0, problems=())
    if counted.tokens:
        data = dataclasses.replace(data, expected_rows=counted.rows_used, expected_tokens=counted.tokens)
    told = (counted.told,) if counted.told is not None and not accepted else ()
    rows = {
        "rows_read": counted.rows_read,
        "rows_used": counted.rows_used,
        "rows_refused": counted.rows_refused,
    }
    return dataclasses.replace(data, problems=told, **rows)


def _look_at_cut(counted: Counted, limit: int) -> Iterator[Problem]:
    """Yield a warning where the limit of length takes more than a few per cent of the tokens away."""
    share = counted.tokens_lost / max(1, counted.tokens + counted.tokens_lost)
    if share > LOST_SHARE:
        values = {
            "rows": f"{counted.rows_cut:,}",
            "all": f"{counted.rows_used:,}",
            "share": f"{share:.1%}",
            "limit": limit,
        }
        message, fix = (text(f"check.tokens_lost{part}", **values) for part in ("", ".fix"))
        yield Problem(field="data.max_length", message=message, fix=fix, severity="warning")


def _read_quickly(spec: DatasetSpec, cache: Path | None) -> Converted | None:
    """Return all rows, where they were read before or can be within seconds; they are kept for the run."""
    if cache is None:
        return None
    files = open_source(spec, cache=cache).splits["train"]
    quick = sum(file.size_bytes for file in files) <= QUICK_BYTES and not any(file.packing for file in files)
    return convert(spec, cache) if quick or identify(spec, cache) else None


def _look_at_template(recipe: Recipe, model: ModelFacts, data: DataFacts) -> Iterator[Problem]:
    """Yield what stands between conversations and this model's tokens; nothing where a template fits."""
    chosen = recipe.data.template
    free = data.format in TEMPLATE_FREE or recipe.objective == "pretrain"
    if free or not model.folder or (model.has_chat_template and not chosen):
        return
    added = read_added_words(Path(model.folder))
    first, *others = fitting = find_fitting(added)
    if not chosen:
        values = {"name": model.name, "first": first, "others": ", ".join(others)}
        what, why, fix = (text(f"check.no_template{part}", **values) for part in ("", ".why", ".fix"))
        error = StudioError(what, why, fix)
        yield dataclasses.replace(_say("data.template", error), choices=fitting)
        return
    try:
        mark = find_split_end(read_choice(chosen), added)
    except StudioError:  # told already
        return
    if mark:
        values = {"name": chosen, "mark": mark, "first": first}
        message, fix = (text(f"data.template.split{part}", **values) for part in ("", ".fix"))
        yield Problem(field="data.template", message=message, fix=fix, severity="warning")


def _without_network(spec: DatasetSpec, cache: Path | None) -> Path | None:
    """Return `cache`; None where reading `spec` with it would fetch what is not here yet, which then is refused."""
    missing = cache is not None and remote.is_remote(spec.source) and not remote.is_fetched(spec, cache)
    return None if missing else cache


def _look_at_mix(spec: DatasetSpec, cache: Path | None) -> None:
    """Raise StudioError for a further source that cannot be learned from, or a weight that is none."""
    for name, weight in spec.mix.items():
        read_weight(name, weight)
        look(source_of(spec, name), cache)


def refuse(errors: tuple[Problem, ...]) -> StudioError:
    """Return the refusal to start with `errors`, of which there is at least one."""
    first = errors[0]
    if len(errors) == 1 and isinstance(first, SourceProblem):
        return first.error
    refusal = RecipeError(errors)
    refusal.why = text("check.why")
    return refusal


def _say(field: str, error: StudioError) -> SourceProblem:
    message = text("sentence.two", first=error.what, second=error.why)
    return SourceProblem(field=field, message=message, fix=error.fix, error=error)
