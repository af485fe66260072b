"""Prepares the rows of a run in a process of its own: `rows_child.py RECIPE CACHE PARENT`, run by services/preload.py.

RECIPE is the recipe's JSON, CACHE the folder that keeps the rows. It ends with the process PARENT.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil

LOOK_S = 1.0


def main(words: str, cache: str, parent: str) -> None:
    """Prepare the rows; whatever is wrong with model or data ends this process, and meets the run."""
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    from studio.core.codec import from_json
    from studio.core.json_file import parse_json
    from studio.core.recipe import Recipe
    from studio.engine.rows import prepare_rows
    from studio.models.catalog import inspect_model

    recipe = from_json(Recipe, parse_json(words))
    facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
    prepare_rows(recipe, facts, Path(cache))


def _end_with(parent: int) -> None:
    while psutil.pid_exists(parent):
        time.sleep(LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
