"""`chat`: questions at the terminal, answered by a run's model, its base, or both."""

from __future__ import annotations

import argparse
from typing import Any

from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.machine.workspace import Workspace


def chat(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.desk import Desk
    from studio.services.preload import load_ahead

    desk = Desk(workspace)
    desk.machine.hurry(lambda: True)  # answers are computed by the model's own code
    load_ahead(desk.machine, "studio.engine.chat")
    sides = ("base", "tuned") if options.side == "both" else (options.side,)
    checkpoint = find_place(desk, options, console, "cli.chat.checkpoint")

    def user(words: str) -> dict[str, str]:
        # A terminal of another encoding sends bytes that are no characters; no tokenizer takes those.
        return {"role": "user", "content": words.encode("utf-8", "replace").decode("utf-8")}

    def ask(messages: list[dict[str, str]], side: str, show: bool) -> str:
        words, answer, told = "", None, bool(messages[1:])
        for answer in desk.chat.answer(
            messages,
            run=options.run,
            side=side,
            checkpoint=checkpoint,
            system=options.system,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
        ):
            loaded = desk.chat.loaded()
            if not told and loaded is not None and loaded.base_changed:
                console.note(text("chat.base_changed", base=loaded.name))
            told = True
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


def find_place(desk: Any, options: argparse.Namespace, console: Console, told: str) -> str:
    """Return the state of the run that is meant: its result, or a checkpoint; `told` says which where none is named."""
    if options.checkpoint:
        return f"step-{options.checkpoint:08d}"
    place = desk.chat.find_place(options.run)
    if place:  # a stopped run
        console.say(text(told, run=options.run, step=int(place.removeprefix("step-"))))
    return place
