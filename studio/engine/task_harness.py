"""Tasks of lm-evaluation-harness, asked of a loaded model: its interface `LM` over our answers and losses.

The package `lm_eval` is no requirement: it is imported when somebody who has installed it asks for a task. What its
LM says of each request stands in lm_eval.api.model; the tests hold ours against its own for transformers.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.engine.answer_losses import AnswerLoss, measure_losses
from studio.engine.chat import Speaker
from studio.engine.generation.request import Completion

ANSWER_TOKENS = 256
"""Of an answer whose task names no limit, as the harness has it."""
WINDOW_TOKENS = 2048
"""Of a model that names no limit, as the harness has it."""
BOOTSTRAPS = 1000
"""Rows drawn again for a standard error that no formula gives."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskWish:
    """Which tasks, and how they are asked."""

    tasks: tuple[str, ...]
    """Names that the harness knows, or yaml files."""
    folder: str = ""
    """Where tasks of one's own lie."""
    shots: int | None = None
    """Solved examples in front of each question; None: as the task has it."""
    rows: int = 0
    """Of each task at most; 0: all."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """What a task's metric comes to, in the harness's words and scale."""

    task: str
    metric: str
    filter: str
    value: float
    error: float | None
    """Standard error, None where the harness tells none."""
    rows: int


class MeasureStopped(Exception):
    """Whoever asked wants no more."""


def measure_tasks(
    speaker: Speaker, side: str, wish: TaskWish, *, on_progress: Progress, should_stop: Callable[[], bool]
) -> list[TaskScore] | None:
    """Return the scores of `side`, None where it was stopped. Raises StudioError for tasks that there are not."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    with contextlib.redirect_stdout(sys.stderr):  # what a command prints is its answer alone
        manager = TaskManager(include_path=wish.folder or None)
        unknown = [name for name in wish.tasks if name not in manager.all_tasks and not Path(name).is_file()]
        if unknown:
            raise StudioError(
                text("eval.tasks.unknown", name=unknown[0]), text("eval.tasks.unknown.why"),
                text("eval.tasks.unknown.fix"),
            )  # fmt: skip
        # The harness would fork this process, which has threads, to draw rows again.
        os.environ.setdefault("DISABLE_MULTIPROC", "1")
        try:
            found = simple_evaluate(
                make_model(speaker, side, on_progress, should_stop), tasks=list(wish.tasks),
                num_fewshot=wish.shots, limit=wish.rows or None, task_manager=manager, log_samples=False,
                bootstrap_iters=BOOTSTRAPS,
            )  # fmt: skip
        except MeasureStopped:
            return None
        except (
            OSError,
            ImportError,
            ValueError,
            KeyError,
        ) as error:  # data that are not here, a package, a task
            raise StudioError(
                text("eval.tasks.failed"), literal(f"{type(error).__name__}: {error}"), text("eval.tasks.failed.fix"),
                exit_code=1,
            ) from error  # fmt: skip
    return read_scores(found)


def read_scores(found: Mapping[str, Any]) -> list[TaskScore]:
    """Return the scores in what the harness's evaluation returns: `METRIC,FILTER` beside `METRIC_stderr,FILTER`."""
    scores = []
    for task, values in found["results"].items():
        rows = int(found.get("n-samples", {}).get(task, {}).get("effective", 0))
        for key, value in values.items():
            metric, _, kept = key.partition(",")
            if not kept or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            error = values.get(f"{metric}_stderr,{kept}")
            known = float(error) if isinstance(error, (int, float)) else None
            scores.append(TaskScore(task, metric, kept, float(value), known, rows))
    return scores


def make_model(speaker: Speaker, side: str, on_progress: Progress, should_stop: Callable[[], bool]) -> Any:
    """Return the harness's LM of `side`: losses by the model's forward, answers by our generator."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    limit = int(getattr(speaker.tuned.config.get_text_config(), "max_position_embeddings", 0) or 0)
    window = limit or WINDOW_TOKENS

    class HarnessModel(TemplateLM):
        """See make_model()."""

        tokenizer = speaker.tokenizer
        tokenizer_name = Path(speaker.partner.facts.folder).name

        @property
        def eot_token_id(self) -> int:
            """The token that ends a text."""
            return self.tokenizer.eos_token_id

        @property
        def prefix_token_id(self) -> int:
            """The token in front of a text without a context."""
            begin = self.tokenizer.bos_token_id
            return self.eot_token_id if begin is None else begin

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
            """Return token ids, with what the tokenizer puts in front but where it is there already."""
            begin = self.tokenizer.bos_token
            special = (
                not (begin and string.startswith(begin)) if add_special_tokens is None else add_special_tokens
            )
            return self.tokenizer(string, add_special_tokens=special)["input_ids"]

        def _loglikelihood_tokens(
            self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
        ) -> list[tuple[float, bool]]:
            """Return of each continuation its log-probability, and whether it is what comes greedily."""
            rows = []
            for _, context, continuation in requests:
                ids = (context + continuation)[-(window + 1) :]
                marks = np.zeros(len(ids), dtype=bool)
                marks[max(1, len(ids) - len(continuation)) :] = True
                rows.append((np.array(ids, dtype=np.int32), marks))
            found = self._measure(rows)
            return [(0.0, True) if one is None else (-one.total, one.likeliest) for one in found]

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            """Return the log-probability of whole texts, each token read once, behind as much as has room."""
            rows, owners = [], []
            for place, request in enumerate(requests):
                ids = self.tok_encode(request.args[0], add_special_tokens=False)
                for pair in get_rolling_token_windows(ids, self.prefix_token_id, window, 1):
                    context, continuation = make_disjoint_window(pair)
                    rows.append((None, context, continuation))
                    owners.append(place)
            totals = [0.0] * len(requests)
            for place, (total, _) in zip(owners, self._loglikelihood_tokens(rows), strict=True):
                totals[place] += total
            return totals

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            """Return what continues each text, up to the first word that ends it."""
            said, ended = [""] * len(requests), 0

            def tell_end() -> None:
                nonlocal ended
                ended += 1
                on_progress(ended, len(requests))

            groups: dict[tuple[int, float], list[int]] = {}
            for place, request in enumerate(requests):
                wanted = request.args[1]
                warm = float(wanted.get("temperature") or 0.0) if wanted.get("do_sample", True) else 0.0
                most = int(wanted.get("max_gen_toks") or ANSWER_TOKENS)
                groups.setdefault((min(most, window - 1), warm), []).append(place)
            for (most, temperature), places in groups.items():
                prompts = [self.tok_encode(requests[place].args[0])[-(window - most) :] for place in places]
                ends = [read_ends(requests[place].args[1]) for place in places]

                def look(number: int, one: Completion, ends: Sequence[tuple[str, ...]] = ends) -> None:
                    if any(end in self.tokenizer.decode(one.tokens) for end in ends[number]):
                        one.reason = one.reason or "end"

                answers = speaker.complete(
                    prompts, side, max_new_tokens=most, temperature=temperature, on_grow=look,
                    on_end=lambda number, one: tell_end(), should_stop=should_stop,
                )  # fmt: skip
                for place, one, cut in zip(places, answers, ends, strict=True):
                    if one.reason == "stopped":
                        raise MeasureStopped
                    words = self.tokenizer.decode(one.tokens, skip_special_tokens=True)
                    said[place] = words[
                        : min((words.find(end) for end in cut if end in words), default=len(words))
                    ]
            return said

        def _measure(self, rows: Sequence[Any]) -> list[AnswerLoss | None]:
            with speaker.using(side) as model:
                found = measure_losses(
                    model, rows, pad_id=self.tokenizer.pad_token_id or 0, limit=limit, on_progress=on_progress,
                    should_stop=should_stop,
                )  # fmt: skip
            if should_stop():
                raise MeasureStopped
            return found

    return HarnessModel()


def read_ends(wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words that end an answer."""
    until = wanted.get("until") or ()
    return tuple(end for end in ([until] if isinstance(until, str) else until) if end)
