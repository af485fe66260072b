"""`launch.py bench`: how fast this machine trains, measured in a process of its own and told in words and numbers."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import Text, literal, text
from studio.core.json_file import parse_json
from studio.machine.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "bench.py"
TUNE_PROGRAM = ROOT / "benchmarks" / "tune.py"
SITES = ("STUDIO_SITE", "PEERS_SITE")
"""Where benchmarks/child.py looks for packages that this Python does not have by itself."""
GIB = 2**30


def bench(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    """Measure and answer; 1 when a way of training failed. Raises StudioError when there is no result at all."""
    if options.tune:
        return tune(options.tune == "on", workspace, console)
    console.note(text("bench.start"))
    log = workspace.root / "bench.log"
    words = ["--tiny"] if options.tiny else []
    result = _measure([sys.executable, "-P", str(PROGRAM), *words], log, console)
    console.answer(result, describe(result, console.catalogue.say))
    return 0 if all(way["state"] == "measured" for way in result["training"]["ways"]) else 1


def tune(wanted: bool, workspace: Workspace, console: Console) -> int:
    """Find faster tiles for this GPU and keep them, or (not `wanted`) forget them. Raises StudioError, OSError."""
    if not wanted:
        found = workspace.tuned.exists()
        workspace.tuned.unlink(missing_ok=True)
        told = text("bench.tune.off" if found else "bench.tune.nothing", path=str(workspace.tuned))
        console.answer({"removed": found}, [console.catalogue.say(told)])
        return 0
    console.note(text("bench.tune.start"))
    command = [sys.executable, "-P", str(TUNE_PROGRAM), "--out", str(workspace.tuned)]
    result = _measure(command, workspace.root / "bench.log", console)
    if result["refused"]:
        why = text(f"bench.tune.refused.{result['refused']}")
        raise StudioError(text("bench.tune.refused"), why, text("bench.tune.refused.fix"))
    console.answer(result, describe_tuning(result, workspace.tuned, console.catalogue.say))
    return 0


def describe_tuning(result: Mapping[str, Any], path: Path, say: Callable[[Text], str]) -> Iterator[str]:
    """Yield the table for a person: milliseconds before and after, the gain, and what it came from."""
    machine = result["machine"]
    yield say(
        text("bench.tune.machine", name=machine["gpu"], triton=machine["triton"], seconds=result["seconds"])
    )
    for line in result["ops"]:
        sizes = " ".join(f"{name}={size}" for name, size in line["options"].items()) or say(
            text("bench.tune.rule")
        )
        times = f"{line['before_ms']:9.4f} ms -> {line['after_ms']:9.4f} ms {line['gain']:>+7.1%}"
        yield f"{times}  {line['op']} {line['bucket']} ({line['shape']}): {sizes}"
    if result["left_out"]:
        yield say(text("bench.tune.left_out", names=result["left_out"]))
    kept = any(line["options"] for line in result["ops"])
    yield say(text("bench.tune.kept", path=str(path)) if kept else text("bench.tune.rules"))


def _measure(command: list[str], log: Path, console: Console) -> dict[str, Any]:
    """Run the program, telling what it does; returns its result. What it complains of goes to `log`."""
    paths = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, **{name: os.environ.get(name, paths) for name in SITES}}
    result = None
    with log.open("w", encoding="utf-8") as complaints:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        try:
            for line in process.stdout:
                said = parse_json(line) if line.startswith('{"') else {}
                if "doing" in said:
                    console.note(text(f"bench.doing.{said.pop('doing')}", **said))
                result = said.get("result", result)
            process.wait()
        finally:
            process.kill()  # when the person asked for the end; nothing where it has ended
            process.wait()
    if result is None:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        why = literal(lines[-1][:300]) if lines else text("bench.failed.why", code=process.returncode)
        raise StudioError(text("bench.failed"), why, text("bench.failed.fix", path=str(log)), exit_code=1)
    return result


def describe(result: Mapping[str, Any], say: Callable[[Text], str]) -> Iterator[str]:
    """Yield the result for a person: numbers first, so that they stand straight in every script."""
    machine, rates = result["machine"], result["rates"]
    if not machine["gpu"]:
        yield say(text("bench.no_gpu"))
    name = machine["gpu"] or say(text("bench.processor"))
    yield say(text("bench.machine", name=name, torch=machine["torch"], date=machine["date"]))
    copy, matrix = _number(rates["copy_gb_per_s"]), _number(rates["matrix_tflop_per_s"])
    yield say(text("bench.rates", copy=copy, matrix=matrix, dtype=rates["dtype"]))
    if machine["gpu"] and result["kernels_left_out"]:
        yield say(text(f"bench.no_kernels.{result['kernels_left_out']}"))
    if result["kernels"]:
        yield ""
        yield say(text("bench.kernels"))
        for row in result["kernels"]:
            speed = f"{_number(row['rate'])} {row['unit']}"
            yield (
                f"{row['times_faster']:8.1f} x {speed:>16} {row['share']:>6.0%}  "
                f"{row['op']}, {row['direction']} ({row['shape']})"
            )
    yield ""
    yield from _describe_training(result["training"], say)


def _describe_training(training: Mapping[str, Any], say: Callable[[Text], str]) -> Iterator[str]:
    names = ("shape", "batch", "tokens")
    bits = 32 if training["dtype"] == "fp32" else training["bits"]  # a processor's 16-bit weights are opened
    yield say(text("bench.training", bits=bits, **{name: training[name] for name in names}))
    speeds = {}
    for way in training["ways"]:
        name = say(text(f"bench.way.{way['stack']}"))
        if way["state"] != "measured":
            yield f"{name}: {say(text('bench.way.failed', state=way['state'], error=way['error']))}"
            continue
        speeds[way["stack"]] = way["tokens_per_s"]
        peak = f"{way['peak_bytes'] / GIB:8.2f} GiB" if way["peak_bytes"] else ""
        yield f"{way['tokens_per_s']:10,} {say(text('bench.tokens_per_s'))}{peak}  {name}"
    if len(speeds) == 2:
        yield say(text("bench.faster", times=f"{speeds['ours'] / speeds['hf']:.2f}"))


def _number(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
