"""Failures of the tools around Triton, above all on Windows: compiler, folders, virus scanners, policies."""

from __future__ import annotations

import ntpath
import re
from collections.abc import Mapping

from studio.core.facts import MachineFacts
from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import (
    SHADOWED_PACKAGES,
    Values,
    found,
    older,
    triton_package,
    unless_right,
    variable,
)
from studio.machine.failures.remedies import INSTALL, PYTORCH_KERNELS, REBUILD, RESTART, RESUME, UPDATE_DRIVER
from studio.machine.repairs import TOOLKIT_OVERRIDES

BUILDS = re.compile(
    r"[\\/]triton[\\/](?:runtime[\\/]build|common[\\/]build|backends[\\/]\w+[\\/]driver)\.py$"
)
LONGEST_PATH = 250
INDUCTOR_NAME_LENGTH = 160


def _hidden_tools(machine: MachineFacts) -> Values | None:
    outside = machine.system == "Windows" and triton_package(machine) and not machine.triton_in_platlib
    return found(f"Triton lies in {machine.triton_folder}") if outside else None


def _dead_compiler(machine: MachineFacts) -> Values | None:
    dead = [name for name in ("CC", "CXX") if name in machine.dead_overrides]
    return found(f"{variable(machine, *dead) or dead[0]} is not a program") if dead else None


def _read_compiler_called(reading: Reading) -> Mapping[str, str] | None:
    """A program that Triton's own builder starts and the system does not find: the C compiler."""
    raised = reading.last
    if (
        raised is None
        or raised.type != "FileNotFoundError"
        or not re.search(r"\b(?:WinError|Errno) 2\]", raised.message)
    ):
        return None
    asked = next((frame for frame in reversed(raised.frames) if frame.package != "python"), None)
    return {} if asked is not None and BUILDS.search(asked.path) else None


def _unreadable_path(machine: MachineFacts) -> Values | None:
    if machine.system != "Windows" or not triton_package(machine):
        return None
    for name in ("temp", "triton_cache", "home"):
        place = machine.places.get(name)
        if place is not None and not place.ansi:
            return found(f"{name}: {place.path}")
    return None


def _long_path(machine: MachineFacts) -> Values | None:
    cache = machine.places.get("triton_cache")
    if machine.system != "Windows" or cache is None or (machine.windows and machine.windows.long_paths):
        return None
    too_long = cache.length + INDUCTOR_NAME_LENGTH > LONGEST_PATH
    return found(f"{cache.path} has {cache.length} characters") if too_long else None


def _unwritable_cache(machine: MachineFacts) -> Values | None:
    for name in ("triton_cache", "temp"):
        place = machine.places.get(name)
        if place is not None and not place.writable:
            return found(f"{name}: {place.path}")
    return None


def _policy(machine: MachineFacts) -> Values | None:
    on = machine.windows is not None and machine.windows.app_control == "on"
    return found("Smart App Control is on") if on else None


def _shadow(machine: MachineFacts) -> Values | None:
    for path in machine.shadows:
        if ntpath.basename(path.rstrip("\\/")).lower() in SHADOWED_PACKAGES:
            return found(path)
    return None


def _ancient_bitsandbytes(machine: MachineFacts) -> Values | None:
    version = machine.packages.get("bitsandbytes", "")
    return found(f"bitsandbytes {version}") if older(version, (0, 43)) else None


def _toolkit_override(machine: MachineFacts) -> Values | None:
    if machine.system != "Windows" or not triton_package(machine) or "own_triton_tools" in machine.repairs:
        return None
    named = variable(machine, *TOOLKIT_OVERRIDES)
    return found(named) if named else None


def _useless_variable(machine: MachineFacts) -> Values | None:
    named = variable(machine, "TRITON_USE_SYSTEM_PTXAS")
    return found(named) if named else None


def _store_python(machine: MachineFacts) -> Values | None:
    interpreter = machine.interpreter
    return found(interpreter.executable or "WindowsApps") if interpreter.kind == "store" else None


def _other_console(machine: MachineFacts) -> Values | None:
    plain = machine.system == "Windows" and not machine.interpreter.utf8
    return found(f"code page {machine.windows.code_page if machine.windows else '?'}") if plain else None


WRITTEN = said(
    r"^(?![^\n]*\bstd(?:out|err)\.)[^\n]*(?:\b(?:f|fp|fh|fo|fw|fout|file|out|outfile|fd|\w+_file)\.write(?:lines)?|"
    r"json\.dump|\.writerows?|\.to_(?:csv|json))\([^\n]*\n(?:[^\n]*\n){0,6}?[^\n]{0,40}UnicodeEncodeError",
)
"""A file of the program's own that is written in the system's encoding: no console has a part in it."""

FAILURES = (
    Failure(
        "triton_folder_denied",
        said(
            r"WinError 5\b.{0,200}[\\/.]triton",
            r"(?:PermissionError|Errno 13).{0,200}[\\/]\.?triton[\\/]",
            r"(?:PermissionError|Errno 13).{0,200}torchinductor",
        ),
        (Remedy("kernel_folder"), PYTORCH_KERNELS),
        code="T7",
        probe=unless_right(_unwritable_cache),
        subject="triton",
        repair="plain_temp",
    ),
    Failure(
        "security_policy",
        said(r"WinError (?:4551|1260)\b", r"0xc0e90002"),
        (PYTORCH_KERNELS,),
        code="T9",
        probe=unless_right(_policy),
        severity="note",
    ),
    Failure(
        "compiler_path",
        said(r"tcc: error: (?:could not create|file '[^'\n]*\?\?)", r"WinError 123\b[^\n]*[\\/.]triton"),
        (Remedy("short_workspace"), PYTORCH_KERNELS),
        code="T4",
        probe=unless_right(_unreadable_path),
        subject="triton",
        repair="plain_temp",
    ),
    Failure(
        "triton_cache_stale",
        said(r"PY_SSIZE_T_CLEAN", r"Module use of python3\d+\.dll conflicts"),
        (Remedy("clear_kernel_cache"), PYTORCH_KERNELS),
        code="T14",
    ),
    Failure(
        "tools_altered",
        said(
            r"tccdefs\.h:\d+: error",
            r"cuda_utils\.c:1: error: (?:declaration expected|unrecognized character)",
        ),
        (REBUILD, PYTORCH_KERNELS),
        code="T10",
    ),
    Failure(
        "cuda_path",
        said(
            r"include file 'cuda\.h' not found",
            r"C1083.*'?cuda\.h",
            r"cuda\.h: No such file",
            r"LNK1181.*\bcuda\.lib",
            r"tcc: error: library 'cuda' not found",
            r"ld\.exe: cannot find -lcuda\b",
        ),
        (Remedy("unset_cuda_path"), PYTORCH_KERNELS),
        code="T18",
        probe=unless_right(_toolkit_override),
        subject="triton",
        repair="drop_toolkit",
    ),
    Failure(
        "cuda_utils",
        said(
            r"DLL load failed while importing (?:cuda_utils|__triton_launcher)",
            r"No module named 'cuda_utils",
        ),
        (UPDATE_DRIVER, Remedy("clear_kernel_cache"), PYTORCH_KERNELS),
        code="T1",
    ),
    Failure(
        "no_compiler",
        said(r"Failed to find C compiler", r"No such file or directory: '(?:gcc|cc|x86_64-linux-gnu-gcc)'"),
        reader=_read_compiler_called,
        remedies=(Remedy("install_compiler"), PYTORCH_KERNELS),
        code="T2",
        probe=unless_right(_hidden_tools),
        subject="triton",
        repair="own_triton_tools",
    ),
    Failure(
        "torch_compile",
        said(
            r"InvalidCxxCompiler",
            r"Compiler: cl is not found",
            r"No working C\+\+ compiler found",
            r"Command 'cl' (?:not found|is not)",
        ),
        (PYTORCH_KERNELS,),
        code="T15",
    ),
    Failure(
        "inductor_compile",
        said(r"\bCppCompileError\b[^\n]*"),
        (Remedy("newer_compiler"), Remedy("no_compiling"), Remedy("upgrade_all")),
        code="T40",
        strength=0.6,
    ),
    Failure(
        # The compiler took the source; what it calls lies in no library that it was given.
        "link_symbol",
        said(
            r"error LNK20(?:01|19): unresolved external symbol (?P<name>\S+)",
            r"undefined reference to [`'\u2018](?P<name>[^`'\u2019\n]{1,120})",
            r"ld(?:\.lld)?: (?:error: )?undefined symbol: (?P<name>\S+)",
        ),
        (Remedy("one_compiler"), Remedy("ready_made_build"), Remedy("upgrade_all")),
        code="T41",
        strength=0.9,
        unless=said(r"LNK2001.*__imp_Py", r"tcc: error"),
    ),
    Failure(
        "compiler_override",
        said(
            # A compiler of Perl, of MinGW or of another environment; the system's own one is not at fault.
            r"CalledProcessError: Command '\['[^'\n]*(?:Strawberry|[Mm]in[Gg][Ww]|[Mm]sys|[Cc]ygwin|Perl|"
            r"Rtools|TDM-GCC|Dev-Cpp)"
            r"[^'\n]*(?:gcc|g\+\+|clang|cc)(?:\.exe)?', '[^\n]{0,300}(?:cuda_utils|__triton_launcher|main)\.c",
            r"sorry, unimplemented: 64-bit mode not compiled in",
            r"PermissionError: \[WinError 5\][^\n]*\n[^\n]*cc_cmd",
            # A folder, or several paths, where one compiler belongs.
            r"cc_cmd: \['(?![^'\n;]*(?:cl|cc|gcc|g\+\+|clang|clang\+\+|zig)(?:-\d+)?(?:\.exe)?',)",
        ),
        (Remedy("unset_compiler"), Remedy("compiler_off_path"), PYTORCH_KERNELS),
        code="T3",
        strength=0.9,
        probe=unless_right(_dead_compiler),
        subject="triton",
        repair="drop_compiler",
    ),
    Failure(
        "triton_shadowed",
        said(r"'triton' is not a package"),
        (Remedy("rename_triton"),),
        code="T12",
        probe=_shadow,
        subject="triton",
    ),
    Failure(
        "bitsandbytes_ancient",
        said(r"No module named '?triton\.ops"),
        (INSTALL,),
        code="T13",
        probe=_ancient_bitsandbytes,
        subject="triton",
    ),
    Failure(
        "setuptools_old",
        said(r"has no attribute 'ImpImporter"),
        (Remedy("new_setuptools"), REBUILD),
        code="T11",
    ),
    Failure(
        "earlier_gpu_error",
        said(r"0x80000003", r"\b2147483651\b"),
        (Remedy("blocking_launches"), PYTORCH_KERNELS),
        code="T17",
    ),
    Failure(
        "console_encoding",
        said(
            r"\bUnicodeEncodeError\b",
            r"codec can't encode",
            r"_readerthread[\s\S]{0,2000}codec can't decode",
        ),
        (Remedy("use_launcher"), RESTART),
        code="T5",
        probe=_other_console,
        subject="triton",
        severity="note",
        unless=WRITTEN,
        doubt=Doubt("written_as_local", "print_or_write", asked=True),
    ),
    Failure(
        "written_as_local",
        WRITTEN,
        (Remedy("utf8_mode"), Remedy("write_utf8")),
        code="T27",
    ),
    Failure(
        "read_as_local",
        said(r"'(?:gbk|charmap|mbcs|cp\d+|big5|shift_jis|cp949|euc_kr|gb2312|ascii)' codec can't decode"),
        (Remedy("utf8_mode"), Remedy("open_utf8")),
        code="T22",
    ),
    Failure(
        "path_too_long",
        said(
            r"WinError 206\b",
            r"File name too long",
            r"\[Errno 36\]",
            r"LongPathsEnabled|Windows Long Path support",
            r"could not create '[^'\n]{150,}': No such file or directory",
            # What Windows says of a path of 260 signs and more: no word of its length.
            r"(?:No such file or directory|WinError [23]\][^\n:]*): '[A-Za-z]:\\[^'\n]{262,}'",
        ),
        (Remedy("long_paths"), Remedy("short_workspace")),
        code="T6",
        probe=unless_right(_long_path),
        subject="triton",
        repair="plain_temp",
    ),
    Failure(
        "file_locked",
        said(r"WinError (?:32|33|362|395|1224|1920)\b|\[Errno (?:16|26)\]"),
        (Remedy("allow_in_antivirus"), RESUME),
        code="T8",
    ),
    Failure(
        "system_assembler",
        None,
        (Remedy("unset_system_ptxas"),),
        code="T20",
        probe=unless_right(_useless_variable),
        subject="triton",
        severity="note",
        repair="drop_assembler",
    ),
    Failure(
        "store_python",
        None,
        (Remedy("full_python"),),
        code="T19",
        probe=_store_python,
        subject="triton",
        severity="note",
    ),
)
