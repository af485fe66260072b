"""What was being done when an error came up is told by its places, of errors that nobody knows, too."""

import pytest

from studio.core.i18n import load_catalogue
from studio.machine.failures.activities import ACTIVITIES, LOGGED, read_activity
from studio.machine.failures.error_text import Reading
from studio.machine.failures.explanation import explain_words
from studio.machine.failures.fields import THINGS, thing_of

VENV = "/venv/lib/python3.12/site-packages"
PLACES = [
    (f"{VENV}/transformers/modeling_utils.py", "_load_pretrained_model", "transformers", "loading"),
    (f"{VENV}/datasets/arrow_dataset.py", "_map_single", "datasets", "preparing_rows"),
    (f"{VENV}/datasets/load.py", "load_dataset_builder", "datasets", "reading_rows"),
    (f"{VENV}/peft/tuners/tuners_utils.py", "inject_adapter", "peft", "adapting"),
    (f"{VENV}/peft/tuners/lora/model.py", "merge_and_unload", "peft", "merging"),
    (f"{VENV}/bitsandbytes/nn/modules.py", "_quantize", "bitsandbytes", "quantizing"),
    (f"{VENV}/triton/compiler/compiler.py", "compile", "triton", "compiling"),
    (f"{VENV}/torch/autograd/graph.py", "_engine_run_backward", "torch", "differentiating"),
    (f"{VENV}/deepspeed/runtime/zero/stage3.py", "step", "deepspeed", "sharing"),
    (f"{VENV}/transformers/trainer.py", "_inner_training_loop", "transformers", "training"),
    (f"{VENV}/transformers/trainer.py", "save_model", "transformers", "saving"),
    (
        r"C:\v\Lib\site-packages\transformers\tokenization_utils_base.py",
        "_batch_encode_plus",
        "transformers",
        "tokenizing",
    ),
    (f"{VENV}/vllm/engine/llm_engine.py", "step", "vllm", "sampling"),
    ("/data/me/train.py", "<module>", "", ""),
    ("/data/me/llama.cpp/convert_hf_to_gguf.py", "main", "", "converting"),
]


def traceback(path, function, message="SomeError: the moon is full"):
    return (
        f'Traceback (most recent call last):\n  File "{path}", line 9, in {function}\n    go()\n{message}\n'
    )


@pytest.mark.parametrize(("path", "function", "package", "doing"), PLACES)
def test_the_places_tell_where_and_during_what(path, function, package, doing):
    assert read_activity(Reading(traceback(path, function))) == (package, doing)


def test_the_innermost_place_that_tells_counts():
    outer = f'  File "{VENV}/transformers/trainer.py", line 1, in train\n    go()\n'
    inner = traceback(f"{VENV}/torch/nn/functional.py", "cross_entropy")
    words = inner.replace("last):\n", "last):\n" + outer)
    assert read_activity(Reading(words)) == ("torch", "losing")


def test_a_log_without_places_tells_by_what_it_showed_last():
    bar = "Loading checkpoint shards:  50%|####     | 1/2\n"
    assert read_activity(Reading(bar + "RuntimeError: the moon is full\n")) == ("", "loading")
    steps = "{'loss': 1.2, 'epoch': 0.1}\n"
    assert read_activity(Reading(bar + steps + "RuntimeError: the moon is full\n")) == ("", "training")
    assert read_activity(Reading("RuntimeError: the moon is full\n")) == ("", "")


@pytest.mark.parametrize("tag", ["en", "zh-CN"])
def test_every_activity_and_thing_is_worded(tag):
    words = load_catalogue(tag).words
    names = {name for name, _ in (*ACTIVITIES, *LOGGED)}
    assert names == {id.rpartition(".")[2] for id in words if id.startswith("explain.doing.")}
    assert set(THINGS) == {id.rpartition(".")[2] for id in words if id.startswith("failure.thing.")}


def test_an_unknown_error_is_placed_and_a_certain_one_is_not():
    catalogue = load_catalogue("en")
    path, function, *_ = PLACES[0]
    unknown = explain_words(traceback(path, function, "ValueError: the moon is full"), catalogue)
    assert unknown["where"] == "It came up in the package transformers, while loading a model or its weights."
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert explain_words(traceback(path, function, memory), catalogue)["where"] == ""


def test_no_name_belongs_to_two_things():
    names = [name for names in THINGS.values() for name in names.split()]
    assert len(names) == len(set(names))
    assert (thing_of("absmax"), thing_of("pad_token_id"), thing_of("to")) == ("quantised", "tokenizer", "")
