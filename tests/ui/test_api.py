"""The studio for programs: every endpoint by the real gradio_client, and a real studio that is killed and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gradio as gr
import httpx
import psutil
import pytest
from gradio_client import Client

from studio.core.codec import from_json, to_json
from studio.core.errors import StudioError
from studio.core.recipe import Recipe
from studio.services.desk import Desk
from studio.ui.api import MOST_EVENTS, Api, _check_types
from studio.ui.context import Context
from tests.each_time import some
from tests.launched import SITECUSTOMIZE, environment, processes_of, start, wait_for, write_recipe
from tests.services.test_run_library import RECIPE, make_run, step, write_events
from tests.ui.conftest import MACHINE

EXAMPLE = Path(__file__).resolve().parents[2] / "assets" / "examples" / "train_by_program.py"
ENDPOINTS = {
    *("list", "check", "plan", "start", "resume", "status", "events", "stop", "pause", "unpause"),
    *("queue", "queue_add", "queue_move", "queue_drop", "queue_hold"),
}


# Every endpoint, without an engine -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """(desk, ask, roles, client): `ask(name, *values)` calls an endpoint as `roles[0]`."""
    from studio.machine.workspace import open_workspace

    workspace = open_workspace(str(tmp_path_factory.mktemp("api") / "workspace"))
    desk, roles = Desk(workspace), ["owner"]
    desk.machine.facts = lambda: MACHINE
    context = Context(desk, workspace, keys=None, language="en")
    context.role = lambda request: roles[0]
    with gr.Blocks(analytics_enabled=False) as blocks:
        Api(context)
    blocks.queue(api_open=False)
    _, url, _ = blocks.launch(prevent_thread_lock=True, quiet=True, show_error=False, enable_monitoring=False)
    client = Client(url, verbose=False, analytics_enabled=False)
    yield desk, lambda name, *values: client.predict(*values, api_name=f"/{name}"), roles, client
    client.close()
    blocks.close(verbose=False)
    desk.close()


def test_the_endpoints_are_these_and_say_what_they_take(shop):
    named = shop[3].view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(named) == {f"/{name}" for name in ENDPOINTS}
    events = [part["parameter_name"] for part in named["/events"]["parameters"]]
    assert events == ["run", "after", "wait_s"] and "cursor" in named["/events"]["description"]


def test_runs_are_listed_and_told(shop):
    desk, ask = shop[:2]
    folder = make_run(desk.workspace.runs, created_s=9.0, total_steps=5, base="demo")
    (told,) = [run for run in ask("list")["runs"] if run["run"] == folder.run]
    assert (told["state"], told["steps"], told["base"]) == ("stopped", 3, "demo")
    assert told["resumable"] == {"ok": True, "reason": "It begins anew: there is no checkpoint."}
    assert ask("status") == {"run": None}
    status = ask("status", folder.run)
    assert (status["state"], status["step"], status["loss"], status["diagnosis"]) == ("stopped", 3, 1.0, None)
    assert ask("stop", folder.run) == {"run": folder.run, "stopping": False}
    assert ask("pause", folder.run)["paused"] is False and ask("unpause", folder.run)["paused"] is False


@pytest.mark.computing
def test_events_come_by_cursor(shop):
    desk, ask = shop[:2]
    folder = make_run(desk.workspace.runs)
    write_events(folder, [step(i, float("nan") if i == 2 else 1.0) for i in range(1, MOST_EVENTS + 4)])
    first = ask("events", folder.run)
    assert len(first["events"]) == MOST_EVENTS and first["more"] and not first["active"]
    assert [event["seq"] for event in first["events"][:3]] == [1, 2, 3] and first["events"][1][
        "loss"
    ] == "nan"
    rest = ask("events", folder.run, first["cursor"], 50)
    assert [event["seq"] for event in rest["events"]] == [MOST_EVENTS + i for i in (1, 2, 3)]
    assert ask("events", folder.run, rest["cursor"], 50.0) == {
        "events": [],
        "cursor": rest["cursor"],
        "active": False,
        "more": False,
    }


@pytest.mark.computing
def test_recipes_are_checked_planned_and_put_into_the_queue(shop):
    desk, ask = shop[:2]
    recipe = to_json(desk.recipes.demo())
    assert ask("check", recipe) == {"ok": True, "problems": []}
    wrong = ask("check", recipe | {"optim": {"epochs": -1}, "data": {"source": "/nothing.jsonl"}})
    assert not wrong["ok"] and {each["field"] for each in wrong["problems"]} >= {
        "data.source",
        "optim.epochs",
    }
    unknown = ask("check", recipe | {"optimizer": 1})
    assert not unknown["ok"] and unknown["problems"][0]["field"] == "optimizer"
    plan = ask("plan", recipe)["plan"]
    assert plan["device"]["value"] == "cpu" and plan["device"]["reason"]
    assert ask("queue_hold", True)["held"]
    items = [ask("queue_add", recipe | {"name": name})["item"] for name in "ab"]
    assert from_json(Recipe, items[0]["recipe"]).name == items[0]["name"] == "a"
    moved = ask("queue_move", items[1]["id"], -1)
    assert [item["name"] for item in moved["items"]] == ["b", "a"] and moved[
        "reason"
    ] == "You held the queue."
    for item in items:
        left = ask("queue_drop", item["id"])
    assert left["items"] == [] == ask("queue")["items"]
    refused = ask("queue_add", recipe | {"data": {"source": "/nothing.jsonl"}})["error"]
    assert refused["problems"][0]["field"] == "data.source"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("start", ["not a recipe"], "recipe"),
        ("start", [{"version": 99}], "version 99"),
        ("start", [{}], "model.source"),
        ("status", ["nobody"], "no run"),
        ("events", ["../runs"], "no run"),
        ("events", [3], "run"),
        ("events", ["x", "y"], "after"),
        ("events", ["x", 1.5], "after"),
        ("stop", [None], "run"),
        ("resume", ["nobody"], "no run"),
        ("queue_drop", ["nobody"], "queue"),
        ("queue_hold", ["yes"], "on"),
    ],
)
def test_a_refusal_has_three_sentences(shop, name, values, said):
    (refusal,) = shop[1](name, *values).values()
    assert refusal.keys() >= {"what", "why", "fix"} and all(refusal[part] for part in ("what", "why", "fix"))
    assert said in json.dumps(refusal)


@pytest.mark.parametrize("role", some(["viewer", ""], "viewer"))
def test_nobody_but_the_owner_is_served(shop, role):
    desk, ask, roles, _ = shop
    values = {"check": [{}], "plan": [{}], "start": [to_json(RECIPE)], "queue_add": [to_json(RECIPE)]}
    values |= {"queue_move": ["x", 1], "queue_hold": [True], "list": [], "queue": []}
    roles[0] = role
    try:
        for name in ENDPOINTS:
            answer = ask(name, *values.get(name, ["x"]))
            assert answer.keys() == {"error"} and "owner" in answer["error"]["why"], name
    finally:
        roles[0] = "owner"
    assert desk.runs.active is None and desk.queue.items() == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -(2**53), True, "1", None, [1], 1.5])
def test_a_number_is_a_sound_one(value):
    with pytest.raises(StudioError) as refused:
        _check_types({"after": int}, (value,))
    assert refused.value.what.id == "ui.api.value"
    _check_types({"after": int, "wait_s": float}, (2**40, 0.5))


@pytest.mark.computing
def test_recipes_of_any_shape_are_refused_in_sentences(shop):
    ask = shop[1]
    nested = "[" * 200 + "]" * 200
    for recipe in (
        {"version": 99},
        {"version": []},
        {"optim": 5},
        {"name": json.loads(nested)},
        {"seed": 10**30, "model": {"source": "\0"}, "data": {"source": "~nobody-there/x"}},
        {"model": {"source": "../.."}, "data": {"source": "x" * 100_000}},
    ):
        for name in ("check", "plan", "start", "queue_add"):
            answer = ask(name, recipe)
            told = answer.get("error", {}).get("what") or answer.get("problems")
            assert told, (name, recipe)
    for run in ("../..", "x" * 100_000, "no\0", "~"):
        for name in ("status", "resume", "pause"):
            assert ask(name, run)["error"]["what"], (name, run)
        assert ask("events", run, 0, 0)["error"]["what"]
    assert shop[0].queue.items() == ()


# A real studio -------------------------------------------------------------------------------------------------------


class Program:
    """What a person's own program sees of a studio: its address file and its endpoints."""

    def __init__(self, workspace: Path) -> None:
        self.address = workspace / "address.json"
        self.data = json.loads(self.address.read_text(encoding="utf-8"))
        self.url = self.data["url"].partition("?")[0]
        self.client = Client(
            self.url,
            headers={"Authorization": f"Bearer {self.data['key']}"},
            verbose=False,
            analytics_enabled=False,
        )

    def __call__(self, name: str, *values):
        return self.client.predict(*values, api_name=f"/{name}")


def open_studio(workspace: Path, site: Path, **more: str) -> tuple[subprocess.Popen, Program]:
    """Start a studio and wait until its endpoints answer."""
    process = start(workspace, "--no-browser", paths=(site,), **more)
    try:
        return process, reach(workspace)
    except BaseException:
        end(process, workspace)
        raise


def reach(workspace: Path) -> Program:
    """Return a Program of the studio that is open, as soon as one is."""
    found: list[Program] = []

    def try_it() -> bool:
        try:
            found.append(Program(workspace))
        except (
            OSError,
            ValueError,
            KeyError,
            httpx.HTTPError,
        ):  # not there yet, or it answers with its splash page
            return False
        return True

    wait_for(try_it, 120)
    return found[0]


def end(process: subprocess.Popen, workspace: Path) -> None:
    """Ask a studio to end and see that nobody is left."""
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=30)
    finally:
        for left in processes_of(workspace):
            left.kill()


@pytest.fixture
def site(tmp_path):
    """A folder whose sitecustomize.py slows the engine's steps as the environment says."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    return folder


@pytest.mark.computing
def test_a_studio_by_program_killed_and_started_anew(tmp_path, site, tiny_models, chat_file):
    room = tmp_path / "workspace"
    room.mkdir()
    long = write_recipe(
        tmp_path, tiny_models(), chat_file, name="long", optim={"max_steps": 20}, run={"trial": False}
    )
    recipe = json.loads(long.read_text(encoding="utf-8"))
    short = recipe | {"name": "short", "optim": recipe["optim"] | {"max_steps": 3}}
    endless = recipe | {"name": "endless", "optim": recipe["optim"] | {"max_steps": 100_000}}
    process, ask = open_studio(room, site, TEST_STEP_SLEEP_S="0.05")
    try:
        # The example of the README, as it stands.
        (tmp_path / "short.json").write_text(json.dumps(short), encoding="utf-8")
        words = [sys.executable, str(EXAMPLE), str(room), str(tmp_path / "short.json")]
        done = subprocess.run(
            words, env=environment(room), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert [line.partition(":")[0] for line in lines[:-1]] == [f"step {i} of 3" for i in (1, 2, 3)]
        assert lines[-1].split()[1] == "finished"
        assert (room / "api.key").stat().st_mode & 0o777 == ask.address.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ValueError, match="credentials"):
            Client(ask.url, headers={"Authorization": "Bearer " + "0" * 64}, verbose=False)

        # Paused and killed: the run comes back in a new process, paused, and the queue goes on after it.
        run = ask("start", recipe)["run"]
        for each in (short, endless, short):
            ask("queue_add", each)
        wait_for(lambda: ask("status", run)["step"] >= 5)
        assert "error" in ask("start", short), "one at a time"
        ask("pause", run)
        wait_for(lambda: ask("status", run)["state"] == "paused")
        step, pid = ask("status", run)["step"], ask.data["pid"]
        assert pid != process.pid and psutil.Process(pid).ppid() == process.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not psutil.pid_exists(pid))
        ask = reach(room)
        assert ask.data["pid"] != pid
        wait_for(lambda: ask("status", run)["state"] == "paused")
        assert ask("status", run)["step"] == step
        ask("unpause", run)
        wait_for(lambda: ask("status", run)["state"] == "finished")
        events = ask("events", run)["events"]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert "run_resumed" in [event["kind"] for event in events]
        steps = [event["step"] for event in events if event["kind"] == "step_logged"]
        assert steps == list(range(1, 21)), "it was saved when it was paused"
        wait_for(lambda: ask("queue")["items"][0]["name"] == "endless")
        queue = ask("queue")
        states = [(item["name"], item["state"]) for item in queue["items"]]
        assert states[:4] == [
            ("endless", "running"),
            ("short-2", "waiting"),
            ("short", "done"),
            ("long", "done"),
        ]
        assert not queue["held"]
    finally:
        end(process, room)
    assert not (room / "address.json").exists()

    # Started anew by a person: what waits waits for a word.
    process, ask = open_studio(room, site)
    try:
        queue = ask("queue")
        assert queue["held"] and "anew" in queue["reason"]
        assert [(item["name"], item["state"]) for item in queue["items"][:2]] == [
            ("short-2", "waiting"),
            ("endless", "stopped"),
        ]
        assert ask("status") == {"run": None}
    finally:
        end(process, room)
    assert processes_of(room) == []
