"""What the training loop tells and asks of those around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from studio.core.events import RunEvent
from studio.engine.train_state import Evaluation, TrainState


@dataclass(slots=True)
class Hooks:
    """What the loop tells and asks: all calls come from the engine's thread."""

    emit: Callable[[RunEvent], None]
    should_stop: Callable[[], bool]
    save: Callable[[TrainState], int]
    """Writes a checkpoint and returns its size in bytes."""
    beat: Callable[[str, int, int], None] = lambda phase, step, micro: None
    """Called with phase, step and micro-batch number each micro-batch: the supervisor's heartbeat."""
    recover: Callable[[Exception, TrainState], bool] = lambda error, state: False
    """Called when a window or an evaluation's batch fails. True: something was changed (an op went to its twin, the
    micro-batch was halved in `state`), so do it again; False: the error ends the run."""
    evaluate: Callable[[], Evaluation] | None = None
    """Called at each evaluation in place of the loss on the validation rows, where these hold no answers."""
    score: Callable[[], Mapping[str, float]] = dict
    """Called at each evaluation: metrics of the answers to held-out rows, where the best is kept by one."""
    keep_best: Callable[[], None] = lambda: None
    """Called after an evaluation that is the best so far."""
    sample: Callable[[], None] = lambda: None
    """Called after each evaluation: writes sample answers."""
    stepped: Callable[[], None] = lambda: None
    """Called after each step, before an evaluation: what could wait for the first one."""
    should_pause: Callable[[], bool] = lambda: False
    should_save: Callable[[], bool] = lambda: True
    """False: what is stopped now is thrown away, so no checkpoint is written."""
