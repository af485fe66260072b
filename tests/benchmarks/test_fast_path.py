"""The table of what the decoder takes over is what it takes over now."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.fast_path import CURRENT, list_popular, try_decoder
from benchmarks.tiny_models import list_families

TABLE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "fast_path_cpu.csv"
UNBUILT = {"Gemma 3n": "gemma3n_text"}
"""Its class wants a library that the studio does not install: there its language model goes for it."""


def read_table() -> dict[str, dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["name"]: row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(1, CURRENT + 1))
def test_each_of_todays_kinds_goes_the_way_that_the_table_says(rank):
    family = list_popular(CURRENT)[rank - 1]
    row = read_table()[family.name]
    if family.name in UNBUILT and find_spec("timm") is None:
        family = next(one for one in list_families() if one.name == UNBUILT[family.name])
    found = try_decoder(family)
    assert ("yes" if found.fast else "no") == row["fast"], found.reason
    assert ", ".join(found.mixers) == row["own modules"]


def test_the_readme_tells_the_tables_count():
    rows = [row for row in read_table().values() if int(row["rank"]) <= CURRENT]
    fast = sum(row["fast"] == "yes" for row in rows)
    readme = (TABLE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"**{fast} of the {CURRENT}** kinds" in readme
