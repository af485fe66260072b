"""The recorded machines: each gives exactly its backend, reasons and problems, and another fact another answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from studio.core.codec import from_json
from studio.core.facts import MachineFacts
from studio.core.i18n import LANGUAGES, Text, load_catalogue
from studio.machine.failures import CATALOGUE
from studio.planning.backend_choice import NEEDS_DOTS, ROWS
from studio.planning.doctor_report import judge
from studio.planning.run_plan import plan
from tests.machine.facts import make_recipe, make_small

FOLDER = Path(__file__).parent / "machines"
MACHINES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
HEALTHY = (
    "linux_h200",
    "linux_4090",
    "windows_4090",
    "windows_3060",
    "windows_older_3060",
    "windows_older_2080ti",
)
FOUNDING = 5


def read(facts: Mapping) -> MachineFacts:
    return from_json(MachineFacts, facts)


def answer(facts: Mapping) -> dict:
    report = judge(read(facts))
    return {
        "verdict": report["verdict"],
        "backend": report["backend"],
        "row": report["row"],
        "reasons": [reason.id for reason in report["reasons"]],
        "problems": [problem["id"] for problem in report["problems"]],
    }


def merge(facts: Mapping, changes: Mapping) -> dict:
    """Return `facts` with `changes`, deep; an empty mapping replaces, null in a mapping removes."""
    result = dict(facts)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
            continue
        deep = isinstance(value, Mapping) and value and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if deep else value
    return result


def texts_in(value):
    if isinstance(value, Text):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from texts_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from texts_in(part)
    elif hasattr(value, "title") and hasattr(value, "command"):
        yield from (value.title, value.why)


@pytest.mark.parametrize("name", MACHINES)
def test_machine(name):
    assert answer(MACHINES[name]["facts"]) == MACHINES[name]["expect"]


@pytest.mark.parametrize("name", MACHINES)
def test_another_fact_gives_another_answer(name):
    changes = MACHINES[name]["decides"]
    assert changes
    assert answer(merge(MACHINES[name]["facts"], changes)) != MACHINES[name]["expect"]


@pytest.mark.parametrize("name", MACHINES)
def test_a_run_there_is_planned_by_the_same_row(name):
    machine = read(MACHINES[name]["facts"])
    made = plan(machine, make_recipe(), make_small())
    assert made.backend == MACHINES[name]["expect"]["row"]
    fast = {op for op, choice in made.kernels.items() if choice.value == "triton"}
    promised = MACHINES[name]["expect"]["backend"] in ("triton", "triton_elementwise", "rocm_triton")
    dots = MACHINES[name]["expect"]["backend"] != "triton_elementwise"
    able = {op for op, needs_dots in NEEDS_DOTS.items() if dots or not needs_dots}
    assert fast == (able - set(machine.broken_kernels) if promised else set())
    if MACHINES[name]["expect"]["backend"] in ("cpu", "none"):
        assert made.device.value == "cpu"


@pytest.mark.parametrize("name", MACHINES)
def test_everything_said_has_words_in_both_languages(name):
    machine = read(MACHINES[name]["facts"])
    report = judge(machine)
    made = plan(machine, make_recipe(), make_small())
    said = [*texts_in({key: value for key, value in report.items() if key != "facts"})]
    said += [choice.reason for choice in (made.device, made.dtype, *made.kernels.values(), made.multi_gpu)]
    for catalogue in map(load_catalogue, LANGUAGES):
        for message in said:
            assert message.id == "literal" or catalogue.has(message.id), message.id
            words = catalogue.say(message)
            assert message.id == "literal" or "{" not in words.replace("{e", "").replace("{c", ""), words


def test_there_are_enough_of_them():
    assert len(MACHINES) >= 60
    assert {machine["expect"]["row"] for machine in MACHINES.values()} == {row.name for row in ROWS}
    assert (
        len({name.removeprefix("founding_").split("_")[0] for name in MACHINES if "founding" in name})
        == FOUNDING
    )
    notes = [machine["note"] for machine in MACHINES.values()]
    assert all(notes) and len(set(notes)) == len(notes)


def test_every_probe_of_the_catalogue_fires_on_one_of_them():
    seen = {id for machine in MACHINES.values() for id in machine["expect"]["problems"]}
    assert {entry.id for entry in CATALOGUE if entry.probe is not None} - seen == set()


@pytest.mark.parametrize("name", HEALTHY)
def test_what_works_is_left_in_peace(name):
    report = judge(read(MACHINES[name]["facts"]))
    assert (report["verdict"], report["problems"], report["offers"]) == ("ready", [], [])
    assert {check["verdict"] for check in report["checks"]} == {"ok"}


@pytest.mark.parametrize("name", MACHINES)
def test_each_problem_stands_under_one_check_with_a_way_on(name):
    report = judge(read(MACHINES[name]["facts"]))
    listed = [id for check in report["checks"] for id in check["problems"]]
    assert sorted(listed) == sorted(problem["id"] for problem in report["problems"])
    assert all(problem["title"] and problem["fix"] for problem in report["problems"])
    for check in report["checks"]:
        assert check["verdict"] not in ("warn", "bad") or check["fix"] is not None, check


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        (
            "founding_poetry_marker",
            [r".venv\Scripts\python.exe -m pip install triton-windows==3.7.1.post27", ""],
        ),
        (
            "windows_torch_215",
            [
                r".venv\Scripts\python.exe -m pip install torch==2.14.1+cu130 triton-windows==3.8.0.post29"
                " --extra-index-url https://download.pytorch.org/whl/cu130",
                "",
            ],
        ),
        ("windows_wsl_better", ["py launch.py wsl", ""]),
        ("windows_cpu_build", ["py launch.py install --rebuild"]),
        ("linux_driver_old", ["python3 launch.py install --rebuild"]),
        ("windows_driver_11", []),
        ("linux_triton_absent", ["python3 launch.py install"]),
        ("founding_libtriton_1114", [""]),
        ("linux_cpu_laptop", []),
        ("mac_m3", []),
    ],
)
def test_offers(name, commands):
    assert [offer.command for offer in judge(read(MACHINES[name]["facts"]))["offers"]] == commands


def test_a_repair_is_told_as_possible_and_then_as_done():
    (before,) = judge(read(MACHINES["linux_ptxas_102"]["facts"]))["problems"]
    assert (before["auto"], before["repair"], before["repaired"]) == (True, "drop_assembler", False)
    facts = merge(MACHINES["linux_ptxas_102"]["facts"], {"repairs": ["drop_assembler"]})
    (after,) = judge(read(facts))["problems"]
    assert (after["auto"], after["repaired"]) == (True, True)
    (other,) = judge(read(MACHINES["founding_libtriton_1114"]["facts"]))["problems"]
    assert (other["auto"], other["repair"]) == (False, "")


def test_a_repaired_problem_does_not_lower_the_verdict():
    facts = merge(
        MACHINES["linux_bitsandbytes_override"]["facts"],
        {"repairs": ["drop_bitsandbytes_version"], "bitsandbytes_error": ""},
    )
    assert answer(facts)["verdict"] == "ready" and answer(facts)["problems"] == ["bitsandbytes_override"]
