"""Whether JSON values follow a JSON schema: the part of draft 2020-12 that is said by KEYWORDS, and nothing else.

In a child, since a schema may hold a pattern that never ends. A keyword that is not known here is refused: who follows
a schema in part calls answers right that are wrong.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from fractions import Fraction
from typing import Any

TOLD = (
    "$schema",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
)
"""Keywords that ask for nothing."""
MOST_REFERRED = 50
"""References that one value may be followed through: a schema that refers to itself alone never ends."""
MOST_CALLS = 8000
"""Within one another: a level of an answer takes a dozen, and answers have at most 150."""
CLOCK = r"\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
FORMATS: dict[str, tuple[str, Callable[[str], object]]] = {
    "date": (r"\d{4}-\d\d-\d\d", date.fromisoformat),
    "time": (CLOCK, time.fromisoformat),
    "date-time": (rf"\d{{4}}-\d\d-\d\d[Tt]{CLOCK}", datetime.fromisoformat),
    "uuid": (r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", uuid.UUID),
}
"""Format -> how it is written (RFC 3339, RFC 4122), and what reads it or raises ValueError."""
TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def match(completions: Sequence[str], values: Sequence[Any], schemas: Sequence[Any]) -> list[float]:
    """Return 1 where `values[i]`, what JSON was in `completions[i]`, follows `schemas[i]`, else 0.

    Raises ValueError as check() does.
    """
    sys.setrecursionlimit(max(MOST_CALLS, sys.getrecursionlimit()))
    scores = []
    for value, schema in zip(values, schemas, strict=True):
        check(schema, schema)
        scores.append(float(_follows(value, schema, schema, 0)))
    return scores


def check(schema: Any, root: Any, path: str = "#") -> None:
    """Raise ValueError, with the place, for the first thing in `schema` that is not known or no schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{path}: {json.dumps(schema)[:40]} is no schema")
    for name, wanted in schema.items():
        place = f"{path}/{name}"
        if name in TOLD or (name == "$id" and path == "#"):
            continue
        if name not in KEYWORDS:
            raise ValueError(f"{place}: the keyword {name} is not known here")
        if not SHAPES[name](wanted):
            raise ValueError(f"{place}: {json.dumps(wanted)[:60]} cannot stand there")
        if name == "$ref":
            find(root, wanted)
        elif name in ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"):
            for key, inner in wanted.items():
                check(inner, root, f"{place}/{key}")
        elif name in ("anyOf", "allOf", "oneOf", "prefixItems"):
            for number, inner in enumerate(wanted):
                check(inner, root, f"{place}/{number}")
        elif name in (
            "items",
            "additionalProperties",
            "propertyNames",
            "contains",
            "not",
            "if",
            "then",
            "else",
        ):
            check(wanted, root, place)


def find(root: Any, reference: str) -> Any:
    """Return what `#/a/b` names in `root`. Raises ValueError for what is not in this schema."""
    found = root
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"{reference}: only references within the schema are followed")
    for part in reference[2:].split("/") if reference != "#" else ():
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            raise ValueError(f"{reference}: it names nothing in the schema")
    if not isinstance(found, (dict, bool)):
        raise ValueError(f"{reference}: what it names is no schema")
    return found


def _follows(value: Any, schema: Any, root: Any, referred: int) -> bool:
    if isinstance(schema, bool):
        return schema
    if referred > MOST_REFERRED:
        raise ValueError("the schema refers to itself without end")

    def follows(inner: Any, other: Any) -> bool:
        return _follows(inner, other, root, referred if inner is value else 0)

    for name, wanted in schema.items():
        if name == "$ref":
            if not _follows(value, find(root, wanted), root, referred + 1):
                return False
        elif name in KEYWORDS and not KEYWORDS[name](value, wanted, schema, follows):
            return False
    return True


def _is_number(value: Any) -> bool:
    """Python reads NaN and Infinity, which are no JSON."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: 1 is 1.0, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _has_form(value: str, name: str) -> bool:
    written, read = FORMATS[name]
    try:
        return re.fullmatch(written, value, re.ASCII) is not None and read(value.upper()) is not None
    except ValueError:
        return False


def _is_multiple(value: float, of: float) -> bool:
    """By decimal digits, as JSON writes numbers: 0.3 is a multiple of 0.1."""
    return Fraction(repr(value)) % Fraction(repr(of)) == 0


def _named(value: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str]:
    """The keys of `value` that properties or patternProperties speak of."""
    patterns = schema.get("patternProperties", {})
    return {
        key
        for key in value
        if key in schema.get("properties", {}) or any(re.search(p, key) for p in patterns)
    }


def _on(kind: type | tuple[type, ...], rule: Callable[..., bool]) -> Callable[..., bool]:
    """A rule for values of `kind` alone: of others a keyword says nothing. A boolean is no number."""
    return lambda value, wanted, schema, follows: (
        not isinstance(value, kind)
        or (isinstance(value, bool) and bool not in (kind if isinstance(kind, tuple) else (kind,)))
        or rule(value, wanted, schema, follows)
    )


def _always(value: Any, wanted: Any, schema: Any, follows: Any) -> bool:
    return True


NUMBER = (int, float)
KEYWORDS: dict[str, Callable[[Any, Any, Mapping[str, Any], Callable[[Any, Any], bool]], bool]] = {
    "$ref": _always,  # by _follows, which counts references
    "$defs": _always,
    "definitions": _always,
    "type": lambda value, wanted, *_: any(
        TYPES[one](value) for one in ([wanted] if isinstance(wanted, str) else wanted)
    ),
    "enum": lambda value, wanted, *_: any(_same(value, one) for one in wanted),
    "const": lambda value, wanted, *_: _same(value, wanted),
    "minimum": _on(NUMBER, lambda value, wanted, *_: value >= wanted),
    "maximum": _on(NUMBER, lambda value, wanted, *_: value <= wanted),
    "exclusiveMinimum": _on(NUMBER, lambda value, wanted, *_: value > wanted),
    "exclusiveMaximum": _on(NUMBER, lambda value, wanted, *_: value < wanted),
    "multipleOf": _on(NUMBER, lambda value, wanted, *_: _is_multiple(value, wanted)),
    "minLength": _on(str, lambda value, wanted, *_: len(value) >= wanted),
    "maxLength": _on(str, lambda value, wanted, *_: len(value) <= wanted),
    "pattern": _on(str, lambda value, wanted, *_: re.search(wanted, value) is not None),
    "format": _on(str, lambda value, wanted, *_: _has_form(value, wanted)),
    "minItems": _on(list, lambda value, wanted, *_: len(value) >= wanted),
    "maxItems": _on(list, lambda value, wanted, *_: len(value) <= wanted),
    "uniqueItems": _on(
        list,
        lambda value, wanted, *_: (
            not wanted
            or not any(_same(one, other) for place, one in enumerate(value) for other in value[:place])
        ),
    ),
    "prefixItems": _on(list, lambda value, wanted, schema, follows: all(map(follows, value, wanted))),
    "items": _on(
        list,
        lambda value, wanted, schema, follows: all(
            follows(one, wanted) for one in value[len(schema.get("prefixItems", ())) :]
        ),
    ),
    "contains": _on(list, lambda value, wanted, schema, follows: any(follows(one, wanted) for one in value)),
    "minProperties": _on(dict, lambda value, wanted, *_: len(value) >= wanted),
    "maxProperties": _on(dict, lambda value, wanted, *_: len(value) <= wanted),
    "required": _on(dict, lambda value, wanted, *_: all(key in value for key in wanted)),
    "dependentRequired": _on(
        dict,
        lambda value, wanted, *_: all(
            set(more) <= value.keys() for key, more in wanted.items() if key in value
        ),
    ),
    "dependentSchemas": _on(
        dict,
        lambda value, wanted, schema, follows: all(
            follows(value, one) for key, one in wanted.items() if key in value
        ),
    ),
    "properties": _on(
        dict,
        lambda value, wanted, schema, follows: all(
            follows(value[key], one) for key, one in wanted.items() if key in value
        ),
    ),
    "patternProperties": _on(
        dict,
        lambda value, wanted, schema, follows: all(
            follows(inner, one)
            for key, inner in value.items()
            for p, one in wanted.items()
            if re.search(p, key)
        ),
    ),
    "additionalProperties": _on(
        dict,
        lambda value, wanted, schema, follows: all(
            follows(value[key], wanted) for key in value.keys() - _named(value, schema)
        ),
    ),
    "propertyNames": _on(
        dict, lambda value, wanted, schema, follows: all(follows(key, wanted) for key in value)
    ),
    "allOf": lambda value, wanted, schema, follows: all(follows(value, one) for one in wanted),
    "anyOf": lambda value, wanted, schema, follows: any(follows(value, one) for one in wanted),
    "oneOf": lambda value, wanted, schema, follows: sum(follows(value, one) for one in wanted) == 1,
    "not": lambda value, wanted, schema, follows: not follows(value, wanted),
    "if": lambda value, wanted, schema, follows: follows(
        value, schema.get("then" if follows(value, wanted) else "else", True)
    ),
    "then": _always,  # by `if`
    "else": _always,
}
"""Keyword -> whether a value does what it asks: (value, what stands there, its schema, follows(value, schema))."""


def _is_count(wanted: Any) -> bool:
    return TYPES["integer"](wanted) and wanted >= 0


def _is_pattern(wanted: Any) -> bool:
    try:
        return isinstance(wanted, str) and re.compile(wanted) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def _is_schema(wanted: Any) -> bool:
    return isinstance(wanted, (dict, bool))


def _are_schemas(wanted: Any) -> bool:
    return isinstance(wanted, list) and bool(wanted) and all(map(_is_schema, wanted))


def _are_named_schemas(wanted: Any) -> bool:
    return isinstance(wanted, dict) and all(map(_is_schema, wanted.values()))


def _are_names(wanted: Any) -> bool:
    return isinstance(wanted, list) and all(isinstance(one, str) for one in wanted)


SHAPES: dict[str, Callable[[Any], bool]] = {
    "$ref": lambda wanted: isinstance(wanted, str),
    "type": lambda wanted: (
        wanted in TYPES
        if isinstance(wanted, str)
        else isinstance(wanted, list)
        and bool(wanted)
        and all(isinstance(one, str) and one in TYPES for one in wanted)
    ),
    "enum": lambda wanted: isinstance(wanted, list),
    "const": lambda wanted: True,
    "multipleOf": lambda wanted: _is_number(wanted) and wanted > 0,
    "pattern": _is_pattern,
    "format": lambda wanted: isinstance(wanted, str) and wanted in FORMATS,
    "uniqueItems": lambda wanted: isinstance(wanted, bool),
    "required": _are_names,
    "dependentRequired": lambda wanted: isinstance(wanted, dict) and all(map(_are_names, wanted.values())),
    "patternProperties": lambda wanted: _are_named_schemas(wanted) and all(map(_is_pattern, wanted)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count
    ),
    **dict.fromkeys(("$defs", "definitions", "properties", "dependentSchemas"), _are_named_schemas),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _are_schemas),
    **dict.fromkeys(
        ("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else"),
        _is_schema,
    ),
}
"""Keyword -> whether what stands there can."""
