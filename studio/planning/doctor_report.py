"""The doctor's answer: from the facts of a machine to ready, degraded or blocked, with problems, checks and offers."""

from __future__ import annotations

from typing import Any

from studio.core.facts import Gpu, MachineFacts
from studio.core.i18n import Text, literal, text
from studio.machine.card_abilities import broken_ops
from studio.machine.cards import choose_card
from studio.machine.failures import find_failures
from studio.machine.failures.causes import unspecific
from studio.machine.failures.diagnosis import Found
from studio.machine.repairs import REPAIRS, choose_repairs
from studio.planning.backend_choice import Backend
from studio.planning.doctor_checks import look_through
from studio.planning.run_plan import OPS, choose_kernel, plan_backend, triton_hidden
from studio.planning.suggestions import make_offers

REQUIRED = ("torch", *unspecific.REQUIRED)


def judge(machine: MachineFacts) -> dict[str, Any]:
    """Return {verdict, backend, row, reasons, kernels, problems, checks, offers, facts}; texts in it are Text values.

    `kernels`: op -> Choice of `triton` or `reference`, as a run that asks for nothing else would take it.

    blocked: nothing can train here. degraded: training works, without the fast path or with something in the way.
    ready: everything works. A problem that our own environment already sets right does not count.
    """
    gpu, backend = choose_card(machine), plan_backend(machine)
    problems = find_problems(machine)
    open_ones = {problem["severity"] for problem in problems if not problem["repaired"]}
    lacking = [name for name in REQUIRED if name not in machine.packages]
    slow_ops = sorted(broken_ops(machine))
    kernels = {op: choose_kernel(op, machine, backend, gpu) for op in dict.fromkeys((*OPS, *slow_ops))}
    if backend.row == "no_torch" or lacking or "blocked" in open_ones:
        verdict = "blocked"
    elif backend.kernels == "none" or slow_ops or "degraded" in open_ones:
        verdict = "degraded"
    else:
        verdict = "ready"
    return {
        "verdict": verdict,
        "backend": "none" if "torch" in lacking else backend.name,
        "row": backend.row,
        "reasons": _reasons(machine, backend, gpu, problems, slow_ops),
        "kernels": kernels,
        "problems": problems,
        "checks": look_through(machine, backend, problems),
        "offers": list(make_offers(machine, backend)),
        "facts": machine,
    }


def find_problems(machine: MachineFacts) -> list[dict[str, Any]]:
    """Return what the catalogue of failures finds in the facts, worst first.

    Each {id, code, title, evidence, fix, auto, severity, repair, repaired}: `auto` when a repair of our own environment
    applies here and may be switched on, `repaired` when this process has had it.
    """
    possible = {applied.name for applied in choose_repairs(machine, on=[repair.name for repair in REPAIRS])}
    return [_problem(found, machine, possible) for found in find_failures(machine)]


def _problem(found: Found, machine: MachineFacts, possible: set[str]) -> dict[str, Any]:
    entry, diagnosis = found.failure, found.diagnose()
    repaired = entry.repair in machine.repairs
    return {
        "id": entry.id,
        "code": entry.code,
        "title": diagnosis.what,
        "evidence": literal(str(found.values.get("evidence", ""))),
        "fix": diagnosis.fixes[0].title if diagnosis.fixes else diagnosis.why,
        "auto": bool(entry.repair) and (repaired or entry.repair in possible),
        "severity": entry.severity,
        "repair": entry.repair,
        "repaired": repaired,
    }


def _reasons(
    machine: MachineFacts,
    backend: Backend,
    gpu: Gpu | None,
    problems: list[dict[str, Any]],
    slow_ops: list[str],
) -> list[Text]:
    blocking = [one["title"] for one in problems if one["severity"] == "blocked" and not one["repaired"]]
    # What the row promises is not true while something is in the way.
    reasons = blocking if blocking and not backend.stop else [backend.reason]
    if backend.row == "processor" and gpu is not None:
        reasons.append(text("doctor.unseen", gpu=gpu.name))
    if triton_hidden(machine, gpu):
        reasons.append(text("doctor.triton_hidden"))
    if slow_ops and backend.kernels != "none":
        reasons.append(text("doctor.slow_ops", ops=", ".join(slow_ops)))
    return reasons
