"""Layers of Qwen3-30B-A3B with random weights made on the card: proved against the model's own code, then timed.

    python benchmarks/experts.py                       # 12 layers, 2 x 2048 tokens; bf16 and NF4; with and without
                                                       # adapters on the experts
    python benchmarks/experts.py --tiny --device cpu   # a try on any machine

Nothing is read from disk or network. What is printed: whether the decoder takes the model over (or why not), tokens a
second of forward and backward, the peak of memory beside what was predicted, and both for the model's own forward.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import torch  # noqa: E402 (the folders above must be on the path first)
import transformers  # noqa: E402
from studio_kernels.dispatch import importable  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks.draft import draft_run  # noqa: E402
from studio.core.facts import ModelFacts  # noqa: E402
from studio.core.i18n import load_catalogue  # noqa: E402
from studio.core.memory_policy import LayerPolicy, MemoryPolicy  # noqa: E402
from studio.core.recipe import AdapterSpec, change_recipe  # noqa: E402
from studio.data.sequence_packing import Example  # noqa: E402
from studio.engine.decoder_step import DecoderStep  # noqa: E402
from studio.engine.loss_head import LossHead  # noqa: E402
from studio.engine.objectives.sft import SFT  # noqa: E402
from studio.engine.train_step import StockStep  # noqa: E402
from studio.models.adapt import adapt, unwrap  # noqa: E402
from studio.models.config_facts import outline_model  # noqa: E402
from studio.models.config_shapes import read_shapes  # noqa: E402
from studio.models.nf4_experts import (  # noqa: E402
    IMPLEMENTATION,
    STACKS,
    Nf4Stack,
    is_experts,
    register_implementation,
)
from studio.models.optimize_model import make_fast  # noqa: E402
from studio.planning.memory_estimate import count_allocated, predict  # noqa: E402

SHAPE = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip
TINY = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "num_experts": 16, "num_experts_per_tok": 4,
    "norm_topk_prob": True, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
ATTENTION = "q_proj,k_proj,v_proj,o_proj"
MIB = 2**20


def main() -> int:
    """Measure every case, one after another; 1 where the decoder does not take one over."""
    options = read_options()
    refused = False
    for bits in options.bits:
        for targets in ("all-linear", ATTENTION):
            row = measure_case(options, bits, targets)
            refused |= "refused" in row
            print(json.dumps(row), flush=True)
            release(options.device)
    return int(refused)


def read_options() -> argparse.Namespace:
    """Return what the command says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 4])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--keep", default="all", choices=["input", "attention", "qkv", "all"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, 3 layers, 2 x 64 tokens")
    parser.add_argument("--no-stock", action="store_true", help="leave the model's own forward out")
    options = parser.parse_args()
    if options.tiny:
        options.layers, options.rows, options.tokens, options.steps = 3, 2, 64, 2
    return options


def measure_case(options: argparse.Namespace, bits: int, targets: str) -> dict[str, Any]:
    """Return what came out of one case."""
    device = torch.device(options.device)
    model, facts = make_model(options, device)
    if bits == 4:
        pack(model)
    gc.collect()
    spec = AdapterSpec(target_modules=targets)
    adapted = adapt(model, spec)
    draw_adapters(adapted)
    plan, recipe = draft_run(
        facts,
        bits=bits,
        batch=options.rows,
        tokens=options.tokens,
        device=str(device),
        triton=importable().ok,
    )
    recipe = change_recipe(recipe, {"adapter.target_modules": targets})
    policy = MemoryPolicy(layers=(LayerPolicy(keep=options.keep),) * options.layers)
    said = load_catalogue("en").say
    row: dict[str, Any] = {
        "bits": bits, "targets": targets, "layers": options.layers, "tokens": options.rows * options.tokens,
        "keep": options.keep, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "trained": sum(p.numel() for p in adapted.parameters() if p.requires_grad),
    }  # fmt: skip
    examples = make_examples(options, facts.vocabulary)
    if not options.no_stock:
        row |= {
            f"stock_{name}": value for name, value in time_stock(adapted, examples, device, options).items()
        }
        release(options.device)
    began = time.perf_counter()
    fast = make_fast(
        unwrap(adapted),
        {op: choice.value for op, choice in plan.kernels.items()},
        policy,
        dtype=torch.bfloat16,
        autocast=torch.bfloat16,
    )
    row["proved_s"] = round(time.perf_counter() - began, 1)
    if fast.decoder is None:
        return row | {"refused": said(fast.refused)}
    row["told"] = [said(line) for line in fast.describe()] + [said(line) for line in fast.twins.values()]
    step = DecoderStep(fast.decoder, objective=SFT, pad_id=0)
    row |= {
        f"decoder_{name}": value for name, value in time_step(step, examples, device, options.steps).items()
    }
    parts = predict(plan, facts, recipe, policy)
    row["predicted_mib"] = round((count_allocated(parts) - parts["optimizer"]) / MIB)  # none is here
    fast.undo()
    return row


def make_model(options: argparse.Namespace, device: torch.device) -> tuple[nn.Module, ModelFacts]:
    """Return the model on `device` in bf16, and what the planner knows of such a one."""
    config = transformers.Qwen3MoeConfig(
        **(TINY if options.tiny else SHAPE), num_hidden_layers=options.layers, pad_token_id=0
    )
    torch.manual_seed(0)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and parameter.dim() > 1:
                parameter.mul_(2.0)  # fresh weights are so small that all experts score alike
    model.config.use_cache = False
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    count = sum(p.numel() for p in model.parameters())
    facts = outline_model("experts", config.to_dict() | {"torch_dtype": "bfloat16"}, parameters=count)
    known = read_shapes("qwen3_moe", config.to_dict(), shapes)
    return model, dataclasses.replace(facts, parameters=count, **known)


@torch.no_grad()
def pack(model: nn.Module) -> None:
    """Hold linears and experts of `model` in NF4, as reading with NF4 does."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    register_implementation()
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and name != "lm_head":
            weight = module.weight.data
            with torch.device("meta"):
                ours = Linear4bit(
                    module.in_features, module.out_features, bias=False, compute_dtype=torch.bfloat16,
                    compress_statistics=True, quant_type="nf4",
                )  # fmt: skip
            packed = Params4bit(weight.cpu(), requires_grad=False, compress_statistics=True, quant_type="nf4")
            ours.weight = packed.to(weight.device)
            model.set_submodule(name, ours)
        if is_experts(module):
            for leaf in STACKS:
                if hasattr(module, leaf):
                    stack = Nf4Stack(getattr(module, leaf).data)
                    delattr(module, leaf)
                    module.add_module(leaf, stack)
            module.config._experts_implementation = IMPLEMENTATION


@torch.no_grad()
def draw_adapters(model: nn.Module) -> None:
    """Let every adapter do something; the run's own would begin with zeros."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.normal_(0.0, 0.01, generator=generator)


def make_examples(options: argparse.Namespace, vocabulary: int) -> list[Example]:
    """Return random rows, every token of them trained."""
    import numpy as np

    draws = np.random.default_rng(0)
    rows = draws.integers(3, vocabulary, (options.rows, options.tokens), dtype=np.int32)
    return [Example(row, np.ones(len(row), dtype=bool), (len(row),)) for row in rows]


def time_stock(
    adapted: nn.Module, examples: list[Example], device: torch.device, options: argparse.Namespace
) -> dict[str, Any]:
    """Return time and memory of the model's own forward, with its layers' inputs kept alone."""
    model = unwrap(adapted)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    adapted.train()
    step = StockStep(
        adapted, LossHead(model).token_losses, objective=SFT, dtype="bf16", device=device, pad_id=0
    )
    try:
        return time_step(step, examples, device, max(2, options.steps // 3))
    except torch.OutOfMemoryError as error:
        return {"failed": str(error).splitlines()[0]}
    finally:
        model.gradient_checkpointing_disable()
        adapted.eval()
        for parameter in adapted.parameters():
            parameter.grad = None


def time_step(step: Any, examples: list[Example], device: torch.device, steps: int) -> dict[str, Any]:
    """Return the median time of forward and backward, tokens a second, the loss and the peak of memory."""
    tokens = sum(len(one.token_ids) for one in examples)
    cuda = device.type == "cuda"

    def once() -> float:
        step.clear()
        loss = step.add_gradients(examples, float(tokens), lambda value: value)[0]
        return float(loss)  # waits for the device

    if cuda:
        torch.cuda.reset_peak_memory_stats()
    losses = [once() for _ in range(2)]
    times = list(time_each(once, steps))
    median = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() / MIB if cuda else 0
    return {
        "ms": round(1000 * median, 1), "tokens_per_s": round(tokens / median), "loss": round(losses[-1], 5),
        "peak_mib": round(peak),
    }  # fmt: skip


def time_each(call: Callable[[], float], count: int) -> Iterator[float]:
    """Give the seconds of each of `count` calls."""
    for _ in range(count):
        began = time.perf_counter()
        call()
        yield time.perf_counter() - began


def release(device: str) -> None:
    """Give memory back before the next case."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
