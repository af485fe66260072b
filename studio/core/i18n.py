"""A text for a person: an id and its values, turned into words at the last moment in the reader's language."""

from __future__ import annotations

import dataclasses
import json
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LANGUAGES = ("en", "zh-CN")
LOCALES = Path(__file__).resolve().parents[2] / "assets" / "locales"


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """What is to be said, without the words: `id` names an entry of assets/locales, `values` fill its blanks.

    A value may be a string, a number, a bool, or another Text (rendered in the same language).
    """

    id: str
    values: Mapping[str, object] = field(default_factory=dict)


def text(id: str, /, **values: object) -> Text:
    """Return Text(id, values): `text("check.key.unknown", key="lerning_rate")`."""
    return Text(id=id, values=values)


def literal(words: str) -> Text:
    """Return a Text that says `words` as they are in every language: names, paths, other programs' messages."""
    return Text(id="literal", values={"words": words})


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """The words of one language, with English for what it lacks."""

    language: str
    words: Mapping[str, str]

    def has(self, id: str) -> bool:
        """Return whether `id` has words here."""
        return id in self.words

    def say(self, message: Text | str) -> str:
        """Return the words of `message`; a missing id or value shows as itself, so that no message is ever lost."""
        if isinstance(message, str):
            return message
        if message.id == "literal":
            return str(message.values.get("words", ""))
        values = {
            key: self.say(value) if isinstance(value, Text) else self._plain(value)
            for key, value in message.values.items()
        }
        template = self.words.get(message.id)
        if template is None:
            return f"{message.id} {values}" if values else message.id
        return _Blanks().vformat(template, (), values)

    def say_all(self, value: Any) -> Any:
        """Return `value` (dataclasses, mappings, sequences) as plain data with every Text in it said."""
        if isinstance(value, Text):
            return self.say(value)
        if isinstance(value, Mapping):
            return {key: self.say_all(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.say_all(item) for item in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {part.name: self.say_all(getattr(value, part.name)) for part in dataclasses.fields(value)}
        return value

    def _plain(self, value: object) -> str:
        if isinstance(value, bool):
            return self.say(text("word.yes") if value else text("word.no"))
        if isinstance(value, float):
            return f"{value:.4g}"
        if isinstance(value, (list, tuple)):
            return ", ".join(str(part) for part in value)
        return str(value)


class _Blanks(string.Formatter):
    """`{name}` only: no attribute or index reach into values, which may come from a recorded run."""

    def get_field(self, field_name, args, kwargs):
        return kwargs.get(field_name, "{" + field_name + "}"), field_name

    def convert_field(self, value, conversion):
        return value


def load_catalogue(language: str, folder: Path = LOCALES) -> Catalogue:
    """Return the Catalogue of `language` (one of LANGUAGES; anything else reads as English)."""
    words = json.loads((folder / "en.json").read_text(encoding="utf-8"))
    if language in LANGUAGES and language != "en":
        words |= json.loads((folder / f"{language}.json").read_text(encoding="utf-8"))
    return Catalogue(language=language if language in LANGUAGES else "en", words=words)


def choose_language(environment: Mapping[str, str] = os.environ, wanted: str = "") -> str:
    """Return the language to speak: `wanted`, else FINETUNE_STUDIO_LANGUAGE, else the system's locale."""
    for tag in (wanted, environment.get("FINETUNE_STUDIO_LANGUAGE", "")):
        if tag in LANGUAGES:
            return tag
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        tag = environment.get(name, "")
        if tag:
            return "zh-CN" if tag.lower().startswith("zh") else "en"
    return "en"
