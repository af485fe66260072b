"""Log-probabilities before the first step: computed once, kept with the run, refused when they are gone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe
from studio.data.sequence_packing import Example
from studio.engine.reference_logprobs import FILE, add_reference
from studio.engine.trainer import Trainer
from studio.engine.trainer_hooks import Hooks
from tests.engine.test_objectives import PAIRS, Taken, draw

RECIPE = Recipe(
    model=ModelChoice(source="m"), data=DatasetSpec(source="d"), optim=OptimSpec(batch_size=2, max_steps=9)
)


def make_trainer(examples: list[Example], own: bool) -> Trainer:
    taken = Taken(PAIRS, own, examples)
    hooks = Hooks(emit=lambda event: None, should_stop=lambda: False, save=lambda state: 0)
    device = torch.device("cpu")
    return Trainer(
        taken.model, taken.step, examples[:4], examples[4:], RECIPE, "adamw", "fp32", device, hooks
    )


@pytest.mark.parametrize("own", [False, True], ids=["model", "decoder"])
def test_it_is_what_the_model_gives_now_and_is_read_later(tmp_path, own):
    examples = draw(6, pair=True)
    trainer = make_trainer(examples, own)
    with torch.no_grad():
        expected = [trainer.step.log_probabilities([example]).numpy() for example in examples]
    add_reference(trainer, tmp_path, "data", lambda: None)
    found = [*trainer.train_examples, *trainer.validation]
    assert (tmp_path / FILE).exists() and len(found) == 6
    for example, values, own_values in zip(found, expected, examples, strict=True):
        assert np.array_equal(example.token_ids, own_values.token_ids)
        np.testing.assert_allclose(example.reference[example.reference != 0], values, rtol=1e-3, atol=1e-4)

    later = make_trainer(examples, own)
    later.state.step = 3
    with torch.no_grad():
        for parameter in later.trained:
            parameter.add_(0.1)  # it has learned
    add_reference(later, tmp_path, "data", lambda: None)
    for before, after in zip(found, [*later.train_examples, *later.validation], strict=True):
        assert np.array_equal(before.reference, after.reference)


def test_a_run_that_has_learned_cannot_go_on_without_it(tmp_path):
    trainer = make_trainer(draw(6, pair=True), own=True)
    trainer.state.step = 1
    with pytest.raises(StudioError) as refusal:
        add_reference(trainer, tmp_path, "data", lambda: None)
    assert refusal.value.what.id == "run.reference_lost" and not list(tmp_path.iterdir())


def test_what_was_computed_of_other_data_does_not_count(tmp_path):
    examples = draw(6, pair=True)
    add_reference(make_trainer(examples, own=True), tmp_path, "data", lambda: None)
    later = make_trainer(examples, own=True)
    later.state.step = 1
    with pytest.raises(StudioError):
        add_reference(later, tmp_path, "other data", lambda: None)


def test_a_stop_leaves_nothing_behind(tmp_path):
    trainer = make_trainer(draw(6, pair=True), own=True)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_reference(trainer, tmp_path, "data", stop)
    assert not list(tmp_path.iterdir())
