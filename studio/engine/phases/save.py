"""The result: written, and what is needed to check it kept."""

from __future__ import annotations

from studio.engine.artifact import Trained, fingerprint, save_artifact, sum_frozen
from studio.engine.checkpoint import require_space
from studio.engine.decoder_step import DecoderStep
from studio.engine.oom_fallback import retry_with_memory
from studio.engine.phases.score import Scoring
from studio.engine.phases.train import in_dtype
from studio.engine.run_context import Run, Training
from studio.engine.sample_generations import Samples
from studio.models.adapt import cast_weights, trained_state
from studio.models.load import DTYPES
from studio.models.modules_to_save import list_freed


def save(run: Run, training: Training, samples: Samples, scoring: Scoring) -> Trained:
    """Write the result into the run's folder. Raises StudioError, OSError."""
    trainer, loaded, prepared, plan = training.trainer, training.loaded, training.prepared, training.plan
    with run.phase("save"):
        with in_dtype(training):
            samples.write()
        if isinstance(trainer.step, DecoderStep):
            trainer.step.drop_graphs()
        # Weights that were views get memory of their own.
        retry_with_memory(training.fast.undo, trainer.tell_save_freed)
        model = loaded.model
        if not run.record.adapter:
            cast_weights(model, DTYPES[plan.dtype.value], run.recipe.seed)
        freed = list_freed(model)
        cast_weights(model, DTYPES[plan.dtype.value], run.recipe.seed, freed.values())
        expected = fingerprint(model, prepared.data.train[0].token_ids.tolist())
        require_space(run.folder.path, sum(tensor.nbytes for tensor in trained_state(model).values()))
        artifact = retry_with_memory(
            lambda: save_artifact(model, loaded.tokenizer, run.folder.path, prepared.facts, run.record),
            trainer.tell_save_freed,
        )
        run.change_record(artifact=artifact)
        scoring.best.remove()
        kept = run.record.adapter and not freed and sum_frozen(model) == training.frozen_sum
        base = model.unload() if kept else None
    return Trained(prepared.facts, plan, loaded.tokenizer, expected, trainer.state.last_loss, base)
