"""The Home tab: this machine in words, what is missing, three starts, what runs, and that no name becomes HTML."""

from __future__ import annotations

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.facts import Gpu, MachineFacts, Verdict
from studio.core.i18n import literal
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.run_state import LiveView
from studio.ui.tabs.home.cards import (
    MISSING_SHOWN,
    RUNS_SHOWN,
    machine_card,
    missing_card,
    now_card,
    pick_continue,
)
from studio.ui.tabs.home.tab import HomeTab
from tests.doubles.run_library import EVIL, LibraryDesk, make_entry, make_training
from tests.ui.sheet import Sheet

ABLE = Verdict(ok=True)
STOPPED = {"state": "stopped", "artifact": "", "steps": 12}
REFUSAL = StudioError(literal("no"), literal("because"), literal("do this"))


@pytest.fixture
def desk(workspace) -> LibraryDesk:
    return LibraryDesk(workspace)


@pytest.fixture
def tab(desk, workspace, keys) -> HomeTab:
    context = Context(desk, workspace, keys, "en")
    with Sheet() as blocks:
        form = Form(context.words, context.draft())
        with gr.Tab("Home") as part:
            tab = HomeTab(context)
        training = make_training()
        tab.bind(part, blocks.load, form, training)
    return tab


def ask(tab: HomeTab, do: str, value: str = "") -> list[dict]:
    """Return what a button changes, by the output's name, for each time that something is sent."""
    names = ("go", "watched", "missing", "now", "starts", "runs")
    skipped = gr.skip()
    return [
        {name: part for name, part in zip(names, answer, strict=True) if part != skipped}
        for answer in tab.hear({"do": do, "value": value})
    ]


def problem(id: str, **changes) -> dict:
    words = {"title": literal(f"{id} {EVIL}"), "fix": literal(EVIL), "evidence": literal("")}
    return {"id": id, "code": "", "auto": False, "severity": "degraded", "repair": id, "repaired": False, **words,
            **changes}  # fmt: skip


def test_names_of_any_kind_stay_text(tab, desk):
    desk.library.kept = (make_entry("a", name=EVIL, base=EVIL, **STOPPED, resumable=ABLE),)
    desk.machine.problems = [problem("slow")]
    shown = "".join(tab.draw() + tab.look())
    desk.active = "a"
    shown += "".join(tab.draw())
    assert "<img" not in shown and shown.count("&lt;img") >= 6
    assert "a small one &lt;b&gt;" in shown


def test_the_first_picture_needs_no_look_at_the_machine(tab, desk):
    assert desk.machine.asked == []
    for words in ("Looking at this computer", "Try the demo", "Use my data"):
        assert words in tab.machine.value + tab.starts.value
    tab.draw()
    assert desk.machine.asked == [], "runs do not wait for the machine"


def test_the_machine_is_told_in_words(context):
    gpu = Gpu(name="RTX 3060 <b>", vram_bytes=12 * 2**30, capability=(8, 6))
    machine = MachineFacts(
        system="Linux", wsl=False, python="3.11", cores=8, ram_bytes=32 * 2**30, packages={}, gpus=(gpu,)
    )
    shown = machine_card(machine, literal("up to 8B with QLoRA"), 50 * 2**30, context.say)
    for words in ("RTX 3060 &lt;b&gt; · 12 GiB", "8 cores", "32 GiB", "50.0 GiB", "up to 8B with QLoRA"):
        assert words in shown, words


def test_what_is_missing_comes_with_a_button_that_mends_it(tab, desk):
    desk.machine.problems = [problem("mendable", auto=True), problem("fine", repaired=True)]
    desk.machine.problems += [problem(f"slow-{i}") for i in range(MISSING_SHOWN)]
    shown = tab.look()[1]
    assert 'data-do="fix" data-value="mendable"' in shown and 'data-problem="fine"' not in shown
    assert shown.count("data-problem") == MISSING_SHOWN and "1 more in Doctor" in shown
    answer = ask(tab, "fix", "mendable")[-1]
    assert desk.machine.switched == [("mendable", True)] and desk.machine.asked[-1]["fresh"]
    assert "Restart now" in answer["missing"], "a repair counts after a restart"
    (answer,) = ask(tab, "restart")
    assert set(answer) == {"go", "missing"} and "comes back by itself" in answer["missing"], "the rest stays"
    assert tab.look()[1] == answer["missing"], "another drawing leaves it"
    desk.supervised = False
    with pytest.raises(StudioError):
        ask(tab, "restart")


def test_a_machine_without_problems_says_so(context):
    assert "Everything needed for training is here" in missing_card([], context.say)


def test_the_demo_starts_with_one_click_and_leaves_the_form_alone(tab, desk):
    draft = tab.context.draft()
    busy, done = ask(tab, "demo")
    assert 'aria-busy="true"' in busy["starts"] and busy["go"] == ""
    assert done["go"] == "training" and done["watched"] == {"run": "run-1"}
    assert desk.started == [desk.recipes.demo()] and tab.context.draft() == draft


def test_a_demo_that_is_refused_can_be_pressed_again(tab, desk):
    desk.refusal = REFUSAL
    answers = []
    with pytest.raises(StudioError):
        answers.extend(tab.hear({"do": "demo"}))
    desk.refusal = None
    assert ask(tab, "demo")[-1]["go"] == "training"


def test_a_demo_beside_another_run_waits_in_the_queue(tab, desk):
    desk.active = "a"
    assert ask(tab, "demo")[-1]["go"] == "runs" and desk.queue.kept[0].recipe == desk.recipes.demo()
    assert not desk.started


def test_the_last_run_goes_on_or_the_reason_is_told(tab, desk):
    def third() -> str:
        return tab.draw()[1].split('data-start="continue"')[1]

    assert "<button" not in third()
    desk.library.kept = (make_entry("b"), make_entry("a", resumable=ABLE, **STOPPED))
    assert 'data-do="resume" data-value="a"' in third() and "step 12 of 30" in third()
    assert ask(tab, "resume", "a")[-1] == {"go": "training", "watched": {"run": "a"}} and desk.resumed == [
        "a"
    ]
    desk.library.kept = (make_entry("b"),)
    assert 'data-do="chat"' in third() and "is finished" in third()
    assert ask(tab, "chat", "b")[-1] == {"go": "chat b", "watched": {"run": "b"}}
    desk.library.kept = (make_entry("a", **STOPPED, resumable=Verdict(ok=False, reason=literal("lost <b>"))),)
    assert "lost &lt;b&gt;" in third() and 'data-do="resume"' not in third()
    desk.active = "a"
    assert "is running now" in third()


def test_what_is_continued(desk):
    assert pick_continue((), "") is None
    first, second, third = (
        make_entry("c"),
        make_entry("b", **STOPPED),
        make_entry("a", resumable=ABLE, **STOPPED),
    )
    assert pick_continue((first, second, third), "") is third
    assert pick_continue((first, second), "") is first
    assert pick_continue((first, second, third), "b") is second


def test_what_runs_now_shows_how_far_it_is(tab, desk, context):
    desk.library.kept = (make_entry("a", state="running"),)
    assert tab.draw()[0] == ""
    desk.active = "a"
    assert 'role="progressbar"' in tab.draw()[0]
    view = LiveView(state="running", phase="train", step=25, total_steps=50)
    shown = now_card(desk.library.kept[0], view, 2, context.say)
    assert 'aria-valuenow="50"' in shown and "2 more in the queue" in shown and 'data-value="a"' in shown


def test_the_last_runs_are_few_and_open_on_a_click(tab, desk):
    desk.library.kept = tuple(make_entry(f"run-{i}") for i in range(RUNS_SHOWN + 3))
    shown = tab.draw()[2]
    assert shown.count("data-value=") == RUNS_SHOWN and shown.count("<svg") == RUNS_SHOWN
    assert ask(tab, "open", "run-1")[-1] == {"go": "training", "watched": {"run": "run-1"}}


@pytest.mark.parametrize("said", [None, "x", {"do": "nonsense"}, {"do": ["demo"]}])
def test_what_no_button_says_changes_nothing(tab, desk, said):
    assert list(tab.hear(said)) == [["", *[gr.skip()] * 5]] and not desk.started


def test_a_paused_run_is_not_said_to_run(tab, desk):
    desk.library.kept = (make_entry("a", state="paused", artifact=""),)
    desk.active = "a"
    now, starts, runs = tab.draw()
    assert "Paused · 0%" in now and "<h3>Paused" in now and "Running" not in now
    assert (
        "is paused" in starts and "is running" not in starts and "Paused" in runs and "Training" not in runs
    )
