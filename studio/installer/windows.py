"""What Windows must bring along for an installation: read here as raw facts, judged in one pure function.

Standard library only, imports nothing of studio, parses and runs on Python 3.8: it works before .venv exists.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

PATH_LIMIT = 259
# "\.venv\Lib\site-packages\" and under it the licence of duktape in torch 2.13's Windows wheel.
LONGEST_FILE = 25 + 167
# libtriton is linked by a compiler whose std::mutex an older msvcp140.dll cannot handle: error 1114 on loading.
RUNTIME_FOR_TRITON = (14, 40)
TORCH_WITH_THREADS_DLL = (2, 14)
LONG_PATHS = r"SYSTEM\CurrentControlSet\Control\FileSystem"
RUNTIMES = r"SOFTWARE\Microsoft\VisualStudio\14.0\VC\Runtimes\x64"
SHORTCUT = r"""
$link = (New-Object -ComObject WScript.Shell).CreateShortcut(
    [Environment]::GetFolderPath('Desktop') + '\Finetune Studio.lnk')
$link.TargetPath = $env:STUDIO_ROOT + '\.venv\Scripts\pythonw.exe'
$link.Arguments = [char]34 + $env:STUDIO_ROOT + '\launch.py' + [char]34
$link.WorkingDirectory = $env:STUDIO_ROOT
$link.Save()
"""


def judge(facts):
    """Return [(id, values)] of what `facts` (of read_facts) stand in the way of, worst first.

    Ids of "install.note.*" are told and the installation goes on; any other ends it.
    """
    found, root = [], facts["root"]
    too_many = len(root) + LONGEST_FILE - PATH_LIMIT
    if too_many > 0 and not facts["long_paths"]:
        found.append(("install.path_too_long", {"folder": root, "count": too_many}))
    runtime = facts["runtime"]
    if runtime is None:
        found.append(("install.no_runtime", {"file": "msvcp140.dll"}))
    elif facts["torch"] >= TORCH_WITH_THREADS_DLL and not facts["threads_dll"]:
        found.append(("install.no_runtime", {"file": "vcruntime140_threads.dll"}))
    elif (0, 0) < runtime < RUNTIME_FOR_TRITON:  # (0, 0): it is there, and does not say what it is
        found.append(("install.note.old_runtime", {"version": ".".join(map(str, runtime))}))
    if too_many <= 0 and not facts["long_paths"]:
        found.append(("install.note.long_paths", {}))
    if any(_lies_in(root, folder) for folder in facts["cloud_folders"]):
        found.append(("install.note.onedrive", {"folder": root}))
    if not facts["root_is_plain"]:
        found.append(("install.note.letters", {"folder": root}))
    return found


def read_facts(root, torch_pin):
    """Return the facts of this Windows for a studio in `root` that installs torch `torch_pin` ("2.13.0")."""
    system = Path(os.environ.get("SystemRoot", r"C:\Windows")) / "System32"
    names = ("OneDrive", "OneDriveConsumer", "OneDriveCommercial")
    return {
        "root": str(root),
        "root_is_plain": _fits_code_page(str(root)),
        "long_paths": read_number(LONG_PATHS, "LongPathsEnabled") == 1,
        "cloud_folders": sorted({os.environ[name] for name in names if os.environ.get(name)}),
        "runtime": _read_runtime(system / "msvcp140.dll"),
        "threads_dll": (system / "vcruntime140_threads.dll").exists(),
        "torch": tuple(int(part) for part in re.findall(r"\d+", torch_pin)[:2]),
    }


def speaks_chinese():
    """Return whether the person's Windows speaks Chinese."""
    return os.name == "nt" and ctypes.windll.kernel32.GetUserDefaultUILanguage() & 0x3FF == 0x04


def make_shortcut(root, run=subprocess.run):
    """Put "Finetune Studio" on the desktop and return whether that worked.

    It starts pythonw, which has no console: a click into a console window would freeze the studio.
    """
    command = [find_powershell(), "-NoProfile", "-ExecutionPolicy", "Bypass", "-Command", SHORTCUT]
    environment = dict(os.environ, STUDIO_ROOT=str(root))
    try:
        answer = run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def find_powershell():
    """Return Windows' own PowerShell: a bare name would be looked for in the working folder first."""
    system = Path(os.environ.get("SystemRoot", r"C:\Windows")) / "System32"
    path = system / "WindowsPowerShell" / "v1.0" / "powershell.exe"
    return str(path) if path.exists() else "powershell"


def _lies_in(path, folder):
    path, folder = path.lower().rstrip("\\"), folder.lower().rstrip("\\")
    return path == folder or path.startswith(folder + "\\")


def _fits_code_page(path):
    """Return whether programs that know only the system's code page can open `path`; Triton's compiler is one."""
    try:
        path.encode("mbcs" if os.name == "nt" else "ascii", "strict")
    except UnicodeEncodeError:
        return False
    return True


def read_number(key, name):
    """Return a number from the registry's HKEY_LOCAL_MACHINE; None where it is absent or not to be read."""
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            return int(winreg.QueryValueEx(opened, name)[0])
    except (OSError, ValueError):
        return None


def _read_runtime(file):
    """Return (major, minor) of the Visual C++ runtime `file`, else what the registry says; None without the file."""
    if not file.exists():
        return None
    registered = (read_number(RUNTIMES, "Major") or 0, read_number(RUNTIMES, "Minor") or 0)
    return (read_file_version(file) or registered)[:2]


def read_file_version(file):
    """Return the four numbers of a DLL's version, such as (14, 44, 35211, 0); None when it has none."""
    library = ctypes.WinDLL("version")
    size = library.GetFileVersionInfoSizeW(str(file), None)
    if not size:
        return None
    block, value, length = ctypes.create_string_buffer(size), ctypes.c_void_p(), ctypes.c_uint()
    if not library.GetFileVersionInfoW(str(file), 0, size, block):
        return None
    if (
        not library.VerQueryValueW(block, "\\", ctypes.byref(value), ctypes.byref(length))
        or length.value < 16
    ):
        return None
    # VS_FIXEDFILEINFO: signature, structure's version, then the file's version in two halves of 16 + 16 bits.
    words = ctypes.cast(value, ctypes.POINTER(ctypes.c_uint32))
    return words[2] >> 16, words[2] & 0xFFFF, words[3] >> 16, words[3] & 0xFFFF
