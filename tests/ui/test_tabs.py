"""The tabs' handlers: who may call them, what they show, and that no data ever becomes HTML."""

from __future__ import annotations

from types import SimpleNamespace

import gradio as gr
import pytest

from studio.core.errors import Problem, StudioError
from studio.core.events import (
    Diagnosis,
    Fix,
    KernelFellBack,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunStalled,
    RunStopped,
    StallEnded,
    StepLogged,
)
from studio.core.text import literal
from studio.ui import cards
from studio.ui.app import build
from studio.ui.form import Form
from studio.ui.live import LiveView, fold
from studio.ui.tabs.chat import ChatTab
from studio.ui.tabs.dataset import DatasetTab
from studio.ui.tabs.export import ExportTab
from studio.ui.tabs.hyperparameters import HyperparametersTab
from studio.ui.tabs.model import ModelTab
from studio.ui.tabs.training import FIXES, NOTHING, TrainingTab

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def tabs(context):
    """All tabs of one window, and its form."""
    with gr.Blocks(analytics_enabled=False):
        form = Form(context.words, context.draft())
        made = SimpleNamespace(
            form=form,
            model=ModelTab(context, form),
            dataset=DatasetTab(context, form),
            settings=HyperparametersTab(context, form),
            training=TrainingTab(context, form),
            chat=ChatTab(context),
            export=ExportTab(context),
        )
        made.training.make_shared()
        made.training.bind(gr.HTML(""))
    return made


def look(tabs, watched: dict, card: str = "") -> tuple[dict, dict]:
    """One tick of a page whose status is `card`: what the page holds afterwards, and what changed by part."""
    answer = tabs.training.tick(watched, card)
    names = [
        "watched",
        "charts",
        "status",
        "failure",
        "log",
        "plan",
        "start",
        "stop",
        "resume",
        "pick",
        "chip",
        *["fix"] * FIXES,
        "stall",
        "answer_wait",
        "answer_restart",
        "answer_stop",
    ]
    changes = dict(zip(names, answer, strict=False))
    skipped = gr.skip()
    changes = {name: value for name, value in changes.items() if value != skipped}
    return changes.get("watched", watched), changes


def step(number: int, seq: int) -> StepLogged:
    return StepLogged(
        seq=seq, time_s=seq, step=number, total_steps=4, epoch=0, loss=1, lr=1, grad_norm=1, tokens_per_s=1
    )


def test_every_handler_of_the_window_refuses_a_stranger(context):
    blocks = build(context)
    stranger = SimpleNamespace(cookies={})
    functions = [fn for fn in blocks.fns.values() if fn.fn is not None]
    assert len(functions) > 20
    for fn in functions:
        assert fn.api_visibility == "private"
        with pytest.raises(gr.Error):
            answer = fn.fn(stranger, *[None] * len(fn.inputs))
            list(answer)  # a generator checks at its first step


def test_the_owner_is_served_and_refusals_become_messages(context, keys):
    owner = SimpleNamespace(cookies={keys.cookie_name: keys.redeem(keys.url.partition("token=")[2])})
    assert context._guarded(lambda value: value + 1)(owner, 1) == 2

    def refuse():
        raise StudioError(literal(EVIL), literal("why"), literal("fix"))

    with pytest.raises(gr.Error) as refused:
        context._guarded(refuse)(owner)
    assert "<img" not in refused.value.message
    assert "&lt;img" in refused.value.message


def test_a_start_with_problems_lists_them_all_and_starts_nothing(context, tabs):
    context.desk.problems = tuple(
        Problem(field=path, message=literal(path), fix=literal(EVIL))
        for path in ("optim.epochs", "adapter.rank")
    )
    html, watched = tabs.training.begin(NOTHING, *tabs.form.show(context.draft()))
    assert context.desk.started == [] and watched == NOTHING
    assert "Epochs" in html and "Rank" in html and "<img" not in html


def test_a_start_shows_the_new_run(context, tabs):
    html, watched = tabs.training.begin(NOTHING, *tabs.form.show(context.draft()))
    assert html == "" and context.desk.started == [context.draft()]
    watched, changes = look(tabs, watched)
    assert watched["run"] == "run-1"
    assert (changes["start"]["interactive"], changes["stop"]["interactive"]) == (False, True)


def test_two_pages_and_a_reload_see_each_point_once(context, tabs):
    run = context.desk.start(context.draft())
    pages = {"first": dict(NOTHING), "second": dict(NOTHING)}
    rows: dict[str, list] = {"first": [], "second": []}

    def tick(name: str) -> None:
        pages[name], changes = look(tabs, pages[name])
        message = changes.get("charts")
        if message:
            rows[name] = (rows[name] if message["since"] else []) + message["rows"]

    events = [PhaseStarted(seq=1, time_s=1, phase="train"), *(step(i, i + 1) for i in range(1, 5))]
    for i, event in enumerate(events):
        context.desk.log[run].append(event)
        tick("first")
        if i == 2:
            pages["first"], rows["first"] = dict(NOTHING), []  # reload
        if i % 2:
            tick("second")
    for name in pages:
        tick(name)
        assert [row[1] for row in rows[name]] == [1, 2, 3, 4]
    asked = [after for _, after in context.desk.asked]
    assert asked == sorted(asked), "events that were folded are not read again"


def test_a_page_that_has_everything_gets_nothing(context, tabs):
    run = context.desk.start(context.draft())
    context.desk.log[run] += [step(1, 1), RunFinished(seq=2, time_s=2, step=1, loss=1, artifact="adapter")]
    context.desk.active = None
    watched, changes = look(tabs, NOTHING)
    assert changes["resume"]["interactive"] is False
    assert look(tabs, watched)[1] == {}


def test_another_page_follows_a_run_that_starts(context, tabs):
    context.desk.log["old"] = [RunFinished(seq=1, time_s=1, step=1, loss=1, artifact="a")]
    watched, _ = look(tabs, NOTHING)
    assert watched["run"] == "old"
    context.desk.start(context.draft())
    assert look(tabs, watched)[0]["run"] == context.desk.active


def test_a_run_that_no_longer_lives_can_be_resumed(context, tabs):
    context.desk.log["cut"] = [step(1, 1)]
    watched, changes = look(tabs, NOTHING)
    assert watched["state"] == "interrupted" and changes["resume"]["interactive"]
    tabs.training.go_on(watched)
    assert look(tabs, watched)[1]["stop"]["interactive"]


def test_a_fix_is_applied_and_started(context, tabs):
    fix = Fix(title=literal("smaller"), change={"optim.micro_batch": 1})
    failed = RunFailed(
        seq=1,
        time_s=1,
        step=1,
        diagnosis=Diagnosis(id="x", what=literal(EVIL), why=literal("y"), fixes=(fix,)),
    )
    context.desk.log["bad"] = [failed]
    answer = tabs.training.tick(NOTHING)
    assert "&lt;img" in answer[3] and "<img" not in answer[3]
    assert [button["visible"] for button in answer[11 : 11 + FIXES]] == [True, False, False]
    tabs.training._applier(0)(answer[0])
    assert context.desk.started[0].optim.micro_batch == 1


def test_an_answer_that_was_overtaken_is_made_good(context, tabs):
    context.desk.log["one"] = [RunStopped(seq=1, time_s=2, step=3, saved=True)]
    watched, changes = look(tabs, NOTHING)
    now = changes["status"]
    assert look(tabs, watched, now)[1] == {}
    late = now.replace('data-state="stopped"', 'data-state="running"')
    watched, changes = look(tabs, watched, late)
    assert changes["status"] == now and changes["stop"]["interactive"] is False
    assert look(tabs, watched, changes["status"])[1] == {}


def test_a_model_that_cannot_be_read_is_a_card(context, tabs):
    assert "&lt;model&gt;" in tabs.model.describe("missing")
    assert "5.0 M" in tabs.model.describe("demo")
    assert ("Demo model · 9.5 MiB", "demo") in tabs.model.choices("demo")["choices"]


def test_chat_streams_both_sides_and_keeps_both_talks(context, tabs):
    context.desk.log["done"] = []
    assert tabs.chat.choices(None)["value"] == "done"
    shown = list(tabs.chat.answer("done", "hi <b>", {"base": [], "tuned": []}, 8, 0.0, 0))
    assert len(shown) > 10
    talk = shown[-1][3]
    assert [message["content"] for message in talk["base"]] == ["hi <b>", "base: hi <b>"]
    assert [message["content"] for message in talk["tuned"]] == ["hi <b>", "tuned: hi <b>"]
    assert "<b>" not in shown[-1][2]
    with pytest.raises(StudioError):
        next(tabs.chat.answer("", "hi", talk, 8, 0.0, 0))


def test_export_says_where_it_lies(tabs):
    shown = list(tabs.export.export("run-1", "adapter"))
    assert "run-1" in shown[-1] and "2.0 KiB" in shown[-1]


def test_check_shows_the_plan_with_its_reasons(context, tabs):
    problems, plan = tabs.settings.examine(*tabs.form.show(context.draft()))
    assert "All set" in problems
    assert "because &lt;b&gt;" in plan and "rms_norm" in plan


def test_a_template_in_the_data_is_not_a_template_of_the_page():
    view = fold(
        LiveView(), [PhaseStarted(seq=1, time_s=1, phase="train", detail=literal("${alert(1)} {{value}} `"))]
    )
    assert "${alert(1)} {{value}} `" in cards.log_card(
        view, lambda message, **_: str(message.values["words"])
    )


@pytest.mark.parametrize(("size", "words"), [(10, "10 B"), (2048, "2.0 KiB"), (5 * 2**40, "5120.0 GiB")])
def test_sizes_in_words(size, words):
    assert cards.size_words(size) == words


def test_another_language_keeps_the_ids_while_a_run_updates_pages(context, monkeypatch):
    from studio.ui import app

    blocks = app.build(context)
    ids = [part["id"] for part in blocks.config["components"]]
    brand = app.brand

    def interrupted(*words):
        app.BuildContext.id += 7  # what Gradio does for every update that it sends meanwhile
        return brand(*words)

    monkeypatch.setattr(app, "brand", interrupted)
    app.change_language(context, blocks, "zh-CN")
    assert [part["id"] for part in blocks.config["components"]] == ids
    assert "模型" in str(blocks.config["components"])


def test_a_run_that_stands_still_asks_and_the_box_goes_when_it_moves(context, tabs):
    run = context.desk.start(context.draft())
    stall = RunStalled(
        seq=2, time_s=2, step=3, phase="train", waited_s=61, verdict="blocked",
        message=literal(EVIL), frame="a.py:1 in <b>", action="ask",
    )  # fmt: skip
    context.desk.log[run] = [step(2, 1), stall]
    watched, changes = look(tabs, NOTHING)
    assert "a.py:1 in &lt;b&gt;" in changes["stall"] and "<img" not in changes["stall"]
    assert all(changes[f"answer_{name}"]["visible"] for name in ("wait", "restart", "stop"))
    html = tabs.training._answerer("restart")(watched)
    assert context.desk.answered == [(run, "restart")] and "note" in html
    context.desk.log[run].append(StallEnded(seq=3, time_s=3, step=3, waited_s=70))
    _, changes = look(tabs, watched)
    assert changes["stall"] == "" and not changes["answer_wait"]["visible"]


def test_an_op_that_fell_back_is_named_at_the_run(context, tabs):
    run = context.desk.start(context.draft())
    fell = KernelFellBack(seq=2, time_s=2, step=7, op="glu", reason=literal("out of resource"))
    context.desk.log[run] = [step(6, 1), fell, step(7, 3)]
    _, changes = look(tabs, NOTHING)
    assert "badge" in changes["status"] and "glu" in changes["status"] and "7" in changes["status"]
