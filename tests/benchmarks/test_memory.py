"""Predictions are checked on twelve cases, with the very policy that the measured step follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.draft import draft_run
from benchmarks.make_model import SHAPES, make_model
from benchmarks.memory import CASES, MemoryCase, make_policy, measure, predict_parts
from studio.core.memory_policy import KEEP_LEVELS
from studio.models.catalog import inspect_model
from studio.planning.run_plan import OPS
from tests.each_time import some

TINY = MemoryCase(shape="tiny", bits=16, keep="input", batch=2, tokens=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_model("tiny", tmp_path_factory.mktemp("made") / "tiny", tokens=48)


def test_twelve_cases_of_three_shapes_two_widths_two_policies():
    assert len(CASES) == len(set(CASES)) == 12
    assert {case.bits for case in CASES} == {4, 16} and len({case.shape for case in CASES}) == 3
    assert all(case.shape in SHAPES and case.keep in KEEP_LEVELS for case in CASES)
    assert len({case.keep for case in CASES}) == 2


def test_a_case_becomes_the_run_that_is_predicted(folder):
    model = inspect_model(str(folder))
    plan, recipe = draft_run(model, bits=4, batch=3, tokens=32, device="cuda:0", recompute=True)
    assert plan.device.value == "cuda:0" and plan.quantization.value == "nf4" and plan.checkpointing.value
    assert set(plan.kernels) == set(OPS) and {choice.value for choice in plan.kernels.values()} == {"triton"}
    assert recipe.optim.batch_size == 3 and recipe.data.max_length == 32
    assert [layer.keep for layer in make_policy(TINY, model).layers] == ["input"] * model.layers


@pytest.mark.parametrize("decoder", [False, True])
def test_more_is_predicted_where_more_is_kept(folder, decoder):
    model = inspect_model(str(folder))
    cases = [MemoryCase(shape="tiny", bits=16, keep=keep, tokens=8192) for keep in ("input", "all")]
    lean, rich = (
        sum(predict_parts(case, model, "cuda:0", make_policy(case, model) if decoder else None).values())
        for case in cases
    )
    assert lean < rich


@pytest.mark.parametrize("keep", some(["input", "all"], "all"))
def test_a_row_holds_both_sides(folder, keep):
    row = measure(MemoryCase(shape="tiny", bits=16, keep=keep, tokens=32), folder, "cpu")
    assert row["predicted_total_mib"] >= row["predicted_mib"] and row["peak_mib"] == 0
    assert "weights=" in row["parts"] and float(row["loss"]) == pytest.approx(5.95, abs=0.5)


@pytest.mark.computing
def test_each_case_runs_in_a_process_of_its_own(tmp_path):
    words = ["--models", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "m.csv")]
    assert memory.main(words, (TINY,)) == 0
    lines = (tmp_path / "m.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 and lines[1].startswith("tiny,16,input,2,32,")


def test_what_does_not_fit_into_the_time_is_said(tmp_path, capsys):
    assert memory.main(["--models", str(tmp_path), "--seconds", "5"], CASES[:2]) == 0
    assert capsys.readouterr().out.count("left out") == 2
