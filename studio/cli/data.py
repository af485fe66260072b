"""`data`: what a data set is, what is wrong with it, and what would be learned from it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from studio.cli.arguments import read_pairs
from studio.cli.console import Console
from studio.cli.data_report import describe_data
from studio.core.recipe import DatasetSpec
from studio.machine.workspace import Workspace

MESSAGE_CHARACTERS = 300
"""No sentence about a row is longer, whatever the file holds."""


def data(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.data.dataset_report import copy_quarantine, report, survey
    from studio.data.report_cache import keep_report, name_report, read_report

    spec, cache = _read_spec(options), workspace.data_cache
    facts = None
    if options.model:
        from studio.models.catalog import inspect_model
        from studio.models.resolve import open_packed

        facts = open_packed(inspect_model(options.model))
    model = Path(facts.folder) if facts and facts.folder else None
    found = None
    answer = read_report(cache, name_report(spec, cache, model, options.rows))
    if answer is None or options.quarantine:
        tokenizer = None
        if facts:
            if options.own_process:
                _leave_torch_out()
            from studio.models.tokenizer import load_tokenizer

            tokenizer = load_tokenizer(facts)
        vocabulary = facts.vocabulary if facts else None
        found, statistics = survey(spec, cache, tokenizer=tokenizer, vocabulary=vocabulary)
        answer = report(found, statistics, options.rows)
        keep_report(cache, name_report(spec, cache, model, options.rows), answer)
    said = console.plain(answer)
    for problem in said["problems"]:
        problem["message"] = _shorten(problem["message"], MESSAGE_CHARACTERS)
    if found is not None and options.quarantine:
        said["quarantine"] = str(copy_quarantine(found, Path(options.quarantine)))
    console.answer(said, describe_data(said, console.catalogue, with_model=bool(options.model)))
    return 0 if said["rows_used"] and not said["refused"] else 1


def _leave_torch_out() -> None:
    """Let transformers read tokenizers as where there is no torch, unless this process has it already.

    It imports torch wherever that lies, for models, of which this process opens none: 2.1 s of the 4.9 s of processor
    time that 20 rows took. What is None among the modules cannot be imported (Python's language reference, 5.3.1).
    """
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # else it says that torch is not there
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


def _read_spec(options: argparse.Namespace) -> DatasetSpec:
    """Return what the options of `data` say. Raises StudioError for a pair without `=`."""
    return DatasetSpec(
        source=options.source,
        format=options.format,
        mapping=read_pairs(options.map, "cli.map"),
        speaker=options.speaker,
        encoding=options.encoding,
        sheet=options.sheet,
        config=options.config,
        split=options.split,
        max_length=options.max_length,
        too_long=options.too_long,
        train_on=options.train_on,
        template=options.template,
        duplicates=options.duplicates,
        overlap=options.overlap,
        filters=read_pairs(options.filter, "cli.filter"),
        accept_bad_rows=options.accept_bad_rows,
    )


def _shorten(words: str, characters: int) -> str:
    return words if len(words) <= characters else words[: characters - 1] + "…"
