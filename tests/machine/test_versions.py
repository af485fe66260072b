"""The tables of versions: every figure has its evidence, and what is asked of them is answered rightly."""

import pytest
from studio_kernels import _triton

from studio.installer import torch_build, windows
from studio.machine import versions
from tests.machine.facts import PACKAGES, make_gpu, make_machine


def figures(value, path=""):
    """Yield every figure of the tables with its path; whatever else is a name."""
    if isinstance(value, dict) and "is" in value:
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from figures(part, f"{path}.{key}")
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from figures(part, f"{path}[{place}]")


def test_every_figure_has_its_evidence():
    tables = versions.read_tables()
    found = dict(figures(tables))
    assert len(found) > 90
    assert {
        path for path, figure in found.items() if figure.get("evidence") not in tables["evidence"]
    } == set()


@pytest.mark.parametrize(
    ("torch", "triton", "windows"),
    [
        ("2.13.0+cu130", "3.7.1", "3.7.1.post27"),
        ("2.14.0", "3.8.0", "3.8.0.post29"),
        ("2.8.0", "3.4.0", "3.4.0.post21"),
        ("2.15.1", "3.9.0", ""),
        ("2.5.1+cu124", "3.1", ""),
    ],
)
def test_the_triton_of_a_torch(torch, triton, windows):
    release = versions.find_release(torch)
    assert (release.triton, release.triton_windows) == (triton, windows)
    assert release.unreleased == torch.startswith("2.15")


@pytest.mark.parametrize(
    ("system", "torch", "pin"),
    [
        ("Windows", "2.13.0", "triton-windows==3.7.1.post27"),
        ("Windows", "2.10.0+cu128", "triton-windows==3.6.0.post26"),
        ("Windows", "2.15.0", ""),
        ("Windows", "2.99.0", ""),
        ("Linux", "2.13.0", "triton==3.7.1"),
        ("Linux", "2.6.0", "triton==3.2.*"),
    ],
)
def test_what_pip_is_asked_for(system, torch, pin):
    assert versions.pin(make_machine(system=system, packages={"torch": torch})) == pin


@pytest.mark.parametrize(
    ("torch", "triton", "answer"),
    [
        ("2.13.0", "3.7.0", True),
        ("2.13.0", "3.6.0", False),
        ("2.5.1+cu124", "3.1.0.post17", True),
        ("9.9", "3.7.1", None),
        ("2.13.0", "", None),
        ("unknown", "3.7.1", None),
    ],
)
def test_pairs(torch, triton, answer):
    packages = {"torch": torch} | ({"triton-windows": triton} if triton else {})
    assert versions.pairs(make_machine(system="Windows", packages=packages)) is answer


@pytest.mark.parametrize(
    ("cuda", "torch", "capability", "answer"),
    [
        ("12.6", "2.13.0", (6, 1), True),
        ("12.6", "2.13.0", (3, 5), False),
        ("12.6", "2.13.0", (12, 0), False),
        ("12.8", "2.10.0", (7, 0), True),
        ("12.8", "2.11.0", (7, 0), False),
        ("12.9", "2.13.0", (12, 0), True),
        ("12.4", "2.5.1", (8, 6), True),
        ("13.0", "2.13.0", (7, 0), False),
        ("13.4", "2.14.0", (12, 1), True),
        ("11.8", "2.4.0", (3, 7), True),
    ],
)
def test_which_card_a_build_has_code_for(cuda, torch, capability, answer):
    machine = make_machine(make_gpu(8, capability), torch_cuda=cuda, packages=PACKAGES | {"torch": torch})
    assert versions.has_code(machine, machine.gpus[0]) is answer


@pytest.mark.parametrize(
    ("listed", "capability", "answer"),
    [
        (("sm_80", "sm_90"), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_90",), (12, 0), False),
        (("sm_90", "compute_90"), (12, 0), True),
        (("sm_90a",), (9, 0), True),
    ],
)
def test_torch_s_own_list_goes_before_the_tables(listed, capability, answer):
    machine = make_machine(make_gpu(8, capability), torch_architectures=listed)
    assert versions.has_code(machine, machine.gpus[0]) is answer


def test_the_installer_chooses_builds_that_the_tables_allow():
    """studio/installer/torch_build.py runs before anything is installed and has its own floors: they must agree."""
    for capability in ((5, 0), (6, 1), (7, 0), (7, 5), (8, 6), (9, 0), (12, 0)):
        for driver in (12000, 12080, 13000):
            facts = {"cuda_driver": driver, "capabilities": [list(capability)], "system": "Linux"}
            for build in torch_build.choose_builds(facts):
                if build == "cpu":
                    continue
                cuda = f"{build[2:4]}.{build[4:]}"
                lowest, highest_major = versions.code_range(cuda, "2.13.0")
                assert lowest <= capability and capability[0] <= highest_major, (build, capability)
                assert versions.driver_floor(cuda) <= (driver // 1000, driver % 1000 // 10), (build, driver)


def test_floors_that_stand_outside_of_the_tables_agree_with_them():
    """Of files that run before anything is installed, or know nothing of the studio."""
    runtime = versions.read_tables()["windows_runtime"]
    assert versions.minor_of(runtime["msvcp140"]["is"]) == windows.RUNTIME_FOR_TRITON
    assert versions.minor_of(runtime["threads_from_torch"]["is"]) == windows.TORCH_WITH_THREADS_DLL
    assert versions.gate("triton") == _triton.LOWEST_CAPABILITY


def test_the_tested_torch_is_in_the_tables():
    assert versions.find_release("2.13.0").pythons == ((3, 10), (3, 14))
    assert versions.latest_windows_release().torch == "2.14.1"
    assert versions.driver_release("13.0", "Linux") == "580.65"
    assert versions.driver_release("12.6", "Windows") == "528.33"
