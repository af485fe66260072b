"""Nothing leaves the machine: every process of a training, a chat, an export and the window is listened to."""

from __future__ import annotations

import http.cookiejar
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from studio.machine.workspace import Workspace
from studio.machine.workspace_lock import read_address
from tests.launched import launch, processes_of, read_answer, start, wait_for, write_recipe

# Loaded by every Python with its folder on PYTHONPATH; one JSON line a process, and one a look-up or connection.
LISTENER = """
import json, os, sys
EVENTS = {"socket.connect": 1, "socket.sendto": 1, "socket.sendmsg": 1, "socket.bind": 1, "socket.getaddrinfo": 0,
          "socket.gethostbyname": 0, "socket.gethostbyaddr": 0, "socket.getnameinfo": 0}
LOCAL = {None, "", "localhost", "127.0.0.1", "::1", b"localhost", b"127.0.0.1"}

def tell(**line):
    # os-level writes: opening a file in the usual way would ask the hook again
    handle = os.open(os.environ["TEST_NETWORK_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, (json.dumps(line, default=repr) + "\\n").encode())
    os.close(handle)

def listen(event, arguments):
    if event not in EVENTS:
        return
    address = arguments[EVENTS[event]]
    local = isinstance(address, (str, bytes)) and event in ("socket.connect", "socket.sendto", "socket.bind")
    host = address[0] if isinstance(address, tuple) else address
    tell(pid=os.getpid(), event=event, host=host, local=local or address is None or host in LOCAL)

sys.addaudithook(listen)
tell(pid=os.getpid(), event="listening", local=True, words=sys.orig_argv)
"""


@pytest.fixture
def listener(tmp_path, monkeypatch):
    """The folder for PYTHONPATH; `lines()` of it are what was told so far."""
    folder = tmp_path / "listener"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LISTENER, encoding="utf-8")
    log = tmp_path / "network.jsonl"
    monkeypatch.setenv("TEST_NETWORK_LOG", str(log))
    # Offline by the environment alone would prove little: nothing of the tests' own settings is handed on.
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)

    def lines() -> list[dict]:
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]

    return folder, lines


def judge(lines: list[dict], *commands: str) -> None:
    """Fail when a process of `commands` was not listened to, or one reached out."""
    heard = [" ".join(line["words"]) for line in lines if line["event"] == "listening"]
    for command in commands:
        assert any(command in words for words in heard), (command, heard)
    outside = [line for line in lines if not line["local"]]
    assert outside == []


def test_the_listener_hears(listener):
    code = (
        "import socket\n"
        "for reach in (lambda: socket.getaddrinfo('huggingface.invalid', 443),\n"
        "              lambda: socket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.1', 9)),\n"
        "              lambda: socket.create_connection(('127.0.0.1', 9), 0.1)):\n"
        "    try: reach()\n"
        "    except OSError: pass\n"
    )
    folder, lines = listener
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(folder)}, check=True)
    assert {line["host"] for line in lines() if not line["local"]} == {"huggingface.invalid", "192.0.2.1"}
    assert any(line["local"] and line["event"] == "socket.connect" for line in lines())
    with pytest.raises(AssertionError):
        judge(lines(), "-c")


@pytest.mark.long
def test_train_chat_and_export_stay_at_home(listener, tmp_path, tiny_models, chat_file):
    folder, lines = listener
    workspace = tmp_path / "workspace"
    recipe = write_recipe(tmp_path, tiny_models(), chat_file)
    trained = launch(workspace, "train", recipe, "--json", paths=(folder,))
    assert trained.returncode == 0, trained.stderr
    run = read_answer(trained.stdout)["run"]
    for words in (
        ["chat", run, "--prompt", "say 3", "--max-new-tokens", "4"],
        ["export", run, "--to", "merged"],
    ):
        done = launch(workspace, *words, "--json", paths=(folder,))
        assert done.returncode == 0, done.stderr
    commands = ("train", "--child train", "chat", "export")
    judge(lines(), "--here train", *(f"studio.cli {command}" for command in commands))


@pytest.mark.long
def test_the_demo_teaches_the_model_and_stays_at_home(listener, tmp_path):
    folder, lines = listener
    done = launch(tmp_path / "workspace", "demo", "--json", paths=(folder,))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["held_out"] >= 100
    assert answer["accuracy_after"] - answer["accuracy_before"] >= 0.6
    assert (Path(answer["artifact"]) / "adapter_model.safetensors").is_file()
    judge(lines(), "studio.cli demo", "studio.cli --child demo")


@pytest.mark.slow
def test_the_window_stays_at_home(listener, tmp_path):
    folder, lines = listener
    workspace = tmp_path / "workspace"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start(workspace, "--no-browser", "--port", port, paths=(folder,))
    browser = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    )

    def page(path: str = "") -> bytes:
        try:
            return browser.open(f"http://127.0.0.1:{port}/{path}", timeout=20).read()
        except OSError:  # the splash page says 503, and the app takes its place in the middle of a request
            return b""

    try:
        wait_for(lambda: read_address(Workspace(workspace)))
        wait_for(lambda: b"gradio" in page(read_address(Workspace(workspace)).rpartition("/")[2]))
        assert b"run-start" in page("config")
        second = launch(workspace, "--no-browser", paths=(folder,))
        assert second.returncode == 0 and f"http://127.0.0.1:{port}/?token=" in second.stderr
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    assert f"http://127.0.0.1:{port}/?token=" in said and "Traceback" not in said
    assert "Traceback" not in (workspace / "logs" / "studio.log").read_text(encoding="utf-8")
    assert processes_of(workspace) == []
    judge(lines(), "--here --no-browser", "studio.cli --child studio")
    assert any(line["event"] == "socket.bind" for line in lines())
