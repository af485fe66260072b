"""One case in a process of its own: started, told when to take its steps, and listened to."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, to_json
from studio.machine.workspace import ALLOCATOR_VARIABLES, Workspace, child_environment

ROOT = Path(__file__).resolve().parents[1]
WORDS = ("READY", "ROUND", "END")
OWN_STACKS = ("ours", "engine")
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
OWN_PACKAGES = {"liger": ("liger_kernel",), "unsloth": ("unsloth",)}
"""What a stack needs besides."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    "PYTHONUNBUFFERED": "1",
}


class Child:
    """One case in a process of its own."""

    def __init__(self, case: Case, folder: Path, scratch: Path, *, device: str, budget_mib: float) -> None:
        self.case = case
        self.row: dict[str, Any] = {"state": "failed", "steps": 0}
        self.rates: list[float] = []
        self.times_s: list[float] = []
        self.log = scratch / f"{case.name}.log"
        self.budget_mib = budget_mib
        order = {
            "case": to_json(case),
            "folder": str(folder),
            "device": device,
            "budget_bytes": int(budget_mib * 2**20),
            "started_s": time.time(),
        }
        place = scratch / case.name
        place.mkdir(exist_ok=True)
        environment = make_environment(case.stack)
        if case.stack in OWN_STACKS:
            cache = scratch / "triton"
            if (
                case.cold and case.stack == "ours"
            ):  # a run through the engine has a cache in its own workspace
                shutil.rmtree(cache, ignore_errors=True)
            environment["TRITON_CACHE_DIR"] = str(cache)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(ROOT / "benchmarks" / "measure.py"), json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                errors="replace",
                cwd=place,
                env=environment,
            )
        self.answers: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            word, _, rest = line.partition(" ")
            if word in WORDS and rest.startswith("{"):
                self.answers.put((word, json.loads(rest)))
            else:
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(line)
        self.answers.put(("GONE", {}))

    def wait_for(self, word: str, seconds: float) -> dict[str, Any] | None:
        """Return the answer of that word; None, with the reason in `row`, when the process ends or takes too long."""
        try:
            got, values = self.answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            self.row |= {"state": "timed out", "error": f"no {word} after {seconds:.0f} s"}
            self.process.kill()
            self.process.wait()
            return None
        if got == word:
            return values
        self.process.wait()
        said = [line.strip() for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines()]
        self.row |= describe_failure([line for line in said if line])
        return None

    def tell(self, line: str) -> None:
        """Send one line; a process that is gone is noticed by wait_for()."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            self.process.kill()

    def take_round(self, seconds: float) -> bool:
        """Have it take the steps of a round; whether it did."""
        self.tell(str(self.case.steps))
        answer = self.wait_for("ROUND", seconds)
        if answer is None:
            return False
        self.times_s += answer["times_s"]
        self.rates += [n / s for n, s in zip(answer["tokens"], answer["times_s"], strict=True)]
        self.row["clock_mhz"] = ask_driver("clocks.sm")
        return True

    def end(self, seconds: float) -> dict[str, Any] | None:
        """End the process; returns its last words."""
        try:
            self.process.stdin.close()
        except OSError:
            self.process.kill()
        answer = self.wait_for("END", seconds)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return answer


def site_variable(stack: str) -> str:
    """Return the name of the variable that names a stack's folder of packages."""
    return "STUDIO_SITE" if stack in OWN_STACKS else "PEERS_SITE"


def find_site(stack: str) -> str:
    """Return the folder of packages that a stack may see beside those of this Python; "" for none."""
    return os.environ.get(site_variable(stack), "")


def find_lacking(stack: str) -> list[str]:
    """Return the packages that a stack needs and that its process would not find."""
    # Their PYTHONPATH is the stack's folder, not ours.
    ours = {str(Path(entry)) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    paths = [
        *find_site(stack).split(os.pathsep),
        *(entry for entry in sys.path if str(Path(entry)) not in ours),
    ]
    needed = (*PACKAGES, *OWN_PACKAGES.get(stack, ()))
    return [
        name for name in needed if PathFinder.find_spec(name, [entry for entry in paths if entry]) is None
    ]


def make_environment(stack: str) -> dict[str, str]:
    """Return the environment of a stack's process; the studio's has torch's allocator set as its runs have."""
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": find_site(stack)}
    if stack in OWN_STACKS:
        prepared = child_environment(Workspace(ROOT), environment)
        environment |= {name: prepared[name] for name in ALLOCATOR_VARIABLES if name in prepared}
    return environment


def describe_failure(said: Sequence[str]) -> dict[str, str]:
    """Return state and error of a process that left these lines."""
    memory = [line for line in said[-40:] if "out of memory" in line.lower()]
    last = (memory or said or ["it said nothing"])[-1]
    return {"state": "out of memory" if memory else "failed", "error": last[:300]}


def ask_driver(question: str) -> str:
    """Return what nvidia-smi answers for the first card, "" without one."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={question}", "--format=csv,noheader,nounits", "-i", "0"],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
