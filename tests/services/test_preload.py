"""What is begun ahead: libraries only where they are known to be harmless, files where they fit."""

import os
import subprocess
import sys
import threading

import pytest

from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.engine.base_hash import stamp_weights
from studio.models.file_hashes import hash_weights
from studio.planning.learned_limits import Remembered
from studio.services import machine_state as health
from studio.services.machine_state import MachineState
from studio.services.preload import UNUSED, load_ahead, prepare_ahead, read_files_ahead
from tests.machine.facts import make_gpu, make_machine

MODULE = "ahead_of_time"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module that is not imported yet."""
    (tmp_path / f"{MODULE}.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield MODULE
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("known", [True, False])
def test_a_library_is_imported_where_that_is_known_to_be_harmless(workspace, monkeypatch, library, known):
    def detect(*, importable, **_):
        importable(known)
        return make_machine(make_gpu())

    monkeypatch.setattr(health, "detect", detect)
    desk_health = MachineState(workspace)
    load_ahead(desk_health, library).join(20)
    assert (library in sys.modules) is known
    desk_health.close()


def test_probes_that_break_off_hold_nobody(workspace, monkeypatch, library):
    monkeypatch.setattr(health, "detect", lambda **_: 1 / 0)
    desk_health = MachineState(workspace)
    load_ahead(desk_health, library).join(20)
    assert library not in sys.modules and not desk_health.wait_importable()
    desk_health.close()


def test_a_library_that_fails_is_left_to_who_needs_it(workspace, monkeypatch, library, tmp_path):
    (tmp_path / f"{library}.py").write_text("raise OSError('DLL load failed')", encoding="utf-8")
    monkeypatch.setattr(health, "detect", lambda *, importable, **_: importable(True))
    desk_health = MachineState(workspace)
    thread = load_ahead(desk_health, library)
    thread.join(20)
    assert not thread.is_alive() and library not in sys.modules
    desk_health.close()


def test_a_model_that_is_not_there_is_no_failure(workspace, tmp_path, recipe):
    for source in (str(tmp_path), "nobody/nothing"):
        thread = read_files_ahead(workspace, change_recipe(recipe, {"model.source": source}))
        thread.join(20)
        assert not thread.is_alive()
    assert Remembered(workspace.remembered).read().bases == ()


def test_a_models_files_are_hashed_for_the_run_unless_it_is_refused(workspace, recipe):
    folder = recipe.model.source
    refused = change_recipe(recipe, {"data.source": str(workspace.root / "nowhere.jsonl")})
    read_files_ahead(workspace, refused).join(20)
    assert not workspace.remembered.exists()
    read_files_ahead(workspace, recipe).join(20)
    assert dict(Remembered(workspace.remembered).read().bases) == {
        stamp_weights(folder): hash_weights(folder)
    }


@pytest.mark.computing
def test_imports_are_spared_collections_and_what_no_run_uses(tmp_path):
    """In a process of its own, as hiding is for good."""
    for name in UNUSED:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    words = (
        "import gc, importlib.util\n"
        "from studio.services.preload import UNUSED, hide_unused, without_collections\n"
        "hide_unused()\n"
        "with without_collections():\n"
        "    assert not gc.isenabled()\n"
        "assert gc.isenabled()\n"
        "assert not any(map(importlib.util.find_spec, UNUSED))\n"
        "from transformers.utils import is_sklearn_available\n"
        "assert not is_sklearn_available()\n"
    )
    path = os.pathsep.join((str(tmp_path), *sys.path))
    done = subprocess.run([sys.executable, "-c", words], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 0


@pytest.fixture
def recipe(tiny_models, chat_file) -> Recipe:
    """LoRA on tiny Llama, 24 conversations."""
    return Recipe(
        model=ModelChoice(source=str(tiny_models("llama"))),
        data=DatasetSpec(source=str(chat_file), max_length=64),
    )


@pytest.mark.computing
@pytest.mark.parametrize("first", [True, False], ids=["a first start", "a later start"])
def test_rows_are_prepared_while_the_machine_is_looked_at(workspace, monkeypatch, recipe, first):
    """The run finds them: nothing is converted or cut again."""
    from studio.data import convert, tokens
    from studio.engine.rows import prepare_rows
    from studio.models.catalog import inspect_model

    made, looking = [], threading.Event()
    for module, name in ((convert, "_convert_all"), (tokens, "_tokenise_all")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, real=real, **k: made.append(real.__name__) or real(*a, **k)
        )

    def detect(*, importable, **_):
        importable(True)
        looking.wait(60 if first else 0)
        return make_machine(make_gpu())

    monkeypatch.setattr(health, "detect", detect)
    desk_health = MachineState(workspace)
    if not first:
        desk_health.facts()
    libraries = load_ahead(desk_health, "studio.engine.run")
    ready = threading.Event()
    thread = prepare_ahead(libraries, desk_health, recipe, ready.set)
    thread.join(60)
    assert not thread.is_alive() and ready.is_set() and not made
    looking.set()
    prepare_rows(recipe, inspect_model(recipe.model.source), workspace.data_cache)
    assert len(made) == (0 if first else 2)  # another process has made them
    desk_health.close()


@pytest.mark.computing
def test_what_cannot_be_prepared_is_left_to_the_run(workspace, monkeypatch, recipe, tmp_path, capfd):
    looking = threading.Event()
    monkeypatch.setattr(health, "detect", lambda *, importable, **_: importable(True) or looking.wait(60))
    desk_health = MachineState(workspace)
    libraries = load_ahead(desk_health, "studio.engine.run")
    for source in (str(tmp_path / "nothing.jsonl"), "somebody/their-data", "https://example.org/a.jsonl"):
        changed = change_recipe(recipe, {"data.source": source})
        ready = threading.Event()
        prepare_ahead(libraries, desk_health, changed, ready.set).join(60)
        assert ready.is_set()
    refused = change_recipe(recipe, {"optim.epochs": 0.0})  # and no steps: it would never end
    prepare_ahead(libraries, desk_health, refused, ready.set).join(60)
    looking.set()
    desk_health.close()
    assert not workspace.data_cache.exists() or not any(workspace.data_cache.iterdir())
    assert "Traceback" not in capfd.readouterr().err
