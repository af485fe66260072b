"""The person's settings: a damaged file is never written over, and two changes at once both count."""

from __future__ import annotations

import threading

import pytest

from studio.core.errors import StudioError
from studio.machine import settings as module
from studio.machine.settings import change_settings, read_settings, switch_repair
from studio.machine.workspace import open_workspace


@pytest.fixture
def workspace(tmp_path):
    return open_workspace(str(tmp_path / "workspace"))


@pytest.mark.parametrize("words", ['{"hub_endpoint": "https://mirror",}', "[1]", "[" * 9999, "\0\0"])
def test_a_damaged_file_is_left_as_it_is_and_said_so(workspace, words):
    workspace.settings.write_text(words, encoding="utf-8")
    assert read_settings(workspace) == {}, "the window starts all the same"
    for change in (
        lambda: change_settings(workspace, theme="dark"),
        lambda: switch_repair(workspace, "drop_compiler", on=False),
    ):
        with pytest.raises(StudioError) as refused:
            change()
        assert refused.value.what.id == "settings.broken"
        assert refused.value.fix.values["path"] == str(workspace.settings)
    assert workspace.settings.read_text(encoding="utf-8") == words


def test_an_empty_file_has_nothing_to_lose(workspace):
    workspace.settings.write_text(" \n", encoding="utf-8")
    change_settings(workspace, theme="dark")
    assert read_settings(workspace)["theme"] == "dark"


def test_a_file_that_cannot_be_read_just_now_is_not_replaced(workspace, monkeypatch):
    change_settings(workspace, hub_endpoint="https://mirror")

    def held(*_: object, **__: object) -> str:
        raise PermissionError(13, "another program holds it")

    with monkeypatch.context() as patch:
        patch.setattr(type(workspace.settings), "read_text", held)
        with pytest.raises(PermissionError):
            change_settings(workspace, theme="dark")
    assert read_settings(workspace)["hub_endpoint"] == "https://mirror"


def test_two_changes_at_once_both_count(workspace, monkeypatch):
    read, changed = threading.Event(), threading.Event()
    real = module.write_json

    def write_slowly(*words: object, **how: object) -> None:
        if threading.current_thread() is first:
            read.set()
            changed.wait(0.3)  # in which another change has time enough
        real(*words, **how)

    monkeypatch.setattr(module, "write_json", write_slowly)
    first = threading.Thread(target=change_settings, args=(workspace,), kwargs={"theme": "dark"})
    first.start()
    assert read.wait(10)
    change_settings(workspace, offline=True)
    changed.set()
    first.join()
    settings = read_settings(workspace)
    assert (settings["theme"], settings["offline"]) == ("dark", True)
