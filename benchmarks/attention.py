"""Times PyTorch's attention kernels as the studio calls them: `python benchmarks/attention.py --out FILE.csv`.

Forward and backward of causal attention on packed documents, bfloat16, random data, q, k and v as slices of one matrix.
The backends alternate; time is the GPU's own, between two events, while the host runs ahead. `tflops` counts the
products under the causal mask. `first_ms` is the host's time for the first call, plans and loading included.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from studio_kernels.attention import Documents, Heads, supports  # noqa: E402 (the folder above must be on the path)
from studio_kernels.attention_backends import CUDNN, EFFICIENT, FLASH, MATH, AttentionBackend  # noqa: E402

from benchmarks.child import ask_driver  # noqa: E402
from benchmarks.compare import hide_folders  # noqa: E402

REPEATS = 10
WARMUPS = 2
SHAPES = {
    "llama-8b": (32, 8, 128),
    "qwen3-0.6b": (16, 8, 128),
    "llama-1b": (32, 8, 64),
    "gemma3-4b": (8, 4, 256),
}
"""Query heads, key heads, head width."""
REAL_LENGTHS = (1400, 90, 610, 350, 2048, 220, 35, 480, 760, 170, 300, 1000, 55, 410, 264)
"""Documents of one pack of 8,192 tokens, as chat data have them."""
PACKS = {
    "2x512": (512,) * 2,
    "2x2048": (2048,) * 2,
    "8x2048": (2048,) * 8,
    "1x8192": (8192,),
    "1x32768": (32768,),
    "packed-8192": REAL_LENGTHS,
    "packed-short": (64,) * 127 + (63, 1),
}
WINDOWS = {"packed-8192": (0, 512), "1x8192": (0, 1024)}
MATH_TOKENS = 8192
"""Longest pack on which the composed form is timed: it takes seconds beyond."""


def products(documents: Documents, heads: Heads) -> int:
    """Floating point operations of the forward pass; the backward pass has 2.5 times as many."""
    window = heads.window_of(documents)
    pairs = 0
    for length in documents.lengths:
        pairs += length * (length + 1) // 2
        if 0 < window < length:
            pairs -= (length - window) * (length - window + 1) // 2
    return 4 * pairs * heads.query_heads * heads.head_dim


def elapsed_ms(call: Callable[[], object]) -> float:
    """One run on the GPU; the pause before it lets the host run ahead."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(2_000_000)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@torch.no_grad()
def measure(shape: str, pack: str, window: int) -> list[dict[str, object]]:
    """The rows of one shape, pack and window: every backend that can compute it, forward and backward."""
    query_heads, key_heads, head_dim = SHAPES[shape]
    heads = Heads(
        head_dim=head_dim, query_heads=query_heads, key_heads=key_heads, scale=head_dim**-0.5, window=window
    )
    documents = Documents.of(PACKS[pack], "cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = torch.randn(
        documents.tokens,
        2 * query_heads + 2 * key_heads,
        head_dim,
        generator=generator,
        device="cuda",
        dtype=torch.bfloat16,
    )
    q, k, v, dout = drawn.split((query_heads, key_heads, key_heads, query_heads), 1)
    calls, firsts, expected = {}, {}, None
    for backend in (CUDNN, FLASH, EFFICIENT, MATH):
        if not usable(backend, documents, heads):
            continue
        began = time.perf_counter()
        try:
            out, saved = backend.forward(q, k, v, documents, heads)
            gradients = backend.backward(dout, q, k, v, out, saved, documents, heads)
            torch.cuda.synchronize()
        except RuntimeError as failure:
            print(f"{shape} {pack} {window} {backend.name}: {str(failure).splitlines()[0]}", flush=True)
            continue
        firsts[backend.name] = (time.perf_counter() - began) * 1000
        results = [x.float() for x in (out, *gradients)]
        expected = expected or results
        for ours, theirs in zip(results, expected, strict=True):
            error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            if not error < 0.05:
                raise ValueError(f"{backend.name} is off by {error:.3g} on {shape} {pack} {window}")
        calls[backend.name] = {
            "forward": lambda backend=backend: backend.forward(q, k, v, documents, heads),
            "backward": lambda backend=backend, out=out, saved=saved: backend.backward(
                dout, q, k, v, out, saved, documents, heads
            ),
        }
    rows = []
    for direction, share in (("forward", 1.0), ("backward", 2.5)):
        times: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(WARMUPS + REPEATS):
            for name, each in calls.items():
                taken = elapsed_ms(each[direction])
                if repeat >= WARMUPS:
                    times[name].append(taken)
        for name, taken in times.items():
            median_ms = statistics.median(taken)
            rows.append(
                {
                    "shape": shape,
                    "pack": pack,
                    "window": window,
                    "direction": direction,
                    "backend": name,
                    "median_ms": f"{median_ms:.3f}",
                    "tflops": f"{share * products(documents, heads) / median_ms / 1e9:.0f}",
                    "first_ms": f"{firsts[name]:.0f}",
                }
            )
    return rows


def usable(backend: AttentionBackend, documents: Documents, heads: Heads) -> bool:
    """Whether the backend may be asked to compute this."""
    if backend is MATH:
        return documents.tokens <= MATH_TOKENS
    if backend is CUDNN and (documents.uniform is None or heads.window_of(documents)):
        return False
    return supports(backend, "cuda", torch.cuda.get_device_capability(), torch.bfloat16, heads).ok


def main() -> int:
    """Prints and writes the table; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("attention.csv"), help="the CSV file to write")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="only these shapes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs a GPU.", file=sys.stderr)
        return 2
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "driver": ask_driver("driver_version"),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python benchmarks/attention.py", *hide_folders(sys.argv[1:])]),
    }
    table = []
    for shape in options.shape or SHAPES:
        for pack in PACKS:
            for window in WINDOWS.get(pack, (0,)):
                for row in measure(shape, pack, window):
                    table.append(row | machine)
                    print(" ".join(str(value) for value in row.values()), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
