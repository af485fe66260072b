"""A whole workspace of a studio of version-1 recipes (22 November) opens: runs, draft, queue, settings and talks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from studio.machine.settings import read_settings
from studio.services.desk import Desk
from studio.ui.context import Context

STORED = Path(__file__).parent / "stored_workspace"
RUN = "stopped-one-a96e"


@pytest.fixture
def old(workspace, keys):
    """A window's context on a copy of it."""
    shutil.copytree(STORED, workspace.root, dirs_exist_ok=True)
    desk = Desk(workspace)
    yield Context(desk, workspace, keys, "en")
    desk.close()


def test_its_run_is_listed_shown_and_can_be_repeated(old):
    (entry,) = old.desk.library.entries()
    assert (entry.record.run, entry.record.state, entry.record.steps) == (RUN, "stopped", 2)
    view = old.view(RUN)
    assert (view.state, view.step, view.total_steps) == ("stopped", 2, 60)
    recipe = old.desk.runs.recipe(RUN)
    # micro_batch 4 times accumulation 2, packing, limits.save_every
    assert (recipe.optim.batch_size, recipe.data.fill, recipe.run.save_every) == (8, True, 5)
    assert (recipe.adapter.rank, recipe.data.max_length) == (8, 256)


def test_its_draft_is_in_the_form_with_what_was_half_typed(old):
    draft = old.draft()
    assert (draft.name, draft.optim.batch_size, draft.data.fill) == ("my draft", 15, True)
    assert (draft.optim.learning_rate, draft.run.trial) == (3e-4, False)
    assert old.typed() == {"optim.epochs": "1e-"}


def test_its_queue_waits_as_it_did(old):
    queue = old.desk.queue
    (item,) = queue.items()
    assert (item.name, item.state, queue.held) == ("waits", "waiting", True)
    assert (item.recipe.optim.batch_size, item.recipe.optim.max_steps, item.recipe.data.fill) == (4, 5, True)


def test_its_settings_and_talks_are_kept(old):
    settings = read_settings(old.workspace)
    assert (settings["theme"], settings["kernels"], settings["memory_share"]) == ("dark", "off", 0.8)
    assert settings["model_folders"] == ["/srv/models"]
    talk = old.desk.chat.files.read(RUN)
    assert talk["system"] == "Be brief."
    assert [turn["role"] for turn in talk["tuned"]] == ["user", "assistant"]
    assert talk["tuned"][1]["tokens_per_s"] == 20.0
