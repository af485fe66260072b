"""What Windows lacks for an installation: judged from facts, so that it holds on every system."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from studio.installer import install, windows

ROOT = Path(__file__).resolve().parents[2]
FINE = {
    "root": r"C:\FinetuneStudio",
    "root_is_plain": True,
    "long_paths": True,
    "cloud_folders": [],
    "runtime": (14, 44),
    "threads_dll": True,
    "torch": (2, 13),
}
DEEP = r"C:\Users\someone\Downloads\finetune-studio-main\finetune-studio-main-2"


@pytest.mark.parametrize(
    ("facts", "ids"),
    [
        ({}, []),
        ({"long_paths": False}, ["install.note.long_paths"]),
        ({"long_paths": False, "root": DEEP}, ["install.path_too_long"]),
        ({"root": DEEP}, []),
        ({"runtime": None}, ["install.no_runtime"]),
        ({"runtime": (14, 38)}, ["install.note.old_runtime"]),
        ({"runtime": (14, 40)}, []),
        ({"runtime": (0, 0)}, []),
        ({"threads_dll": False}, []),
        ({"threads_dll": False, "torch": (2, 14)}, ["install.no_runtime"]),
        (
            {"cloud_folders": [r"C:\Users\a\OneDrive"], "root": r"c:\users\A\onedrive\studio"},
            ["install.note.onedrive"],
        ),
        ({"cloud_folders": [r"C:\Users\a\OneDrive"], "root": r"C:\Users\a\OneDriveX"}, []),
        ({"root": r"C:\张三", "root_is_plain": False}, ["install.note.letters"]),
        (
            {"runtime": (14, 29), "long_paths": False, "root_is_plain": False},
            ["install.note.old_runtime", "install.note.long_paths", "install.note.letters"],
        ),
    ],
)
def test_each_lack_has_its_sentence(facts, ids):
    found = windows.judge(FINE | facts)
    assert [id for id, _ in found] == ids
    for id, values in found:
        parts = ("",) if id.startswith("install.note.") else ("", ".why", ".fix")
        for part in parts:
            words = install.say(ROOT, id + part, **values)
            assert not words.startswith("install.") and "{" not in words


def test_a_refusal_ends_and_a_note_goes_on(monkeypatch):
    told, facts = [], FINE | {"long_paths": False, "runtime": (14, 38)}
    monkeypatch.setattr(windows, "read_facts", lambda root, torch: facts)
    monkeypatch.setattr(install, "_tell", told.append)
    load = install._load
    monkeypatch.setattr(install, "_load", lambda name: windows if name == "windows" else load(name))
    install._judge_windows(ROOT)
    assert len(told) == 2 and "winget install --id Microsoft.VCRedist.2015+.x64" in told[0]
    assert "reg add HKLM" in told[1]
    facts["runtime"] = None
    with pytest.raises(install.Refusal) as refusal:
        install._judge_windows(ROOT)
    assert refusal.value.code == 2 and "vc_redist.x64.exe" in refusal.value.fix


def test_the_longest_file_of_torch_is_known():
    """The licences of the torch here: none may be longer than what the judgement counts with."""
    import importlib.metadata

    longest = max(len(str(file)) for file in importlib.metadata.distribution("torch").files)
    assert longest <= windows.LONGEST_FILE - len(".venv/Lib/site-packages/") + len("+cpu")


def test_the_shortcut_is_asked_of_powershell_and_a_refusal_is_told():
    calls = []

    def run(command, **options):
        calls.append((command, options["env"]["STUDIO_ROOT"]))
        return subprocess.CompletedProcess(command, 0)

    assert windows.make_shortcut(Path("/a & b%"), run) and calls[0][0][0] == "powershell"
    assert "pythonw.exe" in calls[0][0][-1] and "/a & b%" not in calls[0][0][-1] and calls[0][1] == "/a & b%"
    assert not windows.make_shortcut(ROOT, lambda *_, **__: subprocess.CompletedProcess([], 1))

    def absent(*_, **__):
        raise FileNotFoundError

    assert not windows.make_shortcut(ROOT, absent)


def test_the_notes_exist_in_both_languages():
    for language in ("en", "zh-CN"):
        words = json.loads((ROOT / "assets" / "locales" / f"{language}.json").read_text(encoding="utf-8"))
        for name in ("long_paths", "onedrive", "letters", "old_runtime", "conda", "store"):
            assert words[f"install.note.{name}"]
