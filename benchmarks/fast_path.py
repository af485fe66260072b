#!/usr/bin/env python3
"""Which of the kinds that people fine-tune most the studio's own decoder takes over, and why not the others.

    python benchmarks/fast_path.py [--first 32] [--out benchmarks/results/fast_path_cpu.csv]

Each is a tiny random model (tiny_models.py) in fp32 with LoRA on all linears, as the studio attaches it. The decoder
reads its structure and is held against the model's own code, layer by layer, forward and backward; only then, and where
the planner chooses it for such a model, it counts.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

from tiny_models import Family, build_model, list_families, make_tiny  # noqa: E402

CURRENT = 32
"""The first so many of the popular kinds are those of today."""
TEXTS = [[5 + (7 * place + 31 * text) % 240 for place in range(96)] for text in range(3)]
"""Token ids of words alone: models that read pictures take others for places of theirs."""
COLUMNS = ("rank", "name", "class", "fast", "own modules", "reason")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the decoder computes a model as its own code does."""

    fast: bool
    mixers: tuple[str, ...]
    """The classes of the model's own modules that it leaves in their place."""
    reason: str
    """Why the decoder does not take it; "" where it does."""


def try_decoder(family: Family) -> Outcome:
    """Build the tiny model of `family` and let the decoder take it over."""
    import torch
    from studio_kernels.dispatch import bind

    from studio.core.i18n import Text, load_catalogue
    from studio.core.recipe import AdapterSpec
    from studio.models.adapt import adapt, unwrap
    from studio.models.decoder.decoder import take_over
    from studio.models.decoder.parity_check import find_difference
    from studio.models.load import set_evaluation

    say = load_catalogue("en").say
    torch.manual_seed(0)
    model = make_tiny(family).float()
    model.config.use_cache = model.config.get_text_config().use_cache = False
    model = adapt(model, AdapterSpec(rank=4))
    set_evaluation(model)
    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32)
    if isinstance(decoder, Text):
        return Outcome(False, (), say(decoder))
    mixers = tuple(dict.fromkeys(type(mixer.module).__name__ for mixer in decoder.spec.mixers))
    wrong = find_difference(unwrap(model), decoder, None, TEXTS) or ask_planner(family)
    return Outcome(wrong is None, mixers, "" if wrong is None else say(wrong))


def ask_planner(family: Family):  # noqa: ANN201
    """Return why the planner leaves the model of `family` to its own code, None where it chooses the decoder."""
    from benchmarks.draft import draft_run
    from studio.models.catalog import inspect_model
    from studio.planning.decoder_shape import explain_stock

    with tempfile.TemporaryDirectory() as folder:
        build_model(family, Path(folder))
        facts = inspect_model(folder)
    plan, recipe = draft_run(facts, bits=16, batch=1, tokens=96, device="cpu", dtype="fp32")
    return explain_stock(plan, facts, recipe)


def list_popular(first: int) -> list[Family]:
    """Return the `first` popular kinds."""
    return [one for one in list_families() if 0 < one.rank <= first]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=CURRENT, help="how many kinds, the most used first")
    parser.add_argument("--out", type=Path, default=None, help="a CSV file")
    options = parser.parse_args()
    rows = []
    for family in list_popular(options.first):
        try:
            found = try_decoder(family)
        except Exception as error:  # noqa: BLE001  the table goes on and says so
            found = Outcome(False, (), f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
        mixers = ", ".join(found.mixers)
        values = (
            family.rank,
            family.name,
            family.architecture,
            "yes" if found.fast else "no",
            mixers,
            found.reason,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
        print(f"{family.rank:>3} {family.name:<26} {rows[-1]['fast']:<4}{mixers} {found.reason}", flush=True)
    print(f"{sum(row['fast'] == 'yes' for row in rows)} of {len(rows)}")
    if options.out:
        write_rows(options.out, rows)
    return 0


def write_rows(path: Path, rows: list[dict]) -> None:
    """Write the table with versions, date and command above it."""
    from importlib.metadata import version

    words = " ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    command = f"python benchmarks/fast_path.py --first {len(rows)} --out benchmarks/results/{path.name}"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {words}; {time.strftime('%Y-%m-%d')}; {command}\n")
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
