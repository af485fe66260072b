"""Tries the tiles of the kernels of a step of generation on this card: `python benchmarks/decode_sweep.py --out JSON`.

First every case of the ops' tests is held against float64. Then each tile is timed in a captured graph, as a step of
generation plays it: one launch after another on copies of the data that together are many times the L2 cache, so that
every byte comes from memory; the time of a launch is that of the graph over their number. `GB/s` is of the bytes that
any implementation must read and write. Tiles are compiled beforehand by processes that work side by side. Beside them:
PyTorch's products of few 16-bit rows, and bitsandbytes' by 4-bit weights where PEERS_SITE (see kernels.py) has it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
# Without this file's own folder: libraries ask for a package called `kernels`, which is not benchmarks/kernels.py.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
sys.path += [folder for folder in [os.environ.get("PEERS_SITE", "")] if folder]

from studio_kernels import decode_attention, few_rows, nf4_few_rows, token_sampler  # noqa: E402 (the folders above come first)
from studio_kernels.dispatch import ERRORS, op_named  # noqa: E402
from studio_kernels.nf4 import Nf4  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.decode_cases import make_pages, stock_4bit  # noqa: E402
from benchmarks.kernel_cases import draw, peer  # noqa: E402
from benchmarks.kernels import Clock, measure_rates  # noqa: E402

OPS = ("few_rows", "nf4_few_rows", "decode_attention", "token_sampler", "write_pages")
COLD_BYTES = 512 << 20
"""What the copies of a trial's data take together; the L2 cache of an H200 has 60 MB."""
MOST_COPIES, FEWEST_COPIES = 64, 8
REPLAYS = 7
SHAPES = ((4096, 14336), (14336, 4096), (4096, 6144), (4096, 4096))
"""Inputs and outputs of the linears of an 8B model: gate or up, down, q, k and v together, o."""
GROUPS = ((4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (14336, 14336)), (14336, (4096,)))
"""Likewise of those that read the same rows: q, k and v, o, gate and up, down."""
RANK = 16
ROWS = (1, 16, 64)
SLOTS = ((1, 1024), (8, 1024), (64, 1024), (1, 16384))
HEADS = (32, 8, 128)
VOCABULARY = 128256
KEPT = 4
"""Best tiles that are printed of each shape; the file has all."""
LIMIT = 0.03


@dataclass(frozen=True, slots=True)
class Trial:
    """One shape of one op: its ways to run, each on any of some copies of the data."""

    op: str
    shape: str
    floor_bytes: int
    copies: int
    ways: dict[str, Callable[[int], Tensor]]
    """Name -> a run on the copy of that number; `rule` is the op as it is."""


def count_copies(size_bytes: int) -> int:
    """Return how many copies of so many bytes leave nothing in the cache."""
    return max(FEWEST_COPIES, min(MOST_COPIES, -(-COLD_BYTES // size_bytes)))


def wide_rows_trials(
    rows_of: Sequence[int] = ROWS, groups: Sequence[tuple[int, tuple[int, ...]]] = GROUPS
) -> Iterator[Trial]:
    """Few rows by 16-bit weights of linears that read the same, with adapters and what they are added to."""
    for inputs, sizes in groups:
        outputs = sum(sizes)
        weights = [[draw(size, inputs) for size in sizes] for _ in range(count_copies(2 * inputs * outputs))]
        for rows in rows_of:
            x, add = draw(rows, inputs), draw(rows, outputs)
            given = {"a": draw(len(sizes) * RANK, inputs), "b": draw(outputs, RANK), "add": add}
            run = partial(run_wide_rows, x, weights, given)
            ways = {"rule": run} | {spell(tile): partial(run, tile=tile) for tile in list_row_tiles(rows)}
            ways["torch"] = partial(run_torch_rows, x, weights, given)
            ways["torch, without adapters"] = partial(run_torch_rows, x, weights, {"add": add})
            floor = 2 * (inputs * outputs + rows * (inputs + 2 * outputs))
            yield Trial("few_rows", f"{rows}x{inputs}->{sizes} r{RANK}", floor, len(weights), ways)
        del weights


def list_row_tiles(rows: int) -> list[few_rows.RowsTile]:
    """Return what is tried for so many rows."""
    found = [
        few_rows.RowsTile(outputs=outputs, keys=keys, num_warps=warps, num_stages=stages)
        for (outputs, warps), keys, stages in product(
            ((16, 2), (16, 4), (32, 4), (64, 4), (64, 8)), (128, 256, 512), (2, 3, 4)
        )
    ]
    padded = max(16, rows)
    return [tile for tile in found if 2 * tile.num_stages * tile.keys * (tile.outputs + padded) <= 160_000]


def run_wide_rows(
    x: Tensor, weights: Sequence[Any], given: dict[str, Tensor], copy: int, **options: Any
) -> Tensor:
    """Multiply by the weights of that number."""
    return op_named("few_rows").triton.forward(x, weights[copy], **given, **options)


def run_torch_rows(x: Tensor, weights: Sequence[Any], given: dict[str, Tensor], copy: int) -> Tensor:
    """The same by PyTorch."""
    return op_named("few_rows").reference.forward(x, weights[copy], **given)


def few_rows_trials(
    rows_of: Sequence[int] = ROWS, shapes: Sequence[tuple[int, int]] = SHAPES
) -> Iterator[Trial]:
    """Few rows by 4-bit weights with a tail of 16, and by 16-bit ones."""
    bitsandbytes = peer("bitsandbytes", "functional")
    for inputs, outputs in shapes:
        size_bytes = inputs * outputs // 2 + inputs * outputs // 64
        copies = count_copies(size_bytes)
        weights = [draw_nf4(outputs, inputs) for _ in range(copies)]
        for rows in rows_of:
            x, tail = draw(rows, inputs), (draw(rows, 16), draw(outputs, 16))
            run = partial(run_few_rows, x, weights, tail)
            ways = {"rule": run} | {spell(tile): partial(run, tile=tile) for tile in list_tiles(rows)}
            if bitsandbytes is not None:
                ways["bitsandbytes"] = partial(run_stock_4bit, x, weights, tail, bitsandbytes)
            floor = size_bytes + rows * (inputs + outputs) * 2
            yield Trial("nf4_few_rows", f"{rows}x{inputs}->{outputs} r16", floor, copies, ways)
        del weights


def list_tiles(rows: int) -> list[nf4_few_rows.OutputTile]:
    """Return what is tried for so many rows: the more there are, the more warps must share a tile's registers."""
    sizes = (
        ((16, 1), (32, 1), (64, 1), (64, 2), (128, 4))
        if rows <= 16
        else ((32, 2), (64, 2), (64, 4), (128, 4))
    )
    stages = (1, 3, 4) if rows <= 16 else (1, 2)
    return [
        nf4_few_rows.OutputTile(outputs=outputs, parts=parts, num_warps=warps, num_stages=depth)
        for (outputs, warps), depth, parts in product(sizes, stages, (1, 2, 4, 8))
    ]


def draw_nf4(outputs: int, inputs: int) -> Nf4:
    """Return a weight of random bytes and scales with the code of bitsandbytes."""
    blocks = outputs * inputs // 64
    positive = [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1.0]
    negative = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
    weight = Nf4(
        packed=torch.randint(0, 256, (outputs * inputs // 2,), dtype=torch.uint8),
        absmax=torch.randint(0, 256, (blocks,), dtype=torch.uint8),
        code=torch.tensor(negative + positive),
        nested_absmax=torch.rand(-(-blocks // 256)).add_(0.5),
        nested_code=torch.linspace(-1, 1, 256),
        offset=torch.tensor(1.5),
        shape=(outputs, inputs),
        dtype=torch.bfloat16,
    )
    weight.words(torch.bfloat16)  # made once, before a graph is captured
    return weight


def run_few_rows(
    x: Tensor, weights: Sequence[Nf4], tail: tuple[Tensor, Tensor], copy: int, **options: Any
) -> Tensor:
    """Multiply by the weight of that number."""
    return op_named("nf4_few_rows").triton.forward(x, weights[copy], tail=tail, **options)


def run_stock_4bit(
    x: Tensor, weights: Sequence[Nf4], tail: tuple[Tensor, Tensor], functions: Any, copy: int
) -> Tensor:
    """The same by bitsandbytes."""
    weight = weights[copy]
    nested = functions.QuantState(weight.nested_absmax, code=weight.nested_code, blocksize=256)
    state = functions.QuantState(
        weight.absmax, shape=weight.shape, code=weight.code, blocksize=64, quant_type="nf4", dtype=weight.dtype,
        offset=weight.offset, state2=nested,
    )  # fmt: skip
    return stock_4bit(x, weight.packed.view(-1, 1), state, tail)()[0]


def attention_trials(slots_of: Sequence[tuple[int, int]] = SLOTS) -> Iterator[Trial]:
    """Attention of one token a slot, all slots of one length."""
    tiles = [
        decode_attention.KeyTile(keys=keys, num_warps=warps, num_stages=stages)
        for keys, warps, stages in product((32, 64, 128), (2, 4, 8), (3, 5))
    ]
    query_heads, key_heads, width = HEADS
    for slots, tokens in slots_of:
        size_bytes = 4 * slots * tokens * key_heads * width
        copies = count_copies(size_bytes)
        pages = [make_pages(slots, tokens, key_heads, width) for _ in range(copies)]
        run = partial(run_attention, draw(slots, query_heads, width), pages)
        ways = {"rule": run}
        for tile, parts in product(tiles, (1, 2, 4, 8, 16, 32, 64)):
            if 64 <= parts * slots * key_heads <= 4096 and parts * tile.keys <= tokens:
                ways[f"{spell(tile)} parts={parts}"] = partial(run, tile=tile, parts=parts)
        floor = size_bytes + 4 * slots * query_heads * width
        shape = f"{slots}x{tokens} ({query_heads}+{key_heads})x{width}"
        yield Trial("decode_attention", shape, floor, copies, ways)
        del pages


def run_attention(q: Tensor, pages: Sequence[tuple[Tensor, ...]], copy: int, **options: Any) -> Tensor:
    """Attend to the pages of that number."""
    scale = q.shape[-1] ** -0.5
    return op_named("decode_attention").triton.forward(q, *pages[copy], scale=scale, **options)


def sampler_trials() -> Iterator[Trial]:
    """Tokens of 1, 8 and 64 slots."""
    for slots, dtype in product((1, 8, 64), (torch.bfloat16, torch.float32)):
        size_bytes = slots * VOCABULARY * dtype.itemsize
        copies = count_copies(size_bytes)
        logits = [draw(slots, VOCABULARY, dtype=dtype) for _ in range(copies)]
        run = partial(
            run_sampler, logits, torch.full((slots,), 0.8), torch.arange(slots), torch.arange(slots)
        )
        ways = {"rule": run} | {f"num_warps={warps}": partial(run, num_warps=warps) for warps in (1, 2, 4, 8)}
        yield Trial("token_sampler", f"{slots}x{VOCABULARY} {dtype}", size_bytes, copies, ways)


def run_sampler(logits: Sequence[Tensor], *given: Tensor | int, **options: Any) -> Tensor:
    """Draw from the logits of that number, the last of what is given."""
    *tensors, copy = given
    return token_sampler.fused_forward(logits[copy], *tensors, **options)[1]


def write_trials() -> Iterator[Trial]:
    """One row of keys and values a slot: what a launch takes in a graph at least."""
    pages = [make_pages(64, 192, 8, 128) for _ in range(FEWEST_COPIES)]
    k, v = draw(64, 8, 128), draw(64, 8, 128)

    def run(copy: int) -> Tensor:
        op_named("write_pages").triton.forward(k, v, *pages[copy])
        return pages[copy][0][:1, 0]

    yield Trial("write_pages", "64x8x128", 4 * 64 * 8 * 128 * 2, FEWEST_COPIES, {"rule": run})


TRIALS: dict[str, Callable[[], Iterator[Trial]]] = {
    "few_rows": wide_rows_trials,
    "nf4_few_rows": few_rows_trials,
    "decode_attention": attention_trials,
    "token_sampler": sampler_trials,
    "write_pages": write_trials,
}


def spell(tile: Any) -> str:
    """Return a tile's numbers with their names."""
    return " ".join(f"{name}={value}" for name, value in asdict(tile).items())


def check_cases() -> list[str]:
    """Return what is less exact than it may be, of all cases of these ops' tests."""
    from tests.kernels.oracle import cases, measure

    wrong, count = [], 0
    for case in cases("CASES", "LARGE"):
        if case.op in OPS:
            try:
                found = list(measure(op_named(case.op), case.options, "cuda"))
            except ERRORS as error:
                wrong.append(f"{case.id}: {type(error).__name__}: {error}"[:300])
                continue
            count += 1
            wrong += [f"{case.id}: {one}" for one in found if not one.ok]
    print(f"exact against float64: {count} cases, {len(wrong)} of their results wrong", flush=True)
    return wrong


def time_us(way: Callable[[int], Tensor], copies: int) -> float:
    """Return microseconds of one launch in a graph of one on each copy."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(
        torch.cuda.Stream()
    ):  # as torch.cuda.graph does, without collecting garbage each time
        graph.capture_begin()
        for copy in range(copies):
            way(copy)
        graph.capture_end()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / copies)
    return statistics.median(times[1:])


def try_trial(trial: Trial, until_s: float) -> list[dict[str, Any]]:
    """Return a line for each way that runs and gives what the first one gives, the fastest first."""
    lines, expected = [], None
    for name, way in trial.ways.items():
        if time.monotonic() > until_s:
            break
        try:
            found = way(0)
            expected = found.clone() if expected is None else expected
            error = ((found - expected).abs().max() / expected.abs().max()).item()
            taken_us = time_us(way, trial.copies)
        except (*ERRORS, NotImplementedError) as failure:
            lines.append({"way": name, "us": float("inf"), "failure": f"{type(failure).__name__}"})
            continue
        rate = trial.floor_bytes / taken_us / 1e3
        lines.append(
            {"way": name, "us": round(taken_us, 2), "gb_per_s": round(rate), "error": round(error, 5)}
        )
    shown = {"op": trial.op, "shape": trial.shape}
    return [shown | line for line in sorted(lines, key=lambda line: line["us"])]


def compile_share(place: int, parts: int, ops: Sequence[str]) -> None:
    """Run every way that is this process's once: what it compiled lies in Triton's cache then."""
    number = 0
    few = {"nf4_few_rows": partial(few_rows_trials, shapes=SHAPES[3:]), "decode_attention": attention_trials}
    for op in ops:
        for trial in few.get(op, TRIALS[op])():
            for way in trial.ways.values():
                number += 1
                if number % parts == place:
                    try:
                        way(0)
                    except (*ERRORS, NotImplementedError):
                        continue


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, compile and time; exit code 1 where a case is wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("decode_sweep.json"), help="the JSON file to write")
    parser.add_argument("--ops", nargs="*", default=list(OPS), choices=OPS)
    parser.add_argument("--seconds", type=float, default=110.0, help="time that all of it may take")
    parser.add_argument("--helpers", type=int, default=14, help="processes that compile")
    parser.add_argument("--compile", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("This benchmark needs a GPU.", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    if options.compile >= 0:
        compile_share(options.compile, options.helpers, options.ops)
        return 0
    begun_s = time.monotonic()
    command = [
        sys.executable,
        __file__,
        "--helpers",
        str(options.helpers),
        "--ops",
        *options.ops,
        "--compile",
    ]
    helpers = [subprocess.Popen([*command, str(place)]) for place in range(options.helpers)]
    torch.set_default_device(None)  # what the cases are made of is drawn on the processor
    wrong = check_cases()
    print("\n".join(wrong[:20]), flush=True)
    torch.set_default_device("cuda")
    for helper in helpers:
        helper.wait()
    print(f"compiled after {time.monotonic() - begun_s:.0f} s", flush=True)
    copy_rate, _ = measure_rates(Clock.of(torch.device("cuda")))
    print(f"copy {copy_rate / 1e9:.0f} GB/s, {torch.cuda.get_device_name()}", flush=True)
    table: list[dict[str, Any]] = []
    for op in options.ops:
        for trial in TRIALS[op]():
            lines = try_trial(trial, begun_s + options.seconds)
            table += lines
            for place, line in enumerate(lines):
                if place < KEPT or line["way"] in ("rule", "bitsandbytes", "torch"):
                    share = f"{line.get('gb_per_s', 0) / copy_rate * 1e9:.3f}"
                    print(share, " ".join(str(value) for value in line.values()), flush=True)
    given = {
        "gpu": torch.cuda.get_device_name(),
        "copy_gb_per_s": round(copy_rate / 1e9),
        "torch": torch.__version__,
    }
    options.out.write_text(json.dumps({**given, "wrong": wrong, "table": table}, indent=0), encoding="utf-8")
    print(f"done after {time.monotonic() - begun_s:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
