"""The Training tab: what its buttons do, what a page is told each second, and that no data ever becomes HTML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from studio.core.errors import Problem, StudioError
from studio.core.events import (
    CheckpointSaved,
    Diagnosis,
    Fix,
    KernelFellBack,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunPaused,
    RunPlanned,
    RunStalled,
    RunStopped,
    SampleWritten,
    StallEnded,
    StepLogged,
)
from studio.core.record import RunRecord
from studio.core.text import literal, text
from studio.desk.sharing import Opening
from studio.ui import run_view
from studio.ui.cards import run_label
from studio.ui.form import Form
from studio.ui.live import LiveView, fold
from studio.ui.points import Points, payload
from studio.ui.run_view import log_card, place_of, samples_card, status_card
from studio.ui.tabs.dataset import DatasetTab
from studio.ui.tabs.hyperparameters import HyperparametersTab
from studio.ui.tabs.model import ModelTab
from studio.ui.tabs.training import TrainingTab
from tests.ui.conftest import FakeDesk, make_plan

EVIL = "<img src=x onerror=alert(1)>"
OWNER = SimpleNamespace(request=SimpleNamespace(scope={"studio.role": "owner"}))


class RunDesk(FakeDesk):
    """Also pauses, discards and queues; a run that is in no log is not there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.did: list[tuple[str, str]] = []
        self.queue = SimpleNamespace(add=self.add)

    def run(self, run: str) -> RunRecord:
        if run not in self.log:
            raise StudioError(text("run.unknown", run=run), text("run.unknown.why"), text("run.unknown.fix"))
        return super().run(run)

    def pause(self, run: str) -> None:
        self.did.append(("pause", run))

    def unpause(self, run: str) -> None:
        self.did.append(("unpause", run))

    def discard(self, run: str) -> None:
        self.did.append(("discard", run))
        self.active = None
        del self.log[run]

    def add(self, recipe):
        self.did.append(("add", recipe.name))
        return SimpleNamespace(id="1", name=EVIL)


@pytest.fixture
def context(workspace, keys):
    from studio.ui.context import Context

    return Context(RunDesk(workspace), workspace, keys, "en")


@pytest.fixture
def whole(context):
    """The tab beside those that hold the form's fields."""
    return make(context, ModelTab, DatasetTab, HyperparametersTab)


@pytest.fixture
def tab(context):
    """The tab alone, as long as nothing is read from the form."""
    return make(context)


def make(context, *others) -> TrainingTab:
    with gr.Blocks(analytics_enabled=False):
        form = Form(context.words, context.draft())
        for other in others:
            other(context, form)
        made = TrainingTab(context, form)
        made.make_shared()
        made.bind()
    return made


class Page:
    """What assets/run.js and chart.js do with the answers."""

    def __init__(self, tab: TrainingTab, run: str = "") -> None:
        self.tab, self.run, self.active, self.sample = tab, run, None, None
        self.chip: dict = {}
        self.told: list[dict] = []
        self.marks: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.chart: dict = {}
        self.steps = 0
        self.payloads: list[dict] = []

    def look(self) -> dict[str, str]:
        """One second: the parts that changed."""
        asked = {"run": self.run, "active": self.active, "chip": self.chip, "sample": self.sample}
        asked |= {"marks": self.marks}
        answer = self.tab.page.look(asked | {"chart": self.chart})
        self.run, self.active, self.state = answer["run"], answer["active"], answer["state"]
        self.chip = answer["chip"]
        self.told += [answer["ended"]] if answer["ended"] else []
        self.marks |= answer["marks"]
        self.parts |= answer["parts"]
        points = answer["points"]
        if points:
            self.payloads.append(points)
            new = points["until"]["step"] - points["since"]["step"]
            self.steps = new if not any(points["since"].values()) else self.steps + new
            self.chart = {"run": points["run"], "generation": points["generation"], "cursor": points["until"]}
        return answer["parts"]


def values(tab: TrainingTab) -> list:
    return tab.form.show(tab.context.draft())


def step(number: int, seq: int, time_s: float | None = None) -> StepLogged:
    return StepLogged(
        seq=seq, time_s=seq if time_s is None else time_s, step=number, total_steps=4, epoch=0, loss=1, lr=1,
        grad_norm=1, tokens_per_s=1,
    )  # fmt: skip


def test_a_start_with_problems_lists_them_beside_their_fields_and_starts_nothing(context, whole):
    context.desk.problems = tuple(
        Problem(field=path, message=literal(path), fix=literal(EVIL))
        for path in ("optim.epochs", "data.source")
    )
    html, shown = whole.begin(*values(whole))
    assert context.desk.started == [] and shown == gr.skip()
    assert "Epochs" in html and "<img" not in html and 'data-errors="2"' in html
    assert 'data-go="hyperparameters" data-mark="knob-optim-epochs"' in html
    assert 'data-go="dataset" data-mark="dataset-source"' in html
    assert whole.examine(*values(whole)) == html
    assert whole.add_to_queue(*values(whole))[0] == html and context.desk.did == []


def test_every_setting_has_a_field_to_go_to(whole):
    for path, component in whole.form.components.items():
        if path in ("model.source", "data.source"):
            continue
        assert place_of(path)[1] == component.elem_id, path


def test_a_start_shows_the_new_run(context, whole):
    html, shown = whole.begin(*values(whole))
    assert html == "" and context.desk.started == [context.draft()]
    page = Page(whole, shown["run"])
    parts = page.look()
    assert (page.run, page.active, page.state) == ("run-1", "run-1", "running")
    assert all(f'data-do="{do}"' in parts["controls"] for do in ("pause", "stop", "discard"))
    assert "data-confirm" in parts["controls"] and 'data-run="run-1"' in parts["status"]
    assert whole.examine(*values(whole)) == "", "the settings of a run that is on are frozen"


def test_a_run_can_wait_in_the_queue(context, whole):
    html, shown = whole.add_to_queue(*values(whole))
    assert context.desk.did == [("add", "demo")] and shown["run"] == ""
    assert "&lt;img" in html and "<img" not in html and 'data-go="runs"' in html


def test_buttons_do_what_they_say(context, tab):
    run = context.desk.start(context.draft())
    for do in ("pause", "unpause"):
        assert tab.hear({"do": do}, {"run": run})["note"]
    context.desk.log[run] += [step(1, 1), RunPaused(seq=2, time_s=2, step=1)]
    page = Page(tab, run)
    parts = page.look()
    assert page.state == "paused" and 'data-do="unpause"' in parts["controls"] and "Paused" in parts["status"]
    assert (
        "Paused" in parts["chip"]
        and 'data-head="Paused"' in parts["chip"]
        and 'data-do="stop"' in parts["chip"]
    )
    assert not any("Training" in parts[name] for name in ("chip", "status", "pick", "spoken"))
    tab.hear({"do": "stop"}, {"run": run})
    assert context.desk.active is None
    page.look()
    assert 'data-do="resume"' in page.parts["controls"]
    tab.hear({"do": "resume"}, {"run": run})
    assert context.desk.active == run
    tab.hear({"do": "discard"}, {"run": run})
    assert context.desk.did == [("pause", run), ("unpause", run), ("discard", run)]
    page.look()
    assert (page.run, page.parts["controls"]) == ("", "") and "No run yet" in page.parts["status"]


@pytest.mark.parametrize(
    "said", [None, "stop", [], {"do": "fix", "value": "9"}, {"do": "explode"}, {"do": "answer"}]
)
def test_what_a_page_says_is_not_believed(context, tab, said):
    context.desk.log["one"] = [step(1, 1)]
    for watched in (None, [], {"run": "../../etc"}, {"run": 7}):
        assert set(tab.hear(said, watched)) == {"run", "note", "number"}
    assert context.desk.started == []
    for shown in (
        None,
        [],
        {"marks": 3, "chart": "x", "run": ["a"]},
        {"chart": {"cursor": 3}, "sample": EVIL},
        {"chip": {"run": ["a"], "state": "running"}, "active": 7},
        {"chip": "one"},
    ):
        assert tab.page.look(shown)["run"] == "one"


def test_a_stranger_is_told_nothing(context, tab):
    for name in ("look", "log"):
        work = getattr(tab.watched, name)
        for stranger in (
            SimpleNamespace(request=None),
            SimpleNamespace(request=SimpleNamespace(scope={"studio.role": "viewer"})),
        ):
            with pytest.raises(gr.Error):
                work(stranger, {})
    assert tab.watched.look(OWNER, {})["run"] == ""


def test_two_pages_and_a_reload_see_each_point_once(context, tab):
    run = context.desk.start(context.draft())
    first, second = Page(tab), Page(tab)
    events = [PhaseStarted(seq=1, time_s=1, phase="train"), *(step(i, i + 1) for i in range(1, 5))]
    for i, event in enumerate(events):
        context.desk.log[run].append(event)
        first.look()
        if i == 2:
            first = Page(tab)  # reload
        if i % 2:
            second.look()
    for page in (first, second):
        page.look()
        assert page.steps == 4
    asked = [after for _, after in context.desk.asked]
    assert asked == sorted(asked), "events that were folded are not read again"


def test_a_page_that_has_everything_gets_nothing(context, tab):
    run = context.desk.start(context.draft())
    context.desk.log[run] += [step(1, 1), RunFinished(seq=2, time_s=2, step=1, loss=1, artifact="adapter")]
    context.desk.active = None
    page = Page(tab)
    parts = page.look()
    assert parts["controls"] == "" and 'data-go="export"' in parts["verdicts"]
    assert page.look() == {} and len(page.payloads) == 1


def test_another_page_follows_a_run_that_starts(context, tab):
    context.desk.log["old"] = [RunFinished(seq=1, time_s=1, step=1, loss=1, artifact="a")]
    page = Page(tab)
    page.look()
    assert page.run == "old"
    context.desk.start(context.draft())
    page.look()
    assert page.run == context.desk.active
    page.run = "old"  # the person looks at another one meanwhile
    page.look()
    assert page.run == "old" and page.parts["controls"] == ""


def test_the_chip_and_the_end_are_those_of_the_run_that_is_on(context, tab):
    """Whichever run one looks at; the next of the queue may begin between two looks."""
    context.desk.log["old"] = [RunStopped(seq=1, time_s=1, step=1, saved=True)]
    first = context.desk.start(context.draft())
    context.desk.log[first] = [step(1, 1)]
    page = Page(tab)
    page.look()
    page.run = "old"
    page.look()
    assert page.run == "old" and 'data-state="stopped"' in page.parts["status"]
    chip = page.parts["chip"]
    assert f'data-run="{first}"' in chip and 'data-state="running"' in chip and 'data-head="25%"' in chip
    assert f'data-do="stop" data-value="{first}"' in chip and f'data-run-choice="{first}"' in chip
    assert page.told == []

    context.desk.log[first].append(RunFinished(seq=2, time_s=2, step=4, loss=1, artifact="a"))
    second = context.desk.start(context.draft())
    page.look()
    assert page.told == [{"run": first, "name": first, "words": "Finished"}]
    assert f'data-value="{second}"' in page.parts["chip"]

    context.desk.log[second].append(RunStopped(seq=1, time_s=3, step=0, saved=False))
    context.desk.active = None
    page.run = "old"
    page.look()
    page.look()
    assert [one["run"] for one in page.told] == [first, second], "each end once"
    assert f'data-run="{second}"' in page.parts["chip"] and "data-do" not in page.parts["chip"]


def test_a_stop_stops_the_run_that_it_was_meant_for(context, tab):
    first, second = (context.desk.start(context.draft()) for _ in range(2))
    late = tab.hear({"do": "stop"}, {"run": first})
    assert context.desk.active == second and context.say("ui.run.not_running") in late["note"]
    assert not tab.stop(first) and not tab.stop("") and context.desk.active == second
    assert tab.stop(second) and context.desk.active is None


def test_a_run_of_the_command_line_has_no_stop_here(context, tab, monkeypatch):
    context.desk.log["theirs"] = [step(1, 1)]
    record = replace(context.desk.run("theirs"), state="running")
    monkeypatch.setattr(context.desk, "run", lambda run: record)
    page = Page(tab)
    page.look()
    assert 'data-state="running"' in page.parts["chip"] and "data-do" not in page.parts["chip"]
    assert page.parts["controls"] == ""


def test_a_reload_keeps_the_run_of_its_address_while_another_one_is_on(context, tab):
    context.desk.log["old"] = [RunStopped(seq=1, time_s=1, step=1, saved=True)]
    active = context.desk.start(context.draft())
    page = Page(tab, "old")
    page.look()
    page.look()
    assert (page.run, page.active) == ("old", active)
    for fresh in (Page(tab), Page(tab, "gone")):
        fresh.look()
        assert fresh.run == active
    elsewhere = Page(tab, "old")
    elsewhere.active = ""  # the address was another tab's
    elsewhere.look()
    assert elsewhere.run == active


def test_only_what_is_saved_is_said_to_be_saved(context, tab):
    saved = CheckpointSaved(seq=2, time_s=2, step=1, size_bytes=1)
    for name, events in (("kept", [step(1, 1), saved]), ("lost", [step(1, 1)])):
        context.desk.log[name] = [*events, RunStopped(seq=3, time_s=3, step=1, saved=name == "kept")]
        page = Page(tab, name)
        page.chip = {"run": name, "state": "running"}
        page.look()
        full = "Stopped and saved" if name == "kept" else "Stopped, nothing to save yet"
        assert full in page.parts["status"] and page.parts["spoken"] == full and page.told[0]["words"] == full
        assert ">Stopped<" in page.parts["chip"]
        assert "· Stopped" in run_label(context.desk.run(name), context.say)
        assert "saved" not in page.parts["pick"]


def test_a_run_is_called_by_its_new_name_at_once(context, tab, monkeypatch):
    context.desk.log["one"] = [step(1, 1), RunStopped(seq=2, time_s=2, step=1, saved=True)]
    page = Page(tab)
    page.look()
    record = replace(context.desk.run("one"), name="renamed")
    monkeypatch.setattr(context.desk, "run", lambda run: record)
    parts = page.look()
    assert "<h2>renamed</h2>" in parts["status"] and "pick" in parts


def test_a_page_comes_back_to_the_run_of_its_address(context, tab):
    for name in ("one", "two", "three"):
        context.desk.log[name] = [RunStopped(seq=1, time_s=1, step=1, saved=True)]
    page = Page(tab, "one")
    page.look()
    assert page.run == "one" and page.parts["pick"].count("<option") == 3
    gone = Page(tab, "gone")
    gone.look()
    assert gone.run == "three"


def test_a_run_that_no_longer_lives_can_be_resumed(context, tab):
    context.desk.log["cut"] = [step(1, 1)]
    page = Page(tab)
    page.look()
    assert page.state == "interrupted" and 'id="run-resume"' in page.parts["controls"]
    tab.hear({"do": "resume"}, {"run": "cut"})
    page.look()
    assert 'id="run-stop"' in page.parts["controls"]
    with pytest.raises(StudioError):
        tab.hear({"do": "resume"}, {"run": ""})


def test_a_fix_is_applied_and_started(context, tab):
    fixes = (Fix(title=literal("look")), Fix(title=literal(EVIL), change={"optim.micro_batch": 1}))
    diagnosis = Diagnosis(id="x", what=literal(EVIL), why=literal("y"), fixes=fixes)
    context.desk.log["bad"] = [RunFailed(seq=1, time_s=1, step=1, diagnosis=diagnosis)]
    page = Page(tab)
    card = page.look()["failure"]
    assert "<img" not in card and 'data-do="fix" data-value="1"' in card and card.count("<button") == 1
    assert tab.hear({"do": "fix", "value": "0"}, {"run": "bad"})["run"] == "bad"
    shown = tab.hear({"do": "fix", "value": "1"}, {"run": "bad"})
    assert context.desk.started[0].optim.micro_batch == 1 and shown["run"] == context.desk.active


def test_a_run_that_stands_still_asks_and_the_box_goes_when_it_moves(context, tab):
    run = context.desk.start(context.draft())
    stall = RunStalled(
        seq=2, time_s=2, step=3, phase="train", waited_s=61, verdict="blocked",
        message=literal(EVIL), frame="a.py:1 in <b>", action="ask",
    )  # fmt: skip
    context.desk.log[run] = [step(2, 1), stall]
    page = Page(tab)
    card = page.look()["stall"]
    assert "a.py:1 in &lt;b&gt;" in card and "<img" not in card
    assert all(f'data-value="{name}"' in card for name in ("wait", "restart", "stop"))
    assert "note" in tab.hear({"do": "answer", "value": "restart"}, {"run": run})["note"]
    tab.hear({"do": "answer", "value": "format the disk"}, {"run": run})
    assert context.desk.answered == [(run, "restart")]
    context.desk.log[run].append(StallEnded(seq=3, time_s=3, step=3, waited_s=70))
    assert page.look()["stall"] == ""


def test_an_op_that_fell_back_is_named_at_the_run(context, tab):
    run = context.desk.start(context.draft())
    fell = KernelFellBack(seq=2, time_s=2, step=7, op="glu", reason=literal("out of resource"))
    context.desk.log[run] = [step(6, 1), fell, step(7, 3)]
    status = Page(tab).look()["status"]
    assert "badge" in status and "glu" in status and "7" in status


def test_sample_answers_are_chosen_by_evaluation_and_escaped(context, tab):
    def answer(seq: int, at: int, words: str) -> SampleWritten:
        return SampleWritten(
            seq=seq, time_s=seq, step=at, prompt=EVIL, answer=words, expected="right", base=EVIL
        )

    context.desk.log["one"] = [answer(1, 0, EVIL), answer(2, 5, "wrong"), answer(3, 9, "right")]
    page = Page(tab)
    newest = page.look()["samples"]
    assert 'data-step="9"' in newest and "<img" not in newest and "as expected" in newest
    page.sample = 5
    chosen = page.look()["samples"]
    assert "wrong" in chosen and "as expected" not in chosen
    page.sample = 0
    assert "before training" in page.look()["samples"]
    assert "<img" not in samples_card((), None, context.say)


def test_a_phase_that_takes_time_says_why(context):
    view = fold(LiveView(), [PhaseStarted(seq=1, time_s=100.0, phase="load")])
    quick = status_card(view, "running", context.say, None, 102.0)
    slow = status_card(view, "running", context.say, None, 130.0)
    assert "reason" not in quick and "from the disk" in slow and "0:30" in slow
    moving = fold(view, [PhaseStarted(seq=2, time_s=131.0, phase="train"), step(1, 3, 140.0)])
    assert "reason" not in status_card(moving, "running", context.say, None, 200.0)
    assert "are loaded first" in status_card(LiveView(), "running", context.say, None, 1.0)


def test_the_reader_hears_of_phases_and_the_end_only(context, tab):
    run = context.desk.start(context.draft())
    context.desk.log[run] = [PhaseStarted(seq=1, time_s=1, phase="train"), step(1, 2)]
    page = Page(tab)
    assert page.look()["spoken"] == "Training: learning"
    context.desk.log[run].append(step(2, 3))
    assert "spoken" not in page.look()


def test_the_settings_are_those_of_the_run_and_the_log_can_be_taken_away(context, tab):
    context.desk.log["one"] = [step(1, 1), RunStopped(seq=2, time_s=2, step=1, saved=True)]
    page = Page(tab)
    card = page.look()["settings"]
    assert "<dt>Model</dt><dd>demo</dd>" in card and "&quot;version&quot;" in card
    words = tab.page.log_text("one")
    assert words.count("\n") == 2 and "Stopped" in words
    context.desk.log["long"] = [replace(step(i, i), total_steps=500) for i in range(1, 501)]
    page.run = "long"
    assert page.look()["log"].count("<p") <= 60
    words = tab.page.log_text("long")
    assert words.count("\n") == 500 and "step 1 " in words.lower(), "the file holds the whole run"
    assert tab.page.log_text("../secret") == ""


def test_a_template_in_the_data_is_not_a_template_of_the_page():
    view = fold(
        LiveView(), [PhaseStarted(seq=1, time_s=1, phase="train", detail=literal("${alert(1)} {{value}} `"))]
    )
    assert "${alert(1)} {{value}} `" in log_card(view, lambda message, **_: str(message.values["words"]))
    assert run_view.failure_card(None, str) == ""


def test_the_clock_of_a_run_that_has_ended_stands_still_at_once(context):
    """It keeps the engine for a moment after its last event: the time on show must not go back then."""
    view = fold(LiveView(), [step(1, 1, 100.0), RunStopped(seq=2, time_s=140.4, step=1, saved=True)])
    before = status_card(view, "running", context.say, None, 141.2)
    after = status_card(view, "stopped", context.say, None, 142.0)
    assert "0:40" in before and "0:40" in after


def test_a_diagnosis_without_words_is_shown_all_the_same(context):
    hollow = Diagnosis(id="x", what=None, why=None, fixes=(Fix(title=None), Fix(title=literal("try this"))))
    card = run_view.failure_card(hollow, context.say)
    assert "try this" in card and context.say("failure.unknown") in card and "None" not in card


def test_a_page_that_was_open_before_hears_that_the_studio_is_shared(context, tab, monkeypatch):
    page = Page(tab)
    assert page.look()["banner"] == "" and "banner" not in page.look()
    sharing = context.desk.sharing
    opening = Opening(
        role="viewer", way="lan", port=7, opened_s=0.0, expires_s=9e9, salt="", phrase_hash=""
    )  # fmt: skip
    view = replace(sharing.view(), number=5, openings=(opening,))
    monkeypatch.setattr(sharing, "view", lambda: view)
    assert "share-banner" in page.look()["banner"]
    view = replace(view, number=6, openings=())
    assert page.look()["banner"] == "" and page.look() == {}


def test_the_charts_know_from_the_start_whether_there_is_a_card(context, tab):
    """The machine has none: four charts, before the first step too, and six for a run that had one."""
    run = context.desk.start(context.draft())
    page = Page(tab)
    page.look()
    assert page.payloads[-1]["card"] is False
    plan = make_plan()
    on_card = replace(plan, device=replace(plan.device, value="cuda:0"))
    for seq, (device, card) in enumerate([(plan, False), (on_card, True)], 1):
        context.desk.log[f"run-{seq}"] = [RunPlanned(seq=1, time_s=1.0, plan=device, swaps=())]
        other = Page(tab, f"run-{seq}")
        other.active = run
        other.look()
        assert other.payloads[-1]["card"] is card
    later = {"run": "a", "generation": 0, "cursor": {"step": 0, "eval": 0, "gpu": 0}, "card": False}
    assert payload("a", 0, Points(), later, card=False) is None
    assert payload("a", 0, Points(), later, card=True)["card"] is True, "the plan came after the first look"


def test_what_is_added_while_a_run_is_on_is_said_to_wait(tab):
    style = (Path(run_view.__file__).parents[2] / "assets" / "style" / "training.css").read_text(
        encoding="utf-8"
    )
    assert "waits in the queue" in tab.waits.value and tab.waits.elem_id == "run-queue-why"
    assert 'body:not([data-training="yes"]) #run-queue-why { display: none; }' in style
