"""What is set right in the environment of our own process before it starts; the system itself is never changed.

Pure: facts in, changes of environment variables out. Every repair that is applied is told and can be switched off.
"""

from __future__ import annotations

import hashlib
import ntpath
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from studio.core.facts import MachineFacts
from studio.core.i18n import Text, text
from studio.core.json_file import parse_json
from studio.machine.versions import installed_triton, minor_of

APPLIED_VARIABLE = "FINETUNE_STUDIO_REPAIRED"
"""In it a repaired process finds, as JSON, what each repair changed: {repair: {variable: value before or null}}."""
COMPILER_OVERRIDES = ("CC", "CXX", "VCINSTALLDIR", "VCTOOLSVERSION", "VCTOOLSINSTALLDIR")
TOOLKIT_OVERRIDES = ("CUDA_PATH", "CUDA_HOME")
ASSEMBLER_OVERRIDES = (
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS.EXE_PATH",
    "TRITON_PTXAS_BLACKWELL.EXE_PATH",
)
OLDEST_ASSEMBLER = (12, 0)
"""Triton 3.1 to 3.9 write PTX for the assembler that they find, down to CUDA 12.0; 10.2 and 11 do not know it."""
BLACKWELL_ASSEMBLER = (12, 8)
OWN_TOOLS_SINCE = (3, 3)
"""From here on every Triton for Windows brings its compiler, headers and assembler along (headers since 3.2.0.post11,
the compiler since post13); an older one needs the person's own, and works with them."""
WSL_LIBRARIES = "/usr/lib/wsl/lib"
CUDA_LIBRARY_NAMES = (
    "libcudart",
    "libcublas",
    "libcudnn",
    "libnvrtc",
    "libnvJitLink",
    "libcusparse",
    "libnccl",
)

Changes = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that can be set right, in the words of `repair.NAME`, and of `repair.NAME.off` where it is left."""

    name: str
    find: Callable[[MachineFacts], Changes]
    """Variable -> its new value, None to remove it; empty where there is nothing to do."""
    automatic: bool = True
    """False: only when the person switched it on, because it may not be what they want."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A repair with the changes that it makes here."""

    name: str
    changes: Changes

    @property
    def message(self) -> Text:
        """What is done, in words."""
        names = ", ".join(self.changes)
        values = [value for value in self.changes.values() if value]
        return text(f"repair.{self.name}", names=names, value=values[0] if values else "")


def choose_repairs(
    machine: MachineFacts, off: Collection[str] = (), on: Collection[str] = ()
) -> tuple[Applied, ...]:
    """Return the repairs that `machine` needs, without those switched `off` and with those switched `on`."""
    chosen = []
    for repair in REPAIRS:
        if repair.name in off or not (repair.automatic or repair.name in on):
            continue
        changes = repair.find(machine)
        if changes:
            chosen.append(Applied(repair.name, changes))
    return tuple(chosen)


def apply_repairs(environment: Mapping[str, str], applied: tuple[Applied, ...]) -> dict[str, str]:
    """Return `environment` with the changes of `applied` made. Names match without case, as Windows' do."""
    result = dict(environment)
    for repair in applied:
        for name, value in repair.changes.items():
            for present in [key for key in result if key.upper() == name.upper()]:
                del result[present]
            if value is not None:
                result[name] = value
    return result


def restore_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` as it was before our repairs."""
    original = {name: value for name, value in environment.items() if name != APPLIED_VARIABLE}
    for changes in read_applied(environment).values():
        for name, value in changes.items():
            # What a repair set may be spelled otherwise: NO_PROXY for the person's no_proxy.
            for present in [key for key in original if key.upper() == name.upper()]:
                del original[present]
            if value is not None:
                original[name] = value
    return original


def read_applied(environment: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """Return what each repair changed in `environment`: name -> {variable: value before, None for unset}."""
    try:
        found = parse_json(environment.get(APPLIED_VARIABLE, "{}"))
        return {str(name): dict(changes) for name, changes in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _present(machine: MachineFacts, names: tuple[str, ...]) -> dict[str, None]:
    known = {name.upper() for name in machine.environment}
    return {name: None for name in names if name.upper() in known}


def _works(machine: MachineFacts) -> bool:
    """Whether Triton was proved right as things are: a setup that works is left in peace."""
    return machine.triton_level == "right" and not machine.repairs


def _brings_tools(machine: MachineFacts) -> bool:
    """Whether this Triton for Windows needs no compiler and no CUDA of the person's."""
    triton = minor_of(installed_triton(machine))
    return triton is None or triton >= OWN_TOOLS_SINCE


def _drop_compiler(machine: MachineFacts) -> Changes:
    if _works(machine):
        return {}
    if machine.system == "Windows":
        if "own_triton_tools" in machine.repairs or _own_triton_tools(machine):
            return {}
        if _brings_tools(machine):
            return _present(machine, COMPILER_OVERRIDES)
        return _present(machine, tuple(name for name in ("CC", "CXX") if name in machine.dead_overrides))
    # Elsewhere Triton brings no compiler along: only one that is not there is worse than none.
    return {"CC": None} if "CC" in machine.dead_overrides else {}


def _drop_toolkit(machine: MachineFacts) -> Changes:
    if machine.system != "Windows" or _works(machine) or _own_triton_tools(machine):
        return {}
    return _present(machine, TOOLKIT_OVERRIDES) if _brings_tools(machine) else {}


def _drop_assembler(machine: MachineFacts) -> Changes:
    """Overrides that name an assembler which cannot serve; a working older one stays."""
    if _works(machine):
        return {}
    needed = OLDEST_ASSEMBLER
    if any(gpu.capability >= (10, 0) for gpu in machine.gpus):
        needed = BLACKWELL_ASSEMBLER
    releases = {tool.path: minor_of(tool.release) for tool in machine.assemblers}
    bad = {}
    for name in _present(machine, ASSEMBLER_OVERRIDES):
        release = releases.get(_value(machine, name))
        if release is None or release < needed:
            bad[name] = None
    return bad | _present(machine, ("PTXAS_OPTIONS", "TRITON_USE_SYSTEM_PTXAS"))


def _value(machine: MachineFacts, name: str) -> str:
    return next((value for key, value in machine.environment.items() if key.upper() == name.upper()), "")


def _own_triton_tools(machine: MachineFacts) -> Changes:
    """Triton outside the interpreter's own package folder does not find the compiler and headers it brings along."""
    if machine.system != "Windows" or machine.triton_in_platlib or not machine.triton_folder:
        return {}
    folder = machine.triton_folder
    return {
        "CC": ntpath.join(folder, "runtime", "tcc", "tcc.exe"),
        "CUDA_PATH": ntpath.join(folder, "backends", "nvidia"),
    }


def _plain_temp(machine: MachineFacts) -> Changes:
    """Triton's compiler reads paths in the ANSI code page: temporary files and kernels go where it can."""
    if machine.system != "Windows":
        return {}
    temp, cache = machine.places.get("temp"), machine.places.get("triton_cache")
    unreadable = any(place is not None and not place.ansi for place in (temp, cache))
    # Inductor's names add some 160 characters, and Windows ends a path at 260.
    long = cache is not None and cache.length > 90 and not (machine.windows and machine.windows.long_paths)
    if not unreadable and not long:
        return {}
    # Everybody may make folders in ProgramData: each person gets one, which environment.py closes to others.
    person = (
        hashlib.sha256(machine.places["home"].path.encode()).hexdigest()[:8]
        if "home" in machine.places
        else ""
    )
    name = "-".join(filter(None, ["finetune-studio", person]))
    folder = ntpath.join(machine.environment.get("PROGRAMDATA", r"C:\ProgramData"), name)
    changes = {"TRITON_CACHE_DIR": ntpath.join(folder, "triton")}
    # TMPDIR goes before the two in Python, and our own environment sets it.
    names = ("TMPDIR", "TEMP", "TMP") if unreadable else ()
    return changes | dict.fromkeys(names, ntpath.join(folder, "tmp"))


def _clean_library_path(machine: MachineFacts) -> Changes:
    name = "PATH" if machine.system == "Windows" else "LD_LIBRARY_PATH"
    separator = ";" if machine.system == "Windows" else ":"
    if machine.system == "Windows" or not machine.environment.get(name) or _works(machine):
        return {}
    parts = machine.environment[name].split(separator)
    kept = [part for part in parts if part not in machine.shadows]
    return {} if len(kept) == len(parts) else {name: separator.join(kept) or None}


def _wsl_library_path(machine: MachineFacts) -> Changes:
    guest = machine.guest
    if guest is None or not guest.dxg or guest.libcuda.startswith(WSL_LIBRARIES):
        return {}
    rest = [part for part in machine.environment.get("LD_LIBRARY_PATH", "").split(":") if part]
    kept = [part for part in rest if part not in machine.shadows and part != WSL_LIBRARIES]
    return {
        "LD_LIBRARY_PATH": ":".join([WSL_LIBRARIES, *kept]),
        "TRITON_LIBCUDA_PATH": WSL_LIBRARIES,
    }


def _wsl_nccl(machine: MachineFacts) -> Changes:
    return {"NCCL_P2P_DISABLE": "1"} if machine.guest is not None and len(machine.gpus) > 1 else {}


def _drop_bitsandbytes_version(machine: MachineFacts) -> Changes:
    return _present(machine, ("BNB_CUDA_VERSION", "BNB_ROCM_VERSION"))


def _except_localhost(machine: MachineFacts) -> Changes:
    """The window is on 127.0.0.1: a proxy between browser helpers and it breaks the start."""
    named = {name.upper(): value for name, value in machine.environment.items()}
    if not any(named.get(name) for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")):
        return {}
    present = named.get("NO_PROXY", "")
    hosts = present.replace(" ", "").split(",")
    lacking = [host for host in ("127.0.0.1", "localhost") if host not in hosts and hosts != ["*"]]
    return {"NO_PROXY": ",".join(filter(None, [present, *lacking]))} if lacking else {}


def _show_gpus(machine: MachineFacts) -> Changes:
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": None} if hidden is not None and hidden.strip() in ("", "-1") else {}


REPAIRS: tuple[Repair, ...] = (
    Repair("own_triton_tools", _own_triton_tools),
    Repair("drop_compiler", _drop_compiler),
    Repair("drop_toolkit", _drop_toolkit),
    Repair("drop_assembler", _drop_assembler),
    Repair("plain_temp", _plain_temp),
    Repair("wsl_library_path", _wsl_library_path),
    Repair("clean_library_path", _clean_library_path),
    Repair("wsl_nccl", _wsl_nccl),
    Repair("drop_bitsandbytes_version", _drop_bitsandbytes_version),
    Repair("proxy_for_localhost", _except_localhost),
    Repair("show_gpus", _show_gpus, automatic=False),
)
