"""`chat`: questions at the terminal, answered by a run's model, its base, or both."""

from __future__ import annotations

import argparse
from typing import Any

from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.machine.workspace import Workspace


def chat(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    from studio.services.desk import Desk
    from studio.services.preload import load_ahead

    desk = Desk(workspace)
    desk.machine.hurry(lambda: True)  # kernels are proved by the first answer itself
    load_ahead(desk.machine, "studio.engine.chat")
    sides = ("base", "tuned") if options.side == "both" else (options.side,)
    checkpoint = find_place(desk, options, console, "cli.chat.checkpoint")

    def user(words: str) -> dict[str, str]:
        # A terminal of another encoding sends bytes that are no characters; no tokenizer takes those.
        return {"role": "user", "content": words.encode("utf-8", "replace").decode("utf-8")}

    def ask(messages: list[dict[str, str]], side: str, show: bool) -> Any:
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
        if answer is not None and answer.tokens_per_s:
            speed, first = f"{answer.tokens_per_s:.1f}", f"{answer.first_s:.2f}"
            console.note(text("cli.chat.speed", tokens=answer.tokens, first=first, speed=speed))
        slow = explain_slow()
        if slow is not None:
            console.note(text("cli.chat.slow", reason=slow))
        return answer

    def explain_slow() -> Text | None:
        loaded = desk.chat.loaded()
        return None if loaded is None else loaded.slow

    if options.prompt is not None:
        messages = [user(options.prompt)]
        answers, speeds = {}, {}
        for side in sides:
            if not console.as_json and len(sides) > 1:
                print(f"{side}: ", end="")
            answer = ask(messages, side, not console.as_json)
            answers[side] = "" if answer is None else answer.words
            if answer is not None:
                speeds[side] = {
                    "tokens": answer.tokens, "first_s": round(answer.first_s, 3),
                    "tokens_per_s": round(answer.tokens_per_s, 1),
                }  # fmt: skip
        if console.as_json:
            told = {"answers": answers, "speed": speeds, "slow": explain_slow()}
            console.answer({"run": options.run, "prompt": options.prompt, **told})
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
            answer = ask(histories[side], side, True)
            histories[side].append({"role": "assistant", "content": "" if answer is None else answer.words})
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
