"""First steps are compared before anything is timed, budgets are handed on, and what went wrong is said."""

from __future__ import annotations

import csv
import dataclasses
import math
from types import SimpleNamespace

import pytest

from benchmarks import compare
from benchmarks.cases import CASES, Case
from benchmarks.child import describe_failure, find_site

BY_NAME = {case.name: case for case in CASES}
TINY = {"shape": "tiny", "bits": 16, "checkpointing": "none", "tokens": 64, "step_s": 0.1, "peak_gib": 1.0}
TRY = (
    Case(name="hf", rows=(0,), stack="hf", warmup_steps=1, steps=2, **TINY),
    Case(name="ours", rows=(0,), stack="ours", warmup_steps=1, steps=2, **TINY),
    Case(
        name="ours.budget",
        rows=(0,),
        stack="ours",
        budget_of="hf",
        triton=False,
        warmup_steps=1,
        steps=2,
        **TINY,
    ),
    Case(name="fp8", rows=(0,), stack="ours", fp8=True, **TINY),
)


def session(tmp_path, *words: str, memory_mib: float = 0, seconds: float = 60.0) -> compare.Session:
    options = compare.parse([*words, "--models", str(tmp_path), "--out", str(tmp_path / "out.csv")])
    return compare.Session(
        options=options,
        machine={},
        memory_mib=memory_mib,
        command="",
        deadline_s=compare.time.monotonic() + seconds,
    )


@pytest.mark.parametrize(
    ("ready", "wrong"),
    [
        ({"loss0": 11.9, "gradient_norm": 2.05}, ""),
        ({"loss0": 12.13, "gradient_norm": 2.0}, "loss"),
        ({"loss0": math.nan, "gradient_norm": 2.0}, "loss"),
        ({"loss0": 12.0, "gradient_norm": 2.07}, "gradient norm"),
        ({"loss0": 12.0, "gradient_norm": math.nan}, ""),
    ],
)
def test_first_steps_must_agree(ready, wrong):
    told = compare.find_disagreement(BY_NAME["qlora.ours"], ready, {"loss0": 12.0, "gradient_norm": 2.0})
    assert told.startswith(wrong) and bool(told) == bool(wrong)


def test_inexact_products_may_differ_more_in_gradients_but_not_in_the_loss():
    reference = {"loss0": 12.0, "gradient_norm": 2.0}
    fp8 = BY_NAME["lora.ours.fp8"]
    assert not compare.find_disagreement(fp8, {"loss0": 12.0, "gradient_norm": 2.2}, reference)
    assert compare.find_disagreement(fp8, {"loss0": 12.2, "gradient_norm": 2.0}, reference)


def test_failures_are_told_by_what_the_process_said():
    gone = describe_failure(
        ["Traceback", "torch.OutOfMemoryError: CUDA out of memory. Tried", "worker ended"]
    )
    assert gone["state"] == "out of memory" and "Tried" in gone["error"]
    assert describe_failure(["Traceback", "KeyError: 'x'"]) == {"state": "failed", "error": "KeyError: 'x'"}
    assert describe_failure([])["state"] == "failed"


def test_processes_share_the_card_only_as_far_as_it_reaches(tmp_path):
    same = [BY_NAME[name] for name in ("lora.hf.none", "lora.unsloth.none", "lora.ours", "lora.ours.fp8")]
    one_by_one = compare.batches(same, session(tmp_path, memory_mib=143771))
    assert [len(batch) for batch in one_by_one] == [1, 1, 1, 1]
    together = session(tmp_path, "--together", memory_mib=143771)
    assert [len(batch) for batch in compare.batches(same, together)] == [3, 1]  # 51 + 33 + 45 of 140 GiB
    qlora = [case for case in CASES if case.setting == BY_NAME["qlora.hf"].setting]
    before = compare.batches(qlora, together)
    place = {case.name: number for number, batch in enumerate(before) for case in batch}
    assert place["qlora.ours.budget"] > place["qlora.unsloth"]
    assert all(len(batch) == 1 for batch in before if batch[0].alone)
    known = session(tmp_path, "--together", memory_mib=1e6)
    known.peaks_mib = {"qlora.hf": 1.0, "qlora.unsloth": 1.0}
    assert {"qlora.ours.budget", "qlora.unsloth"} <= {case.name for case in compare.batches(qlora, known)[0]}


@pytest.mark.parametrize("limit", [0, 20_000, 100_000, 10**6])
def test_longest_row_is_found_in_four_tries(tmp_path, monkeypatch, limit):
    tried = []

    def run(cases, folder, session, scratch):
        (case,) = cases
        assert not case.longest and case.cap_gib and case.tokens not in tried
        tried.append(case.tokens)
        state = "measured" if case.tokens <= limit else "out of memory"
        return [SimpleNamespace(row={"state": state})]

    monkeypatch.setattr(compare, "run_side_by_side", run)
    case = BY_NAME["context.ours"]
    found = compare.find_longest(case, tmp_path, session(tmp_path, seconds=1e4), tmp_path)
    assert found == max((n for n in case.longest if n <= limit), default=0)
    assert len(tried) <= 4


def test_search_ends_with_the_time_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "run_side_by_side", None)
    late = session(tmp_path, seconds=30)
    assert compare.find_longest(BY_NAME["context.ours"], tmp_path, late, tmp_path) == 0
    assert late.left_out == ["context.ours beyond 0 tokens"]


def test_peaks_of_an_earlier_call_are_budgets(tmp_path):
    path = tmp_path / "t.csv"
    assert compare.read_peaks(path) == {}
    for state, peak in (("measured", 7000), ("out of memory", 9000), ("measured", 6961)):
        compare.append_row(path, {"case": "qlora.unsloth", "state": state, "peak_mib": peak})
    assert compare.read_peaks(path) == {"qlora.unsloth": 6961.0}


def test_each_stack_sees_its_own_packages(monkeypatch):
    monkeypatch.setenv("PEERS_SITE", "peers")
    monkeypatch.setenv("STUDIO_SITE", "studio")
    sites = {stack: find_site(stack) for stack in ("hf", "liger", "unsloth", "ours", "engine")}
    assert sites == dict.fromkeys(("hf", "liger", "unsloth"), "peers") | dict.fromkeys(
        ("ours", "engine"), "studio"
    )


def test_plan_names_what_would_run_and_what_does_not_fit(tmp_path, capsys):
    assert compare.main(["--rows", "13,2", "--seconds", "420", "--models", str(tmp_path), "--plan"]) == 0
    told = capsys.readouterr().out
    assert "small.qlora.unsloth.none" in told and "row 2 left out" in told and "qlora.liger" not in told


@pytest.mark.slow
def test_stacks_are_measured_in_processes_of_their_own(tmp_path, capsys):
    words = [
        "--rows",
        "0",
        "--models",
        str(tmp_path / "m"),
        "--out",
        str(tmp_path / "t.csv"),
        "--device",
        "cpu",
    ]
    code = compare.main([*words, "--rounds", "2", "--together", "--seconds", "400"], TRY)
    told = capsys.readouterr().out
    assert code == 1, told  # there are no 8-bit products on a processor
    with (tmp_path / "t.csv").open(encoding="utf-8") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    assert [rows[name]["state"] for name in ("hf", "ours", "ours.budget")] == ["measured"] * 3, told
    assert rows["fp8"]["state"] == "failed" and rows["fp8"]["error"]
    assert all(row["mode"] == "together" for row in rows.values() if row["case"] != "ours.budget")
    assert rows["hf"]["agrees"] == rows["ours"]["agrees"] == "yes"
    assert float(rows["hf"]["loss0"]) == pytest.approx(float(rows["ours"]["loss0"]), rel=1e-3)
    assert int(rows["ours"]["steps"]) == 4
    assert float(rows["ours"]["tokens_per_s"]) == pytest.approx(128 / float(rows["ours"]["step_s"]), rel=0.5)
    assert len(rows["ours"]["losses"].split()) == 5
    assert float(rows["hf"]["first_step_s"]) > 1 and rows["hf"]["torch"]
    assert not (tmp_path / "m" / "tiny").exists()  # made here, so removed here


@pytest.mark.slow
def test_what_computes_something_else_is_not_timed(tmp_path):
    one = session(tmp_path, "--device", "cpu", seconds=200)
    one.references[TRY[0].setting] = {"loss0": 7.0, "gradient_norm": 1.0}
    folder, new = compare.make_model("tiny", one, tmp_path)
    (child,) = compare.run_side_by_side([dataclasses.replace(TRY[0])], folder, one, tmp_path)
    assert new and child.row["state"] == "disagrees" and not child.times_s and one.failed == 1
