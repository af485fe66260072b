"""Turns the CSV files of compare.py and memory.py into the tables of README.md: `report.py results/*.csv --write`."""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.cases import CASES, OTHER_SHAPES  # noqa: E402 (the folder above must be on the path first)

README = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- tables: written by report.py -->", "<!-- end of tables -->"
Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One comparison that a row of the table makes."""

    row: int
    case: str
    """What is compared, in words."""
    ours: str
    """Name of the studio's case."""
    others: tuple[str, ...] = ()
    """Names of those that it is compared with: the best of them counts."""
    quantity: str = "tokens_per_s"
    """tokens_per_s, peak_mib, first_step_s: the ratio of ours to theirs. longest: tokens, ours alone. losses: the
    largest difference, as a share."""
    must: float
    goal: float | None = None

    @property
    def less(self) -> bool:
        """Whether a smaller value is better."""
        return self.quantity in ("peak_mib", "first_step_s", "losses")


def against(row: int, case: str, ours: str, *others: str, must: float, goal: float | None = None) -> Claim:
    """Return a claim on tokens/s."""
    return Claim(row=row, case=case, ours=ours, others=others, must=must, goal=goal)


def within(
    row: int, case: str, ours: str, *others: str, must: float = 1.0, goal: float | None = None
) -> Claim:
    """Return a claim on peak memory."""
    return Claim(row=row, case=case, ours=ours, others=others, quantity="peak_mib", must=must, goal=goal)


CLAIMS: tuple[Claim, ...] = (
    against(1, "QLoRA 2x2048 in Unsloth's peak", "qlora.ours.budget", "qlora.unsloth", must=1.10, goal=1.25),
    within(1, "its peak", "qlora.ours.budget", "qlora.unsloth", must=1.05, goal=1.0),
    against(
        2,
        "QLoRA 2x2048, memory free / Unsloth, nothing recomputed",
        "qlora.ours",
        "qlora.unsloth.none",
        must=1.05,
        goal=1.15,
    ),
    against(2, "/ Unsloth's default", "qlora.ours", "qlora.unsloth", must=1.45, goal=1.6),
    against(2, "/ HF + PEFT", "qlora.ours", "qlora.hf", must=2.5, goal=2.9),
    against(2, "`launch.py train` / the bare loop", "qlora.engine", "qlora.ours", must=0.97),
    against(
        3,
        "LoRA 2x2048, memory free / Unsloth, nothing recomputed",
        "lora.ours",
        "lora.unsloth.none",
        must=1.05,
        goal=1.15,
    ),
    against(3, "`launch.py train` / the bare loop", "lora.engine", "lora.ours", must=0.97),
    against(4, "QLoRA 1x32768 in Unsloth's peak", "long.ours", "long.unsloth", must=1.10, goal=1.2),
    within(4, "its peak", "long.ours", "long.unsloth", must=1.05),
    against(
        5,
        "8-bit products, LoRA 2x2048 / Unsloth LoRA, nothing recomputed",
        "lora.ours.fp8",
        "lora.unsloth.none",
        must=1.4,
        goal=1.7,
    ),
    Claim(
        row=6,
        case="longest QLoRA row in 24 GB, tokens",
        ours="context.ours",
        others=("context.unsloth",),
        quantity="longest",
        must=100_000,
        goal=150_000,
    ),
    against(7, "documents of real lengths / Unsloth packed", "packed.ours", "packed.unsloth", must=1.2),
    against(7, "/ HF + PEFT padded", "packed.ours", "padded.hf", must=3.0),
    Claim(
        row=9,
        case="time to the first step, kernels compiled before / HF + PEFT",
        ours="first.ours",
        others=("first.hf",),
        quantity="first_step_s",
        must=1.0,
    ),
    Claim(
        row=9,
        case="the same with no kernel compiled",
        ours="first.ours.cold",
        others=("first.hf",),
        quantity="first_step_s",
        must=1.0,
    ),
    *(
        against(
            11,
            f"{shape}, QLoRA 2x2048 / Unsloth's default",
            f"{shape}.ours",
            f"{shape}.unsloth",
            *(("phi3-medium-split.unsloth",) if shape == "phi3-medium" else ()),
            must=1.1,
        )
        for shape in OTHER_SHAPES
    ),
    against(12, "QLoRA 2x2048 without Triton / HF + PEFT", "qlora.ours.no_triton", "qlora.hf", must=1.5),
    within(12, "its peak", "qlora.ours.no_triton", "qlora.hf"),
    against(12, "LoRA 2x2048 without Triton / HF + PEFT", "lora.ours.no_triton", "lora.hf", must=1.5),
    within(12, "its peak", "lora.ours.no_triton", "lora.hf"),
    against(
        12, "the same / HF + PEFT, nothing recomputed", "lora.ours.no_triton.free", "lora.hf.none", must=1.5
    ),
    within(12, "its peak", "lora.ours.no_triton.free", "lora.hf.none"),
    *(
        against(
            13,
            f"Qwen3-0.6B {name} 2x512 / the best of Unsloth and HF",
            f"small.{way}.ours",
            f"small.{way}.hf",
            f"small.{way}.unsloth",
            f"small.{way}.unsloth.none",
            must=3.0,
            goal=8.0,
        )
        for way, name in (("lora", "LoRA"), ("qlora", "QLoRA"))
    ),
    against(14, "Turing's means, fp16 / HF + PEFT in fp16", "turing.ours", "turing.hf", must=1.4),
    Claim(
        row=14,
        case="largest difference of a loss",
        ours="turing.ours",
        others=("turing.hf",),
        quantity="losses",
        must=0.01,
    ),
)


def measured(rows: Rows, name: str) -> list[Mapping[str, str]]:
    """Return the measurements of a case."""
    return [row for row in rows if row["case"] == name and row["state"] == "measured"]


def value_of(rows: Rows, name: str, quantity: str) -> float | None:
    """Return the median of a case's measurements (the largest for memory and context), None without one."""
    found = measured(rows, name)
    if quantity == "longest":
        return max((float(row["tokens"]) for row in found), default=None)
    values = [float(row[quantity]) for row in found if row[quantity]]
    if not values:
        return None
    return max(values) if quantity == "peak_mib" else statistics.median(values)


def judge(claim: Claim, rows: Rows) -> tuple[float | None, str]:
    """Return the claim's value, None where it was not measured, and from what it comes."""
    if claim.quantity == "losses":
        pair = [measured(rows, name) for name in (claim.ours, *claim.others)]
        if not all(pair):
            return None, ""
        one, other = ([float(loss) for loss in found[-1]["losses"].split()] for found in pair)
        return max(abs(a / b - 1) for a, b in zip(one, other, strict=False)), f"{len(one)} steps"
    ours = value_of(rows, claim.ours, claim.quantity)
    theirs = [(value_of(rows, name, claim.quantity), name) for name in claim.others]
    known = [(value, name) for value, name in theirs if value]
    if claim.quantity == "longest":
        told = ", ".join(f"{name}: {value:,.0f}" for value, name in known)
        return ours, told
    if ours is None or not known:
        return None, ""
    best, name = min(known) if claim.less else max(known)
    digits = 1 if claim.quantity == "first_step_s" else 0
    return ours / best, f"{ours:,.{digits}f} / {best:,.{digits}f} ({name})"


def verdict(claim: Claim, value: float | None) -> str:
    """Return goal, must, **missed** or not measured."""
    if value is None:
        return "not measured"

    def holds(limit: float) -> bool:
        return value <= limit if claim.less else value >= limit

    if claim.goal is not None and holds(claim.goal):
        return "goal"
    return "must" if holds(claim.must) else "**missed**"


def show(value: float | None, claim: Claim) -> str:
    """Return a value of the claim's kind as a person reads it."""
    if value is None:
        return ""
    return (
        f"{value:,.0f}"
        if claim.quantity == "longest"
        else f"{value:.2%}"
        if claim.quantity == "losses"
        else f"{value:.2f}"
    )


def table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a markdown table."""
    rows = [list(heading), ["---"] * len(heading), *map(list, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def tell_claims(rows: Rows) -> str:
    """Return the table of what is compared."""
    lines = []
    for claim in CLAIMS:
        value, source = judge(claim, rows)
        sign = "<=" if claim.less else ">="
        limits = [
            f"{sign} {show(limit, claim)}" if limit is not None else "" for limit in (claim.must, claim.goal)
        ]
        lines.append([str(claim.row), claim.case, show(value, claim), *limits, verdict(claim, value), source])
    return table(("row", "case", "value", "must", "goal", "reached", "from"), lines)


def tell_cases(rows: Rows) -> str:
    """Return the table of every case that was measured, or tried."""
    order = {case.name: number for number, case in enumerate(CASES)}
    names = sorted({row["case"] for row in rows}, key=lambda name: order.get(name, len(order)))
    lines = []
    for name in names:
        found = measured(rows, name)
        last = (found or [row for row in rows if row["case"] == name])[-1]
        speed = value_of(rows, name, "tokens_per_s")
        lines.append(
            [
                f"`{name}`",
                f"{last['batch']}x{int(value_of(rows, name, 'longest') or last['tokens'])}",
                f"{speed:,.0f}" if speed else "",
                f"{last['step_s']} ({last['min_s']}-{last['max_s']})" if speed else "",
                f"{value_of(rows, name, 'peak_mib') or 0:,.0f}" if found else "",
                last["loss0"],
                f"{value_of(rows, name, 'first_step_s') or 0:.0f}" if found else "",
                last["state"] if last["agrees"] in ("", "yes") else last["agrees"],
                f"{len(found)} {last['mode']}" if found else last["error"].replace("|", "/")[:80],
            ]
        )
    heading = (
        "case",
        "rows",
        "tokens/s",
        "step s (range)",
        "peak MiB",
        "first loss",
        "first step s",
        "state",
        "runs",
    )
    return table(heading, lines)


def tell_memory(rows: Rows) -> str:
    """Return the table of predicted against measured memory (row 8 of the table)."""
    lines = [
        [
            row["shape"],
            row["bits"],
            row["keep"],
            *(f"{float(row[name]):,.0f}" for name in ("predicted_mib", "peak_mib")),
            f"{float(row['error']):+.1%}",
            *(f"{float(row[name]):,.0f}" for name in ("predicted_total_mib", "nvml_mib")),
            f"{float(row['total_error']):+.1%}",
        ]
        for row in rows
    ]
    worst = max(abs(float(row["error"])) for row in rows)
    worst_total = max(abs(float(row["total_error"])) for row in rows)
    heading = ("shape", "bits", "kept", "predicted MiB", "peak MiB", "off", "with context", "NVML", "off")
    words = (
        f"Row 8: the worst of {len(rows)} predictions is {worst:.1%} off the peak (must 8 %, goal 5 %), "
        f"{worst_total:.1%} off what NVML shows (must 8 %)."
    )
    return f"{words}\n\n{table(heading, lines)}"


def tell(files: Sequence[Path]) -> str:
    """Return all tables of the CSV files, and on what they were measured."""
    rows: list[Mapping[str, str]] = []
    memory: list[Mapping[str, str]] = []
    for path in files:
        with path.open(encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        names = set(found[0]) if found else set()
        rows += found if "case" in names else []
        memory += found if "predicted_mib" in names and "nvml_mib" in names else []
    parts = []
    if rows:
        names = ("gpu", "driver", "torch", "triton", "transformers", "peft", "bitsandbytes")
        told = {
            ", ".join(f"{name} {row[name]}" for name in names if row[name]) for row in rows if row["torch"]
        }
        machines = "; ".join(sorted(told))
        parts += [f"Last measured {rows[-1]['date']}: {machines}.", tell_claims(rows), tell_cases(rows)]
    if memory:
        parts.append(tell_memory(memory))
    return "\n\n".join(parts)


def write(words: str, path: Path = README) -> None:
    """Put the tables between the two marks of `path`. Raises ValueError when they are not there."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path.name} has no place for the tables")
    path.write_text(f"{before}{begin}\n\n{words}\n\n{end}{after}", encoding="utf-8")


def main() -> int:
    """Print the tables, or write them into README.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="CSV files of compare.py and memory.py")
    parser.add_argument("--write", action="store_true", help="into benchmarks/README.md")
    options = parser.parse_args()
    words = tell(options.files)
    if options.write:
        write(words)
    else:
        print(words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
