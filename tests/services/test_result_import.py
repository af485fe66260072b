"""Adapters and models that other tools made: taken as runs, they compute what plain peft computes, and go on."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.cli.main import main
from studio.core.errors import StudioError
from studio.core.events import EvalLogged, StepLogged
from studio.core.i18n import load_catalogue
from studio.engine.artifact import load_artifact
from studio.engine.run_folder import RunFolder
from studio.models.load import set_evaluation
from studio.services.event_log import EventLog
from studio.services.result_import import find_maker, import_result, is_result
from studio.services.results import find_result
from tests.conftest import chat_rows, write_jsonl

IDS = torch.arange(2, 40)[None]
CARDS = {
    "peft": "---\nbase_model: x\nlibrary_name: peft\n---\n",
    "Unsloth": "---\nbase_model: unsloth/tiny-bnb-4bit\ntags:\n- text-generation-inference\n- unsloth\n---\n",
    "LLaMA-Factory": "---\nlibrary_name: peft\ntags:\n- base_model:adapter:x\n- llama-factory\n- lora\n---\n",
    "axolotl": "---\nlibrary_name: peft\ntags:\n- axolotl\n- base_model:adapter:x\n---\n",
}
HISTORY = {
    "global_step": 4,
    "max_steps": 4,
    "log_history": [
        {"step": 2, "loss": 3.5, "learning_rate": 1e-4, "epoch": 0.5, "grad_norm": 1.0},
        {"step": 4, "loss": 2.5, "learning_rate": 1e-5, "epoch": 1.0},
        {"step": 4, "eval_loss": 2.75, "epoch": 1.0},
        {"step": 4, "train_runtime": 1.0},
    ],
}


@pytest.fixture
def made(tiny_models, tmp_path):
    """A function `made(maker, **lora) -> folder`: an adapter as that tool leaves it."""

    def make(maker: str = "peft", named: str = "", **lora) -> Path:
        base = Path(tiny_models("llama"))
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        settings = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj", "down_proj"]} | lora
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
        folder = tmp_path / f"lora_{maker}"
        adapted.save_pretrained(folder)
        (folder / "README.md").write_text(CARDS[maker], encoding="utf-8")
        if maker != "peft":  # all three save the tokenizer beside it
            AutoTokenizer.from_pretrained(base).save_pretrained(folder)
        if maker in ("LLaMA-Factory", "axolotl"):
            (folder / "training_args.bin").write_bytes(pickle.dumps({"a": 1}))
            (folder / "trainer_state.json").write_text(json.dumps(HISTORY), encoding="utf-8")
            shutil.copytree(folder, folder / "checkpoint-2")
        if named:
            file = folder / "adapter_config.json"
            config = json.loads(file.read_text(encoding="utf-8")) | {"base_model_name_or_path": named}
            file.write_text(json.dumps(config), encoding="utf-8")
        return folder

    return make


def logits_of(folder: Path, base: Path) -> torch.Tensor:
    """What plain peft computes with an adapter."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(model, folder).eval()
    with torch.no_grad():
        return tuned(IDS).logits


def studio_logits(run: str, runs: Path, machine) -> torch.Tensor:
    """What chat and evaluation compute with the run's result."""
    result = find_result(RunFolder(runs / run), machine)
    model = load_artifact(result.folder.path, result.record, result.facts, result.plan)
    set_evaluation(model)
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("maker", CARDS)
@pytest.mark.parametrize("lora", [{}, {"use_rslora": True, "use_dora": True}], ids=["lora", "dora"])
def test_an_adapter_computes_what_peft_computes(made, tiny_models, tmp_path, kept_facts, maker, lora):
    from studio.machine.detect import detect

    named = "unsloth/tiny-bnb-4bit" if maker == "Unsloth" else ""
    folder, base = made(maker, named, **lora), Path(tiny_models("llama"))
    told = import_result(folder, tmp_path / "runs", str(base))
    assert (told.kind, told.maker) == ("adapter", "" if maker == "peft" else maker)
    machine = detect(cache=kept_facts)
    difference = (studio_logits(told.run, tmp_path / "runs", machine) - logits_of(folder, base)).abs().max()
    assert difference < 1e-4
    recipe = RunFolder(tmp_path / "runs" / told.run).read_recipe()
    assert (recipe.adapter.rank, recipe.adapter.alpha, recipe.adapter.dora) == (4, 12.0, bool(lora))
    assert recipe.adapter.target_modules == "down_proj,q_proj,v_proj"


def test_losses_of_its_trainer_are_the_runs_curve_and_pickles_stay(made, tmp_path):
    told = import_result(made("LLaMA-Factory"), tmp_path / "runs")
    folder = RunFolder(tmp_path / "runs" / told.run)
    events = EventLog(folder.events).since(0)
    assert [event.loss for event in events if isinstance(event, StepLogged)] == [3.5, 2.5]
    assert [event.loss for event in events if isinstance(event, EvalLogged)] == [2.75]
    record = folder.read_record()
    assert (record.steps, record.loss, record.eval_loss, record.state) == (4, 2.5, 2.75, "finished")
    assert not list(folder.path.rglob("*.bin")) and not list(folder.path.rglob("checkpoint*"))
    said = [load_catalogue("en").say(note) for note in told.notes]
    assert any("training_args.bin" in one for one in said)


def test_a_merged_model_is_a_run_too(made, tiny_models, tmp_path, kept_facts):
    from studio.machine.detect import detect

    base, folder = Path(tiny_models("llama")), made("peft")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, folder).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "merged")
    told = import_result(tmp_path / "merged", tmp_path / "runs", str(base))
    assert told.kind == "model"
    found = studio_logits(told.run, tmp_path / "runs", detect(cache=kept_facts))
    assert (found - logits_of(folder, base)).abs().max() < 1e-4
    alone = import_result(tmp_path / "merged", tmp_path / "runs")
    assert Path(RunFolder(tmp_path / "runs" / alone.run).read_recipe().model.source).is_dir()


def test_what_is_no_result_is_refused_in_words_and_leaves_nothing(made, tiny_models, tmp_path):
    runs = tmp_path / "runs"

    def refuse(folder: Path, base: str = "") -> str:
        with pytest.raises(StudioError) as refused:
            import_result(folder, runs, base)
        for part in (refused.value.what, refused.value.why, refused.value.fix):
            assert "import." not in load_catalogue("zh-CN").say(part)
        assert not runs.exists() or not list(runs.iterdir())
        return refused.value.why.id

    empty = tmp_path / "empty"
    empty.mkdir()
    assert refuse(empty) == "import.result.nothing"
    folder = made("axolotl")
    outer = tmp_path / "outer"
    shutil.copytree(folder / "checkpoint-2", outer / "checkpoint-2")
    with pytest.raises(StudioError) as refused:
        import_result(outer, runs)
    assert "checkpoint-2" in str(refused.value)
    wide = made("peft", r=4)
    config = wide / "adapter_config.json"
    told = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(told | {"peft_type": "IA3"}), encoding="utf-8")
    assert refuse(wide) == "import.result.kind"
    config.write_text(json.dumps(told | {"base_model_name_or_path": None}), encoding="utf-8")
    assert refuse(wide) == "import.result.base"
    config.write_text(json.dumps(told), encoding="utf-8")
    weights = wide / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert refuse(wide, str(tiny_models("llama"))).startswith("model.weights")
    weights.unlink()
    assert refuse(wide) == "import.result.weights"
    (wide / "adapter_model.bin").write_bytes(b"\x80\x04.")
    assert refuse(wide) == "import.result.pickle"


def test_an_adapter_of_another_model_is_refused(made, tmp_path):
    from tests.conftest import make_model

    other = make_model(tmp_path / "other", hidden_size=64)
    with pytest.raises(StudioError) as refused:
        import_result(made("peft"), tmp_path / "runs", str(other))
    assert refused.value.why.id == "import.result.fit"


def test_its_chat_template_goes_with_it(made, tmp_path):
    folder = made("Unsloth")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!", encoding="utf-8")
    told = import_result(folder, tmp_path / "runs")
    template = Path(RunFolder(tmp_path / "runs" / told.run).read_recipe().data.template)
    assert template.read_text(encoding="utf-8").endswith("!") and template.is_relative_to(tmp_path / "runs")


def test_makers_and_kinds_are_told_apart(made, tmp_path):
    assert is_result(made("peft")) and not is_result(tmp_path)
    assert find_maker(made("axolotl")) == "axolotl"
    (tmp_path / "x").mkdir()
    assert find_maker(tmp_path / "x") == ""


@pytest.mark.computing
def test_the_command_takes_it_and_it_is_exported_and_continued(
    made, tiny_models, tmp_path, capsys, know_machine
):
    """By the command line: import, chat, export as adapter and merged, and a run that goes on from it."""
    base, folder, space = Path(tiny_models("llama")), made("Unsloth", "unsloth/tiny-bnb-4bit"), tmp_path / "w"
    know_machine(space)

    def ask(*words: object) -> dict:
        capsys.readouterr()
        assert main([*map(str, words), "--json", "--child", "--workspace", str(space)]) == 0
        return json.loads(capsys.readouterr().out)

    run = ask("import", folder, "--model", base)["run"]
    assert ask("chat", run, "--prompt", "What is 1 + 2?", "--max-new-tokens", "4")
    adapter = ask("export", run, "--to", "adapter", "--folder", tmp_path / "adapter")
    expected = logits_of(folder, base)
    assert (logits_of(Path(adapter["path"]), base) - expected).abs().max() < 1e-4
    merged = ask("export", run, "--to", "merged", "--folder", tmp_path / "merged")
    model = AutoModelForCausalLM.from_pretrained(merged["path"], dtype=torch.float32).eval()
    with torch.no_grad():
        assert (model(IDS).logits - expected).abs().max() < 0.05  # stored in 16 bits
    data = write_jsonl(tmp_path / "chats.jsonl", chat_rows(16))
    recipe = {
        "model": {"source": str(base), "adapter": str(space / "runs" / run / "adapter")},
        "data": {"source": str(data), "max_length": 64},
        "optim": {"max_steps": 2},
        "run": {"trial": False, "samples": 0},
    }
    (tmp_path / "r.json").write_text(json.dumps(recipe), encoding="utf-8")
    assert ask("train", tmp_path / "r.json")["state"] == "finished"
