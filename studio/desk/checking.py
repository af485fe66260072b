"""Every problem of a recipe before it starts: its model's files and its data's head are read, nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from studio.core.errors import Problem, RecipeError, StudioError
from studio.core.facts import DataFacts, MachineFacts
from studio.core.recipe import DatasetSpec, Recipe
from studio.core.text import text
from studio.data import remote
from studio.data.filters import read_filters
from studio.data.gather import (
    REFUSED_ROWS,
    UNTRAINED,
    refuse_kind,
    refuse_rows,
    refuses_training,
    source_of,
    validation_of,
)
from studio.data.prepare import read_weight
from studio.data.preview import Preview, preview
from studio.data.sampling import SAMPLE_ROWS
from studio.data.templates.catalogue import read_choice
from studio.host.check import check
from studio.models.catalog import inspect_model


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceProblem(Problem):
    """A model or data set that cannot be used: the refusal itself, in its three sentences."""

    error: StudioError

    @property
    def asks(self) -> bool:
        """Whether an answer of the person's is all that is missing."""
        return self.error.what.id == "data.unclear"


def find_problems(
    recipe: Recipe, machine: MachineFacts, free_disk_bytes: int, cache: Path | None = None
) -> tuple[Problem, ...]:
    """Return every Problem of `recipe` at once, errors first; a source that cannot be read is one of them.

    cache: where fetched data sets and saved mappings are; nothing is fetched into it.
    """
    problems: list[Problem] = []
    model = data = None
    try:
        model = inspect_model(recipe.model.source, revision=recipe.model.revision)
    except StudioError as error:
        problems.append(_say("model.source", error))
    try:
        data = look(recipe.data, cache)
    except StudioError as error:
        problems.append(_say("data.source", error))
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
    found = check(recipe, machine, model, data, free_disk_bytes=free_disk_bytes)
    told = {problem.field for problem in found}  # a source that is empty needs no second sentence
    return (*(problem for problem in problems if problem.field not in told), *found)


def look(spec: DatasetSpec, cache: Path | None = None) -> DataFacts:
    """Return what the head of a data set says; its rows are counted (else 0) when the head is the whole.

    cache: as in find_problems.

    Raises StudioError when it cannot be read, its format is not clear, or too many of its rows are broken.
    """
    head = preview(spec, None, rows=SAMPLE_ROWS, cache=_without_network(spec, cache))
    if head.refusal is not None:
        raise head.refusal
    rows_read, refused = len(head.rows), head.found.refused
    whole = head.whole
    if not spec.accept_bad_rows and (
        refuses_training(rows_read, refused) if whole else refused > REFUSED_ROWS
    ):
        raise refuse_rows(rows_read, refused, head.found)
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
        content_hash="",
    )


def _without_network(spec: DatasetSpec, cache: Path | None) -> Path | None:
    """Return `cache`; None where reading `spec` with it would fetch what is not here yet, which then is refused."""
    missing = cache is not None and remote.is_remote(spec.source) and not remote.is_fetched(spec, cache)
    return None if missing else cache


def _look_at_mix(spec: DatasetSpec, cache: Path | None) -> None:
    """Raise StudioError for a further source that cannot be learned from, or a weight that is none."""
    for name, weight in spec.mix.items():
        read_weight(name, weight)
        look(source_of(spec, name), cache)


def preview_recipe(recipe: Recipe, rows: int, cache: Path | None = None) -> Preview:
    """Return the Preview of the recipe's data with its model's tokenizer, where that is here. Raises StudioError."""
    from studio.models.load import load_tokenizer

    facts = (
        inspect_model(recipe.model.source, revision=recipe.model.revision) if recipe.model.source else None
    )
    tokenizer = load_tokenizer(facts) if facts and facts.folder else None
    return preview(recipe.data, tokenizer, rows=rows, cache=_without_network(recipe.data, cache))


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
