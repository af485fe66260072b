"""What the queue tells: what runs, what waits in which order, what ended badly, and how it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studio.core.i18n import Text
from studio.ui.tabs.runs.table import Say, source_name
from studio.ui.templates import render

FAILED_SHOWN = 3
"""Items that failed are shown until they are taken out, the last ones: some never became a run of the table."""


def queue_card(
    items: Sequence[Any],
    say: Say,
    *,
    reason: Text | None,
    keep_going: bool,
    notice: Text | None = None,
    paused: str = "",
) -> str:
    """Return the queue's items in their order with its two switches.

    `reason`: why it is on hold, None when it is not; `notice`: what is wrong with the queue's own file; `paused`: the
    id of the run that holds.
    """
    running = [_describe(item, say, paused=item.run == paused) for item in items if item.state == "running"]
    waiting = [item for item in items if item.state == "waiting"]
    failed = [_describe(item, say) for item in items if item.state == "failed"][:FAILED_SHOWN]
    placed = [_describe(item, say, place=place) for place, item in enumerate(waiting, start=1)]
    return render(
        "tabs/runs/queue.html",
        say,
        items=[*running, *placed, *failed],
        waiting=len(waiting),
        held=reason is not None,
        reason=reason,
        notice=notice,
        keep_going=keep_going,
    )


def _describe(item: Any, say: Say, *, place: int = 0, paused: bool = False) -> dict[str, Any]:
    """`place`: 1 for the first of those that wait."""
    return {
        "id": item.id,
        "run": item.run,
        "state": item.state,
        "place": place,
        "name": item.name or item.run or say("ui.queue.none"),
        "model": source_name(item.recipe.model.source, say),
        "data": source_name(item.recipe.data.source, say),
        "problem": item.problem,
        "chip": "paused" if paused else "finished" if item.state == "done" else item.state,
        "chip_words": "ui.state.paused" if paused else f"ui.queue.{item.state}",
    }
