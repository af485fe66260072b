"""What wsl.exe says, read as it really writes it; paths of both sides; what is missing; the handed over workspace."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from studio.core.errors import StudioError
from studio.core.facts import Distribution
from studio.core.i18n import load_catalogue
from studio.hub.mirrors import find_mirrors
from studio.machine.workspace import LOCAL_VARIABLE, child_environment, open_workspace
from studio.machine.workspace_lock import Claim, claim, claim_run
from studio.machine.wsl import (
    Guest,
    ask_running,
    assign,
    choose_distribution,
    decode,
    judge_distribution,
    list_distributions,
    memory_line,
    parse_list,
    probe_distribution,
    run_script,
    setup_steps,
)
from studio.machine.wsl_lease import BRIDGE_VARIABLE, FRESH_S, MARKER, hand_over
from studio.machine.wsl_paths import read_automount, to_linux
from tests.doubles.wsl import ENGLISH, FakeWsl, read_calls

GERMAN = (
    "  NAME              STATUS          VERSION\r\n"
    "* Ubuntu-22.04      Wird ausgeführt 2\r\n"
    "  Debian            Beendet         1\r\n"
    "  docker-desktop    Wird ausgeführt 2\r\n"
)
CHINESE = (
    "  名称                   状态           版本\r\n* Ubuntu                 正在运行         2\r\n"
    "  docker-desktop-data    已停止           2\r\n"
)
FRENCH = "  NOM             ÉTAT            VERSION\r\n* Ubuntu          En cours d’exécution 2\r\n"
NOT_INSTALLED = "适用于 Linux 的 Windows 子系统未安装。可通过运行“wsl.exe --install”进行安装。\r\n"
NO_DISTRIBUTION = "没有已安装的分发。\r\nError code: Wsl/WSL_E_DEFAULT_DISTRO_NOT_FOUND\r\n"
GOOD = Guest(
    home="/home/me",
    dxg=True,
    libcuda="/usr/lib/wsl/lib/libcuda.so.1",
    pythons=("3.12.3",),
    usable_pythons=("3.12.3",),
    ram_bytes=16 * 2**30,
    free_bytes=100 * 2**30,
)
UBUNTU = Distribution(name="Ubuntu", version=2, default=True)


# Asking wsl.exe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [False, True], ids=["no mark", "byte order mark"])
@pytest.mark.parametrize(
    ("listing", "names"),
    [(GERMAN, {"Ubuntu-22.04": 2, "Debian": 1}), (CHINESE, {"Ubuntu": 2}), (FRENCH, {"Ubuntu": 2})],
    ids=["German", "Chinese", "French"],
)
def test_a_list_in_any_language_of_utf_16(tmp_path, listing, names, mark):
    wsl = FakeWsl(listing=listing, running=("docker-desktop", "Ubuntu"), mark=mark).make(tmp_path)
    raw = subprocess.run([wsl, "-l", "-v"], capture_output=True, check=True).stdout
    assert raw.startswith(b"\xff\xfe") is mark and b"\0" in raw, "the fake writes what the real one writes"
    state, found = list_distributions(wsl=wsl)
    assert state == "ready" and {each.name: each.version for each in found} == names
    assert [each.default for each in found] == [True, False][: len(found)]
    assert [each.running for each in found if each.name == "Ubuntu"] == [True][: "Ubuntu" in names]
    assert all(each.gpu is None for each in found)
    assert not any("--exec" in call for call in read_calls(tmp_path)), "listing starts no virtual machine"


@pytest.mark.parametrize(
    ("fake", "state"),
    [
        (FakeWsl(listing=NOT_INSTALLED, list_code=1, status_code=50), "off"),
        (FakeWsl(listing=NO_DISTRIBUTION, list_code=255, status_code=1), "empty"),
        (FakeWsl(listing="Keine Distributionen.\r\n", list_code=255), "empty"),
        (FakeWsl(listing=ENGLISH + "* docker-desktop  Running         2\r\n"), "empty"),
    ],
    ids=["not installed", "none, by its code", "none, by its status", "only Docker's"],
)
def test_without_a_distribution(tmp_path, fake, state):
    assert list_distributions(wsl=fake.make(tmp_path)) == (state, ())


def test_only_a_linux_that_runs_anyway_is_asked_for_the_gpu(tmp_path):
    listing = ENGLISH + "* Ubuntu  Running  2\r\n  Debian  Stopped  2\r\n  Old  Running  1\r\n"
    wsl = FakeWsl(listing=listing, running=("Ubuntu", "Old")).make(tmp_path)
    found = ask_running(list_distributions(wsl=wsl)[1], wsl=wsl)
    gpu = os.path.exists("/dev/dxg")
    assert [(each.name, each.gpu) for each in found] == [("Ubuntu", gpu), ("Debian", None), ("Old", None)]
    assert {call[1] for call in read_calls(tmp_path) if "--exec" in call} == {"Ubuntu"}


def test_without_wsl_and_with_one_that_hangs():
    assert list_distributions(wsl="wsl-that-is-not-there.exe") == ("absent", ())

    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    def forbid(*_, **__):
        raise PermissionError(1260, "blocked by group policy")

    assert list_distributions(run=hang) == ("", ())
    assert list_distributions(run=forbid) == ("off", ())


def test_a_list_of_nothing_but_headings_names_nothing():
    assert parse_list(ENGLISH) == () == parse_list(NOT_INSTALLED)


@given(some.text(min_size=1))
def test_utf_16_and_utf_8_are_told_apart(words):
    line = words.replace("\0", "").replace("\ufeff", "") + "\r\n"
    if line.isascii():
        assert decode(line.encode()) == line
    try:
        raw = line.encode("utf-16-le")
    except UnicodeEncodeError:  # half of a pair: no console writes that
        return
    assert decode(raw) == decode(b"\xff\xfe" + raw) == line
    assert decode(raw + b"\n").startswith(line), "cut in the middle of a sign"


def test_the_default_goes_first_and_version_2_before_it():
    old = Distribution(name="Old", version=1, default=True)
    assert choose_distribution((old, UBUNTU)).name == "Ubuntu"
    assert choose_distribution((old,)) is old and choose_distribution(()) is None
    assert choose_distribution((old, UBUNTU), "old") is old and choose_distribution((old,), "Arch") is None


# Asking a distribution -----------------------------------------------------------------------------------------------


def test_the_probe_runs_in_a_real_shell_in_one_call(tmp_path):
    wsl = FakeWsl().make(tmp_path)
    program = tmp_path / "home" / "finetune-studio"
    program.mkdir()
    (program / ".studio-copy").write_text("abc123", encoding="utf-8")
    guest, said = probe_distribution("Ubuntu", wsl=wsl)
    assert said == "" and len(read_calls(tmp_path)) == 1
    assert guest.home == str(tmp_path / "home") and guest.kernel == os.uname().release
    assert guest.program == "abc123" and not guest.ready
    version = subprocess.check_output([str(tmp_path / "bin" / "python3"), "--version"], text=True).split()[1]
    assert version in guest.usable_pythons and guest.pythons[-1] == version
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert guest.ram_bytes == pages and 0 < guest.free_bytes and 0 < guest.ram_available_bytes <= pages
    assert guest.automount == "/mnt/" and guest.gpu == os.path.exists("/dev/dxg")


def test_a_folder_of_that_name_that_is_not_ours_is_known(tmp_path):
    wsl = FakeWsl().make(tmp_path)
    (tmp_path / "home" / "finetune-studio").mkdir()
    assert probe_distribution("Ubuntu", wsl=wsl)[0].program == "unknown"


def test_a_distribution_that_is_not_there_or_hangs_says_so(tmp_path):
    wsl = FakeWsl().make(tmp_path)
    guest, said = probe_distribution("Arch", wsl=wsl)
    assert guest is None and "WSL_E_DISTRO_NOT_FOUND" in said and "\0" not in said

    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    assert probe_distribution("Ubuntu", run=hang, timeout_s=3) == (None, "no answer within 3 s")


def test_variables_reach_a_script_as_they_are(tmp_path):
    wsl = FakeWsl().make(tmp_path)
    odd = "a 'b' \"c\" $HOME `id` \\ 张三"
    answer = run_script("Ubuntu", assign(ODD=odd) + 'printf %s "$ODD"', wsl=wsl)
    assert answer.stdout.decode() == odd


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, {}),
        ({"dxg": False}, {"wsl.dxg": "warning"}),
        ({"libcuda": ""}, {"wsl.libcuda": "warning"}),
        ({"linux_driver": "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}, {"wsl.linux_driver": "warning"}),
        ({"ram_bytes": 4 * 2**30}, {"wsl.ram": "warning"}),
        ({"free_bytes": 2**30}, {"wsl.disk": "error"}),
        ({"free_bytes": 2**30, "ready": True}, {}),
        ({"automount": ""}, {"wsl.automount": "error"}),
        ({"program": "unknown"}, {"wsl.foreign": "error"}),
        ({"pythons": ("3.10.12",), "usable_pythons": ()}, {"wsl.python": "error"}),
        ({"pythons": ("3.12.3",), "usable_pythons": ()}, {"wsl.venv": "error"}),
    ],
)
def test_each_lack_is_named_with_what_to_do(change, kinds):
    values = {name: getattr(GOOD, name) for name in Guest.__dataclass_fields__} | change
    problems = judge_distribution(UBUNTU, Guest(**values))
    assert {each.field: each.severity for each in problems} == kinds
    for language in ("en", "zh-CN"):
        say = load_catalogue(language).say
        for each in problems:
            words = say(each.message) + say(each.fix)
            assert "{" not in words and "wsl.problem" not in words


def test_version_1_and_silence():
    old = Distribution(name="Debian", version=1)
    (problem,) = judge_distribution(old, None)
    assert problem.severity == "error" and "wsl --set-version Debian 2" in load_catalogue("en").say(
        problem.fix
    )
    (problem,) = judge_distribution(UBUNTU, None, "broken disk")
    assert "broken disk" in load_catalogue("en").say(problem.message)
    assert judge_distribution(UBUNTU, None) == ()


@pytest.mark.parametrize(
    ("state", "found", "first"),
    [
        ("absent", (), "winver"),
        ("off", (), "wsl --install -d Ubuntu"),
        ("empty", (), "wsl --install -d Ubuntu"),
        ("", (), "wsl --update"),
        ("ready", (Distribution(name="Old", version=1, default=True),), "wsl --set-version Old 2"),
    ],
)
def test_the_commands_to_get_there_end_with_another_look(state, found, first):
    steps = setup_steps(state, found)
    assert [steps[0].command, steps[-1].command] == [first, "py launch.py wsl --check"]
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        assert all(words.has(step.title.id) and words.has(step.why.id) for step in steps)
    assert setup_steps("ready", (UBUNTU,)) == ()


def test_switching_wsl_on_says_that_it_needs_an_administrator_and_a_restart():
    why = load_catalogue("en").say(setup_steps("off")[0].why)
    assert "administrator" in why and "restart" in why


def test_mirrors_of_windows_are_known_from_the_environment_and_from_pip():
    listing = "global.index-url='https://mirror.example/simple'\nglobal.timeout='60'\nglobal.trusted-host='\\na\\nb'\n"
    found = find_mirrors({"HF_ENDPOINT": "https://hub.example", "HOME": "x"}, listing)
    assert found == {
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_TRUSTED_HOST": "a b",
        "HF_ENDPOINT": "https://hub.example",
    }
    assert find_mirrors({"PIP_INDEX_URL": "mine"}, listing)["PIP_INDEX_URL"] == "mine"
    assert find_mirrors({}) == {}


def test_the_memory_line_has_numbers():
    assert memory_line(32 * 2**30) == "memory=24GB" and memory_line(4 * 2**30) == "memory=4GB"


# Paths ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "linux"),
    [
        (r"C:\Data\x\d", "/mnt/c/Data/x/d"),
        ("c:/Users/x", "/mnt/c/Users/x"),
        ("D:\\", "/mnt/d"),
        ("C:\\Program Files (x86)\\a b\\", "/mnt/c/Program Files (x86)/a b"),
        (r"C:\用户\张三\José's", "/mnt/c/用户/张三/José's"),
        (r"C:\a\..\b\.\c", "/mnt/c/b/c"),
        (r"\\?\C:\long\path", "/mnt/c/long/path"),
        (r"\\wsl$\Ubuntu\home\me", "/home/me"),
        (r"\\wsl.localhost\ubuntu\home\me" + "\\", "/home/me"),
        ("//wsl.localhost/Ubuntu/home/me", "/home/me"),
        (r"\\?\UNC\wsl.localhost\Ubuntu\srv", "/srv"),
        (r"\\wsl.localhost\Ubuntu", "/"),
    ],
)
def test_windows_to_linux(windows, linux):
    assert to_linux(windows, "Ubuntu") == linux


@pytest.mark.parametrize(
    ("windows", "kind"),
    [
        (r"C:data", "relative"),
        (r"\Users\x", "relative"),
        (r"data\x", "relative"),
        ("", "relative"),
        ("/home/me", "relative"),
        (r"\\server\share\d", "network"),
        (r"\\?\UNC\server\share", "network"),
        (r"\\.\pipe\x", "network"),
        (r"\\wsl$\Debian\home", "other"),
        ("\\\\wsl$\\", "other"),
    ],
)
def test_what_no_linux_can_see_is_refused_with_its_reason(windows, kind):
    with pytest.raises(StudioError) as refusal:
        to_linux(windows, "Ubuntu")
    assert refusal.value.why.id == f"wsl.path.{kind}.why"
    assert all(load_catalogue("zh-CN").has(part.id) for part in (refusal.value.what, refusal.value.fix))


NAME = some.text(
    some.characters(exclude_characters='\\/:*?"<>|\0', exclude_categories=["Cc", "Cs"]), min_size=1
).filter(lambda name: name.strip(". ") == name)


@given(some.sampled_from("CDZ"), some.lists(NAME, max_size=4), some.sampled_from(["/mnt/", "/", "/windows/"]))
def test_a_path_of_windows_keeps_its_names(drive, names, automount):
    inside = to_linux(f"{drive}:\\" + "\\".join(names), "Ubuntu", automount)
    assert inside == automount + "/".join([drive.lower(), *names])


@pytest.mark.parametrize(
    ("conf", "root"),
    [
        ("", "/mnt/"),
        ("[boot]\nsystemd=true\n", "/mnt/"),
        ("[automount]\nroot = /\n", "/"),
        ('[automount]\nroot = "/windows"\noptions = "metadata,uid=1000"\n', "/windows/"),
        ("[automount]\nenabled=false\n", ""),
        ("[automount] \nenabled = true # yes\nroot=/w/\n", "/w/"),
        ("[automount\nroot=/w/\n", "/mnt/"),
        ("root=/w/\n", "/mnt/"),
        ("[automount]\nroot=relative\n", "/mnt/"),
    ],
)
def test_the_automount_root_of_wsl_conf(conf, root):
    assert read_automount(conf) == root


def test_another_automount_root_counts():
    assert to_linux(r"C:\d", automount="/") == "/c/d"
    with pytest.raises(StudioError):
        to_linux(r"C:\d", automount="")


# The handed over workspace -------------------------------------------------------------------------------------------


def test_nobody_claims_a_workspace_that_a_wsl_has(workspace):
    with hand_over(workspace, "Ubuntu"):
        for take in (lambda: claim(workspace, "studio"), lambda: claim_run(workspace)):
            with pytest.raises(StudioError, match="Ubuntu"):
                take()
    assert not (workspace.root / MARKER).exists()
    with claim(workspace, "studio") as held:
        assert isinstance(held, Claim)


def test_the_marker_is_kept_fresh_and_a_dead_one_stops_nobody(workspace, monkeypatch):
    monkeypatch.setattr("studio.machine.wsl_lease.BEAT_S", 0.02)
    long_ago = time.time() - 2 * FRESH_S
    marker = workspace.root / MARKER
    with hand_over(workspace, "Ubuntu"):
        os.utime(marker, (long_ago, long_ago))
        deadline = time.monotonic() + 5
        while time.time() - marker.stat().st_mtime > FRESH_S:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        content = marker.read_bytes()
    marker.write_bytes(content)
    os.utime(marker, (long_ago, long_ago))
    claim(workspace, "studio").release()


def test_the_linux_side_has_locks_sockets_and_kernels_on_its_own_disk(workspace, tmp_path, monkeypatch):
    local = tmp_path / "local"
    local.mkdir()
    with claim(workspace, "studio"), claim_run(workspace), hand_over(workspace, "Ubuntu"):
        monkeypatch.setenv(BRIDGE_VARIABLE, "Ubuntu")
        monkeypatch.setenv(LOCAL_VARIABLE, str(local))
        with claim(workspace, "studio") as held, claim_run(workspace):
            assert isinstance(held, Claim)
            assert {path.name for path in local.glob("*.lock")} == {"studio.lock", "run.lock"}
        environment = child_environment(open_workspace(str(workspace.root)), dict(os.environ))
    for name in ("TMPDIR", "TRITON_CACHE_DIR"):
        assert environment[name].startswith(str(local))
