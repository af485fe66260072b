"""What is sent is what was shown: exported first, looked at, stopped, gone on with; nothing anew that is there."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.core.run_record import RunRecord
from studio.hub.access_token import NO_MIRROR
from studio.hub.child import DownloadStopped
from studio.services.exports import ExportItem
from studio.services.hub_uploads import Sent, Uploads, UploadWish
from tests.hub.hub_server import TOKEN, open_hub

WISH = UploadWish(run="r", form="adapter", repo="tuned", licence="mit")
SIZE = 3_000_000
RECIPE = Recipe(model=ModelChoice(source="org/base"), data=DatasetSpec(source="rows.jsonl"))


@pytest.fixture
def hub(monkeypatch):
    found = open_hub(monkeypatch)
    yield found
    found.close()


@pytest.fixture
def uploads(tmp_path):
    """Over one export that is there, of a run that ended before it."""
    folder = tmp_path / "r-adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 4}', encoding="utf-8")
    (folder / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(SIZE))
    item = ExportItem(folder.name, folder, "r", "adapter", "", SIZE, time.time(), ())
    record = RunRecord(run="r", name="My run!", state="finished", created_s=0, ended_s=1.0, base="org/base")
    runs = SimpleNamespace(
        read=lambda run: record, recipe=lambda run: RECIPE, events=lambda run: (), record=record
    )
    made = Uploads(SimpleNamespace(items=lambda: (item,)), runs, lambda: NO_MIRROR)
    made.folder = folder
    yield made
    made.close()


def test_it_is_shown_sent_and_not_sent_twice(hub, uploads):
    shown = uploads.look(WISH).result(60)
    names = [one.name for one in shown.files]
    assert names == ["README.md", "adapter_config.json", "adapter_model.safetensors"] and shown.has_token
    assert shown.size_bytes == len(shown.card.encode()) + 8 + SIZE + 10 and "license: mit" in shown.card
    assert not hub.sent and TOKEN not in repr(shown)
    told = []
    job = uploads.send(shown)
    with pytest.raises(StudioError):
        uploads.look(WISH)
    while not job.ended:
        told.append((job.done, job.total))
        time.sleep(0.01)
    sent = job.result()
    assert isinstance(sent, Sent) and sent.account == "me" and hub.repos["me/tuned"]["private"]
    assert job.done == job.total == shown.size_bytes and any(total for _, total in told)
    hub.sent.clear()
    assert uploads.send(shown).result(60).url == sent.url and not hub.uploads()


def test_what_was_stopped_goes_on(hub, uploads):
    shown = uploads.look(WISH).result(60)
    hub.wait_s = 60.0
    job = uploads.send(shown)
    until = time.monotonic() + 60
    while not hub.waiting:
        assert time.monotonic() < until
        time.sleep(0.05)
    job.stop()
    with pytest.raises(DownloadStopped):
        job.result(60)
    hub.wait_s = 0.0
    assert "adapter_config.json" in hub.repos["me/tuned"]["files"]
    hub.sent.clear()
    assert uploads.go_on().result(60).account == "me"
    assert hub.uploads() == 1 and "adapter_model.safetensors" in hub.repos["me/tuned"]["files"]


def test_other_files_than_were_shown_are_not_sent(hub, uploads):
    shown = uploads.look(WISH).result(60)
    (uploads.folder / "adapter_config.json").write_text('{"r": 16}', encoding="utf-8")
    with pytest.raises(StudioError) as refused:
        uploads.send(shown).result(60)
    assert refused.value.what.id == "upload.changed" and not hub.sent
    assert uploads.go_on().result(60).files != shown.files, "it is looked at again"


def test_an_export_older_than_the_result_is_not_the_one(uploads):
    assert uploads.find(WISH) == uploads.folder
    uploads._runs.read = lambda run: RunRecord(
        run="r", name="r", state="finished", created_s=0, ended_s=time.time() + 9
    )
    assert uploads.find(WISH) is None


def test_offline_nothing_is_sent(hub, uploads, monkeypatch):
    shown = uploads.look(WISH).result(60)
    monkeypatch.setenv("FINETUNE_STUDIO_OFFLINE", "1")
    with pytest.raises(StudioError) as refused:
        uploads.send(shown).result(60)
    assert refused.value.what.id == "upload.offline" and not hub.sent
