"""Strict dataclass <-> JSON: an unknown key is refused and the nearest known one named, all problems at once."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from studio.core.errors import Problem, RecipeError
from studio.core.events import EVENTS, EVENTS_VERSION, RunEvent
from studio.core.i18n import Text, text


def to_json(value: Any) -> Any:
    """Return `value` as JSON data. A RunEvent gains `kind` and `version`; non-finite floats become their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data = {part.name: to_json(getattr(value, part.name)) for part in dataclasses.fields(value)}
        if isinstance(value, RunEvent):
            return {"kind": value.kind, "version": EVENTS_VERSION} | data
        return data
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(cls: type, data: Any) -> Any:
    """Return an instance of the dataclass `cls` from JSON data.

    Raises RecipeError with every Problem found: unknown keys, missing keys, values of a wrong type.
    """
    problems: list[Problem] = []
    value = _read(cls, data, "", problems)
    if problems:
        raise RecipeError(tuple(problems))
    return value


def event_from_json(data: Mapping[str, Any]) -> RunEvent | None:
    """Return the event of one line of events.jsonl; None for a kind or shape that only a newer studio knows."""
    classes = {event.kind: event for event in EVENTS}
    cls = classes.get(str(data.get("kind", "")))
    if cls is None:
        return None
    known = {part.name for part in dataclasses.fields(cls)}
    try:
        return from_json(cls, {key: value for key, value in data.items() if key in known})
    except RecipeError:
        return None


def _read(hint: Any, data: Any, path: str, problems: list[Problem]) -> Any:
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, data, path, problems)
    if hint is Any or hint is object:
        return _read_text_values(data)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in get_args(hint):
            return None
        options = [option for option in get_args(hint) if option is not type(None)]
        return _read(options[0], data, path, problems)
    if origin is Literal:
        if data not in get_args(hint):
            problems.append(_wrong_type(path, ", ".join(map(str, get_args(hint))), data))
        return data
    if origin is tuple and isinstance(data, (list, tuple)):
        inner = get_args(hint)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_read(inner[0], item, f"{path}[{i}]", problems) for i, item in enumerate(data))
        if len(inner) == len(data):
            return tuple(_read(part, item, path, problems) for part, item in zip(inner, data, strict=True))
    if (origin or hint) in (dict, Mapping) and isinstance(data, Mapping):
        inner = get_args(hint)[1] if get_args(hint) else Any
        return {str(key): _read(inner, item, f"{path}.{key}", problems) for key, item in data.items()}
    return _read_plain(hint, data, path, problems)


def _read_plain(hint: Any, data: Any, path: str, problems: list[Problem]) -> Any:
    if hint is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:  # a whole number of more than 308 digits
            problems.append(_wrong_type(path, "float", "1e400"))
            return 0.0
    if hint is float and data in ("nan", "inf", "-inf"):
        return float(data)
    if hint is int and isinstance(data, float) and data.is_integer():
        return int(data)
    if hint is int and isinstance(data, bool):
        problems.append(_wrong_type(path, "int", data))
    elif not (isinstance(hint, type) and isinstance(data, hint)):
        problems.append(_wrong_type(path, getattr(hint, "__name__", str(hint)), data))
    return data


@cache
def _hints_of(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's parts; resolving them anew takes 0.5 ms a recipe, and a shelf has hundreds."""
    return get_type_hints(cls)


def _read_dataclass(cls: type, data: Any, path: str, problems: list[Problem]) -> Any:
    if not isinstance(data, Mapping):
        problems.append(_wrong_type(path, "object", data))
        return None
    hints = _hints_of(cls)
    parts = {part.name: part for part in dataclasses.fields(cls)}
    before = len(problems)
    for key in data:
        if key not in parts and not (key == "kind" and issubclass(cls, RunEvent)):
            near = difflib.get_close_matches(str(key), parts, n=1, cutoff=0.5)
            full = f"{path}.{key}" if path else str(key)
            fix = (
                text("recipe.key.nearest", near=near[0])
                if near
                else text("recipe.key.known", known=sorted(parts))
            )
            problems.append(Problem(field=full, message=text("recipe.key.unknown", key=full), fix=fix))
    values = {}
    for name, part in parts.items():
        full = f"{path}.{name}" if path else name
        if name in data:
            values[name] = _read(hints[name], data[name], full, problems)
        elif part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING:
            if dataclasses.is_dataclass(hints[name]):
                values[name] = _read(hints[name], {}, full, problems)
            else:
                message = text("recipe.key.missing", key=full)
                problems.append(Problem(field=full, message=message, fix=text("recipe.key.add", key=full)))
    return cls(**values) if len(problems) == before else None


def _read_text_values(data: Any) -> Any:
    """Revive a Text inside free values, so that a recorded message reads in either language."""
    if isinstance(data, Mapping):
        if (
            set(data) == {"id", "values"}
            and isinstance(data["id"], str)
            and isinstance(data["values"], Mapping)
        ):
            return Text(id=data["id"], values=_read_text_values(data["values"]))
        return {key: _read_text_values(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_read_text_values(item) for item in data]
    return data


def _wrong_type(path: str, expected: str, found: Any) -> Problem:
    return Problem(
        field=path,
        message=text("recipe.value.type", key=path, expected=expected, found=str(found)[:60]),
        fix=text("recipe.value.type.fix", key=path, expected=expected),
    )
