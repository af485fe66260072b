"""`serve` as a person starts it: it says address and key once, answers whoever shows the key, and ends when told."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import chat_rows, make_model, write_jsonl
from tests.launched import command, environment, launch, write_recipe

QUESTION = {"messages": [{"role": "user", "content": "say 3"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, know_machine) -> Path:
    return know_machine(tmp_path_factory.mktemp("serve") / "workspace").root


@contextmanager
def served(workspace: Path, *words: object) -> Iterator[tuple[dict, subprocess.Popen]]:
    """Run `serve`; yields what it says once it answers, and its process."""
    process = subprocess.Popen(
        command("serve", *words, "--json"),
        env=environment(workspace),
        cwd=workspace.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        line = process.stdout.readline()
        yield json.loads(line) if line else {}, process
    finally:
        process.kill()
        process.communicate()


def ask(told: dict, model: str, key: str | None = None) -> httpx.Response:
    return httpx.post(
        f"{told['address']}/chat/completions",
        json=QUESTION | {"model": model},
        headers={"authorization": f"Bearer {key or told['key']}"},
        timeout=60,
    )


@pytest.mark.computing
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_run_is_served_until_it_is_told_to_stop(workspace, sign):
    folder = workspace.parent / f"work-{sign.name}"
    folder.mkdir()
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    recipe = write_recipe(folder, make_model(folder / "model"), data, optim={"max_steps": 2})
    run = json.loads(launch(workspace, "train", recipe, "--json").stdout)["run"]
    with served(workspace, run) as (told, process):
        assert told["models"] == [run, f"{run}:base"] and len(told["key"]) > 30
        assert told["address"].startswith("http://127.0.0.1:")
        for model in told["models"]:
            assert ask(told, model).json()["choices"][0]["message"]["role"] == "assistant"
        assert ask(told, run, key="x" * 20).status_code == 401
        process.send_signal(sign)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0 and not out and told["key"] not in err
        with pytest.raises(httpx.TransportError):
            ask(told, run)


@pytest.mark.computing
def test_a_model_as_it_came_is_served_with_a_key_of_ones_own(workspace):
    model = make_model(workspace.parent / "plain")
    key = "a-key-of-my-own-1"
    with served(workspace, model, "--key", key, "--max-tokens", 8) as (told, process):
        assert told["key"] == key and len(told["models"]) == 1
        assert ask(told, told["models"][0]).status_code == 200
        port = told["address"].rsplit(":", 1)[1].partition("/")[0]
        taken = launch(workspace, "serve", model, "--port", port, "--json")
        assert taken.returncode == 2 and port in json.loads(taken.stdout)["error"]["what"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none-0000"], "none-0000"),
        (["demo", "--key", "short"], "16"),
        (["demo", "--checkpoint", "3"], "demo"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_listens(workspace, words, said):
    answer = launch(workspace, "serve", *words, "--json")
    assert answer.returncode == 2 and "Traceback" not in answer.stderr
    assert said in " ".join(json.loads(answer.stdout)["error"].values())
