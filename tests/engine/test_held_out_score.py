"""The held-out score at a run's end, and the best state as its result: by loss, by answers, after stops."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from studio.core.events import AnswersScored, EvalLogged, RunPlanned, Warned
from studio.engine import training_answers
from studio.engine.best_weights import BestWeights
from studio.engine.generation.answerer import Answerer
from studio.engine.training_answers import TrainingAnswers
from tests.conftest import chat_rows

HELD_OUT = {"data.validation_share": 0.3, "run.eval_every": 1}
WILD = HELD_OUT | {"run.early_stopping": 3, "optim.learning_rate": 0.5, "optim.epochs": 20}
"""The loss rises soon, so that the best state is not the last one."""
EVERY = {"run.save_every": 1, "run.keep_checkpoints": 100}


def find_best(result) -> int:
    logged = result.of(EvalLogged)
    return min(logged, key=lambda event: event.loss).step


def read_adapter(result) -> dict[str, torch.Tensor]:
    return load_file(result.folder.path / result.record.artifact / "adapter_model.safetensors")


def read_checkpoint(result, step: int) -> dict[str, torch.Tensor]:
    found = load_file(result.folder.checkpoints / f"step-{step:08d}" / "trained.safetensors")
    return {name.replace(".default", ""): tensor for name, tensor in found.items()}


def test_early_stopping_keeps_the_best_state_and_not_the_last(ran):
    result = ran(WILD | EVERY)
    assert result.record.state == "finished", result.log
    best = find_best(result)
    assert result.record.kept_step == best < result.record.steps
    assert result.record.eval_loss == min(event.loss for event in result.of(EvalLogged))
    kept, last = read_checkpoint(result, best), read_checkpoint(result, result.record.steps)
    adapter = read_adapter(result)
    assert adapter.keys() == kept.keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in adapter.items())
    assert not all(torch.equal(tensor, last[name]) for name, tensor in adapter.items())
    assert [event.message.id for event in result.of(Warned)].count("run.best_kept") == 1
    assert not (result.folder.path / "best").exists()


def test_who_wants_the_last_state_gets_it(ran):
    result = ran(WILD | EVERY | {"run.best_checkpoint": "last"})
    assert result.record.kept_step == 0
    last, adapter = read_checkpoint(result, result.record.steps), read_adapter(result)
    assert all(torch.equal(tensor, last[name]) for name, tensor in adapter.items())


@pytest.mark.computing
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_stop_and_a_resume_keep_the_same_state(ran, method):
    changes = WILD | {"adapter.method": method}
    changes |= {"optim.learning_rate": 0.05} if method == "full" else {}
    whole = ran(changes)
    stopped = ran(changes, stop_at=whole.record.steps - 1)
    assert stopped.record.state == "stopped" and (stopped.folder.path / "best").is_dir()
    resumed = ran(folder=stopped.folder)
    assert resumed.record.state == "finished", resumed.log
    assert resumed.record.kept_step == whole.record.kept_step > 0
    assert resumed.record.eval_loss == whole.record.eval_loss


@pytest.mark.computing
def test_weights_that_are_gone_are_told_and_the_last_ones_stay(ran, monkeypatch):
    monkeypatch.setattr(BestWeights, "read", lambda self, step: None)
    result = ran(WILD)
    assert result.record.state == "finished" and result.record.kept_step == 0
    assert "run.best_gone" in [event.message.id for event in result.of(Warned)]


def test_the_best_may_be_kept_by_answers(ran):
    changes = HELD_OUT | {"optim.epochs": 8, "run.best_checkpoint": "rouge_l"}
    result = ran(changes)
    assert result.record.state == "finished", result.log
    assert [metric.name for metric in result.of(RunPlanned)[0].metrics] == ["rouge_l"]
    logged = [(event.step, event.metrics["rouge_l"]) for event in result.of(EvalLogged)]
    best = max(value for _, value in logged)
    first = next(step for step, value in logged if value == best)
    assert (result.record.kept_step or result.record.steps) == first
    (scored,) = result.of(AnswersScored)
    assert scored.step == first and scored.scores[0].metric == "rouge_l"
    assert scored.scores[0].value == pytest.approx(best), (
        "the state that was measured is the one that is scored"
    )


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_run_ends_with_its_score_beside_its_base(ran, method):
    result = ran(HELD_OUT | {"optim.epochs": 4, "adapter.method": method, "run.eval_every": 0})
    assert result.record.state == "finished", result.log
    (scored,) = result.of(AnswersScored)
    assert result.record.scores == scored.scores
    assert {score.metric for score in scored.scores} == {"exact", "normalised"}
    for score in scored.scores:
        assert 0 <= score.low <= score.value <= score.high <= 1 and 0 < score.rows <= 12
        assert score.base is not None, "LoRA: asked at the end; full: before the first step"
    assert [event.step for event in result.of(EvalLogged)] == [result.record.steps], (
        "the last step is evaluated, too"
    )


def test_a_score_counts_what_the_result_answers(ran):
    """Against a separate computation: transformers generates from the saved result."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from studio.core.recipe import read_value

    result = ran(HELD_OUT | {"optim.epochs": 4, "adapter.method": "full", "run.scored_rows": 50})
    (scored,) = result.of(AnswersScored)
    folder = result.folder.path / result.record.artifact
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    from studio.data.prepare import prepare

    recipe = result.folder.read_recipe()
    data = prepare(recipe.data, "sft", tokenizer, seed=read_value(recipe, "seed"))
    right = 0
    for row in data.validation:
        begin = int(row.trained.argmax())
        ids = torch.tensor([row.token_ids[:begin].tolist()])
        expected = tokenizer.decode(row.token_ids[begin:].tolist(), skip_special_tokens=True).strip()
        found = model.generate(ids, max_new_tokens=2 * (len(row.token_ids) - begin) + 8, do_sample=False)
        right += tokenizer.decode(found[0, begin:], skip_special_tokens=True).strip() == expected
    exact = next(score for score in scored.scores if score.metric == "exact")
    assert exact.rows == len(data.validation) and exact.value == right / exact.rows


@pytest.mark.computing
def test_no_score_where_there_is_nothing_to_answer(ran, jsonl, tmp_path):
    file = jsonl(tmp_path / "text.jsonl", [{"text": "the quick brown fox " * (3 + i % 5)} for i in range(20)])
    result = ran(HELD_OUT | {"data.source": str(file)})
    assert result.record.state == "finished" and result.of(AnswersScored) == [] and result.record.scores == ()
    assert ran(HELD_OUT | {"run.scored_rows": 0}).of(AnswersScored) == []
    assert ran({"data.validation_share": 0.0}).of(AnswersScored) == []


@pytest.mark.parametrize("short", [24, 0])
def test_answers_that_are_too_long_to_be_scored_are_counted(ran, jsonl, tmp_path, tiny_models, short):
    model = shutil.copytree(tiny_models(), tmp_path / "longer")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    write = json.dumps(config | {"max_position_embeddings": 1024})
    (model / "config.json").write_text(write, encoding="utf-8")
    long = [
        {
            "messages": [
                {"role": "user", "content": f"say {i}"},
                {"role": "assistant", "content": "fox " * 530},
            ]
        }
        for i in range(8)
    ]
    file = jsonl(tmp_path / "rows.jsonl", [*chat_rows(short), *long])
    changes = {
        "model.source": str(model),
        "data.source": str(file),
        "data.max_length": 1024,
        "optim.max_steps": 1,
    }
    result = ran(HELD_OUT | changes | {"data.validation_share": 0.5, "run.eval_every": 0})
    assert result.record.state == "finished", result.log
    [told] = [event.message for event in result.of(Warned) if event.message.id.startswith("score.")]
    held_out = (short + len(long)) // 2
    assert told.values["rows"] == held_out and told.values["tokens"] == 512
    if short:
        (scored,) = result.of(AnswersScored)
        assert told.id == "score.too_long" and 0 < told.values["count"] < held_out
        assert scored.scores[0].rows == held_out - told.values["count"]
    else:
        assert told.id == "score.all_too_long" and told.values["count"] == held_out
        assert result.of(AnswersScored) == []


def test_memory_that_runs_out_ends_the_score_and_not_the_run(ran, monkeypatch):
    def full(self, prompts, base, limit_s):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(TrainingAnswers, "_generate", full)
    result = ran(HELD_OUT)
    assert result.record.state == "finished" and result.of(AnswersScored) == []
    assert "score.given_up" in [event.message.id for event in result.of(Warned)]


def test_a_score_in_parts_is_made_ready_for_once(ran, monkeypatch):
    made = []

    class Counted(Answerer):
        def __init__(self, *given, **settings) -> None:
            made.append(settings["opens"])
            super().__init__(*given, **settings)

    monkeypatch.setattr(training_answers, "Answerer", Counted)
    given = HELD_OUT | {"run.eval_every": 0, "run.samples": 0}
    whole = ran(given).of(AnswersScored)
    assert made == [True, True], "once for the tuned model, once for its base"
    monkeypatch.setattr(training_answers, "MANY_SLOTS", 4)
    made.clear()
    parts = ran(given).of(AnswersScored)
    assert made == [True, True] and parts[0].scores == whole[0].scores and parts[0].scores[0].rows > 4


def test_kept_weights_are_those_of_two_steps_at_most(tmp_path):
    best = BestWeights(tmp_path / "best")
    for step in (2, 4, 6):
        best.keep(step, {"w": torch.full((2,), float(step))}, also=4)
    assert sorted(path.name for path in best.folder.iterdir()) == [
        "step-00000004.safetensors",
        "step-00000006.safetensors",
    ]
    assert best.read(6)["w"].tolist() == [6, 6] and best.read(2) is None
    (best.folder / "step-00000006.safetensors").write_bytes(b"damaged")
    assert best.read(6) is None
    best.remove()
    assert not best.folder.exists()
