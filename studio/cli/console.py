"""What a person at a terminal reads: a progress line that moves, events in words, refusals in three sentences."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable
from itertools import islice
from typing import Any, TextIO

from studio.core.codec import to_json
from studio.core.errors import Problem, RecipeError, StudioError
from studio.core.events import (
    TOLD_METRICS,
    AnswersScored,
    CheckpointSaved,
    DataPrepared,
    Diagnosis,
    EvalLogged,
    KernelFellBack,
    MemoryFreed,
    PhaseStarted,
    RepairApplied,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPaused,
    RunPlanned,
    RunResumed,
    RunStalled,
    RunStopped,
    RunUnpaused,
    StallEnded,
    StepLogged,
    TrialFinished,
    Warned,
    name_metric,
)
from studio.core.i18n import Catalogue, Text, text

BAR_WIDTH = 24
TOLD_SWAPS = ("run.towers", "run.experts", "run.left_out", "mixed.held", "mixed.plain")
"""What is told of a run's swaps: parts of the model that nothing is learned in, how little in each expert, and what of
a base is held in how many bits."""


class Console:
    """Speaks one language on stderr, and one JSON object on stdout when `as_json`."""

    def __init__(self, catalogue: Catalogue, *, as_json: bool = False, events: bool = False) -> None:
        self.catalogue = catalogue
        self.as_json = as_json
        self.events = events
        self._stdout = sys.stdout
        self._mute = False
        """Whether standard error could not be written: what is worked on goes on."""
        self._drawn = 0
        """Columns of the moving line that is on the screen now."""
        self._step_s: list[float] = []
        self._ended_s = 0.0

    def say(self, message: Text, stream: TextIO | None = None) -> None:
        """Print one message on its own line."""
        self._clear_bar()
        self._tell(self.catalogue.say(message) + "\n", stream)

    def note(self, message: Text) -> None:
        """Print one message for a person who watches; a program that reads events needs none."""
        if not self.events:
            self.say(message)

    def answer(self, data: dict[str, Any], lines: Iterable[str] = ()) -> None:
        """Print the command's answer: `data` as one JSON object on stdout, or `lines` for a person."""
        self._clear_bar()
        try:
            if self.as_json:
                self._print_json(to_json(self.plain(data)))
            else:
                for line in lines:
                    print(line, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            leave_reader()
            raise refuse_stream("stdout", error) from error

    def refuse(self, error: StudioError) -> int:
        """Print a refusal and return its exit code."""
        self._clear_bar()
        say = self.catalogue.say
        body: dict[str, Any] = {"what": say(error.what), "why": say(error.why), "fix": say(error.fix)}
        if isinstance(error, RecipeError) and len(error.problems) > 1:
            body["problems"] = [self.problem(problem) for problem in error.problems]
        if self.as_json:
            self._print_json({"error": body})
        else:
            for sentence in (body["what"], body["why"], body["fix"]):
                self._tell(f"{sentence}\n")
            for problem in body.get("problems", ()):
                self._tell(f"  - {problem['message']} {problem['fix']}\n")
        return error.exit_code

    def _print_json(self, value: Any) -> None:
        # A sign that the console lacks would be spelt \xf6 by its own error handler, which is no JSON.
        encoding = (getattr(self._stdout, "encoding", None) or "").lower().replace("-", "")
        line = json.dumps(value, ensure_ascii=encoding != "utf8", allow_nan=False)
        if self._stdout is not None:  # closed before the start
            print(line, file=self._stdout, flush=True)

    def problem(self, problem: Problem) -> dict[str, Any]:
        """Return a Problem as the contract of `check` names it.

        `choices` (values of the field that settle it) and `ways` (changes that help) stand only where there are any.
        """
        say = self.catalogue.say
        choices = problem.choices
        ways = [{"title": say(way.title), "change": dict(way.change)} for way in problem.ways]
        return (
            {
                "field": problem.field,
                "severity": problem.severity,
                "message": say(problem.message),
                "fix": say(problem.fix),
            }
            | ({"choices": list(choices)} if choices else {})
            | ({"ways": ways} if ways else {})
        )

    def diagnosis(self, diagnosis: Diagnosis | None) -> dict[str, Any] | None:
        """Return a Diagnosis in words."""
        if diagnosis is None:
            return None
        say = self.catalogue.say
        return {
            "id": diagnosis.id,
            "what": say(diagnosis.what),
            "why": say(diagnosis.why),
            "fixes": [say(fix.title) for fix in diagnosis.fixes],
        }

    def plain(self, value: Any) -> Any:
        """Return `value` with every Text in it said."""
        return self.catalogue.say_all(value)

    def show(self, event: RunEvent) -> None:
        """Tell one event: as a JSON line on stderr with `--events`, else in words or as the moving bar."""
        if self.events:
            self._tell(json.dumps(to_json(event), ensure_ascii=False, allow_nan=False) + "\n")
            return
        if isinstance(event, StepLogged):
            self._show_step(event)
            return
        if isinstance(event, RunFailed) and not self.as_json:
            return  # the answer says it
        words = describe(event)
        if words is not None:
            self.say(words)
        if isinstance(event, RunPlanned):
            for swap in (one for one in event.swaps if one.id in TOLD_SWAPS):
                self.say(swap)

    def progress(self, label: Text, done: int, total: int) -> None:
        """Show `done` of `total` on the moving line."""
        self._draw(f"{self.catalogue.say(label)} {_bar(done, total)} {done}/{total}", done >= total)

    def _show_step(self, event: StepLogged) -> None:
        now = time.monotonic()
        if self._ended_s:
            self._step_s = [*self._step_s[-49:], now - self._ended_s]
        self._ended_s = now
        left = "?"
        if self._step_s:
            left = format_duration((event.total_steps - event.step) * sum(self._step_s) / len(self._step_s))
        line = self.catalogue.say(
            text(
                "console.step",
                bar=_bar(event.step, event.total_steps),
                step=event.step,
                total=event.total_steps,
                loss=f"{event.loss:.3f}",
                tokens=round(event.tokens_per_s),
                left=left,
            )
        )
        told = [
            f"{self.catalogue.say(name_metric(name))} {value:.4g}"
            for name, value in islice(event.metrics.items(), TOLD_METRICS)
        ]
        self._draw("  ".join([line, *told]), event.step == event.total_steps)

    def _tell(self, words: str, stream: TextIO | None = None) -> None:
        """Print `words` on standard error (or `stream`); a full place ends what is told, and nothing else."""
        if self._mute:
            return
        try:
            print(words, end="", file=stream or sys.stderr, flush=True)
        except BrokenPipeError:
            raise
        except OSError:
            self._mute = True
            _send_nowhere(stream or sys.stderr)

    def _draw(self, line: str, last: bool) -> None:
        if sys.stderr is None or not sys.stderr.isatty():
            if last:
                self._tell(line + "\n")
            return
        line = _fit(line, shutil.get_terminal_size().columns - 1)
        # Blanks instead of an escape sequence: the old Windows console shows those as signs.
        blanks = " " * max(0, self._drawn - _count_columns(line))
        self._tell(f"\r{line}{blanks}" + ("\n" if last else ""))
        self._drawn = 0 if last else _count_columns(line)

    def _clear_bar(self) -> None:
        if self._drawn:
            self._tell("\r" + " " * self._drawn + "\r")
            self._drawn = 0


def refuse_stream(name: str, error: OSError) -> StudioError:
    """Return the StudioError of an answer that could not be written, though the work is done."""
    parts = ("console.lost", "console.lost.why", "console.lost.fix")
    what, why, fix = (text(part, stream=name, reason=error.strerror or str(error)) for part in parts)
    return StudioError(what, why, fix, exit_code=1)


def leave_reader() -> int:
    """Return the exit code for when whoever read our output is gone; what was still to be written goes nowhere.

    Python writes it at its end, and would complain of the broken pipe then.
    """
    _send_nowhere(sys.stdout)
    return 1


def _send_nowhere(stream: TextIO) -> None:
    """Let what is still in a stream's buffer go nowhere; Python's end would fail over it with exit code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def describe(event: RunEvent) -> Text | None:
    """Return an event in words for a log or a terminal; None for the many that a chart shows better."""
    if isinstance(event, PhaseStarted):
        return event.detail or text(f"phase.{event.phase}")
    if isinstance(event, RunPlanned):
        plan = event.plan
        return text(
            "event.planned", device=plan.device.value, dtype=plan.dtype.value, attention=plan.attention.value
        )
    if isinstance(event, DataPrepared):
        facts = event.facts
        return text(
            "event.prepared",
            rows=facts.rows_used,
            format=facts.format,
            tokens=facts.tokens,
            trained=facts.trained_tokens,
            steps=event.total_steps,
        )
    if isinstance(event, EvalLogged) and event.reward is not None:
        return text("event.evaluated.reward", step=event.step, reward=f"{event.reward:.4f}")
    if isinstance(event, EvalLogged):
        return text("event.evaluated", step=event.step, loss=f"{event.loss:.4f}")
    if isinstance(event, AnswersScored):
        return event.scores[0].sentence
    if isinstance(event, CheckpointSaved):
        return text("event.saved", step=event.step, mb=f"{event.size_bytes / 1e6:.1f}")
    if isinstance(event, KernelFellBack):
        return text("event.fell_back", op=event.op, step=event.step, reason=event.reason)
    if isinstance(event, Warned):
        return text("event.warned", message=event.message)
    if isinstance(event, (RepairApplied, MemoryFreed)):
        return event.message
    if isinstance(event, TrialFinished):
        kind = ".draws" if event.draws else ".known" if event.saving_known else ""
        return text(
            f"event.trial{kind}",
            took=event.took_s,
            tokens=event.longest_tokens,
            total=format_duration(event.total_s),
        )
    if isinstance(event, RunStalled):
        waited = format_duration(event.waited_s)
        return text("event.stalled", step=event.step, waited=waited, message=event.message)
    if isinstance(event, StallEnded):
        return text("event.stall_ended", step=event.step, waited=format_duration(event.waited_s))
    if isinstance(event, RunResumed):
        return text("event.resumed", step=event.step)
    if isinstance(event, RunPaused):
        return text("event.paused", step=event.step)
    if isinstance(event, RunUnpaused):
        return text("event.unpaused", step=event.step)
    if isinstance(event, RunStopped):
        return text("event.stopped" if event.saved else "event.stopped_early", step=event.step)
    if isinstance(event, RunFinished):
        return text("event.finished", step=event.step, loss=f"{event.loss:.4f}")
    if isinstance(event, RunFailed):
        return text("event.failed", what=event.diagnosis.what, why=event.diagnosis.why)
    return None


def format_duration(seconds: float) -> str:
    """Return a duration as 0:05, 12:34 or 3:07:00; 0:00 for what is none (negative, NaN)."""
    whole = round(seconds) if 0 <= seconds < 1e12 else 0
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(done: int, total: int) -> str:
    filled = round(BAR_WIDTH * done / total) if total else 0
    return "[" + "=" * filled + " " * (BAR_WIDTH - filled) + "]"


def _count_columns(line: str) -> int:
    """Return how many columns of a terminal `line` takes: a Chinese sign takes two."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line)


def _fit(line: str, columns: int) -> str:
    """Return `line` cut to `columns`: one that wraps could not be drawn over."""
    while _count_columns(line) > max(1, columns):
        line = line[:-1]
    return line
