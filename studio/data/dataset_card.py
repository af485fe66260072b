"""Which files of a remote data set a recipe means: by what the data set's own card says, else by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.recipe import DatasetSpec
from studio.data import split_discovery
from studio.data.open_question import Question
from studio.data.split_discovery import ALL, Plan, find_split, find_suffix, is_data, plan_files
from studio.hub.child import DownloadStopped

SUFFIXES = (*split_discovery.SUFFIXES, *split_discovery.PACKED, ".zip")
"""Endings that no name of the hub has: such a name is a file's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubsetChoice:
    """What of a listing a recipe means."""

    plan: Plan
    configs: tuple[str, ...]
    splits: tuple[str, ...]
    ready: bool
    """Whether it is clear enough to fetch."""


def choose(spec: DatasetSpec, listing: Mapping[str, Any]) -> SubsetChoice:
    """Return which files of a listing `spec` means: by the data set's own card, else by the names of the files."""
    names = [file["name"] for file in listing["files"]]
    configs = _read_configs(listing["configs"], names)
    if configs:
        return _choose_by_card(spec, configs)
    if len(names) == 1 and find_suffix(names[0]) in (*SUFFIXES, ""):
        return SubsetChoice(
            plan=Plan(splits={"train": tuple(names)}), configs=(), splits=("train",), ready=True
        )
    plan = plan_files(names, config=spec.config, split=spec.split)
    if not plan.splits["train"]:
        raise refuse("no_data", spec.source)
    # A guess is good enough for a look at what lies here already, not for fetching what may be the wrong part.
    answers = {question.id: question.choices for question in plan.questions}
    return SubsetChoice(
        plan=plan,
        configs=tuple(name for name in answers.get("config", ()) if name != ALL),
        splits=answers.get("split", tuple(plan.splits)),
        ready=all(len(question.choices) == 1 for question in plan.questions),
    )


def _choose_by_card(spec: DatasetSpec, configs: Mapping[str, Mapping[str, tuple[str, ...]]]) -> SubsetChoice:
    questions: list[Question] = []
    if spec.config and spec.config not in configs:
        raise refuse("config", spec.source, given=spec.config, known=", ".join(configs)[:160])
    config = spec.config or next(iter(configs))
    if not spec.config and len(configs) > 1:
        asked = text("data.remote.configs", count=len(configs))
        questions.append(Question(id="config", question=asked, choices=tuple(configs), field="data.config"))
    splits = configs[config]
    train, asked = _choose_split(spec, splits)
    questions += asked
    rest = _rest(train)
    roles = {"train": splits[train]}
    for name in splits:
        role = find_split(name)
        if name != train and role in ("validation", "test") and _rest(name) == rest and role not in roles:
            roles[role] = splits[name]
    if find_split(train) in ("validation", "test"):
        roles = {"train": splits[train]}
    ready = all(len(question.choices) == 1 for question in questions)
    plan = Plan(splits=roles, questions=tuple(questions))
    return SubsetChoice(plan=plan, configs=tuple(configs), splits=tuple(splits), ready=ready)


def _choose_split(spec: DatasetSpec, splits: Mapping[str, tuple[str, ...]]) -> tuple[str, list[Question]]:
    if spec.split:
        if spec.split not in splits:
            raise refuse("split", spec.source, given=spec.split, known=", ".join(splits)[:160])
        return spec.split, []
    if "train" in splits:
        return "train", []
    meant = [name for name in splits if find_split(name) == "train"]
    if len(meant) == 1:
        return meant[0], []
    choices = (*meant, *(name for name in splits if name not in meant))
    asked = text("data.remote.splits", count=len(choices))
    return choices[0], [Question(id="split", question=asked, choices=choices, field="data.split")]


def _rest(split: str) -> str:
    """Return what a split's name says beside which split it is: "sft" of train_sft and of test_sft."""
    words = split_discovery.WORDS.findall(split.lower())
    known = {word for words in split_discovery.SPLIT_WORDS.values() for word in words}
    return " ".join(word for word in words if word not in known)


def _read_configs(found: Sequence[Any], names: Sequence[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return {config: {split: files}} as a card's `configs` says it, the default one first; {} when it says nothing."""
    configs: dict[str, dict[str, tuple[str, ...]]] = {}
    default = ""
    for entry in found:
        if not isinstance(entry, Mapping) or "data_files" not in entry:
            continue
        name = str(entry.get("config_name", "default"))
        base = str(entry.get("data_dir") or "").strip("/")
        splits = {}
        for split, patterns in _read_patterns(entry["data_files"]):
            files = tuple(name for name in names if is_data(name) and _matches(name, patterns, base))
            if files:
                splits[split] = tuple(sorted({*splits.get(split, ()), *files}))
        if splits:
            configs[name] = splits
            if entry.get("default") is True or name == "default" and not default:
                default = name
    return {name: configs[name] for name in sorted(configs, key=lambda name: name != default)}


def _read_patterns(found: Any) -> list[tuple[str, list[str]]]:
    def listed(value: Any) -> list[str]:
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    if isinstance(found, Mapping):
        return [(str(split), listed(value)) for split, value in found.items()]
    if isinstance(found, list) and found and all(isinstance(item, Mapping) for item in found):
        return [(str(item.get("split", "train")), listed(item.get("path", []))) for item in found]
    return [("train", listed(found))]


def _matches(name: str, patterns: Sequence[str], base: str) -> bool:
    """Return whether a file is meant: * stays within a folder, ** does not."""
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    for pattern in patterns:
        pattern = "/".join(filter(None, (base, pattern.removeprefix("./"))))
        parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern[:500])
        if re.fullmatch("".join(signs.get(part) or re.escape(part) for part in parts), name):
            return True
    return False


def show_source(source: str) -> str:
    """Return a source as messages name it: an address without its user, password and query."""
    if "://" not in source:
        return source
    outer, chained, inner = source.partition("::")
    if chained and "://" not in outer:  # simplecache::https://host/file
        return f"{outer}::{show_source(inner)}"[:120]
    try:
        parts = urlsplit(source)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return source.partition("?")[0][:120]
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"[:120]


def refuse(kind: str, source: str, **values: object) -> StudioError:
    """Return the StudioError that the texts data.remote.<kind> say."""
    cls = DownloadStopped if kind == "stopped" else StudioError
    values |= {"source": show_source(source)}
    if "detail" in values:
        values["detail"] = literal(str(values["detail"]))
    parts = (text(f"data.remote.{kind}{part}", **values) for part in ("", ".why", ".fix"))
    return cls(*parts, exit_code=1 if kind == "stopped" else 2)
