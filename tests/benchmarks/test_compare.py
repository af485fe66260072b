"""First steps are compared before anything is timed, budgets are handed on, and what went wrong is said."""

from __future__ import annotations

import csv
import dataclasses
import math
from types import SimpleNamespace

import pytest

from benchmarks import compare
from benchmarks.cases import CASES, Case
from benchmarks.child import describe_failure, find_lacking, find_site, make_environment
from benchmarks.table import append_row, read_rows
from studio.machine.workspace import Workspace, child_environment

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
    Case(name="fp8", rows=(0,), stack="ours", fp8=True, warmup_steps=1, steps=2, **TINY),
    Case(name="broken", rows=(0,), stack="ours", dtype="fp4", **TINY),
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
        append_row(path, {"case": "qlora.unsloth", "state": state, "peak_mib": peak})
    assert compare.read_peaks(path) == {"qlora.unsloth": 6961.0}


def test_a_table_of_an_earlier_version_gets_the_columns_that_it_lacks(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("old,case\n1,a\n", encoding="utf-8")
    append_row(path, {"case": "b", "phases": "load=1"}, ("case", "phases"))
    append_row(path, {"case": "c"}, ("case", "phases"))
    assert read_rows(path) == [
        {"case": "a", "phases": "", "old": "1"},
        {"case": "b", "phases": "load=1", "old": ""},
        {"case": "c", "phases": "", "old": ""},
    ]


def test_each_stack_sees_its_own_packages(monkeypatch):
    monkeypatch.setenv("PEERS_SITE", "peers")
    monkeypatch.setenv("STUDIO_SITE", "studio")
    sites = {stack: find_site(stack) for stack in ("hf", "liger", "unsloth", "ours", "engine")}
    assert sites == dict.fromkeys(("hf", "liger", "unsloth"), "peers") | dict.fromkeys(
        ("ours", "engine"), "studio"
    )


def test_a_stack_without_its_packages_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PEERS_SITE", str(tmp_path))
    monkeypatch.setattr(compare, "run_all", None)
    words = ["--models", str(tmp_path), "--out", str(tmp_path / "t.csv"), "--device", "cpu"]
    assert compare.main(["--rows", "13", "--cases", "small.lora.unsloth", *words]) == 2
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0 and told.startswith("unsloth cannot run: unsloth not found; PEERS_SITE")
    assert str(tmp_path) in told


def test_packages_of_our_own_search_path_do_not_count_for_a_process_that_has_another(tmp_path, monkeypatch):
    (tmp_path / "ours" / "liger_kernel").mkdir(parents=True)
    (tmp_path / "ours" / "liger_kernel" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    monkeypatch.syspath_prepend(str(tmp_path / "ours"))
    assert find_lacking("liger") == ["liger_kernel"]
    monkeypatch.setenv("PEERS_SITE", str(tmp_path / "ours"))
    assert find_lacking("liger") == [] == find_lacking("ours")


def test_only_the_studios_processes_have_the_allocator_of_its_runs(tmp_path, monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    ours = child_environment(Workspace(tmp_path), {}).get("PYTORCH_ALLOC_CONF")
    assert [make_environment(stack).get("PYTORCH_ALLOC_CONF") for stack in ("hf", "ours")] == [None, ours]


def test_plan_names_what_would_run_and_what_does_not_fit(tmp_path, capsys):
    assert compare.main(["--rows", "13,2", "--seconds", "420", "--models", str(tmp_path), "--plan"]) == 0
    told = capsys.readouterr().out
    assert "small.qlora.unsloth.none" in told and "row 2 left out" in told and "qlora.liger" not in told


@pytest.mark.computing
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
    assert code == 1, told  # one case is broken
    with (tmp_path / "t.csv").open(encoding="utf-8") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    assert [rows[name]["state"] for name in ("hf", "ours", "ours.budget", "fp8")] == ["measured"] * 4, told
    assert rows["broken"]["state"] == "failed" and "fp4" in rows["broken"]["error"]
    assert {row["mode"] for row in rows.values() if row["case"] in ("hf", "ours", "fp8")} == {"together"}
    assert rows["fp8"]["loss0"] != rows["ours"]["loss0"] and rows["fp8"]["agrees"] == "yes"
    assert rows["hf"]["agrees"] == rows["ours"]["agrees"] == "yes"
    assert float(rows["hf"]["loss0"]) == pytest.approx(float(rows["ours"]["loss0"]), rel=1e-3)
    assert int(rows["ours"]["steps"]) == 4
    assert float(rows["ours"]["tokens_per_s"]) == pytest.approx(128 / float(rows["ours"]["step_s"]), rel=0.5)
    assert len(rows["ours"]["losses"].split()) == 5
    assert float(rows["hf"]["first_step_s"]) > 1 and rows["hf"]["torch"]
    assert not (tmp_path / "m" / "tiny").exists()  # made here, so removed here


@pytest.mark.computing
def test_what_computes_something_else_is_not_timed(tmp_path):
    one = session(tmp_path, "--device", "cpu", seconds=200)
    one.references[TRY[0].setting] = {"loss0": 7.0, "gradient_norm": 1.0}
    folder, new = compare.make_model("tiny", one, tmp_path)
    (child,) = compare.run_side_by_side([dataclasses.replace(TRY[0])], folder, one, tmp_path)
    assert new and child.row["state"] == "disagrees" and not child.times_s and one.failed == 1
