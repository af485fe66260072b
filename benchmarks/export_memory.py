"""How much memory and processor time an export takes, form by form, beside what the window tells: on processors.

    python -P benchmarks/export_memory.py --shape qwen3-0.6b --layers 16          # merged, GGUF, FP8, W4A16, MLX
    python -P benchmarks/export_memory.py --model assets/demo_model               # a folder as it is
    python -P benchmarks/export_memory.py --shape llama-8b --forms merged,fp8 --folder DIR     # 16 GB and as much again
    python -P benchmarks/export_memory.py --shape llama-8b --layers 2,4 --forms gguf_q4_k_m    # all 32 by the slope

Random weights, and an adapter of rank 16 on every linear layer with random corrections; each form is written in a
process of its own, by the exporter itself, with its check. Prints a JSON line a form: the most memory of the process's
own and of llama.cpp's (views of files left out) beyond what it had before, what the window tells, and the limit: a
layer in fp32 and 2 GiB; the seconds, those of the processors, which others make little longer, and the latter phase by
phase. With two counts of layers also the processors' seconds of the whole shape, as each further layer adds as much.
`--whole`: with the whole model in memory. Exits 1 where a process takes more than the limit or than is told, or all
layers more than 25 minutes of two processors.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import psutil  # noqa: E402 (the folders above must be on the path first)
import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from benchmarks.draft import draft_run  # noqa: E402
from benchmarks.gguf_packing import HostMemory  # noqa: E402
from benchmarks.make_model import SHAPES, build_config, write_conversations, write_tokenizer, write_weights  # noqa: E402
from studio.core.i18n import Text  # noqa: E402
from studio.core.recipe import DatasetSpec  # noqa: E402
from studio.core.run_record import RunRecord  # noqa: E402
from studio.engine.exporters import folder_answers, get_exporter, merged, packed_folder  # noqa: E402
from studio.engine.exporters.exporter import ExportJob  # noqa: E402
from studio.engine.exporters.kept_parts import KeptParts  # noqa: E402
from studio.engine.run_folder import create_run  # noqa: E402
from studio.models.catalog import inspect_model  # noqa: E402
from studio.models.streamed_model import draw_streamed  # noqa: E402

FORMS = ("merged", "gguf_q4_k_m", "gguf_q8_0", "fp8", "w4a16", "mlx")
LOOK_S = 0.05
"""Between two looks for other processes, which take longer than one at this."""
LIMIT_S = 2 * 25 * 60
"""Of two processors, for a whole model."""


def main() -> int:
    """Measure every form; return 1 where one takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-0.6b", choices=tuple(SHAPES))
    parser.add_argument("--model", type=Path, help="a folder in the place of a shape")
    parser.add_argument("--layers", help="the first ones alone; two counts: the rest by what a layer adds")
    parser.add_argument("--vocabulary", type=int, help="so many words alone")
    parser.add_argument("--tokens", type=int, default=64, help="of each row that is weighed")
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
    good, lines = True, []
    with tempfile.TemporaryDirectory() as temporary:
        counts = [int(one) for one in (options.layers or "0").split(",")]
        for layers in counts:
            folder = (options.folder or Path(temporary)) / f"{layers or 'all'}-layers"
            if not (folder / "adapter").is_dir():
                make(options, folder, layers)
            for form in options.forms.split(","):
                words = [*sys.argv[1:], "--form", form, "--folder", str(folder)]
                said = subprocess.run(
                    [sys.executable, "-P", __file__, *words], stdout=subprocess.PIPE, encoding="utf-8"
                )
                if said.returncode:
                    return said.returncode
                lines.append(json.loads(said.stdout.splitlines()[-1]))
                print(json.dumps(lines[-1]), flush=True)
    for form in options.forms.split(",") if len(counts) == 2 else ():
        lines.append(extend(*(one for one in lines if one["form"] == form)))
        print(json.dumps(lines[-1]), flush=True)
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    good = options.whole or all(line["kept"] for line in lines)
    return 0 if good else 1


def extend(few: dict, more: dict) -> dict:
    """Return the line of all layers of the shape, from those of two counts of them."""
    shape = build_config(few["shape"])
    layer_s = (more["processor_s"] - few["processor_s"]) / (more["layers"] - few["layers"])
    processor_s = few["processor_s"] + (shape.num_hidden_layers - few["layers"]) * layer_s
    return {
        "form": few["form"],
        "shape": few["shape"],
        "layers": shape.num_hidden_layers,
        "processor_s_a_layer": round(layer_s, 1),
        "estimated_processor_s": round(processor_s),
        "limit_s": LIMIT_S,
        "kept": processor_s <= LIMIT_S,
    }


def make(options: argparse.Namespace, folder: Path, layers: int) -> None:
    """Write base, data and adapter; only a part of the base is in memory. layers: so many alone; 0: all."""
    base = folder / "base"
    if options.model:
        shutil.copytree(options.model, base)
    else:
        base.mkdir(parents=True)
        config = build_config(options.shape)
        if options.vocabulary:
            config.vocab_size = options.vocabulary
        if layers:
            config.num_hidden_layers = layers
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:layers]
        config.save_pretrained(base)
        write_weights(config, base, torch.Generator().manual_seed(0))
        write_tokenizer(base)
    write_conversations(base / "conversations.jsonl", options.tokens, 0)
    settings = LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear")
    adapted = get_peft_model(draw_streamed(base), settings)
    with torch.no_grad():
        for name, one in adapted.named_parameters():
            if "lora_B" in name:
                one.normal_(0, 0.01)
    adapted.save_pretrained(folder / "adapter")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "adapter")


def measure(options: argparse.Namespace) -> dict:
    """Export once and return the line."""
    base = options.folder / "base"
    facts = inspect_model(str(base))
    plan, recipe = draft_run(facts, bits=16, batch=1, tokens=options.tokens, device="cpu")
    recipe = dataclasses.replace(
        recipe,
        name="measured",
        data=DatasetSpec(source=str(base / "conversations.jsonl"), max_length=options.tokens),
    )
    run = create_run(options.folder / "runs", recipe)
    shutil.copytree(options.folder / "adapter", run.path / "adapter")
    record = RunRecord(run=run.run, name="measured", state="finished", created_s=0.0, artifact="adapter")
    exporter = get_exporter(options.form)
    with tempfile.TemporaryDirectory(dir=options.folder) as target:
        KeptParts(Path(target)).begin("measured")
        watch = ExportMemory()
        phases = Phases(watch)
        job = ExportJob(run.path, record, facts, plan, Path(target), tell=phases.begin)
        if options.whole:
            merged.can_stream = lambda job: False
            folder_answers.draw_dense = packed_folder.draw_dense = lambda folder: None
        told_bytes = exporter.memory_bytes(job)
        begun_s, used_s = time.perf_counter(), measure_processor_s()
        with watch:
            exporter.write(job)
        took_s, processor_s = time.perf_counter() - begun_s, measure_processor_s() - used_s
        phases.begin(None)
        written = sum(one.stat().st_size for one in Path(target).iterdir() if one.is_file())
    layer_bytes = 4 * facts.linear_parameters // facts.layers
    return {
        "form": options.form,
        "shape": str(options.model.name) if options.model else options.shape,
        "layers": facts.layers,
        "parameters": facts.parameters,
        "whole": options.whole,
        "added_bytes": watch.added_bytes,
        "llama_cpp_bytes": watch.other_bytes,
        "told_bytes": told_bytes,
        "limit_bytes": layer_bytes + 2 * 2**30,
        "written_bytes": written,
        "seconds": round(took_s, 1),
        "processor_s": round(processor_s, 1),
        "phases_processor_s": {name: round(one_s, 1) for name, one_s in phases.seconds.items()},
        "phases_added_bytes": phases.added_bytes,
        "kept": watch.added_bytes <= min(layer_bytes + 2 * 2**30, told_bytes),
    }


def measure_processor_s() -> float:
    """Return the processors' seconds of this process and of those that it waited for, in all threads."""
    return sum(os.times()[:4])


class ExportMemory(HostMemory):
    """The memory of this process and of those that it starts, each of its own, at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.other_bytes = self._phase_bytes = 0
        self._looked_s = self._others_bytes = 0.0

    def _measure(self) -> int:
        now_s = time.perf_counter()
        if now_s - self._looked_s > LOOK_S:
            self._looked_s, self._others_bytes = now_s, 0
            for child in psutil.Process().children():
                with suppress(psutil.Error):  # it ended just now
                    info = child.memory_info()
                    self._others_bytes += info.rss - getattr(info, "shared", 0)
            self.other_bytes = max(self.other_bytes, self._others_bytes)
        found = super()._measure() + self._others_bytes
        self._phase_bytes = max(self._phase_bytes, found)
        return found

    def take_phase_bytes(self) -> int:
        """Return the most that was seen beyond the beginning since this was asked for last."""
        most, self._phase_bytes = self._phase_bytes, 0
        return most - self._before_bytes


class Phases:
    """How long each phase that an exporter tells keeps the processors, and how much memory it takes at most."""

    def __init__(self, watch: ExportMemory) -> None:
        self.seconds: Counter[str] = Counter()
        self.added_bytes: dict[str, int] = {}
        self._watch = watch
        self._now, self._begun_s = "", 0.0

    def begin(self, phase: Text | None) -> None:
        """Hear of the next one; None: of the end."""
        now_s = measure_processor_s()
        if self._now:
            self.seconds[self._now] += now_s - self._begun_s
            self.added_bytes[self._now] = max(
                self.added_bytes.get(self._now, 0), self._watch.take_phase_bytes()
            )
        self._now, self._begun_s = phase.id.rpartition(".")[2] if phase else "", now_s


if __name__ == "__main__":
    sys.exit(main())
