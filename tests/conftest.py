"""Shared parts of the tests: tiny random models made on the spot, data files, a workspace, both languages."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.trained_model import get_real_chats, get_trained_model

if TYPE_CHECKING:
    from studio.machine.workspace import Workspace

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As processes of the studio have it (studio/machine/workspace.py): else bitsandbytes imports torch's compiler, 1.9 s.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

STUDIO = str(Path(__file__).resolve().parents[1] / "studio") + os.sep
ENDING_S = 20.0
"""A thread that was told to end may take so long, on a busy machine."""
TOLD = pytest.StashKey[set]()
"""The threads that a file was blamed for: no other file is."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SHAPE = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 1,
    "eos_token_id": 0,
    "bos_token_id": None,
}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "layer_types": ["full_attention", "full_attention"]}),
    "phi3": ("Phi3Config", {"tie_word_embeddings": False}),
    "granite": (
        "GraniteConfig",
        {"residual_multiplier": 0.3, "embedding_multiplier": 4.0, "logits_scaling": 2.0},
    ),
    "olmo2": ("Olmo2Config", {}),
    "glm4": ("Glm4Config", {"head_dim": 8}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "hunyuan": ("HunYuanDenseV1Config", {"head_dim": 8}),
    "gemma4": (
        "Gemma4TextConfig",
        {
            "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "global_head_dim": 16, "head_dim": 8, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "latent": (
        "YoutuConfig",
        {
            "tie_word_embeddings": False, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 8,
        },
    ),
}  # fmt: skip


def pytest_collection_finish(session) -> None:
    """Leave what the collected modules hold out of every later garbage collection.

    A run of the engine collects three times, and beside thousands of tests that took 0.3 s each.
    """
    gc.collect()
    gc.freeze()


def threads_of_ours() -> set[threading.Thread]:
    """Return the living threads in which code of the studio runs or waits, timers included."""
    frames, found = sys._current_frames(), set()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident)
        while frame is not None and not frame.f_code.co_filename.startswith(STUDIO):
            frame = frame.f_back
        if thread is not threading.main_thread() and (frame or isinstance(thread, threading.Timer)):
            found.add(thread)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Fail a file's last test when a thread of ours outlives the file: a desk that nobody closed, say."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        known = item.config.stash.setdefault(TOLD, set())
        if threads_of_ours() - known:
            gc.collect()  # the threads of a desk that a command made go with the desk
        until_s = time.monotonic() + ENDING_S
        while (left := threads_of_ours() - known) and time.monotonic() < until_s:
            time.sleep(0.02)
        known |= left
        assert not left, f"threads of ours are left by {item.path.name}: {[one.name for one in left]}"
    return done


def make_tokenizer(folder: Path, template: str | None = CHAT_TEMPLATE):
    """Save a byte-level tokenizer with the studio's test template in `folder` and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|end|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=specials[2:],
        model_max_length=256,
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_model(
    folder: Path, family: str = "llama", seed: int = 0, template: str | None = CHAT_TEMPLATE, **shape
) -> Path:
    """Save a tiny random model of `family` with its tokenizer in `folder` (fp32 safetensors) and return `folder`."""
    import torch
    import transformers

    class_name, extra = FAMILIES[family]
    config = getattr(transformers, class_name)(**(SHAPE | extra | shape))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    make_tokenizer(folder, template)
    return folder


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    """Write `rows` as one JSON object a line and return `path`."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def chat_rows(count: int, start: int = 0) -> list[dict]:
    """Return `count` short conversations whose answer depends on the question."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {i}"},
                {"role": "assistant", "content": f"it is {i * 7 % 10}"},
            ]
        }
        for i in range(start, start + count)
    ]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """A function `get(family="llama") -> Path` that makes each tiny model once a session; read-only."""
    root = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}

    def get(family: str = "llama") -> Path:
        if family not in made:
            made[family] = make_model(root / f"tiny-{family}", family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def kept_facts(tmp_path_factory) -> Path:
    """The file that keeps what this machine is: to find it out takes 4 s, which is done once a session."""
    from studio.machine.detect import detect

    kept = tmp_path_factory.mktemp("facts") / "facts.json"
    detect(cache=kept)
    return kept


@pytest.fixture(scope="session")
def know_machine(kept_facts):
    """A function that opens a workspace in a folder, or the usual one, in which this machine was looked at before."""
    from studio.machine.workspace import open_workspace

    def know(folder: Path | None = None) -> Workspace:
        workspace = open_workspace(folder and str(folder))
        workspace.facts.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept_facts, workspace.facts)
        return workspace

    return know


@pytest.fixture(scope="session")
def trained_model() -> Path:
    """SmolLM2-135M-Instruct, read-only: trained weights have activations and attention that random ones lack."""
    return get_trained_model()


@pytest.fixture(scope="session")
def real_chats() -> Path:
    """A JSON file of 17,671 real conversations and a broken end, read-only."""
    return get_real_chats()


@pytest.fixture(scope="session")
def make_tiny_model():
    """The function make_model, for tests that need a model of their own."""
    return make_model


@pytest.fixture
def chat_file(tmp_path) -> Path:
    """A jsonl file of 24 short conversations."""
    return write_jsonl(tmp_path / "chats.jsonl", chat_rows(24))


@pytest.fixture
def jsonl():
    """The function write_jsonl."""
    return write_jsonl


@pytest.fixture
def workspace(tmp_path):
    """An empty workspace."""
    from studio.machine.workspace import open_workspace

    return open_workspace(str(tmp_path / "workspace"))
