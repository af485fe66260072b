"""The command line: arguments in, one answer out; the same Desk and the same events as the window."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from studio.cli.arguments import parse
from studio.cli.console import Console, leave_reader, refuse_stream
from studio.core import start_clock
from studio.core.errors import StudioError
from studio.core.i18n import choose_language, load_catalogue
from studio.machine.open_files import raise_limit
from studio.machine.workspace import Workspace, child_environment, keep_reserve, open_workspace

SUPERVISED = ("studio", "demo", "train", "resume")
CARDLESS = ("runs", "data", "explain", "wsl", "import")
"""Commands that compute nothing on a card."""
WRITING = ("demo", "train", "resume")
"""Commands that are of no use where the workspace takes nothing more; in the window runs are deleted."""
LIBRARY_PATH = "LD_LIBRARY_PATH"
Command = Callable[[argparse.Namespace, Workspace, Console], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed with a diagnosis, 2 bad arguments or bad input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # PYTHONIOENCODING=ascii: a sign it lacks is spelt, never a crash
            stream.reconfigure(errors="backslashreplace")
    console = Console(
        load_catalogue(choose_language()), as_json="--json" in words, events="--events" in words
    )
    quiet_libraries()
    if arguments is None:
        raise_limit()
    try:
        return _answer(words, console, own_process=arguments is None)
    except BrokenPipeError:
        return leave_reader()
    except OSError as error:  # not even the refusal could be written to stdout
        console.as_json = False
        console.refuse(refuse_stream("stdout", error))
        return leave_reader()
    except KeyboardInterrupt:
        return 2


def _answer(words: list[str], console: Console, *, own_process: bool) -> int:
    try:
        return _run_command(words, console, own_process=own_process)
    except StudioError as error:
        return console.refuse(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that may not be read: the catalogue knows them
        return _refuse_system(error, console)


def _refuse_system(error: OSError, console: Console) -> int:
    from studio.machine.failures import refuse_system

    return console.refuse(refuse_system(error))


def quiet_libraries() -> None:
    """Keep libraries' notes to developers off the person's screen; errors still show."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", DeprecationWarning)


def _run_command(words: list[str], console: Console, *, own_process: bool) -> int:
    if "--child" in words:
        start_clock.mark(os.environ, "child")
    options = parse([word for word in words if word != "--child"], console.catalogue)
    if options.command == "studio" and options.window:
        from studio.supervisor.webview_window import require_webview

        require_webview()
    workspace = open_workspace(options.workspace, writes=options.command in WRITING)
    if options.command == "chat":
        from studio.cli.open_studio import find_open_studio

        language = console.catalogue.language
        options.studio = find_open_studio(workspace, language, options.run, options.checkpoint)
    if own_process and "--child" not in words:
        # Looking at the graphics cards takes up to 20 s where their driver hangs: not to list runs or to read data. The
        # supervisor looks when it starts its child.
        bare = options.command in (*CARDLESS, *SUPERVISED) or getattr(options, "studio", None) is not None
        prepare = child_environment if bare else _look_and_prepare
        _take_environment(prepare(workspace, os.environ), options.command in SUPERVISED)
    options.own_process = own_process
    if options.command in SUPERVISED and "--child" not in words:
        return _supervise(options, workspace)
    # Libraries print as they like; stdout belongs to the answer.
    with redirect_stdout(sys.stderr) if console.as_json else nullcontext():
        return COMMANDS[options.command](options, workspace, console)


def _look_and_prepare(workspace: Workspace, environment: Mapping[str, str]) -> dict[str, str]:
    from studio.machine.environment import prepare_environment

    return prepare_environment(workspace, environment)


def _take_environment(prepared: dict[str, str], supervised: bool) -> None:
    """Go on in `prepared`, before any heavy import: no telemetry, no network, repairs made.

    The loader reads its library path only when a process starts: where a repair changed that, this one starts anew
    (the supervisor needs no such library itself).
    """
    moved = prepared.get(LIBRARY_PATH) != os.environ.get(LIBRARY_PATH)
    os.environ.clear()
    os.environ.update(prepared)
    if moved and not supervised and os.name != "nt":
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-P", "-m", "studio.cli", *sys.argv[1:]], prepared)


def _supervise(options: argparse.Namespace, workspace: Workspace) -> int:
    from studio.services.recipes import read_recipe
    from studio.supervisor.restarts import supervise

    keep_reserve(workspace)
    words = options.words
    if options.command == "train":
        read_recipe(options.recipe)  # a bad recipe is refused before anything is started
        words = [str(Path(word).absolute()) if word == options.recipe else word for word in words]
    os.environ["FINETUNE_STUDIO_WORKSPACE"] = str(workspace.root)
    return supervise(words, workspace, headless=options.command != "studio")


def _later(module: str, name: str) -> Command:
    """Return the command `name` of `module`, loaded when it is asked for: each start needs one."""
    return lambda *given: getattr(importlib.import_module(module), name)(*given)


COMMANDS: dict[str, Command] = {
    "studio": _later("studio.cli.studio", "studio"),
    "demo": _later("studio.cli.demo", "demo"),
    "train": _later("studio.cli.train", "train"),
    "resume": _later("studio.cli.train", "train"),
    "import": _later("studio.cli.import_recipe", "import_recipe"),
    "check": _later("studio.cli.check", "check"),
    "plan": _later("studio.cli.plan", "plan"),
    "data": _later("studio.cli.data", "data"),
    "doctor": _later("studio.cli.doctor", "doctor"),
    "explain": _later("studio.cli.explain", "explain"),
    "runs": _later("studio.cli.runs", "runs"),
    "chat": _later("studio.cli.chat", "chat"),
    "eval": _later("studio.cli.eval", "evaluate"),
    "reward": _later("studio.cli.reward", "reward"),
    "serve": _later("studio.cli.serve", "serve"),
    "export": _later("studio.cli.export", "export"),
    "wsl": _later("studio.cli.wsl", "run_wsl"),
    "bench": _later("studio.cli.bench", "bench"),
}
