"""`chat` beside an open studio: the studio answers, by the model that it has loaded, and only this user's studio."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from studio.cli.open_studio import find_open_studio
from studio.machine.workspace import open_workspace
from tests.conftest import chat_rows, make_model, write_jsonl
from tests.launched import launch, wait_for, write_recipe
from tests.ui.launched_studio import LaunchedStudio

pytestmark = pytest.mark.computing
NOTES = """
import atexit, os, sys
if "chat" in sys.argv:
    atexit.register(lambda: open(os.environ["TEST_NOTES"], "w").write(str("torch" in sys.modules)))
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory, know_machine):
    """A workspace, a finished run of it, and the recipe of another that takes long."""
    folder = tmp_path_factory.mktemp("beside")
    workspace = know_machine(folder / "workspace").root
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    model = make_model(folder / "model")
    recipe = write_recipe(folder, model, data, optim={"max_steps": 2})
    done = launch(workspace, "train", recipe, "--json")
    long = folder / "long"
    long.mkdir()
    endless = write_recipe(long, model, data, optim={"max_steps": 100_000})
    return workspace, json.loads(done.stdout)["run"], json.loads(endless.read_text(encoding="utf-8"))


@pytest.fixture
def studio(shop):
    found = LaunchedStudio(shop[0])
    yield found
    if found.process.poll() is None:
        found.close()


def chat(shop, *words: object, **more: str) -> tuple[dict, int]:
    done = launch(
        shop[0], "chat", shop[1], "--prompt", "say 3", "--max-new-tokens", 12, "--json", *words, **more
    )
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout), done.returncode


def reach(studio: LaunchedStudio) -> tuple[str, dict[str, str]]:
    """The address of a studio's answers, once its window is there, and what shows its key."""
    address = json.loads((studio.workspace / "address.json").read_text(encoding="utf-8"))
    headers = {"authorization": f"Bearer {address['key']}"}
    url = f"http://127.0.0.1:{studio.port}/v1/models"
    wait_for(lambda: httpx.get(url, headers=headers).status_code == 200)
    return url, headers


def test_the_open_studio_answers_and_the_command_loads_nothing(shop, studio, tmp_path):
    url, headers = reach(studio)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NOTES, encoding="utf-8")
    notes = {"TEST_NOTES": str(tmp_path / "notes"), "paths": (site,)}
    first, code = chat(shop, "--side", "both", **notes)
    assert (
        {"value", "reason"}
        == first["speed"]["base"]["ahead"].keys()
        == first["speed"]["tuned"]["ahead"].keys()
    )
    assert code == 0 and Path(notes["TEST_NOTES"]).read_text(encoding="utf-8") == "False"
    again, _ = chat(shop, **notes)
    assert again["speed"]["tuned"]["first_s"] < 0.5, "it has the model"
    assert httpx.get(url).status_code == 401
    assert shop[1] in [one["id"] for one in httpx.get(url, headers=headers).json()["data"]]
    studio.close()
    alone, _ = chat(shop, "--side", "both", **notes)
    assert Path(notes["TEST_NOTES"]).read_text(encoding="utf-8") == "True"
    assert alone["answers"] == first["answers"] and alone.keys() == first.keys()
    assert again["answers"]["tuned"] == first["answers"]["tuned"] and again["slow"] is alone["slow"] is None


def test_what_the_studio_refuses_is_said_by_the_command(shop, studio):
    url, headers = reach(studio)
    long, code = chat(shop, "--system", "x" * 5000)
    assert code == 2 and "5" in long["error"]["what"] and long["error"]["fix"]
    chinese, _ = chat(shop, "--system", "x" * 5000, FINETUNE_STUDIO_LANGUAGE="zh-CN")
    assert chinese["error"]["what"] != long["error"]["what"]
    unknown = launch(shop[0], "chat", "none-0000", "--prompt", "x", "--json")
    assert unknown.returncode == 2 and "none-0000" in json.loads(unknown.stdout)["error"]["what"]
    from gradio_client import Client

    program = Client(
        f"http://127.0.0.1:{studio.port}", headers=headers, verbose=False, analytics_enabled=False
    )
    try:
        run = program.predict(shop[2], api_name="/start")["run"]
        refused, code = chat(shop)
        assert code == 2 and run in refused["error"]["what"]
        program.predict(run, api_name="/stop")
        wait_for(lambda: program.predict(run, api_name="/status")["state"] == "stopped")
    finally:
        program.close()
    assert chat(shop)[1] == 0


def test_a_studio_that_was_killed_is_not_asked_and_whoever_has_its_port_gets_no_key(shop, studio):
    reach(studio)
    address = json.loads((shop[0] / "address.json").read_text(encoding="utf-8"))
    whole = [psutil.Process(studio.process.pid), *psutil.Process(studio.process.pid).children(recursive=True)]
    for process in whole:  # the parents first: nobody starts anybody anew
        process.kill()
    psutil.wait_procs(whole, timeout=20)
    assert (shop[0] / "address.json").exists()
    heard: list[bytes] = []
    with (
        subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        ) as alive,
        socket.socket() as other,
    ):
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", studio.port))
        other.listen()
        other.settimeout(1)

        def listen() -> None:
            until_s = time.monotonic() + 30
            while time.monotonic() < until_s and not done.is_set():
                try:
                    connection, _ = other.accept()
                except TimeoutError:
                    continue
                with connection:
                    heard.append(connection.recv(4096))

        done = threading.Event()
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            # The file may as well name a process of ours that lives and is no studio. It is started for this: a number
            # beside our own may be one of our threads, and we do listen at the port.
            for pid in (address["pid"], alive.pid, 1, 2**40, -1):
                (shop[0] / "address.json").write_text(json.dumps(address | {"pid": pid}), encoding="utf-8")
                assert find_open_studio(open_workspace(shop[0]), "en", shop[1], 0) is None
            assert chat(shop)[1] == 0, "the command answers by itself"
        finally:
            done.set()
            thread.join()
    assert heard == []


@pytest.mark.parametrize(
    "content", ["", "[]", '{"url": 3}', '{"url": "http://127.0.0.1:x/", "pid": 1, "key": "a"}']
)
def test_an_address_file_of_another_make_is_no_studio(shop, content):
    file = shop[0] / "address.json"
    file.write_text(content, encoding="utf-8")
    try:
        assert find_open_studio(open_workspace(shop[0]), "en", shop[1], 0) is None
    finally:
        file.unlink()
