"""Where a run stands: its state and phases, why they take time, what is done again, and the figures."""

from __future__ import annotations

import time
from collections.abc import Callable

from markupsafe import Markup

from studio.core.run_record import RunRecord
from studio.ui.quantities import time_words
from studio.ui.run_state import LiveView, say_lost
from studio.ui.templates import render

Say = Callable[..., str]
PHASES = (
    "download",
    "open",
    "prepare",
    "load",
    "reference",
    "compile",
    "trial",
    "sample",
    "train",
    "save",
    "verify",
)
"""In the order of a run; those that a run leaves out are not shown."""
ENDED = ("stopped", "failed", "finished")
ALWAYS = ("prepare", "load", "train", "save", "verify")
SLOW_S = 6.0
"""A phase that takes longer is explained."""


def status_card(
    view: LiveView, state: str, say: Say, record: RunRecord | None = None, now_s: float | None = None
) -> Markup:
    """Return where a run stands: state, phases, why it takes time, bar, and figures."""
    now_s = now_s or time.time()
    share = view.step / view.total_steps if view.total_steps else 0.0
    running = state in ("running", "paused")
    phase = say(f"ui.phase.{view.phase}") if state == "running" and view.phase else ""
    # A run that has ended keeps the engine for a moment, and shows as running: its clock stands still already.
    end_s = now_s if running and view.state not in ENDED else view.updated_s
    speed = f"{view.tokens_per_s:,.0f} {say('ui.status.tokens_per_s')}"
    figures = [
        (say("ui.status.step"), f"{view.step} / {view.total_steps or '–'}"),
        (say("ui.status.loss"), f"{view.loss:.4f}" if view.loss is not None else "–"),
        (say("ui.status.speed"), speed if view.tokens_per_s else "–"),
        (
            say("ui.status.elapsed"),
            time_words(worked_s(view, state, record, end_s)) if view.started_s or record else "–",
        ),
    ]
    if view.left_s is not None and running:
        figures.append((say("ui.status.left"), time_words(view.left_s)))
    if view.eval_loss is not None:
        figures.insert(2, (say("ui.status.eval_loss"), f"{view.eval_loss:.4f}"))
    if view.eval_reward is not None:
        figures.insert(2, (say("ui.status.eval_reward"), f"{view.eval_reward:.4f}"))
    if view.scores:
        score = view.scores[0]
        before = "" if score.base is None else f"{100 * score.base:.0f} → "
        figures.insert(3, (say(f"metric.{score.metric}"), f"{before}{100 * score.value:.0f} %"))
    return render(
        "tabs/training/status.html",
        say,
        view=view,
        state=state,
        run=record.run if record else "",
        name=record.name or record.run if record else "",
        words=state_words(view, state, say),
        phase=phase,
        share=share,
        track=_track(view, state),
        lost=say_lost(view.lost) if running and view.step < view.lost[1] else None,
        reason=_reason(view, state, now_s, say),
        figures=figures,
        ops=", ".join(op for op, _ in view.twins),
        first=min((step for _, step in view.twins), default=0),
    )


def worked_s(view: LiveView, state: str, record: RunRecord | None, end_s: float) -> float:
    """Return how long a run has worked until `end_s`, Unix time; once it has ended what the list of runs says, too.

    It begins when it is created: loading the libraries, before its first event, took 7 of a demo's 23 s.
    """
    if record is not None and state in ENDED and record.worked_s:
        return record.worked_s
    begun = [record.created_s] if record is not None else []
    begun += [view.started_s] if view.started_s else []
    return max(0.0, end_s - min(begun, default=end_s) - view.away_s)


def state_words(view: LiveView, state: str, say: Say) -> str:
    """Return how a run stands; of one that was stopped also whether something of it is saved."""
    if state == "stopped":
        return say("ui.state.stopped_saved" if view.saved_step else "ui.state.stopped_unsaved")
    return say(f"ui.state.{state}")


def _track(view: LiveView, state: str) -> list[tuple[str, str]]:
    """Return the phases of a run: those behind it, the one it is in, those before it."""
    if state not in ("running", "paused", "waiting"):
        return []
    known = [name for name in PHASES if name in ALWAYS or name in view.passed]
    now = view.phase if view.phase in known else "train" if view.phase == "evaluate" else ""
    place = known.index(now) if now else -1
    kinds = ("passed" if i < place else "here" if i == place else "ahead" for i in range(len(known)))
    return list(zip(known, kinds, strict=True))


def _reason(view: LiveView, state: str, now_s: float, say: Say) -> str:
    """Why the present phase takes time, once it does; what a download says of itself always."""
    if state == "paused":
        return say("ui.slow.paused")
    if state != "running":
        return ""
    if not view.phase:
        return say("ui.slow.start")
    waiting = view.phase == "train" and view.stepped_s < view.phase_s
    if view.phase == "train" and not waiting:
        return ""
    detail = say(view.phase_detail) if view.phase_detail else ""
    slow = now_s - view.phase_s > SLOW_S
    id = "ui.slow.train.cpu" if view.phase == "train" and view.on_card is False else f"ui.slow.{view.phase}"
    why = say(id) if slow and view.phase in PHASES else ""
    took = f" ({time_words(now_s - view.phase_s)})" if slow else ""
    return " ".join(filter(None, (detail, why))) + took if detail or why else ""
