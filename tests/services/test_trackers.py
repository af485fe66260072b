"""Runs mirrored to trackers: read back by each one's own reader, every point once, whatever is killed or fails."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from studio.core.atomic_files import write_json
from studio.core.codec import to_json
from studio.core.events import EvalLogged, StepLogged, Warned
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, RunSpec, change_recipe
from studio.engine.run_folder import RunFolder
from studio.services.event_log import EventLog
from studio.services.trackers import TRACKERS, get_tracker
from studio.services.trackers.feed import LOG, find_tracker_problem, mirroring, plain_settings
from tests.launched import ROOT

HOME = "/" + "home/somebody"
SECRET = f"{HOME}/secret.jsonl"
RECIPE = Recipe(
    model=ModelChoice(source=f"{HOME}/model"),
    data=DatasetSpec(source=SECRET, system_prompt="secret words"),
    run=RunSpec(tracker="tensorboard"),
)


@pytest.fixture
def run_folder(tmp_path) -> RunFolder:
    """A run's folder with its recipe and no events yet."""
    folder = RunFolder(tmp_path / "runs" / "run-1")
    folder.path.mkdir(parents=True)
    write_json(folder.path / "recipe.json", to_json(RECIPE))
    return folder


def log_steps(folder: RunFolder, first: int, last: int) -> None:
    """Append steps, with an evaluation each fifth; a step that was there is told again, as after a resume."""
    log = EventLog(folder.events)
    for step in range(first, last + 1):
        rest = {"total_steps": 40, "epoch": 0.0, "lr": 0.1, "grad_norm": 1.0, "tokens_per_s": 10.0}
        log.append(StepLogged(step=step, loss=1 / step, metrics={"margin": 0.5}, **rest))
        if step % 5 == 0:
            log.append(EvalLogged(step=step, loss=2 / step))


def expected(last: int) -> Counter:
    series = ("loss", "learning_rate", "grad_norm", "tokens_per_s", "margin")
    points = [(name, step) for step in range(1, last + 1) for name in series]
    return Counter([*points, *(("eval_loss", step) for step in range(5, last + 1, 5))])


def start_mirror(folder: RunFolder, name: str, place: Path, **more: str) -> subprocess.Popen:
    line = [sys.executable, "-P", "-m", "studio.services.trackers.feed", str(folder.path), name, str(place)]
    paths = [*filter(None, [more.pop("first", "")]), str(ROOT), str(ROOT / "kernels")]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(paths)} | more
    environment |= get_tracker(name).environment(place)
    return subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )


def mirror(folder: RunFolder, name: str, place: Path) -> None:
    """Mirror what is there, as at a run's end."""
    child = start_mirror(folder, name, place)
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 0, said.decode()


# Their own readers ---------------------------------------------------------------------------------------------------


def read_tensorboard(place: Path) -> Counter:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(place / "run-1"), size_guidance={"scalars": 0})
    found.Reload()
    return Counter((tag, one.step) for tag in found.Tags()["scalars"] for one in found.Scalars(tag))


def read_trackio(place: Path) -> Counter:
    code = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S;"
        "print(json.dumps(S.get_logs('finetune-studio', 'run-1')))"
    )
    environment = dict(os.environ) | {"TRACKIO_DIR": str(place)}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    entries = json.loads(told.stdout.strip().splitlines()[-1])
    return Counter(
        (name, entry["step"])
        for entry in entries
        for name, value in entry.items()
        if name not in ("step", "timestamp") and isinstance(value, (int, float))
    )


def read_wandb(place: Path) -> Counter:
    """Its file is a LevelDB log of its own messages; `wandb sync` reads the same."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = place.glob("wandb/offline-run-*-run-1/*.wandb")
    data, at, held, found = file.read_bytes(), 7, b"", Counter()
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(held)
            held = b""
            if record.HasField("history"):
                items = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                found.update((name, items["_step"]) for name in items if not name.startswith("_"))
    return found


def read_mlflow(place: Path) -> Counter:
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=place.absolute().as_uri())
    experiment = client.get_experiment_by_name("finetune-studio")
    (run,) = client.search_runs([experiment.experiment_id])
    history = [one for name in run.data.metrics for one in client.get_metric_history(run.info.run_id, name)]
    return Counter((one.key, one.step) for one in history)


READERS = {
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


def require(name: str) -> None:
    if importlib.util.find_spec(get_tracker(name).module) is None:
        pytest.skip(f"{name} is not installed: requirements-dev.txt has it")


def test_every_tracker_has_a_reader_here():
    assert set(READERS) == {one.name for one in TRACKERS}


@pytest.mark.computing
@pytest.mark.parametrize("name", READERS)
def test_every_point_is_there_once_also_after_a_kill_and_a_resume(run_folder, tmp_path, name):
    require(name)
    place = tmp_path / "trackers" / name
    log_steps(run_folder, 1, 12)
    child = start_mirror(run_folder, name, place)
    until_s = time.monotonic() + 60
    while not any(place.rglob("*run-1*")) and time.monotonic() < until_s:
        time.sleep(0.1)
    log_steps(run_folder, 13, 14)
    time.sleep(2.5)
    child.send_signal(signal.SIGKILL)
    child.wait()
    log_steps(run_folder, 11, 20)  # the resume begins at a checkpoint before the kill
    mirror(run_folder, name, place)
    assert READERS[name](place) == expected(20)
    log_steps(run_folder, 21, 23)
    mirror(run_folder, name, place)
    assert READERS[name](place) == expected(23)
    kept = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    for private in (b"somebody", b"secret"):
        assert private not in kept


def test_settings_that_can_hold_a_path_or_words_go_nowhere():
    told = json.dumps(plain_settings(RECIPE))
    assert "somebody" not in told and "secret" not in told and "optim.learning_rate" in told


@pytest.mark.parametrize(
    ("behaviour", "warned"),
    [
        ("raise RuntimeError('no room')", True),
        ("import time; time.sleep(1000)", False),
        ("import os; os._exit(7)", True),
    ],
    ids=["raises", "hangs", "dies"],
)
def test_a_tracker_that_fails_stops_nothing(run_folder, tmp_path, monkeypatch, behaviour, warned):
    package = tmp_path / "first" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(behaviour + "\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    log_steps(run_folder, 1, 2)
    told, began_s = [], time.monotonic()
    with mirroring(run_folder, RECIPE, tmp_path / "trackers", told.append):
        until_s = time.monotonic() + (30 if warned else 3)
        log = run_folder.path / LOG
        while time.monotonic() < until_s and not (warned and _has_ended(run_folder)):
            time.sleep(0.1)
    assert time.monotonic() - began_s < 40
    assert [type(event) for event in told] == ([Warned] if warned else [])
    assert log.is_file()
    _end_children()


def _has_ended(folder: RunFolder) -> bool:
    import psutil

    return not [one for one in psutil.Process().children() if one.is_running() and one.status() != "zombie"]


def _end_children() -> None:
    import psutil

    for child in psutil.Process().children():
        if "studio.services.trackers.feed" in " ".join(child.cmdline() if child.status() != "zombie" else []):
            child.kill()


def test_nothing_is_started_unless_it_is_switched_on(run_folder, tmp_path):
    with mirroring(run_folder, change_recipe(RECIPE, {"run.tracker": "none"}), tmp_path / "trackers", print):
        pass
    assert not (run_folder.path / LOG).exists() and not (tmp_path / "trackers").exists()
    assert Recipe(model=RECIPE.model, data=RECIPE.data).run.tracker == "none"


def test_a_missing_package_is_a_problem_before_the_start(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_tracker_problem(RECIPE).field == "run.tracker"
    assert find_tracker_problem(change_recipe(RECIPE, {"run.tracker": "none"})) is None
