"""Makes the studio's own .venv: a Python, the packages, one line a phase, and a stamp so that later starts are free.

Standard library only, imports nothing of studio, parses and runs on Python 3.8: launch.py loads it by its path before
.venv exists. `.venv/studio-stamp.json` says with which requirement files it was made; the file `.venv/studio-changing`
stands while packages change, so that an interrupted installation is known as half-made and made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

LOG = ".venv-install.log"
# How long to wait before trying again what a virus scanner or an open program holds.
HELD_WAITS_S = (2.0, 5.0, 10.0)


class Refusal(Exception):
    """What happened, why, what to do: three sentences in the person's language; `id` names them.

    `code` is the exit code: 2 for what this computer lacks, 1 for an installation that failed on the way.
    """

    def __init__(self, id, what, why, fix, code=2):
        super().__init__(what, why, fix)
        self.id, self.what, self.why, self.fix, self.code = id, what, why, fix, code

    def show(self, as_json):
        """Tell it: as JSON on standard output, in words on standard error, or in a box where there is no console."""
        parts = [self.what, self.why, self.fix]
        if as_json:
            print(json.dumps({"error": dict(zip(("what", "why", "fix"), parts))}, ensure_ascii=False))
        elif sys.stderr:
            print("\n".join(parts), file=sys.stderr)
        elif os.name == "nt":  # started by a double click
            import ctypes

            ctypes.windll.user32.MessageBoxW(0, "\n\n".join(parts), "Finetune Studio", 0x10)


def say(root, id, **values):
    """Return the words of `id` from assets/locales in the person's language, English where it lacks them."""
    words = {}
    for language in ("en", "zh-CN") if speaks_chinese() else ("en",):
        path = Path(root) / "assets" / "locales" / (language + ".json")
        words.update(json.loads(path.read_text(encoding="utf-8")))
    return re.sub(r"\{(\w+)\}", lambda match: str(values.get(match.group(1), "")), words.get(id, id))


def speaks_chinese():
    """Return whether the person reads Chinese: by the studio's variable, the locale's, else what Windows speaks."""
    names = ("FINETUNE_STUDIO_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
    tag = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return tag.lower().startswith("zh") if tag else _load("windows").speaks_chinese()


def refuse(root, id, code=2, **values):
    """Return the Refusal whose sentences are `id`, `id`.why and `id`.fix."""
    return Refusal(id, *(say(root, id + part, **values) for part in ("", ".why", ".fix")), code=code)


def load_file(path):
    """Return the module in the file `path`, which needs no package around it."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load(name):
    return load_file(Path(__file__).with_name(name + ".py"))


def venv_python(root):
    """Return the path of .venv's Python; the one without a console where this process has none (Windows)."""
    if os.name != "nt":
        return Path(root) / ".venv" / "bin" / "python"
    quiet = Path(sys.executable).name.lower() == "pythonw.exe"
    return Path(root) / ".venv" / "Scripts" / ("pythonw.exe" if quiet else "python.exe")


def fingerprint(root, dev=False):
    """Return the hash of the requirement files: with `dev`, the tests' too."""
    digest = hashlib.sha256()
    for name in ["requirements.txt", "constraints.txt"] + (["requirements-dev.txt"] if dev else []):
        digest.update((Path(root) / name).read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


def read_stamp(root):
    """Return what .venv was made with; {} when there is none, it is half-made or the Python under it is gone."""
    folder = Path(root) / ".venv"
    try:
        if (folder / "studio-changing").exists() or not venv_python(root).exists():
            return {}
        home = re.search(r"^home\s*=\s*(.+)$", (folder / "pyvenv.cfg").read_text(encoding="utf-8"), re.M)
        if not home or not os.path.isdir(home.group(1).strip()):
            return {}
        return json.loads((folder / "studio-stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def is_ready(root, dev=False):
    """Return whether .venv holds what the requirement files ask for, or what stayed when the update to them failed."""
    stamp = read_stamp(root)
    if dev:
        return stamp.get("dev") == fingerprint(root, dev=True)
    return fingerprint(root) in (stamp.get("base"), stamp.get("failed"))


def ensure(root, dev=False, again=False, rebuild=False):
    """Return the path of a .venv Python with every package, making, repairing or updating .venv where needed.

    `dev` adds the tests' packages, `again` looks at the packages even when the stamp is right, `rebuild` starts over.
    A failed update keeps what was there. Raises Refusal when there is no usable .venv in the end.
    """
    root = Path(root).resolve()
    if is_ready(root, dev) and not (again or rebuild):
        return venv_python(root)
    if again and not rebuild and _is_complete(root, dev):
        _tell(say(root, "install.already"))
        return venv_python(root)
    if os.name == "nt":
        _judge_windows(root)
    try:
        waits = load_file(Path(__file__).parents[1] / "core" / "lock_file.py").hold(
            root / ".venv-install.lock", lambda: _tell(say(root, "install.waiting"))
        )
        with waits:
            if (
                not is_ready(root, dev) or again or rebuild
            ):  # another start may have made it while this one waited
                stamp = {} if rebuild else read_stamp(root)
                if stamp:
                    _update(root, stamp, dev, required=dev or again)
                else:
                    _make(root, dev)
    except OSError as error:
        kind = _load("pip_errors").find_meaning(str(error))
        kind = kind if kind in ("install.disk", "install.held") else "install.unwritable"
        values = {
            "reason": error.strerror or str(error),
            "folder": root,
            "step": root / ".venv",
            "log": root / LOG,
        }
        raise refuse(root, kind, **values) from error
    return venv_python(root)


def _judge_windows(root):
    """Tell what of this Windows may hinder; raises Refusal for what surely would."""
    windows = _load("windows")
    for id, values in windows.judge(windows.read_facts(root, _load("torch_build").read_pin(root))):
        if not id.startswith("install.note."):
            raise refuse(root, id, **values)
        _tell(say(root, id, **values))


def _is_complete(root, dev):
    """Return whether .venv was made for these requirement files and still holds them; tells of a wrong PyTorch."""
    stamp = read_stamp(root)
    if stamp.get("base") != fingerprint(root) or (dev and stamp.get("dev") != fingerprint(root, dev=True)):
        return False
    if _load("torch_build").is_wrong(root / ".venv", venv_python(root)):
        _tell(say(root, "install.wrong_torch"))
        return False
    files = [str(root / name) for name in _requirement_names(dev)]
    ask = [str(venv_python(root)), "-P", str(root / "studio" / "installer" / "requirements.py")] + files
    answer = subprocess.run(ask, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return answer.returncode == 0 and json.loads(answer.stdout.decode("utf-8")) == []


def _make(root, dev):
    facts, problem, values = _load("python_choice").choose_python()
    if problem:
        raise refuse(root, problem, **values)
    if os.name == "nt" and (facts["conda"] or facts["store"]):
        _tell(say(root, "install.note.conda" if facts["conda"] else "install.note.store", path=facts["path"]))
    folder = root / ".venv"
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        if os.name == "nt" and Path(sys.prefix) == folder:  # a program that runs cannot be deleted there
            raise refuse(root, "install.from_venv", folder=root)
        _tell(say(root, "install.phase.repair"))
        _remove(folder)
    version = ".".join(map(str, facts["version"]))
    _run(root, say(root, "install.phase.venv", version=version), [facts["path"], "-m", "venv", str(folder)])
    (folder / "studio-changing").write_bytes(b"")
    build, _ = _first_that_works(root, "install.phase.torch", _torch_choices(root), [])
    _add_packages(root, build, dev)
    _save_stamp(root, _new_stamp(root, build, version, dev))
    (folder / "studio-changing").unlink()


def _remove(folder):
    """Delete `folder`, again after a while where Windows says that something in it is held. Raises OSError."""
    held = _load("pip_errors")
    for wait_s in HELD_WAITS_S:
        try:
            shutil.rmtree(str(folder))
            return
        except OSError as error:
            if held.find_meaning(str(error)) != "install.held":
                raise
            time.sleep(wait_s)
    shutil.rmtree(str(folder))


def _update(root, stamp, dev, required):
    """Bring .venv up to the requirement files; when that fails, what was there stays and starts, unless `required`."""
    marker, before = root / ".venv" / "studio-changing", root / ".venv" / "packages-before.txt"
    with_dev = dev or bool(stamp.get("dev"))
    files = _requirement_files(with_dev)
    try:
        # Everything is resolved before anything is changed.
        build, torch = _first_that_works(
            root, "install.phase.resolve", _torch_choices(root), ["--dry-run"] + files
        )
        freeze = [str(venv_python(root)), "-m", "pip", "freeze", "--all"]
        before.write_bytes(subprocess.check_output(freeze, env=_environment(), stderr=subprocess.DEVNULL))
        marker.write_bytes(b"")
        try:
            if torch:
                _pip(root, say(root, "install.phase.torch", build=build), torch)
            _add_packages(root, build, with_dev)
        except Refusal:
            source = [part for part in torch if not part.startswith("torch==")]
            restore = source + ["--no-deps", "-r", str(before)]
            _pip(root, say(root, "install.phase.restore"), restore, constrained=False)
            marker.unlink()
            raise
    except Refusal as refusal:
        if required or marker.exists():
            raise
        _tell("{} {}".format(say(root, "install.update_failed"), refusal.what))
        _save_stamp(root, dict(stamp, failed=fingerprint(root)))
        return
    _save_stamp(root, _new_stamp(root, build, stamp.get("python", ""), with_dev))
    marker.unlink()


def _add_packages(root, build, dev):
    _pip(root, say(root, "install.phase.packages"), _requirement_files(dev))
    if build.startswith("cu"):
        try:
            name = "triton-windows" if os.name == "nt" else "triton"
            _pip(root, say(root, "install.phase.triton"), [name], quiet=True)
        except Refusal:
            _tell(say(root, "install.no_triton"))
    ask = [str(venv_python(root)), "-P", "-c", "import studio; print(studio.__file__)"]
    answer = _run(
        root, say(root, "install.phase.check"), ask, dict(_environment(), PYTHONPATH=str(root))
    ).strip()
    if root not in Path(answer).resolve().parents:
        raise refuse(root, "install.foreign_studio", code=1, path=answer)
    torch_build = _load("torch_build")
    if torch_build.is_wrong(
        root / ".venv", venv_python(root)
    ):  # the studio opens, and its doctor says the same
        _tell(say(root, "install.still_cpu", index=torch_build.WHEELS))


def _torch_choices(root):
    """Return [(build, pip's arguments)] to try in order; the last one takes what the default index has."""
    python, torch_build = str(venv_python(root)), _load("torch_build")
    version = torch_build.read_pin(root)
    if not version:
        return [("", [])]
    ask = [python, "-m", "pip", "config", "list"]
    answer = subprocess.run(ask, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    offline = _load("pip_errors").is_offline(os.environ, answer.stdout.decode("utf-8", "replace"))
    return torch_build.choose_arguments(python, version, offline)


def _first_that_works(root, label, choices, more):
    """Run pip with each of `choices` and `more` until one works; return that one. Raises the last Refusal."""
    for index, (build, torch) in enumerate(choices):
        last = index == len(choices) - 1
        try:
            if torch or more:
                _pip(root, say(root, label, build=build), torch + more, quiet=not last)
            return build, torch
        except Refusal as refusal:
            if (
                last or refusal.id != "install.failed"
            ):  # no network and no space are the same for the next one
                raise
    raise AssertionError("choices is empty")


def _requirement_names(dev):
    return ["requirements.txt"] + (["requirements-dev.txt"] if dev else [])


def _requirement_files(dev):
    return [part for name in _requirement_names(dev) for part in ("-r", name)]


def _pip(root, label, arguments, constrained=True, quiet=False):
    """Run pip install in .venv; again after a while when another program, mostly a virus scanner, held a file."""
    limits = ["-c", "constraints.txt"] if constrained else []
    options = ["--no-input", "--progress-bar", "off", "--retries", "2", "--prefer-binary"]
    command = [str(venv_python(root)), "-m", "pip", "install"] + options + limits + arguments
    for wait_s in HELD_WAITS_S:
        try:
            return _run(root, label, command, quiet=quiet)
        except Refusal as refusal:
            if refusal.id != "install.held":
                raise
            _tell(say(root, "install.held_wait", wait=f"{wait_s:.0f}"))
            time.sleep(wait_s)
    return _run(root, label, command, quiet=quiet)


def _run(root, label, command, environment=None, quiet=False):
    """Run `command` with its words in the log, show one line of progress, return its words. Raises Refusal."""
    started, log = time.monotonic(), root / LOG
    live = bool(sys.stderr) and sys.stderr.isatty()
    with log.open("ab") as file:
        file.write("\n$ {}\n".format(" ".join(command)).encode("utf-8"))
        file.flush()
        begin = file.tell()
        process = subprocess.Popen(
            command,
            cwd=str(root),
            env=environment or _environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
                if live:
                    _tell(f"\r  {label} … {time.monotonic() - started:.0f} s ", end="")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    words = log.read_bytes()[begin:].decode("utf-8", "replace")
    failed = process.returncode != 0
    if not (failed and quiet):
        mark = say(root, "install.phase.failed") if failed else ""
        _tell("{}  {}  {:.0f} s {}".format("\r" if live else "", label, time.monotonic() - started, mark))
    if failed:
        pip_errors = _load("pip_errors")
        values = {
            "step": label,
            "reason": pip_errors.find_reason(words),
            "log": log,
            "folder": root,
            "index": pip_errors.find_index(words) or say(root, "install.default_index"),
            "proxy": pip_errors.find_proxy(os.environ) or say(root, "install.pip_proxy"),
        }
        raise refuse(root, pip_errors.find_meaning(words), code=1, **values)
    return words


def _environment():
    """Return the environment for pip: what would lead it or its Python out of .venv is gone, its sources stay."""
    gone = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return dict(kept, PYTHONUTF8="1", PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")


def _new_stamp(root, build, version, dev):
    stamp = {"base": fingerprint(root), "build": build, "python": version}
    return dict(stamp, dev=fingerprint(root, dev=True)) if dev else stamp


def _save_stamp(root, stamp):
    path = root / ".venv" / "studio-stamp.json"
    staged = path.with_name(path.name + ".tmp")
    staged.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
    load_file(Path(__file__).parents[1] / "core" / "atomic_files.py").replace_file(staged, path)


def finish(root, shortcut):
    """Return the last words of an installation, having made the desktop's shortcut (Windows) when it is asked for."""
    if not shortcut:
        return say(root, "install.done")
    made = _load("windows").make_shortcut(root)
    return say(root, "install.done_shortcut" if made else "install.no_shortcut", python=venv_python(root))


def _tell(words, end="\n"):
    if sys.stderr:  # there is none under pythonw
        sys.stderr.write(words + end)
        sys.stderr.flush()
