"""Triton's levels with the real Triton: a foreign assembler, an invented driver, imports that fail, hang or die."""

import os
from types import SimpleNamespace

import pytest

from studio.machine.detect import detect, look_around
from studio.machine.nvml import Driver
from studio.machine.probes import graphics, triton_levels
from studio.machine.probes.child import run_child
from studio.machine.repairs import apply_repairs, choose_repairs
from studio.planning.doctor_report import find_problems
from tests.each_time import rarely
from tests.machine.probes.tools import OLD_ASSEMBLER, build_libcuda, make_program, site_with, when_imported

TRITON = "studio.machine.probes.triton_levels"
DLL = "DLL load failed while importing libtriton: A dynamic link library (DLL) initialization routine failed."


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment with a cache of its own, in which every kernel is compiled anew."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "CUDA_", "CC"))}
    return plain | {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_ALWAYS_COMPILE": "1"}


@pytest.mark.computing
def test_it_compiles_without_a_gpu(environment):
    answer = run_child(TRITON, ["cuda:75", "cuda:120"], timeout_s=60, environment=environment)
    assert answer.error == ""
    assert answer.facts["triton_level"] == "compiles"
    assert answer.facts["triton_assembler"]["path"].endswith("ptxas")
    assert float(answer.facts["triton_assembler"]["release"]) >= 12


def test_the_interpreter_is_named(environment):
    answer = run_child(TRITON, ["cuda:80"], timeout_s=60, environment=environment | {"TRITON_INTERPRET": "1"})
    assert answer.facts["triton_level"] == "importable" and answer.error.startswith("TRITON_INTERPRET is set")


@pytest.mark.computing
def test_an_old_assembler_is_named_and_taken_away(environment, tmp_path):
    """Row 3 of what this must show: CUDA 10.2's ptxas on PATH and in TRITON_PTXAS_PATH."""
    old = make_program(tmp_path / "cuda-10.2", "ptxas", OLD_ASSEMBLER)
    spoiled = environment | {
        "PATH": f"{old.parent}{os.pathsep}{environment['PATH']}",
        "TRITON_PTXAS_PATH": str(old),
    }
    facts = detect(environment=spoiled, workspace_root=tmp_path / "workspace")
    assert facts.triton_level == "importable"
    assert facts.triton_error.startswith("PTXASError: ") and "Unsupported .version" in facts.triton_error
    assert facts.assemblers[0].path == str(old) and facts.assemblers[0].release == "10.2"
    assert facts.triton_assembler == facts.assemblers[0]
    problem = next(found for found in find_problems(facts) if found["code"] == "S2a")
    assert str(old) in problem["evidence"].values["words"] and problem["auto"]

    applied = choose_repairs(facts)
    repaired = apply_repairs(spoiled, applied)
    assert [each.name for each in applied] == ["drop_assembler"]
    answer = run_child(TRITON, ["cuda:80"], timeout_s=60, environment=repaired)
    assert answer.error == "" and answer.facts["triton_level"] == "compiles"


@pytest.mark.computing
def test_an_invented_card_is_seen_and_the_helper_is_built(environment, tmp_path, monkeypatch):
    """A driver that answers but runs nothing: compiling, linking and loading work as on a real machine."""
    folder = build_libcuda(tmp_path / "driver")
    with_driver = environment | {"LD_LIBRARY_PATH": str(folder), "TRITON_LIBCUDA_PATH": str(folder)}
    monkeypatch.setattr(graphics, "read_driver", lambda environment: Driver())
    monkeypatch.setattr(graphics, "ask_smi", lambda here: Driver())
    facts = look_around(with_driver)
    assert [(gpu.name, gpu.capability, gpu.vram_bytes) for gpu in facts.gpus] == [
        ("Invented RTX 2080 Ti", (7, 5), 11 << 30)
    ]
    assert facts.driver_cuda == (12, 8)
    answer = run_child(TRITON, ["--helper", "cuda:75"], timeout_s=60, environment=with_driver)
    assert answer.error == "" and answer.facts["triton_level"] == "compiles"


def test_a_compiler_that_is_not_there_stops_the_helper_only(environment, tmp_path):
    folder = build_libcuda(tmp_path / "driver")
    spoiled = environment | {
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "CC": str(tmp_path / "no" / "gcc"),
    }
    assert look_around(spoiled).dead_overrides == ("CC",)
    answer = run_child(TRITON, ["--helper", "cuda:75"], timeout_s=60, environment=spoiled)
    assert answer.facts["triton_level"] == "compiles"
    assert "FileNotFoundError" in answer.error and "gcc" in answer.error


@pytest.mark.parametrize(
    "what, error, timed_out",
    [
        (f"raise ImportError({DLL!r})", DLL, False),
        rarely("time.sleep(600)", "did not answer within 3 s", True),
        ("os._exit(0xC5)", "exit code 197", False),
        ("os.abort()", "SIGABRT", False),
    ],
)
def test_an_import_that_fails_hangs_or_dies_is_a_result(environment, tmp_path, what, error, timed_out):
    site = site_with(tmp_path / "site", when_imported("triton._C.libtriton", what))
    spoiled = environment | {"PYTHONPATH": site["PYTHONPATH"]}
    answer = run_child(TRITON, ["cuda:80"], timeout_s=3 if timed_out else 60, environment=spoiled)
    assert error in answer.error
    assert answer.timed_out == timed_out
    assert "triton_level" not in answer.facts


def test_the_number_of_a_dll_that_does_not_load(tmp_path, monkeypatch):
    """Windows translates the words of an ImportError; the number is in what loading the library by itself raises."""
    (tmp_path / "triton" / "_C").mkdir(parents=True)
    (tmp_path / "triton" / "_C" / "libtriton.pyd").touch()

    def load(path):
        error = OSError(22, "Eine DLL-Initialisierungsroutine ist fehlgeschlagen")
        error.winerror = 1114
        raise error

    spec = SimpleNamespace(origin=str(tmp_path / "triton" / "__init__.py"))
    monkeypatch.setattr(triton_levels.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(triton_levels.ctypes, "WinDLL", load, raising=False)
    said = triton_levels.read_load_error()
    assert said == "[WinError 1114] Eine DLL-Initialisierungsroutine ist fehlgeschlagen"
    monkeypatch.setattr(triton_levels.ctypes, "WinDLL", lambda path: None, raising=False)
    assert triton_levels.read_load_error() == ""


def test_the_compiler_that_triton_takes(tmp_path, monkeypatch):
    tiny = tmp_path / "runtime" / "tcc" / "tcc.exe"
    tiny.parent.mkdir(parents=True)
    tiny.touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("VCINSTALLDIR", raising=False)
    assert triton_levels.find_compiler(tmp_path, windows=True) == str(tiny)
    monkeypatch.setenv("VCINSTALLDIR", r"C:\VC")
    monkeypatch.setattr(triton_levels.shutil, "which", lambda name: {"cl": "cl.exe"}.get(name))
    assert triton_levels.find_compiler(tmp_path, windows=True) == "cl.exe"
    monkeypatch.setenv("CC", "/opt/cc")
    assert triton_levels.find_compiler(tmp_path, windows=True) == "/opt/cc"
