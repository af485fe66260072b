"""The doctor's answer for machines of each kind: what counts, what does not, and what a repair changes."""

from __future__ import annotations

import dataclasses

import pytest

from studio.core.facts import Gpu, KernelTest, MachineFacts, Place
from studio.core.i18n import load_catalogue
from studio.planning.doctor_report import judge
from studio.planning.run_plan import OPS

PACKAGES = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "peft": "0.21.2",
    "datasets": "5.2.0",
    "bitsandbytes": "0.50.2",
    "triton": "3.7.1",
}
CARD = Gpu(name="RTX 3060", vram_bytes=12 * 2**30, capability=(8, 6))
PROCESSOR = MachineFacts(
    system="Linux", wsl=False, python="3.12.0", cores=8, ram_bytes=2**34, packages=PACKAGES
)
GOOD = dataclasses.replace(
    PROCESSOR, gpus=(CARD,), torch_cuda="13.0", driver_cuda=(13, 0), triton_level="right"
)


def change(**values):
    return dataclasses.replace(GOOD, **values)


CASES = {
    "ready": (GOOD, "ready", "triton", []),
    "processor": (PROCESSOR, "degraded", "cpu", []),
    "torch of another build": (change(torch_cuda=""), "degraded", "cpu", ["torch_cpu_build"]),
    "triton imports only": (
        change(triton_level="importable", triton_error="no compiler", triton_compiler="/usr/bin/gcc"),
        "degraded",
        "pytorch",
        ["kernel_compile"],
    ),
    "no bitsandbytes": (
        change(bitsandbytes_error="no library"),
        "degraded",
        "triton",
        ["bitsandbytes_library"],
    ),
    "kernels installed": (
        change(packages=PACKAGES | {"kernels": "0.11.1"}),
        "ready",
        "triton",
        ["kernels_package"],
    ),
    "no torch": (
        dataclasses.replace(PROCESSOR, packages={"peft": "0.21.2", "transformers": "5.23.0"}),
        "blocked",
        "none",
        ["torch_absent"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict(case):
    machine, verdict, backend, problems = CASES[case]
    report = judge(machine)
    assert (report["verdict"], report["backend"]) == (verdict, backend)
    assert [problem["id"] for problem in report["problems"]] == problems
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        texts = [*report["reasons"], *(p[part] for p in report["problems"] for part in ("title", "fix"))]
        assert all(words.has(one.id) and "{" not in words.say(one) for one in texts)


@pytest.mark.parametrize("name", ["transformers", "peft"])
def test_without_what_a_run_imports_nothing_can_train(name):
    packages = {key: value for key, value in PACKAGES.items() if key != name}
    report = judge(change(packages=packages))
    assert report["verdict"] == "blocked"
    assert report["reasons"][0].id == "failure.package_missing"
    (problem,) = report["problems"]
    assert problem["id"] == "package_missing" and name in problem["evidence"].values["words"]


@pytest.mark.parametrize("op", OPS)
def test_one_wrong_kernel_leaves_the_others_fast(op):
    """Every one of twelve was switched off for it once."""
    tests = tuple(KernelTest(op=one, ok=one != op, reason="wrong" if one == op else "") for one in OPS)
    report = judge(change(kernel_tests=tests))
    assert (report["verdict"], report["backend"]) == ("degraded", "triton")
    assert [one for one, choice in report["kernels"].items() if choice.value == "reference"] == [op]
    assert report["kernels"][op].reason.id == "plan.kernels.test_failed"
    assert [reason.id for reason in report["reasons"]] == ["backend.row.4", "doctor.slow_ops"]
    assert report["reasons"][1].values["ops"] == op


def test_the_five_levels_stop_at_the_one_that_failed():
    report = judge(change(triton_level="importable", triton_error="PTXASError: x\nmore"))
    levels = [check for check in report["checks"] if check["id"] == "triton"]
    assert [check["verdict"] for check in levels] == ["ok", "ok", "warn", "skip", "skip"]
    assert levels[2]["evidence"].values["words"] == "PTXASError: x"


def test_without_a_card_the_later_levels_are_not_tried():
    levels = [check for check in judge(PROCESSOR)["checks"] if check["id"] == "triton"]
    assert [check["verdict"] for check in levels] == ["skip"] * 5


def test_every_kernel_s_error_and_speed_are_told():
    tests = (
        KernelTest(op="rms_norm", ok=True, error=0.001, twin_ms=0.9, kernel_ms=0.3),
        KernelTest(op="glu", ok=False, error=0.5, reason="differs"),
    )
    checks = [check for check in judge(change(kernel_tests=tests))["checks"] if check["id"] == "kernel"]
    say = load_catalogue("en").say
    assert [check["verdict"] for check in checks] == ["ok", "warn"]
    assert "1.0e-03" in say(checks[0]["evidence"]) and "3.0 times" in say(checks[0]["evidence"])
    assert "differs" in say(checks[1]["evidence"])


def test_a_folder_that_cannot_be_written_is_bad():
    place = Place(path="/srv/studio", writable=False, free_bytes=2**40)
    report = judge(change(places={"workspace": place}))
    assert [check["verdict"] for check in report["checks"] if check["id"] == "disk"] == ["bad"]
    assert report["verdict"] == "blocked"


def test_the_network_is_only_told_when_it_was_asked():
    def network(**values):
        return [check["verdict"] for check in judge(change(**values))["checks"] if check["id"] == "network"]

    assert network() == []
    assert network(hub="ok") == ["ok"]
    assert network(hub="ConnectTimeout") == ["warn"]
    proxy = {"environment": {"HTTPS_PROXY": "http://proxy:8080"}}
    assert network(**proxy, repairs=("proxy_for_localhost",)) == ["skip"]
    assert network(**proxy) == ["note"]


def test_what_was_not_tried_is_not_called_good():
    say = load_catalogue("en").say

    def verdicts(machine):
        checks = judge(machine)["checks"]
        assert all(say(check["evidence"]) for check in checks)
        return {check["id"]: (check["verdict"], check["evidence"].id) for check in checks}

    broken = verdicts(change(torch_error="OSError: [WinError 126] error loading shm.dll"))
    assert broken["torch"][0] == "bad" and "driver" in broken
    assert {broken[name] for name in ("attention", "four_bit")} == {("skip", "checkup.triton.not_tried")}
    assert verdicts(PROCESSOR)["four_bit"] == ("ok", "checkup.four_bit.loads")
    assert verdicts(GOOD)["four_bit"] == ("ok", "checkup.four_bit.found")
