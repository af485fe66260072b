"""What the doctor looked at, in order: for each thing what was tried, what was found, the verdict and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from studio.core.facts import KernelTest, MachineFacts
from studio.core.i18n import Text, literal, text
from studio.machine import versions
from studio.machine.card_abilities import can_compile, dotted, has_bf16, has_fp8, old_driver
from studio.machine.cards import choose_card, explain_card, list_driven
from studio.machine.failures.diagnosis import ENTRIES
from studio.machine.repairs import choose_repairs
from studio.planning.backend_choice import Backend
from studio.planning.suggestions import launcher

LEVELS = ("installed", "importable", "compiles", "launches", "right")
RANK = {"ok": 0, "skip": 0, "note": 1, "warn": 2, "bad": 3}
"""Verdicts of a check, the worst one highest."""
SEVERITIES = {"note": "note", "degraded": "warn", "blocked": "bad"}
WINDOWS_11_BUILD = 22000
LITTLE_RAM_BYTES = 6 * 2**30
LITTLE_DISK_BYTES = 10 * 2**30

Check = dict[str, Any]


def look_through(machine: MachineFacts, backend: Backend, problems: Sequence[dict[str, Any]]) -> list[Check]:
    """Return the checks in order: {id, tried, evidence, verdict: ok|note|warn|bad|skip, fix, problems: ids, repair}.

    Each of `problems` (of doctor_report.py) belongs to one check, whose verdict it lowers unless it is repaired.
    """
    checks = [
        _check("system", _say_system(machine)),
        _check("python", _say_python(machine)),
        _check("gpus", _say_gpus(machine), "ok" if machine.gpus else "note"),
        *_look_at_choice(machine, backend),
        *_look_at_driver(machine, backend),
        _look_at_torch(machine, backend),
        *_look_at_triton(machine, backend),
        *(_look_at_kernel(machine, test) for test in machine.kernel_tests),
        *_look_at_broken(machine),
        *_look_at_formats(machine, backend),
        _look_at_attention(backend),
        _look_at_bitsandbytes(machine, backend),
        _look_at_memory(machine),
        *_look_at_disk(machine),
        *_look_at_network(machine),
        *_look_at_wsl(machine),
        *_look_at_repairs(machine),
    ]
    for problem in problems:
        _attach(problem, checks)
    return checks


def _check(id: str, evidence: Text, verdict: str = "ok", fix: Text | None = None, **values: object) -> Check:
    tried = text(f"checkup.{id}", **values)
    found = {"tried": tried, "evidence": evidence, "verdict": verdict, "fix": fix}
    return {"id": id, **found, "problems": [], "repair": ""}


def _attach(problem: dict[str, Any], checks: list[Check]) -> None:
    subject = ENTRIES[problem["id"]].subject
    same = [check for check in checks if check["id"] == subject]
    if not same:
        unasked = subject == "network"
        same = [_check(subject, text("checkup.network.unasked") if unasked else problem["title"], "skip")]
        checks += same
    # Of Triton's five levels the one that stopped.
    check = next((one for one in same if RANK[one["verdict"]] >= RANK["note"]), same[0])
    check["problems"].append(problem["id"])
    if problem["repaired"]:
        return
    check["verdict"] = max(check["verdict"], SEVERITIES[problem["severity"]], key=RANK.__getitem__)
    if len(check["problems"]) == 1:
        check["fix"] = problem["fix"]  # it knows the cause, the check only that there is one


def _say_system(machine: MachineFacts) -> Text:
    name = f"{machine.system} {machine.release}".strip()
    if machine.windows is not None and machine.windows.build >= WINDOWS_11_BUILD:
        name = f"Windows 11 ({machine.release})"  # which calls itself 10.0
    parts = [name, machine.architecture]
    if machine.process_architecture and machine.process_architecture != machine.architecture:
        parts.append(f"({machine.process_architecture} process)")
    parts += ["WSL"] if machine.wsl else ["container"] if machine.container else []
    return literal(", ".join(filter(None, parts)))


def _say_python(machine: MachineFacts) -> Text:
    python = machine.interpreter
    values = {"version": machine.python, "bits": python.bits, "kind": text(f"checkup.python.{python.kind}")}
    return text("checkup.python.found", implementation=python.implementation, **values)


def _say_gpus(machine: MachineFacts) -> Text:
    if not machine.gpus:
        return text("checkup.gpus.none")
    return literal(
        "; ".join(
            f"{gpu.name}, {gpu.vram_bytes / 2**30:.1f} GiB"
            + (f", compute capability {dotted(gpu)}" if gpu.vendor == "nvidia" else "")
            + (f", {gpu.architecture}" if gpu.architecture else "")
            for gpu in machine.gpus
        )
    )


def _look_at_driver(machine: MachineFacts, backend: Backend) -> Iterable[Check]:
    if machine.driver_error:
        return [_check("driver", literal(machine.driver_error), "warn", text("checkup.driver.fix"))]
    if machine.driver_cuda != (0, 0):
        cuda = ".".join(map(str, machine.driver_cuda))
        found = text("checkup.driver.found", driver=machine.driver or "?", cuda=cuda)
        if backend.row == "driver_or_build" and old_driver(machine):
            return [_check("driver", found, "bad", text("checkup.driver.fix"))]
        return [_check("driver", found)]
    if any(gpu.vendor == "nvidia" for gpu in machine.gpus):
        return [_check("driver", text("checkup.driver.none"), "warn", text("checkup.driver.fix"))]
    return []


def _look_at_torch(machine: MachineFacts, backend: Backend) -> Check:
    if not backend.stop or (backend.row == "driver_or_build" and old_driver(machine)):
        return _check("torch", _say_torch(machine))
    return _check("torch", _say_torch(machine), "bad", text("checkup.torch.fix", launcher=launcher(machine)))


def _say_torch(machine: MachineFacts) -> Text:
    version = machine.packages.get("torch", "")
    if machine.torch_error or not version:
        return (
            literal(machine.torch_error.strip().splitlines()[-1]) if machine.torch_error else _absent("torch")
        )
    build = "CUDA " + machine.torch_cuda if machine.torch_cuda else ""
    build = build or (
        "ROCm " + machine.torch_hip if machine.torch_hip else "XPU" if machine.torch_xpu else ""
    )
    if build:
        return text("checkup.torch.found", version=version, build=build)
    return text("checkup.torch.processor", version=version)


def _look_at_triton(machine: MachineFacts, backend: Backend) -> list[Check]:
    """One check a level: those that were reached are ok, the first that was not says why, the rest were not tried."""
    useless = backend.processor or backend.row == "mps"  # no card on which it could run
    installed = versions.installed_triton(machine)
    level = machine.triton_level
    reached = LEVELS.index(level) + 1 if level in LEVELS else 0
    has_gpu = any(gpu.vendor != "apple" for gpu in machine.gpus)
    checks = []
    for place, name in enumerate(LEVELS):
        tried = text(f"checkup.triton.{name}")
        evidence: Text = literal(installed) if name == "installed" else text("checkup.triton.passed")
        verdict, fix = "ok", None
        if place >= reached:
            verdict, evidence = "skip", text("checkup.triton.not_tried")
        if place == reached and machine.triton_error:
            verdict, fix = "warn" if has_gpu else "note", text("checkup.triton.fix")
            evidence = literal(machine.triton_error.strip().splitlines()[0])
        elif place == reached and not has_gpu:
            evidence = text("checkup.triton.no_gpu")
        elif place == reached and not useless:
            verdict, fix = "warn", text("checkup.triton.fix")
            evidence = evidence if reached else _absent("Triton")
        checks.append(_check("triton", evidence, verdict, fix) | {"tried": tried})
    return checks


def _look_at_kernel(machine: MachineFacts, test: KernelTest) -> Check:
    if not test.ok:
        values = {"reason": literal(test.reason or "?"), "error": test.error}
        evidence = text("checkup.kernel.failed", **values)
        return _check("kernel", evidence, "warn", text("checkup.kernel.fix"), op=test.op)
    speed = test.twin_ms / test.kernel_ms if test.kernel_ms else 0.0
    values = {"error": f"{test.error:.1e}", "kernel": f"{test.kernel_ms:.3f}", "twin": f"{test.twin_ms:.3f}"}
    evidence = text("checkup.kernel.passed", times=f"{speed:.1f}", **values)
    return _check("kernel", evidence, op=test.op)


def _look_at_broken(machine: MachineFacts) -> Iterable[Check]:
    for op, reason in machine.broken_kernels.items():
        evidence = text("checkup.kernel.fell_back", reason=literal(reason))
        yield _check("kernel", evidence, "warn", text("checkup.kernel.fix"), op=op)


def _look_at_choice(machine: MachineFacts, backend: Backend) -> Iterable[Check]:
    """Which of several cards trains, and why."""
    gpu = choose_card(machine)
    if gpu is not None and not backend.processor and len(list_driven(machine)) > 1:
        yield _check("card", explain_card(machine, gpu))


def _look_at_formats(machine: MachineFacts, backend: Backend) -> Iterable[Check]:
    gpu = choose_card(machine)
    if gpu is None or backend.processor:
        return
    can = {"bf16": has_bf16(machine, gpu), "fp8": has_fp8(gpu), "compile": can_compile(machine)}
    yield _check("formats", text("checkup.formats.found", gpu=gpu.name, **can))


def _look_at_attention(backend: Backend) -> Check:
    if backend.row == "no_torch":
        return _check("attention", text("checkup.triton.not_tried"), "skip")
    return _check("attention", text(f"checkup.attention.{backend.attention}"))


def _look_at_bitsandbytes(machine: MachineFacts, backend: Backend) -> Check:
    version = machine.packages.get("bitsandbytes")
    if not version:
        return _check("four_bit", _absent("bitsandbytes"), "note", text("checkup.four_bit.fix"))
    if machine.bitsandbytes_error:
        line = machine.bitsandbytes_error.strip().splitlines()[-1]
        return _check("four_bit", literal(line), "warn", text("checkup.four_bit.fix"))
    if backend.row == "no_torch":
        return _check("four_bit", text("checkup.triton.not_tried"), "skip")
    # Without a card its library is only loaded (probes/bitsandbytes_load.py).
    computed = machine.gpus and (machine.torch_cuda or machine.torch_hip or machine.torch_xpu)
    return _check("four_bit", text(f"checkup.four_bit.{'found' if computed else 'loads'}", version=version))


def _look_at_memory(machine: MachineFacts) -> Check:
    total = min(filter(None, (machine.ram_bytes, machine.ram_limit_bytes)), default=0)
    values = {"total": _gigabytes(total), "free": _gigabytes(machine.ram_available_bytes or total)}
    little = 0 < total < LITTLE_RAM_BYTES
    fix = text("checkup.memory.fix") if little else None
    return _check("memory", text("checkup.memory.found", **values), "note" if little else "ok", fix)


def _look_at_disk(machine: MachineFacts) -> Iterable[Check]:
    for name in ("workspace", "model_cache", "temp", "triton_cache"):
        place = machine.places.get(name)
        if place is None:
            continue
        values = {"path": place.path, "free": _gigabytes(place.free_bytes)}
        tried = {"tried": text(f"checkup.place.{name}")}
        if not place.writable:
            fix = text("checkup.disk.fix_writable")
            yield _check("disk", text("checkup.disk.read_only", **values), "bad", fix) | tried
        elif name in ("workspace", "model_cache") and 0 < place.free_bytes < LITTLE_DISK_BYTES:
            yield (
                _check("disk", text("checkup.disk.found", **values), "note", text("checkup.disk.fix")) | tried
            )
        else:
            yield _check("disk", text("checkup.disk.found", **values)) | tried


def _look_at_network(machine: MachineFacts) -> Iterable[Check]:
    if not machine.hub:
        return
    endpoint = machine.hub_endpoint or "https://huggingface.co"
    if machine.hub == "ok":
        yield _check("network", text("checkup.network.found", endpoint=endpoint))
    else:
        evidence = literal(f"{endpoint}: {machine.hub}")
        yield _check("network", evidence, "warn", text("checkup.network.fix"))


def _look_at_wsl(machine: MachineFacts) -> Iterable[Check]:
    guest, windows = machine.guest, machine.windows
    if guest is not None:
        way = text("word.yes" if guest.dxg else "word.no")
        values = {"version": guest.version, "distribution": guest.distribution or "?", "way": way}
        yield _check("wsl", text("checkup.wsl.guest", **values), "ok" if guest.dxg else "warn")
    elif windows is not None and windows.distributions:
        names = [f"{one.name} (WSL{one.version})" for one in windows.distributions]
        yield _check("wsl", literal(", ".join(names)))
    elif windows is not None and windows.wsl_state:
        yield _check("wsl", text(f"checkup.wsl.{windows.wsl_state}"))


def _look_at_repairs(machine: MachineFacts) -> Iterable[Check]:
    """What the studio set right in its own environment, by the name under which it can be left."""
    for applied in choose_repairs(machine, on=machine.repairs):
        if applied.name in machine.repairs:
            yield _check("repair", applied.message) | {"repair": applied.name}


def _absent(name: str) -> Text:
    return text("checkup.absent", name=name)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f}"
