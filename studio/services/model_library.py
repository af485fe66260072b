"""Which models there are, on this machine and at the hub, and which of them this machine can train."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.facts import Gpu, MachineFacts, ModelFacts
from studio.core.i18n import Text, literal, text
from studio.core.recipe import Recipe
from studio.hub.search import HubModel, fetch_facts, search_hub
from studio.machine.settings import read_settings
from studio.machine.workspace import Workspace
from studio.models.catalog import HUB_ID, LocalModel, inspect_model, list_local_models
from studio.models.config_facts import outline_model
from studio.models.recommended_models import Pick, outline_sizes, read_picks
from studio.planning.run_plan import choose_device
from studio.services.dataset_session import Datasets
from studio.services.estimate import Estimates, RunEstimate
from studio.services.machine_state import MachineState
from studio.services.model_fit import (
    METHODS,
    PROCESSOR_PARAMETERS,
    UNKNOWN,
    ModelFit,
    judge_model,
    judged_recipe,
)
from studio.services.model_places import ModelPlace, list_places, read_stamp
from studio.services.recipe_checks import RecipeChecks

PICKS_SHOWN = 6
KEPT_S = 10.0
"""So long the folders just looked through are not looked through again; a scan() always does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundModel:
    """A model for a picker."""

    source: str
    """What a recipe's `model.source` takes."""
    name: str
    origin: str
    """demo, folder, cache (the hub library's), modelscope, ollama, lmstudio, llama.cpp, pick (advised, not here) or hub
    (found there)."""
    facts: ModelFacts | None = None
    """None for one that cannot be read."""
    weight_bytes: int = 0
    licence: str = ""
    problem: Text | None = None
    """Why it cannot be trained."""
    fit: ModelFit = UNKNOWN
    hub: HubModel | None = None

    @property
    def here(self) -> bool:
        """Whether its files are on this machine."""
        return self.origin not in ("pick", "hub")

    @property
    def trainable(self) -> bool:
        """Whether it can be trained at all, memory apart."""
        return self.problem is None


class ModelLibrary:
    """The models of one machine; methods may be called from any thread."""

    def __init__(
        self, workspace: Workspace, health: MachineState, datasets: Datasets, recipes: RecipeChecks
    ) -> None:
        self.workspace = workspace
        self._health = health
        self._lock = threading.Lock()
        self._known: dict[ModelPlace, tuple[tuple[int, int, int], FoundModel]] = {}
        self._outlines: dict[str, FoundModel] = {}
        self._judged: dict[tuple[str, str], ModelFit] = {}
        self._last: tuple[float, tuple[FoundModel, ...]] = (-math.inf, ())
        self._machine: MachineFacts | None = None
        self._estimates = Estimates(workspace, health, datasets, recipes, self.find)

    # Models -------------------------------------------------------------------------------------------------------

    def models(self, folders: Sequence[str] | None = None) -> tuple[FoundModel, ...]:
        """Return the demo and every model in `folders` (None: those of the settings) and the caches, each judged."""
        now_s, (found_s, kept) = time.monotonic(), self._last
        if folders is None and now_s - found_s < KEPT_S:
            return tuple(map(self._judge_found, kept))
        *_, found = self.scan(folders)  # there is always the demo
        return found

    def list_local(self) -> tuple[ModelFacts | LocalModel, ...]:
        """Return the models that can be picked without typing: the demo, and what lies in the user's hub cache."""
        return (inspect_model("demo"), *list_local_models(()))

    def inspect(self, source: str) -> ModelFacts:
        """Return the facts of a model folder or hub id. Raises StudioError."""
        return inspect_model(source)

    def scan(self, folders: Sequence[str] | None = None) -> Iterator[tuple[FoundModel, ...]]:
        """Yield the models found so far, again and again until all are; what did not change is not read again."""
        everywhere = folders is None
        if everywhere:
            folders = read_settings(self.workspace).get("model_folders", ())
        found: dict[str, FoundModel] = {}
        for place in list_places(folders):
            model = self._read(place)
            found.setdefault(model.source, model)
            yield tuple(found.values())
        if everywhere:
            self._last = (time.monotonic(), tuple(found.values()))

    def picks(self) -> tuple[FoundModel, ...]:
        """Return well-known models that fit this machine and are not on it, the largest first.

        They are the largest of each line, and further ones only where there are fewer lines than places.
        """
        here = {model.source for model in self.models()}
        most = math.inf if self._gpu() else PROCESSOR_PARAMETERS
        fitting = [
            (pick.line, model)
            for pick in reversed(read_picks())
            if pick.source not in here
            and (model := self._describe_pick(pick)).fit.verdict in ("fits", "tight")
            and model.facts.parameters <= most
        ]
        first = {line: model for line, model in reversed(fitting)}
        rest = [model for line, model in fitting if model is not first[line]]
        shown = [*first.values(), *rest][: max(PICKS_SHOWN, 0)]
        return tuple(model for _, model in fitting if model in shown)

    def find(self, source: str, revision: str = "") -> FoundModel:
        """Return the model that a recipe names, judged; what was asked of the hub before counts. Raises StudioError."""
        facts = inspect_model(source, revision=revision)
        if facts.folder or facts.packed:
            return self._judge_found(_describe(facts, "demo" if source == "demo" else "folder"))
        known = self._outlines.get(source)
        if known is None:
            known = next((self._describe_pick(pick) for pick in read_picks() if pick.source == source), None)
        return known or FoundModel(source=source, name=source, origin="hub")

    def search(self, words: str) -> tuple[FoundModel, ...]:
        """Ask the hub for models that match; connects to the network. Raises StudioError."""
        found = search_hub(words, self._health.mirror())
        return tuple(self._take(model) for model in found if HUB_ID.fullmatch(model.source))

    def ask(self, source: str) -> FoundModel:
        """Ask the hub what the model `source` is; connects to the network. Raises StudioError."""
        if not HUB_ID.fullmatch(source):
            raise StudioError(*(text(f"model.missing{part}", source=source) for part in ("", ".why", ".fix")))
        return self._take(fetch_facts(source, self._health.mirror()))

    def advice(self) -> Text:
        """Return what this machine can do: the largest usual sizes that fit, by way of training."""
        machine, gpu = self._look_at_machine(), self._gpu()
        largest = {method: "" for method in METHODS}
        for size, facts in outline_sizes().items():
            fit = self._judge(facts)
            for one in fit.methods:
                if one.verdict != "no":
                    largest[one.method] = size
        if gpu is None:
            ram = text("ui.machine.cpu", cores=machine.cores, ram=f"{machine.ram_bytes / 2**30:.0f} GiB")
            return text("fit.advice.processor", machine=ram)
        name = f"{gpu.name} {gpu.vram_bytes / 2**30:.0f} GB"
        values = {"name": literal(name), "qlora": largest["qlora"], "lora": largest["lora"]}
        if not any(largest.values()):
            return text("fit.advice.none", **values)
        if not largest["qlora"] or largest["qlora"] == largest["lora"]:
            return text("fit.advice.lora", **values)
        return text("fit.advice.both" if largest["lora"] else "fit.advice.qlora", **values)

    # Runs ---------------------------------------------------------------------------------------------------------

    def judge(self, recipe: Recipe) -> RunEstimate:
        """Return what a run of `recipe` will need, at once; its `checks` are those of the last examine(), if any."""
        return self._estimates.judge(recipe)

    def examine(self, recipe: Recipe, *, fresh: bool = False) -> RunEstimate:
        """Return judge() with all problems found, which reads the data's head: up to seconds."""
        return self._estimates.examine(recipe, fresh=fresh)

    # Inside -------------------------------------------------------------------------------------------------------

    def _read(self, place: ModelPlace) -> FoundModel:
        stamp = read_stamp(place.path)
        with self._lock:
            known = self._known.get(place)
        if known is None or known[0] != stamp:
            known = (stamp, _inspect(place))
            with self._lock:
                self._known[place] = known
        return self._judge_found(known[1])

    def _describe_pick(self, pick: Pick) -> FoundModel:
        return self._judge_found(
            FoundModel(
                source=pick.source,
                name=pick.source,
                origin="pick",
                facts=pick.facts,
                weight_bytes=pick.stored_bytes,
                licence=pick.licence,
            )
        )

    def _take(self, model: HubModel) -> FoundModel:
        """Keep what the hub said of a model, for find()."""
        found = self._judge_found(_describe_hub(model))
        with self._lock:
            self._outlines[model.source] = found
        return found

    def _judge_found(self, model: FoundModel) -> FoundModel:
        if model.facts is None or not model.trainable:
            return model
        return dataclasses.replace(model, fit=self._judge(model.facts))

    def _judge(self, facts: ModelFacts) -> ModelFit:
        machine = self._look_at_machine()
        key = (facts.source, f"{facts.folder} {facts.parameters} {facts.weight_bytes} {facts.quantization}")
        fit = self._judged.get(key)
        if fit is None:
            fit = self._judged[key] = judge_model(machine, facts)
        return fit

    def _look_at_machine(self) -> MachineFacts:
        """Return the machine; when it was examined anew, earlier judgements no longer count."""
        machine = self._health.facts()
        if machine is not self._machine:
            self._machine, self._judged = machine, {}
        return machine

    def _gpu(self) -> Gpu | None:
        return choose_device(self._look_at_machine(), judged_recipe("none"))[1]


def _inspect(place: ModelPlace) -> FoundModel:
    """Return what lies at `place`, not judged yet; a refusal is its problem."""
    found = FoundModel(source=place.source, name=place.name, origin=place.origin, problem=place.problem)
    if place.problem is not None:
        return found
    try:
        facts = inspect_model(str(place.path) if place.origin in ("folder", "modelscope") else place.source)
    except StudioError as error:
        problem = text("sentence.two", first=error.what, second=error.why)
        return dataclasses.replace(found, problem=problem)
    except OSError as error:  # a folder that may not be read
        return dataclasses.replace(found, problem=literal(error.strerror or type(error).__name__))
    return dataclasses.replace(_describe(facts, place.origin), source=place.source, name=place.name)


def _describe(facts: ModelFacts, origin: str) -> FoundModel:
    return FoundModel(
        source=facts.source,
        name=facts.name,
        origin=origin,
        facts=facts,
        weight_bytes=facts.weight_bytes,
        licence=read_licence(Path(facts.folder)) if facts.folder else "",
        problem=_problem_of(facts),
    )


def _problem_of(facts: ModelFacts) -> Text | None:
    if facts.trainable.ok:
        return None
    return facts.trainable.reason or text("ui.model.not_trainable")


def _describe_hub(model: HubModel) -> FoundModel:
    """Return what the hub says as a FoundModel; a config that makes no sense counts as none."""
    facts, problem = None, None
    try:
        if model.config:
            facts = outline_model(
                model.source, model.config, parameters=model.parameters, weight_bytes=model.weight_bytes
            )
            problem = _problem_of(facts)
    except (ValueError, TypeError, AttributeError, OverflowError, KeyError):
        facts = None
    if not model.safetensors:
        problem = text("fit.no_safetensors")
    return FoundModel(
        source=model.source,
        name=model.source,
        origin="hub",
        facts=facts,
        weight_bytes=model.weight_bytes or (facts.weight_bytes if facts else 0),
        licence=model.licence,
        problem=problem,
        hub=dataclasses.replace(model, config={}),
    )


def read_licence(folder: Path) -> str:
    """Return the licence that a model's card names in its head, "" without one."""
    try:
        head = (folder / "README.md").read_text(encoding="utf-8", errors="replace")[:4000]
    except OSError:
        return ""
    parts = head.split("---")
    lines = parts[1].splitlines() if len(parts) > 2 else []
    named = (line.removeprefix("license:") for line in lines if line.startswith("license:"))
    return next(named, "").strip().strip("'\"")[:60]
