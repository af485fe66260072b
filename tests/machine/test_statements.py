"""What a library's sentence states is read by its form, whoever wrote it; what has none is left alone."""

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest

from studio.core.i18n import load_catalogue
from studio.machine.failures.statements import FORMS, OPTIONAL, read_statement

ENGLISH = load_catalogue("en")

SAID = {
    "model must be a PreTrainedModelWrapper, got <class 'peft.peft_model.PeftModel'> - supported: (<class 'x.Y'>)": (
        "model must be PreTrainedModelWrapper, and it is PeftModel."
    ),
    "Expected a bool value, but got 'maybe'": "bool value was expected, and maybe was given.",
    "Pass either `local_dir` or `cache_dir`, not both.": "local_dir does not go together with cache_dir.",
    "`tokenizer_kwargs` only valid when using a prompt": "tokenizer_kwargs: this needs using a prompt.",
    "RLOO requires at least 2 generations per prompt. You provided 1.": "RLOO: this needs 2 generations per prompt.",
    "Training is not implemented yet for Bark - do not pass `labels`.": "Training: not supported for Bark.",
    "Adafactor does not support sparse gradients.": "Adafactor does not support sparse gradients.",
    "ChainDataset only supports IterableDataset": "ChainDataset takes only IterableDataset.",
    "Unknown ab_svd_init: fast": "fast: this program knows no such ab_svd_init.",
    "unhandled prompt tokenization strategy: sharegpt": (
        "sharegpt: this program knows no such prompt tokenization strategy."
    ),
    "`alignment` must be either 'left' or 'right'.": "alignment has to be either 'left' or 'right'.",
    "Optimizer input should not be empty": "Optimizer input is empty, and must not be.",
    "Number of reward functions must match number of weights": (
        "Number of reward functions and number of weights do not fit together."
    ),
    "Adapter blue already exists.": "Adapter blue is there already, or more than once.",
    "You need to specify `num_heads` in `peft_config`": "num_heads in peft_config: this is needed, and was not given.",
    "No target modules found in the model.": "model does not have target modules.",
    "target_modules should be a list or set of strings.": "target_modules must be a list or set of strings.",
    "`do_resize` cannot be set to `False` here!": "The program refuses this: do_resize cannot be set to False here.",
    "Unsloth: Please import Unsloth before peft.": "Unsloth has to come before peft.",
    "n_gpu: 4, local_world_size: 6": "These values do not go together: n_gpu: 4, local_world_size: 6.",
    "No file with name: consolidated.00.pth found in /tmp/llama.": "/tmp/llama does not have consolidated.00.pth.",
    "Micro batch size per gpu: 0 has to be greater than 0": "Micro batch size per gpu: 0 must be greater than 0.",
    "Got 5D input, but linear mode needs 3D input": "3D input was expected, and 5D input was given.",
    "out_proj 4096 != hidden_size 5120": "out_proj 4096 and hidden_size 5120 do not fit together.",
    "backward pass is invalid for module in evaluation mode": (
        "backward pass: not supported for module in evaluation mode."
    ),
    "Audio encoding was requested, but the model was made without an encoder": (
        "Two things do not agree: Audio encoding was requested, but model was made without an encoder."
    ),
    "Loading lora [table] failed: No adapter found for /data/run/checkpoint-57": (
        "/data/run/checkpoint-57 does not have adapter."
    ),
    "The tokenizer cache is corrupted.": "tokenizer cache is not in order: corrupted.",
    "Expected labels to have 3 dimensions": "labels must have 3 dimensions.",
    "You are trying to offload weights, but the model is on the disk": (
        "The program could not offload weights: model is on the disk."
    ),
    "Parameter layers.0.weight has dtype torch.int8": (
        "Parameter layers.0.weight has a dtype that is not taken here: torch.int8."
    ),
    "Cannot merge the layers because they are replicated": (
        "The program could not merge the layers: they are replicated."
    ),
}


@pytest.mark.parametrize(("message", "answer"), SAID.items())
def test_a_sentence_is_read_by_its_form(message, answer):
    assert ENGLISH.say(read_statement(message).spoken()) == answer


@pytest.mark.parametrize("message", ["", "42", "the moon is full", "loss 0.3", "Epoch 3 of 4 is done."])
def test_what_states_nothing_is_left_alone(message):
    assert read_statement(message) is None


def test_every_relation_is_worded_in_both_languages_with_all_its_parts():
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        for relation, form in FORMS:
            needed = set(form.groupindex) - set(OPTIONAL.get(relation, ()))
            for name in {f"failure.states.{relation}"} | (
                {f"failure.states.{relation}.bare"} if relation in OPTIONAL else set()
            ):
                said = set(re.findall(r"{(\w+)}", catalogue.words[name]))
                given = set(form.groupindex) if not name.endswith(".bare") else needed
                assert not said - set(form.groupindex) - set(OPTIONAL.get(relation, ())), (name, form.pattern)
                assert given & said, (name, form.pattern)


def raised_messages(package):
    """Yield each plain message that the installed `package` raises, its blanks filled with a word."""
    folder = Path(importlib.metadata.distribution(package).locate_file(package))
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                words = node.exc.args[0]
                parts = words.values if isinstance(words, ast.JoinedStr) else [words]
                said = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "thing" for part in parts
                )
                if len(said.split()) > 4:
                    yield said


@pytest.mark.computing
@pytest.mark.parametrize(
    ("package", "share"), [("trl", 0.7), ("peft", 0.7), ("accelerate", 0.7), ("datasets", 0.65)]
)
def test_most_sentences_that_the_installed_libraries_raise_have_a_form(package, share):
    messages = sorted(set(raised_messages(package)))
    read = sum(read_statement(message) is not None for message in messages)
    assert len(messages) > 100
    assert read / len(messages) > share
