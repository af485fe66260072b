"""The workspace: chosen by option, variable or user folder; refusals; a child's environment; claims and entries."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.core.heartbeat import Heartbeat, read_beat
from studio.machine.workspace import (
    LONGEST_TMP,
    WORKSPACE_VARIABLE,
    Workspace,
    child_environment,
    clear_caches,
    keep_reserve,
    open_workspace,
    refuse_gone,
)
from studio.machine.workspace_lock import Claim, Holder, claim, claim_run, read_address


def test_option_beats_variable_beats_user_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(WORKSPACE_VARIABLE, raising=False)
    assert open_workspace().root == tmp_path / "data" / "finetune-studio"
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(tmp_path / "variable"))
    assert open_workspace().root == tmp_path / "variable"
    assert open_workspace(str(tmp_path / "option")).root == tmp_path / "option"


def test_folders_are_private_and_the_servers_is_empty(tmp_path):
    workspace = open_workspace(str(tmp_path / "w"))
    for folder in (workspace.root, *workspace.folders):
        assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
    assert not any(workspace.server_cwd.iterdir()) and not any(workspace.tmp.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: permissions")
def test_a_workspace_that_others_could_read_is_closed_to_them(tmp_path, monkeypatch):
    def open_at(name: str, mode: int) -> int:
        folder = tmp_path / name
        folder.chmod(mode)
        open_workspace(str(folder))
        return stat.S_IMODE(folder.stat().st_mode)

    open_workspace(str(tmp_path / "old"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters").mkdir()
    assert open_at("old", 0o755) == open_at("empty", 0o777) == 0o700
    assert open_at("home", 0o755) == 0o755, "a folder that holds other things"
    assert open_at("home", 0o1777) == 0o1777, "a place that all accounts share"
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert open_at("home", 0o755) == 0o755
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert open_at("old", 0o755) == 0o755, "another account's"


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "w").write_text("", encoding="utf-8")
    with pytest.raises(StudioError) as refused:
        open_workspace(str(tmp_path / "w"))
    assert refused.value.why.id == "workspace.not_folder" and refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("number", "kind"), [(28, "full"), (122, "full"), (13, "unwritable"), (30, "unwritable")]
)
def test_full_disk_and_unwritable_are_told_apart(tmp_path, monkeypatch, number, kind):
    def fail(self, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(StudioError) as refused:
        open_workspace(str(tmp_path / "w"))
    assert refused.value.why.id == f"workspace.{kind}" and refused.value.fix.id == f"workspace.{kind}.fix"


@pytest.mark.parametrize("name", ["share.json", "gate.key", "studio.lock", "settings.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_something_else_in_a_files_place_is_named_at_once(tmp_path, name, kind):
    workspace = open_workspace(str(tmp_path / "w"))
    if kind == "pipe" and sys.platform == "win32":
        return
    (os.mkdir if kind == "folder" else os.mkfifo)(workspace.root / name)
    with pytest.raises(StudioError) as refused:
        open_workspace(str(workspace.root))
    assert refused.value.what.id == "workspace.odd" and refused.value.what.values["name"] == name


@pytest.mark.skipif(sys.platform != "linux", reason="names there are bytes")
def test_a_name_that_is_no_text_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(StudioError) as refused:
        open_workspace(os.fsdecode(bytes(tmp_path) + b"/\xff\xfe"))
    assert refused.value.why.id == "workspace.name" and r"\xff\xfe" in refused.value.what.values["path"]
    assert not any(tmp_path.iterdir())


def fill_disk(monkeypatch, number: int, is_full=lambda: True) -> None:
    write = Path.write_bytes

    def fail(self, data):
        if is_full():
            raise OSError(number, os.strerror(number))
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", fail)


@pytest.mark.parametrize("number", [28, 122, 30])
def test_what_only_reads_opens_a_workspace_on_a_full_or_read_only_disk(tmp_path, monkeypatch, number):
    root = tmp_path / "w"
    fill_disk(monkeypatch, number)
    root.mkdir()
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(StudioError):  # there is nothing to read yet
        open_workspace(str(root), writes=False)
    monkeypatch.undo()
    workspace = open_workspace(str(root))
    fill_disk(monkeypatch, number)
    assert open_workspace(str(root), writes=False) == workspace
    with pytest.raises(StudioError):
        open_workspace(str(root))


def test_a_full_disk_takes_the_reserve_and_plenty_of_room_makes_it_anew(workspace, monkeypatch):
    keep_reserve(workspace)
    size_bytes = workspace.reserve.stat().st_size
    assert size_bytes == 8 * 2**20 and len(set(workspace.reserve.read_bytes()[:4096])) > 200
    fill_disk(monkeypatch, 28, workspace.reserve.is_file)
    open_workspace(str(workspace.root))
    assert not workspace.reserve.exists() and not any(workspace.tmp.iterdir())
    monkeypatch.undo()
    usage = shutil.disk_usage(workspace.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10 * size_bytes))
    keep_reserve(workspace)
    assert not workspace.reserve.exists(), "too little is left to keep some back"
    monkeypatch.undo()
    keep_reserve(workspace)
    assert workspace.reserve.stat().st_size == size_bytes


def test_child_environment_points_into_the_workspace_and_drops_foreign_switches():
    workspace = Workspace(Path("/w"))
    base = {
        "GRADIO_SHARE": "True",
        "gradio_mcp_server": "True",
        "HF_HOME": "/hub",
        "PATH": "/bin",
        "PYTHONOPTIMIZE": "2",
    }
    made = child_environment(workspace, base)
    assert made["TRITON_CACHE_DIR"] == str(workspace.triton_cache)
    assert made["TMPDIR"] == str(workspace.tmp) and made["GRADIO_TEMP_DIR"] == str(workspace.gradio_temp)
    assert "PYTHONOPTIMIZE" not in made
    assert {name for name in made if name.upper().startswith("GRADIO_")} == {
        "GRADIO_TEMP_DIR",
        "GRADIO_ANALYTICS_ENABLED",
        "GRADIO_ANALYTICS_CACHE_FREQUENCY",
        "GRADIO_ANALYTICS_MAX_EVENTS",
    }
    assert (
        child_environment(workspace, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})["CUDA_DEVICE_ORDER"]
        == "PCI_BUS_ID"
    )
    assert made["HF_HUB_OFFLINE"] == "1" and made["HF_HOME"] == "/hub" and made["PYTHONUTF8"] == "1"
    assert (
        made["GRADIO_ANALYTICS_ENABLED"] == "False"
        and made["HF_HUB_DISABLE_TELEMETRY"] == made["DO_NOT_TRACK"] == "1"
    )
    assert "TMPDIR" not in child_environment(Workspace(Path("/" + "w" * LONGEST_TMP)), {})


def test_segments_of_gpu_memory_grow_on_linux_unless_the_person_decided(monkeypatch):
    workspace = Workspace(Path("/w"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert child_environment(workspace, {})["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    theirs = child_environment(workspace, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"})
    assert "PYTORCH_ALLOC_CONF" not in theirs
    assert "PYTORCH_ALLOC_CONF" not in child_environment(workspace, {"WSL_DISTRO_NAME": "Ubuntu"})
    monkeypatch.setattr(sys, "platform", "win32")
    assert "PYTORCH_ALLOC_CONF" not in child_environment(workspace, {})


def test_clear_caches_empties_caches_and_nothing_else(workspace):
    (workspace.triton_cache / "a" / "b").mkdir(parents=True)
    (workspace.triton_cache / "a" / "b" / "kernel.so").write_bytes(b"x" * 10)
    (workspace.runs / "run").mkdir()
    assert clear_caches(workspace) == 10
    assert workspace.triton_cache.is_dir() and not any(workspace.triton_cache.iterdir())
    assert (workspace.runs / "run").is_dir()


def test_heartbeat_writes_every_step_and_little_else(tmp_path, monkeypatch):
    heart = Heartbeat(tmp_path / "heartbeat.json")
    heart.beat("r", tmp_path, "train", 1, 0)
    first = read_beat(heart.path)
    heart.beat("r", tmp_path, "train", 1, 1)
    assert read_beat(heart.path) == first and first.micro == 0 and first.pid == os.getpid()
    heart.beat("r", tmp_path, "train", 2, 0)
    assert read_beat(heart.path).step == 2
    started = time.perf_counter()
    for step in range(3, 203):
        heart.beat("r", tmp_path, "train", step, 0)
    assert (time.perf_counter() - started) / 200 < 0.005
    heart.clear()
    assert read_beat(heart.path) is None
    heart.beat("r", tmp_path, "train", 202, 0)
    assert read_beat(heart.path).step == 202
    heart.path.write_text('{"pid": 1', encoding="utf-8")
    assert read_beat(heart.path) is None


def test_second_claim_meets_the_holder(workspace):
    with claim(workspace, "studio") as held:
        assert isinstance(held, Claim)
        held.tell("later")
        held.tell()
        other = claim(workspace, "studio")
        assert isinstance(other, Holder)
        assert (other.run, other.pid) == ("later", os.getpid())
        assert (workspace.root / "studio.json").stat().st_mode & 0o777 == 0o600
        assert isinstance(claim(workspace, "run"), Claim)
    assert isinstance(claim(workspace, "studio"), Claim)


def test_a_claim_of_the_parent_counts_as_the_childs(workspace, monkeypatch):
    with claim_run(workspace):
        monkeypatch.setenv("FINETUNE_STUDIO_PARENT", str(os.getpid()))
        mine = claim_run(workspace, run="demo-1")
        assert isinstance(mine, Claim)
        mine.release()
        monkeypatch.delenv("FINETUNE_STUDIO_PARENT")
        with pytest.raises(StudioError) as refused:
            claim_run(workspace)
        assert refused.value.what.values == {"run": "demo-1"} and refused.value.exit_code == 2


def test_a_claim_dies_with_its_process(workspace):
    code = (
        "import sys; from pathlib import Path; from studio.machine.workspace import Workspace;"
        "from studio.machine.workspace_lock import claim;"
        "held = claim(Workspace(Path(sys.argv[1])), 'run', run='lost');"
        "print('held', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(workspace.root)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout.readline() == b"held\n"
        assert claim(workspace, "run").run == "lost"
    finally:
        child.kill()
        child.communicate()
    with claim(workspace, "run") as held:
        assert isinstance(held, Claim)


def test_only_a_living_windows_address_counts(workspace):
    assert read_address(workspace) == ""
    file = workspace.root / "address.json"
    file.write_text(
        json.dumps({"url": "http://127.0.0.1:7860/?token=t", "pid": os.getpid()}), encoding="utf-8"
    )
    assert read_address(workspace) == "http://127.0.0.1:7860/?token=t"
    os.utime(file, (1, 1))  # written before this process began: its number belonged to another
    assert read_address(workspace) == ""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    for data in ({"url": "x", "pid": gone.pid}, {"url": "x"}, ["x"], {"url": "x", "pid": "many"}):
        file.write_text(json.dumps(data), encoding="utf-8")
        assert read_address(workspace) == ""


def test_clear_caches_goes_on_where_a_file_vanishes(workspace):
    """Another process tidies up its own temporary files at the same time."""
    ended = threading.Event()

    def come_and_go() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            path = workspace.tmp / f"part-{number}"
            with suppress(OSError):
                path.write_bytes(b"x" * 10)
                path.unlink()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        until_s = time.monotonic() + 0.5
        while time.monotonic() < until_s:
            clear_caches(workspace)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert workspace.tmp.is_dir()


def test_a_workspace_that_is_gone_has_its_own_words(workspace):
    missing = FileNotFoundError(2, "No such file or directory")
    assert refuse_gone(workspace, missing) is None and refuse_gone(workspace, OSError(28, "full")) is None
    shutil.rmtree(workspace.root)
    assert refuse_gone(workspace, missing).what.id == "workspace.gone"
