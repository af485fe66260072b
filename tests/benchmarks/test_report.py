"""The tables say what the CSV files hold: ratios against the best of the others, musts, goals, losses, gaps."""

from __future__ import annotations

import pytest

from benchmarks import report
from benchmarks.cases import CASES
from benchmarks.compare import COLUMNS
from benchmarks.table import append_row

NAMES = {case.name for case in CASES}


def row(case: str, tokens_per_s: float = 0.0, peak: float = 1000, **values) -> dict[str, object]:
    return {
        "case": case, "state": "measured", "agrees": "yes", "tokens_per_s": tokens_per_s, "peak_mib": peak,
        "step_s": 0.3, "min_s": 0.3, "max_s": 0.3, "loss0": 12.0, "first_step_s": 20, "batch": 2,
        "tokens": 2048, "mode": "alone", "losses": "12.0 11.0", "torch": "2.11", "gpu": "H200", "date": "d",
    } | values  # fmt: skip


@pytest.fixture
def lines(tmp_path):
    def tell(*rows, claims=True):
        path = tmp_path / "t.csv"
        for one in rows:
            append_row(path, one, COLUMNS)
        words = report.tell([path])
        return [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in words.splitlines() if "|" in line
        ]

    return tell


def find(lines, row, case):
    return next(line for line in lines if line[0] == str(row) and line[1].startswith(case))


def test_every_claim_is_about_a_case():
    for claim in report.CLAIMS:
        assert {claim.ours, *claim.others} <= NAMES and claim.others
        ours = next(case for case in CASES if case.name == claim.ours)
        assert claim.row in ours.rows or claim.ours.endswith("engine")
        better = (min if claim.less else max)(claim.must, claim.goal or claim.must)
        assert better == (claim.goal or claim.must)
    assert {claim.row for claim in report.CLAIMS} == set(range(1, 16)) - {8, 10}


@pytest.mark.parametrize(
    ("ours", "word"), [(10_000, "**missed**"), (10_600, "must"), (11_600, "goal"), (None, "not measured")]
)
def test_ratio_and_verdict(lines, ours, word):
    rows = [row("qlora.unsloth.none", 10_000)] + ([row("qlora.ours", ours)] if ours else [])
    found = find(lines(*rows), 2, "QLoRA 2x2048")
    assert found[5] == word
    assert found[2] == (f"{ours / 10_000:.2f}" if ours else "")


def test_the_best_of_the_others_counts_and_runs_are_put_together(lines):
    found = find(
        lines(
            row("small.lora.hf", 5629),
            row("small.lora.unsloth", 5608),
            row("small.lora.unsloth.none", 5177),
            *(row("small.lora.ours", value) for value in (20_000, 22_516, 24_000)),
        ),
        13,
        "Qwen3-0.6B LoRA",
    )
    assert found[2] == "4.00" and "small.lora.hf" in found[6]


def test_less_memory_and_less_time_are_better(lines):
    told = lines(
        row("qlora.unsloth", 10_000, 6961), row("qlora.ours.budget", 12_000, 7300),
        row("first.hf", first_step_s=18), row("first.ours", first_step_s=20),
        row("first.ours.cold", first_step_s=17),
    )  # fmt: skip
    assert find(told, 1, "its peak")[2:6] == ["1.05", "<= 1.05", "<= 1.00", "must"]
    assert find(told, 9, "time to")[5] == "**missed**" and find(told, 9, "the same")[5] == "must"


def test_losses_and_longest_rows(lines):
    told = lines(
        row("turing.hf", losses="12.0 11.0 10.0"), row("turing.ours", losses="12.0 11.22 10.0"),
        row("context.ours", tokens=102400), row("context.ours", tokens=122880, state="out of memory"),
        row("context.ours", tokens=65536), row("context.unsloth", tokens=65536),
    )  # fmt: skip
    assert find(told, 14, "largest")[2:6] == ["2.00%", "<= 1.00%", "", "**missed**"]
    found = find(told, 6, "longest")
    assert found[2] == "102,400" and found[5] == "must" and "65,536" in found[6]


def test_what_misses_its_must_is_named(tmp_path):
    path = tmp_path / "t.csv"
    rows = [row("qlora.unsloth.none", 10_000), row("qlora.ours", 10_000), row("qlora.hf", 3_000)]
    for one in rows:
        append_row(path, one, COLUMNS)
    words = report.tell([path])
    assert "misses its must: QLoRA 2x2048, memory free / Unsloth, nothing recomputed (row 2, 1.00)." in words


def test_time_to_the_first_step_is_split(tmp_path):
    path = tmp_path / "t.csv"
    phases = {"first_step_s": 31.5, "phases": "start=8.1 load=4.0 first_step=1.2"}
    append_row(path, row("first.engine", 100) | phases, COLUMNS)
    told = report.tell([path])
    assert "`first.engine`: first step after 31.5 s: start 8.1, load 4.0, first step 1.2." in told


def kernel(
    implementation: str, ms: float, share: float, op: str = "glu", unit: str = "GB/s"
) -> dict[str, object]:
    return {
        "op": op, "direction": "silu", "shape": "8x8", "implementation": implementation, "median_ms": ms,
        "rate": 3900, "unit": unit, "share": share, "copy_gb_per_s": 4700, "gemm_tflop_per_s": 680, "gpu": "H200",
        "torch": "2.11", "triton": "3.6", "date": "d",
    }  # fmt: skip


def test_ops_reach_a_share_of_the_copy_rate_or_are_the_fastest(tmp_path):
    path = tmp_path / "k.csv"
    for one in (
        kernel("reference", 1.0, 0.2), kernel("triton", 0.2, 0.9), kernel("liger", 0.19, 0.95),
        kernel("reference", 1.0, 0.2, "nf4"), kernel("triton", 0.4, 0.5, "nf4"), kernel("torch", 0.5, 0.4, "nf4"),
        kernel("reference", 1.0, 0.2, "lora"), kernel("triton", 0.4, 0.5, "lora"), kernel("torch", 0.3, 0.7, "lora"),
        kernel("reference", 1.0, 0.2, "rope"),
        kernel("reference", 1.0, 0.9, "head", "TFLOP/s"), kernel("triton", 1.1, 0.9, "head", "TFLOP/s"),
    ):  # fmt: skip
        append_row(path, one)
    words = report.tell([path])
    assert "2 of 5 reach 85% of the copy rate or are the fastest" in words
    assert "neither: lora silu 8x8 (50%, torch is faster); rope silu 8x8 (left out); head" in words
    cells = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in words.splitlines()
    }
    assert cells["glu"] == "must" and cells["nf4"] == "fastest" and cells["head"] == "**missed**"


def test_what_failed_is_in_the_table_of_cases(lines):
    told = lines(row("qlora.liger", state="failed", error="KeyError: a|b"), row("qlora.hf", agrees="yes"))
    failed = next(line for line in told if line[0] == "`qlora.liger`")
    assert failed[7] == "yes" or failed[7] == "failed"
    assert failed[8] == "KeyError: a/b"


def test_memory_is_summed_up(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(
        "shape,bits,keep,predicted_mib,peak_mib,error,predicted_total_mib,nvml_mib,total_error\n"
        "llama-8b,4,all,20000,21000,-0.0476,21000,22000,-0.0455\n"
        "llama-8b,4,input,8300,7800,0.0641,9000,8700,0.0345\n",
        encoding="utf-8",
    )
    words = report.tell([path])
    assert "the worst of 2 predictions is 6.4% off the peak" in words and "4.5% off what NVML shows" in words


def test_tables_go_between_their_marks(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n", encoding="utf-8")
    report.write("new", path)
    report.write("newer", path)
    assert path.read_text(encoding="utf-8") == f"above\n{report.BEGIN}\n\nnewer\n\n{report.END}\nbelow\n"
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError):
        report.write("new", path)


def test_the_readme_has_a_place_for_them():
    words = report.README.read_text(encoding="utf-8")
    assert words.count(report.BEGIN) == words.count(report.END) == 1
