"""Answers on a graphics card: tokens a second beside what reading allows, and beside transformers' generate.

    python benchmarks/decode_gpu.py --models DIR [--shape llama-8b] [--bits 16 4] [--batch 1 8 64] [--generate]

The model has random weights and an adapter of rank 16 on every linear; prompts are random, each its own, PROMPT tokens,
and answers as long as they are asked for. The floor is the time in which weights, adapters, keys and values are read at
the rate of a copy on this card. `first` is the time to the first token of a prompt of 1,000 tokens, and that of a next
question with it before. Prints a line of JSON for each measurement, `--out` appends them to a file.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Without this file's own folder: libraries ask for a package called `kernels`, which is not benchmarks/kernels.py.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import torch  # noqa: E402 (the folders above come first)
from transformers import GenerationConfig  # noqa: E402

from benchmarks.draft import draft_run  # noqa: E402
from benchmarks.kernels import Clock, measure_rates  # noqa: E402
from benchmarks.peers import ALPHA, RANK, draw_adapters  # noqa: E402
from studio.core.recipe import AdapterSpec  # noqa: E402
from studio.engine.generation.answerer import Answerer  # noqa: E402
from studio.engine.generation.request import Request, Sampling  # noqa: E402
from studio.engine.stop_tokens import Ends  # noqa: E402
from studio.models.adapt import adapt  # noqa: E402
from studio.models.catalog import inspect_model  # noqa: E402
from studio.models.load import load_model  # noqa: E402
from studio.models.resolve import open_packed  # noqa: E402

PROMPT, TOKENS = 960, 128
"""1,024 tokens of context in the middle of an answer."""
SETTLED = 24
"""Steps that are not counted: sizes are recorded in them."""


def load(folder: Path, bits: int) -> tuple[Any, Any, dict[str, str]]:
    """Return the model with an adapter, its tokenizer, and the kernels that a run would ask for."""
    facts = open_packed(inspect_model(str(folder)))
    plan, _ = draft_run(facts, bits=bits, batch=1, tokens=PROMPT, device="cuda:0")
    loaded = load_model(facts, device="cuda:0", dtype="bf16", quantization=plan.quantization.value)
    model = adapt(loaded.model, AdapterSpec(rank=RANK, alpha=ALPHA, target_modules="all-linear"))
    draw_adapters(model)
    model.eval()
    return model, loaded.tokenizer, {op: choice.value for op, choice in plan.kernels.items()}


def draw_prompts(count: int, tokens: int, vocabulary: int, seed: int) -> list[tuple[int, ...]]:
    """Return prompts of so many random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randint(3, vocabulary, (tokens,), generator=generator).tolist()) for _ in range(count)
    ]


def count_bytes(model: Any, batch: int) -> int:
    """Return what a step must read: all weights but the embedding's, adapters in 16 bits, keys and values."""
    config, total = model.config.get_text_config(), 0
    table = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is table
    for name, parameter in model.named_parameters():
        if parameter is table and not tied:
            continue
        total += parameter.numel() * (2 if "lora_" in name else parameter.element_size())
        state = getattr(parameter, "quant_state", None)
        total += state.absmax.numel() if state is not None else 0
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    a_token = 4 * config.num_hidden_layers * config.num_key_value_heads * width
    return total + batch * a_token * (PROMPT + TOKENS // 2)


def time_steps(answerer: Answerer, batch: int, vocabulary: int, **sampling: float) -> dict[str, float]:
    """Return the median time of a step, and the time of everything."""
    prompts = draw_prompts(batch, PROMPT, vocabulary, seed=batch)
    requests = [
        Request(one, Sampling(max_new_tokens=TOKENS, seed=place, **sampling))
        for place, one in enumerate(prompts)
    ]
    times: list[float] = []

    def on_step(grown: Any) -> None:
        if len(grown) == batch:
            times.append(time.perf_counter())

    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    answerer.answer(requests, slots=batch, on_step=on_step)
    torch.cuda.synchronize()
    whole_s = time.perf_counter() - begun_s
    # The host reads in bursts: what counts is the time from the first settled step to the last.
    step_s = (times[-1] - times[SETTLED]) / (len(times) - 1 - SETTLED)
    answerer.forget()
    return {"step_s": step_s, "whole_s": whole_s}


def time_first(answerer: Answerer, vocabulary: int) -> dict[str, float]:
    """Return seconds to the first token of 1,000 tokens, and of a next question of 40 behind them and an answer."""
    found: dict[str, list[float]] = {"first_s": [], "next_s": []}
    for seed in range(4):
        (prompt, more) = (
            draw_prompts(1, 1000, vocabulary, seed)[0],
            draw_prompts(1, 40, vocabulary, 99 + seed)[0],
        )
        answerer.forget()
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        answerer.answer([Request(prompt, Sampling(max_new_tokens=1))])
        found["first_s"].append(time.perf_counter() - begun_s)
        (said,) = answerer.answer([Request(prompt, Sampling(max_new_tokens=30))])
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        answerer.answer([Request((*prompt, *said.tokens, *more), Sampling(max_new_tokens=1))])
        found["next_s"].append(time.perf_counter() - begun_s)
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def time_generate(model: Any, batch: int, vocabulary: int, cache: str) -> float:
    """Return seconds a step of transformers' generate with such a cache: the difference of two lengths."""
    prompts = torch.tensor(draw_prompts(batch, PROMPT, vocabulary, seed=batch), device="cuda")
    took = []
    for tokens in (8, 8, 40):
        settings = GenerationConfig(
            max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
            cache_implementation=cache,
        )  # fmt: skip
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                input_ids=prompts, attention_mask=torch.ones_like(prompts), generation_config=settings
            )
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begun_s)
    return (took[2] - took[1]) / 32


def main() -> int:
    """Measure; exit code 2 without a card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", type=Path, required=True, help="where models of known shapes are, or are made"
    )
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--bits", type=int, nargs="*", default=[16, 4])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument(
        "--generate", nargs="*", default=[], help="caches of transformers' to time, such as static"
    )
    parser.add_argument("--packed", action="store_true", help="hold 4-bit weights in 4 bits alone")
    parser.add_argument("--twins", nargs="*", default=[], help="ops that PyTorch computes")
    parser.add_argument(
        "--profile", action="store_true", help="also say which kernels a step takes its time for"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="nothing is begun later")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs a GPU.", file=sys.stderr)
        return 2
    begun_s = time.monotonic()
    folder = options.models / options.shape
    if not (folder / "config.json").is_file():
        subprocess.run([sys.executable, ROOT / "benchmarks/make_model.py", options.shape, folder], check=True)
    copy_rate, _ = measure_rates(Clock.of(torch.device("cuda")))
    versions = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_gb_per_s": round(copy_rate / 1e9),
    }

    def tell(**values: Any) -> None:
        line = json.dumps({"shape": options.shape, **values, **versions})
        print(line, flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    for bits in options.bits:
        model, tokenizer, kernels = load(folder, bits)
        vocabulary = model.config.get_text_config().vocab_size
        kernels |= dict.fromkeys(options.twins, "reference")
        answerer = Answerer(model, tokenizer, Ends(()), kernels=kernels, opens=not options.packed)
        for batch in options.batch:
            if time.monotonic() - begun_s > options.seconds:
                break
            time_steps(answerer, batch, vocabulary)
            found = [time_steps(answerer, batch, vocabulary) for _ in range(3)]
            step_s = statistics.median(one["step_s"] for one in found)
            floor_s = count_bytes(model, batch) / copy_rate
            tell(
                bits=bits, batch=batch, twins=options.twins, tokens_per_s=round(batch / step_s, 1),
                step_ms=round(step_s * 1e3, 3),
                floor_ms=round(floor_s * 1e3, 3), share=round(floor_s / step_s, 3), slow=str(answerer.slow or ""),
                drawn_tokens_per_s=round(batch / time_steps(answerer, batch, vocabulary, temperature=0.8)["step_s"], 1),
            )  # fmt: skip
        tell(
            bits=bits, **{name: round(took_s, 4) for name, took_s in time_first(answerer, vocabulary).items()}
        )
        if options.profile:
            profile(answerer, options.batch[0], vocabulary)
        for cache in options.generate:
            for batch in options.batch:
                if time.monotonic() - begun_s > options.seconds:
                    break
                try:
                    step_s = time_generate(model, batch, vocabulary, cache)
                except (RuntimeError, ValueError) as error:
                    tell(bits=bits, batch=batch, stack=f"generate {cache}", error=str(error)[:200])
                    continue
                tell(bits=bits, batch=batch, stack=f"generate {cache}", tokens_per_s=round(batch / step_s, 1),
                     step_ms=round(step_s * 1e3, 3))  # fmt: skip
        del model, answerer
        gc.collect()
        torch.cuda.empty_cache()
    return 0


def profile(answerer: Answerer, batch: int, vocabulary: int) -> None:
    """Print the kernels that steps take their time for."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        time_steps(answerer, batch, vocabulary)
    rows = sorted(seen.key_averages(), key=lambda one: -one.self_device_time_total)[:16]
    for row in rows:
        each = row.self_device_time_total / TOKENS / 1e3
        print(f"    {each:8.3f} ms a step in {row.count / TOKENS:6.1f} x {row.key[:90]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
