"""Measures the studio against HF + PEFT, Liger and Unsloth: `compare.py --rows 1,2 --models DIR --out FILE.csv`.

Each stack of each case runs in a process of its own (measure.py), with the same model folder, the same adapters and
the same tokens. First losses and gradients are compared before anything is timed. `--together` keeps the processes of
a setting on the card at once, so that their rounds alternate and they load side by side; otherwise each has the card
to itself. PEERS_SITE and STUDIO_SITE name folders with packages that only the others, or only the studio, may see.
Where a stack lacks packages nothing is measured and the exit code is 2; row 0, a try on any machine, does without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.cases import (  # noqa: E402 (the folder above must be on the path first)
    CASES,
    MAKE_S,
    Case,
    choose,
    expect_s,
    expect_together_s,
    group,
    start_s,
)
from benchmarks.child import Child, ask_driver, find_lacking, find_site, make_environment, site_variable  # noqa: E402
from benchmarks.table import append_row, read_rows  # noqa: E402

LOSS_TOLERANCE, NORM_TOLERANCE, INEXACT_NORM_TOLERANCE = 0.01, 0.03, 0.15
"""Largest differences of first losses and of gradient norms, as a share; the last for products in 8 bits."""
PATIENCE = 3.0
"""A process may take this many times what is expected of it."""
USABLE = 0.92
"""Share of the card that processes side by side may need together."""
COLUMNS = (
    "case stack shape bits checkpointing batch tokens lengths dtype optimizer mode state agrees"
    " tokens_per_s step_s min_s max_s steps peak_mib reserved_mib loaded_mib budget_mib predicted_mib"
    " loss0 loss_last gradient_norm first_step_s phases losses clock_mhz error gpu driver torch triton"
    " transformers peft bitsandbytes peer_version date command"
).split()


@dataclass(slots=True)
class Session:
    """What one call of this program knows and has learned."""

    options: argparse.Namespace
    machine: dict[str, str]
    """gpu and driver, as in the table."""
    memory_mib: float
    """Of the card; 0 without one."""
    command: str
    deadline_s: float
    peaks_mib: dict[str, float] = field(default_factory=dict)
    """Case -> its peak, here or in an earlier call: what budgets are taken from."""
    references: dict[tuple[object, ...], dict[str, float]] = field(default_factory=dict)
    """Setting -> first loss and gradient norm that the others are compared with."""
    left_out: list[str] = field(default_factory=list)
    failed: int = 0

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.deadline_s - time.monotonic()


def find_disagreement(case: Case, ready: Mapping[str, float], reference: Mapping[str, float]) -> str:
    """Return how the first step of a case differs from the reference's, "" where it agrees."""
    off = abs(ready["loss0"] / reference["loss0"] - 1)
    if not off <= LOSS_TOLERANCE:  # also where one is no number
        return f"loss {ready['loss0']:.4f} against {reference['loss0']:.4f}"
    norms = ready["gradient_norm"], reference["gradient_norm"]
    limit = INEXACT_NORM_TOLERANCE if case.fp8 else NORM_TOLERANCE
    if all(map(math.isfinite, norms)) and abs(norms[0] / norms[1] - 1) > limit:
        return f"gradient norm {norms[0]:.4g} against {norms[1]:.4g}"
    return ""


def run_side_by_side(cases: Sequence[Case], folder: Path, session: Session, scratch: Path) -> list[Child]:
    """Start the cases at once, compare their first steps, alternate their rounds, end them; rows are written."""
    expected_s = max(map(start_s, cases))
    children = [
        Child(
            case,
            folder,
            scratch,
            device=session.options.device,
            budget_mib=session.peaks_mib.get(case.budget_of, 0.0),
        )
        for case in cases
    ]
    running = []
    for child in children:
        limit_s = min(session.left_s, PATIENCE * expected_s * (1 + 0.2 * (len(cases) - 1)))
        ready = child.wait_for("READY", limit_s)
        if ready is None:
            continue
        child.row |= ready
        if child.case.stack != "engine":  # its data are its own
            reference = session.references.setdefault(child.case.setting, ready)
            child.row["agrees"] = find_disagreement(child.case, ready, reference) or "yes"
        if child.row.get("agrees", "yes") == "yes":
            running.append(child)
        else:
            child.row["state"] = "disagrees"
    timed = list(running)
    for _ in range(session.options.rounds):
        for child in list(timed):
            if not child.take_round(
                min(session.left_s, PATIENCE * (10 + child.case.steps * child.case.step_s))
            ):
                timed.remove(child)
    for child in children:
        end = child.end(30) if child in timed or child.row["state"] == "disagrees" else None
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()
        if end is not None:
            versions = end.pop("versions")
            losses = end.pop("losses")
            child.row |= end | {k: v for k, v in versions.items() if k in COLUMNS}
            child.row |= {"losses": " ".join(f"{loss:.4f}" for loss in losses), "loss_last": losses[-1]}
            child.row["peer_version"] = versions.get(child.case.stack.replace("liger", "liger-kernel"), "")
        if child in timed and child.times_s:
            child.row["state"] = "measured"
            session.peaks_mib.setdefault(child.case.name, child.row["peak_mib"])
        write_row(child, len(cases), session)
    return children


def write_row(child: Child, side_by_side: int, session: Session) -> None:
    """Append the child's row to the table and show it."""
    case, row = child.case, dict(child.row)
    row |= {name: getattr(case, name) for name in ("stack", "shape", "bits", "checkpointing", "batch")}
    row |= {name: getattr(case, name) for name in ("tokens", "lengths", "dtype", "optimizer")}
    row |= {"case": case.name, "mode": "together" if side_by_side > 1 else "alone"}
    row |= {"budget_mib": round(child.budget_mib), "command": session.command}
    row |= {"date": datetime.date.today().isoformat(), **session.machine}
    if child.times_s:
        row |= {
            "tokens_per_s": f"{statistics.median(child.rates):.0f}",
            "step_s": f"{statistics.median(child.times_s):.4f}",
            "min_s": f"{min(child.times_s):.4f}",
            "max_s": f"{max(child.times_s):.4f}",
            "steps": len(child.times_s),
        }
    for name, digits in (("loss0", 4), ("loss_last", 4), ("gradient_norm", 5), ("first_step_s", 1)):
        if name in row:
            row[name] = f"{row[name]:.{digits}f}"
    session.failed += row["state"] not in ("measured", "out of memory")
    append_row(session.options.out, row, COLUMNS)
    shown = (
        "state",
        "agrees",
        "tokens_per_s",
        "step_s",
        "peak_mib",
        "predicted_mib",
        "loss0",
        "gradient_norm",
        "first_step_s",
    )
    words = " ".join(f"{name}={row[name]}" for name in (*shown, "error") if row.get(name) not in (None, ""))
    print(f"{case.name:26} {case.tokens:7} {words}", flush=True)


def read_peaks(path: Path) -> dict[str, float]:
    """Return case -> peak in MiB of those that an earlier call measured; the last one counts."""
    rows = [row for row in read_rows(path) if row["state"] == "measured" and row["peak_mib"]]
    return {row["case"]: float(row["peak_mib"]) for row in rows}


def find_longest(case: Case, folder: Path, session: Session, scratch: Path) -> int:
    """Return the longest of the case's row lengths that runs, 0 for none; each try is a process and a row."""
    low, high = 0, len(case.longest)  # case.longest[low - 1] runs; case.longest[high] does not
    while low < high:
        middle = (low + high) // 2
        one = dataclasses.replace(case, tokens=case.longest[middle], longest=())
        if session.left_s < expect_s(one, 1):
            session.left_out.append(f"{case.name} beyond {case.longest[low - 1] if low else 0} tokens")
            break
        child = run_side_by_side([one], folder, session, scratch)[0]
        if child.row["state"] == "measured":
            low = middle + 1
        elif child.row["state"] == "out of memory":
            high = middle
        else:
            break
    return case.longest[low - 1] if low else 0


def batches(cases: Iterable[Case], session: Session) -> list[list[Case]]:
    """Return which cases of a setting run at once: all that fit on the card, or one after another.

    A case whose budget is another's peak, not known yet, runs after it.
    """
    room_gib = USABLE * session.memory_mib / 1024 or math.inf
    found: list[list[Case]] = []
    together = session.options.together
    for case in sorted(cases, key=lambda case: case.alone) if together else cases:
        if case.alone or not together or not found:
            found.append([case])
            continue
        here = {other.name for other in found[-1]}
        waits = case.budget_of in here and case.budget_of not in session.peaks_mib
        full = sum(other.peak_gib for other in found[-1]) + case.peak_gib > room_gib
        if waits or full:
            found.append([case])
        else:
            found[-1].append(case)
    return found


def make_model(shape: str, session: Session, scratch: Path) -> tuple[Path, bool]:
    """Return the folder of a shape's model, and whether it was made just now. Raises RuntimeError when that fails."""
    folder = session.options.models / shape
    if (folder / "model.safetensors.index.json").is_file() or (folder / "model.safetensors").is_file():
        return folder, False
    begun_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "make_model.py"), shape, str(folder)],
        env=make_environment("ours"),
        cwd=scratch,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=max(60.0, PATIENCE * MAKE_S[shape]),
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    print(f"{shape} made in {time.monotonic() - begun_s:.0f} s", flush=True)
    return folder, True


def run_all(cases: Sequence[Case], session: Session, scratch: Path) -> None:
    """Measure the cases, setting by setting; a model made here is removed after its last one."""
    groups = group(cases)
    made: set[str] = set()
    for number, same in enumerate(groups):
        shape = same[0].shape
        folder, new = make_model(shape, session, scratch)
        made |= {shape} if new else set()
        for repetition in range(session.options.repeats):
            # Every other time in the opposite order, so that a drift of the clocks meets both ends.
            for batch in batches(same[:: -1 if repetition % 2 else 1], session):
                batch = wait_for_budget(batch, session)
                expected_s = expect_together_s(batch, session.options.rounds)
                if not batch or expected_s > session.left_s and not batch[0].longest:
                    session.left_out += [f"{case.name} (time)" for case in batch]
                elif batch[0].longest:
                    print(f"{batch[0].name}: {find_longest(batch[0], folder, session, scratch)} tokens run")
                else:
                    run_side_by_side(batch, folder, session, scratch)
        last = all(later[0].shape != shape for later in groups[number + 1 :])
        if last and shape in made and not session.options.keep_models:
            shutil.rmtree(folder)


def wait_for_budget(batch: Sequence[Case], session: Session) -> list[Case]:
    """Return the cases whose budget is known, or that have none; the others are noted as left out."""
    missing = [case for case in batch if case.budget_of and case.budget_of not in session.peaks_mib]
    session.left_out += [f"{case.name} (no peak of {case.budget_of})" for case in missing]
    return [case for case in batch if case not in missing]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="rows of the table, in order of importance: 1,2,13")
    parser.add_argument("--cases", default="", help="only these of their cases, by name")
    parser.add_argument("--stacks", default="", help="only these: hf,liger,unsloth,ours,engine")
    parser.add_argument("--seconds", type=float, default=550.0, help="time that all of it may take")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of timed steps in each process")
    parser.add_argument("--repeats", type=int, default=1, help="processes of each case, alternating")
    parser.add_argument("--together", action="store_true", help="processes of a setting side by side")
    parser.add_argument("--models", type=Path, required=True, help="folder that holds the models, or will")
    parser.add_argument("--keep-models", action="store_true", help="leave the models that were made here")
    parser.add_argument("--out", type=Path, default=Path("compare.csv"), help="the CSV file to append to")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--logs", type=Path, default=None, help="folder for what the processes say")
    parser.add_argument("--plan", action="store_true", help="only say what would be measured")
    options = parser.parse_args(arguments)
    for name in ("rows", "cases", "stacks"):
        setattr(options, name, [part for part in getattr(options, name).split(",") if part])
    options.models, options.out = options.models.resolve(), options.out.resolve()
    return options


def main(arguments: Sequence[str] | None = None, known: Sequence[Case] = CASES) -> int:
    """Measure what fits into the time; exit code 1 when a case failed or disagreed, 2 when a stack lacks packages."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    rows = [int(row) for row in options.rows] or sorted({row for case in known for row in case.rows} - {0})
    peaks = read_peaks(options.out)
    made = [path.parent.name for path in options.models.glob("*/config.json")]
    plan = choose(
        rows,
        options.seconds,
        stacks=options.stacks,
        names=options.cases,
        rounds=options.rounds * options.repeats,
        together=options.together,
        made=made,
        measured=peaks,
        known=known,
    )
    print(f"{len(plan.cases)} cases, about {plan.expected_s:.0f} s", flush=True)
    for row, seconds in plan.left_out:
        print(f"row {row} left out: it takes {seconds:.0f} s more", flush=True)
    if options.plan:
        print(" ".join(case.name for case in plan.cases))
        return 0
    lacking = tell_lacking(plan.cases)
    for words in lacking.values():
        print(words, file=sys.stderr, flush=True)
    if lacking and rows != [0]:
        return 2
    gpu, driver, memory = (*ask_driver("name,driver_version,memory.total").split(", "), "", "", "")[:3]
    session = Session(
        options=options,
        machine={"gpu": gpu or "CPU", "driver": driver},
        memory_mib=float(memory or 0),
        command=" ".join(["python benchmarks/compare.py", *hide_folders(arguments or sys.argv[1:])]),
        deadline_s=time.monotonic() + options.seconds,
        peaks_mib=peaks,
    )
    scratch = options.logs or Path(tempfile.mkdtemp(prefix="compare-"))
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        run_all([case for case in plan.cases if case.stack not in lacking], session, scratch)
    finally:
        if options.logs is None:
            shutil.rmtree(scratch, ignore_errors=True)
    for words in session.left_out:
        print(f"left out: {words}", flush=True)
    return 1 if session.failed else 0


def tell_lacking(cases: Iterable[Case]) -> dict[str, str]:
    """Return for each stack of the cases that could not start, in a sentence, why."""
    found = {}
    for stack in dict.fromkeys(case.stack for case in cases):
        if names := find_lacking(stack):
            variable = site_variable(stack)
            place = find_site(stack) or "not set"
            found[stack] = (
                f"{stack} cannot run: {', '.join(names)} not found; {variable} ({place}) names the folder that has "
                f"what this Python lacks."
            )
    return found


def hide_folders(arguments: Sequence[str]) -> list[str]:
    """Return the command line with folders of this machine left out."""
    return [Path(word).name if os.sep in word else word for word in arguments]


if __name__ == "__main__":
    sys.exit(main())
