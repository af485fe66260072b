"""The guests' page: only what guests may see and do, whatever a page sends, with nothing of this machine in it."""

from __future__ import annotations

import asyncio
import contextvars
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.events import (
    Diagnosis,
    Metric,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunStalled,
    SampleWritten,
    StepLogged,
    Warned,
)
from studio.core.i18n import literal
from studio.core.run_record import RunRecord
from studio.machine.workspace import open_workspace
from studio.services.desk import Desk
from studio.ui.app import build
from studio.ui.auth.owner import Keys
from studio.ui.context import Context
from studio.ui.guest.cards import PLACE, GuestRedactor
from studio.ui.guest.page import (
    QUESTION_LETTERS,
    QUESTIONS_ALL,
    QUESTIONS_EACH,
    TURNS,
    GuestPage,
    Quota,
    build_guest,
)
from studio.ui.metric_columns import COLUMNS
from studio.ui.run_state import LiveView
from studio.ui.shell.blocks import TerseBlocks
from tests.each_time import some
from tests.path_spellings import SPELLINGS
from tests.ui.conftest import FakeDesk
from tests.ui.sheet import Sheet

EVIL = '<img src=x onerror="alert(1)">'
PARTS = {"row", "column", "html", "tabs", "tabitem", "textbox", "button", "timer", "state", "form"}


class SharedDesk(FakeDesk):
    """A desk with runs in states that a test sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.records: list[RunRecord] = []
        self.questions: list[list[dict]] = []

    def list(self) -> tuple[RunRecord, ...]:
        return tuple(self.records)

    def read(self, run: str) -> RunRecord:
        return next(record for record in self.records if record.run == run)

    def events(self, run: str, after: int = 0):
        return tuple(event for event in self.log.get(run, []) if event.seq > after)

    def answer(self, messages, *, run, max_new_tokens):
        self.questions.append([*messages])
        yield SimpleNamespace(words="So")
        yield SimpleNamespace(words=f"So be it {EVIL} ![x](http://evil.example/x.png)")


def record(run: str, state: str = "finished", **parts) -> RunRecord:
    return RunRecord(run=run, name=parts.pop("name", run), state=state, created_s=1.0, **parts)


@pytest.fixture
def fake_desk(workspace):
    return SharedDesk(workspace)


@pytest.fixture
def page(context) -> GuestPage:
    """The page's handlers, with the list of runs read each time."""
    page = GuestPage(context)
    with Sheet():
        page.build()
    return page


def add_run(desk, run: str, *events, state: str = "finished", **parts) -> None:
    desk.records.insert(0, record(run, state, **parts))
    desk.log[run] = [replace(event, seq=i + 1, time_s=float(i + 1)) for i, event in enumerate(events)]


def look(page: GuestPage, watched: dict | None = None, chosen: str = "") -> dict:
    """One tick, by the names of what it shows; what it leaves out is None."""
    page._listed = (-100.0, ())
    values = page.tick(chosen, watched or page.watched.value)
    names = ("watched", "list", "charts", "status", "samples", "log")
    skip = gr.skip()
    return {name: None if value == skip else value for name, value in zip(names, values, strict=True)}


def ask(page: GuestPage, question: str, run: str, turns: list | None = None) -> list[list]:
    return list(page.answer(question, run, page.watched.value, turns or []))


def request(role: str) -> SimpleNamespace:
    return SimpleNamespace(request=SimpleNamespace(scope={"studio.role": role, "studio.caller": "x"}))


# Roles ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["owner", "", "admin", "Viewer"])
def test_every_handler_of_guests_serves_guests_alone(context, role):
    functions = [fn for fn in build_guest(context).fns.values() if fn.fn is not None]
    assert 6 <= len(functions) <= 12
    for fn in functions:
        assert fn.api_visibility == "private"
        with pytest.raises(gr.Error):
            list(fn.fn(request(role), *[None] * len(fn.inputs)) or [])


@pytest.mark.parametrize("role", ["viewer", ""])
def test_every_handler_of_the_window_refuses_all_but_the_owner(context, role):
    functions = [fn for fn in build(context).fns.values() if fn.fn is not None]
    assert len(functions) > 40
    for fn in functions:
        if fn.api_visibility != "private":  # a program's endpoint refuses in its answer
            assert fn.fn(request(role), *[None] * len(fn.inputs)).keys() == {"error"}
            continue
        with pytest.raises(gr.Error):
            list(fn.fn(request(role), *[None] * len(fn.inputs)) or [])


def test_the_page_has_no_part_that_takes_a_file_or_a_path(context):
    blocks = build_guest(context)
    assert {component["type"] for component in blocks.config["components"]} <= PARTS
    words = json.dumps(blocks.get_config_file(), ensure_ascii=False, default=str)
    assert context.say("ui.page.lost") in words
    for part in (str(context.workspace.root), str(Path.home())):
        assert part not in words


# What is shown -------------------------------------------------------------------------------------------------------


def test_runs_are_listed_and_the_newest_is_shown(page, fake_desk):
    seen = look(page)
    assert "No runs yet" in seen["list"] and seen["status"] is None
    assert look(page, seen["watched"])["list"] is None, "said once"
    add_run(fake_desk, "old", RunFinished(step=3, loss=0.5, artifact="adapter"))
    add_run(fake_desk, "new", PhaseStarted(phase="train"), StepLogged(step=1, total_steps=4, loss=2.0, lr=0.1,
            grad_norm=1.0, tokens_per_s=9.0, vram_bytes=0, epoch=0.1), state="running", name=EVIL)  # fmt: skip
    fake_desk.active = "new"
    seen = look(page)
    assert 'data-run="new"' in seen["status"] and 'data-state="running"' in seen["status"]
    assert seen["charts"]["run"] == "new" and seen["charts"]["until"]["step"] == 1
    assert seen["list"].index('data-value="new"') < seen["list"].index('data-value="old"')
    assert "<img" not in seen["list"] + seen["status"] and "&lt;img" in seen["list"]
    for part in ('data-do="stop"', "data-go", 'data-do="fix"', 'data-do="answer"'):
        assert part not in "".join(seen[name] for name in ("list", "status", "samples", "log"))
    page_again = look(page, seen["watched"] | {"listed": 0.0})
    assert page_again["status"] is None, "nothing new"


def test_choosing_replaying_and_following(page, fake_desk):
    for run in ("one", "two"):
        add_run(fake_desk, run, RunFinished(step=3, loss=0.5, artifact="adapter"))
    first = look(page)
    chosen, turns, talk = page.choose({"do": "show", "value": "one"})
    assert (chosen, turns) == ("one", [])
    seen = look(page, first["watched"], chosen)
    assert 'data-run="one"' in seen["status"]
    assert page._points("one", LiveView(metrics=(Metric(name="plain_loss"),)), {})["metrics"][0]["label"]
    watched, message = page.replay(chosen, seen["watched"])
    assert message["run"] == "one" and message["since"] == dict.fromkeys(COLUMNS, 0)
    fake_desk.log["one"].append(Warned(message=literal("hm"), seq=9, time_s=9.0))
    assert "hm" in look(page, watched, chosen)["log"]
    late = look(page, watched)["watched"]  # an answer that was on its way as the choice was made
    assert look(page, late | {"run": "two"}, chosen)["watched"]["run"] == "one"


def test_no_look_that_was_on_its_way_writes_over_a_choice(context):
    page = GuestPage(context)
    with Sheet() as blocks:
        page.build()
        page.bind(blocks.load)
    assert sum(page.chosen in handler.outputs for handler in blocks.fns.values()) == 1


@pytest.mark.parametrize(("state", "events", "active", "shown"), [
    ("running", "running", "r", "running"), ("running", "running", None, "running"),
    ("stopped", "running", None, "interrupted"), ("failed", "waiting", None, "failed"),
    ("running", "waiting", "r", "running"), ("finished", "finished", None, "finished"),
])  # fmt: skip
def test_how_a_run_stands(page, fake_desk, state, events, active, shown):
    fake_desk.active = active
    assert page._state(record("r", state), events) == shown


def test_nothing_of_this_machine_is_shown(page, fake_desk, context, monkeypatch):
    root, token = context.workspace.root, "hf_CanaryCanary1234"
    monkeypatch.setenv("USER", "rosalind")
    secrets = [str(root), str(root / "runs"), "/srv/models/secret-folder", "C:\\Users\\rosalind\\data", token,
               "\\\\server\\share\\data", "/" + "home/rosalind/x", "rosalind", "D:/models/secret-folder"]  # fmt: skip
    words = " ".join(f"cannot open '{secret}/file.bin' now" for secret in secrets)
    diagnosis = Diagnosis(id="x", what=literal(words), why=literal(words), fixes=())
    add_run(
        fake_desk, "one", Warned(message=literal(words)), PhaseStarted(phase="load", detail=literal(words)),
        SampleWritten(step=0, prompt=words, answer=words, expected=words, base=words),
        RunStalled(step=1, phase="train", waited_s=9.0, verdict="blocked", message=literal(words), frame=words,
                   measures={}, action="ask"),
        RunFailed(step=1, diagnosis=diagnosis), state="failed", name=words,
    )  # fmt: skip
    seen = look(page)
    shown = json.dumps(seen, ensure_ascii=False)
    for secret in [*secrets, "secret-folder", "server"]:
        assert secret not in shown and secret.replace("\\", "\\\\") not in shown, secret
    assert "file.bin" in shown, "the last part of a path says what it is about"
    assert 'data-do="answer"' not in shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("4 tokens/s, 1/2, and/or, 12:30, a\\b", None),
        ("see https://example.org/a/b", None),
        ("open /data/models/x.json", f"open {PLACE}x.json"),
        ("open 'C:\\models\\x.json'", f"open '{PLACE}x.json'"),
        ("open \\\\nas\\models\\x.json", f"open {PLACE}x.json"),
        ("~/models/x.json", f"{PLACE}x.json"),
        ("(/a/b/c)", f"({PLACE}c)"),
    ],
)
def test_what_the_curtain_takes_out(context, words, shown):
    assert GuestRedactor(context.workspace, context.say).clean(words) == (shown or words)


# What a page sends ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    """A page with one run, made once: building the parts takes longer than all else."""
    workspace = open_workspace(str(tmp_path_factory.mktemp("guests") / "workspace"))
    desk = SharedDesk(workspace)
    add_run(desk, "one", RunFinished(step=3, loss=0.5, artifact="adapter"))
    page = GuestPage(Context(desk, workspace, Keys(workspace.root, 7999), "en"))
    with Sheet():
        page.build()
    return page


@pytest.mark.parametrize("name", SPELLINGS, ids=range(len(SPELLINGS)))
def test_no_spelling_of_a_path_is_a_run(one_run, name):
    page = one_run
    with pytest.raises(gr.Error):
        page.choose({"do": "show", "value": name})
    with pytest.raises(StudioError):
        ask(page, "hello", name)
    assert page.replay(name, page.watched.value)[1] == gr.skip()
    assert look(page, page.watched.value | {"run": name}, name)["watched"]["run"] == "one"


@pytest.fixture(scope="module")
def real_desk(tmp_path_factory):
    """A desk with a key beside its runs, which no run's name may reach."""

    workspace = open_workspace(str(tmp_path_factory.mktemp("spellings") / "workspace"))
    (workspace.root / "gate.key").write_bytes(b"k" * 32)
    desk = Desk(workspace)
    yield desk
    desk.close()


@pytest.mark.parametrize("name", some(SPELLINGS, *SPELLINGS[::4]), ids=range(len(SPELLINGS)))
def test_no_spelling_reaches_a_file_through_the_desk(real_desk, name):
    before = {path for path in real_desk.workspace.root.rglob("*") if path.is_file()}
    desk = real_desk
    takers = [
        *(desk.runs.read, desk.runs.recipe, desk.runs.events, desk.queue.resume),
        *(
            desk.library.delete,
            desk.library.duplicate,
            desk.library.again,
            lambda one: desk.library.rename(one, "x"),
        ),
        *(desk.exports.find, desk.exports.delete, desk.queue.drop, lambda one: desk.queue.move(one, 1)),
        *(desk.presets.find, desk.presets.delete),
        *(
            lambda one, kind=kind: desk.presets.delete(f"{kind}:{one}")
            for kind in ("mine", "built_in", "run")
        ),
    ]
    for work in takers:
        with pytest.raises(StudioError):
            work(name)
    assert before <= {path for path in real_desk.workspace.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("said", [None, 3, "show", [], {}, {"do": "delete", "value": "one"}, {"do": "show"},
                                  {"do": ["show"], "value": {"x": 1}}, {"do": "show", "value": ["one"]}])  # fmt: skip
def test_what_is_no_choice_chooses_nothing(one_run, said):
    with pytest.raises(gr.Error):
        one_run.choose(said)


# Chat ----------------------------------------------------------------------------------------------------------------


def test_what_guests_send_wrongly_neither_fills_nor_colours_the_log(context, capfd):
    """Gradio writes a traceback of 1.5 KB for each: a guest who asks 20 times a second would write 2.6 GB a day.

    It quotes what was sent, with its escapes for the terminal and lines like those of the log.
    """
    blocks = build_guest(context)
    number = next(number for number, fn in blocks.fns.items() if len(fn.inputs) > 1)
    for length in (0, 60_000, *range(TerseBlocks.most_faults + 3)):
        words = "\x1b[31mowned\nINFO owned\x85INFO \u202eowned" + "x" * length
        with pytest.raises(gr.Error) as refused:
            asyncio.run(blocks.process_api(number, [words]))
        assert not refused.value.print_exception
    said = capfd.readouterr().err
    assert (
        TerseBlocks.most_faults - 1 == said.count("enough input values")
        and said.count("owned") >= TerseBlocks.most_faults
    )
    assert all(line.startswith("| ") and line.isprintable() for line in said.split("\n") if "owned" in line)
    assert len(said) < TerseBlocks.most_faults * 2 * TerseBlocks.fault_letters


def test_a_talk_with_a_finished_model(page, fake_desk):
    add_run(fake_desk, "one")
    steps = ask(page, f"  {EVIL}  ", "one")
    assert steps[0][0] == "" and steps[0][2] == [], "kept only once it is whole"
    _, shown, turns = steps[-1]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert "So be it" in shown and "<img" not in shown and "src=" not in shown.replace("src=x", "")
    long = ask(page, "y" * 99_999, "one", turns * 30)
    assert len(fake_desk.questions[-1]) == TURNS + 1
    assert len(fake_desk.questions[-1][-1]["content"]) == QUESTION_LETTERS
    assert len(long[-1][2]) == TURNS + 2
    assert ask(page, "   ", "one") == []


@pytest.mark.parametrize(("state", "active", "kind"), [
    ("finished", "one", "training"), ("finished", "another", "training"), ("running", None, "unfinished"),
    ("failed", None, "unfinished"), ("stopped", None, "unfinished"),
])  # fmt: skip
def test_a_talk_must_wait_or_cannot_be(page, fake_desk, state, active, kind):
    add_run(fake_desk, "one", state=state)
    fake_desk.active = active
    with pytest.raises(StudioError) as refused:
        ask(page, "hello", "one")
    assert refused.value.what.id == f"ui.guest.chat.{kind}"
    assert not fake_desk.questions


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after a word"])
def test_a_refusal_tells_a_guest_nothing_of_this_machine(context, fake_desk, late):
    """Whatever reason the desk gives, also in the middle of an answer, where Gradio goes on in another context."""
    add_run(fake_desk, "one")
    secret = f"{context.workspace.root}/runs/one hf_CanaryCanary1234 /srv/models/secret-folder/x.bin"

    def refuse(*_, **__):
        if late:
            yield SimpleNamespace(words="So")
        raise StudioError(literal(f"What {secret}"), literal(f"Why {secret}"), literal(f"Fix {secret}"))

    fake_desk.answer = refuse
    page = GuestPage(context)
    with Sheet():
        page.build()
    steps = context.guarded(page.answer, "viewer")(request("viewer"), "hi", "one", page.watched.value, [])
    with pytest.raises(gr.Error) as refused:
        while True:
            contextvars.Context().run(next, steps)
    for word in (str(context.workspace.root), "hf_Canary", "secret-folder", "/srv"):
        assert word not in refused.value.message
    assert "x.bin" in refused.value.message
    with pytest.raises(gr.Error, match="secret-folder"):
        context.guarded(lambda: list(refuse()))(request("owner"))


def test_questions_are_counted():
    now = [0.0]
    quota = Quota(clock=lambda: now[0])
    assert [quota.take("a") for _ in range(QUESTIONS_EACH + 1)] == [True] * QUESTIONS_EACH + [False]
    more = [quota.take(f"guest {i}") for i in range(QUESTIONS_ALL)]
    assert sum(more) == QUESTIONS_ALL - QUESTIONS_EACH
    now[0] += 61
    assert quota.take("a")


def test_too_many_questions_are_refused_with_the_reason(page, fake_desk):
    add_run(fake_desk, "one")
    page.quota.take = lambda guest: False
    with pytest.raises(StudioError) as refused:
        ask(page, "hello", "one")
    assert refused.value.what.id == "ui.guest.chat.often"
