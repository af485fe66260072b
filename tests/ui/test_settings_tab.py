"""The Settings tab: what it shows, what each wish does, and that no token is ever shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from studio.core.errors import StudioError
from studio.core.facts import Gpu
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.hub.access_token import NO_MIRROR, Mirror, TokenPlace
from studio.machine.settings import read_settings
from studio.services import preferences as module
from studio.services.preferences import Preferences
from studio.ui.tabs.settings import tab as tabs
from studio.ui.tabs.settings.cards import SettingsState, settings_body
from studio.ui.tabs.settings.tab import SettingsTab
from studio.ui.templates import render
from tests.each_time import every
from tests.ui.conftest import FakeDesk
from tests.ui.sheet import Sheet

TOKEN = "hf_canaryCANARY1234567890wxyz"


@dataclass
class SettledDesk(FakeDesk):
    """A desk with real preferences."""

    ended: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = Preferences(self.workspace, lambda: bool(self.active))

    def quit(self) -> None:
        self.ended.append(1)


@pytest.fixture
def fake_desk(workspace, monkeypatch):
    monkeypatch.setattr(module, "list_cards", tuple)
    monkeypatch.setattr(module, "keep_token", lambda token: True)
    monkeypatch.setattr(
        module, "look_at_token", lambda: TokenPlace(place="file", name="/c/hub-token", tail="wxyz")
    )
    monkeypatch.setattr(tabs, "ANSWER_S", 0.0)
    monkeypatch.setattr(tabs, "SharePart", lambda context: None)
    return SettledDesk(workspace)


@pytest.fixture
def tab(context):
    with Sheet():
        made = SettingsTab(context)
    made._change_language = context.speak
    return made


def say(tab, do: str, value: str = "", **form: str) -> str:
    drawn, forgotten = tab.hear({"do": do, "value": value, "form": form, "number": 1})
    assert forgotten == {}
    return drawn


def test_every_setting_stands_in_both_languages(context, tab):
    for language in LANGUAGES:
        context.speak(language)
        drawn = tab.draw()
        words = load_catalogue(language)
        for name in (
            "language",
            "theme",
            "window",
            "gpu",
            "memory_share",
            "kernels",
            "offline",
            "token",
            "mirror",
        ):
            assert words.words[f"ui.preferences.{name}"] in drawn, name
            assert f'for="settings-{name}"' in drawn and f'id="settings-{name}"' in drawn
        assert "ui.preferences" not in drawn and "{" not in drawn
        assert words.words["ui.preferences.telemetry"] in drawn


def test_choices_are_kept_and_shown(tab, workspace):
    drawn = say(tab, "theme", "dark")
    assert 'data-theme="dark"' in drawn and '<option value="dark" selected>' in drawn
    say(tab, "memory_share", "0.7")
    assert 'data-do="restart"' in say(tab, "offline", "true")
    say(tab, "window", "tab")
    kept = read_settings(workspace)
    assert (kept["memory_share"], kept["offline"], kept["window"]) == (0.7, True, "tab")
    for do, value in (("theme", "pink"), ("memory_share", "much"), ("gpu", "GPU-z")):
        with pytest.raises(StudioError):
            say(tab, do, value)


def test_the_language_changes_with_the_window(context, tab):
    drawn = say(tab, "language", "zh-CN")
    assert (
        context.language == "zh-CN"
        and 'data-language="zh-CN"' in drawn
        and "设置" not in drawn.split("<h3>")[0]
    )
    say(tab, "language", "xx")
    assert context.language == "zh-CN"


def test_a_token_is_never_shown(tab):
    drawn = say(tab, "keep-token", token=TOKEN)
    assert TOKEN not in drawn and "…wxyz" in drawn and 'type="password"' in drawn
    assert 'value=""' in drawn.split('id="settings-token"')[1][:120]
    with pytest.raises(StudioError) as refused:
        say(tab, "keep-token", token="a bad token")
    assert "bad" not in str(refused.value.what.values)
    assert 'data-do="drop-token"' in drawn and "data-confirm" in drawn
    say(tab, "drop-token")


def test_the_mirror_is_kept_by_the_desk(tab, context):
    assert "card" in say(tab, "mirror", mirror="https://hf-mirror.com")
    assert {"mirror": "https://hf-mirror.com"} in context.desk.machine.asked


@pytest.mark.parametrize(
    ("mirror", "facts", "told"),
    [
        (NO_MIRROR, {"disabled"}, False),
        (Mirror("https://hf-mirror.com"), set(), False),
        (Mirror("https://hf-mirror.com", token=True), {"checked"}, False),
        (Mirror("http://hf-mirror.com", token=True), {"disabled"}, True),
    ],
)
def test_the_token_goes_to_a_mirror_by_a_switch_that_is_off_at_first(tab, context, mirror, facts, told):
    context.desk.machine.kept_mirror = mirror
    drawn = say(tab, "mirror_token", "true")
    assert {"token": True} in context.desk.machine.asked
    (switch,) = re.findall(r'<input [^>]*id="settings-mirror_token"[^>]*>', drawn)
    assert {"checked", "disabled"} & set(switch.rstrip(">").split()) == facts
    assert ("Not over http" in drawn) is told


def test_folders_come_and_go(tab, tmp_path):
    folder = tmp_path / "<b>models"
    folder.mkdir()
    drawn = say(tab, "add-folder", folder=str(folder))
    assert "&lt;b&gt;models" in drawn and "<b>models" not in drawn
    assert "&lt;b&gt;models" not in say(tab, "drop-folder", str(folder.resolve()))
    assert str(tmp_path) in say(tab, "exports", exports=str(tmp_path))


def test_caches_are_emptied_but_not_under_a_run(tab, context, workspace):
    (workspace.data_cache).mkdir(parents=True, exist_ok=True)
    (workspace.data_cache / "x").write_bytes(b"x" * 2048)
    context.desk.active = "run-1"
    with pytest.raises(StudioError):
        say(tab, "empty")
    context.desk.active = None
    assert "2.0 KiB" in say(tab, "empty") and not (workspace.data_cache / "x").exists()


def test_quitting_asks_while_a_run_is_on(tab, context):
    context.desk.active = "run-1"
    asked = say(tab, "quit")
    assert all(f'="{part}"' in asked for part in ("quit-now", "close", "quit-no")) and not context.desk.ended
    assert "quit-now" not in say(tab, "quit-no") and not context.desk.ended
    assert 'class="ended"' in say(tab, "quit-now")
    context.desk.active = None
    assert 'class="ended"' in say(tab, "quit")
    until_ended(context.desk, 2)


@pytest.mark.parametrize("work", ["export", "upload", "test"])
def test_quitting_asks_while_something_is_on_that_would_stop(tab, context, work):
    context.desk.other = work
    assert context.say(f"ui.preferences.quit.{work}") in say(tab, "restarted"), "said before it is asked"
    asked = say(tab, "quit")
    assert context.say(f"ui.preferences.quit.question.{work}") in asked and not context.desk.ended
    assert context.say(f"ui.preferences.quit.now.{work}") in asked
    assert 'class="ended"' in say(tab, "quit-now")
    until_ended(context.desk, 1)


def until_ended(desk, times: int) -> None:
    import time

    deadline = time.monotonic() + 5
    while len(desk.ended) < times:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_restart_without_a_supervisor_is_refused(tab, context):
    assert "comes back by itself" in say(tab, "restart") and "comes back by itself" in tab.draw()
    context.desk.supervised = False
    with pytest.raises(StudioError):
        say(tab, "restart")


@pytest.mark.parametrize(
    "said", every(2, [None, [], {"do": 3}, {"do": "unknown"}, {"do": "drop-folder", "form": "x"}])
)
def test_what_a_page_makes_up_changes_nothing(tab, workspace, said):
    tab.hear(said)
    assert set(read_settings(workspace)) - {"repairs_off", "repairs_on", "model_folders"} == set()


def test_cards_to_choose_from_are_named():
    choices = {
        "theme": "",
        "window": "app",
        "kernels": "auto",
        "memory_share": 1.0,
        "offline": False,
        "gpu": "GPU-b",
    }
    cards = [
        ("GPU-a", Gpu(name="RTX 3060", vram_bytes=12 * 2**30, capability=(8, 6))),
        ("GPU-b", Gpu(name="RTX <4090>", vram_bytes=2**34, capability=(8, 9))),
    ]
    words = load_catalogue("en")
    drawn = settings_body(
        SettingsState(language="en", choices=choices, cards=cards),
        lambda id, **values: words.say(module.text(id, **values)),
    )
    assert '<option value="GPU-b" selected>RTX &lt;4090&gt; · 16 GiB</option>' in drawn
    assert "RTX 3060 · 12 GiB" in drawn and "<4090>" not in drawn
    assert "hidden" in render("tabs/settings/second_window.html", lambda id: words.say(module.text(id)))
