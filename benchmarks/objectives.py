"""Preferences and reinforcement beside trl's trainers: `objectives.py --models DIR --out FILE.jsonl`.

Each case trains the same rows of an 8B or a 0.6B shape with random weights by `launch.py train` and by trl's trainer
of that objective with PEFT, each in a process of its own, one after the other. A step is what passes between two steps'
ends, with everything that either does in it: rows, the optimizer, the log. trl runs by its defaults, with the layers
recomputed and without; the better of both counts. Of sampled answers, generating and updating are told apart. JSON
lines: one for each stack and way, then the ratio and what it must reach. `--tiny` tries it all on a processor.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.batches import draw_lengths  # noqa: E402 (the folder above must be on the path first)
from benchmarks.child import OFFLINE, ask_driver  # noqa: E402
from benchmarks.trl_trainers import ALPHA, LINE, RANK  # noqa: E402

SEED, RATE = 42, 1e-5
PROMPT_MARKS, ANSWER_MARKS = 3, 1
"""Tokens that make_model's template puts around a question, and behind an answer; each byte of text is one."""
LONGEST = 2048
FAR = 1_000_000
"""Steps between checkpoints and looks at held-out rows: none."""
MIB = 2**20
HOLD = """
import sys, torch
rest = torch.cuda.mem_get_info(0)[0] - int(float(sys.argv[1]) * 2**30)
held = torch.empty(rest, dtype=torch.uint8, device="cuda:0")
print("held", flush=True)
sys.stdin.read()
"""
"""Holds all of a card but so many GiB until its input ends."""
FIRST = ("loss", "logps/chosen", "reward", "completions/mean_length", "accuracy")
"""What is told of the first step."""
REWARD = """
def reward(completions, **columns):
    said = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [float(len(one) % 5) for one in said]
"""
"""Trivial, and different within a group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One step of one objective on one shape."""

    name: str
    objective: str
    shape: str
    bits: int = 16
    rows: int
    """Pairs, examples or prompts of a step."""
    prompt: int = 512
    answer: int = 256
    real: bool = False
    """Whether lengths are drawn (log-normal, as those of chats), `prompt` and `answer` their limits."""
    warm: int = 3
    steps: int = 8
    """Counted."""
    peer_steps: int = 0
    """Counted of trl's, where one takes too long for as many as ours; 0: as many."""
    group_size: int = 0
    must: float = 0.0
    """Least ratio of trl's time to ours."""
    free_gib: float = 0.0
    """What of the card is left to ours, as on a smaller one; 0: all."""
    peers: bool = True

    @property
    def sampled(self) -> bool:
        """Whether the model draws its answers itself."""
        return self.group_size > 0


BIG, SMALL = "llama-8b", "qwen3-0.6b"
PAIRS: dict[str, Any] = {"objective": "dpo", "shape": BIG, "rows": 2}
GROUPS: dict[str, Any] = {
    "objective": "grpo", "rows": 8, "group_size": 8, "prompt": 256, "answer": 512,
    "warm": 1, "steps": 3, "peer_steps": 1,
}  # fmt: skip
CASES = (
    Case(name="dpo.lora", must=3.0, **PAIRS),
    Case(name="dpo.qlora", bits=4, must=3.5, **PAIRS),
    Case(name="grpo.lora", shape=BIG, must=3.5, **GROUPS),
    Case(name="dpo.real", must=5.0, real=True, **PAIRS | {"rows": 4, "prompt": 1024, "answer": 1024}),
    Case(name="dpo.small", must=6.0, **PAIRS | {"shape": SMALL, "rows": 4}),
    Case(name="kto.lora", must=3.5, **PAIRS | {"objective": "kto", "rows": 4}),
    Case(name="reward.lora", must=2.3, **PAIRS | {"objective": "reward"}),
    Case(name="grpo.small", shape=SMALL, must=8.0, **GROUPS),
    Case(name="kto.small", must=6.0, **PAIRS | {"objective": "kto", "shape": SMALL, "rows": 4}),
    # What a card of 24 GB must do, and 20,000 tokens in 32: everything else of the card is held meanwhile.
    Case(
        name="grpo.24gb",
        shape=BIG,
        bits=4,
        peers=False,
        free_gib=23.5,
        **GROUPS | {"rows": 1, "prompt": 512, "answer": 1024, "steps": 2},
    ),
    Case(
        name="grpo.long",
        shape=BIG,
        bits=4,
        peers=False,
        free_gib=32.0,
        **GROUPS | {"rows": 1, "answer": 19_744, "warm": 0, "steps": 1},
    ),
    # What pairs may need: the same packed tokens, learned as they are, and 5 % more.
    Case(name="sft.lora", peers=False, **PAIRS | {"objective": "sft", "prompt": 511, "answer": 514}),
)


def make_tiny(case: Case) -> Case:
    """Return the case for a try on a processor."""
    sizes: dict[str, Any] = {
        "prompt": 24,
        "answer": 16,
        "warm": min(1, case.warm),
        "steps": 2,
        "free_gib": 0.0,
    }
    return dataclasses.replace(
        case, shape="tiny", **sizes | ({"group_size": 4, "rows": 2} if case.sampled else {})
    )


def draw_rows(case: Case) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of a case, and how many tokens each holds, prompts counted with every answer."""
    count = case.rows * (case.warm + case.steps)
    chance = random.Random(SEED)
    sizes = draw_sizes(case, count)
    rows, tokens = [], []
    for number in range(count):
        prompt, first, second = next(sizes)
        asked = {"role": "user", "content": draw_text(chance, prompt - PROMPT_MARKS)}
        said = [
            {"role": "assistant", "content": draw_text(chance, length - ANSWER_MARKS)}
            for length in (first, second)
        ]
        if case.objective == "sft":
            rows.append({"messages": [asked, said[0]]})
            tokens.append(prompt + first)
        elif case.objective == "kto":
            rows.append({"prompt": [asked], "completion": [said[0]], "label": number % 2 == 0})
            tokens.append(prompt + first)
        elif case.sampled:
            rows.append({"prompt": [asked]})
            tokens.append(case.group_size * (prompt + case.answer))
        else:
            rows.append({"prompt": [asked], "chosen": [said[0]], "rejected": [said[1]]})
            tokens.append(2 * prompt + first + second)
    return rows, tokens


def draw_sizes(case: Case, count: int) -> Iterator[tuple[int, int, int]]:
    """Yield the tokens of a prompt and of two answers."""
    if not case.real:
        yield from [(case.prompt, case.answer, case.answer)] * count
        return
    prompts, answers = draw_lengths(count, case.prompt, 1), draw_lengths(2 * count, case.answer, 2)
    for number in range(count):
        yield prompts[number], answers[2 * number], answers[2 * number + 1]


def draw_text(chance: random.Random, size: int) -> str:
    """Return `size` letters and blanks, a letter at both ends: nothing is there to be stripped."""
    return "a" + "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=size - 2)) + "z"


def measure_ours(
    case: Case, folder: Path, scratch: Path, options: argparse.Namespace, limit_s: float
) -> list[dict[str, Any]]:
    """Train by `launch.py train` and return one line, what the run recorded or why it did not finish."""
    recipe = {
        "version": 3,
        "name": case.name,
        "seed": SEED,
        "objective": case.objective,
        "model": {"source": str(folder), "quantization": "nf4" if case.bits == 4 else "none"},
        "data": {
            "source": str(scratch / "ours.jsonl"),
            "validation_share": 0.0,
            "max_length": max(LONGEST, case.prompt + case.answer),
        },
        "adapter": {"rank": RANK, "alpha": ALPHA},
        "optim": {
            "learning_rate": RATE,
            "schedule": "constant",
            "batch_size": case.rows,
            "max_steps": case.warm + case.steps,
        },
        "run": {
            "eval_every": FAR,
            "save_every": FAR,
            "samples": 0,
            "device": "cpu" if options.device == "cpu" else "auto",
        },
    }
    if case.sampled:
        recipe["sampling"] = {"group_size": case.group_size, "answer_tokens": case.answer}
        recipe["rewards"] = [{"name": f"file:{scratch / 'reward.py'}", "insist": True}]
    return run_recipe(recipe, scratch, options.workspace, limit_s, lambda run: read_run(case, run))


def run_recipe(
    recipe: dict[str, Any],
    scratch: Path,
    workspace: Path,
    limit_s: float,
    read: Callable[[Path], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Run a recipe by `launch.py train`; return one line, what `read` makes of its folder or why it did not finish."""
    path = scratch / "recipe.json"
    path.write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    words = [sys.executable, str(ROOT / "launch.py"), "--here", "train", str(path), "--json"]
    said = run_limited([*words, "--workspace", str(workspace)], limit_s, scratch / "ours.log")
    last = (said.strip().splitlines() or ["{}"])[-1].removeprefix(LINE)
    answer = json.loads(last) if last.startswith("{") else {"error": last}
    if answer.get("state") != "finished":
        return [{"error": json.dumps(answer.get("diagnosis") or answer.get("error") or answer)[-600:]}]
    return [read(workspace / "runs" / answer["run"])]


def read_run(case: Case, run: Path) -> dict[str, Any]:
    """Return what a run tells of its counted steps."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [event for event in events if event["kind"] == "step_logged"]
    (begun,) = [one for one in events if one["kind"] == "phase_started" and one["phase"] == "train"]
    ends_s = [begun["time_s"], *(step["time_s"] for step in steps)]
    counted_s = [after - before for before, after in pairwise(ends_s)][case.warm :]
    (planned,) = [event for event in events if event["kind"] == "run_planned"][:1]
    line: dict[str, Any] = {
        "times_s": [round(one, 4) for one in counted_s],
        "step_s": round(statistics.median(counted_s), 4),
        "peak_mib": record["peak_vram_bytes"] // MIB,
        "first": {"loss": steps[0]["loss"]} | steps[0]["metrics"],
        "phases_s": record["timings_s"],
        "swaps": [said["id"] for said in planned["swaps"]],
    }
    if case.sampled:
        metrics = [step["metrics"] for step in steps[case.warm :]]
        generating_s = statistics.median(one["seconds/answers"] + one["seconds/rewards"] for one in metrics)
        line |= {
            "generating_s": round(generating_s, 4),
            "updating_s": round(line["step_s"] - generating_s, 4),
            "rewards_s": round(statistics.median(one["seconds/rewards"] for one in metrics), 4),
            "answer_tokens": round(statistics.mean(one["completions/mean_length"] for one in metrics), 1),
        }
    return line


def list_ways(case: Case) -> list[tuple[str, int, int]]:
    """Return how trl is measured: way, steps to warm up, steps that count."""
    steps = case.peer_steps or case.steps
    return [("recompute", case.warm, steps), ("keep", 1, steps)]


def measure_trl(
    case: Case, folder: Path, scratch: Path, options: argparse.Namespace, limit_s: float
) -> list[dict[str, Any]]:
    """Train by trl and return a line for each way, and one for an error."""
    order = {
        "objective": case.objective,
        "folder": str(folder),
        "bits": case.bits,
        "data": str(scratch / "trl.jsonl"),
        "scratch": str(scratch / "trl"),
        "device": options.device,
        "ways": list_ways(case),
        "learning_rate": RATE,
        "seed": SEED,
        "max_length": LONGEST,
        "batch": case.group_size or case.rows,
        "prompts": case.rows,
        "group_size": case.group_size,
        "answer_tokens": case.answer,
        "reward": str(scratch / "reward.py"),
    }
    return run_trl(order, limit_s, scratch / "trl.log")


def run_trl(order: dict[str, Any], limit_s: float, log: Path) -> list[dict[str, Any]]:
    """Carry out an order of trl_trainers.py and return its lines, one at least."""
    words = [sys.executable, "-P", str(ROOT / "benchmarks" / "trl_trainers.py"), json.dumps(order)]
    said = run_limited(words, limit_s, log)
    lines = [json.loads(line.removeprefix(LINE)) for line in said.splitlines() if line.startswith(LINE)]
    return lines or [{"error": log.read_text(encoding="utf-8", errors="replace")[-400:]}]


STACKS = {"ours": measure_ours, "trl": measure_trl}


def run_limited(words: Sequence[str], limit_s: float, log: Path) -> str:
    """Run a command and return what it printed; at the limit it and its children are ended."""
    import psutil

    with log.open("w", encoding="utf-8") as errors:
        child = subprocess.Popen(
            [*words], stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **OFFLINE},
            encoding="utf-8", errors="replace",
        )  # fmt: skip
        try:
            said = child.communicate(timeout=limit_s)[0]
            # Where memory is short the system ends a process before it can say why.
            return (
                said
                if child.returncode >= 0
                else f"{said}\n{LINE}" + json.dumps({"error": f"ended by signal {-child.returncode}"})
            )
        except subprocess.TimeoutExpired:
            whole = psutil.Process(child.pid)
            for one in [*whole.children(recursive=True), whole]:
                try:
                    one.kill()
                except psutil.NoSuchProcess:
                    continue  # it ended by itself
            said = child.communicate()[0]
            return f"{said}\n{LINE}" + json.dumps({"error": f"not done after {limit_s:.0f} s"})


def write_data(case: Case, scratch: Path) -> list[list[int]]:
    """Write the rows for both stacks and return the tokens of each counted step's rows.

    trl takes rows as they stand: they are written in the order of our steps, and the counted ones again for each way.
    """
    from studio.engine.batches import StepOrder

    rows, tokens = draw_rows(case)
    order = StepOrder(len(rows), case.rows, SEED)
    places = [order.indices(step) for step in range(case.warm + case.steps)]
    counted = places[case.warm :]
    warm, shown = places[: case.warm], counted[: case.peer_steps or case.steps]
    for_trl = [*warm, *shown, *warm[-1:], *shown]
    write_lines(scratch / "ours.jsonl", rows)
    write_lines(scratch / "trl.jsonl", [rows[i] for step in for_trl for i in step])
    (scratch / "reward.py").write_text(REWARD, encoding="utf-8")
    return [[tokens[i] for i in step] for step in counted]


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def measure(
    case: Case, folder: Path, options: argparse.Namespace, deadline_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a case, those of each stack and the ratio."""
    found: dict[str, list[dict[str, Any]]] = {}
    scratch = Path(tempfile.mkdtemp(prefix=f"{case.name}-", dir=options.scratch))
    try:
        tokens = write_data(case, scratch)
        for stack in options.stacks:
            limit_s = min(options.most_s, deadline_s - time.monotonic())
            if limit_s < options.least_s or stack == "trl" and not case.peers:
                continue
            begun_s = time.monotonic()
            try:
                with holding(case.free_gib):
                    lines = STACKS[stack](case, folder, scratch, options, limit_s)
            except RuntimeError as error:  # the others go on
                lines = [{"error": str(error)}]
            wall_s = round(time.monotonic() - begun_s, 1)
            found[stack] = lines
            for line in lines:
                if "times_s" in line:
                    taken = sum(map(sum, tokens[: len(line["times_s"])]))
                    line["tokens_per_s"] = round(taken / max(1e-9, sum(line["times_s"])))
                if "first" in line:
                    line["first"] = {name: one for name, one in line["first"].items() if name in FIRST}
                yield {"case": case.name, "stack": stack, "wall_s": wall_s, **line}
            keep_log(scratch / f"{stack}.log", case, stack, options)
        if case.free_gib and "ours" in found:
            yield {"case": case.name, "stack": "memory", "free_gib": case.free_gib,
                   "holds": all("error" not in line for line in found["ours"])}  # fmt: skip
        if case.peers and len(found) > 1:
            yield {"case": case.name, "stack": "ratio", **compare(case, found)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def holding(free_gib: float) -> Iterator[None]:
    """Leave `free_gib` of the first card free inside, 0: all. Raises RuntimeError where it has not so much."""
    if not free_gib:
        yield
        return
    words = [sys.executable, "-c", HOLD, str(free_gib)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
    try:
        if holder.stdout.readline().strip() != "held":
            raise RuntimeError(f"the card has no {free_gib} GiB free")
        yield
    finally:
        holder.kill()
        holder.wait()


def keep_log(log: Path, case: Case, stack: str, options: argparse.Namespace) -> None:
    """Copy what a process said to --logs, where that is given."""
    if options.logs and log.is_file():
        options.logs.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, options.logs / f"{case.name}-{stack}.log")


def compare(case: Case, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return how many times as fast ours is as the better way of trl, by the time of the same rows."""
    ours = [sum(line["times_s"]) for line in found.get("ours", []) if "times_s" in line]
    lines = [line for line in found.get("trl", []) if "times_s" in line]
    if not ours or not lines:
        return {"must": case.must, "holds": None}
    best = min(lines, key=lambda line: sum(line["times_s"]))
    middle = statistics.median(best["times_s"]) / statistics.median(found["ours"][0]["times_s"])
    # Rows of drawn lengths differ from step to step: there all steps together count.
    ratio = sum(best["times_s"]) / ours[0] if case.real else middle
    said = {"ratio": round(ratio, 2), "must": case.must, "holds": ratio >= case.must, "trl_way": best["way"]}
    said["memory"] = round(found["ours"][0]["peak_mib"] / max(1, best["peak_mib"]), 3)
    for part in ("generating_s", "updating_s"):
        if part in best:
            said[f"{part[:-2]}_ratio"] = round(best[part] / max(1e-9, found["ours"][0][part]), 2)
    firsts = [one.get("first", {}).get("logps/chosen") for one in (found["ours"][0], lines[0])]
    if None not in firsts and firsts[1]:
        said["first_logps_apart"] = round(abs(firsts[0] / firsts[1] - 1), 5)
    return said


def make_model(shape: str, options: argparse.Namespace) -> Path:
    """Return the folder of a shape's model, made where it is not there yet. Raises CalledProcessError."""
    folder = options.models / shape
    if not (folder / "model.safetensors.index.json").is_file():
        words = [sys.executable, str(ROOT / "benchmarks" / "make_model.py"), shape, str(folder)]
        subprocess.run(words, check=True, stdout=sys.stderr)
    return folder


def describe_machine() -> dict[str, str]:
    """Return the card, the versions and the day."""
    from importlib.metadata import version

    names = ("torch", "transformers", "trl", "peft", "bitsandbytes")
    found = {name: version(name) for name in names}
    return {"gpu": ask_driver("name") or "CPU", "date": datetime.date.today().isoformat(), **found}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True, help="folder that holds the models, or will")
    parser.add_argument(
        "--cases", default="", help="only these, in this order: " + ",".join(one.name for one in CASES)
    )
    parser.add_argument("--stacks", default="ours,trl")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which nothing more is begun")
    parser.add_argument("--most-s", type=float, default=120.0, help="after which a process is ended")
    parser.add_argument("--least-s", type=float, default=25.0, help="with less left no process is begun")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, for a try of the benchmark itself")
    parser.add_argument("--workspace", type=Path, help="for the studio's runs; kernels compiled there stay")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for what the processes say")
    parser.add_argument("--out", type=Path, help="the file to append to")
    options = parser.parse_args(words)
    named = {case.name: case for case in CASES}
    try:
        options.cases = [named[name] for name in options.cases.split(",") if name] or list(CASES)
    except KeyError as error:
        parser.error(f"no case is called {error}; there are {', '.join(named)}")
    options.stacks = options.stacks.split(",")
    if unknown := set(options.stacks) - STACKS.keys():
        parser.error(f"no stack is called {', '.join(unknown)}; there are {', '.join(STACKS)}")
    options.models = options.models.resolve()
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Measure what fits into the time; returns 1 when a stack of a case said an error."""
    options = parse(words)
    deadline_s, failed = time.monotonic() + options.seconds, False
    machine = describe_machine()
    command = " ".join(("objectives.py", *(sys.argv[1:] if words is None else words)))
    with tempfile.TemporaryDirectory(prefix="studio-objectives-", ignore_cleanup_errors=True) as kept:
        options.workspace = options.workspace or Path(kept)
        for case in options.cases:
            if deadline_s - time.monotonic() < options.least_s:
                print(f"{case.name} left out: the time is over", file=sys.stderr)
                continue
            case = make_tiny(case) if options.tiny else case
            folder = make_model(case.shape, options)
            for line in measure(case, folder, options, deadline_s):
                failed |= "error" in line
                print(json.dumps(line), flush=True)
                if options.out:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(
                            json.dumps(line | {"shape": case.shape, **machine, "command": command}) + "\n"
                        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
