"""The studio is killed while it answers programs and holds a paused run: the run comes to no harm."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.torch import load_file

from tests.launched import SITECUSTOMIZE, wait_for, write_recipe
from tests.ui.test_api import Program, end, open_studio, reach

pytestmark = pytest.mark.computing
STEPS, CLIENTS = 20, 6


def read_weights(workspace: Path, run: str) -> dict[str, bytes]:
    tensors = load_file(workspace / "runs" / run / "adapter" / "adapter_model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def ask_model(program: Program, run: str, tokens: int) -> tuple[str, bool]:
    """Return what was heard of an answer by a stream, and whether it came to its end."""
    heard = []
    try:
        with httpx.stream(
            "POST",
            f"{program.url.rstrip('/')}/v1/chat/completions",
            json={"model": run, "messages": [{"role": "user", "content": "say 3"}], "stream": True,
                  "max_tokens": tokens, "temperature": 2.0},
            headers={"authorization": f"Bearer {program.data['key']}"},
            timeout=60,
        ) as stream:  # fmt: skip
            heard.extend(stream.iter_lines())
    except httpx.TransportError:
        pass
    return "\n".join(heard), "data: [DONE]" in heard


def test_a_paused_run_goes_on_as_if_nothing_had_been(tmp_path, tiny_models, chat_file):
    site, room = tmp_path / "site", tmp_path / "workspace"
    for folder in (site, room):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    file = write_recipe(
        tmp_path, tiny_models(), chat_file,
        optim={"max_steps": STEPS}, adapter={"dropout": 0.1}, run={"trial": False, "save_every": 0},
    )  # fmt: skip
    recipe = json.loads(file.read_text(encoding="utf-8"))
    process, ask = open_studio(room, site, TEST_STEP_SLEEP_S="0.05")
    try:
        calm = ask("start", recipe)["run"]
        wait_for(lambda: ask("status", calm)["state"] == "finished")
        run = ask("start", recipe)["run"]
        wait_for(lambda: ask("status", run)["step"] >= 5)
        ask("pause", run)
        wait_for(lambda: ask("status", run)["state"] == "paused")
        step, pid = ask("status", run)["step"], ask.data["pid"]
        assert ask_model(ask, calm, 4)[1], "beside a paused run the model answers"
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = [pool.submit(ask_model, ask, calm, 240) for _ in range(CLIENTS)]
            # They have begun and are far from their ends: the second look at the processor's time says so.
            before_s = sum(psutil.Process(pid).cpu_times()[:2])
            wait_for(lambda: sum(psutil.Process(pid).cpu_times()[:2]) > before_s + 0.15)
            os.kill(pid, signal.SIGKILL)
            ended = [answer.result()[1] for answer in answers]
        assert not all(ended), "somebody was in the middle of an answer"
        wait_for(lambda: not psutil.pid_exists(pid))
        ask = reach(room)
        assert ask.data["pid"] != pid
        wait_for(lambda: ask("status", run)["state"] == "paused")
        assert ask("status", run)["step"] == step
        # The run loads again first, and holds then: until it does there is no room for another model.
        wait_for(lambda: ask_model(ask, calm, 4)[1])
        ask("unpause", run)
        wait_for(lambda: ask("status", run)["state"] == "finished")
        events = ask("events", run)["events"]
        assert [one["step"] for one in events if one["kind"] == "step_logged"] == list(range(1, STEPS + 1))
        assert read_weights(room, run) == read_weights(room, calm)
    finally:
        end(process, room)
