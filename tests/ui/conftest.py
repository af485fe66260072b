"""Parts of the window's tests: a desk of canned answers, and a context around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from studio.core.errors import Problem, StudioError
from studio.core.events import RunEvent
from studio.core.facts import BackendPlan, Choice, MachineFacts, ModelFacts, Verdict
from studio.core.i18n import literal
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.core.run_record import RunRecord
from studio.hub.access_token import NO_MIRROR, Mirror
from studio.machine.workspace import child_environment, open_workspace
from studio.services.dataset_session import Datasets
from studio.services.reward_code import RewardCode
from studio.services.reward_trials import RewardTrials
from studio.services.reward_verdicts import RewardVerdicts
from studio.services.run_answers import RunAnswers
from studio.services.sharing import Sharing
from tests.ui.browser import Window, describe_page, open_chromium, wait_for
from tests.ui.sample_report import FakeTools

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def running_chromium():
    """One browser for the tests of a file."""
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def chromium(running_chromium):
    """A browser without pages; those that the test opened are closed after it."""
    yield running_chromium
    for context in running_chromium.contexts:
        context.close()


def describe_pages(browser) -> Iterator[tuple[str, str]]:
    """Yield what a report says of each page."""
    try:
        for page in (page for context in browser.contexts for page in context.pages):
            yield f"page {page.url}", describe_page(page)
    except (
        Exception
    ) as error:  # else pytest itself ends: xdist then says "assert not crashitem", and no test's error
        yield "pages", f"they could not be described: {error!r}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add to the report of a failed test what its pages showed."""
    report = yield
    browser = item.funcargs.get("chromium")
    if browser is not None and report.when == "call" and report.failed:
        report.sections += list(describe_pages(browser))
    return report


@pytest.fixture
def start_studio(tmp_path, chromium) -> Iterator:
    """A function `start(language) -> Window`: the real process on a free port in a new workspace."""
    processes = []
    workspace = open_workspace(str(tmp_path / "workspace"))
    with (tmp_path / "studio.log").open("w") as log:

        def start(language: str) -> Window:
            environment = child_environment(workspace, os.environ) | {"FINETUNE_STUDIO_LANGUAGE": language}
            environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
            command = [sys.executable, "-m", "studio.cli", "--child", "studio", "--no-browser"]
            command += ["--workspace", str(workspace.root)]
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=workspace.server_cwd,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
            processes.append(process)
            address = workspace.root / "address.json"
            wait_for(address.exists)
            url = json.loads(address.read_text(encoding="utf-8"))["url"]
            return Window(url=url, workspace=workspace, browser=chromium)

        yield start
        for process in processes:
            process.kill()
            process.wait()


def make_plan() -> BackendPlan:
    """Return a plan for a processor."""
    choice = Choice(value="cpu", reason=literal("because <b>"))
    return BackendPlan(
        device=choice,
        dtype=choice,
        attention=choice,
        quantization=choice,
        optimizer=choice,
        checkpointing=Choice(value=False, reason=literal("no need")),
        kernels={"rms_norm": Choice(value="reference", reason=literal("no card"))},
    )


MACHINE = MachineFacts(system="Linux", wsl=False, python="3.11", cores=2, ram_bytes=8 * 2**30, packages={})


@dataclass
class FakeMachineState:
    """Answers like studio.services.machine_state.MachineState."""

    problems: list[dict] = field(default_factory=list)
    offers: list = field(default_factory=list)
    tests: tuple = ()
    applied: tuple = ()
    left: list[str] = field(default_factory=list)
    switched: list[tuple[str, bool]] = field(default_factory=list)
    asked: list[dict] = field(default_factory=list)
    kept_mirror: Mirror = NO_MIRROR

    known = True

    def is_known(self) -> bool:
        return self.known

    def facts(self) -> MachineFacts:
        return MACHINE

    now = facts

    def examine(self, *, fresh: bool = False, hub: bool = False) -> dict:
        self.asked.append({"fresh": fresh, "hub": hub})
        check = {"id": "python", "tried": literal("Python"), "evidence": literal("<i>3.12</i>"), "verdict": "ok",
                 "fix": None, "problems": []}  # fmt: skip
        return {
            "verdict": "degraded", "backend": "cpu", "row": "processor", "reasons": [literal("no card")],
            "problems": self.problems, "checks": [check], "offers": self.offers,
            "facts": replace(MACHINE, kernel_tests=self.tests),
        }  # fmt: skip

    def mirror(self) -> Mirror:
        return self.kept_mirror

    def allow_token(self, allowed: bool) -> None:
        self.asked.append({"token": allowed})

    def set_mirror(self, address: str) -> None:
        self.asked.append({"mirror": address})

    def repairs(self) -> tuple:
        return self.applied

    def repairs_left(self) -> tuple[str, ...]:
        return tuple(self.left)

    def switch_repair(self, name: str, *, on: bool) -> None:
        self.switched.append((name, on))

    def restart_waits(self) -> bool:
        return bool(self.switched)


@dataclass
class FakeDesk:
    """Answers like studio.services.desk.Desk and, where a test gives no other, like each of its nouns."""

    workspace: object
    log: dict[str, list[RunEvent]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    active: str | None = None
    other: str = ""
    """What is on beside a run: export, test."""
    started: list[Recipe] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    answered: list[tuple[str, str]] = field(default_factory=list)
    machine: FakeMachineState = field(default_factory=FakeMachineState)
    supervised: bool = True
    restarting: bool = False
    handed_over: int = 0
    tools: FakeTools = field(default_factory=FakeTools)

    def __post_init__(self) -> None:
        self.datasets = Datasets(self.workspace, self.tools)
        self.sharing = Sharing(self.workspace)
        self.runs = self.recipes = self
        self.answers = RunAnswers(self.workspace)
        self.reward_code, self.trials = (
            RewardCode(self.workspace),
            RewardTrials(self.workspace, self, RewardVerdicts(self.workspace)),
        )
        for noun in ("queue", "models", "chat"):
            if not hasattr(self, noun):
                setattr(self, noun, self)

    def restart(self) -> bool:
        self.restarting = self.supervised
        return self.supervised

    def hand_over(self, port: int) -> None:
        self.handed_over = port

    def list_local(self) -> tuple[ModelFacts, ...]:
        return (self.inspect("demo"),)

    def inspect(self, source: str) -> ModelFacts:
        if source == "missing":
            raise StudioError(literal("no <model>"), literal("why"), literal("fix"))
        return ModelFacts(
            source=source, name=source, folder="/models/x", architecture="LlamaForCausalLM", family="llama",
            parameters=5_000_000, weight_bytes=10_000_000, dtype="bf16", quantization="none",
            hidden_size=8, layers=2, vocabulary=100,
            max_positions=512, has_chat_template=True, trainable=Verdict(ok=True),
        )  # fmt: skip

    def demo(self) -> Recipe:
        return Recipe(name="demo", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))

    def check(self, recipe: Recipe) -> tuple[Problem, ...]:
        return self.problems

    def plan(self, recipe: Recipe) -> BackendPlan:
        return make_plan()

    def start(self, recipe: Recipe, *, checked: bool = False) -> str:
        self.started.append(recipe)
        self.active = f"run-{len(self.started)}"
        self.log[self.active] = []
        return self.active

    def resume(self, run: str) -> None:
        self.active = run

    def stop(self, run: str) -> None:
        self.active = None

    def answer_stall(self, run: str, choice: str) -> bool:
        self.answered.append((run, choice))
        return True

    def working(self) -> str:
        return "run" if self.active else self.other

    def list(self) -> tuple[RunRecord, ...]:
        records = [
            RunRecord(run=run, name=run, state="finished", created_s=i, artifact="adapter")
            for i, run in enumerate(self.log)
        ]
        return tuple(reversed(records))

    def read(self, run: str) -> RunRecord:
        return RunRecord(run=run, name=run, state="stopped", created_s=0)

    def recipe(self, run: str) -> Recipe:
        return self.demo()

    def events(self, run: str, after: int = 0) -> tuple[RunEvent, ...]:
        self.asked.append((run, after))
        return tuple(event for event in self.log[run] if event.seq > after)

    def export(self, run: str, target: str):
        return SimpleNamespace(path=Path("/exports") / run / target, size_bytes=2048)

    def close(self) -> None:
        self.active = None
        self.datasets.close()


@pytest.fixture
def fake_desk(workspace) -> FakeDesk:
    """A desk without an engine."""
    return FakeDesk(workspace)


@pytest.fixture
def keys(workspace):
    """The gate's keys of the workspace."""
    from studio.ui.auth.owner import Keys

    return Keys(workspace.root, 7999)


@pytest.fixture
def context(fake_desk, workspace, keys):
    """A window's context in English."""
    from studio.ui.context import Context

    return Context(fake_desk, workspace, keys, "en")
