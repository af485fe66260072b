"""Chat and Export in a real browser over a real run of the demo: talk by keyboard, hostile words, a test, an export."""

from __future__ import annotations

import json
import os

import httpx
import pytest

from studio.core.recipe import change_recipe
from studio.machine.workspace import open_workspace
from studio.services.chat_history import TalkFiles
from tests.hub.test_chat_client import say, server  # noqa: F401 - a fixture
from tests.ui.browser import (
    show_tab,
    wait_for,
)
from tests.ui.test_chat_tab import HOSTILE

pytestmark = pytest.mark.slow
STEPS = 12
QUESTIONS = [
    "Please send nine orange carpets to Vienna for Farid.",
    "Two red rings for Bella in Turin, please.",
]


KEY = "sk-of-a-judge-7341"


@pytest.fixture
def run(tmp_path) -> str:
    """The id of a short run of the demo, with hostile words in its last talk and its name."""
    from studio.services.desk import Desk

    workspace = open_workspace(str(tmp_path / "workspace"))
    desk = Desk(workspace)
    # Ten times the usual rate: so few steps are to change an answer.
    changes = {"optim.max_steps": STEPS, "optim.learning_rate": 0.02, "optim.warmup_share": 0.0}
    changes |= {"run.save_every": 6, "run.trial": False, "name": HOSTILE[0]}
    run = desk.queue.start(change_recipe(desk.recipes.demo(), changes), checked=True)
    assert desk.runs.wait(run).state == "finished"
    talk = [
        turn
        for words in HOSTILE
        for turn in ({"role": "user", "content": words}, {"role": "assistant", "content": words})
    ]
    desk.chat.files.keep(run, {"base": talk, "tuned": talk})
    desk.close()
    return run


def answered(page, side: str, count: int) -> None:
    """Wait until `side` has so many finished answers."""
    page.wait_for_function(f"document.querySelectorAll('#chat-{side} .foot').length === {count}")
    page.wait_for_selector("#chat-send:not(:disabled)")


@pytest.fixture
def file_manager(tmp_path, monkeypatch):
    """The file that names the folder which this computer's file manager was asked to show."""
    asked = tmp_path / "asked.txt"
    opener = tmp_path / "bin" / "xdg-open"
    opener.parent.mkdir()
    opener.write_text(f"#!/bin/sh\nprintf %s \"$1\" > '{asked}.part' && mv '{asked}.part' '{asked}'\n")
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", str(opener.parent), prepend=os.pathsep)
    monkeypatch.setenv("DISPLAY", ":0")
    return asked


def test_talk_stop_test_and_export(start_studio, run, tmp_path, file_manager):  # noqa: F811
    window = start_studio("en")
    page = window.open("en")
    show_tab(page, "chat")
    page.wait_for_function("document.querySelectorAll('#chat-tuned .foot').length > 0")
    # What a model wrote earlier is words: nothing ran, nothing was loaded, nothing can be clicked.
    inside = (
        "#chat-base :is(img, script, a, iframe, svg, form, style, input, [onerror], [onload], [href], [src])"
    )
    assert page.query_selector_all(inside) == [] and "onerror=alert(1)" in page.inner_text("#chat-base")
    assert f"run={run}" in page.url

    page.click("#chat-clear")
    answered(page, "tuned", 0)
    page.fill("#chat-input textarea", QUESTIONS[0])
    page.press("#chat-input textarea", "Shift+Enter")
    page.type("#chat-input textarea", "Thanks.")
    page.press("#chat-input textarea", "Enter")
    answered(page, "base", 1)
    answered(page, "tuned", 1)
    assert page.inner_text("#chat-base .mine").splitlines() == [QUESTIONS[0], "Thanks."]
    assert page.inner_text("#chat-base .theirs") != page.inner_text("#chat-tuned .theirs")
    assert page.inner_text("#chat-base .theirs") in page.inner_text("#chat-told")

    # By key: an earlier state of the model, its side alone, the same question again, its answer copied.
    final = page.input_value("#chat-checkpoint input")
    page.focus("#chat-checkpoint input")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(final) => document.querySelector('#chat-checkpoint input').value !== final", arg=final
    )
    page.focus("#chat-sides input:checked")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#chat-base", state="hidden")
    page.evaluate("document.querySelector('#chat-tuned .foot').dataset.old = ''")
    page.focus("#chat-again")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-tuned .foot[data-old]", state="detached")
    answered(page, "tuned", 1)
    assert not page.is_visible("#chat-base")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#chat-tuned .copy")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.split() == page.inner_text("#chat-tuned .theirs").split()
    page.focus("#chat-sides input:checked")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#chat-base", state="visible")

    # Another page has a talk of its own; a reload has the last one.
    other = window.watch(page.context.new_page())
    other.goto(page.url)
    other.wait_for_function("document.querySelectorAll('#chat-tuned .foot').length === 1")
    other.fill("#chat-input textarea", QUESTIONS[1])
    other.press("#chat-input textarea", "Enter")
    answered(other, "tuned", 2)
    assert len(page.query_selector_all("#chat-tuned .foot")) == 1
    other.close()
    page.reload()
    page.wait_for_function("document.querySelectorAll('#chat-tuned .foot').length === 2")
    page.click("#chat-edit")
    page.wait_for_function(
        f"document.querySelector('#chat-input textarea').value === {json.dumps(QUESTIONS[1])}"
    )

    # Escape ends an answer where it is.
    page.click("#chat-tab-settings-button")
    page.click("#chat-preset label:nth-of-type(3)")
    page.fill("#chat-max-new-tokens input", "400")
    page.fill("#chat-system textarea", "Answer shortly.")
    page.click("#chat-tab-talk-button")
    page.click("#chat-send")
    page.wait_for_selector("#chat-stop:not(:disabled)")
    page.keyboard.press("Escape")
    page.wait_for_selector("#chat-send:not(:disabled)")
    with page.expect_download() as saved:
        page.click("#chat-save")
    lines = [json.loads(line) for line in saved.value.path().read_text(encoding="utf-8").splitlines()]
    assert lines and lines[0]["messages"][0] == {"role": "system", "content": "Answer shortly."}
    assert {turn["role"] for line in lines for turn in line["messages"][1:]} == {"user", "assistant"}

    # A question that is half typed outlives the page.
    page.fill("#chat-input textarea", QUESTIONS[1][:9])
    page.reload()
    page.wait_for_function(
        "(words) => document.querySelector('#chat-input textarea')?.value === words", arg=QUESTIONS[1][:9]
    )

    # A file of questions becomes a table.
    file = tmp_path / "questions.txt"
    file.write_text("\n".join([*QUESTIONS, HOSTILE[0]]), encoding="utf-8")
    page.click("#chat-tab-test-button")
    page.set_input_files("#chat-test-file input[type=file]", str(file))
    page.wait_for_selector("#chat-test-file .file-preview")
    page.click("#chat-test-start")
    page.wait_for_function("document.querySelectorAll('#chat-test-result .rows tbody tr').length === 3")
    assert page.query_selector("#chat-test-result img") is None
    with page.expect_download() as table:
        page.click("#chat-test-save")
    assert table.value.suggested_filename.endswith(".csv")

    page.click("#chat-state [data-do=unload]")
    page.wait_for_function("!document.querySelector('#chat-state [data-do=unload]')")

    show_tab(page, "export")
    page.wait_for_selector("#export-start:not(:disabled)")
    for target, name in (("export-start", "adapter"), ("export-start-merged", "merged")):
        page.focus(f"#{target}")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#export-result [data-name='{run}-{name}']")
        assert (window.workspace.exports / f"{run}-{name}" / "README.md").is_file()
        page.wait_for_selector("#export-start:not(:disabled)")
    assert len(page.query_selector_all("#export-items details")) == 2
    page.click("#export-result [data-do=open]")
    wait_for(file_manager.exists)
    assert file_manager.read_text(encoding="utf-8") == str(window.workspace.exports / f"{run}-merged")
    page.click("#export-result [data-do=delete]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert (window.workspace.exports / f"{run}-merged").is_dir(), "Escape is no"
    page.click("#export-result [data-do=delete]")
    page.click("dialog button.primary")
    page.wait_for_function("document.querySelectorAll('#export-items details').length === 1")
    assert not (window.workspace.exports / f"{run}-merged").exists()
    assert window.complaints == []


def test_a_question_asked_while_the_tab_opens_waits_for_the_run(start_studio, run):
    """On a busy machine the pickers are filled late: the question must not go to no run, nor be refused."""
    window = start_studio("zh-CN")
    TalkFiles(window.workspace).keep(run, {"base": [], "tuned": []})
    page = window.open("zh-CN")
    page.evaluate(
        """() => {
            const soon = window.fetch;
            window.fetch = async (...what) => {
                if (String(what[0]).includes('queue/join')) await new Promise((go) => setTimeout(go, 2000));
                return soon(...what);
            };
        }"""
    )
    show_tab(page, "chat")
    page.fill("#chat-input textarea", QUESTIONS[0])
    page.press("#chat-input textarea", "Enter")
    assert page.input_value("#chat-run input") == ""
    page.wait_for_function("document.querySelectorAll('#chat-tuned .mine').length === 1")
    answered(page, "tuned", 1)
    assert page.input_value("#chat-input textarea") == ""
    assert window.complaints == []


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_other_programs_are_answered_while_the_switch_is_on(start_studio, run, language):  # noqa: F811
    window = start_studio(language)
    page = window.open(language)
    show_tab(page, "chat")
    page.wait_for_function("window.studio.entered")
    page.click("#chat-tab-programs-button")
    page.click("#chat-address [data-do=address-on]")
    page.wait_for_selector("#chat-address [data-on=yes]")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copied = []
    for place in range(3):
        page.click(f"#chat-address dd >> nth={place} >> .copy")
        page.wait_for_function("(before) => navigator.clipboard.readText().then((now) => now !== before)",
                               arg=copied[-1] if copied else "")  # fmt: skip
        copied.append(page.evaluate("navigator.clipboard.readText()"))
    model, url, key = copied

    def ask() -> int:
        body = {"model": model, "messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 8}
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=90).status_code

    assert model == run and ask() == 200
    other = window.watch(page.context.new_page())
    other.goto(page.url)
    other.wait_for_function("window.studio && window.studio.entered")
    other.click("#chat-tab-programs-button")
    other.wait_for_selector("#chat-address [data-on=yes]")
    assert key in other.inner_text("#chat-address"), "every page of the owner's shows the same"
    other.close()
    page.click("#chat-address [data-do=address-off]")
    page.wait_for_selector("#chat-address [data-on=no]")
    with pytest.raises(httpx.TransportError):
        ask()


def test_a_judge_scores_by_mouse_and_its_key_is_kept_nowhere(start_studio, run, server, tmp_path):  # noqa: F811
    address = server(
        models=(200, b'{"data": [{"id": "wise"}]}'), completions=(200, say("Fine.\nScore: 7/10"))
    )
    window = start_studio("en")
    page = window.open("en")
    show_tab(page, "chat")
    page.wait_for_function("document.querySelectorAll('#chat-tuned .foot').length > 0")
    page.click("#chat-tab-test-button")
    file = tmp_path / "questions.txt"
    file.write_text("\n".join(QUESTIONS), encoding="utf-8")
    page.set_input_files("#chat-test-file input[type=file]", str(file))
    page.wait_for_selector("#chat-test-file .file-preview")
    page.click("#chat-test-judge > button")
    page.click("#chat-test-judge-kind label:nth-of-type(2)")
    page.fill("#chat-test-judge-address input, #chat-test-judge-address textarea", address)
    page.fill("#chat-test-judge-key input", KEY)
    page.fill("#chat-test-judge-rubric textarea", "Friendly answers are worth 10.")
    page.click("#chat-test-start")
    page.wait_for_selector("#chat-test-result .totals")
    assert page.inner_text("#chat-test-result .totals").count("70.0 %") == 2, "both models, by the judge"
    asked = [one for one in server.seen if one[0].endswith("completions")]
    assert len(asked) == 2 * len(QUESTIONS)
    assert all(headers["Authorization"] == f"Bearer {KEY}" for _, headers, _ in server.seen)
    assert all("Friendly answers" in body["messages"][0]["content"] for _, _, body in asked)
    assert KEY not in page.content()
    kept = [path for path in window.workspace.root.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if KEY.encode() in path.read_bytes()]
