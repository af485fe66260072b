"""The command `wsl` over a fake wsl.exe that runs the distribution's commands here, in a home of its own.

Nothing is really installed: `launch.py install` inside is a stand-in that says so. In the slow test the Linux studio
itself is the real one, started with --here by the tests' own Python.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from io import BytesIO
from pathlib import Path

import psutil
import pytest

from studio.cli.arguments import parse
from studio.cli.console import Console
from studio.cli.wsl import run_wsl
from studio.cli.wsl_crossing import Machine
from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.machine.program_archive import LIST, list_program, pack_program
from studio.machine.workspace_lock import Holder, claim, claim_run
from studio.machine.wsl_lease import MARKER, hand_over
from tests.doubles.wsl import ENGLISH, FakeWsl, read_calls
from tests.launched import launch, read_answer, wait_for

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("launch.py", "requirements.txt", "constraints.txt", "studio/installer/install.py")
"""What the probe and the stand-ins need of the program."""

# Stands for `python3 launch.py wsl --inside` in the distribution: a page that answers until `stop` or the end of input.
STUDIO = """
import json, os, socket, sys
from pathlib import Path
root = Path(os.environ["FINETUNE_STUDIO_WORKSPACE"])
port = int(sys.argv[sys.argv.index("--port") + 1])
page = socket.create_server(("127.0.0.1", port))
seen = {"words": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd()}
(root / "seen.json").write_text(json.dumps(seen))
if Path("broken").exists():
    sys.exit("what\\nwhy\\nfix")
(root / "address.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}/?token=once", "pid": 1}))
print("stopped by", repr(sys.stdin.readline()))
(root / "address.json").unlink()
(root / "checkpoint").write_text("saved")
"""


@pytest.fixture
def stage(workspace, tmp_path, monkeypatch):
    """A function (words, ...) that runs the command `wsl` as Windows would; Ctrl-C follows once the page is open."""
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("FINETUNE_STUDIO_PARENT", "1")
    folder = tmp_path / "windows"
    folder.mkdir()
    studio = tmp_path / "studio.py"
    studio.write_text(STUDIO, encoding="utf-8")
    opened: list[str] = []

    def open_page(address: str) -> None:
        opened.append(address)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    small = tmp_path / "small program"
    for name in SMALL:
        (small / name).parent.mkdir(parents=True, exist_ok=True)
        (small / name).write_bytes((ROOT / name).read_bytes())

    def run(*words: str, fake: FakeWsl | None = None, whole: bool = False, elsewhere: str = "") -> int:
        program = (fake or FakeWsl()).make(folder, inside=str(studio))
        catalogue = load_catalogue("en")
        machine = Machine(
            system="Windows",
            wsl=program,
            translate=lambda path, name, root: elsewhere or path,
            open_page=open_page,
            program=ROOT if whole else small,
        )
        console = Console(catalogue, as_json="--json" in words)
        return run_wsl(parse(["wsl", *words], catalogue), workspace, console, machine)

    run.folder, run.opened, run.home = folder, opened, folder / "home"
    return run


def started_inside(folder: Path) -> bool:
    return any(call[2:4] == ["--exec", "sh"] and call[4] != "-s" for call in read_calls(folder))


@pytest.mark.computing
def test_the_whole_way_with_a_stand_in_for_installation_and_studio(
    stage, workspace, monkeypatch, capfd, tmp_path
):
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.setenv("CC", "C:\\MinGW\\gcc.exe")
    assert stage("--yes", "--json", whole=True) == 0
    captured = capfd.readouterr()
    answer = json.loads(captured.out)
    assert answer["distribution"] == "Ubuntu" and stage.opened == [answer["address"]]
    assert f":{answer['port']}/" in answer["address"] and answer["workspace"] == str(workspace.root)
    for words in (
        "Stand-in: nothing is installed, mirror https://mirror.example/simple",
        str(workspace.root),
    ):
        assert words in captured.err
    assert captured.err.index("hand over the workspace") < captured.err.index("Copying"), (
        "said before it is done"
    )
    # The program is there, whole and runnable.
    copy = stage.home / "finetune-studio"
    assert (copy / "studio/cli/wsl_crossing.py").read_bytes() == (
        ROOT / "studio/cli/wsl_crossing.py"
    ).read_bytes()
    assert sorted((copy / LIST).read_text(encoding="utf-8").split("\n")[:-1]) == list_program(ROOT)
    assert not (copy / ".git").exists() and not list((stage.home / ".finetune-studio").glob("incoming*"))
    # The Linux side was told what it must know, and nothing of Windows' environment.
    seen = json.loads((workspace.root / "seen.json").read_text(encoding="utf-8"))
    inside = seen["environment"]
    assert seen["words"] == ["wsl", "--inside", "--port", str(answer["port"])] and seen["cwd"] == str(copy)
    assert inside["FINETUNE_STUDIO_WORKSPACE"] == str(workspace.root)
    assert inside["FINETUNE_STUDIO_BRIDGE"] == "Ubuntu" and inside["FINETUNE_STUDIO_LANGUAGE"] == "en"
    assert int(inside["FINETUNE_STUDIO_WINDOWS_RAM"]) == psutil.virtual_memory().total
    assert Path(inside["FINETUNE_STUDIO_LOCAL"]).is_relative_to(stage.home) and "CC" not in inside
    # Ctrl-C was told as `stop`, the checkpoint was written, and the workspace is back.
    assert "stopped by 'stop" in (workspace.logs / "wsl.log").read_text(encoding="utf-8")
    assert (workspace.root / "checkpoint").exists() and not (workspace.root / MARKER).exists()
    claim(workspace, "studio").release()
    claim_run(workspace).release()


@pytest.mark.computing
def test_the_second_time_nothing_is_copied_and_a_changed_copy_is_renewed(stage, capfd):
    assert stage("--yes", "--prepare") == 0
    copy = stage.home / "finetune-studio"
    capfd.readouterr()
    assert stage("--yes", "--prepare") == 0
    said = capfd.readouterr().err
    assert "Copying" not in said and "Installing" not in said and not stage.opened
    (copy / ".studio-copy").write_text("older", encoding="utf-8")
    (copy / LIST).write_text("gone.py\nlaunch.py\n", encoding="utf-8")
    (copy / "gone.py").write_text("of an older version", encoding="utf-8")
    (copy / ".venv" / "mine").write_text("installed", encoding="utf-8")
    (copy / "launch.py").write_text("old", encoding="utf-8")
    assert stage("--yes", "--prepare") == 0
    assert "Copying" in capfd.readouterr().err
    assert not (copy / "gone.py").exists() and (copy / ".venv" / "mine").exists()
    assert (copy / "launch.py").read_bytes() == (ROOT / "launch.py").read_bytes()


@pytest.mark.computing
def test_a_copy_that_was_broken_off_is_made_again(stage, capfd):
    """What the script leaves when the computer is switched off between its first line and its last."""
    assert stage("--yes", "--prepare") == 0
    (stage.home / "finetune-studio" / ".studio-copy").write_text("changing", encoding="utf-8")
    (stage.home / ".finetune-studio" / "incoming").mkdir()
    capfd.readouterr()
    assert stage("--yes", "--prepare") == 0 and "Copying" in capfd.readouterr().err


def test_nothing_happens_without_consent(stage, workspace):
    with pytest.raises(StudioError) as refusal:
        stage()
    assert refusal.value.what.id == "wsl.consent"
    assert not (stage.home / "finetune-studio").exists() and not started_inside(stage.folder)


def test_a_folder_of_the_person_is_not_overwritten(stage):
    stage.home.mkdir()
    own = stage.home / "finetune-studio"
    own.mkdir()
    (own / "notes").write_text("mine", encoding="utf-8")
    with pytest.raises(StudioError) as refusal:
        stage("--yes")
    assert refusal.value.what.id == "wsl.problem.foreign" and [path.name for path in own.iterdir()] == [
        "notes"
    ]


@pytest.mark.parametrize("kind", ["studio", "run"])
def test_a_workspace_in_use_is_not_handed_over(stage, workspace, kind, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_PARENT", str(os.getpid()))
    with claim(workspace, kind), pytest.raises(StudioError) as refusal:
        stage("--yes")
    assert refusal.value.what.id == ("wsl.in_use" if kind == "studio" else "claim.run.active")
    assert not (stage.home / "finetune-studio").exists()


@pytest.mark.computing
def test_take_over_waits_for_the_window_to_close(stage, workspace):
    held = claim(workspace, "studio")
    threading.Timer(1.0, held.release).start()
    assert stage("--yes", "--take-over") == 0 and stage.opened


def test_a_second_bridge_is_refused_in_three_sentences(stage, workspace):
    with hand_over(workspace, "Debian"), pytest.raises(StudioError) as refusal:
        stage("--yes")
    say = load_catalogue("en").say
    error = refusal.value
    assert error.what.id == "wsl.handed_over" and "Debian" in say(error.why)
    assert all(load_catalogue("zh-CN").has(part.id) for part in (error.what, error.why, error.fix))


def test_an_installation_that_fails_says_its_last_words(stage, workspace):
    stage.home.mkdir()
    (stage.home / "no-install").touch()
    with pytest.raises(StudioError) as refusal:
        stage("--yes")
    assert refusal.value.what.id == "wsl.install_failed" and refusal.value.exit_code == 1
    assert "No space left on device" in str(refusal.value) and not (workspace.root / MARKER).exists()


@pytest.mark.computing
def test_a_studio_that_ends_by_itself_says_why(stage, workspace):
    assert stage("--yes", "--prepare") == 0
    (stage.home / "finetune-studio" / "broken").touch()
    with pytest.raises(StudioError) as refusal:
        stage("--yes")
    assert refusal.value.what.id == "wsl.ended" and "what why fix" in str(refusal.value)
    assert not (workspace.root / MARKER).exists() and not stage.opened


@pytest.mark.computing
def test_a_workspace_that_linux_does_not_see_is_refused(stage):
    with pytest.raises(StudioError) as refusal:
        stage("--yes", elsewhere="/mnt/q/workspace")
    assert refusal.value.what.id == "wsl.unseen"


def test_check_reports_and_changes_nothing(stage, capfd):
    listing = ENGLISH + "  Old             Stopped         1\r\n* Ubuntu          Running         2\r\n"
    code = stage("--check", "--json", fake=FakeWsl(listing=listing))
    answer = json.loads(capfd.readouterr().out)
    gpu = os.path.exists("/dev/dxg")
    assert code == 0 and answer["ready"] is True and answer["chosen"] == "Ubuntu" and answer["steps"] == []
    assert {each["name"]: (each["version"], each["gpu"]) for each in answer["distributions"]} == {
        "Old": (1, None),
        "Ubuntu": (2, gpu),
    }
    if not gpu:
        (problem,) = [each for each in answer["problems"] if each["field"] == "wsl.dxg"]
        assert "/dev/dxg" in problem["message"] and "wsl --update" in problem["fix"]
    assert list(stage.home.iterdir()) == []
    assert stage("--check", "--distribution", "Old", fake=FakeWsl(listing=listing)) == 1
    assert "wsl --set-version Old 2" in capfd.readouterr().out


def test_check_without_a_distribution_gives_the_commands(stage, capfd):
    assert stage("--check", "--json", fake=FakeWsl(listing="", list_code=1, status_code=1)) == 1
    answer = json.loads(capfd.readouterr().out)
    assert answer["state"] == "off" and answer["ready"] is False
    assert [each["command"] for each in answer["steps"]] == [
        "wsl --install -d Ubuntu",
        "py launch.py wsl --check",
    ]
    with pytest.raises(StudioError) as refusal:
        stage("--yes", fake=FakeWsl(listing="", list_code=1, status_code=1))
    assert "wsl --install -d Ubuntu" in str(refusal.value)


@pytest.mark.parametrize(("wanted", "id"), [("Arch", "wsl.unknown"), ("Old", "wsl.problem.version")])
def test_a_distribution_that_cannot_serve_is_refused(stage, wanted, id):
    listing = ENGLISH + "* Ubuntu          Running         2\r\n  Old             Stopped         1\r\n"
    with pytest.raises(StudioError) as refusal:
        stage("--yes", "--distribution", wanted, fake=FakeWsl(listing=listing))
    assert refusal.value.what.id == id


def test_outside_windows_it_refuses_in_three_sentences(workspace):
    start = launch(workspace.root, "wsl", "--json")
    error = read_answer(start.stdout)["error"]
    assert start.returncode == 2 and "Linux" in error["what"] and "launch.py" in error["fix"]


def test_the_archive_has_the_program_alone_and_its_version_follows_the_content(tmp_path):
    for name in (
        "launch.py",
        "studio/cli/main.py",
        ".venv/lib/x.py",
        ".git/config",
        "studio/__pycache__/cli.pyc",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    packed, version = pack_program(tmp_path)
    assert tarfile.open(fileobj=BytesIO(packed)).getnames() == ["launch.py", "studio/cli/main.py", LIST]
    assert pack_program(tmp_path)[1] == version
    (tmp_path / "studio" / "cli" / "main.py").write_text("changed", encoding="utf-8")
    assert pack_program(tmp_path)[1] != version


# The real Linux studio ----------------------------------------------------------------------------------------------

DRIVER = """
import sys
from studio.cli.arguments import parse
from studio.cli.wsl import run_wsl
from studio.cli.console import Console
from studio.core.i18n import load_catalogue
from studio.cli.wsl_crossing import Machine
from studio.machine.workspace import open_workspace
words = load_catalogue("en")
machine = Machine(system="Windows", wsl=sys.argv[1], translate=lambda path, name, root: path)
options = parse(["wsl", "--yes", "--no-browser", "--json"], words)
sys.exit(run_wsl(options, open_workspace(), Console(words, as_json=True), machine))
"""


@pytest.mark.computing
@pytest.mark.parametrize("end", ["Ctrl-C", "killed"])
def test_the_real_studio_behind_the_fake_wsl_with_a_stand_in_for_installation(workspace, tmp_path, end):
    program = FakeWsl().make(tmp_path / "windows")
    environment = os.environ | {
        "FINETUNE_STUDIO_WORKSPACE": str(workspace.root),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
    }
    said = tmp_path / "said"
    with said.open("wb") as output:
        bridge = subprocess.Popen(
            [sys.executable, "-c", DRIVER, program],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
        )
    family: list[psutil.Process] = []
    try:
        wait_for(lambda: "The studio works in Ubuntu" in said.read_text(encoding="utf-8") or bridge.poll())
        assert bridge.poll() is None, said.read_text(encoding="utf-8")
        family = psutil.Process(bridge.pid).children(recursive=True)
        inside = [each for each in family if each.environ().get("FINETUNE_STUDIO_BRIDGE") == "Ubuntu"]
        assert len(inside) >= 2, "the Linux supervisor and its child"
        local = Path(inside[0].environ()["FINETUNE_STUDIO_LOCAL"])
        assert (local / "studio.lock").exists() and local.is_relative_to(tmp_path / "windows" / "home")
        assert all(Path(each.environ()["HOME"]) == tmp_path / "windows" / "home" for each in inside)
        url = json.loads((workspace.root / "address.json").read_text(encoding="utf-8"))["url"]
        port = url.split(":")[2].split("/")[0]
        ready = f"http://127.0.0.1:{port}/ready"

        def answers_with_the_app() -> bool:
            try:
                return urllib.request.urlopen(ready, timeout=5).status == 204
            except OSError:
                return False

        wait_for(answers_with_the_app)
        with pytest.raises(StudioError, match="Ubuntu"):
            claim(workspace, "studio")
        if end == "Ctrl-C":
            bridge.send_signal(signal.SIGINT)
            stdout, _ = bridge.communicate(timeout=40)
            assert bridge.returncode == 0 and json.loads(stdout)["address"]
            assert not (workspace.root / MARKER).exists()
        else:
            bridge.kill()
        _, alive = psutil.wait_procs(family, timeout=25)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        if end == "Ctrl-C":
            held = claim(workspace, "studio")
            assert not isinstance(held, Holder)
            held.release()
        else:  # the marker of a bridge that was killed gets old by itself
            marker = workspace.root / MARKER
            assert marker.exists()
            long_ago = time.time() - 60
            os.utime(marker, (long_ago, long_ago))
            claim(workspace, "studio").release()
    finally:
        for each in [bridge, *family]:
            try:
                each.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        bridge.wait()
        bridge.stdout.close()
