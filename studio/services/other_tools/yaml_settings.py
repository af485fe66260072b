"""Settings of a YAML or JSON file: flat dotted keys with the line of each; `${...}` is filled in as OmegaConf would."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.packages import import_package
from studio.services.other_tools.written import Setting, TextPlace, Unresolved

MOST_VALUES = 5_000
"""Values of one file, aliases opened; a large config has 200."""
DEEPEST = 20
BLANK = re.compile(r"\$\{([^${}]+)\}")
"""`${other.key}` or `${oc.env:NAME,default}`."""


def read_yaml(content: str, name: str) -> dict[str, Setting]:
    """Return the settings by dotted key; a list of mappings has numbers as keys. Raises StudioError for no mapping."""
    yaml = import_package("yaml", "PyYAML")
    try:
        root = yaml.compose(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not isinstance(root, yaml.MappingNode):
            raise StudioError(
                text("imported.no_mapping", name=name),
                text("imported.no_mapping.why"),
                text("imported.tools.fix"),
            )
        found = {one.key: one for one in _Reader(yaml, name).flatten(root, "", 0)}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        why = literal(str(getattr(error, "problem", None) or error)[:200])
        line = mark.line + 1 if mark is not None else "-"
        raise _refuse(name, text("imported.yaml.line", line=line, reason=why)) from error
    return fill_blanks(found)


class _Reader:
    """Walks through a composed document; what aliases open counts as often as it is opened."""

    def __init__(self, yaml: Any, name: str) -> None:
        self._yaml = yaml
        self._plain = yaml.SafeLoader("")
        self._name = name
        self._count = 0

    def flatten(self, node: Any, prefix: str, depth: int) -> Iterator[Setting]:
        """Yield the settings below `node`."""
        self._look(depth)
        if isinstance(node, self._yaml.MappingNode):
            pairs = {
                str(self._plain.construct_object(key) if isinstance(key, self._yaml.ScalarNode) else key): (
                    key,
                    value,
                )
                for key, value in _list_pairs(self._yaml, node)
            }
            if not pairs and prefix:
                yield Setting(prefix, None, TextPlace(node.start_mark.line + 1))
            for words, (key, value) in pairs.items():
                yield from self._part(f"{prefix}.{words}" if prefix else words, key, value, depth)
        else:
            for i, item in enumerate(node.value):
                yield from self._part(f"{prefix}.{i}", item, item, depth)

    def _part(self, path: str, at: Any, node: Any, depth: int) -> Iterator[Setting]:
        if _is_branch(self._yaml, node):
            yield from self.flatten(node, path, depth + 1)
        else:
            yield Setting(path, self._value(node, 0), TextPlace(at.start_mark.line + 1))

    def _value(self, node: Any, depth: int) -> Any:
        self._look(depth)
        if isinstance(node, self._yaml.SequenceNode):
            return [self._value(one, depth + 1) for one in node.value]
        try:
            return self._plain.construct_object(node)
        except self._yaml.YAMLError:  # a tag of another program: its words
            return str(node.value)

    def _look(self, depth: int) -> None:
        self._count += 1
        if depth > DEEPEST or self._count > MOST_VALUES:
            raise _refuse(self._name, text("imported.yaml.large", most=MOST_VALUES))


def _list_pairs(yaml: Any, node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a mapping, those that `<<` brings in first: what is written here counts more."""
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == "<<":
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(one, yaml.MappingNode):
                    yield from _list_pairs(yaml, one)
    for key, value in node.value:
        if not (isinstance(key, yaml.ScalarNode) and key.value == "<<"):
            yield key, value


def _is_branch(yaml: Any, node: Any) -> bool:
    """Return whether `node` holds keys of its own."""
    if isinstance(node, yaml.MappingNode):
        return True
    return isinstance(node, yaml.SequenceNode) and any(
        isinstance(one, yaml.MappingNode) for one in node.value
    )


def fill_blanks(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return `settings` with `${...}` filled in from one another; what only the environment knows is Unresolved."""

    def fill(value: Any, depth: int = 0) -> Any:
        if isinstance(value, list):
            return [fill(one, depth) for one in value]
        if not isinstance(value, str) or "${" not in value or depth > DEEPEST:
            return value
        whole = BLANK.fullmatch(value.strip())
        if whole is not None:
            return look_up(whole.group(1), depth)
        filled = value
        for match in BLANK.finditer(value):
            found = look_up(match.group(1), depth)
            if isinstance(found, Unresolved):
                return Unresolved(value)
            filled = filled.replace(match.group(0), str(found))
        return fill(filled, depth + 1) if filled != value else Unresolved(value)

    def look_up(name: str, depth: int) -> Any:
        if name.startswith(("oc.env:", "env:")):
            _, _, default = name.partition(",")
            return default.strip() if default else Unresolved("${" + name + "}")
        found = settings.get(name)
        return fill(found.value, depth + 1) if found is not None else Unresolved("${" + name + "}")

    return {key: replace(one, value=fill(one.value)) for key, one in settings.items()}


def _refuse(name: str, why: Any) -> StudioError:
    return StudioError(text("imported.unreadable", name=name), why, text("imported.yaml.fix"))
