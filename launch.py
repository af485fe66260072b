"""The one door of Finetune Studio: finds a Python, makes .venv beside itself, and hands the command over to it.

Standard library only; parses and runs on Python 3.8, so that an old Python can look for a newer one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
COMMANDS = ("demo", "train", "resume", "check", "plan", "data", "doctor", "explain", "runs", "chat", "eval")
BEGAN_S = time.time()
COMMANDS += ("serve", "export", "wsl", "install", "test", "bench")
# The first is of another Python; with the second each command ends in Python's own prompt.
LEFT_OUT = ("PYTHONHOME", "PYTHONINSPECT")


def main(arguments):
    """Do what the command line asks for and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A console's code page lacks letters, and the studio below writes UTF-8.
        if os.name == "nt" and stream:
            stream.reconfigure(encoding="utf-8", errors="replace")
    # Windows would look for programs in the working folder first, where a data set may have brought its own.
    os.environ["NoDefaultCurrentDirectoryInExePath"] = "1"
    install = _load_install()
    as_json = "--json" in arguments
    try:
        return _dispatch(install, arguments, as_json)
    except install.Refusal as refusal:
        refusal.show(as_json)
        return refusal.code
    except KeyboardInterrupt:
        return 2


def _dispatch(install, arguments, as_json):
    here = "--here" in arguments
    # A start without a console shows an installation in a page; so do the double clicks of the installers.
    on_page = "--page" in arguments or sys.stderr is None
    arguments = [word for word in arguments if word not in ("--here", "--page")]
    command = _find_command(arguments)
    if command is None and ("--help" in arguments or "-h" in arguments):
        print(install.say(ROOT, "install.help"))
        return 0
    if "--version" in arguments and command is None:
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        print(re.search(r'^version = "(.+)"', project, re.M).group(1))
        return 0
    if command == "explain":
        return _explain(install, arguments)
    if here:
        python = _judge_this_python(install, command)
    else:
        again = command == "install"
        wishes = {"dev": command == "test", "again": again, "rebuild": again and "--rebuild" in arguments}
        if on_page and command in (None, "install") and (again or not install.is_ready(ROOT)):
            page = install.load_file(ROOT / "studio" / "installer" / "install_page.py")
            environment = _environment(False, install.speaks_chinese())
            process = page.install_and_start(install, ROOT, wishes, arguments, environment)
            if process:  # None: no browser
                return 0 if again else _wait(process)
        python = install.ensure(ROOT, **wishes)
    environment = _environment(here, install.speaks_chinese())
    if command == "install":
        return _finish_install(install, python, environment, arguments, as_json)
    if command == "test":
        rest = [word for word in arguments if word != "test"]
        return _hand_over([str(python), "-P", str(ROOT / "tests" / "run.py")] + rest, environment)
    return _hand_over([str(python), "-P", "-m", "studio.cli"] + arguments, environment)


def _explain(install, arguments):
    """Say what an error text means: needs no .venv, only a Python that reads the studio's source."""
    python = sys.executable
    if sys.version_info < (3, 10):
        python = install.load_file(ROOT / "studio" / "installer" / "python_choice.py").find_newer((3, 10))
    if not python:
        raise install.refuse(ROOT, "explain.python_old", version=sys.version.split()[0])
    find = "import sys; sys.path.insert(0, sys.argv[1])"
    start = f"{find}; from studio.cli.explain import main; sys.exit(main(sys.argv[2:]))"
    command = [python, "-I", "-S", "-X", "utf8", "-c", start, str(ROOT)] + arguments
    return _hand_over(command, _environment(False, install.speaks_chinese()))


def _find_command(arguments):
    """Return the command's name; None for the window, whose options stand alone."""
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in ("--workspace", "--port"):
            skip = True
        elif not word.startswith("-"):
            return word
    return None


def _judge_this_python(install, command):
    """Return the Python that runs this, when it has what the command needs. Raises Refusal listing what it lacks."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        version = ".".join(map(str, sys.version_info[:3]))
        raise install.refuse(ROOT, "install.here_python", version=version, python=sys.executable)
    requirements = install.load_file(ROOT / "studio" / "installer" / "requirements.py")
    tests = command == "test"
    lacking = requirements.find_unsuitable(ROOT / "requirements.txt", window=tests or command not in COMMANDS)
    if tests:
        lacking += requirements.find_unsuitable(ROOT / "requirements-dev.txt", window=True)
    if lacking:
        raise install.refuse(ROOT, "install.here_lacks", lacking=", ".join(lacking), python=sys.executable)
    sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
    found = importlib.util.find_spec("studio")
    if found is None or not found.origin or ROOT not in Path(found.origin).resolve().parents:
        raise install.refuse(ROOT, "install.foreign_studio", path=found and found.origin)
    return sys.executable


def _environment(here, chinese):
    """Return the environment for the studio: ROOT and ROOT/kernels first on the search path.

    A PYTHONPATH that was there may bring another torch along: it counts under --here alone.
    """
    paths = [str(ROOT), str(ROOT / "kernels")]
    if here and os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    if chinese and os.name == "nt":  # there no variable says it
        environment.setdefault("FINETUNE_STUDIO_LANGUAGE", "zh-CN")
    # studio/core/start_clock.py: what a run's start consists of is counted from here.
    environment["FINETUNE_STUDIO_CLOCK"] = f"command:{BEGAN_S:.3f}"
    return dict(environment, PYTHONPATH=os.pathsep.join(paths), PYTHONUTF8="1")


def _hand_over(command, environment):
    """Become `command`; on Windows, where a process cannot, run it and return its exit code."""
    if os.name != "nt":
        if sys.stdout:  # closed by the caller: None
            sys.stdout.flush()
        os.execve(command[0], command, environment)
    return _wait(subprocess.Popen(command, env=environment))


def _wait(process):
    """Return the exit code of `process`."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the console sends Ctrl-C to both, and the other one ends in its own time
            continue


def _finish_install(install, python, environment, arguments, as_json):
    """Say what is installed; after --rebuild the caches go too."""
    if "--rebuild" in arguments:
        clear = "from studio.machine.workspace import clear_caches, open_workspace; clear_caches(open_workspace())"
        subprocess.run([str(python), "-P", "-c", clear], env=environment, check=False)
    stamp = install.read_stamp(ROOT)
    if as_json:
        answer = dict(environment=str(ROOT / ".venv"), python=stamp.get("python"), torch=stamp.get("build"))
        print(json.dumps(answer))
    else:
        print(install.finish(ROOT, shortcut="--shortcut" in arguments))
    return 0


def _load_install():
    path = ROOT / "studio" / "installer" / "install.py"
    spec = importlib.util.spec_from_file_location("install", str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
