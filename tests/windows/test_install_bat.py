"""install_windows.bat in Wine: what each computer is told and the exit code; the Python behind it is this machine's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.python_facts import PYTHON_FACTS
from tests.wheels import make_wheel
from tests.windows.conftest import Machine, make_machine

# Part of `launch.py test --all`, which .ci/run starts with Wine installed; a Linux without Wine fails here.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="only on Linux")]
GOOD = PYTHON_FACTS | {"path": "C:\\Python312\\python.exe", "platform": "win-amd64"}
NO_PYTHON = "No Python was found. Install Python 3.12 (64-bit) from python.org"
OFFER = "Install Python 3.12 for you now"
NVIDIA = {"system": "Windows", "cuda_driver": 13000, "capabilities": [[8, 9]], "amd": False, "intel": False}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder of wheels: tiny, and PyTorch as PyPI has it for Windows and as PyTorch's own server does."""
    folder = tmp_path_factory.mktemp("wheels")
    make_wheel(folder, "1.0")
    make_wheel(folder, "2.13.0", name="torch", files={"torch/version.py": "cuda: str | None = None\n"})
    (folder / "cuda").mkdir()
    make_wheel(
        folder / "cuda",
        "2.13.0+cu130",
        name="torch",
        files={"torch/version.py": "cuda: str | None = '13.0'\n"},
    )
    return folder


def test_without_python_the_person_is_told_and_nothing_waits_when_quiet(machine):
    start = machine.install("/quiet")
    assert start.returncode == 2 and NO_PYTHON in start.stdout
    assert "Press any key" not in start.stdout
    loud = machine.install()
    assert loud.returncode == 2 and "Press any key" in loud.stdout and OFFER not in loud.stdout


def test_winget_installs_a_python_only_with_consent(machine):
    machine.put("winget", '@echo off\necho winget %*\nren "%~dp0later.bat" python.bat\n')
    machine.put_python("later", facts=GOOD | {"bits": 32})
    quiet = machine.install("/quiet")
    assert quiet.returncode == 2 and NO_PYTHON in quiet.stdout and OFFER not in quiet.stdout
    refused = machine.install(answer="n\n")
    assert refused.returncode == 2 and OFFER in refused.stdout and "winget install" not in refused.stdout
    agreed = machine.install(answer="Y\n")
    assert "winget install --exact --id Python.Python.3.12 --source winget --scope user" in agreed.stdout
    assert agreed.returncode == 2 and "has 32 bit" in agreed.stdout  # it went on with the Python that came


def test_the_store_placeholder_is_named(machine):
    apps = machine.programs / "Microsoft" / "WindowsApps"
    apps.mkdir(parents=True)
    (apps / "python.exe").write_bytes(b"")
    machine.environment["WINEPATH"] = "Z:" + str(apps).replace("/", "\\")
    start = machine.install("/quiet")
    assert start.returncode == 2 and 'The "python" on this PC only opens the Microsoft Store.' in start.stdout


def test_a_python_that_cannot_even_read_launch_py_is_too_old(machine):
    machine.put("python", "@exit /b 7\n")
    start = machine.install("/quiet")
    assert start.returncode == 2 and "is too old: the studio needs 3.11 to 3.14" in start.stdout


def test_a_python_that_does_not_start_is_named(machine):
    machine.put("python", "@exit /b 103\n")
    start = machine.install("/quiet")
    assert start.returncode == 2 and 'The "python" on this PC does not start.' in start.stdout


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"bits": 32, "platform": "win32"}, "The Python here has 32 bit (3.12.4)."),
        ({"version": [3, 9, 13]}, "The Python here is too old (3.9.13)."),
        (
            {"version": [3, 15, 0]},
            "The Python here is too new: PyTorch and Triton have no packages for it yet",
        ),
        ({"version": [3, 13, 8]}, "Python 3.13.8 is broken for PyTorch."),
        ({"gil": False}, "The Python here is a free-threaded build (3.12.4)."),
        ({"platform": "mingw_x86_64_ucrt_gnu"}, "The Python here comes from MSYS2 or Cygwin"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_unsuitable_python_has_its_sentence(machine, facts, sentence):
    machine.put_python(facts=GOOD | facts)
    start = machine.install("/quiet")
    assert start.returncode == 2 and sentence in start.stdout
    assert "Install Python 3.12" in start.stdout or "from python.org" in start.stdout
    assert not (machine.checkout / ".venv").exists()


def test_chinese_words_come_through(machine):
    machine.put_python(facts=GOOD | {"bits": 32}, LANG="zh_CN.UTF-8")
    start = machine.install("/quiet")
    assert start.returncode == 2 and "这里的 Python 是 32 位的" in start.stdout


def test_one_computer_through_its_life(wine_prefix, tmp_path, wheels):
    """No network, a half-made .venv, a second run, a wrong PyTorch; the folder has letters of two scripts."""
    machine = make_machine(wine_prefix, tmp_path, "José 张三 (new)")
    (machine.checkout / "requirements.txt").write_text("tiny\ntorch>=2.11\n", encoding="utf-8")
    (machine.checkout / "constraints.txt").write_text("tiny==1.0\ntorch==2.13.0\n", encoding="utf-8")
    say_facts(machine, {**NVIDIA, "cuda_driver": 0, "capabilities": []})

    proxy = "http://127.0.0.1:9"  # PyTorch's own server is not to be reached either
    machine.put_python(
        PIP_INDEX_URL="http://me:secret@127.0.0.1:9/simple", NO_PROXY="127.0.0.1", HTTPS_PROXY=proxy
    )
    cut = machine.install("/quiet")
    assert cut.returncode == 1 and "The package server (http://127.0.0.1:9/simple)" in cut.stdout
    assert "secret" not in cut.stdout and "then start again" in cut.stdout

    machine.put_python(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
    repaired = machine.install("/quiet")
    assert repaired.returncode == 0, repaired.stdout
    assert "An unfinished .venv is removed and made again." in repaired.stdout
    assert "Start it with the shortcut on the desktop" in repaired.stdout
    assert installed_cuda(machine) == "None"

    second = machine.install("/quiet")
    assert second.returncode == 0 and "already installed here; nothing was changed" in second.stdout
    assert "Installing" not in second.stdout

    say_facts(machine, NVIDIA)
    machine.put_python(PIP_NO_INDEX="1", PIP_FIND_LINKS=f"{wheels} {wheels / 'cuda'}")
    replaced = machine.install("/quiet")
    assert replaced.returncode == 0, replaced.stdout
    assert "PyTorch here is the CPU edition although this computer has an NVIDIA card" in replaced.stdout
    assert installed_cuda(machine) == "13.0" and "could not be had" not in replaced.stdout


def test_words_for_launch_py_are_handed_on_and_other_codes_are_a_failure(machine):
    machine.put_python()
    (machine.checkout / "launch.py").write_text(
        "import sys\nprint(sys.argv[1:])\nsys.exit(77)\n", encoding="utf-8"
    )
    start = machine.install("--rebuild", "/QUIET", "--json")
    assert "['install', '--shortcut', '--rebuild', '--json']" in start.stdout
    assert start.returncode == 1 and "Python ended with code 77" in start.stdout


def test_a_file_taken_out_of_its_archive_alone_is_told(machine):
    (machine.checkout / "launch.py").unlink()
    start = machine.install("/quiet")
    assert start.returncode == 2 and "Unpack the whole archive first" in start.stdout


def say_facts(machine: Machine, facts: dict) -> None:
    """Let torch_build.py of this checkout find `facts` in place of its own graphics cards."""
    file = machine.checkout / "studio" / "installer" / "torch_build.py"
    words = file.read_text(encoding="utf-8").partition('if __name__ == "__main__":')[0]
    words += f'if __name__ == "__main__":\n    json.dump({facts!r}, sys.stdout)\n'
    file.write_text(words, encoding="utf-8")


def installed_cuda(machine: Machine) -> str:
    ask = [
        machine.checkout / ".venv" / "bin" / "python",
        "-c",
        "import torch.version; print(torch.version.cuda)",
    ]
    return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
