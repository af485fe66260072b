"""Failures of the Python installation and of the packages in it."""

from __future__ import annotations

from studio.core.facts import MachineFacts
from studio.installer.python_choice import VERSIONS
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import Values, found, older, read_version
from studio.machine.failures.remedies import INSTALL, REBUILD, RESTART

ARM = ("arm64", "aarch64")


def _unsuited_python(machine: MachineFacts) -> Values | None:
    version = read_version(machine.python)[:2]
    if version and version not in VERSIONS:
        return found(f"Python {machine.python}")
    return None if machine.interpreter.gil else found(f"Python {machine.python} without the global lock")


def _broken_release(machine: MachineFacts) -> Values | None:
    return found("Python 3.13.8") if read_version(machine.python) == (3, 13, 8) else None


def _conda_banner(machine: MachineFacts) -> Values | None:
    return found(machine.interpreter.banner) if "|" in machine.interpreter.banner else None


def _two_owners(machine: MachineFacts) -> Values | None:
    owners = machine.owners.get("torch", ())
    return found("the folder torch belongs to " + ", ".join(owners)) if len(owners) > 1 else None


def _emulated(machine: MachineFacts) -> Values | None:
    native = machine.process_architecture.lower() in ARM
    arm = machine.system == "Windows" and machine.architecture.lower() in ARM
    return found("Python for ARM64 on Windows") if arm and native else None


def _narrow(machine: MachineFacts) -> Values | None:
    bits = machine.interpreter.bits
    return found(f"{machine.interpreter.executable or 'this Python'} has {bits} bits") if bits < 64 else None


def _old_numpy_build(machine: MachineFacts) -> Values | None:
    torch, numpy = machine.packages.get("torch", ""), machine.packages.get("numpy", "")
    if not numpy or not older(torch, (2, 3)) or older(numpy, (2, 0)):
        return None
    return found(f"torch {torch} with NumPy {numpy}")


def _no_torch(machine: MachineFacts) -> Values | None:
    return None if machine.packages.get("torch") else found("torch is not installed")


OLDER_NUMPY = r"compiled against A[BP]I version 0x\w+ but this version of numpy is 0x[0-9a-f]{1,2}\b"
"""Before NumPy 2 these numbers are short: a package refuses only a NumPy that is older than its own."""

FAILURES = (
    Failure(
        "venv_gone",
        said(
            r"No Python at ['\"]",
            r"did not find executable at '[^'\n]*python",
            r"Unable to create process using '[^'\n]*python[^'\n]*': The system cannot find",
        ),
        (Remedy("new_environment"),),
        code="P19",
    ),
    Failure(
        "python_unsuited",
        said(
            r"torch-0\.1\.2(?:\.post\d)?\.tar\.gz",
            r"No module named '?tools\.nnwrap",
            r"No matching distribution found for (?P<doubtful>torch|bitsandbytes|unsloth)(?:==[\d.+\w]+)?\s*$",
            r"requires a different Python",
            r"Package '[^'\n]+' requires .{0,20}Python",
            r"(?:torch|bitsandbytes|tokenizers|pyarrow)\S*\.whl is not a supported wheel on this platform",
            r"None of the wheels? .{0,40}match.{0,60}(?:Python|cp3)",
        ),
        (Remedy("full_python"),),
        code="P1",
        unless=said(r"\(from versions: \d", r"Retrying \(Retry"),
        doubt=Doubt("pip_unreachable", "pip_index", asked=True),
        probe=_unsuited_python,
        subject="python",
        severity="blocked",
    ),
    Failure(
        "python_3138",
        said(r"Python 3\.13\.8[\s\S]{0,400}IndentationError", r"inspect\.getsource[\s\S]{0,300}3\.13\.8"),
        (Remedy("full_python"),),
        code="P2",
        probe=_broken_release,
        subject="python",
        severity="blocked",
    ),
    Failure(
        "python_home",
        said(
            r"No module named '?encodings\b|Failed to import encodings|init_fs_encoding",
            r"Could not find platform (?:in)?dependent libraries",
            r"/bin/python[\d.]*: error while loading shared libraries: [^\n:]*libpython",
        ),
        (Remedy("python_home_off"), Remedy("venv_anew")),
        code="P25",
    ),
    Failure(
        # The new environment's own Python was asked to bring pip, and failed.
        "venv_pip",
        said(r"'-m', 'ensurepip'[^\n]{0,80}returned non-zero|ensurepip[^\n]{0,60}non-zero exit status"),
        (Remedy("venv_package"), Remedy("venv_anew")),
        code="P26",
        unless=said(r"No module named '?encodings|platform (?:in)?dependent libraries"),
        doubt=Doubt("python_home", "ensure_alone"),
    ),
    Failure(
        "python_banner",
        said(r"failed to parse CPython sys\.version"),
        (Remedy("full_python"),),
        code="P3",
        probe=_conda_banner,
        subject="python",
        severity="note",
    ),
    Failure(
        "torch_source",
        said(r"Failed to load PyTorch C extensions"),
        (Remedy("outside_source"), REBUILD),
        code="P27",
    ),
    Failure("two_openmp", said(r"OMP: Error #15"), (REBUILD,), code="P4"),
    Failure(
        "mixed_installers",
        said(r"uninstall-no-record-file", r"Cannot uninstall .{0,40}distutils installed project"),
        (REBUILD,),
        code="P5",
        probe=_two_owners,
        subject="torch",
    ),
    Failure(
        # 0x10 is NumPy 1.23, 0x2000000 NumPy 2; 96 is the size of a dtype since NumPy 2, 88 before it.
        "numpy_old",
        said(
            OLDER_NUMPY,
            r"numpy\.dtype size changed[^\n]*Expected 96 from C header, got 88",
            r"No module named '?numpy\._core",
        ),
        (Remedy("newer_numpy"), REBUILD),
        code="P17",
    ),
    Failure(
        "numpy_names",
        said(
            r"module 'numpy(?:\.[a-z]\w*)*' has no attribute",
            r"`?np\.\w+`? was removed in the NumPy",
            r"cannot import name '\w+' from 'numpy(?:\.\w+)*'",
        ),
        (Remedy("numpy_1"),),
        code="P18",
        unless=said(r"has no attribute '(?:core|_core|__version__|ndarray|dtype)'"),
    ),
    Failure(
        "numpy_abi",
        said(
            r"compiled using NumPy 1",
            r"compiled against A[BP]I version 0x1\w* but this version of numpy is 0x2\d{6}",
            r"(?P<doubtful>numpy\.core\.multiarray failed to import)",
            r"numpy\.dtype size changed(?![^\n]*Expected 96 from C header, got 88)",
            r"_ARRAY_API not found",
            r"Numpy is not available",
        ),
        (REBUILD,),
        unless=said(OLDER_NUMPY),
        doubt=Doubt("numpy_old", "numpy_version", asked=True),
        code="P6",
        probe=_old_numpy_build,
        subject="python",
    ),
    Failure("windows_arm", None, (Remedy("x64_python"),), code="P7", probe=_emulated),
    Failure(
        "python_32bit",
        said(
            r"WinError (?:193|216)\b|\[Errno 8\] Exec format error",
            r"not available from current channels:[\s\S]{0,300}?/(?:win|linux)-32\b",
            r"not a valid Win32 application",
            r"(?:not|no (?:longer|more))[^\n]{0,40}(?:compil|buil|support)\w* (?:on|for) 32[- ]?bit",
        ),
        (Remedy("x64_python"),),
        code="P8",
        probe=_narrow,
        subject="python",
        severity="blocked",
    ),
    Failure(
        "half_imported",
        said(r"partially initialized module '(?:triton|torch|transformers|peft|datasets|trl|bitsandbytes)"),
        (RESTART, REBUILD),
        code="P10",
    ),
    Failure(
        "torch_absent",
        said(r"No module named '?torch(?:'|\s*$)", r"requires the PyTorch library but it was not found"),
        (INSTALL,),
        code="P11",
        probe=_no_torch,
        subject="python",
        severity="blocked",
    ),
    Failure(
        "intel_python",
        said(r"zsh: illegal hardware instruction"),
        (Remedy("arm_python"), REBUILD),
        code="P20",
    ),
    Failure(
        "processor_old",
        said(r"\bSIGILL\b", r"Illegal instruction(?! was encountered)", r"0xC000001D"),
        (REBUILD,),
        code="P12",
    ),
    Failure(
        "unix_module",
        said(r"No module named '(?P<module>fcntl|resource|termios|pwd|grp|pty|_posixsubprocess)'"),
        (Remedy("use_wsl"), Remedy("without_module", needs=("module",))),
        code="P21",
    ),
    Failure(
        "python_part",
        said(r"No module named '(?P<module>_lzma|_ctypes|_bz2|_sqlite3|_ssl|_tkinter|_curses|_uuid|_zstd)'"),
        (Remedy("full_python_again"),),
        code="P22",
    ),
    Failure(
        # A library whose file asks for a stack that may be executed, which glibc 2.41 refuses.
        "executable_stack",
        said(r"cannot enable executable stack as shared object requires"),
        (Remedy("clear_stack"), Remedy("newer_builds")),
        code="P23",
    ),
    Failure(
        # The usual limit of a tokenizer without one is 10 to the 30th; on Windows a C long has 32 bits.
        "number_too_large",
        said(r"Python int too large to convert to C (?:long|int)|int too big to convert"),
        (Remedy("explicit_length"), Remedy("csv_limit")),
        code="P24",
    ),
)
