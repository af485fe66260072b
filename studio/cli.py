"""The command line: arguments in, one answer out; the same Desk and the same events as the window."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from studio.arguments import parse
from studio.console import Console
from studio.core.codec import from_json
from studio.core.errors import RecipeError, StudioError
from studio.core.migrate import lift
from studio.core.recipe import Recipe
from studio.core.record import RunRecord
from studio.core.text import choose_language, load_catalogue, text
from studio.host.workspace import Workspace, open_workspace

SUPERVISED = ("studio", "demo", "train", "resume")
EVENT_WAIT_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed with a diagnosis, 2 bad arguments or bad input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(
        load_catalogue(choose_language()), as_json="--json" in words, events="--events" in words
    )
    quiet_libraries()
    try:
        return _run_command(words, console)
    except StudioError as error:
        return console.refuse(error)
    except BrokenPipeError:
        return 1  # whoever read our output is gone; there is nobody to tell
    except OSError as error:  # a full disk, a folder that may not be read: the catalogue knows them
        return console.refuse(_explain(error))
    except KeyboardInterrupt:
        return 2


def quiet_libraries() -> None:
    """Keep libraries' notes to developers off the person's screen; errors still show."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", DeprecationWarning)


def _explain(error: OSError) -> StudioError:
    from studio.host.failures import diagnose

    found = diagnose(error)
    return StudioError(found.what, found.why, found.fixes[0].title, exit_code=1)


def _run_command(words: list[str], console: Console) -> int:
    options = parse([word for word in words if word != "--child"], console.catalogue)
    if options.command in ("explain", "bench"):
        raise not_available(options.command)
    if options.command == "studio" and (options.share or options.lan):
        raise not_available("--share" if options.share else "--lan")
    workspace = open_workspace(options.workspace)
    if options.command in SUPERVISED and "--child" not in words:
        return _supervise(options, workspace)
    # Libraries print as they like; stdout belongs to the answer.
    with redirect_stdout(sys.stderr) if console.as_json else nullcontext():
        return COMMANDS[options.command](options, workspace, console)


def not_available(name: str) -> StudioError:
    """Return the refusal of something that later work brings."""
    return StudioError(text("cli.later", name=name), text("cli.later.why"), text("cli.later.fix"))


def _supervise(options: argparse.Namespace, workspace: Workspace) -> int:
    from studio.supervise import supervise

    words = options.words
    if options.command == "train":
        read_recipe(options.recipe)  # a bad recipe is refused before anything is started
        words = [str(Path(word).absolute()) if word == options.recipe else word for word in words]
    os.environ["FINETUNE_STUDIO_WORKSPACE"] = str(workspace.root)
    return supervise(words, workspace, headless=options.command != "studio")


def read_recipe(path: str) -> Recipe:
    """Return the recipe in a file; relative local sources in it count from the recipe's own folder.

    Raises StudioError with every problem of its keys and types at once.
    """
    import dataclasses

    from studio.engine.folder import read_json

    file = Path(path)
    data = read_json(file)
    if not isinstance(data, dict):
        raise StudioError(
            text("file.not_json", path=file.name),
            text("recipe.not_object"),
            text("file.not_json.fix", path=file.name),
        )
    recipe = from_json(Recipe, lift("recipe", data))
    base = file.absolute().parent

    def place(source: str) -> str:
        return str(base / source) if source and (base / source).exists() else source

    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(
            recipe.model, source=place(recipe.model.source), adapter=place(recipe.model.adapter)
        ),
        data=dataclasses.replace(
            recipe.data, source=place(recipe.data.source), validation=place(recipe.data.validation)
        ),
    )


def _follow(desk: Any, run: str, console: Console, after: int = 0) -> RunRecord:
    """Show a run's events until it ends and return its record."""
    cursor, told = after, False
    while True:
        active = desk.active_run() == run
        if active and desk.stopping and not told:
            console.say(text("cli.stopping"))
            told = True
        for event in desk.events(run, cursor, EVENT_WAIT_S if active else 0.0):
            console.show(event)
            cursor = event.seq
        if not active:
            return desk.run(run)


def _open_desk(workspace: Workspace) -> Any:
    """Return the Desk, stopped with a checkpoint when the supervisor asks for the end."""
    from studio.desk.desk import Desk
    from studio.lifeline import watch_parent

    desk = Desk(workspace)
    if os.environ.get("FINETUNE_STUDIO_PARENT"):
        watch_parent(desk.stop_all)
    return desk


def _train(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    console.note(text("cli.starting"))
    desk = _open_desk(workspace)
    if options.command == "train":
        run, after = desk.start(read_recipe(options.recipe)), 0
    else:
        run = options.run
        after = max((event.seq for event in desk.events(run)), default=0)
        desk.resume(run)
    console.note(text("cli.run.named", run=run))
    record = _follow(desk, run, console, after)
    return _answer_run(record, workspace, console)


def _answer_run(
    record: RunRecord, workspace: Workspace, console: Console, extra: dict[str, Any] | None = None
) -> int:
    artifact = workspace.runs / record.run / record.artifact if record.artifact else None
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
    from studio.desk.demo import run_demo

    desk = _open_desk(workspace)
    record, extra, lines = run_demo(
        desk, options.resume, lambda run, after: _follow(desk, run, console, after), console.progress
    )
    for line in lines:
        if not console.as_json:
            print(console.catalogue.say(line), flush=True)
    return _answer_run(record, workspace, console, extra)


def _check(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.desk.desk import Desk

    try:
        problems = Desk(workspace).check(read_recipe(options.recipe))
    except RecipeError as error:
        problems = error.problems
    ok = not any(problem.severity == "error" for problem in problems)
    said = [console.problem(problem) for problem in problems]
    lines = [f"{entry['field']}: {entry['message']} {entry['fix']}" for entry in said]
    console.answer({"ok": ok, "problems": said}, lines or [console.catalogue.say(text("cli.check.ok"))])
    return 0 if ok else 2


def _plan(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.desk.desk import Desk
    from studio.host.memory import predict

    desk = Desk(workspace)
    recipe = read_recipe(options.recipe)
    plan = desk.plan(recipe)
    peak = predict(plan, desk.model(recipe.model.source), recipe)
    policy = {"checkpointing": plan.checkpointing.value, "reason": plan.checkpointing.reason}
    say = console.catalogue.say
    lines = [
        f"{name:14} {choice.value}: {say(choice.reason)}"
        for name, choice in (
            ("device", plan.device),
            ("precision", plan.dtype),
            ("attention", plan.attention),
            ("quantization", plan.quantization),
            ("optimizer", plan.optimizer),
            ("recompute", plan.checkpointing),
            *plan.kernels.items(),
        )
    ]
    lines += [f"{part:14} {size / 1e6:12,.1f} MB" for part, size in peak.items()]
    console.answer({"plan": plan, "peak_bytes": peak, "policy": policy}, lines)
    return 0


def _data(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.data.describe import describe
    from studio.models.catalog import inspect_model

    mapping = {}
    for pair in options.map:
        role, equals, column = pair.partition("=")
        if not (role and equals and column):
            raise StudioError(text("cli.map", pair=pair), text("cli.map.why"), text("cli.map.fix"))
        mapping[role] = column
    tokenizer = None
    if options.model:
        from studio.models.load import load_tokenizer

        tokenizer = load_tokenizer(inspect_model(options.model))
    found = describe(
        options.source,
        tokenizer=tokenizer,
        max_length=options.max_length,
        rows=options.rows,
        format=options.format,
        mapping=mapping,
    )
    said = console.plain(found)
    console.answer(said, _describe_data(said, console))
    return 0 if said.get("rows_used") else 1


def _describe_data(said: dict[str, Any], console: Console) -> Iterator[str]:
    """Yield what a person reads of a data set."""
    say = console.catalogue.say
    known = {"source": Path(said["source"]).name, "container": said["container"], "format": said["format"]}
    yield say(text("cli.data.kind" if said["format"] else "cli.data.unclear", **known))
    yield from filter(None, [said["reason"]])
    yield say(text("cli.data.rows", read=said["rows_read"], used=said["rows_used"]))
    yield from (say(text(f"data.rule.{rule}", rows=rows)) for rule, rows in said["rows_filtered"].items())
    yield from (f"  - {problem['message']}" for problem in said["problems"])
    yield from (question["question"] for question in said["needs_answer"])
    for number, entry in enumerate(said["preview"], start=1):
        yield "\n" + say(text("cli.data.example", number=number))
        turns = [f"{message['role']}: {message['content']}" for message in entry["messages"]]
        yield entry["text"] or "\n".join(turns)


def _runs(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.desk.desk import Desk

    records = Desk(workspace).runs()
    entries = [
        {
            "run": record.run,
            "name": record.name,
            "state": record.state,
            "steps": record.steps,
            "total_steps": record.total_steps,
            "loss": record.loss,
            "base": record.base,
            "created_s": record.created_s,
        }
        for record in records
    ]
    lines = [
        f"{e['run']:32} {e['state']:9} {e['steps']:>6}/{e['total_steps']:<6} "
        f"{'-' if e['loss'] is None else format(e['loss'], '.4f'):>8}  {e['base']}"
        for e in entries
    ]
    console.answer({"runs": entries}, lines or [console.catalogue.say(text("cli.runs.none"))])
    return 0


def _chat(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.desk.desk import Desk

    desk = Desk(workspace)
    sides = ("base", "tuned") if options.side == "both" else (options.side,)

    def ask(messages: list[dict[str, str]], side: str, show: bool) -> str:
        answer = ""
        for longer in desk.chat(
            options.run,
            messages,
            side=side,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
        ):
            if show and longer.startswith(answer):
                print(longer[len(answer) :], end="", flush=True)
            answer = longer
        if show:
            print(flush=True)
        return answer

    if options.prompt is not None:
        messages = [{"role": "user", "content": options.prompt}]
        answers = {}
        for side in sides:
            if not console.as_json and len(sides) > 1:
                print(f"{side}: ", end="")
            answers[side] = ask(messages, side, not console.as_json)
        if console.as_json:
            console.answer({"run": options.run, "prompt": options.prompt, "answers": answers})
        return 0
    histories: dict[str, list[dict[str, str]]] = {side: [] for side in sides}
    console.say(text("cli.chat.hint"))
    for line in iter(lambda: _ask_line("> "), ""):
        for side in sides:
            histories[side].append({"role": "user", "content": line})
            if len(sides) > 1:
                print(f"{side}: ", end="")
            histories[side].append({"role": "assistant", "content": ask(histories[side], side, True)})
    return 0


def _ask_line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        return ""


def _export(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.desk.desk import Desk

    if options.to == "gguf":
        raise not_available("gguf")
    result = Desk(workspace).export(
        options.run, options.to, Path(options.folder).absolute() if options.folder else None
    )
    said = console.catalogue.say(
        text("cli.exported", path=str(result.path), mb=f"{result.size_bytes / 1e6:.1f}")
    )
    console.answer({"path": str(result.path), "bytes": result.size_bytes}, [said])
    return 0


def _doctor(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.host.detect import detect
    from studio.host.verdict import judge

    if options.facts:
        from studio.core.facts import MachineFacts
        from studio.engine.folder import read_json

        machine = from_json(MachineFacts, read_json(Path(options.facts)))
    else:
        machine = detect()
    report = judge(machine)
    said = console.plain(report)
    lines = [f"{said['verdict']}: {said['backend']}", *said["reasons"]]
    lines += [f"  - {problem['title']} {problem['fix']}" for problem in said["problems"]]
    console.answer(said, lines)
    return 1 if report["verdict"] == "blocked" else 0


def _studio(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.lifeline import watch_parent
    from studio.ui.serve import serve

    stopped = threading.Event()
    if os.environ.get("FINETUNE_STUDIO_PARENT"):
        watch_parent(stopped.set)

    def open_desk() -> Any:
        from studio.desk.desk import Desk

        desk = Desk(workspace)
        failed, resumed = os.environ.get("FINETUNE_STUDIO_FAILED"), os.environ.get("FINETUNE_STUDIO_RESUME")
        if failed:
            desk.note_death(failed)
        if resumed:
            desk.resume(resumed)
        return desk

    return serve(
        open_desk,
        workspace,
        port=options.port,
        open_browser=False,  # the supervisor opens it: it outlives a restart of this process
        language=console.catalogue.language,
        stopped=stopped,
    )


COMMANDS: dict[str, Callable[[argparse.Namespace, Workspace, Console], int]] = {
    "studio": _studio,
    "demo": _demo,
    "train": _train,
    "resume": _train,
    "check": _check,
    "plan": _plan,
    "data": _data,
    "doctor": _doctor,
    "runs": _runs,
    "chat": _chat,
    "export": _export,
}

if __name__ == "__main__":
    sys.exit(main())
