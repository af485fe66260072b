"""Models that Ollama, LM Studio and llama.cpp keep are found under the names that people know."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.models.catalog import inspect_model
from studio.models.gguf.programs import find_ollama, list_program_models

GOLDEN = Path(__file__).parent / "golden"


def keep(
    root: Path, name: tuple[str, ...], content: bytes, kind="application/vnd.ollama.image.model"
) -> Path:
    """Lay a model out as Ollama does: blobs by digest, a manifest that names them."""
    digest = hashlib.sha256(content).hexdigest()
    blob = root / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    manifest = root.joinpath("manifests", *name)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)},
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64, "size": 1},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}), encoding="utf-8")
    return blob


@pytest.fixture
def home(tmp_path, monkeypatch):
    llama, qwen = (GOLDEN / "llama.gguf").read_bytes(), (GOLDEN / "qwen3_moe.gguf").read_bytes()
    root = tmp_path / ".ollama" / "models"
    keep(root, ("registry.ollama.ai", "library", "llama3.2", "1b"), llama)
    keep(root, ("registry.ollama.ai", "library", "qwen3", "latest"), qwen)
    keep(root, ("registry.ollama.ai", "mannix", "own", "q8_0"), qwen)
    keep(root, ("hf.co", "owner", "model-GGUF", "Q4_K_M"), llama)
    keep(root, ("registry.ollama.ai", "library", "embed", "latest"), b"not a model")
    (root / "manifests" / "registry.ollama.ai" / "library" / "broken").mkdir()
    (root / "manifests" / "registry.ollama.ai" / "library" / "broken" / "latest").write_text(
        "{", encoding="utf-8"
    )
    studio = tmp_path / ".lmstudio" / "models" / "publisher" / "tiny-GGUF"
    studio.mkdir(parents=True)
    shutil.copy(GOLDEN / "llama.gguf", studio / "tiny-Q4_K_M.gguf")
    (studio / "mmproj-tiny.gguf").write_bytes(b"GGUF")
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy(GOLDEN / "llama.gguf", cache / "owner_model.gguf")
    for name in ("OLLAMA_MODELS", "LOCALAPPDATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLAMA_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hub"))
    return tmp_path


def test_all_of_them_are_listed(home):
    found = {model.name: (model.program, model.source) for model in list_program_models()}
    studio = home / ".lmstudio" / "models" / "publisher" / "tiny-GGUF" / "tiny-Q4_K_M.gguf"
    assert found == {
        "llama3.2:1b": ("ollama", "ollama:llama3.2:1b"),
        "qwen3:latest": ("ollama", "ollama:qwen3:latest"),
        "mannix/own:q8_0": ("ollama", "ollama:mannix/own:q8_0"),
        "hf.co/owner/model-GGUF:Q4_K_M": ("ollama", "ollama:hf.co/owner/model-GGUF:Q4_K_M"),
        "publisher/tiny-GGUF/tiny-Q4_K_M.gguf": ("lmstudio", str(studio)),
        "owner_model": ("llama.cpp", str(home / "cache" / "owner_model.gguf")),
    }


def test_a_model_is_taken_by_its_name(home):
    facts = inspect_model("ollama:llama3.2:1b")
    assert (facts.name, facts.family, facts.architecture) == ("llama3.2:1b", "llama", "LlamaForCausalLM")
    assert inspect_model("ollama:qwen3").family == "qwen3_moe"  # without a tag it is the latest
    assert find_ollama("qwen3") == find_ollama("qwen3:latest")
    with pytest.raises(StudioError) as caught:
        inspect_model("ollama:gemma3:4b")
    assert caught.value.what.id == "gguf.ollama_missing"


def test_another_folder_of_ollama(home, tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    keep(
        tmp_path / "disk",
        ("registry.ollama.ai", "library", "tiny", "latest"),
        (GOLDEN / "llama.gguf").read_bytes(),
    )
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "disk"))
    assert [model.name for model in list_program_models() if model.program == "ollama"] == ["tiny:latest"]


def test_a_manifest_that_leads_out_of_the_folder_is_no_model(home):
    manifest = (
        home / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library" / "evil" / "latest"
    )
    manifest.parent.mkdir()
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../etc/passwd"}
    manifest.write_text(json.dumps({"layers": [layer]}), encoding="utf-8")
    assert find_ollama("evil") is None
