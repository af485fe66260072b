"""Imports files of other tools and trains one step by each recipe, on the demo's model and a handful of rows.

`python benchmarks/imported_recipes.py FOLDER [--out FILE] [--only WORD]`; FOLDER holds configs, commands, scripts and
notebooks, as deep as you like. Says a line a file: its tool, what became of its settings, and the loss of the step, or
why it was refused. Model, data and length are the stand-ins'; everything else is the file's own. While it reads, an
audit hook watches that no file is run: nothing but the file and what lies beside it is opened, no code is executed,
no process started, no address asked.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0:1] = [
    str(ROOT),
    str(ROOT / "kernels"),
]  # this folder has a kernels.py, which transformers would import

from studio.core.errors import RecipeError, StudioError  # noqa: E402
from studio.core.events import RunFailed, StepLogged  # noqa: E402
from studio.core.i18n import load_catalogue  # noqa: E402
from studio.core.recipe import LEARNS, Recipe, change_recipe  # noqa: E402
from studio.planning.recipe_check import check  # noqa: E402
from studio.services.other_tools.importer import import_file  # noqa: E402
from studio.services.other_tools.translation import FATES, ImportedRecipe  # noqa: E402

ROWS = 8
CHECKED = "the check refuses it"
FORBIDDEN = (
    "exec",
    "os.system",
    "subprocess.Popen",
    "socket.connect",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
)
"""Audit events of Python that reading a file must never cause."""
COLUMNS = ("file", "tool", "objective", "outcome", "loss", *FATES, "reason")
say = load_catalogue("en").say


class Watch:
    """Python's audit events of interest while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.on:
            return
        if event in FORBIDDEN and not (event == "exec" and _is_ours(arguments[0])):
            self.seen.append(f"{event} {arguments!r:.80}")


def _is_ours(code: object) -> bool:
    """Return whether a code object is a module of the studio, the library or Python, loaded late."""
    name = str(getattr(code, "co_filename", ""))
    return name.startswith(("<frozen", str(ROOT))) or "site-packages" in name or "lib/python" in name


def write_rows(folder: Path) -> dict[str, Path]:
    """Write a handful of rows of each format; return the files by the format's name."""
    asked = [f"What is {i} plus {i + 1}?" for i in range(ROWS)]
    rows = {
        "messages": [
            {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": f"It is {2 * i + 1}."}]}
            for i, one in enumerate(asked)
        ],
        "text": [{"text": f"Number {i} comes before number {i + 1}, and so on. " * 3} for i in range(ROWS)],
        "preference": [
            {"prompt": one, "chosen": f"It is {2 * i + 1}.", "rejected": "Who knows."} for i, one in enumerate(asked)
        ],
        "kto": [
            {"prompt": one, "completion": f"It is {2 * i + 1}.", "label": i % 2 == 0} for i, one in enumerate(asked)
        ],
    }  # fmt: skip
    files = {}
    for name, listed in rows.items():
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
    return files


def stand_in(made: ImportedRecipe, files: dict[str, Path]) -> Recipe:
    """Return the recipe with the demo's model and rows of what its objective learns from, for one step."""
    format = next((name for name, learns in LEARNS.items() if made.recipe.objective in learns), "messages")
    changes = {
        path: ""
        for path in ("model.adapter", "model.revision", "data.config", "data.split", "data.validation")
    }
    changes |= {
        "model.source": "demo",
        "data.source": str(files[format]),
        "data.format": "auto",
        "data.mix": {},
    }
    changes |= {
        "data.max_rows": 0,
        "data.max_length": min(512, made.recipe.data.max_length),
        "data.template": "",
    }
    changes |= {"data.validation_share": 0.0, "optim.max_steps": 1, "run.samples": 0, "run.trial": False}
    changes |= {
        "run.scored_rows": 0,
        "run.best_checkpoint": "auto",
        "run.early_stopping": 0,
        "run.device": "cpu",
    }
    return change_recipe(made.recipe, changes)


def train_step(recipe: Recipe, machine: object, runs: Path) -> tuple[str, str]:
    """Return (loss, reason why there is none) of one step by `recipe`."""
    from studio.engine.run import run
    from studio.engine.run_folder import create_run

    wrong = [problem for problem in check(recipe, machine, None, None) if problem.severity == "error"]
    if wrong:
        return "", f"{CHECKED}: {say(wrong[0].message)}"
    events: list[object] = []
    folder = create_run(runs, recipe)
    run(folder.read_recipe(), machine, folder, events.append, lambda: False)
    losses = [event.loss for event in events if isinstance(event, StepLogged)]
    failed = [event.diagnosis for event in events if isinstance(event, RunFailed)]
    why = f"{say(failed[0].what)} {say(failed[0].why)}" if failed else ""
    return (f"{losses[0]:.4f}" if losses and not failed else ""), why


def main() -> int:
    """Import and train each file; the exit code is 1 where one that was imported did not train, or was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    from studio.machine.detect import detect

    watch, machine, table = Watch(), detect(), []
    with tempfile.TemporaryDirectory() as kept:
        files = write_rows(Path(kept))
        for path in sorted(one for one in options.folder.rglob("*") if one.is_file()):
            name = path.relative_to(options.folder).as_posix()
            if options.only not in name or path.name == "dataset_info.json":
                continue
            row = dict.fromkeys(COLUMNS, "") | {"file": name}
            watch.on = True
            try:
                made = import_file(path)
            except RecipeError as error:
                row |= {"outcome": "refused", "reason": say(error.problems[0].message)}
            except StudioError as error:
                row |= {"outcome": "refused", "reason": f"{say(error.what)} {say(error.why)}"}
            else:
                watch.on = False
                loss, why = train_step(stand_in(made, files), machine, Path(kept) / "runs")
                fates = collections.Counter(line.fate for line in made.lines)
                row |= {"tool": made.tool, "objective": made.recipe.objective, "loss": loss, "reason": why}
                told = "trained" if loss else "refused" if why.startswith(CHECKED) else "failed"
                row |= {"outcome": told} | {fate: fates[fate] for fate in FATES}
            watch.on = False
            table.append(row)
            print(
                "  ".join(
                    str(row[column]) for column in ("outcome", "file", "tool", "objective", "loss", "reason")
                )
            )
    if options.out:
        with options.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(table)
    counts = collections.Counter(row["outcome"] for row in table)
    print(dict(counts), "run while read:", watch.seen or "nothing")
    return int(bool(counts["failed"] or watch.seen))


if __name__ == "__main__":
    raise SystemExit(main())
