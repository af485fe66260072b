"""What the Chat screen tells: talks, what is loaded, and how far a test is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from studio.ui.cards import Say
from studio.ui.quantities import size_words, time_words
from studio.ui.tabs.chat.answer_text import show_answer
from studio.ui.templates import render


def talk_card(
    title: str,
    turns: Sequence[Mapping[str, Any]],
    say: Say,
    *,
    empty: str,
    growing: bool = False,
    examples: Sequence[str] = (),
) -> Markup:
    """Return a talk as bubbles, an answer with what it took; `growing`: the last answer is still being written.

    A talk that has not begun offers `examples`, which go into the box for questions.
    """
    bubbles = []
    for number, turn in enumerate(turns):
        on, words = growing and number == len(turns) - 1, str(turn["content"])
        mine = turn["role"] == "user"
        shown = "" if mine else show_answer(words, say("ui.chat.thought"))
        foot = _took(turn, say)
        bubbles.append({"mine": mine, "words": words, "growing": on, "shown": shown, "foot": foot})
    return render("tabs/chat/talk.html", say, title=title, turns=bubbles, examples=examples, empty=empty)


def _took(turn: Mapping[str, Any], say: Say) -> list[str]:
    """Return what an answer took."""
    said = []
    if turn.get("stopped"):
        said.append(say("ui.chat.stopped"))
    if turn.get("unfinished"):
        said.append(say("ui.chat.unfinished"))
    if turn.get("tokens"):
        said.append(say("ui.chat.tokens", count=int(turn["tokens"])))
    if turn.get("first_s"):
        said.append(say("ui.chat.first", seconds=f"{turn['first_s']:.2f}"))
    if turn.get("tokens_per_s"):
        said.append(say("ui.chat.speed", speed=f"{turn['tokens_per_s']:.1f}"))
    if turn.get("seed"):
        said.append(say("ui.chat.seed_used", seed=int(turn["seed"])))
    return said


def said_words(talk: Mapping[str, Any], sides: Sequence[str], say: Say) -> Markup:
    """Return what a screen reader is told once answers are finished."""
    last = [talk[side][-1] for side in sides if talk[side]]
    words = [f"{say(f'ui.chat.{side}')}: {turn['content']}" for side, turn in zip(sides, last, strict=False)]
    return render("tabs/chat/said.html", words=" ".join(words))


def state_card(
    *,
    run: str,
    loaded: Any,
    waits: str,
    left_s: float | None,
    name: str,
    place: str,
    say: Say,
    training: bool = False,
) -> Markup:
    """Return whether an answer can be had and what is in memory. `loaded`: a desk.chat.LoadedModel or None.

    `training`: what an answer waits for is a run.
    """
    words = ""
    if loaded is not None:
        words = say(
            "ui.chat.loaded",
            name=name,
            place=place,
            size=size_words(loaded.size_bytes),
            device=loaded.device,
        )
    left = say("ui.chat.left", time=time_words(left_s)) if left_s else ""
    changed = loaded is not None and loaded.base_changed
    return render(
        "tabs/chat/state.html",
        say,
        run=run,
        waits=waits,
        left=left,
        loaded=words,
        training=training,
        other_base=say("chat.base_changed", base=loaded.name) if changed else "",
    )


# A test --------------------------------------------------------------------------------------------------


def progress_card(phase: str, done: int, total: int, say: Say, *, stop: str) -> Markup:
    """Return how far a job is, with its Stop button (`data-do` is `stop`)."""
    share = min(1.0, done / total) if total else None
    count = f"{done} / {total}" if total else ""
    return render("tabs/chat/progress.html", say, phase=phase, share=share, count=count, stop=stop)
