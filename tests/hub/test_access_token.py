"""The hub's token: in the keyring or in a file of the person's own, never shown, and where it goes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from studio.hub import access_token as asking
from studio.hub import child, token_store
from studio.hub.access_token import NO_MIRROR, Mirror

TOKEN = "hf_canaryCANARY1234567890wxyz"
RING = '''"""A keyring that keeps secrets in a file beside it."""
import json, pathlib
from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError

FILE = pathlib.Path(__file__).with_name("ring.json")


class Ring(KeyringBackend):
    priority = 5
    name = "a test's ring"

    def get_password(self, service, account):
        return self._read().get(f"{service} {account}")

    def set_password(self, service, account, password):
        FILE.write_text(json.dumps(self._read() | {f"{service} {account}": password}))

    def delete_password(self, service, account):
        kept = self._read()
        if kept.pop(f"{service} {account}", None) is None:
            raise PasswordDeleteError()
        FILE.write_text(json.dumps(kept))

    def _read(self):
        return json.loads(FILE.read_text()) if FILE.exists() else {}
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A person's configuration folder, and no keyring."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    for name in asking.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def speak(capsys, monkeypatch):
    """A function that does one wish of the token's own process, here."""

    def do(wish: str, given: str = "") -> dict:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(read=lambda: given))
        token_store.main(wish)
        return json.loads(capsys.readouterr().out)

    return do


@pytest.fixture
def ringless(monkeypatch):
    monkeypatch.setattr(token_store, "_find_keyring", lambda: None)


def test_without_a_keyring_it_lies_in_a_file_that_only_the_person_reads(home, speak, ringless):
    assert speak("look") == {"place": "file", "name": str(token_store.token_file()), "tail": ""}
    assert speak("keep", f" {TOKEN}\n") == {"kept": True}
    file = token_store.token_file()
    assert home in file.parents and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    looked = speak("look")
    assert looked["tail"] == "wxyz" and TOKEN not in json.dumps(looked)
    assert speak("read") == {"token": TOKEN}
    speak("keep", "")
    assert not file.exists() and speak("read") == {"token": ""}


def test_a_short_token_shows_nothing_of_itself(home, speak, ringless):
    speak("keep", "12345678")
    assert speak("look")["tail"] == ""


def test_the_keyring_keeps_it_in_a_process_of_its_own(home, monkeypatch):
    (home / "ring").mkdir()
    (home / "ring" / "test_ring.py").write_text(RING, encoding="utf-8")
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "test_ring.Ring")
    paths = os.pathsep.join(filter(None, (str(home / "ring"), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PYTHONPATH", paths)
    assert asking.keep_token(TOKEN)
    place = asking.look_at_token()
    assert (place.place, place.name, place.tail) == ("keyring", "a test's ring", "wxyz")
    assert asking.choose_token(NO_MIRROR, {}).changes == {"HF_TOKEN": TOKEN}
    assert not (home / "config").exists(), "the file is for machines without a keyring"


def test_a_keyring_that_hangs_is_waited_for_so_long_and_no_longer(home, monkeypatch):
    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("keyring", timeout)

    monkeypatch.setattr(asking.subprocess, "run", hang)
    assert asking.look_at_token().place == "" and asking.choose_token(NO_MIRROR, {}).changes == {}
    assert asking.keep_token(TOKEN) is False


KEPT, LEFT = {"HF_TOKEN": TOKEN}, {}
NONE = {"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
FAR, CLEAR, NEAR = "https://mirror.example", "http://mirror.example", "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("mirror", "environment", "changes", "withheld"),
    [
        (NO_MIRROR, {}, KEPT, ""),
        (Mirror("https://huggingface.co"), {}, KEPT, ""),
        (NO_MIRROR, {"HF_TOKEN": "mine"}, LEFT, ""),  # what the person has set goes before
        (NO_MIRROR, {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, LEFT, ""),
        (Mirror(FAR), {}, NONE, "mirror"),
        (Mirror(FAR), {"HF_TOKEN": "mine"}, NONE, "mirror"),
        (Mirror("https://huggingface.co@mirror.example"), {}, NONE, "mirror"),
        (Mirror(FAR, token=True), {}, KEPT, ""),
        (Mirror(FAR, token=True), {"HF_TOKEN": "mine"}, LEFT, ""),
        (Mirror(NEAR), {}, NONE, "mirror"),
        (Mirror(NEAR, token=True), {}, KEPT, ""),
        (Mirror("http://[::1]:8080", token=True), {}, KEPT, ""),
        (Mirror(CLEAR, token=True), {}, NONE, "http"),
        (Mirror("http://huggingface.co", token=True), {}, NONE, "http"),
        (Mirror("http://127.0.0.1.example", token=True), {}, NONE, "http"),
        # The person's environment counts as it does for the hub's own tools.
        (NO_MIRROR, {"HF_ENDPOINT": FAR, "HF_TOKEN": "mine"}, LEFT, ""),
        (NO_MIRROR, {"HF_ENDPOINT": FAR}, LEFT, "mirror"),
        (NO_MIRROR, {"HF_ENDPOINT": CLEAR, "HF_TOKEN": "mine"}, NONE, "http"),
    ],
)
def test_who_gets_the_token(monkeypatch, mirror, environment, changes, withheld):
    monkeypatch.setattr(asking, "_ask", lambda wish: {"token": TOKEN})
    choice = asking.choose_token(mirror, environment)
    assert (choice.changes, choice.withheld) == (changes, withheld)


def test_only_the_fetching_child_gets_it(monkeypatch):
    started = []
    monkeypatch.setattr(
        child.subprocess, "Popen", lambda command, **options: started.append((command, options))
    )
    child.start("studio.hub.model_download", ("owner/name",), None, dict(os.environ) | KEPT, None)
    ((command, options),) = started
    assert options["env"]["HF_TOKEN"] == TOKEN and TOKEN not in " ".join(command)
    assert TOKEN not in os.environ.values()
