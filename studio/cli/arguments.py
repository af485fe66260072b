"""The commands and their options, with their help in the person's language; what is typed wrong is refused."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from typing import Any, NoReturn

from studio.core.errors import StudioError
from studio.core.i18n import Catalogue, literal, load_catalogue, text
from studio.core.knob import knobs_of
from studio.core.recipe import OBJECTIVES, Recipe


class Arguments(argparse.ArgumentParser):
    """argparse that refuses in the studio's own form."""

    def error(self, message: str) -> NoReturn:
        """Raise StudioError instead of printing usage and leaving."""
        raise StudioError(text("cli.arguments"), literal(message), text("cli.arguments.fix"))


def number(kind: type, low: float, high: float) -> Callable[[str], Any]:
    """Return a reader of one number: `kind` is int or float. It raises StudioError when it is not from low to high."""

    def read(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:  # NaN is in no range
            raise StudioError(
                text("cli.number", word=word),
                text(f"cli.number.{kind.__name__}", low=low, high=high),
                text("cli.arguments.fix"),
            )
        return value

    return read


def read_pairs(pairs: list[str], id: str) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping; texts of a refusal begin with `id`. Raises StudioError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise StudioError(text(id, pair=pair), text(f"{id}.why"), text(f"{id}.fix"))
        if found.setdefault(name, value) != value:
            raise StudioError(text("cli.twice", name=name), text("cli.twice.why"), text("cli.twice.fix"))
    return found


def parse(words: list[str], catalogue: Catalogue) -> argparse.Namespace:
    """Return the options that `words` give; without a command they are those of `studio`, the window.

    `options.words` holds them with the command in front. Raises StudioError; SystemExit(0) after a help page.
    """
    parser = build_parser(catalogue)
    if words[:1] not in (["-h"], ["--help"]):
        words = _put_command_first(words, _list_commands(parser))
    options = parser.parse_args(words)
    if options.command == "studio" and options.share and options.lan:
        raise StudioError(text("cli.share.both"), text("cli.share.both.why"), text("cli.share.both.fix"))
    options.words = words
    return options


def build_parser(catalogue: Catalogue | None = None) -> Arguments:
    """Return the parser of every command, in English without a `catalogue`."""
    say = (catalogue or load_catalogue("en")).say

    def help_of(id: str) -> str:
        return say(text(f"cli.help.{id}")).replace("%", "%%")

    def option(parser: argparse.ArgumentParser, name: str, help: str = "", **settings: Any) -> None:
        parser.add_argument(name, help=help_of(help or name.strip("-").replace("-", "_")), **settings)

    def titled(parser: Arguments) -> Arguments:
        parser._positionals.title, parser._optionals.title = help_of("arguments"), help_of("options")
        parser.add_argument("-h", "--help", action="help", help=help_of("help"))
        return parser

    parser = titled(
        Arguments(prog="launch.py", description=help_of("about"), add_help=False, allow_abbrev=False)
    )
    commands = parser.add_subparsers(
        dest="command", parser_class=Arguments, metavar="COMMAND", title=help_of("commands")
    )

    def add(name: str, needs: str = "") -> Arguments:
        words = help_of(name)
        command = titled(
            commands.add_parser(name, help=words, description=words, add_help=False, allow_abbrev=False)
        )
        if needs:
            option(command, needs, metavar=needs.upper())
        option(command, "--json", action="store_true")
        option(command, "--events", action="store_true")
        option(command, "--workspace", metavar="DIR")
        return command

    window = add("studio")
    option(window, "--port", type=number(int, 0, 65535), metavar="N")
    option(window, "--no-browser", action="store_true")
    option(window, "--window", action="store_true")
    for name in ("--share", "--lan", "--share-owner"):
        option(window, name, action="store_true")
    demo = add("demo")
    option(demo, "--resume", "demo_resume", metavar="RUN", default="")
    option(demo, "--objective", "demo_objective", choices=("sft", "dpo", "grpo"), default="sft")
    for name in ("train", "check", "plan"):
        add(name, "recipe")
    add("resume", "run")
    brought = add("import", "file")
    for name in ("--out", "--model", "--data", "--objective"):
        settings = {"choices": OBJECTIVES} if name == "--objective" else {"metavar": name.strip("-").upper()}
        option(brought, name, f"import_{name.strip('-')}", default="", **settings)
    data = add("data", "source")
    option(data, "--model", metavar="DIR", default="")
    option(data, "--max-length", metavar="N", type=number(int, 8, 1_048_576), default=1024)
    option(data, "--rows", metavar="N", type=number(int, 0, 1000), default=3)
    option(data, "--format", metavar="F", default="auto")
    option(data, "--map", metavar="ROLE=COLUMN", action="append", default=[])
    for name in ("--speaker", "--encoding", "--sheet", "--split", "--config", "--template"):
        default = "auto" if name == "--encoding" else ""
        option(data, name, "data_" + name.strip("-"), metavar="NAME", default=default)
    choices = {knob.path: knob.choices for knob in knobs_of(Recipe)}
    for name in ("--train-on", "--duplicates", "--overlap", "--too-long"):
        field = name.strip("-").replace("-", "_")
        allowed = choices[f"data.{field}"]
        option(data, name, f"data_{field}", choices=allowed, default=allowed[0])
    option(data, "--filter", "data_filter", metavar="RULE=VALUE", action="append", default=[])
    option(data, "--accept-bad-rows", "data_accept_bad_rows", action="store_true")
    option(data, "--quarantine", "data_quarantine", metavar="FILE", default="")
    doctor = add("doctor")
    option(doctor, "--facts", metavar="FILE")
    option(doctor, "--fix", "doctor_fix", metavar="NAME", default="")
    option(doctor, "--leave", "doctor_leave", metavar="NAME", default="")
    option(doctor, "--network", action="store_true")
    option(doctor, "--again", action="store_true")
    option(doctor, "--copy", action="store_true")
    option(add("explain"), "file", "explain", nargs="?", metavar="FILE")
    add("runs")
    chat = add("chat", "run")
    option(chat, "--prompt", metavar="WORDS")
    option(chat, "--side", choices=("base", "tuned", "both"), default="tuned")
    step = {"metavar": "STEP", "type": number(int, 0, 10**8 - 1), "default": 0}
    option(chat, "--checkpoint", "chat_checkpoint", **step)
    option(chat, "--system", "chat_system", metavar="WORDS", default="")
    option(chat, "--max-new-tokens", metavar="N", type=number(int, 1, 1_048_576), default=256)
    option(chat, "--temperature", metavar="T", type=number(float, 0, 10), default=0.0)
    measured = add("eval", "name")
    option(measured, "--data", "eval_data", metavar="FILE", default="")
    for name in ("--metrics", "--beside", "--out", "--pattern", "--system", "--judge", "--rubric"):
        metavar = {"--out": "FILE", "--rubric": "FILE"}.get(name, "WORDS")
        option(measured, name, "eval_" + name.strip("-"), metavar=metavar, default="")
    for name in ("--tasks", "--tasks-folder"):
        metavar = {"--tasks": "NAMES", "--tasks-folder": "DIR"}[name]
        option(measured, name, "eval_" + name.strip("-").replace("-", "_"), metavar=metavar, default="")
    option(measured, "--shots", "eval_shots", metavar="N", type=number(int, 0, 1000), default=None)
    option(measured, "--rows", "eval_rows", metavar="N", type=number(int, 0, 10**9), default=0)
    option(measured, "--judge-model", "eval_judge_model", metavar="NAME", default="")
    option(measured, "--tolerance", "eval_tolerance", metavar="X", type=number(float, 0, 1e9), default=1e-6)
    option(measured, "--checkpoint", "chat_checkpoint", **step)
    option(measured, "--max-new-tokens", metavar="N", type=number(int, 1, 1_048_576), default=256)
    option(measured, "--format", metavar="F", default="auto")
    option(measured, "--map", metavar="ROLE=COLUMN", action="append", default=[])
    option(measured, "--split", "data_split", metavar="NAME", default="")
    tried = add("reward")
    option(tried, "action", "reward_action", choices=("test", "list"))
    option(tried, "reward", "reward_name", nargs="?", metavar="REWARD", default="")
    option(tried, "--data", "reward_data", metavar="FILE", default="")
    option(tried, "--model", "reward_model", metavar="M", default="")
    option(tried, "--option", "reward_option", metavar="NAME=VALUE", action="append", default=[])
    option(tried, "--rows", "reward_rows", metavar="N", type=number(int, 1, 10_000), default=16)
    option(tried, "--samples", "reward_samples", metavar="N", type=number(int, 1, 64), default=4)
    option(tried, "--max-new-tokens", metavar="N", type=number(int, 1, 1_048_576), default=256)
    option(tried, "--seed", "reward_seed", metavar="N", type=number(int, 0, 2**31 - 1), default=42)
    option(tried, "--format", metavar="F", default="auto")
    option(tried, "--map", metavar="ROLE=COLUMN", action="append", default=[])
    option(tried, "--split", "data_split", metavar="NAME", default="")
    serve = add("serve", "run")
    option(serve, "--host", "serve_host", metavar="ADDRESS", default="127.0.0.1")
    option(serve, "--port", "serve_port", type=number(int, 1, 65535), metavar="N")
    option(serve, "--key", "serve_key", metavar="KEY", default="")
    option(serve, "--checkpoint", "chat_checkpoint", **step)
    option(
        serve, "--max-tokens", "serve_max_tokens", metavar="N", type=number(int, 1, 1_048_576), default=4096
    )
    option(serve, "--queue", "serve_queue", metavar="N", type=number(int, 1, 10_000), default=64)
    export = add("export", "run")
    option(export, "--to", metavar="FORM", default="adapter")
    option(export, "--type", "gguf_type", metavar="TYPE", default="q4_k_m")
    option(export, "--size", "export_size", metavar="SIZE", default="")
    option(export, "--within", metavar="SHARE", default="")
    option(export, "--folder", metavar="DIR")
    for name in ("--repo", "--form", "--license"):
        option(export, name, f"export_{name.strip('-')}", metavar="NAME", default="")
    for name in ("--public", "--dry-run"):
        option(export, name, f"export_{name.strip('-').replace('-', '_')}", action="store_true")
    option(export, "--checkpoint", "export_checkpoint", **step)
    bridge = add("wsl")
    option(bridge, "--distribution", metavar="NAME", default="")
    option(bridge, "--port", type=number(int, 0, 65535), metavar="N")
    for name in ("--check", "--prepare", "--take-over"):
        option(bridge, name, "wsl_" + name.strip("-").replace("-", "_"), action="store_true")
    option(bridge, "--yes", action="store_true")
    option(bridge, "--no-browser", action="store_true")
    bridge.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    measured = add("bench")
    option(measured, "--tune", metavar="off", nargs="?", const="on", choices=("on", "off"), default="")
    measured.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    return parser


def _list_commands(parser: argparse.ArgumentParser) -> list[str]:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return list(commands.choices)


def _put_command_first(words: list[str], known: list[str]) -> list[str]:
    """Return `words` with the command in front: `studio` when they hold options alone. Raises StudioError on a typo."""
    skip = False
    for place, word in enumerate(words):
        if skip or word.startswith("-"):
            skip = not skip and word in ("--workspace", "--port", "--host", "--key")
        elif word in known:
            return [word, *words[:place], *words[place + 1 :]]
        else:
            near = difflib.get_close_matches(word, known, n=1)
            fix = text("recipe.key.nearest", near=near[0]) if near else text("cli.arguments.fix")
            raise StudioError(
                text("cli.command.unknown", name=word), text("cli.command.known", known=known), fix
            )
    return ["studio", *words]
