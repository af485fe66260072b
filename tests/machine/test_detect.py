"""The machine's facts are gathered without torch, kept until something changes, and nothing in a probe reaches us."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import studio_kernels

from studio.core.codec import from_json, to_json
from studio.core.facts import Distribution, Gpu, KernelTest, MachineFacts, Tool, WindowsFacts
from studio.machine import detect as module
from studio.machine.detect import choose_targets, detect, fill, look_around, probe
from studio.machine.facts_cache import read_kept, stamp
from studio.machine.probes.child import ChildAnswer
from studio.machine.settings import change_settings
from studio.machine.workspace import open_workspace
from tests.each_time import rarely
from tests.machine.facts import make_gpu, make_machine
from tests.machine.probes.tools import site_with, when_imported

ROOT = Path(__file__).resolve().parents[2]
DESCRIBE = """
import json, sys, time
from studio.machine.detect import look_around
look_around()
started = time.perf_counter()
facts = look_around()
took_s = time.perf_counter() - started
assert facts.cores >= 1 and facts.ram_bytes > 2**28 and facts.packages["torch"]
print(json.dumps([took_s, sorted({"torch", "triton", "transformers", "bitsandbytes"} & set(sys.modules))]))
"""
COMPILES = {"triton_level": "compiles", "triton_assembler": {"path": "/t/ptxas", "release": "12.8"}}
TESTS = [
    {"op": "rms_norm", "ok": True, "error": 0.001, "twin_ms": 2.0, "kernel_ms": 1.0, "reason": ""},
    {"op": "glu", "ok": False, "error": 0.0, "reason": "OutOfResources: shared memory"},
]


class Probes:
    """Stands for run_child: answers by module name, and what was asked of it."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []
        self.then: dict[str, ChildAnswer] = {}
        """What a module answers from the second time on, where that is something else."""

    def __call__(self, name, arguments=(), *, timeout_s, environment, heard=None, enough=None):
        name = name.rpartition(".")[2]
        self.asked.append((name, *arguments))
        answer = self.answers.get(name, ChildAnswer())
        self.answers[name] = self.then.get(name, answer)
        if heard:
            heard(answer.facts)
        if enough and enough(answer.facts):
            return dataclasses.replace(answer, cut=True)
        return answer


@pytest.fixture
def probes(monkeypatch):
    def install(**answers):
        fake = Probes(**answers)
        monkeypatch.setattr(module, "run_child", fake)
        return fake

    return install


def find(machine, **values):
    found, complete = probe(machine, {}, 5.0, **values)
    return fill(machine, found), complete


def test_this_machine_is_described_at_once_and_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    took_s, heavy = json.loads(done.stdout)
    assert heavy == []
    assert took_s < 1.0, "0.02 s on an idle machine"


@pytest.mark.computing
def test_a_real_detection_is_kept(tmp_path):
    kept = tmp_path / "cache" / "facts.json"
    facts = detect(cache=kept, workspace_root=tmp_path)
    assert facts.triton_level == ("right" if facts.gpus else "compiles")
    assert facts.torch_error == "" and facts.torch_sees_gpu is bool(facts.gpus)
    assert facts.bitsandbytes_error == ""
    assert from_json(MachineFacts, json.loads(json.dumps(to_json(facts)))) == facts
    written = kept.stat().st_mtime_ns
    started = time.perf_counter()
    again = detect(cache=kept, workspace_root=tmp_path)
    assert time.perf_counter() - started < 1.0
    assert kept.stat().st_mtime_ns == written
    assert (again.triton_level, again.triton_assembler) == (facts.triton_level, facts.triton_assembler)


def test_kept_answers_hold_until_something_changes(probes, tmp_path):
    kept = tmp_path / "facts.json"
    fake = probes(triton_levels=ChildAnswer(facts=COMPILES))
    detect(cache=kept)
    asked = len(fake.asked)
    detect(cache=kept)
    assert len(fake.asked) == asked
    detect(cache=kept, fresh=True)
    assert len(fake.asked) == 2 * asked
    detect(cache=kept, environment={**os.environ, "CC": "/opt/cc"})
    assert len(fake.asked) == 3 * asked
    kept.write_text('{"key": 1, "found": []', encoding="utf-8")
    detect(cache=kept)
    assert len(fake.asked) == 4 * asked


def test_an_answer_that_did_not_come_in_time_is_not_kept(probes, tmp_path):
    kept = tmp_path / "facts.json"
    probes(torch_import=ChildAnswer(error="It did not answer within 60 s.", timed_out=True))
    assert detect(cache=kept).torch_error == "It did not answer within 60 s."
    assert not kept.exists()


def test_libraries_on_a_slow_disk_get_a_second_try(probes, tmp_path):
    """The first import reads 2 GiB, the second finds them in memory."""
    kept = tmp_path / "facts.json"
    fake = probes(torch_import=ChildAnswer(error="It did not answer within 60 s.", timed_out=True))
    fake.then = {"torch_import": ChildAnswer(facts={"torch_sees_gpu": False})}
    assert detect(cache=kept).torch_error == ""
    assert [name for name, *_ in fake.asked].count("torch_import") == 2 and kept.exists()


BEGUN = {"op": "rope", "ok": False, "reason": studio_kernels.BEGUN}
ALONE = [{"op": op, "ok": True, "reason": ""} for op in studio_kernels.TESTED_ALONE]


@pytest.mark.parametrize(
    ("tests", "ready", "level"),
    [
        ([*ALONE, BEGUN], True, "right"),
        ([*ALONE], True, "right"),
        ([*ALONE, BEGUN], False, "compiles"),
        ([BEGUN], True, "compiles"),
        ([TESTS[0], ALONE[0], BEGUN], True, "compiles"),
        ([*ALONE, TESTS[1]], True, "compiles"),
        ([*ALONE, TESTS[1], BEGUN], True, "compiles"),
    ],
    ids=[
        "those alone",
        "none begun",
        "nobody waits",
        "none ran yet",
        "one of those is missing",
        "the last was wrong",
        "one was wrong",
    ],
)
def test_who_waits_gets_what_is_known_of_the_kernels(probes, tests, ready, level):
    probes(triton_levels=ChildAnswer(facts=COMPILES), self_test=ChildAnswer(facts={"kernel_tests": tests}))
    machine = make_machine(make_gpu(), triton_level="importable", torch_cuda="13.0")
    found, _ = find(machine, hurry=lambda: ready)
    assert found.triton_level == level
    if level == "right":
        assert [one.op for one in found.kernel_tests] == [*studio_kernels.TESTED_ALONE]
        assert not found.triton_error


def test_what_was_cut_short_serves_only_who_is_in_a_hurry(probes, tmp_path, monkeypatch):
    machine = make_machine(make_gpu(), triton_level="importable", torch_cuda="13.0")
    monkeypatch.setattr(module, "look_around", lambda *arguments: machine)
    kept, right = tmp_path / "facts.json", {"kernel_tests": ALONE, "triton_level": "right"}
    fake = probes(
        triton_levels=ChildAnswer(facts=COMPILES),
        self_test=ChildAnswer(facts={"kernel_tests": [*ALONE, BEGUN]}),
    )
    assert detect(cache=kept, hurry=lambda: True).triton_level == "right"
    asked = len(fake.asked)
    assert detect(cache=kept, hurry=lambda: True).triton_level == "right" and len(fake.asked) == asked
    fake.answers["self_test"] = ChildAnswer(facts=right)
    assert detect(cache=kept).triton_level == "right" and len(fake.asked) == 2 * asked
    detect(cache=kept)
    assert len(fake.asked) == 2 * asked


def test_what_a_stamp_depends_on():
    machine = make_machine(make_gpu(), driver="581.29", environment={"CC": "cc"})
    changes = (
        {"driver": "591.0"},
        {"packages": {"torch": "2.14.1"}},
        {"environment": {}},
        {"assemblers": (Tool(path="/x/ptxas", release="10.2"),)},
        {"repairs": ("drop_compiler",)},
        {"gpus": (make_gpu(8),)},
    )
    stamps = {stamp(machine), *(stamp(dataclasses.replace(machine, **change)) for change in changes)}
    assert len(stamps) == len(changes) + 1
    for change in (
        {"ram_available_bytes": 1},
        {"environment": {"CC": "cc", "HF_ENDPOINT": "https://mirror"}},
    ):
        assert stamp(dataclasses.replace(machine, **change)) == stamp(machine)


def test_an_unwritable_cache_is_no_failure(tmp_path):
    file = tmp_path / "file"
    file.touch()
    module.keep_facts(file / "facts.json", "key", {})
    assert read_kept(file / "facts.json", "key") is None


# What the probes say -------------------------------------------------------------------------------------------------


def test_every_kernel_is_tested_with_a_gpu(probes):
    fake = probes(
        torch_import=ChildAnswer(facts={"torch_sees_gpu": True, "torch_architectures": ["sm_75", "sm_86"]}),
        triton_levels=ChildAnswer(facts=COMPILES),
        self_test=ChildAnswer(facts={"kernel_tests": TESTS, "triton_level": "right"}),
    )
    machine, complete = find(make_machine(make_gpu()))
    assert complete and machine.triton_level == "right"
    assert machine.kernel_tests[0] == KernelTest(
        op="rms_norm", ok=True, error=0.001, twin_ms=2.0, kernel_ms=1.0
    )
    assert not machine.triton_error and machine.kernel_tests[1].reason == "OutOfResources: shared memory"
    assert machine.torch_architectures == ("sm_75", "sm_86")
    assert machine.triton_assembler == Tool(path="/t/ptxas", release="12.8")
    assert sorted(fake.asked) == [
        ("self_test",),
        ("torch_import", "bitsandbytes"),
        ("triton_levels", "--helper", "cuda:89"),
    ]


def test_no_kernel_counts_when_none_compiles(probes):
    error = (
        "PTXASError: PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nUnsupported .version"
    )
    probes(
        triton_levels=ChildAnswer(facts={"triton_level": "importable"}, error=error),
        self_test=ChildAnswer(facts={"kernel_tests": TESTS, "triton_level": "right"}),
    )
    machine, _ = find(make_machine(make_gpu(), triton_level="installed"))
    assert machine.triton_level == "importable" and machine.triton_error == error
    assert not machine.kernel_tests


@pytest.mark.parametrize(
    ("torch_says", "triton_says", "expected"),
    [
        ({"torch_sees_gpu": True}, ChildAnswer(facts=COMPILES), True),
        ({"torch_sees_gpu": True}, ChildAnswer(error="ImportError: libtriton"), False),
        ({}, ChildAnswer(facts=COMPILES), False),
    ],
)
def test_that_libraries_can_be_imported_is_told_before_the_kernels_are_proved(
    probes, torch_says, triton_says, expected
):
    told = []
    probes(torch_import=ChildAnswer(facts=torch_says), triton_levels=triton_says)
    find(make_machine(make_gpu(), triton_level="installed"), importable=told.append)
    assert bool(told) is expected and all(told)


def test_a_gpu_beside_a_cpu_build_runs_no_kernel(probes):
    fake = probes(triton_levels=ChildAnswer(facts=COMPILES))
    machine, _ = find(make_machine(make_gpu(), torch_cuda="", triton_level="installed"))
    assert machine.triton_level == "compiles"
    assert sorted(name for name, *_ in fake.asked) == ["bitsandbytes_load", "torch_import", "triton_levels"]
    assert ("torch_import",) in fake.asked


def test_a_kernel_test_that_dies_names_its_op(probes):
    dying = [{"op": "rms_norm", "ok": False, "reason": "It ended the process."}]
    probes(
        triton_levels=ChildAnswer(facts=COMPILES),
        self_test=ChildAnswer(facts={"kernel_tests": dying}, error="It was ended by signal 11 (SIGSEGV)."),
    )
    machine, _ = find(make_machine(make_gpu(), triton_level="installed"))
    assert machine.triton_level == "compiles" and "SIGSEGV" in machine.triton_error
    assert machine.kernel_tests[0].op == "rms_norm"


@pytest.mark.parametrize(
    "facts, torch_error, bitsandbytes_error",
    [
        ({}, "OSError: [WinError 126]", "PyTorch cannot be imported."),
        ({"stage": "bitsandbytes"}, "", "OSError: [WinError 126]"),
    ],
)
def test_whose_failure_it_is(probes, facts, torch_error, bitsandbytes_error):
    probes(torch_import=ChildAnswer(facts=facts, error="OSError: [WinError 126]"))
    machine, _ = find(make_machine(make_gpu()))
    assert (machine.torch_error, machine.bitsandbytes_error) == (torch_error, bitsandbytes_error)


def test_what_is_not_installed_is_not_probed(probes):
    fake = probes(torch_import=ChildAnswer(error="ModuleNotFoundError: No module named 'torch'"))
    machine, _ = find(make_machine(packages={}, triton_level="absent"))
    assert machine.torch_error == "" and machine.triton_level == "absent"
    assert {name for name, *_ in fake.asked} == {"torch_import"}


def test_windows_is_asked_for_its_linuxes_and_others_are_not(probes, monkeypatch):
    probes()
    found = ("ready", (Distribution(name="Ubuntu", version=2, default=True),))
    monkeypatch.setattr(module, "list_distributions", lambda: found)
    monkeypatch.setattr(
        module, "ask_running", lambda each, **how: (dataclasses.replace(each[0], gpu=True, python="3.12.3"),)
    )
    machine, _ = find(make_machine(system="Windows", windows=WindowsFacts()))
    (ubuntu,) = machine.windows.distributions
    assert (machine.windows.wsl_state, ubuntu.default, ubuntu.gpu) == ("ready", True, True)
    assert find(make_machine())[0].windows is None


def test_torch_names_amds_chips(probes):
    device = {"vendor": "amd", "name": "RX 9070", "vram_bytes": 16, "architecture": "gfx1201"}
    probes(torch_import=ChildAnswer(facts={"devices": [device]}))
    card = Gpu(name="AMD Radeon", vram_bytes=1, capability=(0, 0), vendor="amd")
    machine, _ = find(make_machine(make_gpu(), card, torch_hip="7.2"))
    assert [gpu.architecture for gpu in machine.gpus] == ["", "gfx1201"]


@pytest.mark.parametrize(
    "machine, targets",
    [
        (make_machine(), ("cuda:80",)),
        (make_machine(make_gpu(capability=(12, 0)), make_gpu(capability=(7, 5))), ("cuda:75", "cuda:120")),
        (make_machine(make_gpu(capability=(6, 1)), make_gpu(capability=(8, 9))), ("cuda:89",)),
        (make_machine(make_gpu(capability=(6, 1))), ("cuda:61",)),
        (
            make_machine(
                Gpu(name="", vram_bytes=0, capability=(0, 0), vendor="amd", architecture="gfx1100"),
                torch_cuda="",
                torch_hip="7.2",
            ),
            ("hip:gfx1100",),
        ),
        (make_machine(torch_xpu=True), ()),
    ],
)
def test_for_what_triton_is_to_compile(machine, targets):
    assert choose_targets(machine) == targets


# Real children -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what, error",
    [
        (
            "raise ImportError('libcudart.so.13: cannot open shared object file')",
            "libcudart.so.13: cannot open",
        ),
        rarely("time.sleep(600)", "did not answer within 2 s"),
        ("os._exit(0xC5)", "exit code 197"),
        ("os.abort()", "SIGABRT"),
    ],
)
def test_a_torch_that_fails_hangs_or_dies_is_a_fact(tmp_path, what, error):
    environment = site_with(tmp_path, when_imported("torch", what))
    machine = make_machine(packages={"torch": "2.13.0"}, triton_level="absent")
    found, _ = probe(machine, environment, 2.0 if "sleep" in what else 60.0)
    assert error in found["torch_error"]


def test_the_hub_is_asked_only_when_told_by_the_mirror_of_the_settings(probes, monkeypatch, tmp_path):
    probes()
    monkeypatch.setattr(module, "ask_hub", lambda mirror, environment: ("no route", mirror))
    workspace = open_workspace(str(tmp_path))
    change_settings(workspace, hub_endpoint="https://mirror")
    assert detect().hub == ""
    facts = detect(workspace_root=workspace.root, hub=True)
    assert (facts.hub, facts.hub_endpoint) == ("no route", "https://mirror")


def test_a_look_around_says_nothing_of_what_was_not_tried():
    facts = look_around()
    assert facts.triton_level == "installed" and facts.torch_sees_gpu is None and facts.kernel_tests == ()
