"""A run under its supervisor, with real deaths and signals: it comes back with its weights, or ends with a reason."""

from __future__ import annotations

import json
import signal

import pytest

from studio.cli.main import main
from studio.core.heartbeat import read_beat
from studio.supervisor.child_process import GRACE_S
from tests.launched import (
    RUN_KEYS,
    SITECUSTOMIZE,
    last_step,
    launch,
    processes_of,
    read_answer,
    read_events,
    start,
    wait_for,
    write_recipe,
)
from tests.slowness import slowness

pytestmark = pytest.mark.slow

STEPS = 60
"""At 0.1 s a look, twice a step, they last long enough for a signal that is sent at step 5."""
START_S = 200
"""A busy machine takes that long to the first step."""
END_S = GRACE_S + 20
"""The supervisor kills after GRACE_S what was asked to end; it must have, and what it says then is looked at."""


@pytest.fixture
def site(tmp_path):
    """A folder whose sitecustomize.py aborts or slows the engine's thread as the environment says."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    return folder


@pytest.fixture
def room(tmp_path):
    """A workspace folder."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def recipe(tmp_path, tiny_models, chat_file):
    """A recipe of 12 steps with dropout, a checkpoint every second step."""
    return write_recipe(tmp_path, tiny_models(), chat_file, adapter={"dropout": 0.1})


@pytest.fixture
def calm(tmp_path, capsys, monkeypatch):
    """A function `calm(recipe) -> bytes`: the adapter's weights of the same recipe, trained without any trouble."""

    def train(recipe):
        monkeypatch.setenv("FINETUNE_STUDIO_WORKSPACE", str(tmp_path / "calm"))
        assert main(["train", str(recipe), "--json", "--child"]) == 0
        return weights(json.loads(capsys.readouterr().out))

    return train


def weights(answer: dict) -> dict:
    """The tensors of the run's adapter, as bytes."""
    from pathlib import Path

    from safetensors.torch import load_file

    tensors = load_file(Path(answer["artifact"]) / "adapter_model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.long
def test_one_abort_comes_back_with_the_same_weights(room, site, recipe, calm, tmp_path):
    done = launch(
        room,
        "train",
        recipe,
        "--json",
        paths=(site,),
        TEST_ABORT_STEP="7",
        TEST_ABORT_ONCE=str(tmp_path / "aborted"),
    )
    assert done.returncode == 0, done.stderr
    answer = read_answer(done.stdout)
    assert answer.keys() == RUN_KEYS and (answer["state"], answer["steps"]) == ("finished", 12)
    (death,) = (room / "runs" / answer["run"] / "deaths.jsonl").read_text(encoding="utf-8").splitlines()
    death = json.loads(death)
    assert (death["step"], death["name"], death["phase"]) == (7, "SIGABRT", "train")
    assert "Fatal Python error: Aborted" in death["log"]
    resumed = [event["step"] for event in read_events(room) if event["kind"] == "run_resumed"]
    assert resumed == [6]
    assert "SIGABRT" in done.stderr and "Traceback" not in done.stderr
    assert weights(answer) == calm(recipe)
    assert processes_of(room) == []


@pytest.mark.long
def test_an_abort_each_time_ends_the_run_after_two_restarts(room, site, recipe):
    done = launch(room, "train", recipe, "--json", paths=(site,), TEST_ABORT_STEP="7")
    assert done.returncode == 1, done.stderr
    answer = read_answer(done.stdout)
    assert answer.keys() == RUN_KEYS and (answer["state"], answer["steps"]) == ("failed", 7)
    assert answer["artifact"] is None and answer["loss"] > 0
    assert answer["diagnosis"]["id"] == "engine_died" and answer["diagnosis"]["fixes"]
    folder = room / "runs" / answer["run"]
    assert len((folder / "deaths.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    events = read_events(room)
    assert [event["kind"] for event in events].count("run_resumed") == 2
    assert events[-1]["kind"] == "run_failed" and events[-1]["diagnosis"]["id"] == "engine_died"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert json.loads((folder / "run.json").read_text(encoding="utf-8"))["state"] == "failed"
    assert "Traceback" not in done.stderr and processes_of(room) == []
    healed = launch(room, "resume", answer["run"], "--json")
    assert healed.returncode == 0 and read_answer(healed.stdout)["state"] == "finished"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_end_saves_and_resume_finishes_alike(
    room, site, tmp_path, tiny_models, chat_file, calm, number
):
    recipe = write_recipe(
        tmp_path,
        tiny_models(),
        chat_file,
        optim={"max_steps": STEPS},
        run={"save_every": 0},
        adapter={"dropout": 0.1},
    )
    process = start(room, "train", recipe, "--json", paths=(site,), TEST_STEP_SLEEP_S="0.1")
    try:
        wait_for(lambda: last_step(room) >= 5, START_S)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=END_S)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    answer = read_answer(stdout)
    assert answer["state"] == "stopped" and 5 <= answer["steps"] < STEPS and answer["artifact"] is None
    folder = room / "runs" / answer["run"]
    # The first checkpoint, of 5 % of the steps, lies there too.
    assert max(path.name for path in (folder / "checkpoints").iterdir()) == f"step-{answer['steps']:08}"
    assert not (folder / "deaths.jsonl").exists() and read_events(room)[-1]["kind"] == "run_stopped"
    assert processes_of(room) == [] and "Traceback" not in stderr
    resumed = launch(room, "resume", answer["run"], "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert weights(read_answer(resumed.stdout)) == calm(recipe)


@pytest.mark.long
def test_a_request_before_the_first_step_is_not_lost(room, site, recipe):
    process = start(room, "train", recipe, "--json", paths=(site,), TEST_STEP_SLEEP_S="1")

    def tries_out() -> bool:
        beat = read_beat(room / "heartbeat.json")
        return beat is not None and beat.phase == "trial"

    try:
        # Not earlier, while libraries or the model are loading (tests/services/test_desk.py asks then): a busy machine
        # may need more for that than the supervisor's 20 s, which then ends it.
        wait_for(tries_out, START_S)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=END_S)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    assert read_answer(stdout)["state"] == "stopped" and last_step(room) == 0
    assert processes_of(room) == [] and "Traceback" not in stderr


def test_one_run_at_a_time_and_no_child_outlives_a_killed_supervisor(
    room, site, tmp_path, tiny_models, chat_file, capsys, monkeypatch
):
    # No checkpoint on the way: a process that waits for a busy disk cannot be ended before it is done.
    parts = {"optim": {"max_steps": 5000}, "run": {"save_every": 5000}}
    recipe = write_recipe(tmp_path, tiny_models(), chat_file, **parts)
    process = start(room, "train", recipe, paths=(site,), TEST_STEP_SLEEP_S="0.05")
    try:
        wait_for(lambda: last_step(room) >= 3, START_S)
        (run,) = (path.name for path in (room / "runs").iterdir())
        for words in (["train", recipe], ["resume", run]):
            second = launch(room, *words, "--json")
            assert second.returncode == 2 and run in read_answer(second.stdout)["error"]["what"]
        assert [path.name for path in (room / "runs").iterdir()] == [run]
        monkeypatch.setenv("FINETUNE_STUDIO_WORKSPACE", str(room))
        for words in (["runs"], ["doctor"], ["data", str(chat_file)]):
            assert main([*words, "--json"]) == 0
            answer = json.loads(capsys.readouterr().out)
            if words == ["runs"]:
                assert [(entry["run"], entry["state"]) for entry in answer["runs"]] == [(run, "running")]
        assert len(processes_of(room)) == 2
        limit_s = 2.0 * slowness()
        process.kill()
        wait_for(lambda: not processes_of(room), limit_s)
    finally:
        process.kill()
        process.communicate()
    assert main(["runs", "--json"]) == 0
    assert [entry["state"] for entry in json.loads(capsys.readouterr().out)["runs"]] == ["stopped"]
