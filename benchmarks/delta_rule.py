"""The gated delta rule on one GPU: errors against float64, time beside transformers' own, and sizes of tiles.

    PYTHONPATH=.:kernels python -m benchmarks.delta_rule

Prints lines of text; of tiles the time of each kernel, which sizes for one kernel leave others as they are. Begins
nothing after `--seconds`. Exits 1 where an error is too large.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from contextlib import suppress
from multiprocessing import get_context

import torch
from studio_kernels._triton import ERRORS
from studio_kernels.dispatch import bind
from studio_kernels.gated_delta import GATED_DELTA, TILES, Tiles
from studio_kernels.row_chunks import Chunks
from studio_kernels.self_test import LIMITS

from benchmarks.delta_rule_cases import make_rows, run_stock

LENGTHS, KEY_HEADS, HEADS, DIM = (2048, 2048), 16, 32, 128
"""Qwen3.5 9B, 2 x 2,048 tokens."""
REPEATS = 10
TRIED = (
    TILES,
    Tiles(scan_values=64, scan_back_values=64, scan_back_stages=2, values=128, warps=8, back_warps=4),
    Tiles(scan_values=16, scan_back_values=16, keys=32, stages=2),
    Tiles(scan_stages=3, scan_back_stages=2, values=32, keys=128),
    Tiles(scan_stages=1, scan_back_values=64, scan_warps=8, values=128),
    Tiles(scan_values=64, scan_back_values=64, scan_stages=3, scan_back_stages=2, scan_warps=8, warps=8, keys=32,
          back_warps=4, stages=2),
    Tiles(scan_values=16, scan_back_values=16, scan_back_stages=2, values=128, keys=128, back_warps=4),
)  # fmt: skip
"""Each kernel depends on some of the sizes alone, so that one run tries several kernels' at a time."""


def show_errors() -> bool:
    """Print each quantity's largest error as a share of its largest value; return whether all are small."""
    good = True
    cases = (
        {"dtype": torch.bfloat16},
        {"dtype": torch.bfloat16, "lengths": (1, 700, 64, 1283)},
        {"dtype": torch.float16, "group": 1, "key_dim": 64, "fading": 0.01},
    )
    for changes in cases:
        given = {"rows": 2048, "width": 4096, "device": "cuda"} | changes
        exact = GATED_DELTA.sample(**given, wide=True)(GATED_DELTA.reference)
        run, said = GATED_DELTA.sample(**given), []
        kinds = [run(implementation) for implementation in (GATED_DELTA.triton, GATED_DELTA.reference)]
        again = run(GATED_DELTA.triton)
        for name, value in exact.items():
            largest = value.abs().max()
            ours, twin = (((found[name].double() - value).abs().max() / largest).item() for found in kinds)
            same = torch.equal(again[name], kinds[0][name])
            good &= ours < LIMITS[given["dtype"]] and same
            said.append(f"{name} {ours:.1e} ({twin:.1e}){'' if same else ' NOT THE SAME BITS'}")
        print(f"{changes}: ours (twin) {', '.join(said)}", flush=True)
    return good


def time_ms(call) -> float:
    """Return the median time of a call on the GPU."""
    call()
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def show_times(rows: tuple[torch.Tensor, ...], chunks: Chunks) -> None:
    """Print forward and backward of ours, the twin and transformers, with what autograd holds and the peak."""
    trained = [part.detach().requires_grad_() for part in rows]
    dout = torch.randn_like(rows[2])
    calls = {
        "triton": lambda: GATED_DELTA.triton(*trained, chunks, scale=DIM**-0.5),
        "twin": lambda: GATED_DELTA.reference(*trained, chunks, scale=DIM**-0.5),
        "transformers": lambda: run_stock(LENGTHS, trained),
    }
    for name, call in calls.items():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = call()
        held = torch.cuda.memory_allocated() - before
        forward = time_ms(call)
        back = time_ms(lambda out=out: torch.autograd.grad(out, trained, dout, retain_graph=True))
        peak = torch.cuda.max_memory_allocated() - before
        tokens = sum(LENGTHS)
        print(
            f"{name}: forward {forward:.2f} ms, backward {back:.2f} ms; a token holds {held / tokens:,.0f} bytes, "
            f"peak {peak / tokens:,.0f}",
            flush=True,
        )
        del out


def show_mixer() -> None:
    """Print what a whole mixer of Qwen3.5 9B takes, its own and with ours, and of the latter its longest kernels."""
    import transformers

    from studio.models.delta_rule import borrow_forward

    config = transformers.Qwen3_5TextConfig(
        hidden_size=4096, layer_types=["linear_attention"], num_hidden_layers=1, linear_num_key_heads=KEY_HEADS,
        linear_num_value_heads=HEADS, linear_key_head_dim=DIM, linear_value_head_dim=DIM, vocab_size=64,
        intermediate_size=64,
    )  # fmt: skip
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        x = torch.randn(len(LENGTHS), LENGTHS[0], 4096, dtype=torch.bfloat16, requires_grad=True)
    mixer, dy = model.model.layers[0].linear_attn.requires_grad_(False), torch.randn_like(x)
    ours = borrow_forward(mixer, bind({op: "triton" for op in ("gated_delta", "rms_norm", "glu")}))
    results = {}
    for name, call in {"transformers": mixer, "triton": lambda x: ours(mixer, x)}.items():

        def step(call=call) -> tuple[torch.Tensor, torch.Tensor]:
            y = call(x)
            return y.detach(), *torch.autograd.grad(y, x, dy)

        results[name] = step()
        print(f"mixer, {name}: forward and backward {time_ms(step):.2f} ms", flush=True)
    for theirs, mine in zip(*results.values(), strict=True):
        error = (mine - theirs).abs().max() / theirs.abs().max()
        print(f"mixer, difference {error.item():.1e} of the largest value")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            step()
            torch.cuda.synchronize()
    except ERRORS as error:  # without the driver's counters
        print("no profile:", error)
        return
    longest = sorted(seen.key_averages(), key=lambda event: -event.device_time_total)[:16]
    for event in longest:
        print(f"    {event.device_time_total / 1e3:.3f} ms in {event.count} x {event.key[:90]}", flush=True)


def draw_all() -> tuple[tuple[torch.Tensor, ...], Chunks]:
    """Return what is timed."""
    with torch.device("cuda"):
        return make_rows(LENGTHS, KEY_HEADS, HEADS, DIM), Chunks(LENGTHS, "cuda")


def run_once(rows: tuple[torch.Tensor, ...], chunks: Chunks, tiles: Tiles, dout: torch.Tensor) -> None:
    """Run forward and backward with such tiles."""
    options = {"scale": DIM**-0.5, "tiles": tiles}
    GATED_DELTA.triton.forward(*rows, chunks, **options)
    GATED_DELTA.triton.backward(dout, *rows, chunks, **options)


def compile_tiles(tiles: Tiles) -> None:
    """Fill Triton's cache: what a process of its own is for. What goes wrong shows where it is timed."""
    rows, chunks = draw_all()
    with suppress(*ERRORS):
        run_once(rows, chunks, tiles, torch.randn_like(rows[2]))


def time_kernels(rows: tuple[torch.Tensor, ...], chunks: Chunks, tiles: Tiles) -> dict[str, float]:
    """Return the milliseconds of each kernel in a forward and a backward pass, which has two of them once more."""
    dout = torch.randn_like(rows[2])
    run_once(rows, chunks, tiles, dout)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(REPEATS):
            run_once(rows, chunks, tiles, dout)
        torch.cuda.synchronize()
    found: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        if event.key.endswith("_kernel"):
            found[event.key] += event.device_time_total / REPEATS / 1e3
    return found


def main(arguments: list[str] | None = None) -> int:
    """Check, time and try tiles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=80.0)
    until = time.monotonic() + parser.parse_args(arguments).seconds
    if not torch.cuda.is_available():
        print("This needs a GPU.", file=sys.stderr)
        return 2
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    torch.manual_seed(0)
    helpers = [get_context("spawn").Process(target=compile_tiles, args=(tiles,)) for tiles in TRIED]
    for helper in helpers:
        helper.start()
    good = show_errors()
    for helper in helpers:
        helper.join()
    rows, chunks = draw_all()
    show_times(rows, chunks)
    show_mixer()
    for tiles in TRIED:
        if time.monotonic() > until:
            print("No time is left for", tiles)
            continue
        dout = torch.randn_like(rows[2])
        try:
            whole = time_ms(lambda tiles=tiles, dout=dout: run_once(rows, chunks, tiles, dout))
            print(tiles, f"forward and backward {whole:.3f} ms", flush=True)
            times = time_kernels(rows, chunks, tiles)
        except (*ERRORS, torch.OutOfMemoryError) as error:
            print(tiles, f"{type(error).__name__}: {error}".splitlines()[0][:200], flush=True)
            continue
        print("   ", ", ".join(f"{name[1:-7]} {ms:.3f}" for name, ms in sorted(times.items())), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
