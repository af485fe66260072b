"""The doctor's answer: from the facts of a machine to ready, degraded or blocked, with problems and offers."""

from __future__ import annotations

from typing import Any

from studio.core.facts import MachineFacts
from studio.core.text import literal, text

REQUIRED = ("torch", "transformers", "peft", "datasets")


def judge(machine: MachineFacts) -> dict[str, Any]:
    """Return {verdict, backend, reasons, problems, offers, facts}; texts in it are Text values.

    blocked: nothing can train here; degraded: training works without the fast path; ready: everything works.
    """
    problems = []
    for name in REQUIRED:
        if name not in machine.packages:
            problems.append(_problem("package_missing", name, "doctor.package_missing", name=name))
    blocked = bool(problems)
    gpus = [gpu for gpu in machine.gpus if gpu.vendor == "nvidia"]
    usable = bool(gpus) and bool(machine.torch_cuda)
    if gpus and not machine.torch_cuda:
        problems.append(
            _problem(
                "torch_cpu_build", machine.packages.get("torch", ""), "doctor.cpu_build", gpu=gpus[0].name
            )
        )
    if usable and machine.triton_level != "right":
        problems.append(_problem("triton", machine.triton_error, "doctor.triton", level=machine.triton_level))
    if machine.bitsandbytes_error:
        problems.append(_problem("bitsandbytes", machine.bitsandbytes_error, "doctor.bitsandbytes"))
    if "kernels" in machine.packages:
        # On some processors bitsandbytes would fetch native code through it at import.
        version = machine.packages["kernels"]
        problems.append(_problem("kernels_package", version, "doctor.kernels_package"))
    backend = "cpu" if not usable else "triton" if machine.triton_level == "right" else "pytorch"
    reasons = [text(f"doctor.backend.{backend}", gpu=gpus[0].name if gpus else "")]
    verdict = "blocked" if blocked else "ready" if backend == "triton" and not problems else "degraded"
    return {
        "verdict": verdict,
        "backend": backend,
        "reasons": reasons,
        "problems": problems,
        "offers": [],
        "facts": machine,
    }


def _problem(id: str, evidence: str, key: str, **values: object) -> dict[str, Any]:
    return {
        "id": id,
        "title": text(key, **values),
        "evidence": literal(evidence),
        "fix": text(f"{key}.fix", **values),
        "auto": False,
    }
