"""Files of other tools become recipes, with a line for each of their settings, and none of them is ever run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studio.core.errors import RecipeError, StudioError
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.core.recipe import read_value
from studio.services.other_tools.importer import import_file, import_words
from studio.services.other_tools.translation import FATES, settings_json
from tests.services.other_tools import files

ROOT = Path(__file__).resolve().parents[3]
COMES_TO = {
    "llama.yaml": (
        files.LLAMA_FACTORY,
        "LLaMA-Factory",
        {
            "model.source": "Qwen/Qwen2.5-0.5B-Instruct",
            "objective": "sft",
            "adapter.rank": 16,
            "adapter.alpha": 32.0,
            "adapter.target_modules": "q_proj,v_proj",
            "data.max_length": 1536,
            "data.max_rows": 900,
            "data.fill": True,
            "data.mix": {"others": "1"},
            "optim.batch_size": 16,
            "optim.learning_rate": 3e-5,
            "optim.warmup_share": 0.1,
            "optim.weight_decay": 0.0,
            "data.validation_share": 0.1,
        },
        {"use_galore": "left", "loraplus_lr_ratio": "differs", "lerning_rate": "unknown", "bf16": "left"},
    ),
    "axolotl.yml": (
        files.AXOLOTL,
        "axolotl",
        {
            "model.quantization": "nf4",
            "adapter.target_modules": "all-linear",
            "data.source": "mine/alpaca",
            "data.max_rows": 500,
            "data.split": "train",
            "data.mix": {"more.jsonl": "1"},
            "optim.optimizer": "paged_adamw_8bit",
            "optim.learning_rate": 2e-4,
            "optim.batch_size": 8,
            "optim.warmup_share": 0.03,
            "optim.epochs": 1.0,
        },
        {"noisy_embedding_alpha": "differs", "wandb_project": "left", "evals_per_epoch": "left"},
    ),
    "tune.yaml": (
        files.TORCHTUNE,
        "torchtune",
        {
            "model.source": "meta-llama/Llama-3.2-1B-Instruct",
            "adapter.target_modules": "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
            "data.source": "yahma/alpaca-cleaned",
            "data.train_on": "everything",
            "optim.max_steps": 100,
            "optim.batch_size": 32,
            "optim.max_grad_norm": 0.0,
            "optim.warmup_steps": 100,
            "data.max_length": 512,
        },
        {"tokenizer.path": "left", "model._component_": "taken", "clip_grad_norm": "left"},
    ),
    "swift.sh": (
        files.MS_SWIFT,
        "ms-swift",
        {
            "objective": "dpo",
            "model.source": "Qwen/Qwen2.5-7B-Instruct",
            "data.source": "hub/pairs",
            "data.max_rows": 500,
            "preference.beta": 0.2,
            "preference.nll_weight": 0.1,
            "optim.batch_size": 16,
            "optim.beta2": 0.95,
            "data.system_prompt": "You are\na helpful assistant.",
        },
        {"deepspeed": "left", "gradient_accumulation_steps": "changed"},
    ),
    "dpo.yaml": (
        files.TRL_YAML,
        "TRL",
        {
            "objective": "dpo",
            "preference.loss": "ipo",
            "preference.beta": 0.05,
            "data.source": "hub/pairs",
            "data.split": "train_prefs",
            "optim.batch_size": 8,
            "adapter.rank": 8,
            "adapter.alpha": 32.0,
        },
        {"max_prompt_length": "left"},
    ),
    "train.py": (
        files.TRL_SCRIPT,
        "TRL",
        {
            "objective": "dpo",
            "model.source": "org/model",
            "model.quantization": "nf4",
            "data.source": "pairs.jsonl",
            "data.max_rows": 200,
            "data.shuffle": True,
            "optim.batch_size": 8,
            "optim.learning_rate": 5e-6,
            "preference.loss": "hinge",
            "preference.beta": 0.3,
            "data.max_length": 640,
            "adapter.rank": 12,
            "adapter.alpha": 24.0,
        },
        {"output_dir": "left"},
    ),
    "unsloth.py": (
        files.UNSLOTH_SCRIPT,
        "Unsloth",
        {
            "objective": "sft",
            "model.source": "mine/llama-4bit",
            "model.quantization": "nf4",
            "adapter.rslora": True,
            "data.train_on": "answers",
            "data.max_length": 2048,
            "optim.optimizer": "adamw_8bit",
            "optim.max_steps": 60,
            "optim.warmup_steps": 5,
        },
        {
            "dataset.map": "differs",
            "neftune_noise_alpha": "differs",
            "report_to": "left",
            "chat_template": "left",
        },
    ),
}


def notebook(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": one.splitlines(True)} for one in cells]})


@pytest.mark.parametrize("name", COMES_TO)
def test_a_file_of_each_tool_comes_to_what_it_says(name):
    content, tool, settings, fates = COMES_TO[name]
    made = import_words(content, name)
    assert made.tool == tool
    assert {path: read_value(made.recipe, path) for path in settings} == settings
    told = {line.key: line.fate for line in made.lines}
    assert {key: told.get(key) for key in fates} == fates
    assert {line.fate for line in made.lines} <= set(FATES)


@pytest.mark.parametrize("name", COMES_TO)
def test_every_line_has_its_place_and_words_in_both_languages(name):
    content = COMES_TO[name][0]
    lines = content.splitlines()
    for line in import_words(content, name).lines:
        assert (line.place == "-") == (line.fate == "default"), line
        if line.place != "-" and "." not in line.key and "[" not in line.key and " " not in line.key:
            said = "\n".join(lines[int(line.place) - 1 : int(line.place) + 2])
            assert line.key.split("_")[0] in said.replace("train_type", "tuner_type"), line
        for language in LANGUAGES:
            said = load_catalogue(language).say(line.reason)
            assert "imported." not in said and "{" not in said, said


def test_grpo_counts_prompts_and_leaves_code_of_rewards_to_the_person():
    recipe = import_words(files.GRPO_SCRIPT, "g.py")
    told = {line.key: line.fate for line in recipe.lines}
    wanted = {
        "objective": "grpo",
        "sampling.group_size": 4,
        "sampling.answer_tokens": 200,
        "sampling.loss": "gspo",
        "sampling.beta": 0.04,
        "optim.batch_size": 4,
        "optim.learning_rate": 1e-6,
    }
    assert {path: read_value(recipe.recipe, path) for path in wanted} == wanted
    assert told["reward_funcs"] == "differs" and told["use_vllm"] == "left" and not recipe.recipe.rewards
    swift = files.MS_SWIFT.replace(
        "rlhf_type dpo", "rlhf_type grpo --num_generations 8 --reward_funcs accuracy"
    )
    made = import_words(swift, "g.sh").recipe
    assert (made.objective, made.sampling.group_size, made.optim.batch_size) == ("grpo", 8, 2)
    axolotl = (
        files.AXOLOTL + "rl: grpo\ntrl:\n  num_generations: 4\n  beta: 0.01\n  reward_funcs: [mine.check]\n"
    )
    made = import_words(axolotl, "g.yml").recipe
    assert (made.objective, made.sampling.group_size, made.sampling.beta) == ("grpo", 4, 0.01)


def test_a_tools_own_default_is_taken_not_ours():
    words = "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\ndataset: x\ncutoff_len: 100\n"
    recipe = import_words(words, "c.yaml").recipe
    assert (recipe.optim.learning_rate, recipe.optim.schedule, recipe.optim.warmup_share) == (
        5e-5,
        "linear",
        0.0,
    )
    assert (recipe.adapter.rank, recipe.adapter.alpha, recipe.optim.batch_size) == (8, 16.0, 8)


def test_dataset_info_says_which_file_a_name_means(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(
        json.dumps({"orders": {"file_name": "orders.json"}, "others": {"hf_hub_url": "hub/others"}}),
        encoding="utf-8",
    )
    (tmp_path / "c.yaml").write_text(files.LLAMA_FACTORY, encoding="utf-8")
    recipe = import_file(tmp_path / "c.yaml").recipe
    assert Path(recipe.data.source) == tmp_path / "data" / "orders.json"
    assert recipe.data.mix == {"hub/others": "1"}


def test_a_command_takes_the_config_that_it_names_and_its_own_words_count_more(tmp_path):
    (tmp_path / "c.yaml").write_text(files.LLAMA_FACTORY, encoding="utf-8")
    (tmp_path / "run.sh").write_text("llamafactory-cli train c.yaml learning_rate=7e-5\n", encoding="utf-8")
    recipe = import_file(tmp_path / "run.sh").recipe
    assert (recipe.optim.learning_rate, recipe.adapter.rank) == (7e-5, 16)
    (tmp_path / "c.yaml").unlink()
    with pytest.raises(StudioError) as refused:
        import_file(tmp_path / "run.sh")
    assert refused.value.what.id == "imported.config" and refused.value.what.values["line"] == "1"


def test_settings_of_a_module_beside_the_script_are_read(tmp_path):
    (tmp_path / "settings.py").write_text("RANK = 6\nNAME = 'org/m'\nraise SystemExit\n", encoding="utf-8")
    script = (
        "from settings import RANK, NAME\nfrom trl import SFTTrainer, SFTConfig\nfrom peft import LoraConfig\n"
        "t = SFTTrainer(NAME, args=SFTConfig(), train_dataset=d, peft_config=LoraConfig(r=RANK))\n"
    )
    (tmp_path / "t.py").write_text(script, encoding="utf-8")
    recipe = import_file(tmp_path / "t.py").recipe
    assert (recipe.adapter.rank, recipe.model.source) == (6, "org/m")


def test_a_notebook_counts_its_cells_and_leaves_magic_out():
    book = notebook("!pip install unsloth\n%load_ext x\n", "%%bash\nrm -rf /\n", files.UNSLOTH_SCRIPT)
    made = import_words(book, "n.ipynb")
    places = {line.key: line.place for line in made.lines}
    assert made.recipe.optim.max_steps == 60 and places["max_steps"].startswith("[3]:")


@pytest.mark.parametrize(
    ("name", "words", "place", "reason"),
    [
        ("a.yaml", files.LLAMA_FACTORY.replace("stage: sft", "stage: ppo"), "6", "imported.stage.none"),
        ("a.yaml", files.LLAMA_FACTORY.replace("type: lora", "type: freeze"), "8", "imported.method.none"),
        (
            "a.yml",
            files.AXOLOTL.replace("adapter: qlora", "adapter: llama-adapter"),
            "3",
            "imported.method.none",
        ),
        ("a.sh", files.MS_SWIFT.replace("rlhf_type dpo", "rlhf_type ppo"), "7", "imported.stage.none"),
        ("a.py", "from trl import PPOTrainer\nt = PPOTrainer('m', None)\n", "2", "imported.stage.none"),
        (
            "a.py",
            "import torch\nfor batch in data:\n    loss.backward()\n",
            "-",
            "imported.script.no_trainer",
        ),
        (
            "a.py",
            "from transformers import AutoModelForSequenceClassification as A, Trainer\n"
            "m = AutoModelForSequenceClassification.from_pretrained('x')\nt = Trainer(model=m, train_dataset=d)\n",
            "2",
            "imported.model.other",
        ),
        (
            "a.py",
            "from trl import SFTTrainer\np = parse()\nt = SFTTrainer(p.model, train_dataset=p.data)\n",
            "3",
            "imported.script.empty",
        ),
    ],
)
def test_what_cannot_be_a_recipe_is_refused_with_its_line_and_reason(name, words, place, reason):
    with pytest.raises(RecipeError) as refused:
        import_words(words, name)
    said = [problem.message for problem in refused.value.problems]
    assert (place, reason) in [(one.values["place"], one.values["why"].id) for one in said]


@pytest.mark.parametrize(
    ("name", "words", "what"),
    [
        ("a.yaml", "a: [1\n", "imported.unreadable"),
        ("a.yaml", "- 1\n- 2\n", "imported.no_mapping"),
        ("a.yaml", "colour: red\nsize: 3\n", "imported.no_tool"),
        ("a.yaml", "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
        ), "imported.unreadable"),
        ("a.yaml", "a: !!python/object/apply:os.system ['true']\nb: 1\n", "imported.no_tool"),
        ("a.yaml", "x: " + "[" * 3000, "imported.unreadable"),
        ("a.py", "def f(:\n", "imported.unreadable"),
        ("a.py", "x = " + "(" * 3000 + ")" * 3000, "imported.unreadable"),
        ("a.py", "x = " + "1+" * 50_000 + "1", "imported.unreadable"),
        ("a.py", "x = 10 ** 10 ** 10\ny = 'a' * 10 ** 12\n", "imported.refused"),
        ("a.ipynb", "{}", "imported.refused"),
        ("a.sh", "python own.py --lr 1\n", "imported.no_tool"),
        ("a.sh", "echo hello\n", "imported.no_tool"),
    ],
)  # fmt: skip
def test_hostile_and_foreign_files_are_refused_in_words_and_soon(name, words, what):
    with pytest.raises(StudioError) as refused:
        import_words(words, name)
    assert refused.value.what.id == what
    for language in LANGUAGES:
        said = load_catalogue(language).say(refused.value.why)
        assert said and "imported." not in said


def test_what_the_recipe_says_reads_back(tmp_path):
    from studio.services.recipes import read_recipe

    made = import_words(files.UNSLOTH_SCRIPT, "u.py")
    (tmp_path / "recipe.json").write_text(json.dumps(settings_json(made)), encoding="utf-8")
    assert read_recipe(tmp_path / "recipe.json") == made.recipe


WATCH = """
import sys
seen = []
def hear(event, arguments):
    if event in ("os.system", "subprocess.Popen", "socket.connect", "socket.getaddrinfo", "os.exec", "os.fork"):
        seen.append(event)
    elif event == "exec" and "given" in str(getattr(arguments[0], "co_filename", "")) + repr(arguments[0]):
        seen.append(event)
    elif event == "import" and str(arguments[0]).split(".")[0] in ("unsloth", "trl", "peft", "torch", "given"):
        seen.append(f"import {arguments[0]}")
    elif event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(f"write {arguments[0]}")
from studio.services.other_tools.importer import import_file
sys.addaudithook(hear)
for file in sys.argv[1:]:
    import_file(file)
print(seen)
"""


def test_nothing_of_a_file_is_executed_while_it_is_read(tmp_path):
    paths = []
    for name, (content, *_) in COMES_TO.items():
        path = tmp_path / f"given_{name}"
        tail = "\nimport os\nos.system('true')\nopen('given.txt', 'w')\n" if name.endswith(".py") else ""
        path.write_text(content + tail, encoding="utf-8")
        paths.append(str(path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    told = subprocess.run(
        [sys.executable, "-c", WATCH, *paths],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    assert told.stdout.strip() == "[]", told.stdout + told.stderr
    assert not (tmp_path / "given.txt").exists()
