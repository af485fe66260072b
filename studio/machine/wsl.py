"""Linux inside Windows: which distributions WSL has, what one of them can do, and what is missing for the studio.

Everything is asked of wsl.exe through an injectable `run` with the signature of subprocess.run; a shell script for a
distribution goes through standard input, because wsl.exe splits and expands a command line in ways of its own.
"""

from __future__ import annotations

import ntpath
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from studio.core.errors import Problem
from studio.core.facts import Distribution, Offer
from studio.core.i18n import literal, text
from studio.installer.python_choice import VERSIONS
from studio.machine.wsl_paths import AUTOMOUNT, read_automount

Run = Callable[..., Any]
NOT_FOR_PEOPLE = ("docker-desktop", "rancher-desktop", "podman-machine")
"""Distributions that belong to a program: they have no home and no Python."""
NEEDED_BYTES = 12 * 2**30
"""Of the Linux disk: PyTorch with CUDA takes some 7 GB installed, and pip unpacks beside it."""
SCARCE_RAM_BYTES = 8 * 2**30
PROGRAM_FOLDER = "finetune-studio"
PROBE = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
say home "$HOME"
say kernel "$(uname -r)"
[ -e /dev/dxg ] && say dxg 1
for file in /usr/lib/wsl/lib/libcuda.so.1 /usr/lib/wsl/lib/libcuda.so; do
  [ -e "$file" ] && { say libcuda "$file"; break; }
done
for file in /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib/aarch64-linux-gnu/libcuda.so.1 /usr/lib64/libcuda.so.1; do
  [ -e "$file" ] && case "$(readlink -f "$file")" in /usr/lib/wsl/*) ;; *) say linux_driver "$file" ;; esac
done
for name in NAMES python3; do
  path=$(command -v "$name") || continue
  say python "$("$path" -c 'import sys
try:
    import venv, ensurepip
    has = 1
except ImportError:
    has = 0
print("%d.%d.%d %d" % (sys.version_info[:3] + (has,)))' </dev/null 2>/dev/null)"
done
while read -r key value unit; do
  case "$key" in MemTotal:) say ram "$value" ;; MemAvailable:) say available "$value" ;; esac
done </proc/meminfo
say free "$(df -Pk "$HOME" | tail -n 1 | awk '{print $4}')"
[ -r /etc/wsl.conf ] && while IFS= read -r line; do say conf "$line"; done </etc/wsl.conf
cd "$HOME/PROGRAM" 2>/dev/null || exit 0
say program "$(cat .studio-copy 2>/dev/null || echo unknown)"
say ready "$(python3 -c 'import importlib.util as u
s = u.spec_from_file_location("install", "studio/installer/install.py")
m = u.module_from_spec(s); s.loader.exec_module(m)
print(int(m.is_ready(".")))' </dev/null 2>/dev/null)"
exit 0
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guest:
    """What one distribution says of itself."""

    home: str = ""
    kernel: str = ""
    dxg: bool = False
    """Whether /dev/dxg, the way to the GPU, is there."""
    libcuda: str = ""
    """The driver library that Windows provides; "" without it."""
    linux_driver: str = ""
    """Library of an NVIDIA driver for Linux, which hides the one of Windows; "" for none."""
    pythons: tuple[str, ...] = ()
    """Versions that were found."""
    usable_pythons: tuple[str, ...] = ()
    """Those with packages for them and with venv."""
    ram_bytes: int = 0
    ram_available_bytes: int = 0
    free_bytes: int = 0
    automount: str = AUTOMOUNT
    program: str = ""
    """Version of the studio's copy in the Linux home; "" without one, `unknown` for a folder of that name not ours."""
    ready: bool = False
    """Whether that copy's .venv is complete."""

    @property
    def gpu(self) -> bool:
        """Whether a process can reach the graphics card of Windows."""
        return self.dxg and bool(self.libcuda)


def find_wsl() -> str:
    """Return the wsl.exe of Windows itself, or its bare name where there is none to be seen."""
    path = ntpath.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "wsl.exe")
    return path if os.name == "nt" and os.path.exists(path) else "wsl.exe"


def list_distributions(
    run: Run = subprocess.run, timeout_s: float = 5, wsl: str = ""
) -> tuple[str, tuple[Distribution, ...]]:
    """Return (state, distributions): absent, off, empty or ready; "" when wsl.exe does not answer in time.

    Starts no distribution. Those that belong to Docker and its like are left out.
    """
    wsl = wsl or find_wsl()
    try:
        code, words = _ask(run, [wsl, "-l", "-v"], timeout_s)
        found = parse_list(words) if code == 0 else ()
        if not found:
            if code != 0 and "WSL_E_DEFAULT_DISTRO_NOT_FOUND" not in words:
                code, _ = _ask(run, [wsl, "--status"], timeout_s)
                return ("empty" if code == 0 else "off"), ()
            return "empty", ()
        # The state is in the language of Windows; names alone are not.
        _, words = _ask(run, [wsl, "-l", "--running", "-q"], timeout_s)
    except FileNotFoundError:
        return "absent", ()
    except subprocess.TimeoutExpired:
        return "", ()
    except OSError:  # a policy forbids the program, or it is broken
        return "off", ()
    running = {line.strip() for line in words.splitlines()}
    named = tuple(
        Distribution(name=name, version=version, default=default, running=name in running)
        for name, version, default in found
        if not name.lower().startswith(NOT_FOR_PEOPLE)
    )
    return ("ready" if named else "empty"), named


def ask_running(found: tuple[Distribution, ...], **how: Any) -> tuple[Distribution, ...]:
    """Return `found` with what those of version 2 that run anyway say of the GPU and Python; no other one is started.

    `how` goes to probe_distribution.
    """
    asked = []
    for each in found:
        guest = probe_distribution(each.name, **how)[0] if each.running and each.version == 2 else None
        if guest is not None:
            each = replace(each, gpu=guest.gpu, python=", ".join(guest.usable_pythons))
        asked.append(each)
    return tuple(asked)


def parse_list(words: str) -> tuple[tuple[str, int, bool], ...]:
    """Return (name, version, default) of each line of `wsl -l -v`, whatever language its headings are in."""
    found = []
    for line in words.splitlines():
        match = re.match(r"(\*?)\s*(\S+)\s+\S.*\s([12])\s*$", line)
        if match:
            star, name, version = match.groups()
            found.append((name, int(version), bool(star)))
    return tuple(found)


def decode(raw: bytes) -> str:
    """Return what wsl.exe printed: UTF-16 with or without a byte order mark, or UTF-8 where WSL_UTF8 is set."""
    if raw.startswith(b"\xff\xfe") or b"\0" in raw:
        return (
            raw[: len(raw) // 2 * 2].decode("utf-16-le", errors="replace").lstrip("\ufeff").replace("\0", "")
        )
    return raw.decode("utf-8-sig", errors="replace")


def choose_distribution(found: tuple[Distribution, ...], wanted: str = "") -> Distribution | None:
    """Return the distribution named `wanted`, else the default one; a version 2 goes before a default of version 1."""
    if wanted:
        return next((each for each in found if each.name.lower() == wanted.lower()), None)
    order = sorted(found, key=lambda each: (each.version != 2, not each.default))
    return order[0] if order else None


def guest_command(name: str, *words: str, wsl: str = "") -> list[str]:
    """Return the command line that runs `words` in the distribution `name`, without its login shell in between."""
    return [wsl or find_wsl(), "-d", name, "--exec", *words]


def run_script(
    name: str,
    script: str,
    run: Run = subprocess.run,
    timeout_s: float | None = None,
    wsl: str = "",
    **more: Any,
) -> Any:
    """Run a shell `script` in the distribution `name` and return the CompletedProcess, its output as bytes.

    Raises OSError, and subprocess.TimeoutExpired after `timeout_s`.
    """
    settings = {"capture_output": True} | more
    command = guest_command(name, "sh", "-s", wsl=wsl)
    return run(command, input=script.encode(), timeout=timeout_s, check=False, **hidden(), **settings)


def probe_distribution(
    name: str, run: Run = subprocess.run, timeout_s: float = 60, wsl: str = ""
) -> tuple[Guest | None, str]:
    """Return (Guest, "") of the distribution `name`, or (None, what it said instead). Starts its virtual machine."""
    names = " ".join("python{}.{}".format(*version) for version in VERSIONS)
    script = PROBE.replace("NAMES", names).replace("PROGRAM", PROGRAM_FOLDER)
    try:
        answer = run_script(name, script, run, timeout_s, wsl)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout_s:.0f} s"
    except OSError as error:
        return None, error.strerror or str(error)
    if answer.returncode != 0 or b"home=" not in answer.stdout:
        said = decode(answer.stdout).strip() or decode(answer.stderr).strip()
        return None, said[:300] or f"exit code {answer.returncode}"
    return _read_guest(answer.stdout.decode("utf-8", errors="replace")), ""


def _read_guest(words: str) -> Guest:
    pairs = [line.partition("=")[::2] for line in words.splitlines()]
    last = dict(pairs)
    pythons = dict.fromkeys(value for key, value in pairs if key == "python" and value)
    usable = [each.split()[0] for each in pythons if each.endswith(" 1") and _is_usable(each.split()[0])]
    return Guest(
        home=last.get("home", ""),
        kernel=last.get("kernel", ""),
        dxg="dxg" in last,
        libcuda=last.get("libcuda", ""),
        linux_driver=last.get("linux_driver", ""),
        pythons=tuple(each.split()[0] for each in pythons),
        usable_pythons=tuple(usable),
        ram_bytes=_kilobytes(last, "ram"),
        ram_available_bytes=_kilobytes(last, "available"),
        free_bytes=_kilobytes(last, "free"),
        automount=read_automount("\n".join(value for key, value in pairs if key == "conf")),
        program=last.get("program", ""),
        ready=last.get("ready") == "1",
    )


def _is_usable(version: str) -> bool:
    return tuple(map(int, version.split(".")))[:2] in VERSIONS and version != "3.13.8"


def _kilobytes(values: Mapping[str, str], key: str) -> int:
    return int(values[key]) * 1024 if values.get(key, "").isdigit() else 0


def judge_distribution(found: Distribution, guest: Guest | None, said: str = "") -> tuple[Problem, ...]:
    """Return what keeps the studio out of the distribution (errors), and what makes it slow there (warnings).

    `guest` None with `said`: it was asked and answered that instead; without: it was not asked.
    """
    if found.version == 1:
        return (_problem("version", "error", name=found.name, command=f"wsl --set-version {found.name} 2"),)
    if guest is None:
        return (_problem("silent", "error", name=found.name, said=literal(said)),) if said else ()
    problems = []
    if not guest.usable_pythons:
        kind = "venv" if any(map(_is_usable, guest.pythons)) else "python"
        problems.append(_problem(kind, "error", found="/".join(guest.pythons) or "-"))
    if guest.program == "unknown":
        problems.append(_problem("foreign", "error", name=found.name, path=f"~/{PROGRAM_FOLDER}"))
    if not guest.ready and guest.free_bytes < NEEDED_BYTES:
        gigabytes = {"free": f"{guest.free_bytes / 2**30:.0f}", "needed": NEEDED_BYTES // 2**30}
        problems.append(_problem("disk", "error", **gigabytes))
    if not guest.automount:
        problems.append(_problem("automount", "error"))
    if not guest.dxg:
        problems.append(_problem("dxg", "warning", name=found.name))
    elif not guest.libcuda:
        problems.append(_problem("libcuda", "warning"))
    if guest.linux_driver:
        problems.append(_problem("linux_driver", "warning", path=guest.linux_driver))
    if guest.ram_bytes < SCARCE_RAM_BYTES:
        # Unless it was told otherwise, WSL took half of what the PC has.
        line = memory_line(2 * guest.ram_bytes)
        problems.append(_problem("ram", "warning", ram=f"{guest.ram_bytes / 2**30:.0f}", line=line))
    return tuple(problems)


def _problem(kind: str, severity: Any, **values: object) -> Problem:
    field = f"wsl.{kind}"
    message, fix = text(f"wsl.problem.{kind}", **values), text(f"wsl.problem.{kind}.fix", **values)
    return Problem(field=field, message=message, fix=fix, severity=severity)


def setup_steps(state: str, found: tuple[Distribution, ...] = ()) -> tuple[Offer, ...]:
    """Return what to do, in order, until there is a distribution that the studio can be set up in; () when there is.

    Each Offer's `why` says what it needs: an administrator, a restart. The last step is to look again.
    """
    if state == "ready" and any(each.version == 2 for each in found):
        return ()
    if state == "ready":
        name = next((each.name for each in found if each.default), found[0].name)
        steps = [_step("convert", f"wsl --set-version {name} 2")]
    else:
        kind = state if state in ("absent", "off", "empty") else "silent"
        command = {"absent": "winver", "silent": "wsl --update"}.get(kind, "wsl --install -d Ubuntu")
        steps = [_step(kind, command)]
    return (*steps, _step("again", "py launch.py wsl --check"))


def _step(kind: str, command: str) -> Offer:
    return Offer(title=text(f"wsl.step.{kind}"), why=text(f"wsl.step.{kind}.why"), command=command)


def memory_line(windows_ram_bytes: int) -> str:
    """Return the line for .wslconfig, below [wsl2]: three quarters of the PC's memory, where WSL takes half."""
    return f"memory={max(4, windows_ram_bytes * 3 // 4 // 2**30)}GB"


def assign(**variables: str) -> str:
    """Return lines of a shell script that export `variables`, quoted."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def _ask(run: Run, command: list[str], timeout_s: float) -> tuple[int, str]:
    answer = run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, **hidden()
    )
    return answer.returncode, decode(answer.stdout) + decode(answer.stderr)


def hidden() -> dict[str, Any]:
    """Return settings without which a console window flashes up when the studio was started by a double click."""
    return {"creationflags": subprocess.CREATE_NO_WINDOW} if os.name == "nt" else {}
