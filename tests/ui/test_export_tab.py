"""The Export screen without an engine: forms with their sizes, progress, the result, the list, who opens folders."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.engine.exporters.gguf_file import GGUFS
from studio.hub.access_token import NO_MIRROR
from studio.services.exports import TARGETS, Estimate, ExportItem, KeptExport, describe
from studio.services.hub_uploads import Uploads
from studio.ui.context import ASKING
from studio.ui.tabs.export.cards import items_card, result_card, target_cards, working_card
from studio.ui.tabs.export.tab import ExportTab
from tests.ui.sheet import Sheet
from tests.ui.test_chat_tab import HOSTILE, FakeTalks, Reader


def make_item(name: str = "done-adapter", target: str = "adapter", **changes) -> ExportItem:
    """An export as the desk lists it."""
    settings = {"base": "org/model", "files": ("README.md", "adapter_model.safetensors")} | changes
    return ExportItem(
        name, Path("/exports") / name, "done", target, size_bytes=2048, written_s=0.0, **settings
    )


@dataclass
class FakeExports:
    """Answers like studio.services.exports.Exports."""

    job: object = None
    job_target: str = ""
    written: list[ExportItem] = field(default_factory=list)
    did: list[tuple[str, str]] = field(default_factory=list)
    kept: list[KeptExport] = field(default_factory=list)

    def estimate(self, run: str, target: str, place: str = "") -> Estimate:
        if run == "gone":
            raise StudioError(
                text("run.no_result", run="<b>"), text("run.no_result.why"), text("run.no_result.fix")
            )
        problem = text("export.estimate.memory") if target == "merged" else None
        takes = {"size_bytes": 2**20, "disk_bytes": 2**30, "memory_bytes": 2**31, "free_bytes": 2**29}
        return describe(target, problem=problem, **takes)

    def start(self, run: str, target: str, place: str = ""):
        self.did.append(("start", "-".join(filter(None, (run, place, target)))))
        self.job_target = f"{run}-{target}"
        looks = iter((False, False, False))
        self.job = Job(looks)
        self.written.append(make_item(self.job_target, target))
        return self.job

    def written_bytes(self) -> int:
        return 512

    def items(self) -> tuple[ExportItem, ...]:
        return tuple(self.written)

    def list_kept(self) -> tuple[KeptExport, ...]:
        return tuple(self.kept)

    def discard(self, name: str) -> int:
        self.did.append(("discard", name))
        self.kept = []
        return 4096

    def find(self, name: str) -> ExportItem:
        return next(item for item in self.written if item.name == name)

    def delete(self, name: str) -> int:
        self.did.append(("delete", name))
        self.written = [item for item in self.written if item.name != name]
        return 2048

    def open_folder(self, name: str) -> None:
        self.did.append(("open", name))


class Job:
    """One that ends after a few looks."""

    def __init__(self, looks, error: BaseException | None = None) -> None:
        self.looks, self.error, self.stopping = looks, error, False
        self.phase, self.done, self.total = text("export.phase.write"), 0, 1024

    @property
    def ended(self) -> bool:
        return next(self.looks, True)

    def stop(self) -> None:
        self.stopping = True


@pytest.fixture
def tab(context, monkeypatch):
    """The tab over a desk with two finished runs."""
    monkeypatch.setattr("studio.ui.tabs.export.tab.LOOK_EVERY_S", 0)
    context.desk.log = {"older": [], "broken": [], "half": [], "done": []}
    context.desk.chat = FakeTalks(context.desk)
    context.desk.exports = FakeExports()
    context.desk.uploads = Uploads(context.desk.exports, context.desk, lambda: NO_MIRROR)
    context.desk.sharing = SimpleNamespace(
        view=lambda: SimpleNamespace(connections=(SimpleNamespace(id="outside"),))
    )
    with Sheet(), gr.Tab("export") as page:
        made = ExportTab(context)
        made.bind(page)
    return made


def said(do: str, value: str = "") -> dict:
    """What a button in a card says."""
    return {"do": do, "value": value, "form": {}}


def test_entering_takes_the_run_of_the_address_once(context, tab):
    runs, targets, items, seen = tab.enter(None, "", False)
    assert runs["value"] == "done" and seen and "Nothing was exported" in items
    assert "1.0 MiB of 1.0 GiB free" in targets and "2.0 GiB of 512.0 MiB free" in targets
    assert tab.enter(None, "older", False)[0]["value"] == "older"
    assert tab.enter("done", "older", True)[0]["value"] == "done"
    assert tab.enter("done", "!older", True)[0]["value"] == "older"
    buttons = {one.get("id"): "disabled" in one for name, one in Reader(targets).tags if name == "button"}
    packed = {f"export-start-{one.name}": False for one in GGUFS}
    packed |= {
        f"export-start-{one}": False for one in ("ollama", "adapter_gguf", "script", "fp8", "w4a16", "mlx")
    }
    assert buttons == {"export-start": False, "export-start-merged": True} | packed, (
        "merged has too little memory"
    )
    context.desk.log = {}
    runs, targets, *_ = tab.enter(None, "", False)
    assert (
        runs["value"] is None
        and "No run has a result" in targets
        and targets.count("disabled") == len(TARGETS)
    )


def test_a_checkpoint_is_exported_like_a_result(context, tab):
    names = tab.enter(None, "", False)[0]["choices"]
    states = [state for _, state in names]
    assert "done" in states and "done@step-00000006" in states and "half@step-00000003" in states
    assert not any(state.startswith("broken") for state in states)
    assert "step 3" in dict((state, name) for name, state in names)["half@step-00000003"].casefold()
    assert tab.enter(None, "!half", True)[0]["value"] == "half@step-00000003", "a stopped run's newest"
    list(tab.hear(said("export", "adapter"), "half@step-00000003"))
    assert context.desk.exports.did == [("start", "half-step-00000003-adapter")]


def test_an_export_shows_its_progress_and_what_it_wrote(context, tab):
    shown = list(tab.hear(said("export", "adapter"), "done"))
    assert context.desk.exports.did == [("start", "done-adapter")]
    assert any("512 B of about 1.0 KiB" in str(one[1]) for one in shown)
    targets, result, items = shown[-1]
    assert (
        "/exports/done-adapter" in result and "it gives the same results" in result and "PeftModel" in result
    )
    assert "2.0 KiB" in items and 'data-do="delete"' in items and "org/model" in result
    again = list(tab.watch("done"))
    assert again[-1][1] == result, "a page that comes back sees it again"
    with pytest.raises(StudioError):
        next(tab.hear(said("export", "adapter"), None))


def test_stop_failure_and_deletion(context, tab):
    exports = context.desk.exports
    assert list(tab.watch("done")) == [[gr.skip()] * 3]
    exports.job, exports.job_target = Job(iter(())), "done-adapter"
    assert list(tab.hear(said("stop"), "done")) == [[gr.skip()] * 3] and exports.job.stopping
    ended = type("ExportStopped", (Exception,), {})()
    exports.job = Job(iter(()), ended)
    assert "Nothing was kept" in list(tab.watch("done"))[-1][1]
    exports.job = Job(iter(()), RuntimeError("<b>boom"))
    assert "&lt;b&gt;boom" in list(tab.watch("done"))[-1][1]
    exports.job, exports.written = Job(iter(())), [make_item()]
    ((targets, result, items),) = tab.hear(said("delete", "done-adapter"), "done")
    assert exports.did == [("delete", "done-adapter")] and result == "" and "Nothing was exported" in items


def test_what_was_stopped_is_gone_on_with_or_dropped(context, tab):
    exports = context.desk.exports
    left = KeptExport(
        "half-step-00000003-ollama", "half", "step-00000003", "ollama", 3072, Path("/exports/x")
    )
    exports.kept = [left]
    exports.job, exports.job_target = Job(iter(()), type("ExportStopped", (Exception,), {})()), left.name
    _, result, items = list(tab.watch("done"))[-1]
    assert "is kept" in result and "3.0 KiB" in items and f'data-value="{left.name}"' in items
    list(tab.hear(said("go_on", left.name), "done"))
    assert exports.did == [("start", "half-step-00000003-ollama")]
    with pytest.raises(StudioError):
        next(tab.hear(said("go_on", "../x"), "done"))
    list(tab.hear(said("discard", left.name), "done"))
    assert exports.did[-1] == ("discard", left.name)


def test_only_a_page_of_this_machine_opens_folders(context, tab):
    exports = context.desk.exports
    exports.written = [make_item()]
    for asking, local in (
        (("owner", "here"), True),
        (("owner", "outside"), False),
        (("viewer", "outside"), False),
    ):
        token = ASKING.set(asking)
        try:
            exports.did.clear()
            list(tab.hear(said("open", "done-adapter"), "done"))
            assert (exports.did == [("open", "done-adapter")]) is local
            assert ('data-do="open"' in tab.enter("done", "", True)[2]) is local
        finally:
            ASKING.reset(token)


def test_exports_wait_for_a_run_and_say_what_is_gone(context, tab):
    context.desk.active = "done"
    targets = tab.show_targets("done")
    assert "A run is training" in targets and targets.count("disabled") == len(TARGETS)
    context.desk.active = None
    targets = tab.show_targets("gone")
    assert "&lt;b&gt;" in targets and targets.count("disabled") == len(TARGETS)


def test_what_goes_to_the_hub_is_private_and_of_a_known_form(context, tab):
    hub = tab.hub
    card = hub.show("done")
    assert 'value="done"' in card and card.index("Private: only you") < card.index("Public: everybody")
    assert "selected" not in card.split('id="hub-who"')[1].split("</select>")[0], "the first: private"
    chosen = card.split('id="hub-form"')[1].split("</select>")[0]
    assert 'value="adapter" selected' in chosen and "script" not in chosen and "ollama" not in chosen
    wishes = (
        ({"repo": "", "form": "adapter"}, "ui.hub.no_name"),
        ({"repo": "../etc", "form": "adapter"}, "upload.name"),
        ({"repo": "mine", "form": "script"}, "export.unknown"),
        ({"repo": "mine", "form": "adapter", "licence": "my <b>own"}, "upload.licence"),
    )
    for form, refused in wishes:
        with pytest.raises(StudioError) as error:
            next(hub.hear({"do": "hub_look", "value": "", "form": form}, "done"))
        assert error.value.what.id == refused
    assert context.desk.uploads.job is None and not context.desk.exports.did
    assert list(hub.hear(said("export", "adapter"), "done")) == [gr.skip()], "another card's button"


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_come_through_no_card(words, context):
    say = context.say
    item = make_item(words.replace("/", "_"), base=words, files=(words,))
    for html in (
        result_card(item, say, local=True),
        items_card([item], say, local=True),
        working_card(words, 1, 2, say, stopping=False),
        target_cards([Estimate("adapter", 1, 1, 1, 1, None)], say, busy=False, waits=words),
    ):
        for tag, attributes in Reader(html).tags:
            assert tag not in ("img", "script", "a", "iframe", "svg", "form", "style", "input")
            assert not [
                name for name in attributes if name.startswith("on") or name in ("href", "src", "autofocus")
            ]
