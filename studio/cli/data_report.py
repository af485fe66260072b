"""What a person reads of `launch.py data`: what it is, rows, problems, lengths, what is learned, what comes next."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.core.i18n import Catalogue, text
from studio.data.row import name_place
from studio.data.row_codes import RowCode

WIDTH = 100
LINES_A_CODE = 3
EXAMPLE_CHARACTERS = 1200
OPEN, CLOSE = "[[", "]]"
"""Around what is learned; colours do not survive being copied into a letter."""


def describe_data(said: Mapping[str, Any], words: Catalogue, *, with_model: bool) -> Iterator[str]:
    """Yield the lines for a report (describe.report) whose Texts are said already."""

    say = words.say
    known = {"source": Path(said["source"]).name or said["source"], "container": said["container"]}
    if said["encoding"]:
        known["container"] += f", {said['encoding']}"
    if said["format"]:
        yield say(text("cli.data.kind", **known, format=said["format"], sure=f"{said['confidence']:.0%}"))
    else:
        yield say(text("cli.data.unclear", **known))
    for told in (said["reason"], *said["source_notes"]):
        yield from _wrap(told, "  ")
    yield from _list_questions(said["needs_answer"], say)
    yield from _list_columns(said, say)
    yield from _list_rows(said, words, say)
    yield from _list_problems(said["problems"], words, say)
    yield from _list_statistics(said["stats"], words, say)
    for number, example in enumerate(said["preview"], start=1):
        yield from _show_example(number, example, say)
    yield from _tell_next(said, with_model, say)


def _list_questions(questions: Sequence[Mapping[str, Any]], say: Any) -> Iterator[str]:
    if not questions:
        return
    yield from ("", say(text("cli.data.questions")))
    for question in questions:
        yield from _wrap(question["question"], "  ? ")
        field = question["field"].removeprefix("data.")
        option = f"--map {field.removeprefix('mapping.')}=" if field.startswith("mapping.") else f"--{field} "
        names = question["names"] or [""] * len(question["choices"])
        for choice, name in list(zip(question["choices"], names, strict=True))[:8]:
            shown = f"      {option}{shlex.quote(choice)}"
            yield f"{shown:30}  {say(name)}".rstrip() if name else shown


def _list_columns(said: Mapping[str, Any], say: Any) -> Iterator[str]:
    roles: dict[str, list[str]] = {}
    for role, column in said["mapping"].items():
        roles.setdefault(column, []).append(role)
    if not said["columns"]:
        return
    yield from ("", say(text("cli.data.columns")))
    width = min(32, max(len(column) for column in said["columns"]))
    for column in said["columns"][:40]:
        role = ", ".join(roles.get(column, ())) or say(text("cli.data.column.unused"))
        yield f"  {column[:width]:{width}}  {role}"


def _list_rows(said: Mapping[str, Any], words: Catalogue, say: Any) -> Iterator[str]:
    yield from ("", say(text("cli.data.rows")))
    yield f"  {said['rows_read']:>10,}  {say(text('cli.data.rows.read'))}"
    yield f"  {said['rows_used']:>10,}  {say(text('cli.data.rows.used'))}"
    if said["rows_quarantined"]:
        yield f"  {said['rows_quarantined']:>10,}  {say(text('cli.data.rows.refused'))}"
    for rule, rows in said["rows_filtered"].items():
        yield f"  {'':10}  {words.say(text(f'data.rule.{rule}', rows=f'{rows:,}'))}"
    for note, rows in said["notes"].items():
        yield f"  {'':10}  {say(text(f'data.note.{note}', rows=f'{rows:,}'))}"
    for name, split in said["splits"].items():
        if name != "train":
            yield f"  {split['rows_used']:>10,}  {say(text('cli.data.rows.split', split=name))}"
            yield from (
                line for one in split["problems"][:LINES_A_CODE] for line in _wrap(one["message"], " " * 14)
            )


def _list_problems(problems: Sequence[Mapping[str, Any]], words: Catalogue, say: Any) -> Iterator[str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for problem in problems:
        groups.setdefault(problem["code"], []).append(problem)
    if groups:
        yield from ("", say(text("cli.data.problems")))
    for number, found in sorted(groups.items()):
        code = RowCode(number)
        count = sum(problem["count"] for problem in found)
        effect = found[0]["effect"]
        told = say(text(f"cli.data.effect.{effect}", count=f"{count:,}"))
        yield f"  {number}  {told}  {say(code.heading)}"
        for problem in [one for one in found if one["line"]][:LINES_A_CODE]:
            yield from _wrap(problem["message"], "        - ")
        yield from _wrap(words.say(code.fix), "        ")


def _list_statistics(stats: Mapping[str, Any], words: Catalogue, say: Any) -> Iterator[str]:
    if not stats or not stats["rows"]:
        return
    unit = stats["unit"]
    found = stats[unit]
    yield from ("", say(text(f"cli.data.lengths.{unit}")))
    yield "  " + say(
        text(
            "cli.data.lengths.spread",
            half=f"{found['p50']:,}",
            most=f"{found['p95']:,}",
            longest=f"{found['max']:,}",
        )
    )
    if unit == "tokens":
        yield "  " + say(text("cli.data.lengths.trained", share=f"{found['trained_share']:.0%}"))
        limit = stats["at_limit"]
        cut = {name: f"{limit[name]:,}" for name in ("limit", "rows_cut", "answers_cut", "tokens_lost")}
        yield "  " + say(text("cli.data.lengths.limit", **cut))
    if stats["exact_duplicates"] or stats["near_duplicates"]:
        near = stats["near_duplicates"] or 0
        yield "  " + say(
            text("cli.data.duplicates", exact=f"{stats['exact_duplicates']:,}", near=f"{near:,}")
        )
    if "overlap" in stats:
        near = stats["overlap"]["near"] or 0
        yield "  " + say(text("cli.data.overlap", exact=f"{stats['overlap']['exact']:,}", near=f"{near:,}"))
    if "labels" in stats:
        labels = stats["labels"]
        yield "  " + say(
            text("cli.data.labels", good=f"{labels['desirable']:,}", bad=f"{labels['undesirable']:,}")
        )
    for secret in stats["secrets"]:
        yield "  " + say(
            text(
                "cli.data.secret", rows=f"{secret['rows']:,}", kind=secret["message"], line=secret["lines"][0]
            )
        )


def _show_example(number: int, example: Mapping[str, Any], say: Any) -> Iterator[str]:
    learned = bool(example["tokens"])
    unit, place = name_place(example["line"], example["row"])
    yield from (
        "",
        say(
            text(
                f"cli.data.example.{unit}.learned" if learned else f"cli.data.example.{unit}",
                number=number,
                place=place,
            )
        ),
    )
    if learned:
        shown = _mark(example["tokens"])
    elif example["messages"]:
        turns = [f"{message['role']}: {message['content']}" for message in example["messages"]]
        for side in ("chosen", "rejected"):
            turns += [f"{side}: {message['content']}" for message in example.get(side, ())]
        shown = "\n".join(turns)
    else:
        shown = example["text"]
    if len(shown) > EXAMPLE_CHARACTERS:
        shown = shown[:EXAMPLE_CHARACTERS] + " …"
    yield from (f"  | {line}" for line in shown.splitlines())


def _mark(tokens: Sequence[Mapping[str, Any]]) -> str:
    """Return the tokens' words with what is learned in brackets."""
    shown, learned = "", False
    for token in tokens:
        if token["trained"] != learned:
            shown += CLOSE if learned else OPEN
            learned = token["trained"]
        shown += token["text"]
    return shown + (CLOSE if learned else "")


def _tell_next(said: Mapping[str, Any], with_model: bool, say: Any) -> Iterator[str]:
    yield ""
    if said["needs_answer"]:
        yield say(text("cli.data.next.answer"))
    elif not said["rows_used"]:
        yield say(text("cli.data.next.nothing"))
    elif said["refused"]:
        yield from _wrap(say(text("cli.data.next.refused", rows=f"{said['rows_quarantined']:,}")), "")
    elif not said["trainable"]:
        yield say(text("cli.data.next.untrained", format=said["format"]))
    elif not with_model:
        yield say(text("cli.data.next.model"))
    else:
        yield say(text("cli.data.next.train"))
    if said["quarantine"]:
        yield say(text("cli.data.next.quarantine", path=said["quarantine"]))


def _wrap(words: str, indent: str) -> list[str]:
    """Return `words` in lines of WIDTH, the later ones below the first word."""
    return (
        textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
        if words
        else []
    )
