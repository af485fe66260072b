"""Sleep and the console's QuickEdit mode are kept off during a run and come back after it, on three systems."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from studio.machine.sleep_inhibitor import keep_awake, without_quick_edit


class FakeKernel:
    """kernel32.dll with one console in `mode`; None is a process without one."""

    def __init__(self, mode: int | None = None) -> None:
        self.mode = mode
        self.calls: list[int] = []

    def SetThreadExecutionState(self, state):  # noqa: N802
        self.calls.append(state)
        return 1

    def GetStdHandle(self, number):  # noqa: N802
        assert number == -10
        return 3

    def GetConsoleMode(self, handle, mode):  # noqa: N802
        if self.mode is None:
            return 0
        mode._obj.value = self.mode
        return 1

    def SetConsoleMode(self, handle, mode):  # noqa: N802
        self.mode = mode
        self.calls.append(mode)
        return 1


def test_windows_stays_awake_and_is_released_even_by_an_error():
    kernel = FakeKernel()
    with pytest.raises(KeyError), keep_awake(system="Windows", kernel32=kernel):
        assert kernel.calls == [0x80000001]
        raise KeyError
    assert kernel.calls == [0x80000001, 0x80000000]


@pytest.mark.parametrize(
    ("system", "program", "words"),
    [
        ("Darwin", "caffeinate", ["-i", "-w", str(os.getpid())]),
        ("Linux", "systemd-inhibit", ["--what=sleep:idle"]),
    ],
)
def test_the_systems_own_program_runs_meanwhile(system, program, words):
    made = []

    def start(argv, **given):
        made.append((argv, subprocess.Popen([sys.executable, "-c", "input()"], **given)))
        return made[0][1]

    with keep_awake(system=system, find=lambda name: f"/bin/{name}", start=start):
        ((argv, helper),) = made
        assert argv[0] == f"/bin/{program}" and argv[1 : len(words) + 1] == words
        assert helper.poll() is None
    assert helper.poll() is not None


def test_it_is_opted_out_of_and_its_absence_is_quiet(capfd):
    def never(*_, **__):
        raise AssertionError("nothing is to be started")

    with keep_awake(False, system="Linux", find=never, start=never):
        pass
    kernel = FakeKernel()
    with keep_awake(False, system="Windows", kernel32=kernel):
        pass
    assert kernel.calls == []
    with keep_awake(system="Linux", find=lambda name: None, start=never):
        pass

    def refuse(*_, **__):
        raise PermissionError

    with keep_awake(system="Linux", find=lambda name: name, start=refuse):
        pass
    with keep_awake(system="Linux", find=lambda name: "/bin/false"):  # ends at once, as without a system bus
        time.sleep(0.2)
    assert capfd.readouterr() == ("", "")


HOLDER = """
import sys, time
from studio.machine.sleep_inhibitor import keep_awake
with keep_awake(system="Linux", find=lambda name: sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_helper_ends_with_a_killed_process(tmp_path):
    fake = tmp_path / "systemd-inhibit"
    fake.write_text("#!/bin/sh\nexec cat\n", encoding="utf-8")
    fake.chmod(0o755)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(fake)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        (helper,) = psutil.Process(holder.pid).children()
    finally:
        holder.kill()
        holder.wait()
    deadline = time.monotonic() + 5
    while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_quick_edit_is_off_meanwhile_and_comes_back():
    kernel = FakeKernel(mode=0x01F7)
    with without_quick_edit(system="Windows", kernel32=kernel):
        assert kernel.mode == 0x01B7  # without 0x40; 0x80 lets the change count
    assert kernel.mode == 0x01F7


@pytest.mark.parametrize("mode", [None, 0x0087])
def test_no_console_and_no_quick_edit_are_left_alone(mode):
    kernel = FakeKernel(mode=mode)
    with without_quick_edit(system="Windows", kernel32=kernel):
        pass
    assert kernel.calls == []
    with without_quick_edit(system="Linux"):
        pass
