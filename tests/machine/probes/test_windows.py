"""Windows' facts from a registry and libraries in memory; seen on a real Windows by the Wine job only."""

import sys
from types import SimpleNamespace

import pytest

from studio.machine.probes import graphics, windows
from studio.machine.probes import paths as places
from studio.machine.probes.probe_context import ProbeContext

SETTINGS = {
    windows.LONG_PATHS: 1,
    windows.APP_CONTROL: 2,
    windows.DISPLAY_TIMEOUT: 10,
}


class Key:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class Registry:
    """winreg with what SETTINGS and one AMD card say."""

    HKEY_LOCAL_MACHINE = 0
    CARD = {
        "DriverDesc": "AMD Radeon RX 7900 XTX",
        "HardwareInformation.qwMemorySize": (24 << 30).to_bytes(8, "little"),
    }

    def OpenKey(self, root, path):
        if path == graphics.ADAPTERS + r"\0001" or any(path == known for known, _ in SETTINGS):
            return Key(path)
        raise FileNotFoundError(2, path)

    def QueryValueEx(self, key, name):
        values = (
            self.CARD
            if key.path.endswith("0001")
            else {n: v for (p, n), v in SETTINGS.items() if p == key.path}
        )
        if name not in values:
            raise FileNotFoundError(2, name)
        return values[name], 4


@pytest.fixture
def on_windows(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "winreg", Registry())
    kernel = SimpleNamespace(GetACP=lambda: 936, GlobalMemoryStatusEx=lambda status: fill(status))
    monkeypatch.setattr(windows.ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(sys, "getwindowsversion", lambda: SimpleNamespace(build=22631), raising=False)
    monkeypatch.setattr(windows, "read_file_version", lambda path: (14, 36, 32532, 0))
    variables = {"SystemRoot": str(tmp_path / "Windows"), "OneDrive": r"C:\Users\jane\OneDrive"}
    return ProbeContext(variables, variables, None, "Windows")


def fill(status):
    status._obj.commit_limit, status._obj.commit_free = 40 << 30, 12 << 30
    return 1


def test_settings_runtimes_and_commit(on_windows, tmp_path, monkeypatch):
    system = tmp_path / "Windows" / "System32"
    python = tmp_path / "Python"
    for folder in (system, python):
        folder.mkdir(parents=True)
    for path in (system / "msvcp140.dll", system / "vcruntime140.dll", python / "vcruntime140.dll"):
        path.touch()
    monkeypatch.setattr(sys, "_base_executable", str(python / "python.exe"), raising=False)
    facts = windows.look(on_windows)["windows"]
    assert (facts.build, facts.code_page, facts.long_paths, facts.developer_mode) == (22631, 936, True, False)
    assert (facts.app_control, facts.display_timeout_s) == ("evaluation", 10)
    assert facts.commit_limit_bytes == 40 << 30 and facts.commit_free_bytes == 12 << 30
    assert {name: library.path for name, library in facts.runtimes.items()} == {
        "msvcp140.dll": str(system / "msvcp140.dll"),
        "vcruntime140.dll": str(python / "vcruntime140.dll"),
    }
    assert facts.runtimes["msvcp140.dll"].version == "14.36.32532.0"


def test_another_system_has_none():
    assert windows.look(ProbeContext({}, {}, None, "Linux")) == {}


def test_an_amd_card_from_the_registry(on_windows):
    (card,) = graphics.read_windows_cards()
    assert (card.name, card.vendor, card.vram_bytes) == ("AMD Radeon RX 7900 XTX", "amd", 24 << 30)


def test_a_folder_in_onedrive(on_windows):
    assert places.name_filesystem(r"C:\Users\jane\OneDrive\studio", on_windows, []) == "onedrive"
    assert places.name_filesystem(r"\\nas\models", on_windows, []) == "network"
    assert on_windows.read("ONEDRIVE") == r"C:\Users\jane\OneDrive", "names match without case"
