"""Turns the CSV files of compare.py, memory.py and kernels.py into tables of README.md: `report.py FILES --write`."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.cases import CASES  # noqa: E402 (the folder above must be on the path first)
from benchmarks.claims import CLAIMS, Claim  # noqa: E402
from benchmarks.table import read_rows  # noqa: E402

KERNEL_SHARE = 0.85
"""What an op must reach of the copy rate, unless it is the fastest anyhow."""
README = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- tables: written by report.py -->", "<!-- end of tables -->"
Rows = Sequence[Mapping[str, str]]


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


def tell_phases(rows: Rows) -> str:
    """Return the time to the first step of each run through the engine, split into its phases; "" without one."""
    lines = []
    for name in dict.fromkeys(row["case"] for row in rows if row.get("phases")):
        row = measured(rows, name)[-1]
        parts = [part.replace("=", " ").replace("_", " ") for part in row["phases"].split()]
        lines.append(f"`{name}`: first step after {row['first_step_s']} s: {', '.join(parts)}.")
    return "\n\n".join(lines)


def tell_missed(rows: Rows) -> str:
    """Return one sentence that names the comparisons in which the studio does not reach what it must."""
    missed = [claim for claim in CLAIMS if "missed" in verdict(claim, judge(claim, rows)[0])]
    if not missed:
        return "Of what was measured, nothing misses its must."
    names = [
        f"{claim.case.strip('/ ')} (row {claim.row}, {show(judge(claim, rows)[0], claim)})"
        for claim in missed
    ]
    return f"Where the studio misses its must: {'; '.join(names)}."


def tell_kernels(rows: Rows) -> str:
    """Return the table of the ops (row 10): ours, the best of the others, and the share of the rate of this card."""
    kinds: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        kinds.setdefault((row["op"], row["direction"], row["shape"]), []).append(row)
    lines, lost = [], []
    for (op, direction, shape), found in kinds.items():
        times = {row["implementation"]: float(row["median_ms"]) for row in found}
        own = next((row for row in found if row["implementation"] == "triton"), None)
        others = {name: ms for name, ms in times.items() if name not in ("triton", "reference")}
        best = min(others, key=others.__getitem__, default="")
        theirs = f"{others[best]:.3f} ({best})" if best else ""
        twin = f"{times['reference']:.3f}" if "reference" in times else ""
        if own is None:
            lost.append(f"{op} {direction} {shape} (left out)")
            lines.append([op, direction, shape, "", twin, theirs, "", "**left out**"])
            continue
        share, ms = float(own["share"]), times["triton"]
        enough = own["unit"] == "GB/s" and share >= KERNEL_SHARE
        first = ms <= min(times.values())
        reached = " and ".join(["must"] * enough + ["fastest"] * first) or "**missed**"
        lost += (
            [] if enough or first else [f"{op} {direction} {shape} ({share:.0%}, {best or 'twin'} is faster)"]
        )
        rate = f"{own['rate']} {own['unit']}, {share:.0%}"
        lines.append([op, direction, shape, f"{ms:.3f}", twin, theirs, rate, reached])
    heading = ("op", "direction", "shape", "ours ms", "twin ms", "best other ms", "rate and share", "reached")
    one = rows[-1]
    told = f"{one['gpu']}, torch {one['torch']}, triton {one['triton']}, {one['date']}"
    words = (
        f"Row 10 ({told}; copy {float(one['copy_gb_per_s']):,.0f} GB/s, products {one['gemm_tflop_per_s']} TFLOP/s): "
        f"{len(lines) - len(lost)} of {len(lines)} reach {KERNEL_SHARE:.0%} of the copy rate or are the fastest. "
    )
    words += f"Those that do neither: {'; '.join(lost)}." if lost else "None does neither."
    return f"{words}\n\n{table(heading, lines)}"


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
    kernels: list[Mapping[str, str]] = []
    for path in files:
        found = read_rows(path)
        names = set(found[0]) if found else set()
        rows += found if "case" in names else []
        memory += found if "predicted_mib" in names and "nvml_mib" in names else []
        kernels += found if {"direction", "share"} <= names else []
    parts = []
    if rows:
        names = ("gpu", "driver", "torch", "triton", "transformers", "peft", "bitsandbytes")
        told = {
            ", ".join(f"{name} {row[name]}" for name in names if row[name]) for row in rows if row["torch"]
        }
        machines = "; ".join(sorted(told))
        parts += [f"Last measured {rows[-1]['date']}: {machines}.", tell_missed(rows), tell_claims(rows)]
        parts += [tell_phases(rows), "### Every case", tell_cases(rows)]
    if memory:
        parts += ["### Predicted memory", tell_memory(memory)]
    if kernels:
        parts += ["### Ops", tell_kernels(kernels)]
    return "\n\n".join(part for part in parts if part)


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
    parser.add_argument(
        "files", nargs="+", type=Path, help="CSV files of compare.py, memory.py and kernels.py"
    )
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
