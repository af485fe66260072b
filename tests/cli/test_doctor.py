"""The command `doctor`: recorded machines through the real command line, what is refused, repairs switched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studio.cli.console import Console
from studio.cli.doctor import list_lines, read_facts
from studio.cli.main import main
from studio.core.facts import MachineFacts
from studio.core.i18n import load_catalogue
from studio.machine.settings import read_settings
from studio.machine.workspace import Workspace
from studio.planning.doctor_report import judge
from tests.each_time import some

ROOT = Path(__file__).resolve().parents[2]
MACHINES = ROOT / "tests" / "machine" / "machines"
HANDFUL = ("founding_mingw_linker", "founding_wsl2_2080ti", "windows_torch_dll", "linux_h200", "mac_m3")


@pytest.fixture
def ask(workspace, capsys, monkeypatch):
    """A function `ask(*words, code=0)`: run the doctor in this process and return its JSON answer."""
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")

    def run(*words, code=0):
        ended = main(["doctor", "--json", "--workspace", str(workspace.root), *map(str, words)])
        answer = json.loads(capsys.readouterr().out)
        assert ended == code, answer["problems"]
        return answer

    return run


@pytest.fixture
def read(workspace, capsys, monkeypatch):
    """A function `read(*words, language="en")`: run the doctor in this process and return what a person reads."""

    def run(*words, language="en", code=0):
        monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", language)
        assert main(["doctor", "--workspace", str(workspace.root), *map(str, words)]) == code
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", some(HANDFUL, "linux_h200"))
def test_a_recorded_machine_through_launch_py(name, tmp_path):
    path = MACHINES / f"{name}.json"
    expected = json.loads(path.read_text(encoding="utf-8"))["expect"]
    words = ["--here", "doctor", "--facts", str(path), "--json", "--workspace", str(tmp_path / "workspace")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *words],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"FINETUNE_STUDIO_LANGUAGE": "en"},
        timeout=60,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert done.returncode == (1 if expected["verdict"] == "blocked" else 0), done.stderr
    assert {key: answer[key] for key in ("verdict", "backend", "row")} == {
        key: expected[key] for key in ("verdict", "backend", "row")
    }
    assert answer["reason_ids"] == expected["reasons"]
    assert [problem["id"] for problem in answer["problems"]] == expected["problems"]


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.json")), ids=lambda path: path.stem)
def test_every_recorded_machine_through_the_command(path, workspace, capsys, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
    expected = json.loads(path.read_text(encoding="utf-8"))["expect"]
    code = main(["doctor", "--json", "--workspace", str(workspace.root), "--facts", str(path)])
    answer = json.loads(capsys.readouterr().out)
    assert code == (1 if expected["verdict"] == "blocked" else 0)
    said = {key: answer[key] for key in ("verdict", "backend", "row")}
    said |= {"reasons": answer["reason_ids"], "problems": [problem["id"] for problem in answer["problems"]]}
    assert said == expected
    assert set(answer) >= {"offers", "facts"}
    assert all(set(problem) >= {"title", "evidence", "fix", "auto"} for problem in answer["problems"])


@pytest.mark.computing
def test_what_was_found_holds_until_it_is_asked_for_anew(ask, monkeypatch):
    from studio.machine import detect

    asked, real = [], detect.run_child
    monkeypatch.setattr(detect, "run_child", lambda name, *a, **k: asked.append(name) or real(name, *a, **k))
    first = ask()
    probed = [*asked]
    assert probed and ask()["verdict"] == first["verdict"] and asked == probed
    ask("--again")
    # Libraries that took too long are asked twice.
    assert {*asked[len(probed) :]} == {*probed}


def test_what_the_doctor_says_may_be_given_back_to_it(ask, tmp_path):
    first = ask("--facts", MACHINES / "founding_mingw_linker.json")
    whole, bare = tmp_path / "whole.json", tmp_path / "bare.json"
    whole.write_text(json.dumps(first), encoding="utf-8")
    bare.write_text(json.dumps(first["facts"]), encoding="utf-8-sig")  # as PowerShell writes it
    shell = tmp_path / "shell.json"
    shell.write_text(json.dumps(first), encoding="utf-16")  # as Windows PowerShell's > writes it
    for path in (whole, bare, shell):
        again = ask("--facts", path)
        assert again["facts"] == first["facts"] and again["problems"] == first["problems"]


@pytest.mark.parametrize(
    ("content", "id"),
    [
        ("{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "does not describe a machine"),
        ('{"version": 1, "model": {"source": "demo"}}', "does not describe a machine"),
        ('{"system": "Linux", "corse": 3}', "does not have the right form"),
        ('{"system": 3}', "does not have the right form"),
    ],
)
def test_a_bad_facts_file_is_refused_as_one(ask, tmp_path, content, id):
    path = tmp_path / "facts.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    error = ask("--facts", path, code=2)["error"]
    assert id in error["what"] and "doctor --json" in error["fix"]
    assert "recipe" not in " ".join(error.values()).lower()


def test_a_facts_file_that_is_not_there(ask, tmp_path):
    assert "cannot be read" in ask("--facts", tmp_path / "none.json", code=2)["error"]["what"]
    assert "cannot be read" in ask("--facts", tmp_path, code=2)["error"]["what"]


def test_a_wrong_entry_is_named(ask, tmp_path):
    facts = json.loads((MACHINES / "linux_h200.json").read_text(encoding="utf-8"))["facts"]
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(facts | {"corse": 3, "cores": "many"}), encoding="utf-8")
    assert "corse" in ask("--facts", path, code=2)["error"]["why"]


def test_lines_for_a_person(read):
    said = read("--facts", MACHINES / "founding_mingw_linker.json")
    lines = said.splitlines()
    assert lines[0] == "Training works here, with limits." and "\x1b" not in said
    numbered = [line for line in lines if line[:2].strip().isdigit()]
    assert [int(line[:2]) for line in numbered] == list(range(1, len(numbered) + 1))
    assert "CC=C:\\MinGW\\bin\\gcc.exe" in said
    assert "py launch.py doctor --fix drop_compiler" in said
    assert "Stay on Windows and use PyTorch's operations" in said


def test_lines_in_chinese(read):
    said = read("--facts", MACHINES / "founding_libtriton_1114.json", language="zh-CN")
    assert "操作系统" in said and "warn" not in said


def test_a_repair_that_was_made_can_be_left(read):
    said = read("--facts", MACHINES / "linux_ptxas_102_repaired.json")
    assert said.startswith("Everything works here.")


@pytest.mark.computing
def test_every_machine_can_be_read_in_both_languages(capsys):
    for path in sorted(MACHINES.glob("*.json")):
        report = judge(read_facts(path))
        for language in ("en", "zh-CN"):
            catalogue = load_catalogue(language)
            lines = list(list_lines(report, catalogue))
            assert all("failure." not in line and "checkup." not in line for line in lines), path.name
    Console(load_catalogue("en")).answer({}, lines)
    assert capsys.readouterr().out


def test_names_are_left_out_of_what_is_given_away(ask, read, tmp_path):
    facts = json.loads((MACHINES / "windows_user_site.json").read_text(encoding="utf-8"))["facts"]
    facts["triton_folder"] = facts["triton_folder"].replace("\\user\\", "\\Margarethe\\")
    facts["environment"] = {"CC": r"C:\Users\Margarethe\gcc.exe", "HF_TOKEN": "hf_abcdefghijklmnop"}
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(facts), encoding="utf-8")
    for said in (json.dumps(ask("--facts", path)), read("--facts", path, "--copy")):
        assert "Margarethe" not in said and "abcdefghijklmnop" not in said
    assert "Margarethe" in read("--facts", path), "on the person's own screen the whole path helps"


def test_copy_holds_the_facts(read):
    said = read("--facts", MACHINES / "linux_h200.json", "--copy")
    assert json.loads(said.splitlines()[-1])["gpus"][0]["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("flag", "name", "wanted"),
    [
        ("--leave", "drop_assembler", {"repairs_off": ["drop_assembler"], "repairs_on": []}),
        ("--fix", "show_gpus", {"repairs_off": [], "repairs_on": ["show_gpus"]}),
        ("--leave", "assembler_old", {"repairs_off": ["drop_assembler"], "repairs_on": []}),
    ],
)
def test_a_repair_is_switched_and_the_doctor_looks_again(workspace, monkeypatch, flag, name, wanted):
    started = []

    def run(command, **settings):
        started.append((command, settings["env"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert main(["doctor", flag, name, "--json", "--workspace", str(workspace.root)]) == 0
    ((command, environment),) = started
    assert command[1:] == [
        "-P", "-m", "studio.cli", "doctor", "--workspace", str(workspace.root), "--json"
    ]  # fmt: skip
    assert str(ROOT) in environment["PYTHONPATH"]
    assert {key: read_settings(workspace)[key] for key in wanted} == wanted


def test_an_unknown_repair_is_refused_with_the_known_ones(ask):
    error = ask("--fix", "everything", code=2)["error"]
    assert "drop_compiler" in error["why"]
    assert (
        "recorded" in ask("--fix", "show_gpus", "--facts", MACHINES / "mac_m3.json", code=2)["error"]["what"]
    )


@pytest.mark.computing
def test_this_machine(ask, workspace):
    answer = ask()
    assert answer["facts"]["cores"] >= 1 and answer["checks"][0]["id"] == "system"
    assert isinstance(read_facts_of(answer), MachineFacts) and isinstance(workspace, Workspace)


def read_facts_of(answer):
    from studio.core.codec import from_json

    return from_json(MachineFacts, answer["facts"])
