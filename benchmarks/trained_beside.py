"""Measures new tokens and whole tables beside QLoRA against HF + PEFT: `trained_beside.py --models DIR --out FILE.csv`.

Each stack and way runs in a process of its own on the same random tokens: `rows` trains the rows of 64 new tokens in
embedding and head (peft: trainable_token_indices), `whole` all of both (peft: modules_to_save). The studio's adapter is
then saved and loaded by transformers and peft alone, onto a fresh base, and its logits are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.table import append_row  # noqa: E402 (the folder above must be on the path first)

TOKENS = tuple(f"<|extra_{i}|>" for i in range(64))
ENDS = ("embed_tokens", "lm_head")
WARM_STEPS = 3
SPREAD = 0.1
"""Largest difference of reloaded logits, as a share of their spread: NF4 and bf16 round on either side."""
COLUMNS = (
    "shape way stack batch tokens steps tokens_per_s step_s peak_mib loss0 loss_last moved reload_difference gpu torch"
    " peft date command"
).split()


def main() -> int:
    """Measure, or be one of the processes that do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", type=Path, required=True, help="where models of known shapes are, or are made"
    )
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--ways", default="rows,whole")
    parser.add_argument("--stacks", default="ours,hf")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        way, stack = options.one.split(",")
        print("RESULT " + json.dumps(measure(options, way, stack)), flush=True)
        return 0
    folder = options.models / options.shape
    if not (folder / "config.json").is_file():
        subprocess.run([sys.executable, ROOT / "benchmarks/make_model.py", options.shape, folder], check=True)
    code = 0
    for way in options.ways.split(","):
        for stack in options.stacks.split(","):
            given = [sys.executable, __file__, *sys.argv[1:], "--one", f"{way},{stack}"]
            done = subprocess.run(given, capture_output=True, encoding="utf-8", check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if not lines:
                print(f"{way} {stack} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
                code = 1
                continue
            row = json.loads(lines[-1].removeprefix("RESULT "))
            print(json.dumps(row))
            if options.out:
                append_row(options.out, row | {"command": " ".join(sys.argv)}, COLUMNS)
    return code


def measure(options: argparse.Namespace, way: str, stack: str) -> dict[str, Any]:
    """Take the steps of one stack and return what is known of them."""
    import peft
    import torch

    folder = options.models / options.shape
    build = {"ours": build_ours, "hf": build_hf}[stack]
    step, model, state = build(folder, options, way)
    cuda = options.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = {
        name: one.detach().float().cpu().clone() for name, one in state().items() if "lora_" not in name
    }
    generator = torch.Generator().manual_seed(0)
    first, times, losses = first_id(folder), [], []
    for _ in range(WARM_STEPS + options.steps):
        ids = torch.randint(3, first, (options.batch, options.tokens), generator=generator)
        ids[:, ::16] = torch.randint(0, len(TOKENS), ids[:, ::16].shape, generator=generator) + first_id(
            folder
        )
        synchronize(cuda)
        started_s = time.perf_counter()
        losses.append(step(ids.to(options.device)))
        synchronize(cuda)
        times.append(time.perf_counter() - started_s)
    peak = torch.cuda.max_memory_allocated() >> 20 if cuda else 0
    moved = [
        float((one.detach().float().cpu() - before[n]).abs().mean())
        for n, one in state().items()
        if n in before
    ]
    step_s = statistics.median(times[WARM_STEPS:])
    return {
        "shape": options.shape,
        "way": way,
        "stack": stack,
        "batch": options.batch,
        "tokens": options.tokens,
        "steps": options.steps,
        "tokens_per_s": round(options.batch * options.tokens / step_s, 1),
        "step_s": round(step_s, 4),
        "peak_mib": peak,
        "loss0": round(losses[0], 4),
        "loss_last": round(losses[-1], 4),
        "moved": " ".join(f"{one:.2e}" for one in moved),
        "reload_difference": round(reload(model, folder, options), 4) if stack == "ours" else "",
        "gpu": torch.cuda.get_device_name() if cuda else "",
        "torch": torch.__version__,
        "peft": peft.__version__,
        "date": datetime.date.today().isoformat(),
    }


def synchronize(cuda: bool) -> None:
    """Wait for the card, where there is one."""
    import torch

    if cuda:
        torch.cuda.synchronize()


def first_id(folder: Path) -> int:
    """Return the id of the first new token."""
    from transformers import AutoTokenizer

    return len(AutoTokenizer.from_pretrained(folder))


def build_ours(folder: Path, options: argparse.Namespace, way: str) -> tuple[Any, Any, Any]:
    """Return a step of the engine (ids -> loss), the model, and what gives its trained tensors by name."""
    import torch

    from benchmarks.batches import Batch
    from benchmarks.draft import draft_run
    from benchmarks.peers import RANK
    from benchmarks.step import make_step, plan_policy, put_in_loop
    from studio.core.recipe import AdapterSpec
    from studio.models.adapt import adapt, unwrap
    from studio.models.catalog import inspect_model
    from studio.models.load import AUTOCAST_DTYPES, DTYPES, load_model
    from studio.models.modules_to_save import adapter_state
    from studio.models.new_tokens import make_room
    from studio.models.optimize_model import make_fast

    facts, dtype = inspect_model(str(folder)), "bf16" if options.device.startswith("cuda") else "fp32"
    given = {"bits": options.bits, "batch": options.batch, "tokens": options.tokens, "device": options.device}
    plan, recipe = draft_run(facts, dtype=dtype, triton=options.device.startswith("cuda"), **given)
    spec = AdapterSpec(
        rank=RANK, alpha=RANK, tokens=TOKENS, modules_to_save=",".join(ENDS) if way == "whole" else ""
    )
    recipe = dataclasses.replace(recipe, adapter=spec)
    policy = plan_policy(plan, recipe, facts, 0, torch.device(options.device))
    loaded = load_model(facts, device=options.device, dtype=dtype, quantization=plan.quantization.value)
    model = adapt(loaded.model, spec, tokens=make_room(loaded.model, facts, spec))
    model.config.use_cache = False
    kernels = {op: choice.value for op, choice in plan.kernels.items()}
    fast = make_fast(unwrap(model), kernels, policy, dtype=DTYPES[dtype], autocast=AUTOCAST_DTYPES.get(dtype))
    if fast.decoder is None:
        raise SystemExit(f"the decoder does not take it: {fast.refused}")
    step = make_step(model, fast, loaded.tokenizer.pad_token_id, dtype, torch.device(options.device))
    loop = put_in_loop(model, fast, step, dtype, "adamw_8bit")
    state = {"undo": fast.undo}

    def take(ids: Any) -> float:
        loss = loop.gradients(Batch(ids, ((ids.shape[1],),) * len(ids)))
        loop.update()
        return float(loss)

    model.undo_fast = state["undo"]
    return take, model, lambda: adapter_state(model)


def build_hf(folder: Path, options: argparse.Namespace, way: str) -> tuple[Any, Any, Any]:
    """Return the same of transformers and peft, as their documentation does QLoRA."""
    import bitsandbytes
    import torch
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    first = len(tokenizer)
    tokenizer.add_tokens(list(TOKENS))
    model = load_hf(folder, options)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if options.bits == 4:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    ids = list(range(first, first + len(TOKENS)))
    beside = (
        {"modules_to_save": list(ENDS)}
        if way == "whole"
        else {"trainable_token_indices": dict.fromkeys(ENDS, ids)}
    )
    config = LoraConfig(
        r=16, lora_alpha=16, target_modules="all-linear", exclude_modules=["lm_head"], **beside
    )
    model = get_peft_model(model, config).train()
    model.config.use_cache = False
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
    kind = torch.device(options.device).type

    def take(ids: Any) -> float:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return take, model, lambda: {name: one for name, one in model.named_parameters() if one.requires_grad}


def load_hf(folder: Path, options: argparse.Namespace) -> Any:
    """Return the base as transformers loads it."""
    import torch

    from benchmarks.real_loop import load_base

    wide = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
    return load_base(folder, "qlora" if options.bits == 4 else "lora", torch.device(options.device), wide)


def reload(model: Any, folder: Path, options: argparse.Namespace) -> float:
    """Return by how much the saved adapter, loaded by transformers and peft, differs: a share of the logits' spread."""
    import torch
    from peft import PeftModel

    from studio.models.adapt import cast_weights
    from studio.models.modules_to_save import list_freed, save_adapter

    model.undo_fast()
    wide = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
    cast_weights(model, wide, 0, list_freed(model).values())
    ids = torch.tensor([[5, first_id(folder), 60, first_id(folder) + 63, 7]], device=options.device)
    kind = torch.device(options.device).type
    autocast = torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")
    with torch.no_grad(), autocast, tempfile.TemporaryDirectory() as place:
        model.eval()
        expected = model(input_ids=ids).logits.float()
        rows = model.get_input_embeddings().weight.shape[0]
        save_adapter(model, Path(place))
        base = load_hf(folder, options)
        if rows > base.get_input_embeddings().weight.shape[0]:
            base.resize_token_embeddings(rows, mean_resizing=False)
        found = PeftModel.from_pretrained(base, place).eval()(input_ids=ids).logits.float()
    difference = float((found - expected).abs().max() / expected.std())
    if difference > SPREAD:
        raise SystemExit(f"what was loaded again differs by {difference:.3f} of the logits' spread")
    return difference


if __name__ == "__main__":
    sys.exit(main())
