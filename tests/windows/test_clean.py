"""What breaks on Windows is found in the source: signals, fork, shells, /tmp, files without encoding, bare renames."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("studio", "kernels", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
) + [ROOT / "launch.py"]

# Calls that do not exist on Windows, or do something else there.
ABSENT = {
    "os.fork",
    "os.forkpty",
    "os.kill",
    "os.killpg",
    "os.setsid",
    "os.statvfs",
    "os.getuid",
    "os.geteuid",
    "os.uname",
    "os.system",
    "os.popen",
    "os.symlink",
    "os.mkfifo",
    "signal.signal",
    "signal.alarm",
    "signal.setitimer",
    "signal.pthread_kill",
    "pty.openpty",
    "multiprocessing.Process",
    "multiprocessing.Pool",
}
POSIX_MODULES = {"fcntl", "grp", "pwd", "resource", "termios", "pty", "curses"}
RENAMES = {"os.replace", "os.rename"}
# file: {what it may use: why}. Each is behind a test of the system, or its target is nobody else's.
ALLOWED = {
    "kernels/studio_kernels/self_test.py": dict.fromkeys(
        ("os.fork", "signal.alarm", "os.kill"), "helpers, only where the system can fork"
    ),
    "benchmarks/families.py": dict.fromkeys(
        ("os.fork", "signal.alarm"), "a child a model that need not load the libraries; refused elsewhere"
    ),
    "studio/cli/wsl.py": {"os.kill": "in the Linux side of the bridge"},
    "studio/supervisor/child_process.py": {"os.killpg": "by os.name; psutil on Windows"},
    "studio/core/atomic_files.py": {"os.replace": "the retrying helper itself"},
    "studio/core/heartbeat.py": {
        "os.replace": "a beat that a reader holds is left out: the next one comes soon"
    },
    "studio/core/lock_file.py": {"fcntl": "beside msvcrt, by os.name"},
    "studio/core/temporary_folder.py": {
        "os.getuid": "by os.name; a temporary folder of Windows is one account's"
    },
    "studio/data/cache.py": {"os.replace": "a folder that somebody reads stays where it is"},
    "studio/engine/guarded_code/confine.py": {"resource": "by sys.platform; on Windows a job object"},
    "studio/engine/guarded_code/pool.py": dict.fromkeys(
        ("os.killpg", "os.kill"), "by sys.platform; on Windows a job object"
    ),
    "studio/data/template_sandbox.py": {"resource": "by os.name; on Windows the parent looks"},
    "studio/installer/app_window.py": {"os.geteuid": "behind the branches of Windows and macOS"},
    "studio/machine/open_files.py": {"resource": "by os.name; Windows has no such limit"},
    "studio/machine/peer_credentials.py": {
        "os.getuid": "by os.name; Linux alone tells whose a connection is"
    },
    "studio/machine/probes/graphics.py": {"os.uname": "on a Mac"},
    "studio/machine/probes/machine.py": {
        "os.uname": "by the system's name",
        "os.statvfs": "where there is one",
    },
    "studio/machine/workspace.py": {"os.geteuid": "by os.name"},
    "studio/supervisor/tunnels.py": {"os.killpg": "by os.name; psutil on Windows"},
    "studio/ui/tunnel.py": {"os.killpg": "by os.name; psutil on Windows"},
    "studio/supervisor/restarts.py": {"signal.signal": "SIGBREAK too, each only where there is one"},
}


def find_faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for every use in `tree` that is not clean on Windows."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in POSIX_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in POSIX_MODULES:
            yield node.lineno, node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if node.value == "/tmp" or node.value.startswith("/tmp/"):
                yield node.lineno, "/tmp"
        elif isinstance(node, ast.Call):
            yield from _faults_of_call(node)


def _faults_of_call(call: ast.Call) -> Iterator[tuple[int, str]]:
    name = ast.unparse(call.func)
    words = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in ABSENT | RENAMES:
        yield call.lineno, name
    if isinstance(words.get("shell"), ast.Constant) and words["shell"].value:
        yield call.lineno, "shell=True"
    if any(word in words for word in ("preexec_fn", "pass_fds")):
        yield call.lineno, "preexec_fn"
    if None in words or "encoding" in words:  # **options may carry it
        return
    if name.endswith(".write_text") and len(call.args) < 2:
        yield call.lineno, "write_text without encoding"
    elif name.endswith(".read_text") and not call.args:
        # importlib.metadata's read_text takes a file's name and is UTF-8 by itself.
        yield call.lineno, "read_text without encoding"
    elif name in ("open", "os.fdopen") and not _is_binary(call.args[1:2], words):
        yield call.lineno, "open without encoding"
    elif name.endswith(".open") and _is_text_mode(call.args[:1], words):
        yield call.lineno, "open without encoding"
    texts = any(
        isinstance(words.get(key), ast.Constant) and words[key].value
        for key in ("text", "universal_newlines")
    )
    if texts and name.split(".")[-1] in ("run", "Popen", "check_output", "call", "check_call"):
        yield call.lineno, "text=True without encoding"


def _is_binary(mode: list[ast.expr], words: dict) -> bool:
    mode = mode[0] if mode else words.get("mode")
    return isinstance(mode, ast.Constant) and "b" in str(mode.value)


def _is_text_mode(mode: list[ast.expr], words: dict) -> bool:
    """Whether these are the arguments of Path.open for text; other things have a method open as well."""
    mode = mode[0] if mode else words.get("mode")
    return isinstance(mode, ast.Constant) and str(mode.value) in (
        "r",
        "w",
        "a",
        "x",
        "r+",
        "w+",
        "a+",
        "rt",
        "wt",
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_source_is_clean_on_windows(path):
    name = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [(line, what) for line, what in find_faults(tree) if what not in ALLOWED.get(name, {})]
    assert not found, "\n".join(f"{name}:{line} {what}" for line, what in sorted(found))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("import os\nos.kill(1, 9)", "os.kill"),
        ("import signal\nsignal.signal(2, f)", "signal.signal"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "shell=True"),
        ("import subprocess\nsubprocess.run(x, text=True)", "text=True without encoding"),
        ("folder = '/tmp/studio'", "/tmp"),
        ("open('a')", "open without encoding"),
        ("open('a', 'w')", "open without encoding"),
        ("path.open('w')", "open without encoding"),
        ("path.read_text()", "read_text without encoding"),
        ("path.write_text('a')", "write_text without encoding"),
        ("import os\nos.replace(a, b)", "os.replace"),
        ("import fcntl", "fcntl"),
        ("import multiprocessing\nmultiprocessing.Process(target=f)", "multiprocessing.Process"),
    ],
)
def test_each_fault_is_found(words, what):
    assert [found for _, found in find_faults(ast.parse(words))] == [what]


@pytest.mark.parametrize(
    "words",
    [
        "open('a', 'rb')",
        "open('a', encoding='utf-8')",
        "open('a', **options)",
        "path.open('wb')",
        "path.read_text('utf-8')",
        "'''/tmp in words'''\nname = '/temperature'",
        "import subprocess\nsubprocess.run(x, text=True, encoding='utf-8')",
        "def f():\n    '''/tmp/x'''",
    ],
)
def test_what_is_clean_is_left_alone(words):
    assert list(find_faults(ast.parse(words))) == []


def test_a_replacement_is_tried_again_only_for_what_windows_holds(tmp_path, monkeypatch):
    from studio.core import atomic_files as files

    source, target = tmp_path / "new", tmp_path / "old"
    waits, real = [], files.os.replace

    def held(times, number):
        left = [times]

        def replace(*names):
            if left[0]:
                left[0] -= 1
                error = PermissionError(13, "held")
                error.winerror = number
                raise error
            real(*names)

        return replace

    monkeypatch.setattr(files.time, "sleep", waits.append)
    for number in (5, 32, 33):
        waits.clear()
        source.write_bytes(b"new")
        monkeypatch.setattr(files.os, "replace", held(3, number))
        files.replace_file(source, target)
        assert target.read_bytes() == b"new" and len(waits) == 3
    waits.clear()
    source.write_bytes(b"new")
    monkeypatch.setattr(files.os, "replace", held(10**6, 32))
    with pytest.raises(PermissionError):
        files.replace_file(source, target)
    assert 2 < sum(waits) < 6  # bounded
    waits.clear()
    monkeypatch.setattr(files.os, "replace", held(1, 112))
    with pytest.raises(PermissionError):
        files.replace_file(source, target)
    assert waits == []
