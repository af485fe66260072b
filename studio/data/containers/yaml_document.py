"""YAML files: what JSON could say as well is read as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from studio.core.packages import import_package
from studio.data.charset import get_codec
from studio.data.containers import json_document
from studio.data.containers.container import Container, ReadOptions, refuse_file
from studio.data.row import Row

READ_BYTES = 2**23
"""YAML is written by hand; a longer file takes minutes to parse."""


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the file's name says so."""
    return suffix in CONTAINER.suffixes


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield the rows of a list, or of an object around one. Raises StudioError for no YAML, or too much."""
    text = json.dumps(_find_talks(_parse(stream, encoding, options)), ensure_ascii=False, default=str)
    yield from json_document.iterate(io.BytesIO(text.encode("utf-8", "replace")), "utf-8", options)


def list_left_out(stream: BinaryIO, encoding: str, options: ReadOptions) -> tuple[str, ...]:
    """Return what a file of intents holds beside their examples, as `synonym arch`; () for other files.

    Raises StudioError, as `iterate`.
    """
    return tuple(
        f"{kind} {one[kind]}"
        for one in _list_intents(_parse(stream, encoding, options)) or ()
        if not one.get("intent")
        for kind in [next((key for key in one if key != "examples"), "")]
        if kind
    )


def _list_intents(value: Any) -> list[dict[str, Any]] | None:
    """Return the parts of a file of intents; None for any other file."""
    found = value.get("nlu") if isinstance(value, dict) else None
    return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None


def _parse(stream: BinaryIO, encoding: str, options: ReadOptions) -> dict[Any, Any] | list[Any]:
    yaml = import_package("yaml", "PyYAML")
    data = stream.read(READ_BYTES + 1)
    words = data.decode(get_codec(encoding), "replace")
    if len(data) > READ_BYTES or "*" in words and "&" in words and _has_aliases(yaml, words):
        raise refuse_file(options.name, "yaml")  # a few aliases of aliases grow without bounds
    try:
        value = yaml.load(words, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise refuse_file(options.name, "yaml") from error
    if not isinstance(value, (dict, list)):
        raise refuse_file(options.name, "yaml")
    return value


def _has_aliases(yaml: Any, words: str) -> bool:
    return any(isinstance(one, yaml.AliasEvent) for one in yaml.parse(words))


def _find_talks(value: Any) -> Any:
    """Return a row for each list of texts that is a talk, or for each example of an intent; else `value`."""
    intents = _list_intents(value)
    if intents is not None:
        said = [(one.get("intent"), str(one.get("examples") or "")) for one in intents if one.get("intent")]
        return [
            {"text": line.strip().removeprefix("-").strip(), "intent": intent}
            for intent, lines in said
            for line in lines.splitlines()
            if line.strip()
        ]
    lists = [value] if isinstance(value, list) else [one for one in value.values() if isinstance(one, list)]
    for found in lists:
        talks = [one for one in found if isinstance(one, list) and len(one) > 1]
        if found and len(talks) == len(found) and all(isinstance(said, str) for one in talks for said in one):
            return [{"conversation": one} for one in talks]
    return value


CONTAINER = Container(name="yaml", suffixes=(".yaml", ".yml"), accepts=accept, iterate=iterate)
