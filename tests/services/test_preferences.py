"""The studio's settings: what is kept, what is refused, and that each one acts."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace

import pytest

from studio.core.errors import StudioError
from studio.core.facts import Gpu, MachineFacts
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.hub.access_token import TokenPlace
from studio.machine import environment as preparing
from studio.machine.environment import prepare_environment
from studio.machine.settings import CHOICES, change_settings, read_settings
from studio.planning.run_plan import forced_kernels, memory_budget
from studio.services import preferences as module
from studio.services.desk import Desk
from studio.services.preferences import Preferences
from tests.launched import claimed_elsewhere

CARD = Gpu(name="RTX 3060", vram_bytes=12 * 2**30, capability=(8, 6))
CARDS = (("GPU-a", CARD), ("GPU-b", dataclasses.replace(CARD, name="RTX 4090")))


@pytest.fixture
def preferences(workspace, monkeypatch):
    monkeypatch.setattr(module, "list_cards", lambda: CARDS)
    monkeypatch.setattr(preparing, "list_cards", lambda: CARDS)
    return Preferences(workspace)


def machine(environment) -> MachineFacts:
    facts = {"system": "Linux", "wsl": False, "python": "3.11", "cores": 2, "packages": {}}
    return MachineFacts(ram_bytes=8 * 2**30, environment=environment, **facts)


def test_defaults_and_what_is_kept(preferences, workspace):
    assert preferences.read() == {name: allowed[0] for name, allowed in CHOICES.items()} | {"gpu": ""}
    preferences.choose("theme", "dark")
    preferences.choose("gpu", "GPU-b")
    assert preferences.read()["theme"] == "dark" and read_settings(workspace)["gpu"] == "GPU-b"


@pytest.mark.parametrize(
    ("name", "value"), [("theme", "pink"), ("gpu", "GPU-z"), ("memory_share", 0.0), ("x", "")]
)
def test_what_is_no_choice_is_refused(preferences, workspace, name, value):
    with pytest.raises(StudioError):
        preferences.choose(name, value)
    assert not workspace.settings.exists()


def test_a_damaged_settings_file_loses_only_what_is_damaged(preferences, workspace):
    change_settings(workspace, theme="pink", offline="yes", gpu=3, model_folders=[1, "/a"], kernels="off")
    assert preferences.read()["theme"] == "" and preferences.read()["offline"] is False
    assert preferences.read()["gpu"] == "" and preferences.read()["kernels"] == "off"
    assert [str(path) for path in preferences.model_folders()] == ["/a"]


def test_every_choice_of_the_machine_reaches_the_next_process(preferences, workspace):
    base = {"PATH": os.environ["PATH"], "HOME": "/"}
    before = prepare_environment(workspace, base)
    chosen = {"gpu": "GPU-b", "kernels": "off", "memory_share": 0.5, "offline": True}
    for name, value in chosen.items():
        preferences.choose(name, value)
    after = prepare_environment(workspace, before)
    assert after["CUDA_VISIBLE_DEVICES"] == "GPU-b" and after["FINETUNE_STUDIO_OFFLINE"] == "1"
    assert forced_kernels(machine(after), None) == "pytorch"
    assert memory_budget(machine(after), CARD)[0] == pytest.approx(
        memory_budget(machine({}), CARD)[0] / 2, rel=1e-6
    )
    assert prepare_environment(workspace, after) == after, "a restart finds the same"
    own = prepare_environment(
        workspace, base | {"CUDA_VISIBLE_DEVICES": "1", "FINETUNE_STUDIO_KERNELS": "triton"}
    )
    assert own["CUDA_VISIBLE_DEVICES"] == "1" and own["FINETUNE_STUDIO_KERNELS"] == "triton"
    for name in chosen:
        preferences.choose(name, CHOICES[name][0] if name in CHOICES else "")
    assert prepare_environment(workspace, after) == before, "taken back whole"


def test_a_card_that_was_taken_out_leaves_the_others(preferences, workspace):
    change_settings(workspace, gpu="GPU-gone")
    assert "CUDA_VISIBLE_DEVICES" not in prepare_environment(workspace, {"PATH": "/bin"})


def test_a_change_waits_for_a_restart_until_it_is_taken_back(preferences, workspace, monkeypatch):
    monkeypatch.delenv("FINETUNE_STUDIO_KERNELS", raising=False)
    assert not preferences.restart_waits() and preferences.fixed() == ()
    preferences.choose("kernels", "off")
    assert preferences.restart_waits()
    preferences.choose("kernels", "auto")
    assert not preferences.restart_waits()
    monkeypatch.setenv("FINETUNE_STUDIO_KERNELS", "triton")
    assert preferences.fixed() == ("kernels",)


def test_folders_with_models_are_checked(preferences, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    assert preferences.add_model_folder(f' "{folder}" ') == folder.resolve()
    for wrong in ("", "models", str(folder / "absent"), str(folder)):
        with pytest.raises(StudioError):
            preferences.add_model_folder(wrong)
    assert preferences.model_folders() == (folder.resolve(),)
    preferences.drop_model_folder(str(folder.resolve()))
    assert preferences.model_folders() == () and folder.exists()


def test_exports_go_where_the_settings_say(preferences, workspace, tmp_path):
    from studio.services.exports import Exports

    exports = Exports(workspace, None, None, find=None, make_room=None)
    assert exports.home == workspace.exports
    preferences.set_exports_folder(str(tmp_path))
    assert exports.home == tmp_path.resolve()
    with pytest.raises(StudioError):
        preferences.set_exports_folder("elsewhere")
    preferences.set_exports_folder("")
    assert exports.home == workspace.exports


def test_sizes_and_emptying_the_caches(preferences, workspace):
    (workspace.data_cache / "set").mkdir(parents=True)
    (workspace.data_cache / "set" / "shard").write_bytes(b"x" * 3000)
    (workspace.runs / "log").write_bytes(b"x" * 500)
    sizes = {part.id: part.size_bytes for part in preferences.parts()}
    assert sizes["runs"] == 500 and sizes["caches"] >= 3000 and sizes["exports"] == 0
    with pytest.raises(StudioError):
        Preferences(workspace, lambda: True).empty_caches()
    assert preferences.empty_caches() >= 3000 and workspace.data_cache.is_dir()
    assert {part.id: part.size_bytes for part in preferences.parts()}["runs"] == 500


def test_the_caches_are_left_to_whatever_works_with_them(workspace):
    """A run of another process (its claim tells), an export, an answer, a data set that is measured."""
    desk = Desk(workspace)
    (workspace.tmp / "part").write_bytes(b"x")

    def is_refused() -> bool:
        try:
            desk.settings.empty_caches()
        except StudioError:
            return True
        return False

    with claimed_elsewhere(workspace):
        assert is_refused()
    desk.exports.job = SimpleNamespace(ended=False)
    assert is_refused()
    desk.exports.job = SimpleNamespace(ended=True)
    desk.chat.test = SimpleNamespace(ended=False)
    assert is_refused()
    desk.chat.test = None
    desk.datasets.view = lambda: SimpleNamespace(working=True)
    assert is_refused() and (workspace.tmp / "part").exists()
    desk.datasets.view = lambda: SimpleNamespace(working=False)
    assert not is_refused() and not (workspace.tmp / "part").exists()
    desk.close()


def test_a_token_is_asked_for_once_and_checked(preferences, monkeypatch):
    kept, looked = [], []
    monkeypatch.setattr(module, "keep_token", lambda token: kept.append(token) or True)
    monkeypatch.setattr(
        module, "look_at_token", lambda: looked.append(1) or TokenPlace(place="file", tail="wxyz")
    )
    assert preferences.token(wait=False) is None
    assert preferences.token().tail == preferences.token().tail == "wxyz" and len(looked) == 1
    for wrong in ("two words", "short", "x" * 401, "zeile\n2 zwei"):
        with pytest.raises(StudioError):
            preferences.keep_token(wrong)
    preferences.keep_token(" hf_abcdefgh ")
    assert kept == ["hf_abcdefgh"] and preferences.token() and len(looked) == 2
    monkeypatch.setattr(module, "keep_token", lambda token: False)
    with pytest.raises(StudioError):
        preferences.keep_token("hf_abcdefgh")


def test_every_refusal_has_words_in_both_languages():
    kinds = (
        "choice",
        "folder_relative",
        "folder_absent",
        "folder_closed",
        "folder_known",
        "caches_used",
        "token",
    )
    for language in LANGUAGES:
        words = load_catalogue(language)
        assert all(words.has(f"preferences.{kind}{part}") for kind in kinds for part in ("", ".why", ".fix"))


def test_versions_and_paths(preferences):
    versions = dict(preferences.versions())
    assert versions["Finetune Studio"] == "0.1.0" and "gradio" in versions
    assert [name for name, _ in preferences.paths()] == ["program", "python", "workspace"]
