"""What a model folder is, is read without loading it, and what cannot be trained is refused in plain words."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.models.catalog import inspect_model, list_local_models, read_header

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> Path:
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, size_bytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size_bytes]}
        offset += size_bytes
    data = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(offset))
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    """A well-formed folder that a test may damage."""
    folder = tmp_path / "little"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_safetensors(
        folder / "model.safetensors", {"a.weight": ("BF16", [8, 16], 256), "b": ("F32", [4], 16)}
    )
    return folder


def change_config(folder: Path, **values) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | values), encoding="utf-8")


def refused(source) -> str:
    with pytest.raises(StudioError) as raised:
        inspect_model(str(source))
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        for words in (raised.value.what, raised.value.why, raised.value.fix):
            assert catalogue.has(words.id), words.id
            assert "{" not in catalogue.say(words)
    assert raised.value.exit_code == 2
    return raised.value.what.id


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3", "phi3"])
def test_real_models_agree_with_torch(tiny_models, family):
    from safetensors import safe_open

    folder = tiny_models(family)
    facts = inspect_model(str(folder))
    with safe_open(folder / "model.safetensors", "pt") as weights:
        count = sum(weights.get_tensor(name).numel() for name in weights.keys())
    assert facts.parameters == count
    assert facts.weight_bytes == (folder / "model.safetensors").stat().st_size
    assert (facts.dtype, facts.quantization, facts.has_chat_template) == ("fp32", "none", True)
    assert (facts.hidden_size, facts.layers, facts.vocabulary, facts.max_positions) == (32, 2, 384, 256)
    assert facts.trainable.ok
    assert (facts.name, facts.folder) == (folder.name, str(folder))


def test_nothing_heavy_is_imported(folder):
    code = (
        "import sys; from studio.models.catalog import inspect_model, list_local_models; "
        f"inspect_model({str(folder)!r}); inspect_model('some/model'); list_local_models(); "
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_shape_and_no_template(folder):
    facts = inspect_model(str(folder))
    assert (facts.parameters, facts.weight_bytes) == (132, (folder / "model.safetensors").stat().st_size)
    assert (facts.dtype, facts.family, facts.architecture) == ("bf16", "llama", "LlamaForCausalLM")
    assert not facts.has_chat_template
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ x }}"}', encoding="utf-8")
    assert inspect_model(str(folder)).has_chat_template


def test_shards_are_counted_together(folder):
    (folder / "model.safetensors").unlink()
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name in names:
        write_safetensors(folder / name, {name: ("BF16", [10], 20)})
    index = {"weight_map": {name: name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert inspect_model(str(folder)).parameters == 20
    (folder / names[1]).unlink()
    assert refused(folder) == "model.weights.shard_missing"
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../x.safetensors"}}', encoding="utf-8"
    )
    assert refused(folder) == "model.weights.damaged"


def test_stored_quantised_weights(folder):
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    change_config(folder, quantization_config=settings)
    write_safetensors(
        folder / "model.safetensors",
        {
            "q.weight": ("U8", [64, 1], 64),
            "q.weight.absmax": ("U8", [2], 2),
            "q.weight.quant_state.bitsandbytes__nf4": ("U8", [90], 90),
            "norm.weight": ("BF16", [8], 16),
        },
    )
    facts = inspect_model(str(folder))
    assert (facts.quantization, facts.parameters, facts.dtype, facts.trainable.ok) == (
        "nf4",
        136,
        "bf16",
        True,
    )
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert inspect_model(str(folder)).quantization == "int8"
    change_config(folder, quantization_config={"quant_method": "hqq", "bits": 4})
    facts = inspect_model(str(folder))
    assert (facts.quantization, facts.trainable.ok) == ("hqq", False)


@pytest.mark.parametrize(
    "values, reason",
    [
        ({"architectures": ["BertForMaskedLM"]}, "not_decoder"),
        ({"architectures": ["NeverHeardOfForConditionalGeneration"], "vision_config": {}}, "unknown"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "both_sides"),
        (
            {"architectures": ["EvilForCausalLM"], "quantization_config": {"quant_method": "gptq"}},
            "quantization",
        ),
        ({"architectures": None}, "not_decoder"),
        ({"architectures": ["NeverHeardOfForCausalLM"]}, "unknown"),
        (
            {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "own.Own"}},
            "remote_code",
        ),
    ],
)
def test_untrainable_models_say_why(folder, values, reason):
    change_config(folder, **values)
    verdict = inspect_model(str(folder)).trainable
    assert not verdict.ok
    assert verdict.reason.id == f"model.trainable.{reason}"
    assert load_catalogue("zh-CN").has(verdict.reason.id)


def test_a_known_class_with_an_auto_map_is_trainable(folder):
    change_config(folder, auto_map={"AutoModelForCausalLM": "own.Own"})
    assert inspect_model(str(folder)).trainable.ok


def test_no_such_folder(tmp_path):
    assert refused(tmp_path / "none") == "model.missing"
    assert refused("") == "model.missing"
    assert refused("llama") == "model.missing"


def test_not_a_model_folder(folder):
    (folder / "config.json").unlink()
    assert refused(folder) == "model.no_config"
    assert refused(folder / "model.safetensors") == "model.is_file"
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert refused(folder / "model.gguf") == "gguf.damaged"
    (folder / "model.gguf").write_bytes(b"none")
    assert refused(folder / "model.gguf") == "gguf.damaged"
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert refused(folder) == "model.adapter"


def test_pickles_are_not_opened(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert refused(folder) == "model.pickle_only"
    (folder / "pytorch_model.bin").unlink()
    assert refused(folder) == "model.weights.missing"


def test_broken_config(folder):
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert refused(folder) == "model.config_damaged"


@pytest.mark.parametrize("levels", [400, 200_000])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_deep_nesting_is_refused_before_a_run(folder, name, levels):
    (folder / name).write_text('{"a":' + "[" * levels + "]" * levels + "}", encoding="utf-8")
    assert refused(folder) == "model.deep"
    if name == "config.json":
        assert folder.name not in [model.name for model in list_local_models([folder.parent])]


def test_every_cut_of_the_weights_is_noticed(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    for size in (0, 4, 8, 20, header_end - 1, header_end, len(whole) - 1):
        path.write_bytes(whole[:size])
        wanted = "model.weights.short" if size >= header_end else "model.weights.damaged"
        assert refused(folder) == wanted, size


@pytest.mark.parametrize(
    "header", [b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b"\xff\xff", b"{,}", b"[" * 200_000]
)
def test_nonsense_headers_are_refused(folder, header):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert refused(folder) == "model.weights.damaged"


def test_header_reader_agrees_with_safetensors(tiny_models):
    from safetensors import safe_open

    path = tiny_models() / "model.safetensors"
    with safe_open(path, "pt") as weights:
        expected = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}
    assert {name: tensor.shape for name, tensor in read_header(path).items()} == expected


def test_hub_names(folder, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    absent = inspect_model("owner/little")
    assert (absent.folder, absent.name, absent.trainable.ok) == ("", "owner/little", True)
    repository = tmp_path / "hub" / "models--owner--little"
    snapshot = repository / "snapshots" / "abc"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc", encoding="utf-8")
    shutil.copytree(folder, snapshot)
    found = inspect_model("owner/little")
    assert (found.folder, found.name, found.parameters) == (str(snapshot), "owner/little", 132)
    assert inspect_model("owner/little", revision="abc").folder == str(snapshot)
    assert inspect_model("owner/little", cache_lookup=False).folder == ""
    listed = list_local_models([tmp_path])
    assert [(model.source, model.name) for model in listed] == [
        (str(folder), "little"),
        ("owner/little", "owner/little"),
    ]
    (snapshot / "model.safetensors").unlink()
    assert inspect_model("owner/little").folder == ""
    assert [model.source for model in list_local_models()] == []
