"""How much memory an export takes, form by form, beside what the window tells: a model of a known shape, on processors.

    python -P benchmarks/export_memory.py --shape qwen3-0.6b --layers 16          # merged, GGUF, FP8, W4A16, MLX
    python -P benchmarks/export_memory.py --shape llama-8b --forms merged,fp8 --folder DIR     # 16 GB and as much again

Random weights, and an adapter of rank 16 on every linear layer with random corrections; each form is written in a
process of its own, by the exporter itself, with its check. Prints a JSON line a form: the most memory of the process's
own (views of files left out) beyond what it had before, what the window tells, and the limit: a layer in fp32 and
2 GiB. `--whole`: with the whole model in memory. Exits 1 where a process takes more than the limit or than is told.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import torch  # noqa: E402 (the folders above must be on the path first)
from peft import LoraConfig, get_peft_model  # noqa: E402

from benchmarks.draft import draft_run  # noqa: E402
from benchmarks.gguf_packing import HostMemory  # noqa: E402
from benchmarks.make_model import SHAPES, build_config, write_conversations, write_tokenizer, write_weights  # noqa: E402
from studio.core.recipe import DatasetSpec  # noqa: E402
from studio.core.run_record import RunRecord  # noqa: E402
from studio.engine.exporters import folder_answers, get_exporter, merged, packed_folder  # noqa: E402
from studio.engine.exporters.exporter import ExportJob  # noqa: E402
from studio.engine.exporters.kept_parts import KeptParts  # noqa: E402
from studio.engine.run_folder import create_run  # noqa: E402
from studio.models.catalog import inspect_model  # noqa: E402
from studio.models.streamed_model import draw_streamed  # noqa: E402

FORMS = ("merged", "gguf_q4_k_m", "gguf_q8_0", "fp8", "w4a16", "mlx")
ROW_TOKENS = 64


def main() -> int:
    """Measure every form; return 1 where one takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-0.6b", choices=tuple(SHAPES))
    parser.add_argument("--layers", type=int, help="the first ones alone")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--folder", type=Path, help="where the model is made, and kept; else a temporary one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--out", type=Path, help="the lines are added to this file, too")
    parser.add_argument("--form", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.form:
        print(json.dumps(measure(options)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder, good = options.folder or Path(temporary), True
        if not (folder / "adapter").is_dir():
            make(options, folder)
        for form in options.forms.split(","):
            words = [*sys.argv[1:], "--form", form, "--folder", str(folder)]
            said = subprocess.run(
                [sys.executable, "-P", __file__, *words], stdout=subprocess.PIPE, encoding="utf-8"
            )
            if said.returncode:
                return said.returncode
            line = said.stdout.splitlines()[-1]
            print(line, flush=True)
            good &= options.whole or json.loads(line)["kept"]
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
    return 0 if good else 1


def make(options: argparse.Namespace, folder: Path) -> None:
    """Write base, data and adapter; only a part of the base is in memory."""
    base = folder / "base"
    base.mkdir(parents=True)
    config = build_config(options.shape)
    if options.layers:
        config.num_hidden_layers = options.layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: options.layers]
    config.save_pretrained(base)
    write_weights(config, base, torch.Generator().manual_seed(0))
    write_tokenizer(base)
    write_conversations(base / "conversations.jsonl", ROW_TOKENS, 0)
    settings = LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear")
    adapted = get_peft_model(draw_streamed(base), settings)
    with torch.no_grad():
        for name, one in adapted.named_parameters():
            if "lora_B" in name:
                one.normal_(0, 0.01)
    adapted.save_pretrained(folder / "adapter")
    write_tokenizer(folder / "adapter")


def measure(options: argparse.Namespace) -> dict:
    """Export once and return the line."""
    base = options.folder / "base"
    facts = inspect_model(str(base))
    plan, recipe = draft_run(facts, bits=16, batch=1, tokens=ROW_TOKENS, device="cpu")
    recipe = dataclasses.replace(
        recipe,
        name="measured",
        data=DatasetSpec(source=str(base / "conversations.jsonl"), max_length=ROW_TOKENS),
    )
    run = create_run(options.folder / "runs", recipe)
    shutil.copytree(options.folder / "adapter", run.path / "adapter")
    record = RunRecord(run=run.run, name="measured", state="finished", created_s=0.0, artifact="adapter")
    exporter = get_exporter(options.form)
    with tempfile.TemporaryDirectory(dir=options.folder) as target:
        KeptParts(Path(target)).begin("measured")
        job = ExportJob(run.path, record, facts, plan, Path(target))
        if options.whole:
            merged.can_stream = lambda job: False
            folder_answers.draw_dense = packed_folder.draw_dense = lambda folder: None
        told_bytes = exporter.memory_bytes(job)
        begun_s, watch = time.perf_counter(), HostMemory()
        with watch:
            exporter.write(job)
        took_s = time.perf_counter() - begun_s
        written = sum(one.stat().st_size for one in Path(target).iterdir() if one.is_file())
    layer_bytes = 4 * facts.linear_parameters // facts.layers
    return {
        "form": options.form,
        "shape": options.shape,
        "parameters": facts.parameters,
        "whole": options.whole,
        "added_bytes": watch.added_bytes,
        "told_bytes": told_bytes,
        "limit_bytes": layer_bytes + 2 * 2**30,
        "written_bytes": written,
        "seconds": round(took_s, 1),
        "kept": watch.added_bytes <= min(layer_bytes + 2 * 2**30, told_bytes),
    }


if __name__ == "__main__":
    sys.exit(main())
