"""The page that shows an installation: who it answers, what it reads from the log, another try, and where it leads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from studio.installer import install, install_page
from studio.installer.install_page import InstallPage, count_pins, read_progress, show
from tests.installer.test_install import make_checkout
from tests.wheels import make_wheel

ROOT = Path(__file__).resolve().parents[2]
LOG = """
$ /p/python -m venv /x/.venv

$ /x/.venv/bin/python -m pip install --no-input torch==2.13.0
Collecting torch==2.13.0
  Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl.metadata (29 kB)
Collecting nvidia-nccl-cu13
Using cached torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (900.1 MB)
Downloading nvidia_nccl_cu13-2.3-py3-none-any.whl (200.0 MB)
"""


@pytest.fixture
def words(tmp_path):
    """A folder with what the page needs of a checkout."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "locales").symlink_to(ROOT / "assets" / "locales")
    (tmp_path / "assets" / "install.html").symlink_to(ROOT / "assets" / "install.html")
    (tmp_path / "constraints.txt").write_text(
        "# pins\na==1\nb==2; sys_platform\npytest==9\n", encoding="utf-8"
    )
    (tmp_path / "requirements-dev.txt").write_text("pytest>=9\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def page(words):
    page = InstallPage(install, words)
    yield page
    page.close()


class Browser:
    """Asks one page as a browser would, cookies included."""

    def __init__(self, address: str) -> None:
        self.host, self.path = re.fullmatch(r"http://([^/]+)(/.*)", address).groups()
        self.cookie = ""

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        connection = HTTPConnection(self.host, timeout=5)
        headers = {"Cookie": self.cookie} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        self.cookie = (answer.getheader("Set-Cookie") or self.cookie).partition(";")[0]
        return answer.status, body

    def enter(self) -> str:
        assert self.ask(self.path)[0] == 303
        return self.ask("/")[1]

    def state(self) -> dict:
        return json.loads(self.ask("/state")[1])

    def wait(self, holds) -> dict:
        until = time.monotonic() + 90
        while not holds(state := self.state()):
            assert time.monotonic() < until, state
            time.sleep(0.02)
        return state


def test_what_the_log_tells():
    assert read_progress("", 80) == {"phase": "python", "package": "", "done": 0, "total": 80}
    phases = [read_progress(LOG[:end], 2)["phase"] for end in (LOG.index("\n\n$"), len(LOG))]
    assert phases == ["venv", "download"]
    found = read_progress(LOG, 80)
    assert (found["done"], found["total"], found["package"]) == (2, 80, "nvidia-nccl-cu13")
    assert read_progress(LOG, 1)["total"] == 2
    assert read_progress(LOG + "Installing collected packages: torch\n", 80)["phase"] == "install"
    assert read_progress(LOG + "\n$ /p/python -P -c import studio; print(1)\n", 80)["phase"] == "check"


def test_about_how_many_packages_come(words, tmp_path_factory):
    assert count_pins(words) == 2 and count_pins(tmp_path_factory.mktemp("empty")) == 0
    assert 60 < count_pins(ROOT) < 120


def test_only_the_browser_that_was_opened_is_answered(page):
    browser, stranger = Browser(page.address), Browser(page.address)
    assert stranger.ask("/")[0] == stranger.ask("/state")[0] == stranger.ask("/?token=x")[0] == 401
    html = browser.enter()
    assert "Download the packages" in html and "{{" not in html and "{done} of about {total}" in html
    assert not re.search(r'(src|href)="', html), "it loads nothing"
    assert stranger.ask(browser.path)[0] == 401, "the token counts once"
    assert stranger.ask("/", Cookie="finetune_studio_install=\xe9")[0] == 401
    assert browser.ask("/state", Host="evil.example")[0] == 400
    assert browser.ask("/again", "POST", Origin="http://evil.example")[0] == 403
    assert browser.ask("/again", "POST")[0] == 403 and browser.ask("/etc/passwd")[0] == 404


def test_it_speaks_chinese(page, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "zh-CN")
    html = page.render()
    assert "下载软件包" in html and '<html lang="zh-CN">' in html and "Download the" not in html


def test_a_failure_is_told_and_tried_again_and_then_the_page_leads_to_the_studio(words, tmp_path):
    tries, opened, ended = [], [], []
    studio = "import os; open(os.environ['FINETUNE_STUDIO_ADDRESS_FILE'], 'w').write('http://127.0.0.1:9/?token=t')"

    def ensure():
        tries.append(1)
        if len(tries) == 1:
            raise install.refuse(ROOT, "install.disk")
        return sys.executable

    def start(python):
        return [python, "-c", studio], dict(os.environ)

    def open_page(address):
        opened.append(address)
        return True

    thread = threading.Thread(target=lambda: ended.append(show(install, words, ensure, start, open_page)))
    thread.start()
    while not opened:
        time.sleep(0.01)
    browser = Browser(opened[0])
    browser.enter()
    refused = browser.wait(lambda state: state["error"])
    assert refused["error"][0] == install.say(ROOT, "install.disk")
    origin = f"http://{browser.host}"
    assert browser.ask("/again", "POST", Origin=origin)[0] == 204
    assert browser.wait(lambda state: state["next"])["next"] == "http://127.0.0.1:9/?token=t"
    thread.join(10)
    assert ended[0].wait(5) == 0 and len(tries) == 2


SLOW = "import os, time; time.sleep(1); open(os.environ['FINETUNE_STUDIO_ADDRESS_FILE'], 'w').write('http://127.0.0.1:9/')"


def test_a_slow_start_is_waited_for_while_somebody_looks(page, monkeypatch):
    monkeypatch.setattr(install_page, "SILENCE_S", 0.3)
    browser, ended = Browser(page.address), []
    browser.enter()
    thread = threading.Thread(
        target=lambda: ended.append(page.lead_on([sys.executable, "-c", SLOW], dict(os.environ)))
    )
    thread.start()
    assert browser.wait(lambda state: state["next"])["error"] is None
    thread.join(10)
    assert ended[0].wait(5) == 0


def test_a_start_that_nobody_watches_any_more_is_left_to_itself(page, monkeypatch):
    monkeypatch.setattr(install_page, "SILENCE_S", 0.1)
    process = page.lead_on([sys.executable, "-c", SLOW], dict(os.environ))
    assert process.poll() is None and page.state()["error"] is None
    assert process.wait(10) == 1, "its folder is gone: the studio shows itself then"


def test_without_a_browser_nothing_is_done_here(words):
    assert show(install, words, pytest.fail, pytest.fail, lambda address: False) is None


def test_a_page_that_was_closed_ends_the_start(words, monkeypatch):
    monkeypatch.setattr(install_page, "SILENCE_S", 0.1)

    def ensure():
        raise install.refuse(ROOT, "install.disk")

    with pytest.raises(install.Refusal):
        show(install, words, ensure, pytest.fail, lambda address: True)


@pytest.mark.slow
def test_a_start_without_a_console_answers_within_two_seconds_and_installs(tmp_path):
    """launch.py as a double click starts it, with one tiny package; the browser is a script that notes the address."""
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels", "1.0")
    checkout = make_checkout(tmp_path / "studio")
    (checkout / "assets" / "install.html").symlink_to(ROOT / "assets" / "install.html")
    address = (
        "import os, time; open(os.environ['FINETUNE_STUDIO_ADDRESS_FILE'], 'w').write('http://127.0.0.1:9/')"
    )
    (checkout / "studio" / "cli.py").write_text(
        f'"""Stands for the studio."""\n{address}\n', encoding="utf-8"
    )
    browser = tmp_path / "browser"
    note = f'printf %s "$1" > "{tmp_path}/part"\nmv "{tmp_path}/part" "{tmp_path}/opened"\n'
    browser.write_text("#!/bin/sh\n" + note, encoding="utf-8")
    browser.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }
    environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "LANG": "C",
        "BROWSER": f"{browser} %s",
    }
    environment |= {"PIP_FIND_LINKS": str(tmp_path / "wheels"), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    started = time.monotonic()
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        [sys.executable, "launch.py", "--page"], cwd=checkout, env=environment, **quiet
    )
    try:
        while not (tmp_path / "opened").exists():
            assert time.monotonic() - started < 10
            time.sleep(0.01)
        visitor = Browser((tmp_path / "opened").read_text(encoding="utf-8"))
        assert "Download" in visitor.enter()
        assert time.monotonic() - started < 2.0
        assert visitor.wait(lambda state: state["next"])["next"] == "http://127.0.0.1:9/"
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert (checkout / ".venv" / "studio-stamp.json").exists()
