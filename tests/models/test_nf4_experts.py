"""Experts in 4 bits: what they take, what they compute, and that a run with them trains, resumes and merges."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from studio_kernels.nf4 import reference_forward

from studio.models.catalog import inspect_model
from studio.models.load import load_model
from studio.models.nf4_experts import Nf4Stack, list_stacks
from studio.planning.memory_estimate import count_left_out, predict
from studio.planning.run_plan import plan
from tests.conftest import make_tokenizer
from tests.machine.facts import make_machine, make_recipe

ROOT = Path(__file__).parents[2]
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
}
QWEN = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 4}
DELTA |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
FAMILIES = {
    "qwen3_moe": QWEN | {"head_dim": 16},
    "mixtral": {"num_local_experts": 8, "sliding_window": None},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 16},
    "glm4_moe_lite": QWEN
    | LATENT
    | {"n_routed_experts": 8, "num_key_value_heads": 8, "n_group": 1, "topk_group": 1}
    | {"mlp_layer_types": ["dense", "sparse"]},
    "qwen3_5_moe_text": QWEN
    | DELTA
    | {"shared_expert_intermediate_size": 64, "head_dim": 32}
    | {"layer_types": ["linear_attention", "full_attention"]},
}


def make_model(folder, family):
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[family](**SHAPE | FAMILIES.get(family, {}))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return inspect_model(str(folder))


def load_nf4(facts, dtype="fp32"):
    return load_model(facts, device="cpu", dtype=dtype, quantization="nf4").model


def count_held_bytes(model):
    """Return what parameters take, with the scales of the packed ones."""
    held = sum(stack.size_bytes for _, stack in list_stacks(model))
    for parameter in model.parameters():
        held += parameter.nbytes
        if state := getattr(parameter, "quant_state", None):
            held += state.absmax.nbytes + state.state2.absmax.nbytes + state.offset.nbytes
    return held


@pytest.mark.parametrize("family", [*FAMILIES, "falcon"])
def test_predicted_bytes_are_the_loaded_ones(tmp_path, family):
    facts = make_model(tmp_path, family)
    recipe = make_recipe({"model.source": str(tmp_path), "model.quantization": "nf4"})
    chosen = plan(make_machine(), recipe, facts)
    model = load_nf4(facts, chosen.dtype.value)
    assert predict(chosen, facts, recipe)["weights"] == pytest.approx(count_held_bytes(model), rel=0.02)
    assert count_left_out(chosen, facts) == (1.0, 0)
    linears = [p for name, p in model.named_parameters() if name.endswith(("dense.weight", "q_proj.weight"))]
    assert all(p.dtype == torch.uint8 for p in linears)


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_gradient_are_those_of_the_opened_weights(tmp_path, family):
    facts = make_model(tmp_path, family)
    packed, opened = load_nf4(facts), load_nf4(facts).dequantize()
    assert list_stacks(packed) and not list_stacks(opened)
    ids = torch.arange(40).view(2, 20)
    inputs = [model.get_input_embeddings()(ids).detach().requires_grad_() for model in (packed, opened)]
    results = [model(inputs_embeds=rows).logits for model, rows in zip((packed, opened), inputs, strict=True)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    for result in results:
        result.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 24, 40), (5, 64, 128)], ids=["ends inside a block", "whole blocks"])
def test_a_stack_holds_what_bitsandbytes_makes_of_its_matrices_as_one(shape):
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    stack, flat = Nf4Stack(weight), weight.reshape(-1, shape[2])
    theirs = dequantize_4bit(*quantize_4bit(flat, compress_statistics=True, quant_type="nf4"))
    for expert, matrix in enumerate(theirs.view(shape)):
        torch.testing.assert_close(stack[expert], matrix, rtol=1e-6, atol=1e-7)
    ours = reference_forward(stack.as_nf4(), torch.empty(flat.shape))
    assert torch.equal(ours.view(shape), torch.stack([stack[expert] for expert in range(shape[0])]))


def test_experts_without_tokens_stay_closed(tmp_path, monkeypatch):
    model = load_nf4(make_model(tmp_path, "qwen3_moe"))
    opened = []
    whole = Nf4Stack.open
    monkeypatch.setattr(
        Nf4Stack, "open", lambda self, expert, dtype: opened.append(expert) or whole(self, expert, dtype)
    )
    with torch.no_grad():
        model(torch.tensor([[5]]))
    assert len(opened) == 2 * 2 * 2, "two layers, two experts for the one token, two matrices each"


PEAK = """
import resource, sys, threading, time
from pathlib import Path
from studio.models.catalog import inspect_model
from studio.models.load import load_model
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024
peak, done = [0], threading.Event()
def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)
facts = inspect_model(sys.argv[1])
thread = threading.Thread(target=watch, daemon=True); thread.start()
load_model(facts, device="cpu", dtype="bf16", quantization="nf4", tokenizer=object())
done.set(); thread.join()
print(peak[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.computing  # 38 s: 1.5 GB are written and read
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_holds_no_more_than_a_shard_and_two_gib(tmp_path):
    """1.5 GB in three shards. What the process owns itself; pages of mapped files are the system's to drop."""
    shape = SHAPE | FAMILIES["qwen3_moe"]
    shape |= {"hidden_size": 512, "moe_intermediate_size": 512, "num_experts": 80, "num_hidden_layers": 12}
    config = transformers.CONFIG_MAPPING["qwen3_moe"](**shape, architectures=["Qwen3MoeForCausalLM"])
    config.dtype = torch.bfloat16
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        meta = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shards, where = [{}, {}, {}], {}
    for name, parameter in meta.named_parameters():
        layer = int(name.split(".")[2]) if ".layers." in name else 0
        parts = {name: tuple(parameter.shape)}
        if name.endswith("gate_up_proj") or name.endswith("down_proj"):
            stem, leaf = name.rsplit(".", 1)
            split = {"gate_proj": (512, 512), "up_proj": (512, 512)} if "gate" in leaf else {leaf: (512, 512)}
            parts = {f"{stem}.{e}.{n}.weight": size for e in range(80) for n, size in split.items()}
        for part, size in parts.items():
            shards[layer // 4][part] = size
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05}-of-00003.safetensors"
        save_file({name: torch.full(size, 0.5).bfloat16() for name, size in shard.items()}, tmp_path / file)
        where |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": where}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    sizes = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]
    assert sum(sizes) > 1.5e9
    said = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])},
    )  # fmt: skip
    own_bytes, _ = map(int, said.stdout.split())
    assert own_bytes < max(sizes) + 2 * 2**30
