"""`chat`: questions at the terminal, answered by a run's model, its base, or both, here or by an open studio."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from studio.cli.console import Console
from studio.cli.open_studio import OpenStudio
from studio.core.errors import StudioError
from studio.core.facts import Choice
from studio.core.i18n import Text, literal, text
from studio.machine.workspace import Workspace


def chat(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    sides = ("base", "tuned") if options.side == "both" else (options.side,)
    there = options.studio
    speaker = _Here(options, workspace, console) if there is None else _There(options, console, there)

    def user(words: str) -> dict[str, str]:
        # A terminal of another encoding sends bytes that are no characters; no tokenizer takes those.
        return {"role": "user", "content": words.encode("utf-8", "replace").decode("utf-8")}

    def ask(messages: list[dict[str, str]], side: str, show: bool) -> Any:
        return _show(speaker, messages, side, show, console)

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
                    "tokens_per_s": round(answer.tokens_per_s, 1), "ahead": speaker.ahead,
                }  # fmt: skip
        if console.as_json:
            told = {"answers": answers, "speed": speeds, "slow": speaker.slow}
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


class _Here:
    """Answers in this process, which loads the model at the first question."""

    def __init__(self, options: argparse.Namespace, workspace: Workspace, console: Console) -> None:
        self._options, self._workspace, self._console = options, workspace, console
        self._desk: Any = None
        self._place = ""

    @property
    def slow(self) -> Text | None:
        """Why the model's own code answered last."""
        loaded = self._desk.chat.loaded()
        return None if loaded is None else loaded.slow

    @property
    def ahead(self) -> Choice | None:
        """Whether guesses were read ahead in the last answer, and why; None where the model's own code answered."""
        loaded = self._desk.chat.loaded()
        return None if loaded is None else loaded.ahead

    @property
    def base_changed(self) -> str:
        """The name of a base that is another one than its adapter was trained on."""
        loaded = self._desk.chat.loaded()
        return loaded.name if loaded is not None and loaded.base_changed else ""

    def answer(self, messages: list[dict[str, str]], side: str) -> Iterator[Any]:
        """Yield the growing answer. Raises StudioError."""
        options = self._options
        self._open()
        return self._desk.chat.answer(
            messages,
            run=options.run,
            side=side,
            checkpoint=self._place,
            system=options.system,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
        )

    def _open(self) -> None:
        if self._desk is not None:
            return
        from studio.services.desk import Desk
        from studio.services.preload import load_ahead

        self._desk = Desk(self._workspace)
        self._desk.machine.hurry(lambda: True)  # kernels are proved by the first answer itself
        load_ahead(self._desk.machine, "studio.engine.chat")
        self._place = find_place(self._desk, self._options, self._console, "cli.chat.checkpoint")


class _There:
    """An open studio answers."""

    def __init__(self, options: argparse.Namespace, console: Console, studio: OpenStudio) -> None:
        self._options, self._studio = options, studio
        if studio.place and not options.checkpoint:
            _tell_place(console, options.run, studio.place)

    @property
    def slow(self) -> str | None:
        """Why the model's own code answered last."""
        return self._studio.slow

    @property
    def ahead(self) -> Choice | None:
        """Whether guesses were read ahead in the last answer, and why; None where the model's own code answered."""
        said = self._studio.ahead
        return None if said is None else Choice(value=bool(said["value"]), reason=literal(said["reason"]))

    @property
    def base_changed(self) -> str:
        """The name of a base that is another one than its adapter was trained on."""
        return self._studio.base_changed

    def answer(self, messages: list[dict[str, str]], side: str) -> Iterator[Any]:
        """Yield the growing answer. Raises StudioError."""
        options = self._options
        words = options.system.strip().encode("utf-8", "replace").decode("utf-8")
        asked = [{"role": "system", "content": words}, *messages] if words else messages
        limits = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
        return self._studio.answer(asked, side, **limits)


def _show(
    speaker: _Here | _There, messages: list[dict[str, str]], side: str, show: bool, console: Console
) -> Any:
    """Print an answer as it grows, and what is to be said of it; returns the whole one."""
    words, answer, told = "", None, bool(messages[1:])
    for answer in speaker.answer(messages, side):
        if not told and speaker.base_changed:
            console.note(text("chat.base_changed", base=speaker.base_changed))
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
        if speaker.ahead is not None:
            console.note(speaker.ahead.reason)
    if speaker.slow is not None:
        slow = speaker.slow if isinstance(speaker.slow, Text) else literal(speaker.slow)
        console.note(text("cli.chat.slow", reason=slow))
    return answer


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


def _tell_place(console: Console, run: str, place: str) -> None:
    console.say(text("cli.chat.checkpoint", run=run, step=int(place.removeprefix("step-"))))
