"""The held-out score: the best state is kept by it along the way, and the result is told with it at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

from studio.core.i18n import text
from studio.engine.best_weights import BestWeights
from studio.engine.held_out_score import HeldOutAnswers
from studio.engine.phases.train import in_dtype
from studio.engine.rollouts.held_out_rewards import HeldOutRewards
from studio.engine.run_context import Run, Training
from studio.engine.training_answers import TrainingAnswers
from studio.models.adapt import load_trained_state, trained_state

BEST = "best"


@dataclass(frozen=True, slots=True)
class Scoring:
    """What measures a run's answers, and what keeps its best state."""

    answers: HeldOutAnswers
    best: BestWeights


def begin_scoring(run: Run, training: Training) -> Scoring:
    """Let evaluations keep the best state; measure the base now where its own weights are trained."""
    trainer, loaded, spec = training.trainer, training.loaded, run.recipe.run
    asked = TrainingAnswers(trainer, loaded.model, loaded.tokenizer)
    answers = HeldOutAnswers(
        asked,
        training.prepared.data.validation,
        seed=run.recipe.seed,
        count=0 if trainer.step.objective.scores else spec.scored_rows,
        keeps=trainer.keeps,
        asked=training.prepared.data.asked_held_out,
        answer_tokens=run.recipe.sampling.answer_tokens,
    )
    scoring = Scoring(answers, BestWeights(run.folder.path / BEST))
    if trainer.keeps != "last":
        trainer.hooks.keep_best = lambda: scoring.best.keep(
            trainer.state.step, trained_state(loaded.model), trainer.saved_best_step
        )
    if training.rewards is not None:
        judged = HeldOutRewards(answers, training.prepared.data.asked_held_out, training.rewards)
        trainer.hooks.evaluate, trainer.hooks.score = judged.evaluate, judged.score
        if not trainer.state.step:
            trainer.state.evaluated = -1  # the start may stay the best, where a reward leads astray
    elif trainer.keeps not in ("last", "loss"):
        trainer.hooks.score = lambda: {
            name: one.value for name, one in answers.measure().items() if name == trainer.keeps
        }
    if answers.rows and not asked.has_base and not trainer.state.step:
        with run.phase("sample"):
            measured = answers.measure(base=True)
            trainer.state.base_scores = {name: one.value for name, one in measured.items()}
    return scoring


def settle(run: Run, training: Training, scoring: Scoring) -> None:
    """Make the best state the result where one is kept, and measure it. Raises StudioError, OSError."""
    trainer, model = training.trainer, training.loaded.model
    if not trainer.validation:
        return
    with run.phase("score"), in_dtype(training):
        trainer.evaluate_end()
        run.stop_when_asked()  # which cut the evaluation short
        state = trainer.state
        step = state.step
        run.change_record(**trainer.tell_evaluated(state.last_eval))
        if trainer.keeps != "last" and state.best_eval < math.inf and state.best_step != state.step:
            weights = scoring.best.read(state.best_step)
            if weights is None:
                run.warn(text("run.best_gone", step=state.best_step))
            else:
                load_trained_state(model, weights)
                run.change_record(kept_step=state.best_step, **trainer.tell_evaluated(state.best_loss))
                kept = text("run.best_kept", step=state.best_step, last=state.step)
                run.warn(kept if state.best_step else text("run.start_kept", last=state.step))
                step = state.best_step
        if scoring.answers.left_out is not None:
            run.warn(scoring.answers.left_out)
        scored = scoring.answers.score(state.base_scores, step)
        run.stop_when_asked()
        if scored is not None:
            run.change_record(scores=scored.scores)
            run.emit(scored)
