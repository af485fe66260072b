"""Environment variables that decide what happens here, as the person has them."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Any

from studio.hub.offline import OFFLINE, OFFLINE_VARIABLE
from studio.installer.pip_errors import hide_secrets
from studio.machine.probes.probe_context import PROGRAM, ProbeContext
from studio.machine.repairs import ASSEMBLER_OVERRIDES, COMPILER_OVERRIDES, TOOLKIT_OVERRIDES, read_applied
from studio.machine.wsl_lease import BRIDGE_VARIABLE

NETWORK = (
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    *OFFLINE,
    "HF_HUB_DISABLE_XET",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)
"""What decides how the hub is reached, and nothing of what runs here."""
VARIABLES = (
    *NETWORK,
    *COMPILER_OVERRIDES,
    *TOOLKIT_OVERRIDES,
    *ASSEMBLER_OVERRIDES,
    "PTXAS_OPTIONS",
    "TRITON_USE_SYSTEM_PTXAS",
    "TRITON_LIBCUDA_PATH",
    "TRITON_INTERPRET",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "BNB_CUDA_VERSION",
    "BNB_ROCM_VERSION",
    "NCCL_P2P_DISABLE",
    "KMP_DUPLICATE_LIB_OK",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUTF8",
    "CONDA_PREFIX",
    "TEMP",
    "TMP",
    "TMPDIR",
    "LOCALAPPDATA",
    "PROGRAMDATA",
    "WSL_DISTRO_NAME",
    "FINETUNE_STUDIO_KERNELS",
    "FINETUNE_STUDIO_MEMORY_SHARE",
    BRIDGE_VARIABLE,
)
ADDRESSES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_ENDPOINT")
LOWER_CASE_TOO = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
PROGRAMS = ("CC", "CXX", *ASSEMBLER_OVERRIDES)


def look(here: ProbeContext) -> dict[str, Any]:
    """Return the variables of VARIABLES that are set, the repairs made, and the overrides that name no program."""
    found = {name: here.read(name) for name in VARIABLES if _is_set(here, name)}
    for name in LOWER_CASE_TOO:
        if name not in found and here.system != "Windows" and name.lower() in here.environment:
            found[name.lower()] = here.environment[name.lower()]
    # An address may hold the password of a proxy: facts are shown, kept and passed on.
    found = {
        name: _hide_password(value) if name.upper() in ADDRESSES else value for name, value in found.items()
    }
    # The supervisor lets its children find the program by PYTHONPATH.
    own = {str(PROGRAM), str(PROGRAM / "kernels")}
    if "PYTHONPATH" in found:
        entries = found.pop("PYTHONPATH").split(os.pathsep)
        theirs = [entry for entry in entries if entry and entry not in own]
        found |= {"PYTHONPATH": os.pathsep.join(theirs)} if theirs else {}
    # The studio keeps its own processes off the hub: that is no wish of the person's.
    if here.environment.get(OFFLINE_VARIABLE) == "0":
        found.pop("HF_HUB_OFFLINE", None)
    return {
        "environment": found,
        "repairs": tuple(read_applied(here.effective)),
        "dead_overrides": tuple(
            name for name in PROGRAMS if found.get(name) and not is_program(found[name], here.read("PATH"))
        ),
    }


def is_program(value: str, search_path: str) -> bool:
    """Return whether `value`, as CC would hold it (a path or name, maybe with arguments), names a program."""
    if shutil.which(value, path=search_path):
        return True
    try:
        words = shlex.split(value, posix=os.name != "nt")
    except ValueError:  # a quotation mark without its partner
        return False
    return len(words) > 1 and shutil.which(words[0].strip('"'), path=search_path) is not None


def _hide_password(address: str) -> str:
    return hide_secrets(address) if "//" in address else address.rpartition("@")[2]


def _is_set(here: ProbeContext, name: str) -> bool:
    return bool(here.read(name)) or name in here.environment
