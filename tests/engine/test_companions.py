"""KTO's other answers, which go along behind their prompts: z, the gradients and the metrics of a pass of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from studio_kernels.dispatch import bind

from studio.core.memory_policy import KEEP_LEVELS, LayerPolicy, MemoryPolicy
from studio.core.recipe import PreferenceSpec
from studio.data.sequence_packing import Example
from studio.engine.decoder_step import DecoderStep
from studio.engine.objectives import get_objective
from studio.engine.oom_fallback import climb, rungs_of
from studio.engine.token_stream import join_apart, join_beside
from studio.engine.train_state import TrainState
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.optimize_model import Fast
from tests.each_time import some_of_several
from tests.engine.test_preference import draw_answers, make
from tests.engine.test_preference_parity import assert_same_run
from tests.models.decoder.models import make_model

FAMILIES = ("llama", "mistral", "gemma2", "gemma3", "qwen3")


def draw(count: int = 6, most: int = 60, seed: int = 1) -> list[Example]:
    """Return examples with references near what an untrained model gives, and companions, some of them cut."""
    chance = np.random.default_rng(seed)

    def refer(one: Example) -> Example:
        values = np.where(one.trained, -5.5 + 0.3 * chance.normal(size=len(one.trained)), 0)
        return dataclasses.replace(one, reference=values.astype(np.float32))

    examples = draw_answers(count, 1)
    beside = get_objective("kto", PreferenceSpec()).companions(examples, most)
    return [
        dataclasses.replace(refer(one), companion=refer(other))
        for one, other in zip(examples, beside, strict=True)
    ]


def take(family: str, keep: str = "all", *, dropout: float = 0.0) -> DecoderStep:
    policy = MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 3)
    model = make_model(family, dropout=dropout)
    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32, policy=policy)
    assert isinstance(decoder, Decoder), decoder
    return DecoderStep(decoder, objective=make("kto"), pad_id=0)


def gradients_of(step: DecoderStep, examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    step.clear()
    sums = step.add_gradients(examples, len(examples), lambda loss: 2 * loss)
    return sums, step.decoder.store.gradients.clone()


def measure_apart(step: DecoderStep, examples: list[Example]) -> list[Example]:
    """Return the examples with z of a pass over their companions."""
    objective = step.objective

    def score(beside):
        values = step.log_probabilities(beside).cpu().numpy()
        edges = np.cumsum([0, *(int(one.trained[1:].sum()) for one in beside)])
        return [values[a:b] for a, b in zip(edges, edges[1:], strict=False)]

    z = objective.measure_window(examples, score)
    return [dataclasses.replace(one, window=z) for one in examples]


@pytest.mark.parametrize(
    ("family", "keep"),
    some_of_several(
        [(family, keep) for family in FAMILIES for keep in KEEP_LEVELS],
        ("llama", "all"), ("gemma3", "input"), ("gemma2", "qkv"),
    ),
)  # fmt: skip
@pytest.mark.parametrize("most", [60, 16])
def test_companions_that_go_along_give_what_a_pass_of_their_own_gives(family, keep, most):
    step, examples = take(family, keep), draw(most=most)
    assert step.measures(examples)
    measured = measure_apart(step, examples)
    expected, found = gradients_of(step, measured), gradients_of(step, examples)
    names = [one.name for one in step.objective.metrics]
    kl = float(found[0][1 + 2 * names.index("kl")]) / len(examples)
    assert kl == pytest.approx(measured[0].window, rel=1e-5) and kl > 0.01
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    largest = float(expected[1].abs().max())
    assert largest > 1e-5
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6 * max(1.0, largest))
    unmeasured = gradients_of(step, [dataclasses.replace(one, window=0.0) for one in examples])
    assert (unmeasured[1] - expected[1]).abs().max() > 1e-3 * largest, "z is felt"


def test_layers_keep_nothing_of_what_goes_along():
    step, examples = take("llama"), draw()
    tokens, rows, picks, targets = step._place_beside(examples)
    own = len(join_apart(examples, 0, step.pad_multiple).ids)
    assert rows.kept == own < len(tokens) == len(rows.positions)
    with torch.no_grad():
        x, kept = step.decoder.forward_layers(tokens, rows)
    assert len(x) == len(tokens) and len(picks) == len(targets)
    for layer in kept:
        for block in (layer.attention, layer.mlp):
            for one in dataclasses.fields(block):
                value = getattr(block, one.name)
                if isinstance(value, torch.Tensor):
                    assert len(value) == own and value.untyped_storage().nbytes() == value.nbytes
        assert all(len(one) == own for one in layer.attention.statistics)


def test_prompts_stand_once_and_padding_is_nobodys():
    examples = draw(5)
    beside = join_beside(examples, 160, 0, 8)
    own = [len(one.token_ids) for one in examples]
    assert (160 + len(beside.ids)) % 8 == 0 and len(beside.beginnings.own) == len(beside.ids)
    stream = np.concatenate([join_apart(examples, 0, 160).ids, beside.ids])
    written, end = stream[beside.beginnings.rows], 0
    for example in examples:
        companion = example.companion.token_ids
        assert np.array_equal(written[end : end + len(companion)], companion)
        end += len(companion)
    assert sum(beside.lengths) == len(written) and len(np.unique(beside.picks)) == len(beside.picks)
    words = np.concatenate([one.companion.token_ids[one.companion.trained] for one in examples])
    assert np.array_equal(beside.targets, words)
    assert np.array_equal(beside.beginnings.rows[beside.beginnings.own], 160 + np.arange(len(beside.ids)))
    assert len(beside.ids) < sum(len(one.companion.token_ids) for one in examples) - 5 and sum(own) <= 160


def test_where_they_cannot_go_along_they_take_their_own_pass():
    examples = draw()
    assert not take("llama", dropout=0.2).measures(examples), "dropout is not drawn for z"
    assert not take("gemma4_e2b").measures(examples) and not take("latent").measures(examples)
    alone = [dataclasses.replace(one, companion=None) for one in examples]
    assert not take("llama").measures([*alone, examples[0]])
    step = DecoderStep(take("llama").decoder, objective=make("kto apo"), pad_id=0)
    assert not step.measures(examples)


def test_where_memory_runs_out_they_take_their_own_pass_first():
    """A run that fitted before keeps what it keeps: this costs a few rows of a forward pass and nothing else."""
    step, examples, state = take("llama"), draw(), TrainState(micro_batch=8)
    rungs = rungs_of(Fast(step.decoder, None), longest_tokens=64)
    assert step.measures(examples) and climb(torch.nn.Module(), state, rungs)[0].name == "apart"
    assert not step.measures(examples) and state.micro_batch == 8
    assert climb(torch.nn.Module(), state, rungs)[0].name == "policy"
    plain = DecoderStep(take("llama").decoder, objective=make("dpo"), pad_id=0)
    assert "apart" not in [one.name for one in rungs if one.applies(torch.nn.Module(), state)]
    assert not plain.decoder.takes_along, "nothing to give up"


@pytest.mark.parametrize("name", ["kto", "kto weighed"])
@pytest.mark.parametrize("micro_batch", [8, 3])
def test_a_run_is_trls_by_either_way(name, micro_batch, tmp_path: Path, monkeypatch):
    taken, real = [], DecoderStep._place_beside

    def note(self, examples):
        taken.append(len(examples))
        return real(self, examples)

    monkeypatch.setattr(DecoderStep, "_place_beside", note)
    assert_same_run(name, True, micro_batch, tmp_path, monkeypatch)
    assert taken == [8] * 10 if micro_batch == 8 else not taken
