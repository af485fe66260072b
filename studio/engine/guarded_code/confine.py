"""In a child, before foreign code is loaded: what the process may still do, as far as this system can forbid it.

Memory, open files and the size of written ones by setrlimit; new processes and sockets by an audit hook, which says
so in words, and on Linux by a seccomp filter, which code of C cannot pass either. Windows limits memory and processes
by a job object, which the parent holds (job_object.py).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

WRITTEN_BYTES = 100 * 2**20
OPEN_FILES = 256
NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
PROCESSES = (
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
)
"""Python's audit events."""
SYSCALLS = {
    "x86_64": (0xC000003E, {"clone": 56, "fork": 57, "vfork": 58, "clone3": 435, "socket": 41}),
    "aarch64": (0xC00000B7, {"clone": 220, "clone3": 435, "socket": 198}),
}
"""Machine -> its number in linux/audit.h, and those of its system calls."""
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
"""Of linux/bpf_common.h: BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K."""
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
"""SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO, the error's number added."""
EPERM, ENOSYS, EACCES = 1, 38, 13
CLONE_THREAD, AF_UNIX = 0x10000, 1
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2
"""Of linux/prctl.h and linux/seccomp.h."""
AT_NUMBER, AT_MACHINE, AT_ARGUMENT = 0, 4, 16
"""Where seccomp_data has a call's number, its machine and its first argument's low word."""


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32),
    )  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def confine(*, memory_bytes: int, network: bool, processes: bool) -> None:
    """Limit this process for good."""
    if sys.platform != "win32":
        _limit(memory_bytes, processes)
    forbidden = (() if network else NETWORK) + (() if processes else PROCESSES)
    if forbidden:
        _watch(frozenset(forbidden))
    if sys.platform == "linux" and forbidden and platform.machine() in SYSCALLS:
        _filter_calls(network, processes)


def _limit(memory_bytes: int, processes: bool) -> None:
    import resource

    wanted = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, WRITTEN_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ]
    # On Linux it counts what is written to, not what libraries reserve: torch reserves 10 GB and uses a tenth.
    wanted += [(resource.RLIMIT_DATA, memory_bytes)]
    if sys.platform != "linux" and not processes:
        wanted += [
            (resource.RLIMIT_NPROC, 1)
        ]  # counts all processes of the user, so that no further one starts
    for kind, most in wanted:
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def _watch(forbidden: frozenset[str]) -> None:
    """Let Python itself refuse the events `forbidden`: a hook cannot be taken out again."""

    def hook(event: str, given: tuple[object, ...]) -> None:
        if event in forbidden:
            kind = "start other programs" if event in PROCESSES else "use the network"
            raise PermissionError(f"this code may not {kind} ({event})")

    sys.addaudithook(hook)


def _filter_calls(network: bool, processes: bool) -> None:
    """Let the kernel refuse new processes and sockets, but for those within this machine.

    A kernel that knows no filters leaves the hook alone to it.
    """
    machine, numbers = SYSCALLS[platform.machine()]
    steps: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, AT_MACHINE), (JUMP_EQUAL, 1, 0, machine)]
    steps += [(RETURN, 0, 0, ALLOW), (LOAD, 0, 0, AT_NUMBER)]
    if not processes:
        for name in ("fork", "vfork"):
            if name in numbers:
                steps += [(JUMP_EQUAL, 0, 1, numbers[name]), (RETURN, 0, 0, REFUSE | EPERM)]
        # Its flags stand in memory, where no filter looks: the C library then takes clone, whose flags are arguments.
        steps += [(JUMP_EQUAL, 0, 1, numbers["clone3"]), (RETURN, 0, 0, REFUSE | ENOSYS)]
        steps += [(JUMP_EQUAL, 0, 4, numbers["clone"]), (LOAD, 0, 0, AT_ARGUMENT)]
        steps += [(JUMP_SET, 0, 1, CLONE_THREAD), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | EPERM)]
    if not network:
        steps += [(JUMP_EQUAL, 0, 4, numbers["socket"]), (LOAD, 0, 0, AT_ARGUMENT)]
        steps += [(JUMP_EQUAL, 0, 1, AF_UNIX), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | EACCES)]
    steps += [(RETURN, 0, 0, ALLOW)]
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), instructions)
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    library.prctl(SET_SECCOMP, ctypes.c_ulong(FILTER), ctypes.byref(program))


def clean_environment(folder: str, seed: int) -> dict[str, str]:
    """Return the environment of a child: what a Python needs to start, and nothing that a person has set."""
    kept = ("PATH", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "LD_LIBRARY_PATH")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    homes = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME"), folder)
    return found | homes | {
        "LANG": "C.UTF-8", "PYTHONHASHSEED": str(seed % 2**32), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip
