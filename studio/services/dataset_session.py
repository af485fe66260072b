"""The data set on show: a first look at once, the full report in the background, kept here so that any page sees it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.recipe import Recipe
from studio.machine.workspace import Workspace
from studio.services import dataset_report
from studio.services.dataset_report import Counted, Cut, MeasuredData
from studio.services.worker import Worker

VIEW_FIELDS = ("max_length", "packing", "fill", "validation_share", "accept_bad_rows")
"""Fields of DatasetSpec that change neither which rows are read nor what their tokens are: no new report for them."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is known so far. `report` has the shape of `launch.py data --json` with Texts where a person reads, and
    what only a screen needs: columns, rows (cells as text), roles, specials, questions."""

    number: int = 0
    """Grows with every change of what is to be shown, progress apart."""
    state: str = "none"
    """none, remote (waits for the word to go on), asking, fetching, looking, measuring, done, failed, stopped."""
    source: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    """Whether `report` is over all rows; else over the head."""
    share: float = 0.0
    """How much of the report is done, 0..1."""
    asked: bool = False
    """Whether the network was asked what a remote source holds."""
    size_bytes: int | None = None
    """Of a remote source, where the network says it."""
    error: StudioError | None = None

    @property
    def working(self) -> bool:
        """Whether something is being done in the background."""
        return self.state in ("asking", "fetching", "looking", "measuring")


class Datasets:
    """One data set at a time; methods may be called from any thread. `tools` is studio.services.dataset_report."""

    def __init__(self, workspace: Workspace, tools: Any = dataset_report) -> None:
        self.workspace = workspace
        self._tools = tools
        self._worker = Worker("data")
        self._lock = threading.Lock()
        self._look = Look()
        self._key = ""
        self._recipe: Recipe | None = None
        self._stop = threading.Event()
        self._measured: MeasuredData | None = None

    def view(self) -> Look:
        """Return what is known now."""
        return self._look

    @property
    def recipe(self) -> Recipe | None:
        """The recipe whose data set is on show."""
        return self._recipe

    def look(self, recipe: Recipe, *, again: bool = False) -> Look:
        """Look at the recipe's data; what is known already is not asked again unless `again`. Returns the first look.

        The head's rows are here at once, its tokens and the report over all rows follow. A source on the network only
        gets the state `remote`. What cannot be read is the Look's `error`.
        """
        key = identify(recipe)
        with self._lock:
            if key == self._key and not (again or self._look.state == "stopped"):
                return self._look
            self._key, self._recipe, self._measured = key, recipe, None
            stop = self._renew()
        if not recipe.data.source.strip():
            return self._publish(stop, Look())
        if self._tools.is_remote(recipe.data, self.workspace):
            return self._publish(stop, Look(state="remote", source=recipe.data.source))
        return self._begin(recipe, stop)

    def ask_size(self) -> Look:
        """Ask the network how large the remote source is; returns at once."""
        return self._go_out("asking", self._ask)

    def fetch(self) -> Look:
        """Fetch the remote source, then look at it; returns at once."""
        return self._go_out("fetching", self._fetch)

    def cancel(self) -> Look:
        """End the work in the background; what is known stays."""
        with self._lock:
            stop = self._renew()
        look = self._look
        return self._publish(stop, dataclasses.replace(look, state="stopped")) if look.working else look

    @property
    def histogram(self) -> Mapping[str, Any]:
        """All rows' lengths: edges, counts, p50, p95, max; empty before they are measured."""
        return self._measured.histogram if self._measured else {}

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """What the limits that a person may choose do to all rows, ascending."""
        return self._measured.cuts if self._measured else ()

    def cut_at(self, limit: int) -> Cut | None:
        """Return what the length limit does to all rows; None before they are measured, or without a tokenizer."""
        measured = self._measured
        return self._tools.cut_at(measured, limit) if measured else None

    def count(self, recipe: Recipe) -> Counted | None:
        """Return what a run makes of the recipe's rows; None while they are not all measured."""
        look, measured = self.view(), self._measured
        if not look.whole or measured is None or look.source != recipe.data.source:
            return None
        return self._tools.count_rows(measured, recipe.data) if self._key == identify(recipe) else None

    def roles(self, format: str) -> tuple[str, ...]:
        """Return the roles that columns can play in a format; those of every format for `auto`."""
        return self._tools.list_roles(format)

    def save_mapping(self, recipe: Recipe) -> Path:
        """Write format, columns and encoding beside the data, where the next look finds them. Raises StudioError."""
        report = self._look.report
        if not report.get("format"):
            raise StudioError(
                text("ui.dataset.mapping.none"),
                text("ui.dataset.mapping.none.why"),
                text("ui.dataset.mapping.none.fix"),
            )
        return self._tools.save_mapping(recipe.data, report, self.workspace)

    def quarantine(self) -> Path | None:
        """Return a copy of the rows set aside, where the window may serve it from; None where there are none."""
        source = self._measured.quarantine if self._measured else None
        if source is None or not source.exists() or not source.stat().st_size:
            return None
        folder = self.workspace.tmp / "quarantine"
        folder.mkdir(parents=True, exist_ok=True)
        name = Path(self._look.source).stem or "data"
        return Path(shutil.copyfile(source, folder / f"{name}.quarantine.jsonl"))

    def close(self) -> None:
        """End the work in the background."""
        self._stop.set()
        self._worker.close(0.1)

    def _begin(self, recipe: Recipe, stop: threading.Event) -> Look:
        source = recipe.data.source
        self._publish(stop, Look(state="looking", source=source))
        try:
            report = self._tools.look_at_head(recipe, self.workspace, tokens=False)
        except StudioError as error:
            return self._publish(stop, Look(state="failed", source=source, error=error))
        except BaseException:
            self._publish(stop, Look(state="failed", source=source))  # nobody must wait for it any more
            raise
        look = self._publish(stop, Look(state="looking", source=source, report=report))
        self._submit(stop, lambda: self._measure(recipe, stop))
        return look

    def _submit(self, stop: threading.Event, work: Callable[[], None]) -> None:
        """Do `work` on this counter's own thread; what it raises unforeseen is told like a refusal."""

        def tell(done: Future) -> None:
            error = done.exception()
            if error is not None:
                why = literal(f"{type(error).__name__}: {error}"[:200])
                refusal = StudioError(text("ui.dataset.broken"), why, text("ui.dataset.broken.fix"))
                self._publish(stop, dataclasses.replace(self._look, state="failed", error=refusal))

        self._worker.submit(work).add_done_callback(tell)

    def _go_out(self, state: str, work: Callable[[Recipe, threading.Event], None]) -> Look:
        """Do `work`, which uses the network, on this counter's own thread."""
        with self._lock:
            recipe, look = self._recipe, self._look
            if recipe is None or look.state != "remote":
                return look
            stop = self._renew()
        look = self._publish(stop, dataclasses.replace(look, state=state))
        self._submit(stop, lambda: work(recipe, stop))
        return look

    def _ask(self, recipe: Recipe, stop: threading.Event) -> None:
        try:
            size_bytes, questions = self._tools.ask_size(recipe.data, self.workspace)
        except StudioError as error:
            self._publish(stop, Look(state="failed", source=recipe.data.source, error=error))
            return
        known = {"size_bytes": size_bytes, "asked": True, "report": {"needs_answer": questions}}
        self._publish(stop, dataclasses.replace(self._look, state="remote", **known))

    def _fetch(self, recipe: Recipe, stop: threading.Event) -> None:
        try:
            self._tools.fetch(recipe, self.workspace, self._tell(stop), stop.is_set)
        except StudioError as error:
            self._publish(stop, Look(state="failed", source=recipe.data.source, error=error))
            return
        if not stop.is_set():
            self._begin(recipe, stop)

    def _measure(self, recipe: Recipe, stop: threading.Event) -> None:
        """The slow part, on this counter's own thread: tokens of the head, then all rows."""
        look = self._look
        try:
            if stop.is_set():
                return
            report = self._tools.look_at_head(recipe, self.workspace, tokens=True)
            look = dataclasses.replace(look, state="measuring", report=report)
            self._publish(stop, look)
            if not report.get("format") or report["needs_answer"]:  # the answer may change every row
                self._publish(stop, dataclasses.replace(look, state="done"))
                return
            measured = self._tools.measure(recipe, self.workspace, self._tell(stop), stop.is_set)
        except StudioError as error:
            self._publish(stop, dataclasses.replace(look, state="failed", error=error))
            return
        except self._tools.Stopped:
            return
        with self._lock:
            if stop is self._stop:
                self._measured = measured
        whole = {**report, **measured.report, "preview": report["preview"]}
        self._publish(stop, dataclasses.replace(look, state="done", report=whole, whole=True, share=1.0))

    def _tell(self, stop: threading.Event) -> Progress:
        def tell(done: int, total: int) -> None:
            with self._lock:
                if stop is self._stop and total:
                    self._look = dataclasses.replace(self._look, share=min(1.0, done / total))

        return tell

    def _renew(self) -> threading.Event:
        """End what is being done; with the lock held. Returns what will end the work that begins now."""
        self._stop.set()
        self._stop = threading.Event()
        return self._stop

    def _publish(self, stop: threading.Event, look: Look) -> Look:
        """Show `look`, unless other work has begun since."""
        with self._lock:
            if stop is self._stop:
                self._look = dataclasses.replace(look, number=self._look.number + 1)
            return self._look


def identify(recipe: Recipe | None) -> str:
    """Return what decides the tokens of all rows: the data's fields but for VIEW_FIELDS, and the model."""
    if recipe is None:
        return ""
    data = {name: value for name, value in to_json(recipe.data).items() if name not in VIEW_FIELDS}
    return json.dumps([data, recipe.model.source, recipe.model.revision, recipe.objective], sort_keys=True)


def check_reach(owner: bool, source: str) -> None:
    """Refuse a typed path or a fetch to anyone but the owner: the one place that decides it. Raises StudioError."""
    if not owner and source != "demo":
        raise StudioError(
            text("ui.dataset.guest"), text("ui.dataset.guest.why"), text("ui.dataset.guest.fix")
        )
