"""What a model's own files ask of the loader: foreign kernels and code are neither fetched nor run."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from studio.models.catalog import inspect_model
from studio.models.load import load_model

OWN_CODE = """
from pathlib import Path
Path({sentinel!r}).write_text("run")
class Own: pass
"""


def add(path: Path, values: dict) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(data | values), encoding="utf-8")


@pytest.fixture
def hostile(tmp_path, tiny_models, monkeypatch) -> Path:
    """A model whose files name a kernel of the hub and code beside them; nothing may ask the network."""
    folder, sentinel = tmp_path / "model", tmp_path / "sentinel"
    shutil.copytree(tiny_models(), folder)
    (folder / "own.py").write_text(OWN_CODE.format(sentinel=str(sentinel)), encoding="utf-8")
    own = {
        "AutoConfig": "own.Own",
        "AutoModelForCausalLM": "own.Own",
        "AutoTokenizer": ["own.Own", "own.Own"],
    }
    kernel = "evil-owner/kernel"
    names = (
        "attn_implementation",
        "_attn_implementation",
    )
    add(folder / "config.json", {"auto_map": own} | dict.fromkeys(names, kernel))
    add(folder / "tokenizer_config.json", {"auto_map": own})

    def refuse(*words, **options):
        pytest.fail(f"asked the network: {words}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return folder


def test_neither_kernels_nor_code_of_a_model_are_taken(hostile, tmp_path):
    facts = inspect_model(str(hostile))
    loaded = load_model(facts, device="cpu", dtype="fp32", attention="sdpa")
    assert loaded.model.config._attn_implementation == "sdpa"
    assert type(loaded.model).__module__.startswith("transformers.")
    assert type(loaded.tokenizer).__module__.startswith("transformers.")
    assert not (tmp_path / "sentinel").exists()
