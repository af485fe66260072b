"""A model of 8 billion weights in a size that a person names: the size is kept, and no more than a layer is in memory.

The folder has Llama 3 8B's names and shapes, and files with holes in the place of its weights: a plan reads headers
alone. What is really packed has its width, and few layers.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from studio.models.gguf.sensitivity import TooSmall, choose, list_steps
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.write import plan_file
from tests.conftest import make_tokenizer

ROOT = Path(__file__).parents[3]
GB = 10**9
HIDDEN, INNER, KEYS, VOCABULARY, LAYERS = 4096, 14336, 1024, 128_256, 32
LAYER_BYTES = 4 * (2 * HIDDEN**2 + 2 * HIDDEN * KEYS + 3 * HIDDEN * INNER)
"""Of one layer in fp32."""
WEIGH = """
import json, sys, threading, time
from pathlib import Path
from studio.models.gguf.sensitivity import choose, list_steps
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.write import plan_file, write_file
import torch
torch.set_num_threads(1)
folder, path, share = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
plan = plan_file(folder, get_mix("Q4_K_M"), "wide", path.name)
losses = {one.name: {form: 4.0**i for i, form in enumerate(list_steps(one))} for one in plan.tensors
          if plan.types[one.name].values > 1}
wanted = int(share * plan.size_bytes)
plan = choose(plan, losses, size_bytes=wanted).plan
def held():  # what is not a view of a file
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("RssAnon"))
before, most, over = held(), [0], threading.Event()
def look():
    while not over.wait(0.01):
        most[0] = max(most[0], held())
watcher = threading.Thread(target=look); watcher.start()
write_file(plan, path, {})
over.set(); watcher.join()
print(json.dumps({"added": most[0] - before, "wanted": wanted, "planned": plan.size_bytes}))
"""


def list_shapes(layers, vocabulary):
    """Return the names and shapes of Llama 3 8B's weights, with so many layers and words."""
    shapes = {"model.embed_tokens.weight": (vocabulary, HIDDEN), "lm_head.weight": (vocabulary, HIDDEN)}
    shapes["model.norm.weight"] = (HIDDEN,)
    for layer in range(layers):
        inside = {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (KEYS, HIDDEN),
            "self_attn.v_proj": (KEYS, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()}
    return shapes


def make_folder(folder, layers, vocabulary):
    """Write config and tokenizer."""
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=vocabulary, max_position_embeddings=8192, rope_theta=500_000.0,
        tie_word_embeddings=False, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    make_tokenizer(folder)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The plan of the whole model."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    folder.mkdir()
    make_folder(folder, LAYERS, VOCABULARY)
    header, start = {}, 0
    for name, shape in list_shapes(LAYERS, VOCABULARY).items():
        stop = start + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    words = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        file.truncate(8 + len(words) + start)
    assert start == 2 * 8_030_261_248
    return plan_file(folder, get_mix("Q4_K_M"), "wide", "wide.gguf")


@pytest.fixture(scope="module")
def losses(plan):
    """What each tensor might lose: as unlike as the demo's, whose losses a weight spread over two decades."""
    draws = np.random.default_rng(0)
    found = {}
    for one in plan.tensors:
        if plan.types[one.name].values > 1:
            worst = 1e-3 * np.exp(draws.normal(0, 1.2))
            found[one.name] = {form: worst / 4.0**i for i, form in enumerate(reversed(list_steps(one)))}
    return found


@pytest.mark.parametrize("size_bytes", [4.7 * GB, 4.92 * GB, 5.5 * GB, 6.0 * GB, 7.3 * GB, 8.5 * GB])
def test_a_size_is_kept_within_a_percent(plan, losses, size_bytes):
    chosen = choose(plan, losses, size_bytes=int(size_bytes))
    assert 0.99 * size_bytes <= chosen.plan.size_bytes <= size_bytes
    assert len({kind.name for kind in chosen.plan.types.values()}) > 2


def test_what_it_cannot_be_is_refused_with_the_least(plan, losses):
    with pytest.raises(TooSmall) as refused:
        choose(plan, losses, size_bytes=4 * GB)
    assert 4 * GB < refused.value.size_bytes < 4.7 * GB


@pytest.mark.patient
@pytest.mark.timeout(1800)
def test_packing_layers_of_its_width_takes_less_than_one_of_them(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    make_folder(folder, 1, 8192)
    torch.manual_seed(0)
    weights = {
        name: 0.02 * torch.randn(shape, dtype=torch.bfloat16) for name, shape in list_shapes(1, 8192).items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    del weights
    path = tmp_path / "wide.gguf"
    command = [sys.executable, "-c", WEIGH, str(folder), str(path), "1.1"]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=1700)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert 0.99 * told["wanted"] <= path.stat().st_size == told["planned"] <= told["wanted"]
    assert told["added"] <= LAYER_BYTES + 2 * 2**30
