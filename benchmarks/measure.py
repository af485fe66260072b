"""Measures one case in this process: `python -P benchmarks/measure.py ORDER`, started and told when by compare.py.

It answers in lines of a word and a JSON object. READY: warmed up, with the first loss. Then for each line of its
input, a number of steps, ROUND: how long each took. At the end of its input END: memory, losses, versions.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.cases import Case, from_json  # noqa: E402 (the folder above must be on the path first)

PACKAGES = ("torch", "triton", "transformers", "peft", "bitsandbytes", "unsloth", "liger-kernel")
MIB = 2**20
CAP_OVERHEAD = 1.03
"""A cap limits what torch's allocator takes, which is this many times what it hands out."""


def say(word: str, **values: Any) -> None:
    """Tell compare.py."""
    print(f"{word} {json.dumps(values)}", flush=True)


def main() -> int:
    """Measure the case that the order names."""
    order = json.loads(sys.argv[1])
    case, folder = from_json(order["case"]), Path(order["folder"])
    if not case.triton:
        sys.modules["triton"] = None  # as if it were not installed
    if case.stack == "engine":
        return measure_engine(case, folder)
    import torch

    device = torch.device(order["device"])
    if case.turing and device.type == "cuda":
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    # Unsloth's own packing needs its trainer.
    if case.stack == "unsloth" and case.lengths == "packed":
        return measure_trainer(case, folder, order["started_s"])
    step = build(case, folder, device, order["budget_bytes"])
    return measure(case, step, folder, device, order["started_s"])


def build(case: Case, folder: Path, device: Any, budget_bytes: int) -> Any:
    """Return the step of the case's stack; the other stacks cannot see the studio's packages."""
    import torch

    def cap() -> None:
        if case.cap_gib:
            total_bytes = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(case.cap_gib * 2**30 / total_bytes)

    if case.stack == "ours":
        from benchmarks.step import build_step

        cap()
        return build_step(
            folder,
            bits=case.bits,
            batch=case.batch,
            tokens=case.tokens,
            budget_bytes=budget_bytes or int(case.cap_gib / CAP_OVERHEAD * 2**30),
            dtype=case.dtype,
            optimizer=case.optimizer,
            turing=case.turing,
            fp8=case.fp8,
            dora=case.dora,
            targets=case.targets,
            stock=case.stock,
            device=device,
        )
    from benchmarks.peers import build_peer

    hide_studio()
    step = build_peer(case, folder, device)  # needs more than the cap for a moment while it loads
    cap()
    return step


def hide_studio() -> None:
    """Take the studio's folders from the search path: a package of Unsloth's is called `studio`, too."""
    sys.path[:] = [entry for entry in sys.path if entry not in (str(ROOT), str(ROOT / "kernels"))]


def measure(case: Case, step: Any, folder: Path, device: Any, started_s: float) -> int:
    """Warm up, take the rounds that are asked for, and tell what it took."""
    import torch

    from_config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    cuda = device.type == "cuda"
    synchronize: Callable[[], None] = torch.cuda.synchronize if cuda else lambda: None
    batches = make_batches(case, from_config["vocab_size"], device)
    losses: list[float] = []

    def take(batch: Any) -> float:
        synchronize()
        begun_s = time.perf_counter()
        loss = step(batch)
        synchronize()
        took_s = time.perf_counter() - begun_s
        losses.append(float(loss))
        return took_s

    loaded_mib = 0
    if cuda:
        synchronize()
        loaded_mib = torch.cuda.memory_allocated() // MIB
        torch.cuda.reset_peak_memory_stats()
    first = step.gradients(next(batches))
    norm = step.norm()
    step.update()
    losses.append(float(first))
    first_step_s = time.time() - started_s
    for _ in range(case.warmup_steps - 1):
        take(next(batches))
    say("READY", loss0=losses[0], gradient_norm=norm, first_step_s=first_step_s)
    if case.warmup_tokens:
        batches = make_batches(case, from_config["vocab_size"], device, timed=True)
    for line in sys.stdin:
        chosen = [next(batches) for _ in range(int(line))]
        say("ROUND", times_s=[take(batch) for batch in chosen], tokens=[batch.tokens for batch in chosen])
    memory = {"loaded_mib": loaded_mib, "peak_mib": 0, "reserved_mib": 0}
    memory["predicted_mib"] = step.predicted_bytes // MIB
    if cuda:
        memory["peak_mib"] = torch.cuda.max_memory_allocated() // MIB
        memory["reserved_mib"] = torch.cuda.max_memory_reserved() // MIB
    step.close()
    say("END", losses=losses, versions=versions(), **memory)
    return 0


def make_batches(case: Case, vocabulary: int, device: Any, timed: bool = False) -> Iterator[Any]:
    """Return the case's micro-batches; short ones before the timed steps where the case says so."""
    import dataclasses

    from benchmarks.batches import draw_batches

    if case.warmup_tokens and not timed:
        case = dataclasses.replace(case, tokens=case.warmup_tokens)
    return draw_batches(case, vocabulary, device)


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, those that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def measure_trainer(case: Case, folder: Path, started_s: float) -> int:
    """Measure Unsloth's trainer, which takes all its steps at once."""
    import torch

    from benchmarks.peers import read_config, train_packed

    hide_studio()
    first_step_s: list[float] = []
    steps = case.warmup_steps + case.steps
    recorded = train_packed(
        case,
        folder,
        read_config(folder)["vocab_size"],
        steps,
        lambda: first_step_s.append(time.time() - started_s),
    )
    # What it needed while loading is part of this peak: the trainer cannot be stopped in between.
    peak_mib = torch.cuda.max_memory_allocated() // MIB
    replay(
        recorded.times_s[case.warmup_steps :],
        recorded.tokens[case.warmup_steps :],
        {"loss0": recorded.losses[0], "gradient_norm": math.nan, "first_step_s": first_step_s[0]},
        {
            "loaded_mib": 0,
            "peak_mib": peak_mib,
            "reserved_mib": torch.cuda.max_memory_reserved() // MIB,
            "losses": recorded.losses,
            "versions": versions(),
        },
    )
    return 0


def measure_engine(case: Case, folder: Path) -> int:
    """Measure `launch.py train` on the case's model: the same shapes, the engine's own data and events.

    Unless the case is cold, a short run has filled the workspace's caches before.
    """
    from benchmarks.make_model import write_conversations
    from benchmarks.train import read_run, split_start, train, write_recipe

    conversations = folder / "conversations.jsonl"
    if not conversations.is_file():
        write_conversations(conversations, case.tokens, 0)
    with tempfile.TemporaryDirectory(prefix="studio-bench-", ignore_cleanup_errors=True) as scratch:
        path = write_recipe(
            Path(scratch, "recipe.json"),
            folder,
            "qlora" if case.bits == 4 else "lora",
            steps=case.steps,
            micro_batch=case.batch,
            tokens=case.tokens,
            run={},
        )
        recipe = json.loads(path.read_text(encoding="utf-8"))
        recipe["optim"]["optimizer"] = case.optimizer
        for steps in (case.steps,) if case.cold else (1, case.steps):
            recipe["optim"]["max_steps"] = steps
            path.write_text(json.dumps(recipe), encoding="utf-8")
            answer, run, started_s = train(path, Path(scratch, "workspace"))
        row = read_run(run, started_s)
        phases = split_start(run, started_s)
    if answer["state"] != "finished":
        raise RuntimeError(f"the run is {answer['state']}: {answer.get('diagnosis')}")
    step_s, tokens_per_s = float(row["step_s"]), float(row["tokens_per_s"])
    if math.isnan(step_s):
        raise ValueError(f"{case.steps} steps are too few to time one")
    replay(
        [step_s],
        [round(tokens_per_s * step_s)],
        {
            "loss0": row["loss_first"],
            "gradient_norm": math.nan,
            "first_step_s": float(row["first_step_after_s"]),
            "phases": " ".join(f"{name}={took_s:.1f}" for name, took_s in phases.items()),
        },
        {
            "loaded_mib": 0,
            "peak_mib": row["peak_mib"],
            "reserved_mib": 0,
            "losses": [row["loss_first"], row["loss_last"]],
            "versions": versions(),
        },
    )
    return 0


def replay(times_s: list[float], tokens: list[int], ready: dict[str, Any], end: dict[str, Any]) -> None:
    """Tell what was measured before, in the first round."""
    say("READY", **ready)
    for line in sys.stdin:
        if int(line):
            say("ROUND", times_s=times_s, tokens=tokens)
            times_s, tokens = [], []
    say("END", **end)


if __name__ == "__main__":
    sys.exit(main())
