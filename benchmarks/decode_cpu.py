"""Answers on a processor: the studio's decoder beside transformers' generate, the same weights, prompts and tokens.

    python benchmarks/decode_cpu.py MODEL [--adapter DIR] [--batch 1 16] [--tokens 64] [--prompts FILE] [--rounds 5]
                                    [--gguf FILE]

Both ways answer in turns, greedily, in one process; the middle of the rounds counts. `plain` is the decoder without
looking ahead. On a machine that others use, `--threads 1 --processor-time` counts what the process itself computed.
Tokens are compared: in fp32 they are the same. `--prompts` names a jsonl of chats whose last answer is left out; all of
them are answered, to their ends. `--gguf` names the same model as a GGUF file, which llama.cpp's server (xllamacpp)
answers by in the same process, `--tokens` each; its words are not compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

import torch  # noqa: E402 (the folder above must be on the path first)
from peft import PeftModel  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig  # noqa: E402

from studio.core.i18n import load_catalogue  # noqa: E402
from studio.engine.generation.answerer import Answerer  # noqa: E402
from studio.engine.generation.request import Request, Sampling  # noqa: E402
from studio.engine.stop_tokens import Ends, find_ends  # noqa: E402

QUESTIONS = (
    "What is the capital of France?", "Write a Python function that adds two numbers.",
    "Why is the sky blue?", "List the first ten prime numbers as JSON.",
    "Explain what a transformer model is.", "Give me a recipe for pancakes.",
    "Translate 'good morning' to Spanish.", "Write a haiku about the sea.",
    "How do I sort a list in Python?", "What does HTTP 404 mean?",
    "Name three planets and their sizes.", "Write a SQL query that counts rows by city.",
    "What is a binary search?", "Tell me a short story about a fox.",
    "How many days are in a leap year?", "What is the difference between a list and a tuple?",
)  # fmt: skip


def read_prompts(tokenizer: Any, file: Path | None) -> list[tuple[int, ...]]:
    """Return prompts as token ids: of `file`, else QUESTIONS."""
    chats = [[{"role": "user", "content": words}] for words in QUESTIONS]
    if file:
        chats = [json.loads(line)["messages"][:-1] for line in file.read_text(encoding="utf-8").splitlines()]
    made = (tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in chats)
    return [tuple(tokenizer(words, add_special_tokens=False)["input_ids"]) for words in made]


def answer_by_generate(
    model: Any, prompts: list[tuple[int, ...]], tokens: int, batch: int, ends: list[int], pad: int
) -> list[list[int]]:
    """Return greedy answers, `batch` of similar length at a time, padded on the left."""
    found: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        width = max(len(prompts[place]) for place in some)
        ids = torch.tensor([[pad] * (width - len(prompts[place])) + [*prompts[place]] for place in some])
        mask = torch.tensor(
            [[0] * (width - len(prompts[place])) + [1] * len(prompts[place]) for place in some]
        )
        settings = GenerationConfig(
            max_new_tokens=tokens, do_sample=False, pad_token_id=pad, eos_token_id=ends or [-1]
        )
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
        for place, row in zip(some, out[:, width:].tolist(), strict=True):
            stop = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
            found[place] = row[:stop]
    return [found[place] for place in range(len(prompts))]


def open_llama_cpp(file: Path, batch: int, threads: int) -> Callable[[list[tuple[int, ...]], int], list[int]]:
    """Return what answers prompts greedily by llama.cpp, `batch` at once, and says how many tokens each got."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx = str(file), batch, 512 * batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_prompt = False
    server = xllamacpp.Server(params)

    def answer(prompts: list[tuple[int, ...]], tokens: int) -> list[int]:
        def ask(prompt: tuple[int, ...]) -> int:
            asked = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0.0, "ignore_eos": True}
            said = server.handle_completions(asked | {"cache_prompt": False})
            if "timings" not in said:
                raise RuntimeError(f"llama.cpp did not answer: {said}")
            return int(said["timings"]["predicted_n"])

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(ask, prompts))

    return answer


def measure(model: Any, tokenizer: Any, options: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Return seconds and tokens/s of each way, medians of the rounds, and whether they said the same."""
    prompts = read_prompts(tokenizer, options.prompts)
    if not options.prompts:
        prompts = (prompts * (batch // len(prompts) + 1))[:batch]
    pad = tokenizer.pad_token_id or 0
    ends = find_ends(tokenizer, model.generation_config.eos_token_id) if options.prompts else Ends(())
    requests = [Request(one, Sampling(max_new_tokens=options.tokens)) for one in prompts]
    ways = {
        "generate": lambda: answer_by_generate(
            model, prompts, options.tokens, batch, list(ends.ids or ()), pad
        )
    }
    said: dict[str, Any] = {}
    for name, ahead in (("studio", True), ("plain", False)):
        answerer = Answerer(model, tokenizer, ends, looks_ahead=ahead, opens=not options.wide)

        def answer(answerer: Answerer = answerer, ahead: bool = ahead) -> list[list[int]]:
            answerer.forget()
            found = answerer.answer(requests, slots=batch)
            said["slow"] = answerer.slow
            if ahead:
                said["ahead"] = answerer.ahead
            return [one.tokens for one in found]

        ways[name] = answer
    if options.gguf:
        ask = open_llama_cpp(options.gguf, batch, options.threads)
        ways["llama_cpp"] = lambda: ask(prompts, options.tokens)
    clock = time.process_time if options.processor_time else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for number in range(options.rounds + 1):
            for name, way in ways.items():
                begun = clock()
                said[name] = way()
                if number:  # the first round warms up
                    taken[name].append(clock() - begun)
    count = sum(map(len, said["studio"]))
    line: dict[str, Any] = {
        "batch": batch, "prompts": len(prompts), "tokens": count, "own": said["slow"] is None,
        "same": sum(a == b for a, b in zip(said["generate"], said["studio"], strict=True)),
        "same_as_plain": said["plain"] == said["studio"],
    }  # fmt: skip
    if said["ahead"] is not None:
        line["ahead"] = said["ahead"].value
        line["ahead_because"] = load_catalogue("en").say(said["ahead"].reason)
    for name, seconds in taken.items():
        line[f"{name}_s"] = round(statistics.median(seconds), 3)
        line[f"{name}_tokens_per_s"] = round(count / statistics.median(seconds), 1)
    if options.gguf:
        line["llama_cpp_tokens_per_s"] = round(
            sum(said["llama_cpp"]) / statistics.median(taken["llama_cpp"]), 1
        )
        ratios = (a / b for a, b in zip(taken["llama_cpp"], taken["studio"], strict=True))
        line["studio_over_llama_cpp"] = round(statistics.median(ratios) * count / sum(said["llama_cpp"]), 2)
    for name in ("studio", "plain"):
        line[f"{name}_over_generate"] = round(
            statistics.median(a / b for a, b in zip(taken["generate"], taken[name], strict=True)), 2
        )
    return line


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a line of JSON for each batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--gguf", type=Path, help="the same model, for llama.cpp")
    parser.add_argument("--wide", action="store_true", help="hold no weights in 16 bits")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
    if options.adapter:
        model = PeftModel.from_pretrained(model, options.adapter)
    model.eval()
    for batch in options.batch:
        shown = {
            "model": options.model.name,
            "dtype": options.dtype,
            "torch": torch.__version__,
            "threads": options.threads,
        }
        print(json.dumps(shown | measure(model, tokenizer, options, batch)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
