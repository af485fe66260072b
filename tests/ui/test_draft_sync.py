"""A window to which the person comes back: it takes what another one changed, and only that."""

from __future__ import annotations

import gradio as gr
import pytest

from studio.core.recipe import change_recipe
from studio.ui import draft_sync as other_window
from studio.ui.context import Context
from studio.ui.draft_sync import OtherWindow
from studio.ui.form import Form
from tests.ui.conftest import FakeDesk
from tests.ui.sheet import Sheet


@pytest.fixture
def window(workspace, keys) -> OtherWindow:
    context = Context(FakeDesk(workspace, log={}), workspace, keys, "en")
    with Sheet():
        form = Form(context.words, context.draft())
        form.fields(form.knobs)
        return OtherWindow(context, form)


@pytest.fixture
def told(monkeypatch) -> list[str]:
    words: list[str] = []
    monkeypatch.setattr(other_window.gr, "Info", lambda said, **_: words.append(said))
    return words


def test_nothing_is_touched_or_said_where_nothing_changed(window, told):
    shown = window.form.show(window.context.draft())
    answer = window.look(*shown)
    assert len(answer) == 1 + len(shown) and all(one == gr.skip() for one in answer) and told == []


def test_what_another_window_changed_or_typed_by_half_is_shown(window, told):
    shown = window.form.show(window.context.draft())
    changed = change_recipe(window.context.draft(), {"adapter.rank": 64})
    window.context.keep_draft(changed, {"optim.learning_rate": "1e-"})
    _, *fields = window.look(*shown)
    new = {
        path: value for path, value in zip(window.form.components, fields, strict=True) if value != gr.skip()
    }
    assert new == {"adapter.rank": "64", "optim.learning_rate": "1e-"}
    assert len(told) == 1 and "another window" in told[0]
