"""The cheap looks: interpreter, variables, places, packages, assemblers, shadows, limits, WSL."""

import ast
import json
import os
import sys
import time
from pathlib import Path

import pytest

from studio.core.facts import Tool
from studio.hub.offline import OFFLINE_VARIABLE
from studio.machine.failures.causes import network
from studio.machine.probes import assemblers, interpreter, machine, packages, variables, wsl
from studio.machine.probes import library_conflicts as shadows
from studio.machine.probes import paths as places
from studio.machine.probes.probe_context import PROGRAM, survey
from studio.machine.repairs import APPLIED_VARIABLE, COMPILER_OVERRIDES, TOOLKIT_OVERRIDES
from studio.machine.workspace import WORKSPACE_VARIABLE, Workspace
from studio.machine.wsl_lease import BRIDGE_VARIABLE
from tests.machine.probes.tools import OLD_ASSEMBLER, make_program


def see(**values):
    return survey({"PATH": "/usr/bin:/bin", "HOME": "/nowhere/jane", **values})


# Machine and interpreter ---------------------------------------------------------------------------------------------


def test_this_machine():
    facts = machine.look(see())
    assert facts["system"] == "Linux" and facts["architecture"] == facts["process_architecture"]
    assert facts["python"] == sys.version.split()[0]
    assert facts["ram_bytes"] >= facts["ram_available_bytes"] > 2**20


def test_limits_of_a_container(monkeypatch, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "cpu.max").write_text("150000 100000", "utf-8")
    (tmp_path / "memory.max").write_text("max", "utf-8")
    (tmp_path / "own" / "memory.max").write_text(str(4 << 30), "utf-8")
    monkeypatch.setattr(machine, "_own_groups", lambda: [tmp_path, tmp_path / "own"])
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    facts = machine.look(see())
    assert facts["cores"] == 2 and facts["ram_limit_bytes"] == 4 << 30
    assert facts["ram_bytes"] <= 4 << 30
    (tmp_path / "cpu.max").write_text("max 100000", "utf-8")
    assert machine.count_cores() == 8


@pytest.mark.parametrize(
    "made, executable, kind",
    [
        ("conda-meta/history", "", "conda"),
        ("python312._pth", "", "embedded"),
        (
            "python.exe",
            r"C:\Program Files\WindowsApps\PythonSoftwareFoundation.Python.3.12\python.exe",
            "store",
        ),
        ("python.exe", "", "regular"),
    ],
)
def test_where_the_interpreter_comes_from(tmp_path, made, executable, kind):
    (tmp_path / made).parent.mkdir(exist_ok=True)
    (tmp_path / made).touch()
    assert interpreter.name_kind(tmp_path, executable) == kind


def test_this_interpreter():
    found = interpreter.look(see())["interpreter"]
    assert found.executable == sys.executable and found.bits == 64 and found.kind == "regular"
    assert found.banner == sys.version and found.headers


# Variables -----------------------------------------------------------------------------------------------------------


def test_variables_are_as_the_person_has_them():
    before = {
        "drop_assembler": {"TRITON_PTXAS_PATH": "/opt/cuda-10.2/bin/ptxas"},
        "wsl_nccl": {"NCCL_P2P_DISABLE": None},
    }
    facts = variables.look(see(NCCL_P2P_DISABLE="1", EDITOR="vi", **{APPLIED_VARIABLE: json.dumps(before)}))
    assert facts["environment"] == {"TRITON_PTXAS_PATH": "/opt/cuda-10.2/bin/ptxas"}
    assert facts["repairs"] == ("drop_assembler", "wsl_nccl")
    assert facts["dead_overrides"] == ("TRITON_PTXAS_PATH",)


def test_what_the_studio_sets_itself_is_no_wish_of_the_persons():
    ours = os.pathsep.join([str(PROGRAM), str(PROGRAM / "kernels"), "/opt/theirs"])
    facts = variables.look(see(HF_HUB_OFFLINE="1", PYTHONPATH=ours, **{OFFLINE_VARIABLE: "0"}))
    assert facts["environment"] == {"PYTHONPATH": "/opt/theirs"}
    assert "HF_HUB_OFFLINE" in variables.look(see(HF_HUB_OFFLINE="1"))["environment"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("HTTPS_PROXY", "http://me:geheim@proxy:8080"),
        ("http_proxy", "me:geheim@proxy:8080"),
        ("HF_ENDPOINT", "https://geheim@mirror.example"),
    ],
)
def test_an_address_loses_its_password(name, value):
    said = variables.look(see(**{name: value}))["environment"][name]
    assert "geheim" not in said and said.endswith(value.rpartition("@")[2])


def test_every_variable_that_a_failure_looks_for_is_collected():
    asked = set()
    for file in (PROGRAM / "studio" / "machine" / "failures").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "variable":
                asked |= {part.value for part in call.args if isinstance(part, ast.Constant)}
    for names in (
        network.OFFLINE,
        network.PROXIES,
        COMPILER_OVERRIDES,
        TOOLKIT_OVERRIDES,
        (BRIDGE_VARIABLE,),
    ):
        asked |= set(names)
    assert len(asked) > 14 and asked - set(variables.VARIABLES) == set()


@pytest.mark.parametrize(
    "compiler, dead",
    [
        ("cc", ()),
        ("cc -m64", ()),
        ("/usr/bin/cc", ()),
        ("/usr/bin", ("CC",)),
        ("/etc/passwd", ("CC",)),
        ("no-such-cc", ("CC",)),
        ("'", ("CC",)),
    ],
)
def test_a_compiler_that_is_none(compiler, dead):
    assert variables.look(see(CC=compiler))["dead_overrides"] == dead


def test_broken_json_of_repairs_counts_as_none():
    facts = variables.look(see(CC="cc", **{APPLIED_VARIABLE: "{torn"}))
    assert facts["repairs"] == () and facts["environment"] == {"CC": "cc"}


# Places --------------------------------------------------------------------------------------------------------------


def test_places_with_and_without_a_workspace(tmp_path):
    found = places.find_places(see(TMPDIR="/var/tmp", HF_HOME="/data/hf"))
    assert {name: str(path) for name, path in found.items()} == {
        "home": "/nowhere/jane",
        "temp": "/var/tmp",
        "triton_cache": "/nowhere/jane/.triton/cache",
        "model_cache": "/data/hf/hub",
        "program": str(PROGRAM),
    }
    workspace = Workspace(Path("/w"))
    found = places.find_places(see(TRITON_CACHE_DIR="/x", **{WORKSPACE_VARIABLE: "/w"}))
    assert (found["temp"], found["triton_cache"]) == (workspace.tmp, workspace.triton_cache)
    deep = Path("/" + "w" * 90)
    assert places.find_places(survey({"TMPDIR": "/t"}, deep))["temp"] == Path("/t")


def test_a_place_that_is_not_there_yet_and_one_that_refuses(tmp_path, monkeypatch):
    here = see()
    place = places.describe(tmp_path / "张三" / "cache", here, [], tried=True)
    assert place.writable and not place.ascii and place.ansi and place.free_bytes > 0
    assert place.length == len(str(tmp_path / "张三" / "cache"))
    assert not (tmp_path / "张三").exists(), "looking makes no folder"

    def refuse(**values):
        raise PermissionError(13, "Controlled Folder Access")

    monkeypatch.setattr(places.tempfile, "TemporaryFile", refuse)
    assert not places.describe(tmp_path, here, [], tried=True).writable
    assert places.describe(tmp_path, here, [], tried=False).writable


@pytest.mark.parametrize(
    "path, filesystem",
    [("/mnt/c/Users/x", "9p"), ("/mnt", ""), ("/mnt/nas/models", "network"), ("/", "")],
)
def test_slow_disks_are_named(monkeypatch, path, filesystem):
    disks = [("/mnt/nas", "nfs4"), ("/mnt/c", "9p"), ("/", "ext4")]
    monkeypatch.setattr(places.os.path, "realpath", lambda path: str(path))
    assert places.name_filesystem(Path(path), see(), disks) == filesystem


def test_looking_leaves_nothing_behind(tmp_path):
    workspace = Workspace(tmp_path)
    for folder in workspace.folders:
        folder.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    places.look(survey({"HOME": str(tmp_path)}, tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


# Packages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines, build",
    [
        ("cuda: Optional[str] = None", {}),
        ("cuda: Optional[str] = '13.0'", {"cuda": "13.0"}),
        ("cuda = None\nhip = '7.2.1'", {"hip": "7.2.1"}),
        ("", {}),
    ],
)
def test_torch_build_is_read_as_text(tmp_path, lines, build):
    file = tmp_path / "version.py"
    file.write_text(f"__version__ = '2.13.0'\ndebug = False\n{lines}\n", encoding="utf-8")
    assert packages.read_torch_build(file) == build
    assert packages.read_torch_build(tmp_path / "absent.py") == {}


def test_missing_packages_are_left_out():
    assert packages.find_packages(("pytest", "no-such-package-here")).keys() == {"pytest"}


def test_two_owners_of_one_package(tmp_path, monkeypatch):
    for name, file in (
        ("nvidia_ml_py", "pynvml.py"),
        ("triton", "triton/__init__.py"),
        ("triton_xpu", "triton/__init__.py"),
        ("pynvml", "pynvml_utils/__init__.py"),
    ):
        info = tmp_path / f"{name}-3.7.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: 3.7.1\n", "utf-8")
        (info / "RECORD").write_text(f"{file},,\n", "utf-8")
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert packages.find_owners("triton") == ("triton", "triton-xpu")
    assert packages.find_owners("pynvml") == ("nvidia-ml-py",), "pynvml 13 only points to the owner"


def test_a_package_is_found_also_where_this_process_hides_it(monkeypatch):
    found = packages.find_package("triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    assert found is not None and packages.find_package("triton") == found
    assert packages.find_package("no_such_package_here") is None


# Assemblers and shadows ----------------------------------------------------------------------------------------------


def test_every_assembler_with_its_release(tmp_path):
    old = make_program(tmp_path / "old", "ptxas", OLD_ASSEMBLER)
    dumb = make_program(tmp_path / "dumb", "ptxas", "echo what?")
    absent = tmp_path / "absent" / "ptxas"
    here = see(PATH=f"{tmp_path / 'dumb'}:{tmp_path / 'old'}:/usr/bin:/bin", TRITON_PTXAS_PATH=str(absent))
    assert assemblers.look(here)["assemblers"] == (
        Tool(path=str(absent)),
        Tool(path=str(dumb)),
        Tool(path=str(old), release="10.2"),
    )


@pytest.mark.computing
def test_an_assembler_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(assemblers, "ANSWER_S", 0.3)
    make_program(tmp_path, "ptxas", "sleep 60")
    started = time.monotonic()
    assert assemblers.look(see(PATH=f"{tmp_path}:/usr/bin:/bin"))["assemblers"][0].release == ""
    assert time.monotonic() - started < 5


def test_shadows(tmp_path, monkeypatch):
    cuda, plain, work = tmp_path / "cuda-11.8" / "lib64", tmp_path / "plain", tmp_path / "work"
    for folder in (cuda, plain, work, tmp_path / "site" / "torch"):
        folder.mkdir(parents=True)
    (cuda / "libcudart.so.11.0").touch()
    (plain / "libcuda.so.1").touch()  # the driver's own: wanted
    (work / "triton.py").touch()
    (tmp_path / "site" / "torch" / "__init__.py").touch()
    (tmp_path / "site" / "torch-2.13.0.dist-info").mkdir()
    monkeypatch.chdir(work)
    here = see(LD_LIBRARY_PATH=f"{plain}:{cuda}:{tmp_path}/none:", PYTHONPATH=str(tmp_path / "site"))
    assert shadows.look(here)["shadows"] == (str(cuda), str(work / "triton.py"))


# WSL -----------------------------------------------------------------------------------------------------------------


def test_a_guest_of_windows(tmp_path, monkeypatch):
    version, dpkg, interop = tmp_path / "version", tmp_path / "dpkg", tmp_path / "binfmt"
    dpkg.mkdir()
    interop.mkdir()
    version.write_text("Linux version 6.6.87.2-microsoft-standard-WSL2 (gcc)", "utf-8")
    monkeypatch.setattr(wsl, "KERNEL", version)
    monkeypatch.setattr(wsl, "DPKG", dpkg)
    monkeypatch.setattr(wsl, "DXG", tmp_path / "dxg")
    monkeypatch.setattr(wsl, "INTEROP", interop)
    listing = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1"
    monkeypatch.setattr(wsl, "LOADER_CACHE", (str(make_program(tmp_path, "ldconfig", f"echo '{listing}'")),))
    (interop / "WSLInterop-late").touch()
    (tmp_path / "dxg").touch()
    facts = wsl.look(see(WSL_DISTRO_NAME="Ubuntu"))["guest"]
    assert (facts.version, facts.distribution, facts.kernel) == (
        2,
        "Ubuntu",
        "6.6.87.2-microsoft-standard-WSL2",
    )
    assert facts.dxg and facts.interop and not facts.linux_driver
    assert facts.libcuda == "/usr/lib/wsl/lib/libcuda.so.1"
    (dpkg / "libnvidia-compute-550:amd64.list").touch()
    (tmp_path / "libcuda.so.1").touch()
    facts = wsl.look(see(LD_LIBRARY_PATH=str(tmp_path)))["guest"]
    assert facts.linux_driver and facts.libcuda == str(tmp_path / "libcuda.so.1")
    version.write_text("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", "utf-8")
    assert wsl.look(see())["guest"].version == 1
    version.write_text("Linux version 6.1.0-13-amd64", "utf-8")
    assert wsl.look(see()) == {}
