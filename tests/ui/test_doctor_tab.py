"""The Doctor tab: the report is shown and escaped, fixes are applied and probed again, nothing happens unasked."""

from __future__ import annotations

import json
from types import SimpleNamespace

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.events import RepairApplied
from studio.core.facts import KernelTest, Offer
from studio.core.i18n import literal
from studio.ui.tabs.doctor.tab import FIXES, DoctorTab
from tests.ui.sheet import Sheet

EVIL = "<img src=x onerror=alert(1)>"
NAMES = (
    "report",
    *(f"fix{i}" for i in range(FIXES)),
    "repairs",
    "restart",
    "bridge",
    "words",
    "offered",
    "note",
)


def problem(name: str, **values):
    """One problem as the doctor's report has it."""
    defaults = {
        "id": name, "code": "S2a", "title": literal(EVIL), "evidence": literal("/cuda/ptxas " + EVIL),
        "fix": literal("remove it"), "auto": True, "severity": "degraded", "repair": name, "repaired": False,
    }  # fmt: skip
    return defaults | values


@pytest.fixture
def tab(context):
    """The tab in a window of its own, with its handlers bound."""
    with Sheet():
        with gr.Tab("doctor") as page:
            made = DoctorTab(context)
        made.bind(page)
    return made


def look(answer: list) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(NAMES, answer, strict=True)))


def test_the_report_is_shown_and_nothing_in_it_becomes_html(context, tab):
    context.desk.machine.problems = [problem("drop_assembler"), problem("other", auto=False, repair="")]
    context.desk.machine.tests = (KernelTest(op="rms_norm", ok=True, error=1e-3, twin_ms=0.3, kernel_ms=0.1),)
    shown = look(tab.examine())
    assert "<img" not in shown.report and "&lt;i&gt;3.12" in shown.report and "S2a" in shown.report
    assert 'data-verdict="degraded"' in shown.report and "3.0 ×" in shown.report
    assert shown.fix0["visible"] and not shown.fix1["visible"] and shown.offered == ["drop_assembler"]
    assert json.loads(shown.words)["verdict"] == "degraded"
    assert context.desk.machine.asked == [{"fresh": False, "hub": False}]


def test_fix_it_switches_the_repair_on_and_probes_again(context, tab):
    context.desk.machine.problems = [problem("show_gpus")]
    offered = look(tab.examine()).offered
    context.desk.machine.problems = [problem("show_gpus", repaired=True)]
    shown = look(tab._fixer(0)(offered))
    assert context.desk.machine.switched == [("show_gpus", True)]
    assert context.desk.machine.asked[-1]["fresh"] and shown.restart["visible"] and not shown.fix0["visible"]
    assert "note" in shown.note


def test_repairs_can_be_left_and_taken_up_again(context, tab):
    context.desk.machine.applied = (RepairApplied(repair="drop_compiler", message=literal("CC is ignored")),)
    context.desk.machine.left = ["drop_assembler"]
    shown = look(tab.examine())
    assert [value for _, value in shown.repairs["choices"]] == ["drop_compiler", "drop_assembler"]
    assert shown.repairs["value"] == ["drop_compiler"] and shown.repairs["visible"]
    assert not shown.restart["visible"]
    note, restart = tab.switch([])
    assert ("drop_compiler", False) in context.desk.machine.switched and restart["visible"] and "card" in note
    context.desk.machine.left += ["drop_compiler"]
    shown = look(tab.examine())
    assert shown.restart["visible"], "also after a look at another tab"
    assert shown.repairs["value"] == [] and shown.repairs["choices"][0] == ("CC is ignored", "drop_compiler")
    assert "card" in tab.start_anew()
    context.desk.supervised = False
    with pytest.raises(StudioError):
        tab.start_anew()


def test_a_report_is_said_to_be_copied_only_when_it_was(tab):
    assert "good" in tab.tell_copied("copied") and "on the clipboard" in tab.tell_copied("copied")
    assert "takes a few seconds" in tab.tell_copied("waiting")
    for came in ("refused", "", None, EVIL):
        assert "bad" in tab.tell_copied(came) and "on the clipboard" not in tab.tell_copied(came)


def test_the_way_into_wsl_is_explained_before_it_is_taken(context, tab):
    assert not look(tab.examine()).bridge["visible"]
    offer = Offer(title=literal("Continue in WSL2"), why=literal("fast"), command="py launch.py wsl")
    context.desk.machine.offers = [offer]
    assert look(tab.examine()).bridge["visible"]
    _, consent = tab.explain_bridge()
    assert consent["visible"] and context.desk.handed_over == 0
    tab.cross()
    assert context.desk.handed_over == context.keys.port


def test_the_network_is_asked_only_on_its_button(context, tab):
    tab.examine(hub=True)
    assert context.desk.machine.asked == [{"fresh": False, "hub": True}]


@pytest.mark.computing
def test_a_pasted_error_text_is_explained(context, tab):
    shown = tab.explain_error("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB " + EVIL)
    assert 'data-cause="gpu_memory"' in shown and "<img" not in shown
    assert "Paste" in tab.explain_error("  ") and "card note" in tab.explain_error(None)
    long = "x\n" * 400_000 + "ValueError: `model` is quantized with hf_abcdefghijklmnopqrstuvwxyz123456\n"
    assert "abcdefghijklmnopqrst" not in tab.explain_error(long)
