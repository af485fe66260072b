"""The environment of the studio's processes: this machine's repairs made, remembered, and taken back."""

from __future__ import annotations

import json
import os

import pytest

from studio.machine import environment as module
from studio.machine.environment import prepare_environment
from studio.machine.repairs import APPLIED_VARIABLE, Repair, read_applied, restore_environment
from studio.machine.settings import switch_repair
from studio.machine.workspace import open_workspace

PROXY = {"https_proxy": "http://proxy:8080", "no_proxy": "intern"}


@pytest.fixture
def workspace(tmp_path):
    return open_workspace(str(tmp_path / "workspace"))


def base(**variables):
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | variables


def test_an_assembler_that_is_not_there_is_left_out_and_comes_back(workspace):
    given = base(TRITON_PTXAS_PATH="/nowhere/ptxas")
    made = prepare_environment(workspace, given)
    assert "TRITON_PTXAS_PATH" not in made
    assert read_applied(made) == {"drop_assembler": {"TRITON_PTXAS_PATH": "/nowhere/ptxas"}}
    assert prepare_environment(workspace, made) == made, "a second start finds what the first one found"
    switch_repair(workspace, "drop_assembler", on=False)
    again = prepare_environment(workspace, made)
    assert again["TRITON_PTXAS_PATH"] == "/nowhere/ptxas" and APPLIED_VARIABLE not in again


def test_a_variable_in_another_spelling_is_taken_back_whole(workspace):
    made = prepare_environment(workspace, base(**PROXY))
    assert made["NO_PROXY"] == "intern,127.0.0.1,localhost" and "no_proxy" not in made
    restored = restore_environment(made)
    assert {name: restored[name] for name in restored if name.lower().endswith("_proxy")} == PROXY
    switch_repair(workspace, "proxy_for_localhost", on=False)
    again = prepare_environment(workspace, made)
    assert again["no_proxy"] == "intern" and "NO_PROXY" not in again


def test_what_is_noted_of_the_repairs_holds_no_password(workspace):
    made = prepare_environment(workspace, base(**PROXY | {"https_proxy": "http://me:geheim@proxy:8080"}))
    assert "geheim" in made["https_proxy"], "the proxy itself needs it"
    assert "geheim" not in made[APPLIED_VARIABLE] and json.loads(made[APPLIED_VARIABLE])


def test_the_folder_for_moved_temporary_files_is_made(workspace, monkeypatch, tmp_path):
    moved = str(tmp_path / "ProgramData" / "tmp")
    repair = Repair("plain_temp", lambda machine: dict.fromkeys(("TMPDIR", "TEMP", "TMP"), moved))
    monkeypatch.setattr("studio.machine.repairs.REPAIRS", (repair,))
    made = module.prepare_environment(workspace, base())
    assert {made[name] for name in ("TMPDIR", "TEMP", "TMP")} == {moved}
    assert os.stat(moved).st_mode & 0o777 == 0o700 == os.stat(os.path.dirname(moved)).st_mode & 0o777
