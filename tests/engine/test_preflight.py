"""The trial run: it finds before step 1 what would break later, and leaves no trace in the run."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from studio.core.events import MemoryFreed, PhaseStarted, RunStopped, StepLogged, TrialFinished, Warned
from studio.core.i18n import load_catalogue
from studio.core.recipe import change_recipe
from studio.data.sequence_packing import Example
from studio.engine.loss_head import LossHead
from studio.engine.objectives import get_objective
from studio.engine.preflight import PASS_SHARE, Trial, _cut
from studio.engine.run_folder import create_run
from tests.conftest import CHAT_TEMPLATE
from tests.each_time import some

LONG = "what is the capital of France, and why is it not Lyon?"


def found_before_step_1(result, *, what: str, why: str = "", says: str = "", id: str = "refused"):
    """Assert that the run ended by this finding with no step taken, told whole in both languages."""
    assert result.record.state == "failed", result.log
    diagnosis = result.record.diagnosis
    assert (diagnosis.id, diagnosis.what.id) == (id, what), result.log
    assert why in ("", diagnosis.why.id), diagnosis.why
    assert not result.of(StepLogged)
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        said = [
            catalogue.say(part)
            for part in (diagnosis.what, diagnosis.why, *(fix.title for fix in diagnosis.fixes))
        ]
        assert len(said) >= 3 and all(said) and not re.search(r"\{\w+\}", " ".join(said)), said
        assert says in " ".join(said) or language != "en", said
    assert not list(result.folder.path.glob("**/.staging*"))


def rows_with(answer: str, count: int = 16) -> list[dict]:
    """`count` short conversations, and one whose answer is `answer`."""
    turns = [("say hi", "hi"), ("say ho", "ho")] * (count // 2) + [(LONG, answer)]
    return [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
        for asked, said in turns
    ]


def harm(folder, tensor: str, change) -> None:
    """Rewrite one tensor of a stored model."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors[tensor])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# What it finds --------------------------------------------------------------------------------------------------------


def test_row_longer_than_learned_positions(ran, make_tiny_model, jsonl, tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=384, n_embd=32, n_layer=1, n_head=2, n_positions=48)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    data = jsonl(tmp_path / "long.jsonl", rows_with("It grew around the king."))
    result = ran({"model.source": str(folder), "data.source": str(data), "data.max_length": 128})
    found_before_step_1(result, what="trial.positions", says="what is the capital")
    assert result.record.diagnosis.what.values["most"] == 48
    assert result.record.diagnosis.what.values["tokens"] > 48


def test_validation_row_longer_than_rotary_positions(ran, make_tiny_model, jsonl, tmp_path):
    folder = make_tiny_model(tmp_path / "model", max_position_embeddings=40)
    data = jsonl(tmp_path / "validation.jsonl", rows_with("It grew around the king."))
    result = ran({"model.source": str(folder), "data.validation": str(data), "data.max_length": 128})
    found_before_step_1(result, what="trial.positions", says="validation data")


def test_token_beyond_the_vocabulary(ran, make_tiny_model, jsonl, tmp_path):
    folder = make_tiny_model(tmp_path / "model", vocab_size=261)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<|tool|>"])
    tokenizer.save_pretrained(folder)
    data = jsonl(tmp_path / "tools.jsonl", rows_with("<|tool|>search"))
    result = ran({"model.source": str(folder), "data.source": str(data)})
    found_before_step_1(result, what="trial.vocabulary", says="<|tool|>")


@pytest.mark.computing
def test_evaluation_that_does_not_fit_takes_fewer_rows_and_leaves_training_alone(ran, monkeypatch):
    real = LossHead.token_losses

    def limited(self, batch):
        if not torch.is_grad_enabled() and batch.input_ids.shape[0] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, batch)

    monkeypatch.setattr(LossHead, "token_losses", limited)
    result = ran({"data.validation_share": 0.3, "run.eval_every": 1})
    assert result.record.state == "finished", result.log
    kinds = [event.kind for event in result.events]
    freed = result.of(MemoryFreed)
    assert [(event.rung, event.micro_batch) for event in freed] == [("evaluation", 2)]
    assert kinds.index("memory_freed") < kinds.index("trial_finished") < kinds.index("step_logged")


@pytest.mark.computing
def test_memory_that_runs_out_goes_down_the_ladder_before_step_1(ran, monkeypatch):
    real = LossHead.token_losses

    def limited(self, batch):
        if torch.is_grad_enabled() and batch.input_ids.shape[0] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, batch)

    calm = ran()
    monkeypatch.setattr(LossHead, "token_losses", limited)
    result = ran()
    assert result.record.state == "finished", result.log
    assert [(event.rung, event.micro_batch) for event in result.of(MemoryFreed)] == [("micro_batch", 2)]
    kinds = [event.kind for event in result.events]
    assert kinds.index("memory_freed") < kinds.index("step_logged")
    assert result.losses == pytest.approx(calm.losses, abs=1e-5)


def test_checkpoint_folder_that_cannot_be_written(ran, recipe, tmp_path):
    folder = create_run(tmp_path / "runs", recipe)
    folder.checkpoints.write_text("a file in its place", encoding="utf-8")
    found_before_step_1(
        ran(folder=folder), what="failure.no_folder", id="no_folder", says=str(folder.checkpoints)
    )


def test_checkpoint_folder_without_permission(ran, monkeypatch):
    def refuse(folder, step, write, keep):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("studio.engine.preflight_save.save_checkpoint", refuse)
    found_before_step_1(ran(), what="failure.permission", id="permission", says="checkpoints")


ONE_TURN = (
    "{% if messages|length > 2 %}{{ raise_exception('one question only') }}{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_template_that_breaks_on_the_second_turn(ran, make_tiny_model, jsonl, tmp_path):
    folder = make_tiny_model(tmp_path / "model", template=ONE_TURN)
    rows = rows_with("Paris.")
    rows[-1]["messages"] *= 2
    data = jsonl(tmp_path / "two.jsonl", rows)
    result = ran({"model.source": str(folder), "data.source": str(data)})
    found_before_step_1(result, what="data.prepare.refused", says="one question only")


def test_template_that_breaks_on_a_second_question_which_no_row_asks_is_told(ran, make_tiny_model, tmp_path):
    folder = make_tiny_model(tmp_path / "model", template=ONE_TURN)
    result = ran({"model.source": str(folder)})
    assert result.record.state == "finished", result.log
    [warned] = result.of(Warned)
    assert warned.message.id == "trial.template" and warned.message.values["number"] == 2
    assert result.events.index(warned) < result.events.index(result.of(StepLogged)[0])


def test_disk_too_small_for_the_checkpoints(ran, monkeypatch):
    usage = SimpleNamespace(total=10**9, used=10**9 - 10_000, free=10_000)
    monkeypatch.setattr("studio.engine.checkpoint.shutil.disk_usage", lambda folder: usage)
    found_before_step_1(ran(), what="disk.full")


def test_tokenizer_without_an_end(ran, make_tiny_model, tmp_path):
    """Nor has its template an end mark, which would stand for it."""
    template = CHAT_TEMPLATE.replace("<|end|>", "")
    folder = make_tiny_model(tmp_path / "model", template=template, eos_token_id=None, pad_token_id=None)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    del settings["eos_token"], settings["pad_token"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    found_before_step_1(ran({"model.source": str(folder)}), what="trial.no_end", says="model")


def test_weights_that_are_no_numbers(ran, make_tiny_model, jsonl, tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    token = transformers.AutoTokenizer.from_pretrained(folder)("Z")["input_ids"][0]
    harm(folder, "model.embed_tokens.weight", lambda tensor: tensor[token].fill_(torch.inf))
    data = jsonl(tmp_path / "z.jsonl", rows_with("It is Zurich."))
    result = ran({"model.source": str(folder), "data.source": str(data), "data.max_length": 128})
    found_before_step_1(result, what="trial.loss", why="trial.numbers.weights", says="embed_tokens")


def test_loss_beyond_the_range_of_the_precision(ran, make_tiny_model, tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    harm(folder, "lm_head.weight", lambda tensor: tensor.mul_(1e38))
    result = ran({"model.source": str(folder)})
    found_before_step_1(result, what="trial.gradient", why="trial.numbers.range", says="fp32")


def test_no_row_with_anything_to_learn(ran, jsonl, tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": LONG}, {"role": "assistant", "content": "yes"}]}
        for _ in range(8)
    ]
    data = jsonl(tmp_path / "cut.jsonl", rows)
    result = ran({"data.source": str(data), "data.max_length": 16})
    found_before_step_1(result, what="data.prepare.nothing", why="data.prepare.nothing.cut", says="16")


def test_tensors_that_share_memory(ran, monkeypatch):
    import studio.engine.build as module

    real = module.load_model

    def share(*arguments, **settings):
        loaded = real(*arguments, **settings)
        first, second = (layer.mlp.gate_proj.weight for layer in loaded.model.model.layers)
        second.data = first.data
        return loaded

    monkeypatch.setattr(module, "load_model", share)
    result = ran({"adapter.method": "full", "optim.learning_rate": 1e-4})
    found_before_step_1(result, what="failure.shared_tensors", says="LoRA", id="shared_tensors")


def test_checkpoint_that_comes_back_changed(ran, monkeypatch):
    import studio.engine.checkpoint_state as module

    real = module.load_file

    def change(path):
        tensors = real(path)
        tensors[sorted(tensors)[-1]].view(-1)[0] += 1e-3
        return tensors

    monkeypatch.setattr(module, "load_file", change)
    found_before_step_1(ran(), what="trial.differs", why="trial.differs.why", says="lora_B")


def test_model_that_cannot_write(ran, make_tiny_model, tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    settings = {"eos_token_id": 0, "cache_implementation": "quantized"}
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    result = ran({"model.source": str(folder)})
    found_before_step_1(result, what="failure.package_missing", says="optimum-quanto", id="package_missing")


def test_tokenizer_that_cannot_be_saved_after_training(ran, monkeypatch):
    def refuse(*arguments, **settings):
        raise ValueError("This tokenizer lacks what is needed to save its vocabulary.")

    for name in ("save_vocabulary", "_save_pretrained"):
        monkeypatch.setattr(transformers.PreTrainedTokenizerFast, name, refuse)
    found_before_step_1(ran(), what="trial.result.broke", says="save its vocabulary")


def test_validation_row_that_cannot_be_read(ran, jsonl, tmp_path):
    rows = [*rows_with("Paris."), {"messages": [{"role": "user", "content": ""}]}]
    data = jsonl(tmp_path / "validation.jsonl", rows)
    result = ran({"data.validation": str(data)})
    found_before_step_1(result, what="data.problem.validation")


def test_kernel_that_fails_on_a_batch_of_one_row(ran, monkeypatch):
    real = LossHead.token_losses

    def limited(self, batch):
        if torch.is_grad_enabled() and batch.input_ids.shape[0] == 1:
            raise RuntimeError("no tile for a single row")
        return real(self, batch)

    monkeypatch.setattr(LossHead, "token_losses", limited)
    found_before_step_1(ran(), what="trial.one.broke", says="no tile for a single row")


# What it leaves alone -------------------------------------------------------------------------------------------------

CHANGES = {"adapter.dropout": 0.1, "data.validation_share": 0.25, "run.eval_every": 2}


@pytest.mark.parametrize("method", some(["lora", "full"], "full"))
def test_a_run_with_a_trial_is_bitwise_the_run_without(ran, method):
    changes = CHANGES | {"adapter.method": method, "optim.learning_rate": 1e-3}
    if method == "full":
        changes |= {"adapter.dropout": 0.0}
    tried, plain = ran(changes), ran(changes | {"run.trial": False})
    assert len(tried.of(TrialFinished)) == 1 and not plain.of(TrialFinished)
    assert tried.losses == plain.losses and tried.record.eval_loss == plain.record.eval_loss
    name = "adapter/adapter_model.safetensors" if method == "lora" else "model/model.safetensors"
    mine, theirs = (load_file(result.folder.path / name) for result in (tried, plain))
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
    states = [
        torch.load(max(result.folder.checkpoints.glob("step-*")) / "state.pt", weights_only=True)
        for result in (tried, plain)
    ]
    assert torch.equal(states[0]["generators"]["torch"], states[1]["generators"]["torch"])
    assert states[0]["scaler"] == states[1]["scaler"]


def test_it_tells_what_it_measured_and_stays_out_of_the_folder(ran, machine, recipe, tmp_path):
    from studio.engine.run import run

    beats = []
    folder = create_run(tmp_path / "runs", change_recipe(recipe, CHANGES))
    events = []
    run(folder.read_recipe(), machine, folder, events.append, lambda: False, lambda *beat: beats.append(beat))
    [trial] = [event for event in events if isinstance(event, TrialFinished)]
    assert 10 < trial.longest_tokens <= 64 and 0 < trial.took_s < 30
    assert 0 < trial.step_s * 5 <= trial.total_s < trial.step_s * 100 + 10
    assert not list(folder.checkpoints.glob(".staging*"))
    assert len({micro for phase, _, micro in beats if phase == "trial"}) >= 8


@pytest.mark.computing
def test_it_comes_once_and_not_after_a_resume(ran):
    stopped = ran(stop_at=2)
    assert len(stopped.of(TrialFinished)) == 1
    assert not ran(folder=stopped.folder).of(TrialFinished)


@pytest.mark.parametrize("parts", [0, 2, 6])
def test_a_stop_between_two_parts_ends_it(machine, recipe, tmp_path, parts):
    from studio.engine.run import run

    folder = create_run(tmp_path / "runs", recipe)
    events, seen = [], set()

    def beat(phase, step, micro):
        if phase == "trial":
            seen.add(micro)

    def should_stop():
        return len(seen) > parts

    record = run(folder.read_recipe(), machine, folder, events.append, should_stop, beat)
    assert record.state == "stopped"
    assert [event.saved for event in events if isinstance(event, RunStopped)] == [False]
    assert not [event for event in events if isinstance(event, (StepLogged, TrialFinished))]
    assert [event.phase for event in events if isinstance(event, PhaseStarted)][-1] == "trial"
    assert not list(folder.path.glob("**/.staging*"))


@pytest.mark.slow
@pytest.mark.parametrize(("pass_s", "left_out"), [(0.1, 0), (1.6, 1), (4.5, 4)])
def test_a_model_that_is_far_too_slow_does_not_take_longer(ran, monkeypatch, pass_s, left_out):
    """A trial of 12 s instead of 60; each pass of the model takes `pass_s`, however short its rows are."""
    from studio.engine import preflight as module
    from studio.engine.phases import train as training

    real, slow = transformers.LlamaModel.forward, []

    def forward(self, *arguments, **options):
        time.sleep(pass_s if slow else 0.0)
        return real(self, *arguments, **options)

    def try_out(*arguments, **options):
        slow.append(True)
        finished = module.try_out(*arguments, **options)
        slow.clear()
        return finished

    monkeypatch.setattr(transformers.LlamaModel, "forward", forward)
    monkeypatch.setattr(module, "BUDGET_S", 12.0)
    monkeypatch.setattr(training, "try_out", try_out)
    result = ran({"data.validation_share": 0.25, "run.eval_every": 2})
    assert result.record.state == "finished", result.log
    [trial] = result.of(TrialFinished)
    assert trial.took_s < 12 and trial.step_s > pass_s and trial.longest_tokens > 10
    counts = [event.message.values["count"] for event in result.of(Warned)]
    # On a busy machine one part more may not fit.
    assert len(counts) == (left_out > 0) and all(left_out <= count <= 4 for count in counts)


def test_a_slow_processor_tries_fewer_and_shorter_rows(tmp_path):
    rows = [Example(np.arange(1000), np.arange(1000) > 900, (600, 400)) for _ in range(4)]
    trial = Trial.__new__(Trial)
    step = SimpleNamespace(objective=get_objective("sft"))
    trial.budget_s, trial.trainer = 60.0, SimpleNamespace(device=torch.device("cpu"), step=step)
    trial.tokens_per_s = 10_000
    assert trial._fit(rows) == rows
    trial.tokens_per_s = 250
    assert [len(row.token_ids) for row in trial._fit(rows)] == [1000, 1000]
    trial.tokens_per_s = 700 / (PASS_SHARE * 60)
    [row] = trial._fit(rows)
    assert row.lengths == (600, 99) or row.lengths == (600, 100)
    assert row.trained[1:].all() and not row.trained[0]
    step.objective = get_objective("dpo")  # a pair stays one, whatever is cut of it
    [pair] = trial._fit(rows)
    assert pair.lengths in ((349, 349), (350, 350)) and not pair.trained[0]
    assert pair.trained[1:349].all() and pair.trained[350:].sum() in (48, 49)
    trial.trainer.device = torch.device("cuda")
    assert trial._fit(rows) == rows
    assert _cut(rows[0], 950, 1).trained.sum() == 49
