"""A number or a name of the system alone has a cause: it is spelt out in words that the catalogue knows."""

import pytest

from studio.machine.failures import diagnose
from studio.machine.failures.diagnosis import clean
from studio.machine.failures.system_codes import CUDA, SHELL, SIGNALS, WINDOWS_ENDS, spell_out


def signed(value: int) -> int:
    return value - 2**32


@pytest.mark.parametrize("value", WINDOWS_ENDS)
def test_an_end_on_windows_has_one_cause_however_it_is_written(value):
    ids = {
        diagnose(f"Process finished with exit code {number}").id
        for number in (value, signed(value), f"0x{value:08X}", f"0x{value:08x}")
    }
    assert len(ids) == 1 and ids.isdisjoint({"unknown", "harmless"}), ids


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_signal_has_one_cause_as_python_and_as_a_shell_say_it(signal):
    ids = {diagnose(f"failed (exitcode: {number}) local_rank: 0").id for number in (-signal, 128 + signal)}
    assert len(ids) == 1 and ids.isdisjoint({"unknown", "harmless"}), ids


def test_what_a_shell_says_with_its_own_number():
    assert diagnose("the job exited with code 127").id == "command_missing"
    assert set(SHELL) == {126, 127}


@pytest.mark.parametrize("name", CUDA)
def test_a_cuda_name_alone_has_a_cause_in_both_spellings(name):
    runtime = "cudaError" + "".join(part.capitalize() for part in name.split("_"))
    ids = {diagnose(f"driver call failed: {spelt}").id for spelt in (f"CUDA_ERROR_{name}", runtime)}
    assert ids.isdisjoint({"unknown", "harmless"}), ids


@pytest.mark.parametrize(
    "words",
    [
        "exit code 1",
        "exit code: 2",
        "step 139 of 200, status 3.5",
        "returned non-zero exit status 1.",
        "Segmentation fault\nexit code 139 (SIGSEGV)",
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the manual",
        "RuntimeError: CUDA error: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)",
        "CUDA_ERROR_OF_NOBODY",
    ],
)
def test_what_says_nothing_more_or_is_said_already_stays_as_it_is(words):
    assert spell_out(words) == words
    assert clean(words) == words


def test_the_meaning_stands_behind_the_number():
    assert spell_out("exited with code -9") == "exited with code -9 (SIGKILL)"
    assert (
        spell_out("cudaErrorNoDevice") == "cudaErrorNoDevice (CUDA error: no CUDA-capable device is detected)"
    )
    assert spell_out("IoError(Os { code: 5, kind: PermissionDenied,").endswith(
        "PermissionDenied (Permission denied),"
    )
    assert spell_out("mapping: <torch_1>, error code: <1455>").endswith("<1455> (WinError 1455)")
    assert spell_out("cuda runtime error (30) : unknown error at ./a.cpp:9").endswith(
        "unknown error (CUDA error: unknown error) at ./a.cpp:9"
    )
