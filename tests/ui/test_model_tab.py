"""The Model tab: every model in one group of choices, whether it fits, what a pick changes, when the hub is asked."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.i18n import literal, load_catalogue
from studio.hub.search import HubModel
from studio.machine.workspace import open_workspace
from studio.models.recommended_models import SIZES
from studio.services import model_library as fits_module
from studio.services.model_library import FoundModel
from studio.ui.auth.owner import Keys
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.tabs.model.cards import model_details, model_list
from studio.ui.tabs.model.tab import ModelTab
from studio.ui.templates import render
from tests.doubles.model_desk import CardDesk
from tests.ui.sheet import Sheet

EVIL = '<img src=x onerror="window.caught=1">'
NAMES = ("found", "asked", "list", "source", "quantization", "card")
CONFIG = SIZES["8B"]


@pytest.fixture
def desk(workspace, monkeypatch, tmp_path) -> CardDesk:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    return CardDesk(workspace)


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> ModelTab:
    """The tab's components with those of all other knobs: made once, for they hold nothing."""
    workspace = open_workspace(str(tmp_path_factory.mktemp("made")))
    context = Context(CardDesk(workspace), workspace, Keys(workspace.root, 7999), "en")
    with Sheet():
        tab = ModelTab(context, Form(context.words, context.draft()))
        for path in [path for path in tab.form.knobs if path not in tab.form.components]:
            tab.form.field(path)
    return tab


@pytest.fixture
def tab(parts, desk, workspace, keys) -> ModelTab:
    parts.context = Context(desk, workspace, keys, "en")
    parts.say = parts.context.say
    return parts


def say(tab, do: str, value: str = "", found=(), form=None, **changes) -> list[dict]:
    """Everything the tab answers when the page says so, after `changes`; parts that stay as they are left out."""
    tab.context.edit(changes)
    answers = tab.hear({"do": do, "value": value, "form": form or {}}, found)
    return [
        {name: part for name, part in zip(NAMES, answer, strict=True) if part != gr.skip()}
        for answer in answers
    ]


def test_list_is_one_group_of_choices_with_the_chosen_marked(tab):
    *_, shown = tab.open(())
    values = re.findall(
        r'<input type="radio" name="model-choice" value="([^"]+)" data-do="pick"( checked)?', shown
    )
    assert values[0] == ("demo", " checked") and ("Qwen/Qwen3-8B", "") in values
    assert sum(bool(checked) for _, checked in values) == 1
    assert shown.count('role="radiogroup"') == 1 and 'data-chosen="demo"' in shown
    badge = re.search(r'class="fit fits"[^>]*>.*?✓</i> Fits <b>([\d.]+) of 10.8 GiB</b>', shown)
    assert badge, "sign, word and number"
    assert "Good choices" in shown and "Apache-2.0" in shown


def test_list_grows_while_models_are_looked_for(tab, monkeypatch):
    monkeypatch.setattr("studio.ui.tabs.model.tab.REDRAW_S", 0.0)
    one = FoundModel(source="demo", name="demo", origin="demo")
    two = FoundModel(source="/m/b", name="b", origin="folder", problem=literal("broken"))
    monkeypatch.setattr(tab.context.desk.models, "scan", lambda folders=None: iter([(one,), (one, two)]))
    shown = list(tab.open(()))
    assert len(shown) == 3 and "broken" not in shown[0] and "broken" in shown[1]
    assert "Good choices" in shown[2]


def test_a_choice_made_while_models_are_looked_for_stays_marked(tab, monkeypatch):
    monkeypatch.setattr("studio.ui.tabs.model.tab.REDRAW_S", 0.0)
    one = FoundModel(source="demo", name="demo", origin="demo")
    two = FoundModel(source="/m/b", name="b", origin="folder")
    monkeypatch.setattr(tab.context.desk.models, "scan", lambda folders=None: iter([(one, two)]))
    growing = tab.open(())
    assert 'data-chosen="demo"' in next(growing)
    tab.context.edit({"model.source": "/m/b"})
    assert 'data-chosen="/m/b"' in next(growing)


def test_what_cannot_be_trained_is_no_choice_but_told_with_its_reason(tab):
    bad = FoundModel(source=f"/m/{EVIL}", name=EVIL, origin="folder", problem=literal(f"because {EVIL}"))
    shown = model_list([bad], [], [], "demo", tab.say)
    assert 'type="radio"' not in shown and "Not trainable here (1)" in shown
    assert "<img" not in shown and "because &lt;img" in shown


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_names_and_licences_never_become_html(tab, language):
    words = load_catalogue(language)
    hub = HubModel(source="a/b", gated=True, downloads=1200, likes=3)
    model = FoundModel(source=f'"{EVIL}', name=f"{EVIL}/x", origin="hub", licence=EVIL, hub=hub)

    def speak(id, /, **values):
        from studio.core.i18n import text

        return words.say(text(id, **values) if isinstance(id, str) else id)

    shown = (
        model_list([], [], [model], "", speak)
        + model_details(model, "none", speak, EVIL)
        + render("tabs/model/search.html", speak)
    )
    assert "<img" not in shown and "ui.model" not in shown


def test_picking_changes_the_recipe_and_holds_it_in_4_bits_only_where_it_must(tab):
    (answer,) = say(tab, "pick", "Qwen/Qwen3-0.6B")
    assert (answer["source"], answer.get("quantization")) == ("Qwen/Qwen3-0.6B", None)
    (answer,) = say(tab, "pick", "Qwen/Qwen3-8B")
    assert (answer["source"], answer["quantization"]) == ("Qwen/Qwen3-8B", "nf4")
    assert "Changed to QLoRA (4 bits)" in answer["card"] and 'data-chosen="Qwen/Qwen3-8B"' in answer["list"]
    draft = tab.context.draft()
    assert (draft.model.source, draft.model.quantization) == ("Qwen/Qwen3-8B", "nf4")
    (answer,) = say(tab, "pick", "Qwen/Qwen3-8B", **{"adapter.method": "full"})
    assert tab.context.draft().model.quantization == "nf4", "what was set stays"
    say(tab, "pick", "Qwen/Qwen3-8B", **{"model.quantization": "none"})
    assert tab.context.draft().model.quantization == "none", "all weights are never trained in 4 bits"
    (answer,) = say(tab, "pick", "google/gemma-4-31B-it", **{"adapter.method": "lora"})
    assert "quantization" not in answer and "Too large" in answer["card"]


def test_a_pick_changes_nothing_else_of_the_draft(tab, monkeypatch):
    typed = {"optim.learning_rate": "1e-"}
    tab.context.edit({"model.source": "org/new"}, typed)

    def answer_late(source):
        tab.context.edit({"adapter.rank": 24, "data.source": "/mine.csv"})
        return FoundModel(source=source, name="new", origin="hub")

    monkeypatch.setattr(tab.context.desk.models, "ask", answer_late)
    say(tab, "ask", "org/new")
    say(tab, "method", "int8")
    draft = tab.context.draft()
    assert (draft.model.source, draft.model.quantization) == ("org/new", "int8")
    assert (draft.adapter.rank, draft.data.source, tab.context.typed()) == (24, "/mine.csv", typed)


def test_an_answer_that_comes_after_another_choice_changes_nothing(tab, monkeypatch):
    tab.context.edit({"model.source": "org/new"})

    def answer_late(source):
        tab.context.edit({"model.source": "demo"})
        return FoundModel(source=source, name="new", origin="hub")

    monkeypatch.setattr(tab.context.desk.models, "ask", answer_late)
    assert say(tab, "ask", "org/new")[-1] == {"asked": ""}
    assert tab.context.draft().model.source == "demo"


def test_what_was_said_of_the_choice_stays_until_another_is_made(tab):
    (answer,) = say(tab, "pick", "Qwen/Qwen3-8B")
    card = answer["card"]
    assert tab.describe("Qwen/Qwen3-8B", "nf4", card) == gr.skip()
    assert "Changed to" not in tab.describe("Qwen/Qwen3-8B", "none", card)
    assert "Changed to" not in tab.describe("demo", "nf4", card)


def test_methods_are_shown_with_their_memory_and_can_be_chosen(tab):
    card = tab.describe("Qwen/Qwen3-8B", "nf4")
    assert re.findall(r'class="method (\w+)"', card) == ["no", "fits", "no"]
    assert re.findall(r'data-do="method" data-value="(\w+)"', card) == ["none", "int8"]
    assert "2,048 tokens" in card and "in use" in card
    (answer,) = say(tab, "method", "int8")
    assert answer["quantization"] == "int8" and tab.context.draft().model.quantization == "int8"
    assert say(tab, "method", "fp2") == [{}]


def test_the_number_of_a_model_says_what_it_is_for(tab):
    """The card of the run shows another for the same model: that of the settings."""
    model = tab.context.desk.models.find("demo")
    one = replace(model, fit=replace(model.fit, methods=model.fit.methods[:1]))
    shown = model_details(one, "none", tab.context.say)
    assert "one example of 2,048 tokens at a time" in shown and "“Next run”" in shown
    unknown = tab.describe("org/new")
    assert "2,048" not in unknown


def test_model_that_cannot_be_read_is_a_card_and_the_demo_is_ready(tab):
    shown = tab.describe(f"/no/{EVIL}")
    assert 'class="card note bad"' in shown and "<img" not in shown
    assert 'class="flag good"' in tab.describe("demo") and "3.7 M" in tab.describe("demo")
    assert "Choose a model" in tab.describe("  ")


@pytest.mark.parametrize(
    "said", [None, [], "pick", {"do": ["x"]}, {"do": "delete", "value": "demo"}, {"do": "pick"}]
)
def test_what_a_page_makes_up_does_nothing(tab, said):
    assert list(tab.hear(said, ())) == [[gr.skip()] * 6]


# The hub -------------------------------------------------------------------------------------------------------------


def test_only_the_button_asks_the_hub(tab, monkeypatch):
    asked = []
    found = (
        HubModel(
            source="org/Good-8B", config=CONFIG, safetensors=True, licence="mit", downloads=12_000, likes=5
        ),
        HubModel(source="org/Pickles"),
    )
    monkeypatch.setattr(fits_module, "search_hub", lambda words, endpoint: asked.append(words) or found)
    *_, shown = tab.open(())
    say(tab, "pick", "Qwen/Qwen3-0.6B")
    assert not asked
    assert "Type something" in say(tab, "search", form={"words": "  "})[0]["asked"] and not asked
    first, second = say(tab, "search", form={"words": f"good {EVIL}"})
    assert "huggingface.co" in first["asked"] and asked == [f"good {EVIL}"]
    assert second["found"] == ("org/Good-8B", "org/Pickles") and "<img" not in second["asked"]
    assert "Found on the hub" in second["list"] and "12.0 K downloads" in second["list"]
    assert "no .safetensors" in second["list"]
    *_, shown = tab.open(second["found"])
    assert "org/Good-8B" in shown, "the results stay when the tab is opened again"
    (answer,) = say(tab, "pick", "org/Good-8B", found=second["found"])
    assert answer["quantization"] == "nf4" and "15.0 GiB will be downloaded" in answer["card"]


def test_refusal_of_the_hub_is_told_in_place(tab, monkeypatch):
    def refuse(words, endpoint):
        raise StudioError(literal("no <hub>"), literal("why"), literal("fix"))

    monkeypatch.setattr(fits_module, "search_hub", refuse)
    _, told = say(tab, "search", form={"words": "x"})
    assert "no &lt;hub&gt; why fix" in told["asked"] and set(told) == {"asked"}


def test_unknown_id_is_asked_for_only_by_its_button(tab, monkeypatch):
    card = tab.describe("org/new")
    assert 'data-do="ask" data-value="org/new"' in card and "no weights" in card
    model = HubModel(source="org/new", config=CONFIG, safetensors=True)
    monkeypatch.setattr(fits_module, "fetch_facts", lambda source, endpoint: model)
    waiting, answer = say(tab, "ask", "org/new", **{"model.source": "org/new"})
    assert "Asking" in waiting["asked"] and answer["quantization"] == "nf4" and "8.0 B" in answer["card"]
    draft = json.loads((tab.context.workspace.root / "draft.json").read_text(encoding="utf-8"))
    assert draft["model"]["source"] == "org/new"
