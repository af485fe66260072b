"""Triton's kernels, really run (in its interpreter); one breaks at step 7: nothing is lost, to the last bit."""

from __future__ import annotations

import json

import pytest

from tests.interpreter import run_interpreted

# 20 s: test_recovery.py shows the same with stand-ins for the kernels.
pytestmark = pytest.mark.computing


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_tiny_model) -> dict[str, dict]:
    """The runs of interpreted_runner by name; a child, since Triton decides at decoration who runs a kernel."""
    from tests.conftest import chat_rows, write_jsonl

    work = tmp_path_factory.mktemp("interpreted")
    model = make_tiny_model(work / "model", hidden_size=16, intermediate_size=24, num_hidden_layers=1)
    data = write_jsonl(work / "chats.jsonl", chat_rows(16))
    said = run_interpreted("tests.engine.interpreted_runner", str(model), str(data), str(work), timeout_s=300)
    return {run["name"]: run for run in map(json.loads, said.splitlines())}


@pytest.mark.parametrize(("place", "op"), [("forward", "rms_norm"), ("backward", "glu")])
def test_the_weights_are_those_of_a_run_that_used_the_twin_from_that_step(runs, place, op):
    fell, switched = runs[place], runs[f"{place} switched"]
    assert fell["kernels"] == {"rms_norm": "triton", "glu": "triton"}
    assert fell["fell"] == [[op, 7]] and switched["fell"] == []
    assert fell["weights"] == switched["weights"]
    assert fell["losses"] == switched["losses"] and len(fell["losses"]) == 8
    assert runs["forward"]["weights"] != runs["backward"]["weights"], (
        "which op runs where changes the last bits"
    )


def test_triton_ran_the_kernels(runs):
    for name in ("forward", "backward", "forward switched", "backward switched"):
        launches = runs[name]["launches"]
        assert set(launches) == {
            f"{op}.{way}" for op in ("rms_norm", "glu") for way in ("forward", "backward")
        }
    # Three norms and one gate a micro-batch; the op that fell back is not launched again.
    assert runs["forward"]["launches"]["rms_norm.forward"] < runs["backward"]["launches"]["rms_norm.forward"]


def test_the_next_run_starts_with_the_verdict(runs):
    again = runs["backward again"]
    assert runs["backward"]["verdicts"] == [
        ["glu", "PTXASError: PTXAS error: Internal Triton PTX codegen error"]
    ]
    assert again["kernels"] == {"rms_norm": "triton", "glu": "reference"}
    assert again["fell"] == [] and "glu.forward" not in again["launches"]
    assert again["verdicts"] == runs["backward"]["verdicts"]
