#!/usr/bin/env python3
"""What of every model class that transformers has for writing text the studio trains, reloads, chats with and merges.

    python benchmarks/families.py [--only NAME ...] [--jobs N] [--out families.csv] [--popular]

Each kind becomes a tiny random model (tiny_models.py) and goes through the command line in a forked child of one
process that has imported the libraries: `check`, `train` (6 steps, LoRA on all linears, with trial run, reload and
comparison), `chat`, `export --to merged`. Beside it stands a plain loop of transformers and peft with the same adapter
on the same rows: its six losses, and its logits with the trained adapter, against the merged folder loaded by plain
transformers. `--out` is taken up again: what it holds is not done again. Exit code 1 when a kind falls short.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}.items():
    os.environ.setdefault(_name, _value)

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

from tiny_models import Family, build_model, list_families, write_data  # noqa: E402

COLUMNS = (
    "name model_type class reads rank state built check train reload chat merge loss_off early_off plain_off "
    "plain_early merge_off merge_effect untouched towers_equal attention reach still losses said left_out leftovers "
    "seconds"
).split()
STEPS = 6
LOSS_TOLERANCE = 1e-4
EARLY_TOLERANCE = 1e-5
"""Of the first two steps, whose weights no rounding has led apart yet: what is wrong shows there."""
TIMES_ROUNDING = 2.0
"""How much further than a plain loop's own rounding, which is known from three orders of its sums, ours may lead."""
MERGE_TOLERANCE = 1e-3
"""Of fp32 logits, where the merged folder is loaded in fp32: its weights are rounded to bf16, so it is relative to the
plain merge that is rounded in the same way."""
LIMIT_S = 300
GOOD = ("trains", "refused")
"""States that are no shortcoming: it trains, reloads and merges; or `check` says why not, before anything is loaded."""


class Studio:
    """The command line of this tree, in this process."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace

    def call(self, *words: str) -> tuple[int, dict]:
        """Run one command with --json; return its exit code and its answer."""
        from studio.cli.main import main

        out, began = io.StringIO(), time.monotonic()
        with contextlib.redirect_stdout(out):
            code = main([*words, "--json", "--workspace", str(self.workspace), "--child"])
        print(f"{words[0]}: exit {code}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        lines = out.getvalue().strip()
        try:
            return code, json.loads(lines)
        except ValueError:
            return code, {"error": {"what": lines[-300:], "why": "", "fix": ""}}


def examine(family: Family, work: Path, warm: Path) -> dict:
    """Return the row of one kind. `warm`: a workspace that knows this machine."""
    from studio.models.architectures import judge_config

    row: dict = {"name": family.name, "model_type": family.model_type, "class": family.architecture}
    row |= {"reads": family.reads, "rank": family.rank}
    folder = work / "model"
    folder.mkdir(parents=True)
    try:
        build_model(family, folder)
    except Exception as error:  # noqa: BLE001  whatever transformers raises for sizes that make no model
        verdict = judge_config({"model_type": family.model_type}, family.architecture, "none")
        if not verdict.ok:  # by its config alone: what it would be is never looked at
            return row | {"state": "refused", "built": False, "check": False, "said": say_reason(verdict)}
        return row | {"state": "not built", "built": False, "said": tell(error)}
    row["built"] = True
    shutil.copytree(warm, work / "workspace")
    studio, data = Studio(work / "workspace"), write_data(work / "chats.jsonl")
    recipe = write_recipe(work / "recipe.json", folder, data)
    before = hash_folder(folder)
    code, answer = studio.call("check", str(recipe))
    row["check"] = code == 0
    if code:
        said = answer.get("problems") or [answer.get("error")]
        row["said"] = " | ".join(str(one.get("message") or one.get("what")) for one in said if one)
        row["state"] = "refused"
        return row
    code, answer = studio.call("train", str(recipe))
    row["train"] = row["reload"] = code == 0 and answer.get("state") == "finished"
    run = studio.workspace / "runs" / str(answer.get("run", ""))
    note_run(row, run)
    row["untouched"] = hash_folder(folder) == before
    if not row["train"]:
        diagnosis = answer.get("diagnosis") or answer.get("error") or {}
        row["said"] = " | ".join(str(diagnosis.get(key)) for key in ("what", "why") if diagnosis.get(key))
        row["said"] += " | " + read_last_line(run)
        row["leftovers"] = list_leftovers(run)
        row["state"] = "fails"
        return row
    plain = guard(lambda: compare_losses(folder, run))
    row["loss_off"], row["early_off"] = plain.get("off", plain.get("error")), plain.get("early")
    row["plain_off"], row["plain_early"] = plain.get("own"), plain.get("own_early")
    row["still"] = guard(lambda: count_still(run)).get("still")
    code, answer = studio.call("chat", str(run.name), "--prompt", "say 3", "--max-new-tokens", "4")
    row["chat"] = code == 0
    if code:
        row["said"] = f"chat: {json.dumps(answer.get('error'))}"
    code, answer = studio.call("export", str(run.name), "--to", "merged")
    row["merge"] = code == 0
    if code == 0:
        found = guard(lambda: compare_merged(folder, run, Path(answer["path"])))
        row["merge_off"], row["merge_effect"] = found.get("off", found.get("error")), found.get("effect")
        row["towers_equal"] = found.get("towers")
    else:
        row["said"] = f"export: {json.dumps(answer.get('error'))}"
    row["state"] = judge(row)
    return row


def say_reason(verdict) -> str:  # noqa: ANN001
    """Return why a model is not trained, in words."""
    from studio.core.i18n import load_catalogue

    return load_catalogue("en").say(verdict.reason)


def judge(row: dict) -> str:
    """Return `trains` when everything holds, else what falls short first."""

    def within(name: str, limit: float) -> bool:
        return isinstance(row[name], float) and row[name] <= limit

    # Where steps amplify rounding, or it sends a token to another expert, the plain loop is off by as much.
    if not within("loss_off", max(LOSS_TOLERANCE, TIMES_ROUNDING * (row["plain_off"] or 0.0))):
        return "other losses"
    if not within("early_off", max(EARLY_TOLERANCE, TIMES_ROUNDING * (row["plain_early"] or 0.0))):
        return "other losses"
    if not row["untouched"]:
        return "base changed"
    if not row["chat"]:
        return "no chat"
    if not row["merge"]:
        return "no merge"
    if not within("merge_off", MERGE_TOLERANCE):
        return "other merge"
    return "trains" if row["towers_equal"] else "towers changed"


def write_recipe(path: Path, folder: Path, data: Path) -> Path:
    """Write six steps of LoRA on all linears, on the processor in fp32."""
    recipe = {
        "version": 2,
        "model": {"source": str(folder)},
        "data": {"source": str(data), "max_length": 64, "packing": False},
        "adapter": {"rank": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear"},
        "optim": {"learning_rate": 1e-2, "max_steps": STEPS, "batch_size": 4, "warmup_steps": 0},
        "run": {"samples": 0, "keep_checkpoints": 1},
    }
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


def note_run(row: dict, run: Path) -> None:
    """Add what the run's events say."""
    from studio.core.i18n import load_catalogue

    events, say = read_events(run), load_catalogue("en").say
    row["losses"] = " ".join(f"{one.loss:.6f}" for one in events if one.kind == "step_logged")
    planned = next((one for one in events if one.kind == "run_planned"), None)
    if planned is None:
        return
    row["attention"] = planned.plan.attention.value
    left = [part for part in planned.swaps if part.id == "run.left_out"]
    row["left_out"] = " | ".join(say(part) for part in left)
    row["reach"] = round(100 - sum(float(part.values["share"]) for part in left), 1)


def read_events(run: Path) -> list:
    """Return what a run told."""
    from studio.core.codec import event_from_json

    path = run / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [event for line in lines if (event := event_from_json(json.loads(line))) is not None]


def read_last_line(run: Path) -> str:
    """Return the last line of a run's log: the error of the library, where there was one."""
    log = run / "log.txt"
    lines = log.read_text(encoding="utf-8").strip().splitlines() if log.is_file() else []
    where = next((line.strip() for line in reversed(lines) if line.strip().startswith("File")), "")
    return f"{lines[-1][:300]} @ {where[-120:]}" if lines else ""


def list_leftovers(run: Path) -> str:
    """Return the half-written results in a failed run's folder."""
    names = ("adapter", "model", ".adapter-staging", ".model-staging")
    return " ".join(name for name in names if (run / name).exists())


def hash_folder(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file."""
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


def load_plain(folder: Path):  # noqa: ANN201
    """Return the model in fp32 as plain transformers loads the class that config.json names."""
    import torch
    import transformers

    from studio.models.architectures import read_architecture

    cls = getattr(transformers, read_architecture(folder))
    try:
        return cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except ValueError:
        return cls.from_pretrained(folder, dtype=torch.float32)


def train_plainly(folder: Path, run: Path, way: str = "rows") -> list[float]:
    """Train a plain model with peft and PyTorch's AdamW on the run's rows; return its losses.

    One row at a time, without padding, logits and cross entropy; with all that the run's adapter says of itself.
    `way`: rows, reverse (the last row first), padded (the rows of a step as one batch), or double (in float64).
    """
    import torch
    import torch.nn.functional as F
    from peft import LoraConfig, get_peft_model
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoTokenizer

    from studio.core.codec import from_json
    from studio.core.recipe import Recipe
    from studio.data.prepare import prepare
    from studio.engine.batches import StepOrder
    from studio.engine.learning_rate import learning_rate
    from studio.engine.rng_state import seed_all
    from tests.models.decoder.double import in_double

    recipe = from_json(Recipe, json.loads((run / "recipe.json").read_text(encoding="utf-8")))
    adapter, optim = LoraConfig.from_pretrained(run / "adapter"), recipe.optim
    adapter.inference_mode = False
    data = prepare(recipe.data, recipe.objective, AutoTokenizer.from_pretrained(folder), seed=recipe.seed)
    seed_all(recipe.seed)
    model = get_peft_model(load_plain(folder), adapter).train()
    if way == "double":
        model.double()
        # PyTorch's grouped product has no float64.
        model.config.get_text_config()._experts_implementation = "eager"
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=optim.weight_decay, eps=optim.epsilon)
    order = StepOrder(len(data.train), optim.batch_size, recipe.seed)
    losses = []
    with in_double() if way == "double" else contextlib.nullcontext():
        for step in range(STEPS):
            rows = [data.train[i] for i in order.indices(step)]
            count = sum(int(torch.tensor(row.trained)[1:].sum()) for row in rows)
            optimizer.zero_grad()
            total = 0.0
            batches = (
                [rows]
                if way == "padded"
                else [[row] for row in (reversed(rows) if way == "reverse" else rows)]
            )
            for batch in batches:
                ids, mask, counts = (
                    pad_sequence(one, batch_first=True) for one in zip(*map(read_row, batch), strict=True)
                )
                logits = forward(model, ids, mask, counts).logits[:, :-1].float()
                picked = counts[:, 1:]
                loss = F.cross_entropy(logits[picked], ids[:, 1:][picked], reduction="sum") / count
                loss.backward()
                total += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(trained, optim.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(optim, step, STEPS)
            optimizer.step()
            losses.append(total)
    return losses


def read_row(row):  # noqa: ANN001, ANN201
    """Return a row's ids, its attention mask and which tokens are trained, (S,) each."""
    import torch

    ids = torch.tensor(row.token_ids).long()
    return ids, torch.ones_like(ids), torch.tensor(row.trained).bool()


def forward(model, ids, mask, counts):  # noqa: ANN001, ANN201
    """Return what a whole model computes; where it refuses to train without token types, all are of text.

    To PaliGemma 0 is the prompt, which sees itself from both sides, and 1 the answer: so its processor tells them.
    """
    import torch

    inputs = {"input_ids": ids, "use_cache": False} | ({} if bool(mask.all()) else {"attention_mask": mask})
    if model.config.model_type == "paligemma":
        return model(**inputs, token_type_ids=(counts.cumsum(1) > 0).long())
    try:
        return model(**inputs)
    except ValueError as error:
        named = re.search(r"\b(mm_)?token_type_ids", str(error))
        if named is None:
            raise
        return model(**inputs, **{named[0]: torch.zeros_like(ids)})


def differ(first: list[float], second: list[float]) -> float:
    """Return the largest difference of two lists of losses."""
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def compare_losses(folder: Path, run: Path) -> dict:
    """Return how far the run's losses are off from the plain loop's at most, and in the first two steps.

    Where that is more than rounding of one step, the truth is the plain loop in float64: then how far the run is off
    from it, and how far the plain loop itself is in fp32, at most, in three orders of its sums. Sums in another order
    differ in the last bit, which steps amplify, and which can send a token to another expert.
    """
    found = [one.loss for one in read_events(run) if one.kind == "step_logged"]
    plain = train_plainly(folder, run)
    result = {"off": differ(plain, found), "early": differ(plain[:2], found[:2])}
    if result["off"] > LOSS_TOLERANCE or result["early"] > EARLY_TOLERANCE:
        truth = train_plainly(folder, run, "double")
        others = [plain, *(train_plainly(folder, run, way) for way in ("reverse", "padded"))]
        result = {"off": differ(truth, found), "early": differ(truth[:2], found[:2])}
        result["own"] = max(differ(truth, one) for one in others)
        result["own_early"] = max(differ(truth[:2], one[:2]) for one in others)
    return result


def count_still(run: Path) -> dict:
    """Return how many adapters did not move: those that no forward hears."""
    from safetensors.torch import load_file

    weights = load_file(run / "adapter" / "adapter_model.safetensors")
    return {"still": sum(not weight.any() for name, weight in weights.items() if "lora_B" in name)}


def compare_merged(folder: Path, run: Path, merged: Path) -> dict:
    """Return how far the merged folder's logits are from those of plain peft's merge, and what the adapter changes.

    Plain transformers loads both. Both are rounded to bf16 by the same random numbers, and computed in fp32.
    """
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file

    from studio.core.codec import from_json
    from studio.core.recipe import Recipe
    from studio.models.adapt import cast_weights
    from studio.models.config_shapes import TOWER

    recipe = from_json(Recipe, json.loads((run / "recipe.json").read_text(encoding="utf-8")))
    ids = torch.arange(5, 29)[None]
    with torch.no_grad():
        base = load_plain(folder).eval()
        before = base(input_ids=ids, use_cache=False).logits
        tuned = PeftModel.from_pretrained(base, run / "adapter")
        own = get_peft_model_state_dict(tuned, save_embedding_layers=False)
        for name, tensor in load_file(run / "adapter" / "adapter_model.safetensors").items():
            own[name].copy_(tensor)  # what peft's loading renames and then loses
        plain = tuned.merge_and_unload()
        cast_weights(plain, torch.bfloat16, recipe.seed)
        cast_weights(plain, torch.float32, recipe.seed)
        expected = plain.eval()(input_ids=ids, use_cache=False).logits
        found = load_plain(merged).eval()(input_ids=ids, use_cache=False).logits
    old, new = load_file(folder / "model.safetensors"), load_file(merged / "model.safetensors")
    towers = [name for name in old if TOWER.search(name)]
    return {
        "off": float((found - expected).abs().max()),
        "effect": round(float((expected - before).abs().max()), 4),
        "towers": all(name in new and torch.equal(old[name], new[name]) for name in towers)
        and set(old) >= set(new),
    }


def guard(act) -> dict:  # noqa: ANN001
    """Return what `act` returns, or the error that it raised, as a finding."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001
        return {"error": tell(error)}


def tell(error: BaseException) -> str:
    """Return an error in one line with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} @{Path(place.filename).name}:{place.lineno}"


def run_child(family: Family, work: Path, warm: Path) -> tuple[int, int]:
    """Compute one row in a forked child; return its process id and the pipe of its answer."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.close(read)
    signal.alarm(LIMIT_S)  # its signal ends the child
    log = os.open(work / "log.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        row = examine(family, work, warm)
    except BaseException as error:  # noqa: BLE001
        row = {"name": family.name, "model_type": family.model_type, "class": family.architecture}
        row |= {
            "reads": family.reads,
            "rank": family.rank,
            "built": True,
            "state": "crashed",
            "said": tell(error),
        }
    with os.fdopen(write, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(row, default=str))
    os._exit(0)


def sweep(families: list[Family], jobs: int, warm: Path, keep: bool = False):  # noqa: ANN201
    """Yield a row for each of `families`, `jobs` at a time."""
    waiting, running = list(families), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            family = waiting.pop(0)
            work = Path(tempfile.mkdtemp(prefix="family-"))
            if keep:
                print(work)
            pid, pipe = run_child(family, work, warm)
            running[pipe] = [family, pid, work, b"", time.monotonic()]
        for pipe in select.select(list(running), [], [])[0]:
            if part := os.read(pipe, 65536):
                running[pipe][3] += part
                continue
            family, pid, work, answer, began = running.pop(pipe)
            os.close(pipe)
            _, status = os.waitpid(pid, 0)
            if not keep:
                shutil.rmtree(work, ignore_errors=True)
            row = {"name": family.name, "model_type": family.model_type, "class": family.architecture}
            row |= {
                "reads": family.reads,
                "rank": family.rank,
                "built": True,
                "state": "crashed",
                "said": str(status),
            }
            row = json.loads(answer) if answer else row
            yield row | {"seconds": round(time.monotonic() - began, 1)}


def read_rows(path: Path) -> list[dict]:
    """Return the rows of an earlier table; none without it."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def write_rows(path: Path, rows: list[dict]) -> None:
    """Write the table with versions, date and command above it."""
    from importlib.metadata import version

    words = " ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    head = f"# {words}; {time.strftime('%Y-%m-%d')}; python benchmarks/families.py --out {path.name}\n"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(head)
        table = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="names or model types")
    parser.add_argument("--popular", action="store_true", help="those that people fine-tune most")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave each kind's folder, with its log")
    parser.add_argument("--out", type=Path, default=None, help="a CSV file, taken up where it ends")
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        parser.error(
            "Each model is tried in a forked process, which this system does not have. Use Linux or WSL2."
        )
    import studio.engine.chat
    import studio.engine.run  # noqa: F401  once for all children

    families = list_families()
    if options.only:
        families = [one for one in families if {one.name, one.model_type} & set(options.only)]
    if options.popular:
        families = [one for one in families if one.rank]
    rows = read_rows(options.out) if options.out else []
    done = {row["name"] for row in rows}
    import torch

    torch.set_num_threads(1)
    warm = Path(tempfile.mkdtemp(prefix="families-"))
    if not (pid := os.fork()):  # the machine is looked at once
        Studio(warm / "workspace").call(
            "check", str(write_recipe(warm / "recipe.json", Path("demo"), Path("demo")))
        )
        os._exit(0)
    os.waitpid(pid, 0)
    todo = [one for one in families if one.name not in done]
    for row in sweep(todo, options.jobs, warm / "workspace", options.keep):
        rows.append(row)
        print(f"{row['name']:<28} {row['state']:<12} {str(row.get('said') or '')[:200]}", flush=True)
        if options.out:
            write_rows(options.out, rows)
    return report(rows)


def report(rows: list[dict]) -> int:
    """Print the counts; return 1 when a kind falls short."""
    states: dict[str, list[str]] = {}
    for row in rows:
        states.setdefault(row["state"], []).append(row["name"])
    for state, names in sorted(states.items(), key=lambda one: -len(one[1])):
        print(f"{len(names):>4} {state}" + ("" if state == "trains" else ": " + ", ".join(names)))
    return int(any(row["state"] not in GOOD for row in rows))


if __name__ == "__main__":
    sys.exit(main())
