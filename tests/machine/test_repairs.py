"""What is set right in our own environment: each repair where it is needed, and nowhere else."""

from __future__ import annotations

import dataclasses

import pytest

from studio.core.facts import GuestFacts, Place, Tool, WindowsFacts
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.machine.repairs import REPAIRS, apply_repairs, choose_repairs
from tests.machine.facts import make_gpu, make_machine

OLD_TOOLS = (
    Tool(path="/cuda-10.2/bin/ptxas", release="10.2"),
    Tool(path="/cuda-12.4/bin/ptxas", release="12.4"),
)


def windows(**values):
    """A Windows PC whose Triton was not proved yet."""
    facts = {"system": "Windows", "windows": WindowsFacts(), "triton_level": "installed"}
    return make_machine(make_gpu(), **(facts | values))


def linux(**values):
    return make_machine(make_gpu(), **({"triton_level": "importable"} | values))


def changes(machine, **switches):
    return {repair.name: dict(repair.changes) for repair in choose_repairs(machine, **switches)}


CASES = {
    "drop_compiler": (
        windows(environment={"CC": "gcc", "VCINSTALLDIR": r"C:\VS"}),
        {"CC": None, "VCINSTALLDIR": None},
    ),
    "drop_toolkit": (windows(environment={"CUDA_PATH": r"C:\CUDA\v10.2"}), {"CUDA_PATH": None}),
    "drop_assembler": (
        linux(environment={"TRITON_PTXAS_PATH": "/cuda-10.2/bin/ptxas"}, assemblers=OLD_TOOLS),
        {"TRITON_PTXAS_PATH": None},
    ),
    "own_triton_tools": (
        windows(triton_in_platlib=False, triton_folder=r"C:\u\triton", environment={"CC": "gcc"}),
        {"CC": r"C:\u\triton\runtime\tcc\tcc.exe", "CUDA_PATH": r"C:\u\triton\backends\nvidia"},
    ),
    "plain_temp": (
        windows(places={"temp": Place(path=r"C:\Users\张三\Temp", ansi=False)}),
        {
            "TRITON_CACHE_DIR": r"C:\ProgramData\finetune-studio\triton",
            "TMPDIR": r"C:\ProgramData\finetune-studio\tmp",
            "TEMP": r"C:\ProgramData\finetune-studio\tmp",
            "TMP": r"C:\ProgramData\finetune-studio\tmp",
        },
    ),
    "clean_library_path": (
        linux(environment={"LD_LIBRARY_PATH": "/opt/cuda/lib64:/opt/mine"}, shadows=("/opt/cuda/lib64",)),
        {"LD_LIBRARY_PATH": "/opt/mine"},
    ),
    "wsl_library_path": (
        linux(wsl=True, guest=GuestFacts(libcuda="/usr/lib/x86_64-linux-gnu/libcuda.so.1")),
        {"LD_LIBRARY_PATH": "/usr/lib/wsl/lib", "TRITON_LIBCUDA_PATH": "/usr/lib/wsl/lib"},
    ),
    "drop_bitsandbytes_version": (linux(environment={"BNB_CUDA_VERSION": "118"}), {"BNB_CUDA_VERSION": None}),
    "proxy_for_localhost": (
        linux(environment={"https_proxy": "http://proxy:8080", "no_proxy": "intern"}),
        {"NO_PROXY": "intern,127.0.0.1,localhost"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_repair_is_made_where_it_is_needed(name):
    machine, expected = CASES[name]
    assert changes(machine)[name] == expected
    assert name not in changes(machine, off=(name,))


def test_a_healthy_machine_is_left_as_it_is():
    for machine in (make_machine(make_gpu()), make_machine(), windows()):
        assert changes(machine) == {}


def test_a_setup_that_works_is_left_in_peace():
    machine, _ = CASES["drop_assembler"]
    assert changes(dataclasses.replace(machine, triton_level="right")) == {}


@pytest.mark.parametrize(("triton", "left"), [("3.1.0.post17", True), ("3.7.1.post27", False)])
def test_an_older_triton_keeps_the_tools_that_it_needs(triton, left):
    """Before a start nothing was proved yet: CUDA 12.4 with Triton 3.1 works with the person's own compiler alone."""
    machine = windows(
        packages={"torch": "2.5.1+cu124", "triton-windows": triton},
        environment={"CUDA_PATH": r"C:\CUDA\v12.4", "VCINSTALLDIR": r"C:\VS", "CC": r"C:\VS\cl.exe"},
    )
    assert (changes(machine) == {}) is left


def test_an_older_assembler_that_serves_stays_and_one_too_old_for_a_new_card_goes():
    environment = {"TRITON_PTXAS_PATH": "/cuda-12.4/bin/ptxas"}
    assert changes(linux(environment=environment, assemblers=OLD_TOOLS)) == {}
    new_card = make_machine(
        make_gpu(capability=(12, 0)), triton_level="importable", environment=environment, assemblers=OLD_TOOLS
    )
    assert changes(new_card) == {"drop_assembler": {"TRITON_PTXAS_PATH": None}}


def test_an_assembler_that_does_not_answer_goes():
    assert "drop_assembler" in changes(linux(environment={"TRITON_PTXAS_PATH": "/nowhere/ptxas"}))


def test_a_compiler_on_linux_goes_only_when_it_is_not_there():
    assert changes(linux(environment={"CC": "/usr/bin/gcc-12"})) == {}
    assert "drop_compiler" in changes(linux(environment={"CC": "/gone/gcc"}, dead_overrides=("CC",)))


def test_hidden_cards_are_shown_only_when_the_person_wants_it():
    machine = make_machine(environment={"CUDA_VISIBLE_DEVICES": "-1"})
    assert changes(machine) == {}
    assert changes(machine, on=("show_gpus",)) == {"show_gpus": {"CUDA_VISIBLE_DEVICES": None}}
    assert (
        changes(make_machine(make_gpu(), environment={"CUDA_VISIBLE_DEVICES": "0"}), on=("show_gpus",)) == {}
    )


def test_variables_are_matched_without_case_and_the_rest_stays():
    machine, _ = CASES["drop_compiler"]
    environment = apply_repairs({"cc": "gcc", "Path": "x", "VCINSTALLDIR": "y"}, choose_repairs(machine))
    assert environment == {"Path": "x"}


def test_every_repair_has_its_words_in_both_languages():
    for language in LANGUAGES:
        words = load_catalogue(language)
        for repair in REPAIRS:
            assert words.has(f"repair.{repair.name}")
    for machine, _ in CASES.values():
        for repair in choose_repairs(machine):
            said = load_catalogue("en").say(repair.message)
            assert (
                "{" not in said
                and next(iter(repair.changes)) in said
                or repair.name in ("own_triton_tools", "plain_temp", "wsl_library_path")
            )
