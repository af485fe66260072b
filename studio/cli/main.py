"""The command line: arguments in, one answer out; the same Desk and the same events as the window."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.cli.arguments import parse
from studio.cli.console import Console, leave_reader, refuse_stream
from studio.core import start_clock
from studio.core.errors import StudioError
from studio.core.heartbeat import RESTART_CODE
from studio.core.i18n import choose_language, load_catalogue, text
from studio.machine.open_files import raise_limit
from studio.machine.workspace import Workspace, child_environment, keep_reserve, open_workspace

if TYPE_CHECKING:
    from studio.core.run_record import RunRecord

SUPERVISED = ("studio", "demo", "train", "resume")
CARDLESS = ("runs", "data", "explain", "wsl")
"""Commands that compute nothing on a card."""
WRITING = ("demo", "train", "resume")
"""Commands that are of no use where the workspace takes nothing more; in the window runs are deleted."""
EVENT_WAIT_S = 0.5
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
    if own_process and "--child" not in words:
        # Looking at the graphics cards takes up to 20 s where their driver hangs: not to list runs or to read data. The
        # supervisor looks when it starts its child.
        bare = (*CARDLESS, *SUPERVISED)
        prepare = child_environment if options.command in bare else _look_and_prepare
        _take_environment(prepare(workspace, os.environ), options.command in SUPERVISED)
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


def not_available(name: str) -> StudioError:
    """Return the refusal of something that later work brings."""
    return StudioError(text("cli.later", name=name), text("cli.later.why"), text("cli.later.fix"))


def _supervise(options: argparse.Namespace, workspace: Workspace) -> int:
    from studio.services.recipes import read_recipe
    from studio.supervisor.supervise import supervise

    keep_reserve(workspace)
    words = options.words
    if options.command == "train":
        read_recipe(options.recipe)  # a bad recipe is refused before anything is started
        words = [str(Path(word).absolute()) if word == options.recipe else word for word in words]
    os.environ["FINETUNE_STUDIO_WORKSPACE"] = str(workspace.root)
    return supervise(words, workspace, headless=options.command != "studio")


def _follow(desk: Any, run: str, console: Console, after: int = 0) -> RunRecord:
    """Show a run's events until it ends and return its record."""
    cursor, told = after, False
    while True:
        active = desk.runs.active == run
        if active and desk.runs.stopping and not told:
            console.say(text("cli.stopping"))
            told = True
        for event in desk.runs.events(run, cursor, EVENT_WAIT_S if active else 0.0):
            console.show(event)
            cursor = event.seq
        if not active:
            return desk.runs.read(run)


def _open_desk(workspace: Workspace) -> Any:
    """Return the Desk, stopped with a checkpoint when the supervisor asks for the end."""
    from studio.services.desk import Desk
    from studio.supervisor.lifeline import watch_parent

    desk = Desk(workspace, keep_queue=False)
    if os.environ.get("FINETUNE_STUDIO_PARENT"):
        watch_parent(desk.runs.stop_all)
    return desk


def _train(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.preload import load_ahead, prepare_ahead, read_files_ahead
    from studio.services.recipes import read_recipe

    console.note(text("cli.starting"))
    desk = _open_desk(workspace)
    ready = threading.Event()
    # A run that died is resumed with the whole test: it tells which kernel ends a process.
    if options.command == "train":
        desk.machine.hurry(ready.is_set)
    libraries = load_ahead(desk.machine, "studio.engine.run")
    if options.command == "train":
        recipe = read_recipe(options.recipe)
        start_clock.mark(os.environ, "check")
        read_files_ahead(workspace, recipe)
        prepare_ahead(libraries, desk.machine, recipe, ready.set)
        run, after = desk.queue.start(recipe), 0
    else:
        run = options.run
        after = max((event.seq for event in desk.runs.events(run)), default=0)
        desk.queue.resume(run)
    console.note(text("cli.run.named", run=run))
    record = _follow(desk, run, console, after)
    return _answer_run(record, workspace, console)


def _answer_run(
    record: RunRecord, workspace: Workspace, console: Console, extra: dict[str, Any] | None = None
) -> int:
    # A run that ended while its result was being checked has one on disk that nobody should rely on.
    finished = record.state == "finished"
    artifact = workspace.runs / record.run / record.artifact if finished else None
    data = {
        "run": record.run,
        "state": record.state,
        "steps": record.steps,
        "loss": record.loss,
        "artifact": str(artifact) if artifact else None,
        "diagnosis": console.diagnosis(record.diagnosis),
    }
    lines = [console.catalogue.say(text(f"cli.run.{record.state}", run=record.run, path=str(artifact or "")))]
    if record.diagnosis:
        said = data["diagnosis"]
        lines += [said["what"], said["why"], *(f"  - {fix}" for fix in said["fixes"])]
    console.answer(data | (extra or {}), lines)
    return 1 if record.state == "failed" else 0


def _demo(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.demo import run_demo

    desk = _open_desk(workspace)
    record, extra, lines = run_demo(
        desk, options.resume, lambda run, after: _follow(desk, run, console, after), console.progress
    )
    for line in lines:
        if not console.as_json:
            print(console.catalogue.say(line), flush=True)
    return _answer_run(record, workspace, console, extra)


def _chat(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.desk import Desk
    from studio.services.preload import load_ahead

    desk = Desk(workspace)
    desk.machine.hurry(lambda: True)  # answers are computed by the model's own code
    load_ahead(desk.machine, "studio.engine.chat")
    sides = ("base", "tuned") if options.side == "both" else (options.side,)
    checkpoint = _find_place(desk, options, console, "cli.chat.checkpoint")

    def user(words: str) -> dict[str, str]:
        # A terminal of another encoding sends bytes that are no characters; no tokenizer takes those.
        return {"role": "user", "content": words.encode("utf-8", "replace").decode("utf-8")}

    def ask(messages: list[dict[str, str]], side: str, show: bool) -> str:
        words, answer = "", None
        for answer in desk.chat.answer(
            messages,
            run=options.run,
            side=side,
            checkpoint=checkpoint,
            system=options.system,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
        ):
            if show and answer.words.startswith(words):
                print(answer.words[len(words) :], end="", flush=True)
            words = answer.words
        if show:
            print(flush=True)
        if answer is not None and answer.unfinished:
            console.note(text("cli.chat.unfinished", count=answer.tokens))
        return words

    if options.prompt is not None:
        messages = [user(options.prompt)]
        answers = {}
        for side in sides:
            if not console.as_json and len(sides) > 1:
                print(f"{side}: ", end="")
            answers[side] = ask(messages, side, not console.as_json)
        if console.as_json:
            console.answer({"run": options.run, "prompt": options.prompt, "answers": answers})
        return 0
    if console.as_json:
        raise StudioError(text("cli.chat.json"), text("cli.chat.json.why"), text("cli.chat.json.fix"))
    histories: dict[str, list[dict[str, str]]] = {side: [] for side in sides}
    console.say(text("cli.chat.hint"))
    for line in iter(lambda: _ask_line("> "), ""):
        for side in sides:
            histories[side].append(user(line))
            if len(sides) > 1:
                print(f"{side}: ", end="")
            histories[side].append({"role": "assistant", "content": ask(histories[side], side, True)})
    return 0


def _ask_line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        return ""


def _find_place(desk: Any, options: argparse.Namespace, console: Console, told: str) -> str:
    """Return the state of the run that is meant: its result, or a checkpoint; `told` says which where none is named."""
    if options.checkpoint:
        return f"step-{options.checkpoint:08d}"
    place = desk.chat.find_place(options.run)
    if place:  # a stopped run
        console.say(text(told, run=options.run, step=int(place.removeprefix("step-"))))
    return place


def _export(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.desk import Desk
    from studio.supervisor.supervise import stop_requests

    if options.to == "gguf":
        raise not_available("gguf")
    folder = Path(options.folder).absolute() if options.folder else None
    with stop_requests() as asked:
        seen = 0

        def should_stop() -> bool:
            nonlocal seen
            if len(asked) > 1:
                raise KeyboardInterrupt  # at once: what is half-written stays
            if len(asked) > seen:
                console.say(text("ui.export.stopping"))
            seen = len(asked)
            return seen > 0

        desk = Desk(workspace)
        place = _find_place(desk, options, console, "cli.export.checkpoint")
        result = desk.exports.write(options.run, options.to, folder, should_stop, place)
    said = console.catalogue.say(
        text("cli.exported", path=str(result.path), mb=f"{result.size_bytes / 1e6:.1f}")
    )
    console.answer({"path": str(result.path), "bytes": result.size_bytes}, [said])
    return 0


def _studio(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.supervisor.lifeline import watch_parent
    from studio.ui.serve import serve

    stopped = threading.Event()
    desks: list[Any] = []
    if os.environ.get("FINETUNE_STUDIO_PARENT"):
        watch_parent(stopped.set)

    def open_desk() -> Any:
        from studio.services.desk import Desk

        desk = Desk(workspace, on_end=stopped.set)
        desks.append(desk)
        try:
            desk.reopen(
                resumed=os.environ.get("FINETUNE_STUDIO_RESUME", ""),
                failed=os.environ.get("FINETUNE_STUDIO_FAILED", ""),
            )
        except StudioError as error:  # a run that cannot go on: the window opens all the same
            console.refuse(error)
        return desk

    code = serve(
        open_desk,
        workspace,
        port=options.port,
        open_browser=False,  # the supervisor opens it: it outlives a restart of this process
        language=console.catalogue.language,
        stopped=stopped,
        shared=_read_shared(options),
    )
    return RESTART_CODE if any(desk.restarting for desk in desks) else code


def _read_shared(options: argparse.Namespace) -> dict[str, str]:
    """Return who is let in from outside from the start, role -> way. The owner alone where only that is asked for."""
    way = "lan" if options.lan else "tunnel"
    roles = {"viewer": options.share or options.lan, "owner": options.share_owner}
    return {role: way for role, wanted in roles.items() if wanted}


def _later(module: str, name: str) -> Command:
    """Return the command `name` of `module`, loaded when it is asked for: the window's two starts need none of them."""
    return lambda *given: getattr(importlib.import_module(module), name)(*given)


COMMANDS: dict[str, Command] = {
    "studio": _studio,
    "demo": _demo,
    "train": _train,
    "resume": _train,
    "check": _later("studio.cli.reports", "check"),
    "plan": _later("studio.cli.reports", "plan"),
    "data": _later("studio.cli.reports", "data"),
    "doctor": _later("studio.cli.doctor", "doctor"),
    "explain": _later("studio.cli.explain", "explain"),
    "runs": _later("studio.cli.reports", "runs"),
    "chat": _chat,
    "export": _export,
    "wsl": _later("studio.cli.wsl", "run_wsl"),
    "bench": _later("studio.cli.bench", "bench"),
}
