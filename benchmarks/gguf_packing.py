"""How long an 8B model's tensors take to be packed into GGUF's forms, and in what memory: random weights, no files.

    python benchmarks/gguf_packing.py --device cuda                   # Llama-3.1-8B's shapes, Q4_K_M, Q6_K and Q8_0
    python benchmarks/gguf_packing.py --device cpu --threads 2
    python benchmarks/gguf_packing.py --device cpu --layers 1 --vocabulary 8192     # a try, the rest estimated

The tensors are drawn one after another (normal, 0.02, bf16) and packed by the exporter's own code; what is timed is
that code alone, with its copies to the card and back. Of a few tensors the first numbers are packed on the processor,
too: bytes that differ, and both errors. Prints a JSON line for each form; exits 1 where it takes longer than 30 s on a
card or 25 minutes on processors, more memory than a layer in fp32 and 2 GiB, or loses more than 1.02 times the
processor's. Needs no llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import numpy as np  # noqa: E402 (the folders above must be on the path first)
import psutil  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from gguf import GGMLQuantizationType, quants  # noqa: E402

from benchmarks.make_model import SHAPES  # noqa: E402
from studio.models.gguf.block_types import BlockType  # noqa: E402
from studio.models.gguf.file_tensors import FileTensor, build_stored, list_stored  # noqa: E402
from studio.models.gguf.quantize import PACKED, quantize  # noqa: E402
from studio.models.gguf.tensor_types import choose_types, get_mix  # noqa: E402
from studio.models.gguf.write import find_written, pack_tensor  # noqa: E402

FORMS = ("Q4_K_M", "Q6_K", "Q8_0")
LIMIT_S = {"cuda": 30, "cpu": 25 * 60}
LIMIT_SHARE = 1.02
DRAWN_AT_ONCE = 2**24
COMPARED_VALUES = 2**20
COMPARED = ("blk.0.attn_q.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight", "output.weight")


def main() -> int:
    """Measure every form; return 1 where one does not keep a limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=tuple(LIMIT_S), default="cuda")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--shape", default="llama-8b", choices=("llama-8b", "llama-1b"))
    parser.add_argument("--layers", type=int, help="the first ones alone; the rest is estimated")
    parser.add_argument("--vocabulary", type=int, help="so many words alone; the rest is estimated")
    parser.add_argument("--threads", type=int, help="of PyTorch's, on the processor")
    parser.add_argument("--out", type=Path, help="the lines are added to this file, too")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    shape = dict(SHAPES[options.shape])
    whole = list_tensors(shape)
    shape["num_hidden_layers"] = options.layers or shape["num_hidden_layers"]
    shape["vocab_size"] = options.vocabulary or shape["vocab_size"]
    some, good = list_tensors(shape), True
    for form in PACKED:  # what is done once in a process is not timed
        quantize(torch.randn(64, 512), form, None, options.device)
    for form in options.forms.split(","):
        types = choose_types(get_mix(form), whole[0], tied=shape["tie_word_embeddings"])
        found = pack_all(some[0], types, *some[1:], options.device)
        line = describe(form, options, found, whole[0], types)
        good &= line["kept"]
        print(json.dumps(line), flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return 0 if good else 1


def list_tensors(shape: dict) -> tuple[tuple[FileTensor, ...], object, dict]:
    """Return the tensors of a file of this shape, its family, and its config."""
    config = transformers.AutoConfig.for_model(**shape)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    family = find_written(config.model_type)
    return list_stored(family, shapes, config.to_dict(), "none"), family, config.to_dict()


class Found:
    """What packing the tensors came to."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        """By form of blocks."""
        self.processor_s = 0.0
        """Of all threads, which other programs do not make longer."""
        self.values: Counter[str] = Counter()
        self.host_bytes = self.device_bytes = self.packed_bytes = 0
        self.compared: list[dict] = []


def pack_all(
    tensors: tuple[FileTensor, ...], types: dict[str, BlockType], family, config: dict, device: str
) -> Found:
    """Draw and pack the tensors one after another."""
    found, watch = Found(), HostMemory()
    generator = torch.Generator(device).manual_seed(0)
    with watch:
        for tensor in tensors:
            kind = types[tensor.name]
            shapes = {name: tensor.shape for name in tensor.sources}
            weight = build_stored(
                family, tensor, config, lambda name, shapes=shapes: draw(shapes[name], generator)
            )
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            begun_s, used_s = time.perf_counter(), time.process_time()
            found.packed_bytes += sum(len(part) for part in pack_tensor(weight, kind, None, device))
            found.seconds[kind.name] += time.perf_counter() - begun_s  # the bytes are here: the card is done
            found.processor_s += time.process_time() - used_s
            found.values[kind.name] += weight.numel()
            if device == "cuda":
                found.device_bytes = max(found.device_bytes, torch.cuda.max_memory_reserved())
            if tensor.name in COMPARED and kind.name in PACKED:
                found.compared.append({"tensor": tensor.name, **compare(weight, kind.name, device)})
    found.host_bytes = watch.added_bytes
    return found


def draw(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return random weights (normal, 0.02) in bf16 on the processor."""
    weight = torch.empty(shape, dtype=torch.bfloat16)
    flat, device = weight.view(-1), generator.device
    for start in range(0, len(flat), DRAWN_AT_ONCE):
        part = flat[start : start + DRAWN_AT_ONCE]
        part.copy_(torch.randn(part.shape, generator=generator, device=device).mul_(0.02))
    return weight


def compare(weight: torch.Tensor, form: str, device: str) -> dict:
    """Return how many bytes of the first rows differ from those that the processor packs, and both errors (RMSE)."""
    rows = weight[: COMPARED_VALUES // weight.shape[-1]]
    here, there = quantize(rows, form), quantize(rows, form, None, device)
    kind = GGMLQuantizationType[form]
    errors = [
        math.sqrt(np.square(quants.dequantize(one.numpy(), kind) - rows.float().numpy()).mean())
        for one in (here, there)
    ]
    differ = int((here != there).sum())
    return {
        "form": form,
        "bytes": here.numel(),
        "bytes_differ": differ,
        "rmse_cpu": errors[0],
        "rmse": errors[1],
    }


class HostMemory:
    """How far this process's own memory grows: what is no view of a file."""

    def __init__(self) -> None:
        self.added_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> HostMemory:
        self._before_bytes = self._measure()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.added_bytes = max(self.added_bytes, self._measure() - self._before_bytes)

    @staticmethod
    def _measure() -> int:
        info = psutil.Process().memory_info()
        return info.rss - getattr(info, "shared", 0)


def describe(
    form: str, options, found: Found, whole: tuple[FileTensor, ...], types: dict[str, BlockType]
) -> dict:
    """Return the line of a form, with the seconds of the whole model."""
    values: Counter[str] = Counter()
    for tensor in whole:
        values[types[tensor.name].name] += math.prod(tensor.shape)
    seconds = sum(
        found.seconds[name] * count / found.values[name]
        for name, count in values.items()
        if found.values[name]
    )
    layer_bytes = 4 * sum(math.prod(one.shape) for one in whole if one.name.startswith("blk.0."))
    limit_bytes = layer_bytes + 2 * 2**30
    slower = [one for one in found.compared if one["rmse"] > LIMIT_SHARE * one["rmse_cpu"]]
    return {
        "form": form,
        "device": torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{torch.get_num_threads()} threads",
        "packed_values": sum(found.values.values()),
        "packed_bytes": found.packed_bytes,
        "measured_s": round(sum(found.seconds.values()), 2),
        "processor_s": round(found.processor_s, 2),
        "whole_model_s": round(seconds, 2),
        "limit_s": LIMIT_S[options.device],
        "million_values_per_s": {
            name: round(count / found.seconds[name] / 1e6, 1) for name, count in found.values.items()
        },
        "host_added_bytes": found.host_bytes,
        "device_peak_bytes": found.device_bytes,
        "limit_bytes": limit_bytes,
        "compared": found.compared,
        "torch": torch.__version__,
        "kept": seconds <= LIMIT_S[options.device]
        and max(found.host_bytes, found.device_bytes) <= limit_bytes
        and not slower,
    }


if __name__ == "__main__":
    sys.exit(main())
