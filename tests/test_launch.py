"""The door: what works without .venv, --here, the test command, the installers and the files that launch.py must be."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import SETS

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("computing", "slow", "long", "patient")
EARLY = (
    "launch.py",
    *(
        f"studio/installer/{name}.py"
        for name in (
            "app_window",
            "install",
            "install_page",
            "pip_errors",
            "python_choice",
            "requirements",
            "torch_build",
            "windows",
        )
    ),
    "studio/core/atomic_files.py",
    "studio/core/lock_file.py",
)
CLI = '''"""What stands for the command line."""

import json
import sys

print(json.dumps({"words": sys.argv[1:], "path": sys.path[:3], "python": sys.executable}))
raise SystemExit(0)
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout without .venv whose studio.cli only says how it was started, with one passing and one slow test."""
    folder = tmp_path_factory.mktemp("launch") / "a checkout"
    for name in EARLY:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "assets" / "locales", folder / "assets" / "locales")
    for name in (
        "pyproject.toml",
        "requirements.txt",
        "requirements-dev.txt",
        "constraints.txt",
        "install_linux.sh",
    ):
        shutil.copy(ROOT / name, folder / name)
    for package in ("studio", "studio/core", "studio/installer"):
        (folder / package / "__init__.py").write_text('"""A package."""\n', encoding="utf-8")
    (folder / "studio" / "cli.py").write_text(CLI, encoding="utf-8")
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "run.py", folder / "tests" / "run.py")
    (folder / "tests" / "test_it.py").write_text(
        '"""Tests."""\n\nimport pytest\n\n\ndef test_quick():\n    pass\n\n\n'
        "@pytest.mark.computing\ndef test_computing():\n    pass\n\n\n"
        "@pytest.mark.slow\ndef test_slow():\n    pass\n\n\n@pytest.mark.long\ndef test_long():\n    pass\n\n\n"
        "@pytest.mark.patient\ndef test_patient():\n    pass\n\n\n"
        "@pytest.mark.gpu\ndef test_gpu():\n    raise SystemExit\n",
        encoding="utf-8",
    )
    return folder


def launch(
    checkout: Path, *words: str, python: str = sys.executable, **more: str
) -> subprocess.CompletedProcess:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "LC_ALL", "LC_MESSAGES")
    }
    environment |= {"LANG": "C.UTF-8"} | more
    command = [python, str(checkout / "launch.py"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/")


def test_help_and_version_need_no_venv(checkout):
    english = launch(checkout, "--help")
    chinese = launch(checkout, "--help", LANG="zh_CN.UTF-8")
    assert english.returncode == chinese.returncode == 0
    assert "launch.py demo" in english.stdout and "launch.py demo" in chinese.stdout
    assert "微调" in chinese.stdout and "微调" not in english.stdout
    assert launch(checkout, "--version").stdout == "0.1.0\n"
    assert not (checkout / ".venv").exists()


def test_here_uses_this_python_and_installs_nothing(checkout):
    start = launch(checkout, "--here", "demo", "--json")
    answer = json.loads(start.stdout)
    assert answer["words"] == ["demo", "--json"] and answer["python"] == sys.executable
    assert answer["path"][:2] == [str(checkout), str(checkout / "kernels")]
    assert not (checkout / ".venv").exists()
    assert json.loads(launch(checkout, "--here", "--port", "1").stdout)["words"] == ["--port", "1"]


def test_no_command_ends_in_pythons_own_prompt(checkout):
    start = launch(checkout, "--here", "demo", PYTHONINSPECT="1")
    assert json.loads(start.stdout)["words"] == ["demo"]
    assert start.stderr == ""


def test_here_lists_unsuitable_packages_and_only_the_window_needs_gradio(checkout, tmp_path):
    for name, version in (("gradio", "5.0.0"), ("torch", "2.9.1+cu128")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
        )
    train = launch(checkout, "--here", "train", "r.json", "--json", PYTHONPATH=str(tmp_path))
    assert train.returncode == 2
    assert (
        "lacks suitable packages: torch>=2.11,<2.15 (2.9.1+cu128)."
        in json.loads(train.stdout)["error"]["what"]
    )
    window = launch(checkout, "--here", PYTHONPATH=str(tmp_path))
    assert window.returncode == 2 and "gradio>=6.31,<7 (5.0.0)" in window.stderr
    shutil.rmtree(tmp_path / "torch-2.9.1+cu128.dist-info")
    assert launch(checkout, "--here", "demo", PYTHONPATH=str(tmp_path)).returncode == 0


def test_another_studio_never_comes_first(checkout, tmp_path):
    (tmp_path / "studio").mkdir()
    (tmp_path / "studio" / "__init__.py").write_text(
        "raise SystemExit('the other studio')\n", encoding="utf-8"
    )
    start = launch(checkout, "--here", "runs", PYTHONPATH=str(tmp_path))
    assert start.returncode == 0 and json.loads(start.stdout)["path"] == [
        str(checkout),
        str(checkout / "kernels"),
        str(tmp_path),
    ]


@pytest.mark.computing
def test_the_test_command_runs_ruff_and_the_chosen_tests(checkout, tmp_path):
    calm = ("-p", "no:cacheprovider")
    fast = launch(checkout, "--here", "test", "--json", *calm)
    answer = json.loads(fast.stdout)
    assert fast.returncode == 0 and answer["passed"] is True, fast.stderr
    assert list(answer["steps"]) == ["ruff check", "ruff format", "quick tests"]
    assert "1 passed" in fast.stderr
    assert list(answer["folders"]) == ["tests"] and "test_quick" in fast.stderr
    everything = launch(checkout, "--here", "test", "--all", "--report", str(tmp_path), *calm)
    assert everything.returncode == 0
    assert everything.stdout.count("1 passed, 5 deselected") == 2, "what ran beside has its words too"
    named = [
        re.findall(r'testcase [^>]*name="(\w+)"', (tmp_path / f"{kind}.xml").read_text()) for kind in KINDS
    ]
    assert named == [["test_quick", "test_computing"], ["test_slow"], ["test_long"], ["test_patient"]]
    # What one set has none of may be in the other; what no set has is a mistake.
    assert launch(checkout, "--here", "test", "--all", *calm, "-k", "long").returncode == 0
    failed = launch(checkout, "--here", "test", *calm, "-k", "nothing")
    assert failed.returncode == 1
    budget = checkout / "tests" / "time_budgets.json"
    budget.write_text('{"tests": {"quick": -1.0}}', encoding="utf-8")
    late = launch(checkout, "--here", "test", *calm)
    assert late.returncode == 1 and "tests/tests: the quick tests took" in late.stderr


def test_every_folder_of_tests_has_a_budget():
    budgets = json.loads((ROOT / "tests" / "time_budgets.json").read_text(encoding="utf-8"))
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert budgets.keys() == folders | {"tests"}
    for folder, allowed in budgets.items():
        assert {"quick", "computing"} <= allowed.keys() <= SETS.keys(), folder
        files = [*(ROOT / "tests").glob("test_*.py" if folder == "tests" else f"{folder}/**/test_*.py")]
        words = "".join(
            words for words in (path.read_text(encoding="utf-8") for path in files) if "mark.gpu" not in words
        )
        marked = {kind for kind in ("slow", "long", "patient") if f"pytest.mark.{kind}" in words}
        assert marked <= allowed.keys(), folder
        assert all(seconds > 0 for seconds in allowed.values()), folder


def test_the_door_is_small_and_old_pythons_can_read_it():
    assert len((ROOT / "launch.py").read_text(encoding="utf-8").splitlines()) < 200
    standard = sys.stdlib_module_names
    for name in EARLY:
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert all(found.partition(".")[0] in standard for found in names), f"{name} imports {names}"


def test_the_windows_installer_keeps_to_what_cmd_does_right():
    words = (ROOT / "install_windows.bat").read_bytes()
    assert words.count(b"\n") == words.count(b"\r\n") > 20
    lines = words.decode("ascii").splitlines()
    assert not any("&&" in line or "||" in line for line in lines)
    labels = {line[1:].strip() for line in lines if line.startswith(":")}
    jumps = {
        line.split("goto ")[1].strip() for line in lines if "goto " in line and not line.startswith("rem")
    }
    jumps |= {line.split("call :")[1].split()[0] for line in lines if "call :" in line}
    # "goto judge" ends the first way of installing; the second one falls through.
    assert jumps == labels
    assert "launch.py install" in words.decode("ascii")


def test_the_linux_installer_skips_shims_and_makes_a_menu_entry(checkout, tmp_path):
    copy = tmp_path / 'a "strange" $(place) 100%'
    shutil.copytree(checkout, copy)
    (copy / "launch.py").write_text("import sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "python3.12").write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    (bin_folder / "python3.12").chmod(0o755)
    environment = dict(os.environ, XDG_DATA_HOME=str(tmp_path), PATH=f"{bin_folder}:{os.environ['PATH']}")
    environment.pop("WAYLAND_DISPLAY", None)
    command = ["bash", str(copy / "install_linux.sh"), "--rebuild"]
    # A desktop without a terminal, as a double click has it, gets the page; no desktop does not.
    for display, words in (("", "['install', '--rebuild']"), (":9", "['install', '--page', '--rebuild']")):
        environment["DISPLAY"] = display
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False}
        start = subprocess.run(command, env=environment, **options)
        assert start.returncode == 0 and words in start.stdout, start.stderr
    entry = (tmp_path / "applications" / "finetune-studio.desktop").read_text(encoding="utf-8")
    (line,) = [line for line in entry.splitlines() if line.startswith("Exec=")]
    # As the desktop entry specification reads it: first the string's escapes, then the quoted argument's, then %%.
    value = line.removeprefix("Exec=").replace("\\\\", "\\").replace("%%", "%")
    for sign in '"$`':
        value = value.replace(f"\\{sign}", sign)
    assert value == f'"{copy}/.venv/bin/python" "{copy}/launch.py" --page'
    assert "Terminal=false" in entry


def test_the_ci_script_is_sound():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert "launch.py test --all" in script.read_text(encoding="utf-8")
