"""The training loop: each optimizer step is a transaction that is applied whole, replayed, or skipped.

docs/decisions.md says why this is a loop of our own and not transformers' Trainer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from studio.core.errors import StudioError
from studio.core.events import (
    CheckpointSaved,
    EvalLogged,
    MemoryFreed,
    PhaseStarted,
    StepLogged,
    Warned,
)
from studio.core.i18n import Text, text
from studio.core.recipe import SAMPLING, Recipe, keeps_by
from studio.data.sequence_packing import Example
from studio.engine.batches import StepOrder, measure_windows
from studio.engine.flat_adamw import FlatAdamW
from studio.engine.learning_rate import learning_rate
from studio.engine.oom_fallback import (
    MemoryExhausted,
    count_vram,
    is_out_of_memory,
    let_go,
    retry_with_memory,
)
from studio.engine.optimizer import SHARE, apply_gradients, build_optimizer
from studio.engine.pause import stand_still
from studio.engine.rng_state import read_generators, write_generators
from studio.engine.save_interval import is_save_due
from studio.engine.scoring import add_measured
from studio.engine.step_windows import DataWindows, Windows
from studio.engine.train_state import Evaluation, TrainState
from studio.engine.train_step import Step, read_metrics
from studio.engine.trainer_hooks import Hooks
from studio.models.adapt import evaluation_mode
from studio.models.load import AUTOCAST_DTYPES

NON_FINITE_LIMIT = 3
"""Steps in a row with a non-finite loss or gradient that end the run."""


class NonFinite(Exception):
    """The loss or a gradient was not a number in several steps in a row."""

    failure_id = "non_finite"


class StepAbandoned(Exception):
    """The end was asked for in the middle of a step's window, of which nothing was applied yet."""


@dataclass(slots=True)
class Outcome:
    """How the loop ended: `end` is finished, stopped or early."""

    end: str
    state: TrainState = field(default_factory=TrainState)


class Trainer:
    """Trains one model on prepared examples; the same code runs for a resume, which only starts with another state."""

    def __init__(
        self,
        model: torch.nn.Module,
        step: Step,
        train: Sequence[Example],
        validation: Sequence[Example],
        recipe: Recipe,
        optimizer: str,
        dtype: str,
        device: torch.device,
        hooks: Hooks,
        micro_batch: int = 0,
    ) -> None:
        """`micro_batch`: see TrainState; 0 for all rows of a step at once."""
        self.model = model
        self.step = step
        self.train_examples, self.validation = map(step.objective.view, (train, validation))
        self.recipe = recipe
        self.spec = recipe.optim
        self.keeps = keeps_by(recipe.run)
        """What the best state is kept by: loss, the name of a metric, or last where none is kept."""
        self.device = device
        self.hooks = hooks
        self.order = StepOrder(len(train), self.spec.batch_size, recipe.seed)
        self.longest_tokens = step.find_longest(self.train_examples)
        self.epoch_steps = self.order.steps_per_epoch * step.objective.updates
        self.total_steps = self.spec.max_steps or max(1, math.ceil(self.spec.epochs * self.epoch_steps))
        self.state = TrainState(micro_batch=micro_batch or self.spec.batch_size)
        self.evaluation_batch = self.state.micro_batch
        self._saved_step, self._saved_s = 0, 0.0
        self.saved_best_step = 0
        """The best step that the last checkpoint speaks of."""
        self.windows: Windows = DataWindows(lambda: self.train_examples, self.order)
        self.trained = [*step.decayed, *step.undecayed, *step.beside, *step.beside_undecayed]
        self.kind = [optimizer, dtype, step.kind]
        self.optimizer = build_optimizer(
            step.decayed, step.undecayed, self.spec, optimizer, device, step.adamw,
            beside=(step.beside, step.beside_undecayed),
        )  # fmt: skip
        self.autocast_dtype = AUTOCAST_DTYPES.get(dtype)
        # fp16 alone needs loss scaling: its smallest normal number is 6e-5, where gradients often lie.
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == "fp16" and device.type == "cuda")
        sizes = measure_windows(self.order, self.train_examples, self.total_steps, step.expects_sequences)
        step.expect(sizes, self.total_steps)

    def train(self) -> Outcome:
        """Run to the end, a stop, or early stopping. Raises NonFinite, and any error that `recover` gives up on."""
        self.hooks.emit(PhaseStarted(phase="train", step=self.state.step))
        self.model.train()
        self._saved_step, self._saved_s = self.state.step, time.monotonic()
        try:
            end = self._take_steps()
        except MemoryExhausted:
            # In a window of which nothing was applied, or in an evaluation: what was learned is whole.
            if self.state.step != self._saved_step:
                self._save()
            raise
        if self.hooks.should_save() and (self.state.step != self._saved_step or self.state.step == 0):
            self._save()
        return Outcome(end, self.state)

    def _take_steps(self) -> str:
        """Take the steps that are left, with evaluations and checkpoints between them; returns how that ended."""
        if self._evaluate_when_due():  # a stop may have cut the last one short
            return "early"
        while self.state.step < self.total_steps:
            self._pause_when_asked()
            if self.hooks.should_stop():
                return "stopped"
            try:
                self._take_step()
            except StepAbandoned:
                continue
            self.hooks.stepped()
            if self._evaluate_when_due():
                return "early"
            since_s = time.monotonic() - self._saved_s
            if is_save_due(self.recipe.run, self.state.step, self.total_steps, self._saved_step, since_s):
                self._save()
        return "finished"

    def _pause_when_asked(self) -> None:
        """Stand still between two steps while the person wants it, the state saved."""
        if self.hooks.should_pause() and not self.hooks.should_stop():
            if self.state.step != self._saved_step:
                self._save()
            stand_still(self.hooks, self.state.step)

    def _save(self) -> None:
        self.hooks.beat("save", self.state.step, 0)
        size_bytes = retry_with_memory(lambda: self.hooks.save(self.state), self.tell_save_freed)
        self._saved_step, self._saved_s = self.state.step, time.monotonic()
        self.saved_best_step = self.state.best_step
        self.hooks.emit(CheckpointSaved(step=self.state.step, size_bytes=size_bytes))

    def _take_step(self) -> None:
        """One transaction: gradients of the whole window, the check that they are finite, the optimizer."""
        state, started_s = self.state, time.perf_counter()
        window = self.windows.draw(state.step)
        sums = self.take_gradients(window)
        rate = learning_rate(self.spec, state.step, self.total_steps)
        (loss, *sums), grad_norm, applied = self._apply(sums, rate)
        tokens = sum(len(example.token_ids) for example in window)
        state.step += 1
        state.tokens += tokens
        metrics = {**self.windows.metrics(), **read_metrics((loss, *sums), self.step.objective)}
        self.hooks.emit(
            StepLogged(
                step=state.step,
                total_steps=self.total_steps,
                epoch=round(state.step / self.epoch_steps, 4),
                loss=loss,
                lr=rate,
                grad_norm=grad_norm,
                tokens_per_s=tokens / (time.perf_counter() - started_s),
                vram_bytes=count_vram(self.device),
                skipped=not applied,
                metrics=metrics,
            )
        )
        self._count_skips(applied, loss, metrics)

    def take_gradients(self, window: Sequence[Example], phase: str = "train") -> torch.Tensor:
        """Fill the gradients with those of `window`, however often it must be replayed; weights are not touched.

        Returns the mean loss over what its examples count, and the sums of the objective's metrics (sum_terms), on the
        device. A replay begins with no gradients and with the random generators of the first attempt. Raises what
        `recover` gives up on, and StepAbandoned, which leaves the generators as they were too.
        """
        generators = read_generators()
        while True:
            self.step.clear()
            try:
                return self._accumulate(window, phase)
            except StepAbandoned:
                self.step.clear()
                write_generators(generators)
                raise
            except Exception as error:  # recover() decides: it returns False for all it does not know
                try:
                    again = self.hooks.recover(error, self.state)
                except MemoryExhausted:
                    self.step.clear()
                    write_generators(generators)
                    raise
                if not again:
                    raise
            write_generators(generators)

    def _accumulate(self, window: Sequence[Example], phase: str) -> torch.Tensor:
        """Forward and backward over the window's micro-batches; returns what take_gradients() does."""
        objective = self.step.objective
        count = sum(map(objective.count, window)) or 1.0
        total = torch.zeros(1 + 2 * len(objective.metrics), device=self.device)
        parts = self.step.cut(window, self.state.micro_batch, self.longest_tokens)
        if len(parts) > 1 or not self.step.measures(window):
            measured = add_measured(
                self, window, lambda done: self.hooks.beat(phase, self.state.step + 1, done)
            )
            if measured is not window:
                parts = self.step.cut(measured, self.state.micro_batch, self.longest_tokens)
        for micro, part in enumerate(parts):
            # A window may take minutes, and who asks for the end is given 20 s before the process is killed.
            if micro and phase == "train" and self.hooks.should_stop():
                raise StepAbandoned
            self.hooks.beat(phase, self.state.step + 1, micro)
            total += self.step.add_gradients(part, count, self.scaler.scale)
        return total

    def _apply(self, sums: torch.Tensor, rate: float) -> tuple[list[float], float, bool]:
        """Clip and step if all is finite; returns `sums`, the gradient norm before clipping, and whether it was so.

        Waits for the device once, when all that it can be given is enqueued.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get(SHARE, 1.0)
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        if isinstance(self.optimizer, FlatAdamW):
            self._step_whole(sums[0])
            self.scaler.update()
            self.windows.draw_ahead(self.state.step + 1)  # while the device computes
            return self.optimizer.read(sums)
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.spec.max_grad_norm or math.inf)
        self.windows.draw_ahead(self.state.step + 1)
        *read, grad_norm = torch.cat([sums, norm.to(sums)[None]]).tolist()
        applied = math.isfinite(read[0]) and math.isfinite(grad_norm)
        if applied and apply_gradients(self.scaler, self.optimizer, sums[0]):
            self._tell_optimizer_freed()
        self.scaler.update()
        return read, grad_norm, applied

    def _step_whole(self, loss_sum: torch.Tensor) -> None:
        """Step an optimizer that changes all or nothing: when its kernel fails, its twin takes the same gradients."""
        while True:
            try:
                if apply_gradients(self.scaler, self.optimizer, loss_sum):
                    self._tell_optimizer_freed()
                return
            except StudioError:  # memory is out for good
                raise
            except Exception as error:  # recover() decides: it returns False for all it does not know
                if not self.hooks.recover(error, self.state):
                    raise

    def _tell_optimizer_freed(self) -> None:
        self._tell_freed("optimizer", self.state.micro_batch, text("memory.optimizer"), 1)

    def _count_skips(self, applied: bool, loss: float, metrics: dict[str, float]) -> None:
        state = self.state
        if applied:
            state.skipped_in_a_row = 0
            state.last_loss, state.last_metrics = loss, metrics
            return
        state.skipped += 1
        # With loss scaling an overflow of the gradients alone is the scaler finding its range, not a failure.
        # A scale below 1 is past any range that it could find: from there on the gradients are at fault.
        if self.scaler.is_enabled() and math.isfinite(loss) and self.scaler.get_scale() >= 1.0:
            return
        state.skipped_in_a_row += 1
        self.hooks.emit(Warned(step=state.step, message=text("run.step_skipped", step=state.step)))
        if state.skipped_in_a_row >= NON_FINITE_LIMIT:
            raise NonFinite(f"loss {loss} at step {state.step}")

    def evaluate(self, examples: Sequence[Example] | None = None, phase: str = "evaluate") -> Evaluation:
        """Return the mean loss over what `examples` count, the validation examples when None, and the metrics.

        When memory runs out, fewer rows are evaluated at a time from here on; the training's micro-batch stays.
        """
        examples, objective = self.validation if examples is None else examples, self.step.objective
        total, count, done = [0.0] * (1 + 2 * len(objective.metrics)), 0.0, 0
        ordered = sorted(examples, key=lambda example: len(example.token_ids), reverse=True)
        ordered = add_measured(self, ordered, lambda done: self.hooks.beat(phase, self.state.step, done))
        with evaluation_mode(self.model):
            while done < len(ordered) and not self.hooks.should_stop():
                self.hooks.beat(phase, self.state.step, done)
                part = ordered[done : done + self.evaluation_batch]
                sums = self.try_batch(part, self.step.evaluate)
                if sums is None:
                    continue
                total = [before + one for before, one in zip(total, sums, strict=True)]
                done += len(part)
                count += sum(map(objective.count, part))
        return Evaluation(total[0] / (count or 1.0), read_metrics(total, objective))

    @torch.no_grad()
    def try_batch(
        self, part: Sequence[Example], compute: Callable[[Sequence[Example]], torch.Tensor]
    ) -> list[float] | None:
        """Return what `compute` finds for `part` of an evaluation; None when something was changed: do it again."""
        try:
            return compute(part).tolist()
        except Exception as error:  # raised again unless there is a way on
            if not is_out_of_memory(error):
                if not self.hooks.recover(error, self.state):
                    raise
                return None
            if len(part) == 1:
                raise MemoryExhausted(str(error)) from error
            self.evaluation_batch = len(part) // 2
            message = text("memory.evaluation", count=self.evaluation_batch)
            let_go(error)
            self._tell_freed("evaluation", self.evaluation_batch, message)
        return None

    def tell_save_freed(self) -> None:
        """Say that memory ran out while something was saved, and that it is saved once more."""
        self._tell_freed("save", self.state.micro_batch, text("memory.save"))

    def tell_freed(self, rung: str, message: Text) -> None:
        """Say that memory ran out beside the training, and what was done."""
        self._tell_freed(rung, self.state.micro_batch, message, 1)

    def _tell_freed(self, rung: str, micro_batch: int, message: Text, ahead: int = 0) -> None:
        """Emit MemoryFreed for the step that lies `ahead` of the last one done."""
        step = self.state.step + ahead
        self.hooks.emit(MemoryFreed(step=step, rung=rung, micro_batch=micro_batch, message=message))

    def _evaluate_when_due(self) -> bool:
        """Evaluate after every `eval_every` steps; returns whether early stopping ends the run, also after a resume."""
        spec, state = self.recipe.run, self.state
        due = spec.eval_every and state.step % spec.eval_every == 0 and state.evaluated != state.step
        if due and self.validation:
            self._evaluate()
        return bool(spec.early_stopping) and state.evals_without_gain >= spec.early_stopping

    def _evaluate(self) -> None:
        """Evaluate and log; an evaluation that a stop cuts short does not count."""
        generators = read_generators()
        loss, metrics = (self.hooks.evaluate or self.evaluate)()
        write_generators(generators)
        scored = self.hooks.score()
        if self.hooks.should_stop():
            return
        state = self.state
        state.last_eval, state.evaluated = loss, state.step
        self.hooks.emit(EvalLogged(step=state.step, loss=loss, metrics={**metrics, **scored}))
        value = -scored[self.keeps] if self.keeps in scored else loss
        if value < state.best_eval:
            state.best_eval, state.evals_without_gain = value, 0
            state.best_step, state.best_loss = state.step, loss
            self.hooks.keep_best()
        else:
            state.evals_without_gain += 1
        self.hooks.sample()

    def tell_evaluated(self, loss: float | None) -> dict[str, float | None]:
        """Return what a run's record has of an evaluation's `loss`: of drawn answers it is minus their reward."""
        if self.recipe.objective in SAMPLING and loss is not None:
            return {"eval_reward": -loss}
        return {"eval_loss": loss}

    def evaluate_end(self) -> None:
        """Evaluate the last step, where it was not yet; the best may be that one."""
        if self.validation and self.state.evaluated != self.state.step:
            self._evaluate()

    def state_data(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the weights: tensors and plain values only (no pickled code)."""
        return {
            "kind": self.kind,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generators": read_generators(),
            "state": {name: getattr(self.state, name) for name in TrainState.__slots__},
            "windows": self.windows.state_data(),
        }

    def load_state_data(self, data: dict[str, Any]) -> None:
        """Continue from state_data(); the weights must have been loaded already."""
        self.optimizer.load_state_dict(data["optimizer"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(data["scaler"])
        self.state = TrainState(**data["state"])
        self.saved_best_step = self.state.best_step
        self.windows.load_state_data(data.get("windows", {}))
        write_generators(data["generators"])
