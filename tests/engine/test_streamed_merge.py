"""Merged weight by weight: the folder that the whole model gives, to the bit, in a fraction of its memory."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    Qwen3VLForConditionalGeneration,
)

from studio.core.errors import StudioError
from studio.core.facts import Choice
from studio.core.i18n import text
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.core.run_record import RunRecord
from studio.engine.exporters import merged, streamed_merge
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.streamed_merge import can_stream
from studio.engine.run_folder import RunFolder
from studio.models import processor_parts
from studio.models.catalog import inspect_model
from studio.models.load import load_model
from studio.models.mixed_base import BaseWish, settle_base
from studio.models.streamed_model import draw_streamed, read_folder, stream
from studio.models.weight_files import write_weights
from studio.planning.run_plan import plan
from tests.conftest import SHAPE, make_tokenizer
from tests.engine.test_vision_language import VISION
from tests.models.decoder import models, routed_models

ROOT = Path(__file__).resolve().parents[2]
WAYS = {
    "lora": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3.0}},
}
DENSE = ("llama", "qwen3", "mistral", "gemma3", "phi3", "granite", "olmo2", "glm4")
MEASURE = """
import sys, json, threading
from pathlib import Path
import torch
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/kernels"]
torch.set_num_threads(1)
from studio.core.codec import from_json
from studio.engine.exporters import get_exporter, gguf_file, merged
from studio.engine.exporters.kept_parts import KeptParts
from tests.engine.test_streamed_merge import make_job
from studio.machine.detect import detect
job = make_job(Path(sys.argv[2]), Path(sys.argv[3]), detect(cache=Path(sys.argv[4])))
if sys.argv[5] == "whole":
    merged.can_stream = lambda job: False
def held():  # what is not a view of a file
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("RssAnon"))
import studio.engine.artifact, studio.models.streamed_model, studio.models.score_head, bitsandbytes
before, most, over = held(), [0], threading.Event()
def look():
    while not over.wait(0.003):
        most[0] = max(most[0], held())
watcher = threading.Thread(target=look); watcher.start()
exporter = get_exporter(sys.argv[6])
KeptParts(job.target).begin("measured")
exporter.write(job)
over.set(); watcher.join()
print(json.dumps({"added": most[0] - before, "told": exporter.memory_bytes(job)}))
"""


def make_adapter(base: Path, folder: Path, model=None, rows: int = 0, **settings) -> None:
    """Save an adapter on all linears of `base`, with `rows` tokens, that has learned something."""
    model = model or AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    linears = [name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)]
    targets = {name.rpartition(".")[2] for name in linears} - {"lm_head"}
    adapted = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=targets, **settings)
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, one in adapted.named_parameters():
            if "lora_B" in name or "trainable_tokens_delta" in name or ".modules_to_save." in name:
                one.normal_(0, 0.02 if "lora_B" in name else 0.2)
            if "magnitude" in name:
                one.mul_(1.0 + 0.1 * torch.rand_like(one))
    adapted.save_pretrained(folder, save_embedding_layers=False)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)


def make_job(
    base: Path, run: Path, machine, quantization: str = "none", artifact: str = "adapter"
) -> ExportJob:
    """Return the job of a run whose result lies in `run`; its target is made."""
    facts = inspect_model(str(base))
    recipe = Recipe(name="try", model=ModelChoice(source=str(base)), data=DatasetSpec(source="demo"))
    planned = plan(machine, recipe, facts)
    object.__setattr__(
        planned, "quantization", Choice(value=quantization, reason=text("plan.wanted", value=""))
    )
    record = RunRecord(
        run="r",
        name="try",
        state="finished",
        created_s=0.0,
        artifact=artifact,
        adapter=artifact == "adapter",
        seed=7,
    )
    target = run / "out"
    target.mkdir(exist_ok=True)
    return ExportJob(run, record, facts, planned, target)


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: one for path in sorted(folder.glob("*.safetensors")) for name, one in load_file(path).items()
    }


def export_both(job: ExportJob, monkeypatch) -> tuple[Path, Path]:
    """Export as a whole and in parts; return both folders."""
    whole, parts = job.target / "whole", job.target / "parts"
    whole.mkdir()
    parts.mkdir()
    assert can_stream(job)
    used = []
    write = merged.write_streamed
    monkeypatch.setattr(merged, "write_streamed", lambda *given: used.append(write(*given)) or used[-1])
    merged.MERGED.write(ExportJob(job.run_folder, job.record, job.facts, job.plan, parts))
    assert used and used[0] is not None, "it was written as a whole"
    with monkeypatch.context() as patch:
        patch.setattr(merged, "can_stream", lambda job: False)
        merged.MERGED.write(ExportJob(job.run_folder, job.record, job.facts, job.plan, whole))
    return whole, parts


def compare(whole: Path, parts: Path) -> None:
    one, other = read_weights(whole), read_weights(parts)
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert weight.dtype == other[name].dtype and torch.equal(weight, other[name]), name
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        read = [json.loads((folder / name).read_text("utf-8")) for folder in (whole, parts)]
        assert read[0] == read[1], name
    names = [{path.name for path in folder.iterdir() if path.name != ".parts"} for folder in (whole, parts)]
    assert names[0] == names[1]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_folder_as_from_the_whole_model(way, tiny_models, machine, tmp_path, monkeypatch):
    base = tiny_models("llama")
    make_adapter(base, tmp_path / "adapter", **WAYS[way])
    compare(*export_both(make_job(base, tmp_path, machine), monkeypatch))


@pytest.mark.computing
@pytest.mark.parametrize("family", DENSE)
def test_every_dense_family_is_merged_so(family, tiny_models, machine, tmp_path, monkeypatch):
    base = tiny_models(family)
    make_adapter(base, tmp_path / "adapter")
    compare(*export_both(make_job(base, tmp_path, machine), monkeypatch))


def test_a_base_that_was_trained_on_in_4_bits(tiny_models, machine, tmp_path, monkeypatch):
    base = tiny_models("llama")
    make_adapter(base, tmp_path / "adapter")
    whole, parts = export_both(make_job(base, tmp_path, machine, "nf4"), monkeypatch)
    compare(whole, parts)
    plain = read_weights(base)["model.layers.0.mlp.up_proj.weight"]
    stored = read_weights(parts)["model.layers.0.mlp.up_proj.weight"]
    assert (plain.float() - stored.float()).abs().mean() > 0.01 * plain.float().abs().mean(), (
        "was never rounded"
    )


def test_a_result_of_all_weights(tiny_models, machine, tmp_path, monkeypatch):
    base = tiny_models("qwen3")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(2)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(torch.randn_like(one) * 0.01)  # numbers that 16 bits round
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "model")
    compare(*export_both(make_job(base, tmp_path, machine, artifact="model"), monkeypatch))


def test_what_cannot_be_read_weight_by_weight_is_loaded_as_a_whole(
    tiny_models, machine, tmp_path, monkeypatch
):
    experts = tiny_models("qwen3_moe")
    make_adapter(experts, tmp_path / "adapter")
    job = make_job(experts, tmp_path, machine, "nf4")
    assert not can_stream(job) and merged.memory_bytes(job) == merged.whole_bytes(job)
    gemma4 = tiny_models("gemma4")  # has a number in each layer that is no weight
    assert draw_streamed(gemma4) is None
    make_adapter(gemma4, tmp_path / "adapter")
    job = make_job(gemma4, tmp_path, machine)
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10))
        with pytest.raises(StudioError) as refused:  # the window asked for the memory of a part
            merged.MERGED.write(job)
    assert refused.value.what.id == "export.memory"


EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
BESIDE = {
    "a head": ("llama", {"modules_to_save": ["lm_head"]}),
    "embedding and norms": ("llama", {"modules_to_save": ["embed_tokens", "norm", "input_layernorm"]}),
    "rows": ("llama", {"trainable_token_indices": {"embed_tokens": [3, 5], "lm_head": [3, 5]}}),
    "experts": ("qwen3_moe", {"target_parameters": EXPERTS, "rank_pattern": {one: 2 for one in EXPERTS}}),
}


@pytest.mark.parametrize("way", BESIDE)
def test_what_is_trained_beside_linears_is_merged_so(way, tiny_models, machine, tmp_path, monkeypatch):
    family, settings = BESIDE[way]
    base = tiny_models(family)
    make_adapter(base, tmp_path / "adapter", **settings)
    whole, parts = export_both(make_job(base, tmp_path, machine), monkeypatch)
    compare(whole, parts)
    plain, stored = read_weights(base), read_weights(parts)
    changed = {name for name, one in plain.items() if (one.float() - stored[name].float()).abs().max() > 0.05}
    named = {
        "a head": "lm_head",
        "embedding and norms": "norm",
        "rows": "lm_head",
        "experts": "experts.0.down",
    }
    assert any(named[way] in name for name in changed), changed


@pytest.mark.parametrize("rows", [392, 400])
def test_new_tokens_make_the_tables_longer(rows, tiny_models, machine, tmp_path, monkeypatch):
    base = tiny_models("llama")
    ids = {"trainable_token_indices": {"embed_tokens": [384, rows - 1], "lm_head": [384, rows - 1]}}
    make_adapter(base, tmp_path / "adapter", rows=rows, **ids)
    whole, parts = export_both(make_job(base, tmp_path, machine), monkeypatch)
    compare(whole, parts)
    assert {len(one) for name, one in read_weights(parts).items() if "lm_head" in name} == {rows}


def test_a_base_that_was_fitted_to_the_rows(tiny_models, machine, tmp_path, monkeypatch):
    base = tiny_models("llama")
    make_adapter(base, tmp_path / "adapter")
    job = make_job(base, tmp_path, machine, "mixed")
    model = load_model(job.facts, device="cpu", dtype="fp32", quantization="mixed").model
    rows = [list(range(3 + i, 60 + i)) for i in range(9)]
    file = RunFolder(tmp_path).mixed_base
    wish = BaseWish(path=file, rows=rows, more_bits=0.4, may_make=True)
    made = settle_base(model, job.facts.folder, torch.float32, wish)
    assert made.kept, "some in 16 bits"
    packed = {
        f"{name}.packed": one.weight.data.view(torch.uint8).view(-1).flip(0)
        for name, one in model.named_modules()
        if name.endswith(("up_proj", "o_proj")) and name not in made.kept
    }
    with safe_open(file, framework="pt") as kept:  # other nibbles, as fitting would give a larger model
        about = kept.metadata()
    save_file(load_file(file) | packed, file, metadata=about)
    compare(*export_both(job, monkeypatch))


@pytest.mark.parametrize("trained", ["adapter", "model"])
def test_a_model_that_reads_pictures(trained, machine, tmp_path, monkeypatch):
    """Its files have other names than its weights, as those that were published before transformers 5."""
    base = tmp_path / "seer"
    text_config = SHAPE | {
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    }
    config = CONFIG_MAPPING["qwen3_vl"](text_config=text_config, vision_config=VISION)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    model.save_pretrained(base)
    make_tokenizer(base)
    if trained == "adapter":
        make_adapter(base, tmp_path / "adapter", model=model.float())
    else:
        shutil.copytree(base, tmp_path / "model")
    compare(*export_both(make_job(base, tmp_path, machine, artifact=trained), monkeypatch))


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
def test_a_streamed_model_computes_the_same_to_the_bit(family, tiny_models):
    folder = tiny_models(family)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = draw_streamed(folder)
    stream(model, read_folder(model, folder))
    ids = torch.arange(2, 40)[None]
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, whole(ids).logits)
        assert torch.equal(model(ids).logits, whole(ids).logits), "again"
    held = {one.untyped_storage().nbytes() for one in model.parameters()}
    assert held == {4}, "weights are left in memory"


def test_weights_are_cut_into_files_with_an_index(tmp_path):
    weights = {f"w{i}": torch.randn(8, 16).to(torch.bfloat16) for i in range(5)}
    shapes = {name: (8, 16) for name in weights}
    write_weights(tmp_path, shapes, torch.bfloat16, weights.values(), shard_bytes=2 * 256)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text("utf-8"))
    assert len(set(index["weight_map"].values())) == 3 and index["metadata"]["total_size"] == 5 * 256
    found = read_weights(tmp_path)
    assert all(torch.equal(found[name], one) for name, one in weights.items())
    with pytest.raises(ValueError, match="w0"):
        write_weights(tmp_path, {"w0": (8, 15)}, torch.bfloat16, [weights["w0"]])


@pytest.mark.parametrize("family", ["nemotron_h", "nemotron_3", "deepseek_v3", "gemma4_e2b"])
def test_where_layers_differ_the_largest_is_told(family, tmp_path):
    families = models.FAMILIES | models.FOREIGN | routed_models.FAMILIES | routed_models.FOREIGN
    config_class, extra = families[family]
    model = AutoModelForCausalLM.from_config(config_class(**copy.deepcopy(models.SHAPE | extra)))
    model.save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    facts = inspect_model(str(tmp_path))
    job = SimpleNamespace(facts=facts, run_folder=tmp_path, record=SimpleNamespace(artifact="adapter"))
    largest = max(sum(one.numel() for one in layer.parameters()) for layer in model.model.layers)
    share = streamed_merge.EXPERTS_SHARE if facts.expert_parameters else streamed_merge.BESIDE_SHARE
    told = streamed_merge.count_bytes(job) - streamed_merge.BESIDE_BYTES
    assert 0.94 < told / (4 * largest * (1 + share)) < 1.1


def test_each_thread_that_packs_is_told_up_to_the_most(tiny_models, machine, tmp_path, monkeypatch):
    make_adapter(tiny_models("llama"), tmp_path / "adapter")
    job, told = make_job(tiny_models("llama"), tmp_path, machine), {}
    for cores in (1, 4, 16, 64):
        monkeypatch.setattr(processor_parts, "count_cores", lambda cores=cores: cores)
        told[cores] = streamed_merge.count_rows_bytes(job)
    assert told[4] - told[1] == 3 * 2**25 and told[16] - told[1] == 15 * 2**25 and told[64] == told[16]


@pytest.mark.computing
@pytest.mark.parametrize("form", ["merged", "gguf_q4_k_m", "fp8"])
def test_the_demo_takes_what_is_told_which_is_little(form, tmp_path, kept_facts):
    base = ROOT / "assets" / "demo_model"
    make_adapter(base, tmp_path / "adapter")
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", MEASURE, str(ROOT), str(base), str(tmp_path), str(kept_facts)]
    (tmp_path / "recipe.json").write_text(
        '{"version": 2, "model": {"source": "demo"}, "data": {"source": "demo"}}', encoding="utf-8"
    )
    settings = {"env": environment, "cwd": ROOT, "text": True, "capture_output": True, "timeout": 300}
    done = subprocess.run([*command, "parts", form], **settings)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert 0 < told["added"] <= told["told"] < 3e8


@pytest.mark.patient
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["lora", "dora"])
def test_a_merged_export_takes_the_memory_of_its_largest_part(way, tmp_path, kept_facts):
    """361 million weights, 1.4 GB in fp32, of which a layer has 86: as a whole they would take more than is told."""
    base = tmp_path / "base"
    config = LlamaConfig(
        vocab_size=4096, hidden_size=2048, intermediate_size=12288, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=4, tie_word_embeddings=False, architectures=["LlamaForCausalLM"], eos_token_id=0,
    )  # fmt: skip
    config.save_pretrained(base)
    make_tokenizer(base)
    with torch.device("meta"):
        names = {
            name: tuple(one.shape)
            for name, one in AutoModelForCausalLM.from_config(config).named_parameters()
        }
    torch.manual_seed(0)
    weights = (0.02 * torch.randn(shape, dtype=torch.bfloat16) for shape in names.values())
    write_weights(base, names, torch.bfloat16, weights)
    made = (
        "import sys; from tests.engine.test_streamed_merge import *; make_adapter(*map(Path, sys.argv[1:]), "
        f"**{WAYS[way]})"
    )
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    settings = {"env": environment, "cwd": ROOT, "text": True, "capture_output": True, "timeout": 800}
    adapter = [sys.executable, "-c", made, str(base), str(tmp_path / "adapter")]
    done = subprocess.run(adapter, **settings)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-c", MEASURE, str(ROOT), str(base), str(tmp_path), str(kept_facts)]
    done = subprocess.run([*command, "parts", "merged"], **settings)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    layer_bytes = 4 * sum(torch.Size(shape).numel() for name, shape in names.items() if ".layers.0." in name)
    beside_bytes = 4 * config.hidden_size * config.intermediate_size * {"lora": 2.25, "dora": 8}[way]
    assert told["added"] <= told["told"] < 1.05 * (layer_bytes + beside_bytes) + 2**27
