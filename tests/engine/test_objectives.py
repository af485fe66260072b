"""What an objective asks is what both steps give: weights, pairs, a reference, metrics, however a step is cut."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from studio_kernels.dispatch import bind
from torch import Tensor

from studio.core.events import DataPrepared, EvalLogged, Metric, RunPlanned, StepLogged
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe
from studio.data.sequence_packing import Example, cut_example
from studio.engine import preflight
from studio.engine.decoder_step import DecoderStep
from studio.engine.kernel_compile import shorten
from studio.engine.loss_head import LossHead
from studio.engine.objectives import OBJECTIVES
from studio.engine.objectives.objective import Objective, Picked, Terms
from studio.engine.objectives.sft import SFT
from studio.engine.objectives.weighted_sft import WEIGHTED_SFT
from studio.engine.train_step import StockStep, read_metrics
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import take_over
from tests.each_time import some
from tests.models.decoder.models import make_model, make_whole_model

ROOT = Path(__file__).resolve().parents[2]
BETA = 0.7


class Pairs(Objective):
    """A better and a worse answer, beside what the model thought of them before: as DPO, arXiv:2305.18290."""

    name = "pairs"
    sequences = 2
    needs_reference = True
    metrics = (
        Metric(name="preferred", unit="share", better="higher"),
        Metric(name="margin", better="higher"),
    )

    def loss(self, log_probabilities: Tensor, picked: Picked) -> Terms:
        gains = picked.sum_sequences(log_probabilities - picked.reference)
        margin = BETA * (gains[0::2] - gains[1::2])
        pull = -BETA * torch.sigmoid(-margin)
        gradient = torch.stack([pull, -pull], dim=1).flatten()
        count = margin.new_full((), len(margin))
        return Terms(
            loss=-torch.nn.functional.logsigmoid(margin).sum(),
            gradient=picked.spread(gradient, len(log_probabilities)),
            metrics={"preferred": ((margin > 0).sum(), count), "margin": (margin.sum(), count)},
        )


PAIRS = Pairs()


def draw(count: int, *, pair: bool = False) -> list[Example]:
    """Return examples of one document, or of two, whose ends are trained, with weights and a reference."""
    rng, examples = np.random.default_rng(5), []
    for _ in range(count):
        lengths = tuple(int(n) for n in rng.integers(9, 40, 2 if pair else 1))
        trained = np.concatenate([np.arange(n) > n // 2 for n in lengths])
        total = sum(lengths)
        examples.append(
            Example(
                rng.integers(2, 97, total).astype(np.int32),
                trained,
                lengths,
                np.where(trained, rng.uniform(0.1, 3, total), 0).astype(np.float32),
                np.where(trained, -rng.uniform(0, 5, total), 0).astype(np.float32),
            )
        )
    return sorted(examples, key=lambda one: -len(one.token_ids))


def make_step(
    objective: Objective, own: bool, model: torch.nn.Module, *, shares: bool = False
) -> StockStep | DecoderStep:
    """Return how `model` is computed: by the decoder, whose answers may share their prompt, or by its own code."""
    if own:
        decoder = take_over(unwrap(model), bind({}), dtype=torch.float32)
        return DecoderStep(decoder, objective=objective, pad_id=0, shares_prompts=shares)
    losses, device = LossHead(unwrap(model)).token_losses, torch.device("cpu")
    return StockStep(model, losses, objective=objective, dtype="fp32", device=device, pad_id=0)


class Taken:
    """A model, its step, and what a step of examples gave."""

    def __init__(
        self,
        objective: Objective,
        own: bool,
        examples: list[Example],
        at_once: int = 100,
        model: torch.nn.Module | None = None,
        shares: bool = False,
    ) -> None:
        self.model = make_model("llama") if model is None else model
        self.step = make_step(objective, own, self.model, shares=shares)
        self.step.clear()
        count = sum(map(objective.count, examples))
        parts = [examples[start : start + at_once] for start in range(0, len(examples), at_once)]
        self.sums = sum(self.step.add_gradients(part, count, lambda loss: 2 * loss) for part in parts)
        trained = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
        self.gradients = {
            name: (self.step.decoder.store.gradient(one) if own else one.grad) / 2
            for name, one in trained.items()
        }

    @torch.no_grad()
    def evaluate(self, examples: list[Example]) -> Tensor:
        return self.step.evaluate(examples)


def expect(objective: Objective, examples: list[Example]) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients by autograd through the model's own logits, one document after another."""
    model, total = make_model("llama"), torch.zeros(())
    for example in examples:
        gains, start = [], 0
        for length in example.lengths:
            ids = torch.from_numpy(example.token_ids[start : start + length]).long()
            lp = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            part = slice(start + 1, start + length)
            trained = torch.from_numpy(example.trained[part])
            weights, reference = (torch.from_numpy(one[part]) for one in (example.weights, example.reference))
            gain = lp - reference if objective is PAIRS else -lp * weights
            gains.append(gain[trained].sum())
            start += length
        if objective is PAIRS:
            total = total - torch.nn.functional.logsigmoid(BETA * (gains[0] - gains[1]))
        else:
            total = total + gains[0]
    loss = total / sum(map(objective.count, examples))
    loss.backward()
    return loss.item(), {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()), msg=name
        )


@pytest.mark.parametrize("own", some([False, True], True), ids=["model", "decoder"])
@pytest.mark.parametrize("objective", [WEIGHTED_SFT, PAIRS], ids=lambda one: one.name)
def test_gradients_are_autograds_however_a_step_is_cut(objective, own):
    examples = draw(6, pair=objective is PAIRS)
    loss, expected = expect(objective, examples)
    for at_once in (6, 4, 1):
        taken = Taken(objective, own, examples, at_once)
        assert taken.sums[0].item() == pytest.approx(loss, rel=1e-4)
        assert_same(taken.gradients, expected)
        count = sum(map(objective.count, examples))
        evaluated = taken.evaluate(examples)
        assert evaluated[0].item() / count == pytest.approx(loss, rel=1e-4)
        torch.testing.assert_close(evaluated[1:], taken.sums[1:], rtol=1e-4, atol=1e-5)
    assert read_metrics(evaluated.tolist(), objective).keys() == {one.name for one in objective.metrics}


@pytest.mark.parametrize("own", [False, True], ids=["model", "decoder"])
def test_weights_that_are_all_alike_change_nothing(own):
    examples = draw(4)
    alike = [
        dataclasses.replace(one, weights=np.full(len(one.token_ids), 0.25, np.float32)) for one in examples
    ]
    plain, weighed = Taken(SFT, own, examples), Taken(WEIGHTED_SFT, own, alike)
    loss = plain.sums.item()
    assert weighed.sums[0].item() == pytest.approx(loss, rel=1e-5)
    assert read_metrics(weighed.sums.tolist(), WEIGHTED_SFT)["plain_loss"] == pytest.approx(loss, rel=1e-5)
    assert_same(weighed.gradients, plain.gradients)


def test_a_trained_head_is_judged_like_the_rest():
    examples = draw(4, pair=True)
    expected = Taken(PAIRS, False, examples, model=make_whole_model("llama"))
    found = Taken(PAIRS, True, examples, model=make_whole_model("llama"))
    assert found.sums[0].item() == pytest.approx(expected.sums[0].item(), rel=1e-4)
    assert any("lm_head" in name for name in found.gradients)
    assert_same(found.gradients, expected.gradients)


@pytest.mark.parametrize("objective", [WEIGHTED_SFT, PAIRS], ids=lambda one: one.name)
def test_rows_that_are_cut_for_a_try_keep_what_their_objective_needs(objective):
    long = [dataclasses.replace(one) for one in draw(3, pair=objective is PAIRS)]
    step = Taken(objective, True, long).step
    for example in long:
        for most in (8, 20):
            trained = np.ones(min(most, len(example.token_ids)), dtype=bool)
            cut = cut_example(example, len(trained), trained)
            assert len(cut.token_ids) == len(cut.weights) == len(cut.reference) == sum(cut.lengths)
            assert (cut.weights > 0).all() and objective.count(cut) > 0
            slow = preflight._cut(example, most, objective.sequences)
            assert len(slow.lengths) == len(example.lengths) and len(slow.token_ids) <= most
            sums = step.add_gradients([slow], objective.count(slow), lambda loss: loss)
            assert torch.isfinite(sums).all(), "what is tried on a slow processor"
    rows = [shorten(example) for example in long]
    assert torch.isfinite(step.add_gradients(rows, sum(map(objective.count, rows)), lambda loss: loss)).all()


# In a run ------------------------------------------------------------------------------------------------------------


def write_chats(jsonl, path, weights):
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"say {i}"},
                {"role": "assistant", "content": f"first {i}", "weight": weights[0]},
                {"role": "user", "content": "more"},
                {"role": "assistant", "content": f"second {i} " + "and more " * 40, "weight": weights[1]},
            ]
        }
        for i in range(16)
    ]
    return jsonl(path, rows)


@pytest.mark.computing
def test_weights_in_the_data_are_trained_by(ran, jsonl, tmp_path):
    file = write_chats(jsonl, tmp_path / "weighed.jsonl", (0.25, 2))
    changes = {
        "data.source": str(file),
        "data.validation_share": 0.25,
        "optim.epochs": 2,
        "run.eval_every": 2,
    }
    weighed = ran(changes)
    assert weighed.record.state == "finished", weighed.log
    assert [metric.name for metric in weighed.of(RunPlanned)[0].metrics] == ["plain_loss"]
    steps, evaluations = weighed.of(StepLogged), weighed.of(EvalLogged)
    assert all(event.metrics["plain_loss"] > 0 for event in (*steps, *evaluations))
    assert any(abs(event.metrics["plain_loss"] - event.loss) > 1e-3 for event in steps)
    plain = ran(changes | {"objective": "sft"}, runs=tmp_path / "others")
    assert plain.of(StepLogged)[0].loss == pytest.approx(steps[0].metrics["plain_loss"], rel=1e-4)
    assert not plain.of(StepLogged)[0].metrics
    assert any(one.id == "data.note.weights_unused" for one in plain.of(DataPrepared)[0].facts.problems)


def test_every_objective_can_be_chosen_and_none_loads_torch():
    method = next(one for one in knobs_of(Recipe) if one.path == "objective")
    assert method.choices == ("auto", *(objective.name for objective in OBJECTIVES))
    code = "import sys, studio.engine.objectives; print({'torch', 'transformers'} & {*sys.modules})"
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
