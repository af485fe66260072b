"""What a run needs later, begun while recipe and machine are looked at: its libraries and its model's files."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType

import psutil

from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.recipe import Recipe
from studio.data.remote import is_remote
from studio.engine.base_hash import hash_base, is_kept
from studio.machine.detect import look_around
from studio.machine.probes.child import run_child
from studio.machine.workspace import Workspace
from studio.models.catalog import inspect_model, list_weights
from studio.planning.learned_limits import Remembered
from studio.services.machine_state import MachineState
from studio.services.recipe_problems import find_problems

UNUSED = ("sklearn", "kernels")
"""What transformers imports where it finds it and no run needs: scikit-learn, with SciPy, for a way to generate (1.9 s
of 17 on an H100's machine); kernels, which fetches compiled code from the hub, and whose name our own folder has."""
KEPT_S = 0.5
"""A machine that was looked at before is known after 0.1 s."""
LONGEST_S = 24 * 3600.0
RAM_SHARE = 0.5
"""Of the free memory: a model that is larger would push its own first pages out again."""


def load_ahead(health: MachineState, module: str) -> threading.Thread:
    """Import `module` of ours, and with it torch and transformers (5 to 10 s), in a thread; returns the thread.

    Not before it is known that this neither hangs nor crashes: the probes of a first start tell after 3 s and then test
    kernels for ten more, the kept facts of a later one at once. Where it is not so, who needs the module says why.
    """

    def work() -> None:
        if health.wait_importable():
            # The same error meets who needs it, and is told there.
            with suppress(ImportError, OSError, RuntimeError, AttributeError):
                import_libraries(module)

    thread = threading.Thread(target=work, name="libraries", daemon=True)
    thread.start()
    return thread


def import_libraries(module: str) -> ModuleType:
    """Return `module` of ours, imported with all that a run needs as fast as that goes."""
    hide_unused()
    with without_collections():
        return importlib.import_module(module)


def hide_unused() -> None:
    """Keep the run's libraries from UNUSED, as if they were not installed; only for this process, before any import."""
    for name in UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # import then raises ModuleNotFoundError


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage for a block: 17 % of the imports' time (4.1 s, 3.4 without)."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def prepare_ahead(
    libraries: threading.Thread, health: MachineState, recipe: Recipe, ready: Callable[[], None]
) -> threading.Thread:
    """Prepare the recipe's rows while the probes of a first start still look at the machine; returns the thread.

    A process of its own does it, beside the one that imports the run's libraries: 24 s passed on an H200 before a run
    of 4,000 conversations when rows waited for those. The rows lie in the workspace's cache then, where the run finds
    them, or waits for them. Nothing is fetched: only a model and data on this disk are prepared ahead, and only for a
    recipe that is not refused, as far as that can be told without the probes: such a one leaves nothing. `libraries`:
    what load_ahead returned. `ready` is called when both are done, whatever came of it: from then on the run waits for
    the probes alone.
    """

    def work() -> None:
        # Whatever is wrong with the model or the data meets the run, too, and is told there.
        with ExitStack() as ends, suppress(Exception):
            ends.callback(ready)
            ends.callback(libraries.join)
            if health.is_known(within_s=KEPT_S):
                return
            facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
            sources = (recipe.data.source, recipe.data.validation, *recipe.data.mix)
            if (
                facts.folder
                and not any(map(is_remote, sources))
                and not _is_refused(recipe, health.workspace)
            ):
                given = json.dumps(to_json(recipe)), str(health.workspace.data_cache), str(os.getpid())
                run_child("studio.engine.rows_child", given, timeout_s=LONGEST_S, environment=os.environ)

    thread = threading.Thread(target=work, name="rows", daemon=True)
    thread.start()
    return thread


def _is_refused(recipe: Recipe, workspace: Workspace) -> bool:
    machine, free_bytes = look_around(os.environ, workspace.root), shutil.disk_usage(workspace.root).free
    problems = find_problems(recipe, machine, free_bytes, workspace.data_cache)
    return any(problem.severity == "error" for problem in problems)


def read_files_ahead(workspace: Workspace, recipe: Recipe) -> threading.Thread:
    """Let the system read the files of a model that is on this disk into its cache; returns the thread that does.

    Hash them, too, where the hash is not kept, but for a recipe that is refused: such a one leaves nothing.
    """

    def work() -> None:
        with suppress(StudioError, OSError):
            facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
            if not facts.folder or facts.weight_bytes > RAM_SHARE * psutil.virtual_memory().available:
                return
            if hasattr(os, "posix_fadvise"):
                for path in list_weights(Path(facts.folder)):
                    with path.open("rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            remembered = Remembered(workspace.remembered)
            if not is_kept(facts.folder, remembered) and not _is_refused(recipe, workspace):
                hash_base(facts.folder, remembered)

    thread = threading.Thread(target=work, name="files", daemon=True)
    thread.start()
    return thread
