"""Objectives that compare answers: their gradients, however a step is cut, and whole runs on pairs and on thumbs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from studio.core.errors import StudioError
from studio.core.events import AnswersScored, EvalLogged, PhaseStarted, RunPlanned, StepLogged, Warned
from studio.core.i18n import load_catalogue
from studio.core.recipe import (
    DatasetSpec,
    ModelChoice,
    OptimSpec,
    PreferenceSpec,
    Recipe,
    RewardSpec,
    change_recipe,
)
from studio.data.sequence_packing import Example, pack
from studio.engine.batches import pick_values
from studio.engine.objectives import get_objective
from studio.engine.objectives.cpo import LOSSES as CPO_LOSSES
from studio.engine.objectives.dpo import LOSSES
from studio.engine.objectives.objective import Objective, Picked
from studio.engine.reference_logprobs import FILE, add_reference
from studio.engine.rewards import open_rewards
from studio.engine.rewards.reward import Answered
from studio.engine.trainer import Trainer
from studio.engine.trainer_hooks import Hooks
from studio.models.decoder.host_to_device import _cut as cut_bytes
from studio.models.decoder.host_to_device import count_bytes
from studio.models.decoder.host_to_device import pack as pack_bytes
from studio.planning import run_plan
from tests.each_time import some
from tests.engine.test_objectives import make_step
from tests.models.decoder.models import make_model

SMOOTHED = {"loss": "sigmoid", "label_smoothing": 0.15}
KINDS = {
    **{f"dpo {name}": ("dpo", {"loss": name, "label_smoothing": 0.2}) for name in LOSSES},
    "dpo nll": ("dpo", {**SMOOTHED, "nll_weight": 0.6}),
    **{f"cpo {name}": ("cpo", {"loss": name, "label_smoothing": 0.1}) for name in CPO_LOSSES},
    "simpo": ("simpo", {"label_smoothing": 0.1, "nll_weight": 0.3}),
    "orpo": ("orpo", {"beta": 0.4}),
    "kto": ("kto", {"good_weight": 0.7, "bad_weight": 1.4}),
    "kto apo": ("kto", {"loss": "apo_zero_unpaired"}),
}


def make(name: str) -> Objective:
    objective, settings = KINDS.get(name, (name, {"center": 0.3}))
    return get_objective(objective, PreferenceSpec(**settings))


def draw_answers(count: int, sequences: int) -> list[Example]:
    """Return examples whose sequences begin with the same prompt, as pairs do; single ones have labels."""
    rng, examples = np.random.default_rng(3), []
    for i in range(count):
        prompt = rng.integers(2, 97, rng.integers(3, 12))
        answers = [rng.integers(2, 97, rng.integers(2, 20)) for _ in range(sequences)]
        ids = np.concatenate([one for answer in answers for one in (prompt, answer)]).astype(np.int32)
        trained = np.concatenate([np.r_[np.zeros(len(prompt)), np.ones(len(one))] for one in answers]) > 0
        lengths = tuple(len(prompt) + len(one) for one in answers)
        examples.append(Example(ids, trained, lengths, label=None if sequences > 1 else bool(i % 3)))
    return examples


@pytest.mark.parametrize("name", [*KINDS, "reward"])
def test_coefficients_are_autograds_in_64_bits(name):
    objective = make(name)
    counts = torch.tensor([5, 3, 7, 4, 2, 6])
    generator = torch.Generator().manual_seed(4)
    lp = -3 * torch.rand(int(counts.sum()), generator=generator, dtype=torch.float64)
    answers = torch.arange(len(lp)) % 3 > 0 if name == "orpo" else None
    picked = Picked(
        reference=-3 * torch.rand(len(lp), generator=generator, dtype=torch.float64)
        if objective.needs_reference
        else None,
        counts=counts,
        answers=answers,
        labels=torch.tensor([True, False, True, True, False, False]),
        window=torch.tensor([0.37], dtype=torch.float64),
    )
    lp.requires_grad_()
    terms = objective.loss(lp, picked)
    (expected,) = torch.autograd.grad(terms.loss, lp)
    torch.testing.assert_close(terms.gradient, expected, rtol=1e-12, atol=1e-12)
    assert expected.abs().max() > 1e-3 and torch.isfinite(terms.loss)


@pytest.mark.parametrize("name", KINDS)
def test_what_an_objective_asks_reaches_a_card_as_it_is(name):
    """The bytes that go there in one copy, cut again as they are on the card."""
    objective = make(name)
    drawn = [
        dataclasses.replace(one, window=0.25, reference=np.where(one.trained, -1.5, 0).astype(np.float32))
        for one in draw_answers(3, objective.sequences)
    ]
    found = pick_values(objective.view(drawn)[0:3], objective)
    arrays = [*found.values()]
    memory = np.zeros(count_bytes(arrays), np.uint8)
    pack_bytes(arrays, memory)
    for name, sent in zip(found, cut_bytes(torch.from_numpy(memory), arrays), strict=True):
        assert np.array_equal(sent.numpy(), found[name]), name
    assert {"counts", "window"} <= {*found} and ("labels" in found) == (objective.name == "kto")


class Parts:
    """The trainer of one objective, whose gradients of a step can be asked for in micro-batches of any size."""

    def __init__(
        self,
        name: str,
        own: bool,
        folder,
        examples: list[Example],
        family: str = "llama",
        *,
        shares: bool = False,
    ) -> None:
        self.objective = make(name)
        model = make_model(family)
        recipe = Recipe(
            model=ModelChoice(source="m"),
            data=DatasetSpec(source="d"),
            optim=OptimSpec(batch_size=len(examples), max_steps=9),
        )
        step, device = make_step(self.objective, own, model, shares=shares), torch.device("cpu")
        hooks = Hooks(emit=lambda event: None, should_stop=lambda: False, save=lambda state: 0)
        self.trainer = Trainer(model, step, examples, [], recipe, "adamw", "fp32", device, hooks)
        self.own = own
        if self.objective.needs_reference:
            add_reference(self.trainer, folder, "data", lambda: None)
        self.learn(0.02)  # ratios are no longer 1

    @torch.no_grad()
    def learn(self, share: float) -> None:
        """Change what is trained, by name: the same for both steps."""
        generator = torch.Generator().manual_seed(7)
        for _, one in self.trainer.model.named_parameters():
            if one.requires_grad:
                one.add_(share * torch.randn(one.shape, generator=generator))

    def take(self, micro_batch: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        trainer = self.trainer
        trainer.state.micro_batch = trainer.evaluation_batch = micro_batch
        trainer.longest_tokens = trainer.step.find_longest(trainer.train_examples)
        sums = trainer.take_gradients(list(trainer.train_examples))
        named = {name: one for name, one in trainer.model.named_parameters() if one.requires_grad}
        store = trainer.step.decoder.store if self.own else None
        return sums, {
            name: (store.gradient(one) if store else one.grad).detach().clone() for name, one in named.items()
        }


@pytest.mark.parametrize("name", some(KINDS, "dpo sigmoid", "orpo", "kto"))
def test_a_step_has_the_same_gradient_in_both_steps_and_however_it_is_cut(name, tmp_path):
    examples = draw_answers(8, make(name).sequences)
    sums, expected = Parts(name, False, tmp_path, examples).take(8)
    largest = max(float(one.abs().max()) for one in expected.values())
    assert largest > 1e-4
    for own in (False, True):
        (tmp_path / str(own)).mkdir()
        parts = Parts(name, own, tmp_path / str(own), examples)
        for micro_batch in (8, 4, 1):
            found_sums, found = parts.take(micro_batch)
            torch.testing.assert_close(found_sums, sums, rtol=1e-4, atol=1e-4)
            for key, gradient in expected.items():
                torch.testing.assert_close(
                    found[key], gradient, rtol=0, atol=1e-5 * max(1.0, largest), msg=key
                )


def test_pairs_that_share_a_row_are_compared_each_with_its_own(tmp_path):
    examples = draw_answers(8, 2)
    sums, expected = Parts("dpo nll", True, tmp_path, examples).take(8)
    packed = [*pack(examples, 200)]
    assert len(packed) < 8 and max(len(one.lengths) for one in packed) > 2
    (tmp_path / "packed").mkdir()
    found_sums, found = Parts("dpo nll", True, tmp_path / "packed", packed).take(8)
    torch.testing.assert_close(found_sums, sums, rtol=1e-4, atol=1e-4)
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=0, atol=1e-5, msg=key)


@pytest.mark.parametrize(("name", "first"), [("dpo sigmoid", np.log(2)), ("kto", None)])
def test_before_the_first_step_nothing_is_gained(name, first, tmp_path):
    parts = Parts(name, True, tmp_path, draw_answers(8, make(name).sequences))
    parts.learn(-0.02)
    sums, _ = parts.take(4)
    weights = [(0.7 if one.label else 1.4) / 2 for one in parts.trainer.train_examples]
    assert sums[0].item() == pytest.approx(sum(weights) / 8 if first is None else first, abs=1e-5)


# In a run ------------------------------------------------------------------------------------------------------------


def write_pairs(jsonl, path, rows=16):
    return jsonl(
        path,
        [
            {"prompt": f"say {i}", "chosen": f"yes {i} yes", "rejected": "no no no " * (1 + i % 3)}
            for i in range(rows)
        ],
    )


def write_thumbs(jsonl, path, rows=24):
    return jsonl(
        path,
        [
            {"prompt": f"say {i}", "completion": f"yes {i}" if i % 3 else "no no", "label": bool(i % 3)}
            for i in range(rows)
        ],
    )


@pytest.mark.parametrize("objective", some(["auto", "simpo", "cpo", "orpo"], "auto"))
def test_pairs_are_trained(ran, jsonl, tmp_path, objective):
    file = write_pairs(jsonl, tmp_path / "pairs.jsonl")
    changes = {
        "data.source": str(file),
        "objective": objective,
        "data.validation_share": 0.25,
        "run.eval_every": 2,
    }
    result = ran(changes | {"optim.epochs": 4, "optim.learning_rate": 3e-3})
    assert result.record.state == "finished", result.log
    names = [one.name for one in result.of(RunPlanned)[0].metrics]
    steps = result.of(StepLogged)
    assert "rewards/margins" in names and all({*step.metrics} == {*names} for step in steps)
    assert steps[-1].metrics["rewards/margins"] > steps[0].metrics["rewards/margins"]
    assert result.of(EvalLogged)[-1].metrics["rewards/accuracies"] > 0.5
    assert (result.folder.path / FILE).exists() is (objective == "auto")
    if objective == "auto":
        assert steps[0].loss == pytest.approx(np.log(2), abs=1e-5)
        assert [one.phase for one in result.of(PhaseStarted)].index("reference") > 0
    assert (result.folder.path / result.record.artifact).is_dir()


def test_thumbs_are_trained(ran, jsonl, tmp_path):
    file = write_thumbs(jsonl, tmp_path / "thumbs.jsonl")
    changes = {"data.source": str(file), "data.validation_share": 0.0, "optim.epochs": 4}
    result = ran(changes | {"optim.learning_rate": 3e-3})
    assert result.record.state == "finished", result.log
    steps = result.of(StepLogged)
    assert steps[-1].metrics["rewards/margins"] > steps[0].metrics.get("rewards/margins", 0)
    # 16 good and 8 bad ones: the bad count 2 / (7 / 6) times as much, so that the ratio is amid Eq. 8's range.
    assert steps[0].loss == pytest.approx(0.5 * (16 + 8 * 1.71) / 24, abs=0.1)


@pytest.mark.computing
def test_a_run_goes_on_from_its_checkpoint_with_the_reference_it_had(ran, jsonl, tmp_path):
    file = write_pairs(jsonl, tmp_path / "pairs.jsonl")
    changes = {
        "data.source": str(file),
        "data.validation_share": 0.0,
        "optim.epochs": 4,
        "optim.learning_rate": 3e-3,
    }
    whole = ran(changes, runs=tmp_path / "whole")
    stopped = ran(changes, stop_at=4)
    assert stopped.record.state == "stopped"
    resumed = ran(changes, folder=stopped.folder)
    assert resumed.record.state == "finished", resumed.log
    later = [step.loss for step in resumed.of(StepLogged)]
    assert later == pytest.approx(whole.losses[-len(later) :], abs=1e-6)


def test_an_unset_learning_rate_is_the_objectives_and_a_set_one_stays(ran, jsonl, tmp_path):
    file = write_pairs(jsonl, tmp_path / "pairs.jsonl")
    changes = {"data.source": str(file), "optim.max_steps": 1, "optim.warmup_share": 0.0}
    result = ran(changes | {"optim.learning_rate": 0.0})
    assert result.of(StepLogged)[0].lr == pytest.approx(5e-6)
    assert "run.usual_rate" in [one.message.id for one in result.of(Warned)]
    kept = ran(changes | {"optim.learning_rate": 2e-4}, runs=tmp_path / "kept")
    assert kept.of(StepLogged)[0].lr == pytest.approx(2e-4)
    assert "run.usual_rate" not in [one.message.id for one in kept.of(Warned)]


@pytest.mark.parametrize(
    ("writer", "objective"), [(write_pairs, "sft"), (write_pairs, "kto"), (write_thumbs, "dpo")]
)
def test_data_of_another_kind_are_refused_with_what_to_do(ran, jsonl, tmp_path, writer, objective):
    file = writer(jsonl, tmp_path / "rows.jsonl")
    result = ran({"data.source": str(file), "objective": objective})
    diagnosis = result.record.diagnosis
    assert result.record.state == "failed" and diagnosis.what.id == "data.kind.other_objective"
    fitting = "KTO" if writer is write_thumbs else "DPO"
    assert fitting in load_catalogue("en").say(diagnosis.fixes[0].title)


@pytest.mark.computing
@pytest.mark.parametrize("own", [False, True])
def test_a_reward_model_is_trained_and_its_adapter_and_merged_form_score_alike(
    ran, machine, jsonl, tmp_path, monkeypatch, own
):
    """What transformers and peft load gives the scores that the better answers were trained to win by."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from studio.engine.exporters import EXPORTERS
    from studio.engine.exporters.exporter import ExportJob
    from studio.models.architectures import holds_score
    from studio.models.catalog import inspect_model
    from studio.services.partners import find_partner

    file = write_pairs(jsonl, tmp_path / "pairs.jsonl")
    changes = {
        "data.source": str(file),
        "objective": "reward",
        "data.validation_share": 0.25,
        "run.eval_every": 4,
    }
    monkeypatch.setattr(run_plan, "decoder_pays", lambda gpu: own)
    result = ran(changes | {"optim.epochs": 6, "optim.learning_rate": 5e-3, "run.samples": 2})
    said = [one.id for one in result.of(RunPlanned)[0].swaps]
    assert ("run.decoder" in said) == ("plan.shared_prompts.on" in said) == own
    assert result.of(AnswersScored) == [], "it answers nothing"
    assert result.record.state == "finished", result.log
    steps = result.of(StepLogged)
    assert steps[-1].metrics["accuracy"] == 1 and steps[-1].metrics["margin"] > steps[0].metrics["margin"]
    recipe = result.folder.read_recipe()
    folder = result.folder.path / result.record.artifact
    assert holds_score(folder)
    base = AutoModelForSequenceClassification.from_pretrained(recipe.model.source, num_labels=1)
    adapted = PeftModel.from_pretrained(base, folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(model, words):
        turns = [{"role": "user", "content": "say 3"}, {"role": "assistant", "content": words}]
        ids = tokenizer.apply_chat_template(turns, return_tensors="pt", return_dict=False)
        with torch.no_grad():
            return float(model(input_ids=ids).logits[0, 0])

    assert score(adapted, "yes 3 yes") > score(adapted, "no no no") + 0.5
    with pytest.raises(StudioError) as refusal:
        find_partner(SimpleNamespace(runs=result.folder.path.parent), machine, result.record.run, "", None)
    assert refusal.value.what.id == "chat.scores", "it does not answer"
    merged = next(one for one in EXPORTERS if one.name == "merged")
    target = tmp_path / "merged"
    target.mkdir()
    job = ExportJob(
        run_folder=result.folder.path,
        record=result.record,
        facts=inspect_model(recipe.model.source),
        plan=result.of(RunPlanned)[0].plan,
        target=target,
    )
    merged.write(job)
    assert any("AutoModelForSequenceClassification" in line for line in merged.load_lines(str(target), ""))
    loaded = AutoModelForSequenceClassification.from_pretrained(target, dtype=torch.float32).eval()
    for words in ("yes 3 yes", "no no no"):
        assert score(loaded, words) == pytest.approx(score(adapted, words), abs=0.1)
    answers = [
        Answered(prompt=({"role": "user", "content": "say 3"},), answer=words)
        for words in ("yes 3 yes", "no no no")
    ]
    for place in (result.folder.path, target):
        spec = RewardSpec(name="model", options={"folder": str(place)})
        with open_rewards([spec], folder=tmp_path, seed=1) as rewards:
            found = [one.total for one in rewards.score(answers)]
        assert found == pytest.approx([score(adapted, one.answer) for one in answers], abs=0.1)
    with (
        pytest.raises(StudioError) as refusal,
        open_rewards(
            [RewardSpec(name="model", options={"folder": recipe.model.source})], folder=tmp_path, seed=1
        ),
    ):
        pass
    assert refusal.value.what.id == "reward.model.missing"


def test_a_reward_model_of_all_weights_is_refused_before_it_starts(machine, recipe):
    from studio.planning.recipe_check import check

    wrong = change_recipe(recipe, {"objective": "reward", "adapter.method": "full"})
    assert "check.reward_full" in [one.message.id for one in check(wrong, machine, None, None)]


@pytest.mark.computing
@pytest.mark.parametrize("own", [False, True])
def test_a_reward_model_that_was_stopped_can_be_taken_out_and_goes_on(ran, jsonl, tmp_path, monkeypatch, own):
    from studio.engine.artifact import load_artifact
    from studio.engine.chat import Partner, save_checkpoint
    from studio.engine.checkpoint import list_checkpoints
    from studio.models.catalog import inspect_model

    file = write_pairs(jsonl, tmp_path / "pairs.jsonl")
    changes = {
        "data.source": str(file),
        "objective": "reward",
        "data.validation_share": 0.0,
        "optim.epochs": 4,
    }
    changes |= {"optim.learning_rate": 5e-3}
    monkeypatch.setattr(run_plan, "decoder_pays", lambda gpu: own)
    whole, stopped = ran(changes, runs=tmp_path / "whole"), ran(changes, stop_at=4)
    recipe = stopped.folder.read_recipe()
    facts, plan = inspect_model(recipe.model.source), stopped.of(RunPlanned)[0].plan
    place = max(list_checkpoints(stopped.folder.checkpoints), key=lambda one: one.step).path.name
    partner = Partner(
        facts=facts, plan=plan, recipe=recipe, folder=stopped.folder, record=stopped.record, place=place
    )
    record = save_checkpoint(partner, tmp_path / "taken")
    taken = load_artifact(tmp_path / "taken", record, facts, plan)
    assert float(taken.get_base_model().score.weight.abs().max()) > 0
    resumed = ran(changes, folder=stopped.folder)
    assert resumed.record.state == "finished", resumed.log
    later = resumed.losses
    assert later == pytest.approx(whole.losses[-len(later) :], abs=1e-6)
