"""The benchmark of packing runs on any machine, without llama.cpp, and counts what the exporter packs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.computing
def test_a_layer_is_packed_and_the_whole_model_estimated():
    command = (
        "import runpy, sys\nsys.modules['xllamacpp'] = None\n"
        "sys.argv = 'gguf_packing.py --device cpu --shape llama-1b --layers 1 --vocabulary 512 --forms Q8_0'.split()\n"
        "runpy.run_path('benchmarks/gguf_packing.py', run_name='__main__')"
    )
    said = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert said.returncode == 0, said.stderr
    (line,) = (json.loads(one) for one in said.stdout.splitlines())
    assert line["form"] == "Q8_0" and line["kept"]
    layer, words = 2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 2048 * 8192, 512 * 2048
    assert line["packed_values"] == layer + words + 3 * 2048
    assert line["packed_bytes"] == (layer + words) // 32 * 34 + 3 * 2048 * 4
    assert 10 * line["measured_s"] < line["whole_model_s"]
    assert 0 < line["host_added_bytes"] < line["limit_bytes"] == 4 * (layer + 2 * 2048) + 2 * 2**30
    assert {one["tensor"] for one in line["compared"]} >= {"blk.0.attn_q.weight", "blk.0.ffn_down.weight"}
    assert all(one["bytes_differ"] == 0 and one["rmse"] == one["rmse_cpu"] > 0 for one in line["compared"])
