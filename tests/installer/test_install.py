"""Making .venv: the Python, PyTorch's build, the stamp, repair, update, failed update; with one tiny package."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from studio.installer import install, requirements, torch_build
from tests.wheels import make_wheel

ROOT = Path(__file__).resolve().parents[2]
# What stands for the studio in these checkouts: it says how it was started.
CLI = """import json, sys, time
print(json.dumps({"words": sys.argv[1:], "path": sys.path, "prefix": sys.prefix, "time": time.time()}))
"""


def make_checkout(folder: Path) -> Path:
    """Copy what an installation needs into `folder`, with `tiny` for the only requirement."""
    shutil.copytree(
        ROOT / "studio",
        folder / "studio",
        ignore=shutil.ignore_patterns("__pycache__", "ui", "engine", "cli"),
    )
    shutil.copytree(ROOT / "assets" / "locales", folder / "assets" / "locales")
    for name in ("launch.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "studio" / "cli.py").write_text(CLI, encoding="utf-8")
    (folder / "requirements.txt").write_text("tiny>=1,<3\n", encoding="utf-8")
    (folder / "requirements-dev.txt").write_text("tiny\n", encoding="utf-8")
    (folder / "constraints.txt").write_text("tiny==1.0\n", encoding="utf-8")
    return folder


def launch(checkout: Path, *words: str, **more: str) -> subprocess.CompletedProcess:
    """Run launch.py of `checkout` as a fresh machine would, with the wheels for the only source of packages."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }
    environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(checkout.parent / "wheels"),
    }
    environment |= {"LANG": "C", "FINETUNE_STUDIO_WORKSPACE": str(checkout.parent / "workspace")} | more
    words = (sys.executable, "launch.py", *words)
    return subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A checkout whose first start has just installed, and that start."""
    base = tmp_path_factory.mktemp("install")
    (base / "wheels").mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(base / "wheels", version)
    make_wheel(base / "wheels", "2.5", requires="absent-package")
    checkout = make_checkout(base / "first")
    return checkout, launch(checkout, "demo", "--json")


@pytest.fixture
def checkout(first, request):
    """A copy of the installed checkout; .venv works where it lies, its Python is a link."""
    folder = first[0].parent / request.node.name
    shutil.copytree(first[0], folder, symlinks=True)
    return folder


def installed(checkout: Path) -> str:
    ask = [str(checkout / ".venv" / "bin" / "python"), "-c", "import tiny; print(tiny.version)"]
    return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.computing
def test_the_first_start_installs_and_hands_over(first):
    checkout, start = first
    assert start.returncode == 0, start.stderr
    answer = json.loads(start.stdout)
    assert answer["words"] == ["demo", "--json"] and answer["prefix"] == str(checkout / ".venv")
    assert answer["path"][:2] == [str(checkout), str(checkout / "kernels")]
    lines = [line.strip() for line in start.stderr.splitlines()]
    phases = ["Making .venv with Python", "Installing the other packages", "Checking"]
    assert len(lines) == 3 and all(map(str.startswith, lines, phases))
    assert all(line.endswith(" s") for line in lines)
    assert installed(checkout) == "1.0" and "tiny-1.0" in (checkout / ".venv-install.log").read_text(
        encoding="utf-8"
    )
    stamp = json.loads((checkout / ".venv" / "studio-stamp.json").read_text(encoding="utf-8"))
    assert stamp["python"].startswith("3.") and not (checkout / ".venv" / "studio-changing").exists()


def test_later_starts_lose_less_than_300_ms(first):
    checkout, _ = first
    bare, whole = [], []
    for _ in range(3):
        started = time.time()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare.append(time.time() - started)
        started = time.time()
        start = launch(checkout, "runs")
        assert start.stderr == ""
        whole.append(json.loads(start.stdout)["time"] - started)
    assert min(whole) - min(bare) < 0.3


@pytest.mark.computing
def test_a_half_made_venv_is_made_anew(checkout):
    (checkout / ".venv" / "studio-changing").write_bytes(b"")
    (checkout / ".venv" / "torn").write_bytes(b"")
    start = launch(checkout, "demo")
    assert start.returncode == 0 and "made again" in start.stderr
    assert not (checkout / ".venv" / "torn").exists() and installed(checkout) == "1.0"


@pytest.mark.parametrize("damage", ["stamp", "torn", "python", "home", "changing"])
def test_what_counts_as_half_made(checkout, damage):
    folder = checkout / ".venv"
    assert install.is_ready(checkout) and not install.is_ready(checkout, dev=True)
    if damage == "stamp":
        (folder / "studio-stamp.json").unlink()
    elif damage == "torn":
        (folder / "studio-stamp.json").write_text('{"base', encoding="utf-8")
    elif damage == "python":
        (folder / "bin" / "python").unlink()
        (folder / "bin" / "python").symlink_to("/nowhere/python")
    elif damage == "home":
        (folder / "pyvenv.cfg").write_text("home = /nowhere\n", encoding="utf-8")
    else:
        (folder / "studio-changing").write_bytes(b"")
    assert install.read_stamp(checkout) == {} and not install.is_ready(checkout)


@pytest.mark.computing
def test_changed_constraints_update_in_place_after_waiting_for_another_start(checkout):
    (checkout / "constraints.txt").write_text("tiny==2.0\n", encoding="utf-8")
    (checkout / ".venv" / "mine").write_bytes(b"")
    with (checkout / ".venv-install.lock").open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(1.0, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        start = launch(checkout, "demo")
    assert start.returncode == 0 and "waiting for it" in start.stderr
    assert installed(checkout) == "2.0" and (checkout / ".venv" / "mine").exists()
    assert launch(checkout, "demo").stderr == ""


@pytest.mark.computing
def test_a_failed_update_keeps_the_old_packages_and_is_not_tried_each_time(checkout):
    (checkout / "constraints.txt").write_text("tiny==2.5\n", encoding="utf-8")
    start = launch(checkout, "demo")
    assert start.returncode == 0 and json.loads(start.stdout)["words"] == ["demo"]
    assert "goes on with the earlier ones" in start.stderr and installed(checkout) == "1.0"
    assert launch(checkout, "demo").stderr == ""
    asked = launch(checkout, "install", "--json")
    assert asked.returncode == 1 and "absent-package" in json.loads(asked.stdout)["error"]["why"]
    assert launch(checkout, "demo").returncode == 0


@pytest.mark.computing
def test_no_network_and_nothing_installed(first):
    checkout = make_checkout(first[0].parent / "offline")
    index = {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    start = launch(checkout, "demo", "--json", **index)
    error = json.loads(start.stdout)["error"]
    assert start.returncode == 1 and set(error) == {"what", "why", "fix"}
    assert (
        error["why"] == "The package server (http://127.0.0.1:9/simple) cannot be reached from this machine."
    )
    assert not (checkout / ".venv" / "studio-stamp.json").exists()


@pytest.fixture
def server(first):
    """A package server on this machine that offers the wheels of `tiny`, and the paths that it was asked for."""
    wheels, asked = first[0].parent / "wheels", []

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            name = self.path.rstrip("/").split("/")[-1]
            body = "".join(
                f"<a href='/files/{file.name}'>{file.name}</a>" for file in sorted(wheels.iterdir())
            )
            body = (wheels / name).read_bytes() if name.endswith(".whl") else body.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/zip" if name.endswith(".whl") else "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


@pytest.mark.computing
@pytest.mark.parametrize("source", ["PIP_INDEX_URL", "pip.conf", "proxy"])
def test_packages_come_from_where_pip_is_told(first, server, tmp_path, source):
    address, asked = server
    checkout = make_checkout(first[0].parent / f"mirror-{source}")
    places = {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": ""}
    if source == "PIP_INDEX_URL":
        places["PIP_INDEX_URL"] = f"{address}/simple"
    elif source == "pip.conf":
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {address}/simple\n", encoding="utf-8")
        places["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
    else:  # the server is asked as a proxy for a name that does not exist
        places |= {"HTTP_PROXY": address, "PIP_INDEX_URL": "http://packages.invalid/simple"}
        places["PIP_TRUSTED_HOST"] = "packages.invalid"
    start = launch(checkout, "demo", **places)
    assert start.returncode == 0, start.stderr
    assert installed(checkout) == "1.0" and any(path.endswith("tiny-1.0-py3-none-any.whl") for path in asked)
    assert source != "proxy" or asked[0] == "http://packages.invalid/simple/tiny/"


@pytest.mark.computing
def test_without_any_server_only_the_folder_of_wheels_is_asked(first, server):
    address, asked = server
    checkout = make_checkout(first[0].parent / "no-index")
    start = launch(checkout, "demo", PIP_NO_INDEX="1", PIP_INDEX_URL=f"{address}/simple")
    assert start.returncode == 0 and installed(checkout) == "1.0" and asked == []


@pytest.mark.computing
def test_installing_again_is_quick_unless_something_is_missing(checkout):
    log = (checkout / ".venv-install.log").stat().st_size
    start = launch(checkout, "install")
    assert start.returncode == 0 and "already installed here" in start.stderr
    assert (checkout / ".venv-install.log").stat().st_size == log
    shutil.rmtree(next((checkout / ".venv").glob("lib/python*/site-packages/tiny-1.0.dist-info")))
    assert launch(checkout, "install").returncode == 0 and installed(checkout) == "1.0"
    assert next((checkout / ".venv").glob("lib/python*/site-packages/tiny-1.0.dist-info")).is_dir()


def test_what_a_virus_scanner_holds_is_tried_again_three_times(tmp_path, monkeypatch):
    tries, told = [], []
    monkeypatch.setattr(install, "HELD_WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(install, "_tell", told.append)

    def held_until(count):
        def run(*_, **__):
            tries.append(1)
            if len(tries) < count:
                raise install.refuse(ROOT, "install.held", code=1)
            return "done"

        return run

    monkeypatch.setattr(install, "_run", held_until(4))
    assert install._pip(ROOT, "Installing", []) == "done" and len(tries) == 4 and len(told) == 3
    tries.clear()
    monkeypatch.setattr(install, "_run", held_until(5))
    with pytest.raises(install.Refusal) as refusal:
        install._pip(ROOT, "Installing", [])
    assert refusal.value.id == "install.held" and refusal.value.code == 1 and len(tries) == 4


@pytest.mark.computing
def test_rebuild_starts_over_and_empties_our_caches(checkout):
    (checkout / ".venv" / "mine").write_bytes(b"")
    kernel = checkout.parent / "workspace" / "cache" / "triton" / "kernel.so"
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_bytes(b"x")
    start = launch(checkout, "install", "--rebuild", "--json")
    assert start.returncode == 0, start.stderr
    assert json.loads(start.stdout)["environment"] == str(checkout / ".venv")
    assert not (checkout / ".venv" / "mine").exists() and not kernel.exists() and installed(checkout) == "1.0"


@pytest.mark.computing
def test_no_ensurepip_names_the_package(first, tmp_path):
    checkout = make_checkout(first[0].parent / "bare")
    (tmp_path / "ensurepip.py").write_text("raise ImportError('not shipped')\n", encoding="utf-8")
    start = launch(checkout, "demo", "--json", PYTHONPATH=str(tmp_path))
    error = json.loads(start.stdout)["error"]
    package = "python{}.{}-venv".format(*sys.version_info)
    assert start.returncode == 2 and f"sudo apt install {package}" in error["fix"]
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("cuda", "driver", "wrong"),
    [("None", 13000, True), ("'13.0'", 13000, False), ("None", 0, False), ("None", 11080, False)],
)
def test_a_cpu_edition_beside_a_card_is_wrong(tmp_path, monkeypatch, cuda, driver, wrong):
    facts = {
        "system": "Windows",
        "cuda_driver": driver,
        "capabilities": [[8, 6]],
        "amd": False,
        "intel": False,
    }
    monkeypatch.setattr(torch_build, "read_facts", lambda python: facts)
    assert not torch_build.is_wrong(tmp_path, "python")
    file = tmp_path / "Lib" / "site-packages" / "torch" / "version.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"__all__ = ['cuda']\ncuda: Optional[str] = {cuda}\nhip = None\n", encoding="utf-8")
    assert torch_build.is_wrong(tmp_path, "python") is wrong


@pytest.mark.parametrize(
    ("version", "ranges", "holds"),
    [
        ("2.11.0+cu130", ">=2.11,<2.15", True),
        ("2.15.0", ">=2.11,<2.15", False),
        ("2.9.1", ">=2.11,<2.15", False),
        ("2.10", ">=2.9", True),
        ("6.0.0rc1", ">=5.17,<6", False),
        ("3.7.1", "==3.7.1", True),
        ("3.7.1.post27", "!=3.7.1", False),
        ("9", "", True),
    ],
)
def test_versions_are_judged_by_number(version, ranges, holds):
    assert requirements.is_within(version, ranges) is holds


def test_here_lists_what_is_missing_or_unsuitable(tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text(
        '# words\npytest>=1\npluggy<1,>=0.1\nabsent-package>=1,<2  # why\nother; sys_platform == "win32"\ngradio>=99\n'
        "openpyxl>=99\nllguidance>=99\n",
        encoding="utf-8",
    )
    lacking = requirements.find_unsuitable(file, window=False)
    assert (
        len(lacking) == 2
        and lacking[0].startswith("pluggy<1,>=0.1 (1.")
        and lacking[1] == "absent-package>=1,<2"
    )
    assert len(requirements.find_unsuitable(file, window=True)) == 4


def test_the_locked_versions_lie_in_the_ranges():
    """Whatever a fresh installation gets passes --here, and every requirement is locked."""
    locked = dict(requirements.read_requirements(ROOT / "constraints.txt"))
    for name in ("requirements.txt", "requirements-dev.txt"):
        for package, ranges in requirements.read_requirements(ROOT / name):
            assert requirements.is_within(locked[package].lstrip("="), ranges), package
    assert locked["torch"] == "==2.13.0" and "kernels" not in locked and "pynvml" not in locked
    ranges = dict(requirements.read_requirements(ROOT / "requirements.txt"))
    assert (ranges["torch"], ranges["transformers"]) == (">=2.11,<2.15", ">=5.17,<6")
    assert (ranges["gradio"], ranges["trl"]) == (">=6.31,<7", ">=1.16,<2")
