"""Folders in FP8, W4A16 and MLX's 4 bits: read by their real consumers, they compute nearly what was packed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.engine.exporters.packed_folder import list_matrices, measure, weigh
from studio.models.catalog import DEMO_MODEL
from studio.models.packed_forms import FORMS, FP8, MLX, W4A16, read_packed, write_packed
from tests.side_packages import COMPRESSED, get_packages, run_beside
from tests.side_packages import MLX as MLX_PACKAGES

MOST_KL = {"fp8": 0.015, "w4a16": 0.04, "mlx": 0.04}
"""Of the demo before it has learned, whose next tokens are unsure: 0.0115, 0.032 and 0.0345 are seen by those who read
the folders, 0.005, 0.032 and 0.024 by the weights alone (FP8 rounds activations, too). Tuned it is 0.0004 to 0.0043."""
ROOT = Path(__file__).resolve().parents[2]
TRANSFORMERS = """
import json, sys, numpy, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
with torch.no_grad():
    found = [model(torch.tensor([ids])).logits[0].numpy() for ids in json.load(open(sys.argv[2]))]
numpy.savez(sys.argv[3], *found)
print(type(model.model.layers[0].self_attn.q_proj).__name__, model.config.quantization_config.quant_method)
"""
MLX_LM = """
import json, sys, numpy
import mlx.core as mx
from mlx_lm import load
model, tokenizer = load(sys.argv[1])
found = [numpy.array(model(mx.array([ids]))[0].astype(mx.float32)) for ids in json.load(open(sys.argv[2]))]
numpy.savez(sys.argv[3], *found)
print(type(model.model.layers[0].self_attn.q_proj).__name__)
"""


READ = (
    ("fp8", TRANSFORMERS, COMPRESSED, 0.01),
    ("w4a16", TRANSFORMERS, COMPRESSED, 0.03),
    ("mlx", MLX_LM, MLX_PACKAGES, 0.03),
)
"""Each form, by which program it is read, and how many nats a token it may be off."""


@pytest.fixture(scope="module")
def demo():
    """The demo's model in fp32, and what it learned from, as token ids: for the columns, and held out."""
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    rows = []
    data = DEMO_MODEL.parent / "demo_data" / "train.jsonl"
    for line in data.read_text(encoding="utf-8").splitlines()[:44]:
        words = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)
        rows.append(tokenizer(words, add_special_tokens=False)["input_ids"])
    return model, rows[:32], rows[32:]


def pack(form, demo, target):
    """Write the demo in this form; return its matrices."""
    model, rows, _ = demo
    names = list_matrices(form, model)
    target.mkdir()
    write_packed(DEMO_MODEL, target, form, names, weigh(model, names, rows) if form.bits < 8 else {})
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(DEMO_MODEL / file, target / file)
    return names


@torch.no_grad()
def spread(model, rows, found) -> float:
    """Return the mean KL of other logits (tokens, vocabulary) from the model's."""
    total = 0.0
    for ids, logits in zip(rows, found, strict=True):
        wanted = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        other = torch.from_numpy(np.asarray(logits)).log_softmax(-1)
        total += float((wanted.exp() * (wanted - other)).sum())
    return total / sum(map(len, rows))


def ask(code, folder, rows, packages):
    """Return what another program says of `rows`, and the logits that it computes."""
    (folder.parent / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    out = folder.parent / "logits.npz"
    said = run_beside(code, folder, folder.parent / "rows.json", out, packages=get_packages(packages))
    with np.load(out) as found:
        return said, [found[name] for name in found.files]


@pytest.mark.computing
@pytest.mark.parametrize("form", [FP8, W4A16], ids=lambda form: form.name)
def test_transformers_reads_a_folder_of_compressed_tensors(form, demo, tmp_path):
    names = pack(form, demo, tmp_path / "packed")
    said, found = ask(TRANSFORMERS, tmp_path / "packed", demo[2], COMPRESSED)
    assert "COMPRESSED" in said
    theirs = spread(demo[0], demo[2], found)
    assert theirs < MOST_KL[form.name]
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    ours = measure(form, tmp_path / "packed", names, model, demo[2])
    assert ours < MOST_KL[form.name] and abs(theirs - ours) < (0.008 if form is FP8 else 0.1 * ours)


@pytest.mark.computing
def test_mlx_reads_its_own_form(demo, tmp_path):
    names = pack(MLX, demo, tmp_path / "packed")
    said, found = ask(MLX_LM, tmp_path / "packed", demo[2], MLX_PACKAGES)
    assert "QuantizedLinear" in said and "model.embed_tokens.weight" in names
    assert spread(demo[0], demo[2], found) < MOST_KL["mlx"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run of the demo by the command, and a function that exports it by the command."""
    space = tmp_path_factory.mktemp("learned")

    def call(*words: object) -> dict:
        command = [
            sys.executable,
            "launch.py",
            "--here",
            *map(str, words),
            "--json",
            "--workspace",
            str(space),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    run = call("demo")["run"]
    return cache(lambda form: Path(call("export", run, "--to", form)["path"]))


@pytest.mark.patient
@pytest.mark.parametrize(("form", "code", "packages", "most"), READ, ids=[one[0] for one in READ])
def test_what_the_demo_learned_is_read_from_its_exports(form, code, packages, most, learned, tmp_path):
    """Held-out rows: the folder that the command wrote, in its real consumer, beside the merged one."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    held = (DEMO_MODEL.parent / "demo_data" / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[:12]
    words = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in held]
    rows = [tokenizer(one, add_special_tokens=False)["input_ids"] for one in words]
    merged = AutoModelForCausalLM.from_pretrained(learned("merged"), dtype=torch.float32).eval()
    folder = shutil.copytree(learned(form), tmp_path / form)
    _, found = ask(code, folder, rows, packages)
    kl = spread(merged, rows, found)
    assert 1e-6 < kl < most, kl
    demo = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    assert spread(demo, rows, found) > 10 * most, "and not what it was before"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_is_packed_is_opened_close_by(form, demo, tmp_path):
    names = pack(form, demo, tmp_path / "packed")
    state = demo[0].state_dict()
    most = {"fp8": 0.03, "w4a16": 0.12, "mlx": 0.11}[form.name]
    for name, weight in read_packed(tmp_path / "packed", form, names):
        off = (weight.float() - state[name]).square().mean().sqrt() / state[name].square().mean().sqrt()
        assert off < (most if name in names else 1e-6), name
    stored = sum(file.stat().st_size for file in (tmp_path / "packed").glob("*.safetensors"))
    packed = sum(state[name].numel() for name in names)
    assert stored < 1.2 * (packed * form.bits / 8) + 2 * (sum(one.numel() for one in state.values()) - packed)


def test_rows_that_are_no_whole_groups_are_refused(tmp_path):
    with pytest.raises(ValueError, match="48"):
        write_packed(DEMO_MODEL, tmp_path, W4A16, {"model.x.weight": 48}, {})
