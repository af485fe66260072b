"""A file of another tool as a recipe: which tool's it is, by what it says; nothing in it is ever run."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.services.other_tools import axolotl, llama_factory, ms_swift, torchtune, trl
from studio.services.other_tools.script_calls import Script, read_cells
from studio.services.other_tools.scripts import translate_script
from studio.services.other_tools.shell_settings import (
    Command,
    Word,
    count_processes,
    list_commands,
    read_options,
)
from studio.services.other_tools.translation import ImportedRecipe
from studio.services.other_tools.written import Setting, Written
from studio.services.other_tools.yaml_settings import read_yaml

LARGEST_CHARACTERS = 5_000_000
"""A notebook with its pictures; a config has 3,000."""


@dataclass(frozen=True, slots=True)
class OtherTool:
    """A tool whose configs are read."""

    name: str
    knows: Callable[[Written], bool]
    translate: Callable[[Written], ImportedRecipe]
    commands: Mapping[tuple[str, ...], str]
    """Words that begin its commands -> what they do; `""` where the next word says it."""


TOOLS = (
    OtherTool(torchtune.NAME, torchtune.knows, torchtune.translate, {("tune", "run"): "run"}),
    OtherTool(
        axolotl.NAME,
        axolotl.knows,
        axolotl.translate,
        {("axolotl", "train"): "train", ("axolotl.cli.train",): "train"},
    ),
    OtherTool(
        llama_factory.NAME,
        llama_factory.knows,
        llama_factory.translate,
        {
            ("llamafactory-cli", "train"): "train",
            ("src/train.py",): "train",
            ("src/train_bash.py",): "train",
            ("src/train_sft.py",): "train",
        },
    ),
    OtherTool(
        ms_swift.NAME,
        ms_swift.knows,
        ms_swift.translate,
        {("swift", "sft"): "sft", ("swift", "pt"): "pt", ("swift", "rlhf"): "rlhf"},
    ),
    OtherTool(trl.NAME, trl.knows, trl.translate, {("trl", one): one for one in trl.COMMANDS}),
)


def import_file(path: str | Path) -> ImportedRecipe:
    """Return the recipe that a file of another tool makes. Raises StudioError, RecipeError with lines and reasons."""
    file = Path(os.path.expanduser(path))
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # reading a pipe may never end
            raise StudioError(
                text("file.unreadable", path=file.name),
                text("data.source.special"),
                text("data.source.special.fix"),
            )
        with file.open(encoding="utf-8-sig", errors="strict") as opened:
            content = opened.read(LARGEST_CHARACTERS + 1)
    except OSError as error:
        why = literal(error.strerror or str(error))
        raise StudioError(
            text("file.unreadable", path=file.name), why, text("file.unreadable.fix")
        ) from error
    except UnicodeDecodeError as error:
        raise StudioError(
            text("imported.unreadable", name=file.name),
            text("imported.encoding"),
            text("imported.encoding.fix"),
        ) from error
    return import_words(content, file.name, file.absolute().parent)


def import_words(content: str, name: str, folder: Path | None = None) -> ImportedRecipe:
    """Return the recipe of a file's words; `folder` is what its relative paths count from, None where nobody knows.

    Raises as import_file.
    """
    if len(content) > LARGEST_CHARACTERS:
        raise StudioError(
            text("imported.unreadable", name=name),
            text("imported.large", most=LARGEST_CHARACTERS),
            text("imported.tools.fix"),
        )
    written = Written(settings={}, folder=folder or Path(os.devnull), comments=_comments(content))
    suffix = Path(name).suffix.lower()
    try:
        if suffix in (".py", ".ipynb"):
            return translate_script(Script(read_cells(content, name), name, folder), written)
        if suffix in (".sh", ".bash", ".txt", ".cmd", ".md", "") or content.startswith("#!"):
            return _import_shell(content, name, written)
        return _import_config(content, name, written)
    except RecursionError as error:
        raise StudioError(
            text("imported.unreadable", name=name), text("imported.deep"), text("imported.tools.fix")
        ) from error


def _comments(content: str) -> str:
    return "\n".join(line for line in content.splitlines() if line.lstrip().startswith("#"))


def _import_config(content: str, name: str, written: Written) -> ImportedRecipe:
    written = replace(written, settings=read_yaml(content, name))
    tool = next((one for one in TOOLS if one.knows(written)), None)
    if tool is None:
        raise _refuse_unknown(name, text("imported.tools.keys", keys=", ".join(list(written.settings)[:8])))
    return tool.translate(written)


def _import_shell(content: str, name: str, written: Written) -> ImportedRecipe:
    seen = ""
    for command in list_commands(content):
        words = [word.words for word in command.words]
        for tool in TOOLS:
            place = next((i for i in range(len(words)) if _begins(tool, words[i:])), None)
            if place is not None:
                return _import_command(tool, command, place, written)
        if any(word.startswith("--") for word in words):
            seen = f"{command.place}: {' '.join(words[:3])}"
            # A script of the person's own: its options are known by their names alone.
            own = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
            if own is not None:
                told = _read_own(command, own, written)
                if (known := next((one for one in TOOLS if one.knows(told)), None)) is not None:
                    return known.translate(told)
    why = text("imported.tools.command", seen=seen) if seen else text("imported.tools.none")
    raise _refuse_unknown(name, why)


def _read_own(command: Command, place: int, written: Written) -> Written:
    """Return what the command of a script of one's own says, the config that it names among that."""
    rest = command.words[place + 1 :]
    settings: dict[str, Setting] = {}
    if rest and rest[0].words.endswith((".yaml", ".yml", ".json")) and written.is_file(rest[0].words):
        file = written.folder / rest[0].words
        settings = read_yaml(
            file.read_text(encoding="utf-8-sig", errors="replace")[:LARGEST_CHARACTERS], file.name
        )
    parts = Path(command.words[place].words).stem.lower().replace("-", "_").split("_")
    named = [one for one in trl.COMMANDS if one in parts]
    return replace(
        written,
        settings=settings | read_options(rest),
        processes=count_processes(command),
        command=named[0] if len(named) == 1 else "",
    )


def _begins(tool: OtherTool, words: list[str]) -> bool:
    return _match(tool, words) is not None


def _match(tool: OtherTool, words: list[str]) -> tuple[str, ...] | None:
    for start in tool.commands:
        said = words[: len(start)]
        if len(said) == len(start) and all(
            one == wanted or one.endswith("/" + wanted) for one, wanted in zip(said, start, strict=True)
        ):
            return start
    return None


def _import_command(tool: OtherTool, command: Command, place: int, written: Written) -> ImportedRecipe:
    start = _match(tool, [word.words for word in command.words[place:]]) or ()
    rest = command.words[place + len(start) :]
    files = [word for word in rest[:1] if word.words.endswith((".yaml", ".yml", ".json"))]
    settings: dict[str, Setting] = {}
    options = read_options(rest[len(files) :])
    config = options.get("config")
    if config is not None and str(config.value).endswith((".yaml", ".yml")):
        files = [Word(str(config.value), config.place)]
        options = {key: one for key, one in options.items() if key != "config"}
    comments = written.comments
    for word in files:
        file = written.folder / word.words
        if not file.is_file():
            raise StudioError(
                text("imported.config", file=word.words, line=str(word.place)),
                text("imported.config.why"),
                text("imported.config.fix"),
            )
        content = file.read_text(encoding="utf-8-sig", errors="replace")[:LARGEST_CHARACTERS]
        settings = read_yaml(content, file.name)
        comments += _comments(content)
    settings = settings | {key: one for key, one in options.items() if key != "config" or not files}
    told = replace(
        written,
        settings=settings,
        command=tool.commands[start],
        processes=count_processes(command),
        comments=comments,
    )
    return tool.translate(told)


def _refuse_unknown(name: str, why: Any) -> StudioError:
    known = ", ".join(tool.name for tool in TOOLS)
    return StudioError(text("imported.no_tool", name=name, known=known), why, text("imported.tools.fix"))
