"""Steps of pairs and of groups of answers, prompts apart, shared, and shared by a recorded graph, in turns: JSON lines.

`shared_prompts.py --pairs 512:256 --groups 512:512:8`: tokens of a prompt and of an answer, and answers to a prompt.
Random weights in the shape of Llama 3.1 8B's layers, as many as `--layers` says. Each line has the seconds of a step
(least and median), the largest memory, and how far the gradients of both are apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import numpy as np  # noqa: E402 (the folders above must be on the path first)
import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from studio_kernels.dispatch import bind  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402

from studio.core.recipe import PreferenceSpec, SamplingSpec  # noqa: E402
from studio.data.sequence_packing import Example, RolloutFacts  # noqa: E402
from studio.engine.batches import StepOrder, measure_windows  # noqa: E402
from studio.engine.decoder_step import DecoderStep  # noqa: E402
from studio.engine.objectives import get_objective  # noqa: E402
from studio.models.adapt import unwrap  # noqa: E402
from studio.models.decoder.decoder import Decoder, take_over  # noqa: E402
from studio.planning.backend_choice import NEEDS_DOTS  # noqa: E402

VOCABULARY = 32_000
ROUNDS = 8


def make_decoder(hidden: int, layers: int, device: str) -> Decoder:
    """Return a decoder of such layers with an adapter of rank 16 on every linear."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=7 * hidden // 2,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 128),
        num_key_value_heads=max(1, hidden // 512),
        head_dim=128,
        rope_theta=5e5,
    )
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        adapter = LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(model, adapter, autocast_adapter_dtype=False)
    for one in model.parameters():
        if one.requires_grad:
            one.data = one.data.float()
    kernels = bind(dict.fromkeys(NEEDS_DOTS, "triton") if device == "cuda" else {})
    decoder = take_over(unwrap(model), kernels, dtype=dtype)
    if not isinstance(decoder, Decoder):
        raise SystemExit(str(decoder))
    return decoder


def draw_pairs(prompt: int, answer: int, count: int) -> list[Example]:
    """Return pairs with a reference."""
    chance = np.random.default_rng(0)
    found = []
    for _ in range(count):
        asked = chance.integers(2, VOCABULARY, prompt)
        answers = [chance.integers(2, VOCABULARY, answer) for _ in range(2)]
        ids = np.concatenate([one for words in answers for one in (asked, words)]).astype(np.int32)
        trained = np.tile(np.arange(prompt + answer) >= prompt, 2)
        reference = np.where(trained, -10, 0).astype(np.float32)
        found.append(Example(ids, trained, (prompt + answer,) * 2, reference=reference))
    return found


def draw_group(prompt: int, answer: int, count: int) -> list[Example]:
    """Return so many answers to a prompt."""
    chance = np.random.default_rng(0)
    asked, trained = chance.integers(2, VOCABULARY, prompt), np.arange(prompt + answer) >= prompt
    rows = [np.concatenate([asked, chance.integers(2, VOCABULARY, answer)]) for _ in range(count)]
    facts = [RolloutFacts(advantage=float(chance.normal())) for _ in rows]
    return [
        Example(row.astype(np.int32), trained, (len(row),), drawn=one)
        for row, one in zip(rows, facts, strict=True)
    ]


def compare(decoder: Decoder, name: str, examples: list[Example]) -> Iterator[dict[str, Any]]:
    """Yield what both ways take, in turns."""
    device = decoder.device
    objective = get_objective(name, PreferenceSpec() if name == "dpo" else SamplingSpec())
    count = sum(map(objective.count, examples))
    ways = ("apart", "shared", "recorded") if device.type == "cuda" and name == "dpo" else ("apart", "shared")
    steps = {
        way: DecoderStep(decoder, objective=objective, pad_id=0, shares_prompts=way != "apart")
        for way in ways
    }
    if "recorded" in steps:
        recorded, order = steps["recorded"], StepOrder(len(examples), len(examples), 0)
        recorded.expect(measure_windows(order, examples, 1, recorded.expects_sequences), ROUNDS)
        recorded.cut(examples, len(examples), recorded.find_longest(examples))
    seconds: dict[str, list[float]] = {way: [] for way in steps}
    gradients, peaks = {}, {}
    for round_ in range(ROUNDS + 2):
        for way, step in steps.items():
            step.clear()
            if device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            begun_s = time.perf_counter()
            step.add_gradients(examples, count, lambda loss: loss)
            if device.type == "cuda":
                torch.cuda.synchronize()
                peaks[way] = torch.cuda.max_memory_allocated()
            if round_ > 1:
                seconds[way].append(time.perf_counter() - begun_s)
            gradients[way] = decoder.store.gradients.clone()
    for way, step in steps.items():
        pair = (gradients[one].double() for one in ("apart", way))
        yield {
            "way": way,
            "graphs": len(step._graphs[1].recorded) if step._graphs else 0,
            "rows": len(step._join(examples).ids),
            "least_s": min(seconds[way]),
            "median_s": statistics.median(seconds[way]),
            "peak_bytes": peaks.get(way, 0),
            "cosine": float(torch.nn.functional.cosine_similarity(*pair, dim=0)),
        }


def main() -> None:
    """Print a line for each way of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", nargs="*", default=["512:256", "400:250", "2000:200"])
    parser.add_argument("--groups", nargs="*", default=["512:512:8", "2048:256:8", "256:1024:8"])
    parser.add_argument("--count", type=int, default=2, help="pairs of a step")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder = make_decoder(options.hidden, options.layers, device)
    cases = [("dpo", draw_pairs, case, options.count) for case in options.pairs]
    cases += [("grpo", draw_group, *case.rpartition(":")[::2]) for case in options.groups]
    for name, draw, case, count in cases:
        examples = draw(*map(int, case.split(":")), int(count))
        for line in compare(decoder, name, examples):
            print(json.dumps({"objective": name, "case": case, "count": int(count)} | line), flush=True)


if __name__ == "__main__":
    main()
