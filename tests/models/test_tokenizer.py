"""Tokenizers load by the class that AutoTokenizer would take, whoever saved them, and without PyTorch's model code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from studio.models.catalog import inspect_model
from studio.models.tokenizer import load_tokenizer


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text", "mistral", "phi3", "unheard_of"])
@pytest.mark.parametrize(
    "name",
    [
        "TokenizersBackend",
        "PreTrainedTokenizerFast",
        "LlamaTokenizerFast",
        "Qwen2Tokenizer",
        "GPT2TokenizerFast",
        "",
    ],
)
def test_it_is_the_one_that_transformers_takes(make_tiny_model, tmp_path, family, name):
    folder = make_tiny_model(tmp_path / "model")
    facts = inspect_model(str(folder))
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings.pop("tokenizer_class", None)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | ({"tokenizer_class": name} if name else {}))
    )
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"model_type": family}))
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours = load_tokenizer(facts)
    assert type(ours) is type(theirs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.chat_template == theirs.chat_template and ours.eos_token == theirs.eos_token


@pytest.mark.computing
def test_the_models_own_modules_stay_out(make_tiny_model, tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    code = (
        "import sys; from studio.models.catalog import inspect_model; "
        "from studio.models.tokenizer import load_tokenizer; "
        f"load_tokenizer(inspect_model({str(folder)!r})); "
        "print({'torch._dynamo', 'transformers.modeling_utils'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    shutil.rmtree(folder)
