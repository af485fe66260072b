"""Says in plain words how a run is doing and what to do about it: pure, from its curves alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from studio.core.i18n import Text, text
from studio.ui.run_state import LiveView

RECENT_STEPS = 20
"""A mean over so many steps is a level: single steps differ by what happens to be in them."""
JUDGED_STEPS = 60
"""Before that, nothing is said of the loss's course: it may still be warming up."""
FLAT_SHARE = 0.01
SLOW_SHARE = 0.05
RISE_SHARE = 0.15
OVERFIT_SHARE = 0.02
"""How far the validation loss lies above its best for it to count as rising."""
GROWTH_SHARE = 0.04
"""Growth of the card's memory from quarter to quarter of the run that is no coincidence; in all at least 15 %."""
STILL_TIMES = 8.0
STILL_S = 20.0
LOW_RATE = {"lora": 2e-5, "full": 1e-6}
"""Below that, training hardly changes a model."""
FALL_SHARE = 0.2
"""By so much the log-probability of better answers may fall while the margin grows, before answers may break."""
DRAWN_METRIC = "completions/mean_length"
"""What alone runs have that draw their answers."""
NORM_TIMES = 8.0
WINDOW_STEPS = 4000
"""Longer runs are judged by their last so many steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunVerdict:
    """One thing to know of a run: `level` good, info, warn or bad, what is seen, what to do, and the setting for it."""

    id: str
    level: str
    what: Text
    advice: Text
    field: str = ""
    """Dotted path of the setting that the advice speaks of, "" for none."""


def judge(view: LiveView, state: str, now_s: float, method: str = "lora") -> tuple[RunVerdict, ...]:
    """Return what there is to say of a run in `state`, worst first; `method` is lora or full, `now_s` Unix time."""
    losses = [value for value in view.points.column("step", "loss", -WINDOW_STEPS) if value == value]
    found = [
        _stands_still(view, state, now_s),
        _not_finite(view),
        _forgets(view),
        _grows(view),
        _early(view, state),
    ]
    # Where answers are drawn and scored the loss begins at 0 and says nothing; the run's own alarms do.
    scored = any(metric.name == DRAWN_METRIC for metric in view.metrics)
    if not scored:
        found += [_diverges(losses), _overfits(view), _spikes(view, losses)]
    said = [verdict for verdict in found if verdict is not None]
    if not scored and not any(verdict.id in ("diverging", "overfitting") for verdict in said):
        course = _course(view, losses, method, ended=state not in ("running", "paused"))
        said += [course] if course is not None and (course.level != "good" or not said) else []
    order = ("bad", "warn", "info", "good")
    return tuple(sorted(said, key=lambda verdict: order.index(verdict.level)))


def _verdict(id: str, level: str, field: str = "", **values: object) -> RunVerdict:
    what, advice = text(f"verdict.{id}", **values), text(f"verdict.{id}.do")
    return RunVerdict(id=id, level=level, what=what, advice=advice, field=field)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(losses: Sequence[float]) -> float:
    """How far the loss moves from step to step."""
    return median(abs(later - earlier) for earlier, later in pairwise(losses))


def _stands_still(view: LiveView, state: str, now_s: float) -> RunVerdict | None:
    """No step for many times as long as steps usually take, while nothing else is being done."""
    if state != "running" or view.phase != "train" or len(view.pace) < 5 or view.stall is not None:
        return None
    times = [later[1] - earlier[1] for earlier, later in pairwise(view.pace)]
    usual_s, waited_s = median(times), now_s - max(view.stepped_s, view.phase_s)
    if waited_s < max(STILL_S, STILL_TIMES * usual_s):
        return None
    return _verdict("still", "info", waited=round(waited_s), usual=round(usual_s, 1))


def _not_finite(view: LiveView) -> RunVerdict | None:
    # A few steps at the start are fp16's loss scale finding its range.
    if view.skipped < 3 or view.skipped < 0.01 * view.step:
        return None
    return _verdict("not_finite", "bad", "optim.learning_rate", count=view.skipped)


def _diverges(losses: Sequence[float]) -> RunVerdict | None:
    """The level of the loss lies clearly above the lowest level that it had."""
    if len(losses) < 2 * RECENT_STEPS:
        return None
    levels = [
        _mean(losses[i : i + RECENT_STEPS]) for i in range(0, len(losses) - RECENT_STEPS + 1, RECENT_STEPS)
    ]
    now, best = _mean(losses[-RECENT_STEPS:]), min(levels)
    if now <= best * (1 + RISE_SHARE) or now - best <= 1.5 * _spread(losses):
        return None
    figures = {"best": round(best, 3), "now": round(now, 3), "count": RECENT_STEPS}
    return _verdict("diverging", "bad", "optim.learning_rate", **figures)


def _overfits(view: LiveView) -> RunVerdict | None:
    """The validation loss rises from its best on while the training loss goes on falling."""
    evals = list(view.points.rows("eval"))
    judged = [(row[0], row[2]) for row in evals if row[2] is not None]
    if len(judged) < 3:
        return None
    best_step, best = min(judged, key=lambda row: row[1])
    last = judged[-1][1]
    after = [loss for step, loss in judged if step > best_step]
    if len(after) < 2 or last < best * (1 + OVERFIT_SHARE) or after[-1] < after[-2]:
        return None
    steps, losses = view.points.column("step", "step"), view.points.column("step", "loss")
    place = sum(step <= best_step for step in steps)
    then, now = losses[max(0, place - RECENT_STEPS) : place], losses[-RECENT_STEPS:]
    if not then or _mean(now) >= _mean(then):
        return None
    return _verdict("overfitting", "warn", "optim.epochs", step=int(best_step), best=round(best, 3))


def _read_metric(view: LiveView, name: str) -> list[float]:
    """Return a metric of the rows that are learned, step by step; none where the run has it not."""
    number = next((i for i, metric in enumerate(view.metrics) if metric.name == name), None)
    return [
        row[3] for row in view.points.rows("metric") if row[2] == number and not row[4] and row[3] is not None
    ]


def _forgets(view: LiveView) -> RunVerdict | None:
    """Better answers become less likely while they gain on the worse ones: what is compared is all that is held."""
    likely, margins = _read_metric(view, "logps/chosen"), _read_metric(view, "rewards/margins")
    if len(likely) < RECENT_STEPS or len(margins) < RECENT_STEPS:
        return None
    part = max(3, min(RECENT_STEPS, len(likely) // 4))
    begun, now = _mean(likely[:part]), _mean(likely[-part:])
    noise = 3 * _spread(likely) / math.sqrt(part)
    if begun - now <= max(FALL_SHARE * abs(begun), noise) or _mean(margins[-part:]) <= _mean(margins[:part]):
        return None
    figures = {"begun": round(begun, 1), "now": round(now, 1)}
    return _verdict("chosen_falling", "warn", "preference.nll_weight", **figures)


def _grows(view: LiveView) -> RunVerdict | None:
    """The card's memory grows from quarter to quarter."""
    bytes_ = view.points.column("step", "vram_bytes", -WINDOW_STEPS)
    if len(bytes_) < 2 * JUDGED_STEPS or not bytes_[-1]:
        return None
    bytes_ = bytes_[len(bytes_) // 10 :]  # the first steps take what they need
    quarter = len(bytes_) // 4
    levels = [max(bytes_[i * quarter : (i + 1) * quarter]) for i in range(4)]
    if not all(later > earlier * (1 + GROWTH_SHARE) for earlier, later in pairwise(levels)):
        return None
    gigabytes = [round(level / 2**30, 1) for level in (levels[0], levels[-1])]
    return _verdict("memory_growing", "warn", "data.max_length", first=gigabytes[0], now=gigabytes[1])


def _spikes(view: LiveView, losses: Sequence[float]) -> RunVerdict | None:
    """Gradients far above the usual, or a loss that rises at once: the steps are too large."""
    norms = [norm for norm in view.points.column("step", "grad_norm", -JUDGED_STEPS) if norm == norm]
    if len(norms) < RECENT_STEPS or len(losses) < RECENT_STEPS:
        return None
    usual = median(norms)
    wild = sum(norm > NORM_TIMES * usual for norm in norms[-RECENT_STEPS:])
    early = len(losses) < 2 * RECENT_STEPS and _mean(losses[-5:]) > _mean(losses[:5]) * (1 + RISE_SHARE)
    if wild < 3 and not early:
        return None
    return _verdict("rate_high", "warn", "optim.learning_rate")


def _early(view: LiveView, state: str) -> RunVerdict | None:
    if state != "finished" or not view.total_steps or view.step >= view.total_steps:
        return None
    return _verdict("early", "info", "run.early_stopping", step=view.step, total=view.total_steps)


def _course(view: LiveView, losses: Sequence[float], method: str, *, ended: bool) -> RunVerdict | None:
    """Flat, too slow by a small learning rate, or falling as it should."""
    if len(losses) < JUDGED_STEPS:
        return None
    part = max(RECENT_STEPS, len(losses) // 5)
    first = [value for value in view.points.column("step", "loss")[:part] if value == value] or losses
    begun, now = _mean(first), _mean(losses[-part:])
    fallen = (begun - now) / abs(begun) if begun else 0.0
    noise = 3 * _spread(losses) / math.sqrt(part)  # how far two means of noise may lie apart
    rate = max(view.points.column("step", "lr", -WINDOW_STEPS), default=0.0)
    compares = any(metric.name == "rewards/chosen" for metric in view.metrics)  # by rates of its own
    if fallen < SLOW_SHARE and 0 < rate < LOW_RATE[method] and not compares:
        return _verdict("rate_low", "warn", "optim.learning_rate", rate=f"{rate:.1e}")
    if fallen < FLAT_SHARE or begun - now < noise:
        return _verdict("flat", "warn", "optim.learning_rate", count=len(losses), loss=round(now, 3))
    figures = {"begun": round(begun, 3), "now": round(now, 3), "count": part}
    return _verdict("fallen", "good", **figures) if ended else _verdict("falling", "good", **figures)
