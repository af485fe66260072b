"""Tasks of lm-evaluation-harness for models of a workspace, where the person has installed the package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.services.chat_service import ChatService
from studio.services.evaluation_result import Contender

PACKAGE = "lm_eval"


def require_harness() -> None:
    """Raise StudioError, with how to get it, where the package is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        command = f"{Path(sys.executable).as_posix()} -m pip install {PACKAGE}"
        raise StudioError(
            text("eval.tasks.absent"),
            text("eval.tasks.absent.why"),
            text("eval.tasks.absent.fix", command=command),
        )


def evaluate_tasks(
    chat: ChatService,
    contenders: Sequence[Contender],
    wish: Any,
    *,
    tell: Callable[[Text, int, int], None],
    should_stop: Callable[[], bool],
) -> list[tuple[Contender, list[Any]]]:
    """Return the engine.task_harness.TaskScore of each model; of fewer models where it was stopped. Waits.

    `wish`: engine.task_harness.TaskWish. Raises StudioError, also while a run trains.
    """
    require_harness()
    from studio.engine.task_harness import measure_tasks

    found = []
    for contender in contenders:
        shown = text("eval.tasks.of", name=contender.name)

        def work(
            speaker: Any, ends: Callable[[], bool], side: str = contender.side, shown: Text = shown
        ) -> Any:
            return measure_tasks(
                speaker, side, wish, on_progress=lambda done, total: tell(shown, done, total),
                should_stop=lambda: ends() or should_stop(),
            )  # fmt: skip

        if should_stop():
            break
        chat.refuse_while_training()
        scores = chat.lend(contender.run, contender.checkpoint, contender.recipe, work)
        if scores is None:
            break
        found.append((contender, scores))
    return found
