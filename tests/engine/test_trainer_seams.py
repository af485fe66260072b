"""Why a training loop of our own: what later work needs fits into it, and does not fit into transformers' Trainer."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from studio.core.recipe import change_recipe
from studio.data.prepare import prepare
from studio.engine.batches import PAD_MULTIPLE
from studio.engine.loss_head import LossHead
from studio.engine.objectives.sft import SFT
from studio.engine.rng_state import seed_all
from studio.engine.train_step import StockStep
from studio.engine.trainer import NonFinite
from studio.engine.trainer import Trainer as OwnTrainer
from studio.engine.trainer_hooks import Hooks
from studio.models.adapt import adapt, trained_state, unwrap
from tests.each_time import some


class KernelBroke(RuntimeError):
    """Stands for a kernel that fails to compile in the middle of training."""


@pytest.fixture
def build(recipe):
    """A function that builds a trainer of ours: `build(changes, wrap_loss, **hooks) -> (trainer, losses)`."""

    def make(changes=None, wrap=lambda loss: loss, **hooks):
        chosen = change_recipe(recipe, {"adapter.dropout": 0.1} | (changes or {}))
        seed_all(chosen.seed)
        model = adapt(
            AutoModelForCausalLM.from_pretrained(chosen.model.source, dtype=torch.float32), chosen.adapter
        )
        tokenizer = AutoTokenizer.from_pretrained(chosen.model.source)
        data = prepare(chosen.data, chosen.objective, tokenizer, seed=chosen.seed)
        losses = []

        def emit(event):
            if event.kind == "step_logged":
                losses.append(event.loss)

        device = torch.device("cpu")
        head = wrap(LossHead(unwrap(model)).token_losses)
        step = StockStep(
            model, head, objective=SFT, dtype="fp32", device=device, pad_id=tokenizer.pad_token_id
        )
        trainer = OwnTrainer(
            model,
            step,
            data.train,
            data.validation,
            chosen,
            "adamw",
            "fp32",
            device,
            Hooks(emit=emit, should_stop=lambda: False, save=lambda state: 0, **hooks),
            micro_batch=chosen.optim.micro_batch,
        )
        return trainer, losses

    return make


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trained_state(trainer.model).items()}


def test_seam_1_a_loss_head_of_another_kind(build):
    """A fused head replaces one function; here one that computes full logits, with the same numbers."""

    def full_logits(_):
        def loss(batch):
            logits = trainer.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
            rows = logits.reshape(-1, logits.shape[-1])[batch.picks]
            return torch.nn.functional.cross_entropy(rows, batch.targets, reduction="none")

        return loss

    stock, expected = build()
    stock.train()
    trainer, losses = build(wrap=full_logits)
    trainer.train()
    assert losses == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("call", some([1, 4, 7], 4))
def test_seam_2_replay_of_the_window_after_a_kernel_failure(build, place, call):
    """A failure at any micro-batch, also with half the gradients there: bitwise the weights of a run without it."""
    calm, calm_losses = build()
    calm.train()

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KernelBroke

    count = 0

    def fail_once(loss):
        def failing(batch):
            nonlocal count
            count += 1
            if count == call and place == "forward":
                raise KernelBroke
            value = loss(batch)
            return Breaks.apply(value) if count == call else value

        return failing

    recovered = []

    def recover(error, state):
        recovered.append(state.step)
        return isinstance(error, KernelBroke)

    stormy, stormy_losses = build(wrap=fail_once, recover=recover)
    stormy.train()
    assert len(recovered) == 1
    assert stormy_losses == calm_losses
    assert all(
        torch.equal(a, b) for a, b in zip(weights(calm).values(), weights(stormy).values(), strict=True)
    )


def test_seam_3_a_smaller_micro_batch_in_mid_run(build):
    """Out of memory at more than two rows from step 3 on: same samples, same effective batch, same losses."""
    calm, expected = build({"adapter.dropout": 0.0})
    calm.train()

    def limited(loss):
        def at_most_two(batch):
            if trainer.state.step >= 2 and batch.input_ids.shape[0] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return loss(batch)

        return at_most_two

    def halve(error, state):
        if isinstance(error, torch.OutOfMemoryError) and state.micro_batch > 1:
            state.micro_batch //= 2
            return True
        return False

    trainer, losses = build({"adapter.dropout": 0.0}, wrap=limited, recover=halve)
    trainer.train()
    assert trainer.state.micro_batch == 2
    assert losses == pytest.approx(expected, abs=1e-5)


def test_non_finite_steps_never_reach_the_weights(build):
    """Two bad steps are skipped and counted; the third in a row ends the run."""
    bad_steps = {2}

    def spoil(loss):
        return lambda batch: loss(batch) * (math.nan if trainer.state.step in bad_steps else 1.0)

    trainer, losses = build(wrap=spoil)
    trainer.train()
    assert math.isnan(losses[2]) and trainer.state.skipped == 1
    assert all(torch.isfinite(tensor).all() for tensor in weights(trainer).values())

    bad_steps = {1, 2, 3}
    trainer, losses = build(wrap=spoil)
    with pytest.raises(NonFinite):
        trainer.train()
    assert trainer.state.step == 4
    assert all(torch.isfinite(tensor).all() for tensor in weights(trainer).values())


def test_an_evaluation_that_a_stop_cut_short_is_made_up_for(build):
    changes = {"data.validation_share": 0.3, "run.eval_every": 2, "run.early_stopping": 1}
    cut, _ = build(changes)
    evaluating = []
    cut.hooks.beat = lambda phase, step, micro: evaluating.append(step) if phase == "evaluate" else None
    cut.hooks.should_stop = lambda: bool(evaluating)
    assert cut.train().end == "stopped" and cut.state.step == 2 and cut.state.last_eval is None
    resumed, _ = build(changes)
    resumed.load_state_data(cut.state_data())
    seen = []
    resumed.hooks.emit = seen.append
    resumed.train()
    assert [event.step for event in seen if event.kind == "eval_logged"][0] == 2


def test_a_resume_after_early_stopping_trains_no_further(build):
    changes = {"data.validation_share": 0.3, "run.eval_every": 1, "run.early_stopping": 1}
    changes |= {"optim.learning_rate": 0.5, "optim.epochs": 20}
    ended, _ = build(changes)
    assert ended.train().end == "early" and ended.state.step < ended.total_steps
    resumed, losses = build(changes)
    resumed.load_state_data(ended.state_data())
    assert resumed.train().end == "early" and losses == []


def test_the_stock_trainer_steps_on_non_finite_gradients(tiny_models, tmp_path):
    """The evidence against transformers' Trainer: with five natural seams overridden, a NaN still reaches the weights.

    compute_loss, training_step, get_train_dataloader, _save_checkpoint and _clip_grad_norm are taken by the fused head,
    replay, data order, safe checkpoints and the finiteness check; none of them can keep `optimizer.step()`, which
    _run_epoch calls unconditionally, from running. That needs a wrapped optimizer, and then evaluation back-off,
    rotation and resume each need another private method: nine in all, seven of them private.
    """
    model = AutoModelForCausalLM.from_pretrained(tiny_models("llama"), dtype=torch.float32)

    class Overridden(Trainer):
        seen_non_finite = 0

        def compute_loss(self, model, inputs, *args, **kwargs):
            return super().compute_loss(model, inputs, *args, **kwargs) * math.nan

        def training_step(self, *args, **kwargs):
            return super().training_step(*args, **kwargs)

        def get_train_dataloader(self):
            return super().get_train_dataloader()

        def _save_checkpoint(self, *args, **kwargs):
            return None

        def _clip_grad_norm(self, model):
            norm = super()._clip_grad_norm(model)
            Overridden.seen_non_finite += not math.isfinite(float(norm))
            return norm

    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7], "attention_mask": [1, 1, 1]} for _ in range(4)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=1, report_to="none", use_cpu=True, disable_tqdm=True
    )
    trainer = Overridden(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    assert Overridden.seen_non_finite == 1
    assert any(torch.isnan(parameter).any() for parameter in model.parameters())


def test_longer_padding_changes_no_loss(build):
    """On a GPU rows are padded to multiples of 64, on a processor of 8; what is learned does not hang on it."""
    short, expected = build({"adapter.dropout": 0.0})
    assert short.step.pad_multiple == 8
    short.train()
    long, losses = build({"adapter.dropout": 0.0})
    long.step.pad_multiple = PAD_MULTIPLE["cuda"]
    assert long.step._collate(long.train_examples[:2]).input_ids.shape == (2, 64)
    long.train()
    assert losses == pytest.approx(expected, abs=1e-5)
