"""Exports of annotation tools: what people found out about a text becomes columns, named as in their form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.columns import measure_columns
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import part_name
from studio.data.row import Row

LOOKED_AT = 100
FOUND = ("choices", "text", "rating", "labels", "taxonomy", "number", "datetime")
"""Keys under which a result has what was found."""
TECHNICAL = ("annotations", "predictions", "responses", "suggestions", "options", "accept", "answer")
TOLD = frozenset(("annotator", "annotators", "annotation", "annotated", "lead", "labeler", "labeller"))
"""Words in the names of what a tool notes beside what people found out: who did it, when, and for how long."""
SENT = ("submitted", "completed")
HASHES = ("_task_hash", "_input_hash")
REVIEWED = (
    "label",
    "spans",
    "tokens",
    *HASHES,
    "_session_id",
    "_view_id",
    "_annotator_id",
    "_timestamp",
    "_is_binary",
)
"""Columns of a row that somebody accepted or rejected as it stands."""
WEIGHT = "weight"
ACCEPTED, OTHERS = "accept", ("reject", "ignore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotated:
    """Rows of a tool's export."""

    names: tuple[str, ...]
    """Columns that are made."""
    columns: tuple[str, ...]
    """Columns that they are made of."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return self.columns

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.annotated", columns=", ".join(map(shorten, self.names)))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with a column for each thing that was asked; where nothing was found, it is empty."""
        for row in rows:
            if row.problem is None:
                found = _read(row.values)
                kept = {name: cell for name, cell in row.values.items() if name not in self.columns}
                values = {**kept, **{name: found.get(name) for name in self.names}}
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row


def find_annotated(columns: Sequence[str], rows: Sequence[Values]) -> Annotated | None:
    """Return what people found out in an annotation tool; None where the rows are no such export."""
    found = [_read(row) for row in rows[:LOOKED_AT]]
    if not found or 2 * sum(map(bool, found)) <= len(found):
        return None
    names = tuple(dict.fromkeys(name for one in found for name in one))
    gone = tuple(name for name in columns if name in TECHNICAL or (name in REVIEWED and WEIGHT in names))
    gone += tuple(
        name for name in columns if name == "labels" and "labels" not in names and _holds_jobs(rows)
    )
    kept = [name for name in columns if name not in gone]
    return None if {*names} & {*kept} else Annotated(names=names, columns=gone)


def _holds_jobs(rows: Sequence[Values]) -> bool:
    cells = [row.get("labels") for row in rows[:LOOKED_AT] if not is_empty(row.get("labels"))]
    return bool(cells) and all(
        isinstance(cell, (list, tuple)) and "jsonResponse" in _first(cell) for cell in cells
    )


def find_told(columns: Sequence[str], rows: Sequence[Values], found: Sequence[str]) -> dict[str, str]:
    """Return the text that people were shown and the one thing that they were asked about it, as roles; {} for others.

    found: columns that were made of what people found out. In a flat export the tool's notes beside it tell.
    """
    found = [name for name in found if name != WEIGHT]
    noted = [name for name in columns if TOLD & {*part_name(name)}]
    if not found and len(noted) < 2:
        return {}
    known = measure_columns([name for name in columns if name not in noted], rows)
    if not found:
        found = [one.name for one in known.values() if one.is_labels and one.filled == 1]
    texts = [one.name for one in known.values() if one.is_prose and one.plain and one.name not in found]
    labels = [name for name in found if name in known and known[name].spoken and known[name].rows]
    labels = [name for name in labels if known[name].distinct > 1 or WEIGHT in columns]
    return (
        {"prompt": texts[0], "completion": labels[0]} if len(texts) == len(labels) == len(found) == 1 else {}
    )


def _read(values: Values) -> dict[str, object]:
    """Return what was found out about a row, by the name of what was asked; {} where it is no such row."""
    annotations, responses = values.get("annotations"), values.get("responses")
    if isinstance(annotations, (list, tuple)) and "result" in _first(annotations):
        given = [one for one in annotations if isinstance(one, Mapping) and not one.get("was_cancelled")]
        return _read_results(next((one["result"] for one in given if one.get("result")), ()))
    if isinstance(responses, Mapping):
        found = {name: _read_response(cell) for name, cell in responses.items() if isinstance(name, str)}
        return {name: cell for name, cell in found.items() if not is_empty(cell)}
    if "accept" in values and values.get("answer") in (ACCEPTED, *OTHERS):
        return _read_choice(values)
    if values.get("answer") in (ACCEPTED, *OTHERS) and any(key in values for key in HASHES):
        return _read_reviewed(values)
    if isinstance(labels := values.get("labels"), (list, tuple)) and "jsonResponse" in _first(labels):
        return _read_jobs(
            _first([one for one in labels if isinstance(one, Mapping) and one.get("jsonResponse")])
        )
    return {}


def _first(cells: Sequence[object]) -> Mapping[str, object]:
    return cells[0] if cells and isinstance(cells[0], Mapping) else {}


def _read_results(results: object) -> dict[str, object]:
    """Return what the results of a task say: choices, texts, ratings, or the marked words with their labels."""
    found: dict[str, list[object]] = {}
    for result in results if isinstance(results, (list, tuple)) else ():
        value = result.get("value") if isinstance(result, Mapping) else None
        name = result.get("from_name") if isinstance(result, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(name, str):
            continue
        key = "labels" if "labels" in value else next((key for key in FOUND if key in value), "")
        if key == "labels":
            found.setdefault(name, []).append({"text": value.get("text", ""), "label": _open(value[key])})
        elif key:
            cells = value[key]
            found.setdefault(name, []).extend(cells if isinstance(cells, (list, tuple)) else [cells])
    return {name: cells if isinstance(cells[0], Mapping) else _open(cells) for name, cells in found.items()}


def _open(cells: object) -> object:
    return cells[0] if isinstance(cells, (list, tuple)) and len(cells) == 1 else cells


def _read_response(cell: object) -> object:
    """Return the first response that was submitted: `[{"value": .., "status": "submitted"}]`, or `{"value": ..}`."""
    given = cell if isinstance(cell, (list, tuple)) else [cell]
    given = [one for one in given if isinstance(one, Mapping) and "value" in one]
    sent = [one for one in given if one.get("status", SENT[0]) in SENT]
    return _open(sent[0]["value"]) if sent else None


def _read_reviewed(values: Values) -> dict[str, object]:
    """Return the label, or the marked words, that somebody accepted or rejected; only what was accepted counts."""
    spans, words = values.get("spans"), values.get("text")
    if isinstance(spans, (list, tuple)) and isinstance(words, str):
        marked = [
            {"text": words[one["start"] : one["end"]], "label": one.get("label")}
            for one in spans
            if isinstance(one, Mapping) and type(one.get("start")) is type(one.get("end")) is int
        ]
        found: dict[str, object] = {"spans": marked or "[]"}
    elif isinstance(values.get("label"), str):
        found = {"label": values["label"]}
    else:
        return {}
    return {**found, WEIGHT: int(values["answer"] == ACCEPTED)}


def _read_jobs(labels: Mapping[str, object]) -> dict[str, object]:
    """Return what the jobs of a labelled row say: the names of categories, a text, or marked words with theirs."""
    found: dict[str, object] = {}
    jobs = labels.get("jsonResponse")
    for job, said in jobs.items() if isinstance(jobs, Mapping) else ():
        if not isinstance(said, Mapping):
            continue
        if isinstance(marked := said.get("annotations"), (list, tuple)):
            found[job] = [
                {"text": one.get("content", ""), "label": _open(_name_categories(one))}
                for one in marked
                if isinstance(one, Mapping)
            ]
        elif names := _name_categories(said):
            found[job] = _open(names)
        elif isinstance(said.get("text"), str):
            found[job] = said["text"]
    return found


def _name_categories(said: Mapping[str, object]) -> list[object]:
    categories = said.get("categories")
    listed = categories if isinstance(categories, (list, tuple)) else ()
    return [one["name"] for one in listed if isinstance(one, Mapping) and one.get("name")]


def _read_choice(values: Values) -> dict[str, object]:
    """Return the options that were accepted, as they were shown; "" where the task was not."""
    options, accepted = values.get("options"), values.get("accept")
    if not isinstance(options, (list, tuple)) or not isinstance(accepted, (list, tuple)):
        return {}
    shown = {one.get("id"): one.get("text", one.get("id")) for one in options if isinstance(one, Mapping)}
    if not shown or not all(isinstance(key, (str, int)) for key in accepted):
        return {}
    chosen = [shown.get(key, key) for key in accepted] if values["answer"] == ACCEPTED else []
    return {"label": _open(chosen) if chosen else ""}
