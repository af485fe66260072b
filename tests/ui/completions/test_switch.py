"""The switch in Chat: on for the chosen model, off by its button, by freeing the model, by deleting the run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import gradio as gr
import httpx
import pytest

from studio.core.errors import StudioError
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.recipe import change_recipe
from studio.services.desk import Desk
from studio.services.process_renewal import IdleRestart
from studio.ui.auth.middleware import _is_open
from studio.ui.auth.owner import Keys
from studio.ui.context import Context
from studio.ui.tabs.chat.programs import ProgramAddress, write_examples
from studio.ui.tabs.chat.tab import ChatTab
from tests.ui.sheet import Sheet


@pytest.fixture(scope="module")
def shop(tmp_path_factory, tiny_models, know_machine):
    """A desk with a run of 2 steps."""
    from studio.services.recipes import read_recipe
    from tests.conftest import chat_rows, write_jsonl
    from tests.launched import write_recipe

    folder = tmp_path_factory.mktemp("switch")
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    recipe = change_recipe(
        read_recipe(str(write_recipe(folder, tiny_models(), data))),
        {"run.trial": False, "optim.max_steps": 2, "name": "<b>mine</b>"},
    )
    desk = Desk(know_machine(folder / "workspace"))
    run = desk.queue.start(recipe, checked=True)
    assert desk.runs.wait(run).state == "finished"
    yield desk, run, recipe
    desk.close()


@pytest.fixture
def context(shop):
    """A window's context, whose address is closed in the end."""
    found = Context(shop[0], shop[0].workspace, Keys(shop[0].workspace.root, 7860), "en")
    yield found
    found.address.off()


@pytest.fixture
def programs(context):
    with Sheet():
        return ProgramAddress(context)


def press(programs: ProgramAddress, do: str, run: str | None, place: str = ""):
    return programs.hear({"do": do, "value": "", "form": {}}, run, place)


def ask(address, key: str | None = None) -> int:
    headers = {"authorization": f"Bearer {key or address.key}"}
    body = {"model": address.model, "messages": [{"role": "user", "content": "say 3"}], "max_tokens": 2}
    return httpx.post(f"{address.url}/chat/completions", json=body, headers=headers, timeout=60).status_code


def test_the_owner_switches_it_on_and_off(shop, context, programs):
    desk, run, _ = shop
    assert 'data-do="address-on"' in programs.show() and context.address.open is None
    shown = press(programs, "address-on", run)
    address = context.address.open
    assert (address.model, address.run) == (run, run) and address.url.startswith("http://127.0.0.1:")
    assert address.key in shown and address.url in shown and "<b>mine</b>" not in shown
    assert ask(address) == 200 and ask(address, "x" * 20) == 401
    assert programs.show() == shown, "another page shows the same"
    again = press(programs, "address-on", run)
    assert context.address.open.key != address.key and address.key not in again, "a new key each time"
    with contextlib.suppress(httpx.TransportError):
        assert ask(address) == 401
    assert 'data-do="address-on"' in press(programs, "address-off", run)
    with pytest.raises(httpx.TransportError):
        ask(address)
    assert press(programs, "example", run) == gr.skip()
    with pytest.raises(StudioError):
        press(programs, "address-on", None)


def test_a_model_as_it_came_can_be_asked_too(shop, context, programs):
    context.keep_draft(shop[2])
    press(programs, "address-on", "")
    assert ask(context.address.open) == 200


def test_freeing_the_model_ends_it(shop, context):
    with Sheet():
        tab = ChatTab(context)
    address = context.address.on(shop[1], "", None)
    assert ask(address) == 200 and shop[0].chat.loaded() is not None
    tab.hear({"do": "unload"}, shop[1], "")
    assert context.address.open is None and shop[0].chat.loaded() is None
    with pytest.raises(httpx.TransportError):
        ask(address)


def test_deleting_its_run_ends_it(shop, context, programs):
    desk, _, recipe = shop
    run = desk.queue.start(recipe, checked=True)
    assert desk.runs.wait(run).state == "finished"
    press(programs, "address-on", run)
    desk.library.delete(run)
    assert 'data-do="address-on"' in programs.show() and context.address.open is None


def test_no_new_process_takes_its_place_while_it_is_open(shop, context, monkeypatch):
    monkeypatch.setenv(PARENT_VARIABLE, "1")
    now = [0.0]
    renewal = IdleRestart(shop[0], clock=lambda: now[0], weigh=lambda: 2**40)
    now[0] = 10_000.0
    address = context.address.on(shop[1], "", None)
    assert not renewal.is_due() and address
    context.address.off()
    assert renewal.is_due()


def test_the_examples_on_the_card_work(shop, context, programs):
    press(programs, "address-on", shop[1])
    (_, curl), (_, python) = write_examples(context.address.open)
    answer = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(answer.stdout)["choices"][0]["message"]["role"] == "assistant"
    said = subprocess.run(
        [sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/"])
def test_guests_do_not_reach_the_answers_for_programs(path):
    assert _is_open(path, "owner") and not _is_open(path, "viewer")
