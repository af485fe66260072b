"""A Training tab on a desk that only notes what it is told, and what its page makes of the answers."""

from __future__ import annotations

from types import SimpleNamespace

from studio.core.errors import StudioError
from studio.core.events import (
    StepLogged,
)
from studio.core.i18n import text
from studio.core.run_record import RunRecord
from studio.ui.form import Form
from studio.ui.tabs.training.tab import TrainingTab
from tests.ui.conftest import FakeDesk
from tests.ui.sheet import Sheet

EVIL = "<img src=x onerror=alert(1)>"


class RunDesk(FakeDesk):
    """Also pauses, discards and queues; a run that is in no log is not there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.did: list[tuple[str, str]] = []

    def read(self, run: str) -> RunRecord:
        if run not in self.log:
            raise StudioError(text("run.unknown", run=run), text("run.unknown.why"), text("run.unknown.fix"))
        return super().read(run)

    def pause(self, run: str) -> None:
        self.did.append(("pause", run))

    def unpause(self, run: str) -> None:
        self.did.append(("unpause", run))

    def discard(self, run: str) -> None:
        self.did.append(("discard", run))
        self.active = None
        del self.log[run]

    def add(self, recipe):
        self.did.append(("add", recipe.name))
        return SimpleNamespace(id="1", name=EVIL)


def make(context, *others) -> TrainingTab:
    with Sheet():
        form = Form(context.words, context.draft())
        for other in others:
            other(context, form)
        made = TrainingTab(context, form)
        made.make_shared()
        made.bind()
    return made


class Page:
    """What run.js and chart.js do with the answers."""

    def __init__(self, tab: TrainingTab, run: str = "") -> None:
        self.tab, self.run, self.active, self.sample = tab, run, None, None
        self.chip: dict = {}
        self.told: list[dict] = []
        self.marks: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.chart: dict = {}
        self.steps = 0
        self.payloads: list[dict] = []

    def look(self) -> dict[str, str]:
        """One second: the parts that changed."""
        asked = {"run": self.run, "active": self.active, "chip": self.chip, "sample": self.sample}
        asked |= {"marks": self.marks}
        answer = self.tab.page.look(asked | {"chart": self.chart})
        self.run, self.active, self.state = answer["run"], answer["active"], answer["state"]
        self.chip = answer["chip"]
        self.told += [answer["ended"]] if answer["ended"] else []
        self.marks |= answer["marks"]
        self.parts |= answer["parts"]
        points = answer["points"]
        if points:
            self.payloads.append(points)
            new = points["until"]["step"] - points["since"]["step"]
            self.steps = new if not any(points["since"].values()) else self.steps + new
            self.chart = {"run": points["run"], "generation": points["generation"], "cursor": points["until"]}
        return answer["parts"]


def values(tab: TrainingTab) -> list:
    return tab.form.show(tab.context.draft())


def step(number: int, seq: int, time_s: float | None = None) -> StepLogged:
    return StepLogged(
        seq=seq, time_s=seq if time_s is None else time_s, step=number, total_steps=4, epoch=0, loss=1, lr=1,
        grad_norm=1, tokens_per_s=1,
    )  # fmt: skip
