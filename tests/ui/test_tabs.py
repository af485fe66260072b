"""The tabs' handlers: who may call them, what they show, and that no data ever becomes HTML."""

from __future__ import annotations

from types import SimpleNamespace

import gradio as gr
import pytest
from gradio.context import Context as BuildContext

from studio.core.errors import StudioError
from studio.core.i18n import literal
from studio.ui.app import build
from studio.ui.form import Form
from studio.ui.quantities import size_words
from studio.ui.tabs.dataset.tab import DatasetTab
from studio.ui.tabs.hyperparameters.tab import HyperparametersTab
from studio.ui.tabs.model.tab import ModelTab
from studio.ui.tabs.training.tab import TrainingTab
from tests.ui.sheet import Sheet

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def tabs(context):
    """All tabs of one window, and its form."""
    with Sheet():
        form = Form(context.words, context.draft())
        made = SimpleNamespace(
            form=form,
            model=ModelTab(context, form),
            dataset=DatasetTab(context, form),
            settings=HyperparametersTab(context, form),
            training=TrainingTab(context, form),
        )
        made.training.make_shared()
        made.training.bind()
    return made


def test_every_handler_of_the_window_refuses_a_stranger(context):
    blocks = build(context)
    stranger = SimpleNamespace(cookies={})
    functions = [fn for fn in blocks.fns.values() if fn.fn is not None]
    assert len(functions) > 20
    for fn in functions:
        if fn.api_visibility != "private":  # a program's endpoint refuses in its answer
            assert fn.fn(stranger, *[None] * len(fn.inputs)).keys() == {"error"}
            continue
        with pytest.raises(gr.Error):
            answer = fn.fn(stranger, *[None] * len(fn.inputs))
            list(answer)  # a generator checks at its first step


def test_the_owner_is_served_and_refusals_become_messages(context, keys):
    owner = SimpleNamespace(request=SimpleNamespace(scope={"studio.role": "owner"}))
    assert context.guarded(lambda value: value + 1)(owner, 1) == 2

    def refuse():
        raise StudioError(literal(EVIL), literal("why"), literal("fix"))

    with pytest.raises(gr.Error) as refused:
        context.guarded(refuse)(owner)
    assert "<img" not in refused.value.message
    assert "&lt;img" in refused.value.message


def test_the_model_picker_offers_what_is_here(context, tabs):
    assert ("Demo model · 9.5 MiB", "demo") in tabs.model.choices("demo")["choices"]


def test_check_shows_the_plan_with_its_reasons(context, tabs):
    problems, plan = tabs.settings.examine(*tabs.form.show(context.draft()))
    assert "Ready to start" in problems
    assert "because &lt;b&gt;" in plan and "rms_norm" in plan


@pytest.mark.parametrize(("size", "words"), [(10, "10 B"), (2048, "2.0 KiB"), (5 * 2**40, "5120.0 GiB")])
def test_sizes_in_words(size, words):
    assert size_words(size) == words


@pytest.mark.computing
def test_another_language_keeps_the_ids_while_a_run_updates_pages(context, monkeypatch):
    from studio.ui import app

    blocks = app.build(context)
    ids = [part["id"] for part in blocks.config["components"]]
    made = app.Header.bind

    def interrupted(*parts):
        BuildContext.id += 7  # what Gradio does for every update that it sends meanwhile
        return made(*parts)

    monkeypatch.setattr(app.Header, "bind", interrupted)
    app.change_language(context, blocks, "zh-CN")
    assert [part["id"] for part in blocks.config["components"]] == ids
    assert "模型" in str(blocks.config["components"])
