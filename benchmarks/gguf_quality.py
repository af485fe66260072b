"""What a GGUF file of a trained model is worth: perplexity of real conversations, ours and llama.cpp's own packing.

`python benchmarks/gguf_quality.py --model FOLDER --chats FILE [--count 100] [--tokens 256] [--out FILE]`; FOLDER: of a
trained model (tests/trained_model.py has SmolLM2-135M); FILE: conversations (sharegpt). Every file is opened by
llama.cpp, which computes the log-probability of each token; transformers computes it in fp32. The importance matrix
comes from other conversations than those that are measured, and both packings get the same one. llama.cpp's server is
asked a question, too, and how it reads texts and renders a chat.
Exits 1 where F16 is more than 0.1 % from transformers, a form more than 1 % from llama.cpp's, tokens or the rendered
chat are others, or the answer is wrong.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from llama_library import LlamaModel, open_library, pack_by_llama_cpp, score_logits  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from studio.core.recipe import DatasetSpec  # noqa: E402
from studio.data.preview import preview  # noqa: E402
from studio.models.gguf.file_tensors import build_stored  # noqa: E402
from studio.models.gguf.file_writer import GgufWriter  # noqa: E402
from studio.models.gguf.importance import measure_importance  # noqa: E402
from studio.models.gguf.llama_cpp import ask  # noqa: E402
from studio.models.gguf.tensor_types import get_mix  # noqa: E402
from studio.models.gguf.write import FilePlan, open_folder, plan_file, write_file  # noqa: E402

FORMS = ("F16", "Q8_0", "Q6_K", "Q4_K_M")
CALIBRATION = 32
EXACT_SHARE, NEAR_SHARE = 1e-3, 1e-2
QUESTION, RIGHT = [{"role": "user", "content": "What is the capital of France?"}], "Paris"
TEXTS = ("Hello  world\n\tCafé", "你好，世界！한국어 😀", "12345 1,234.56 don’t — don't")
ANSWER_TOKENS = 12


def main() -> int:
    """Measure every form; return 1 where one is worse than it may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--chats", required=True, type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    spec = DatasetSpec(source=str(options.chats), max_length=options.tokens, accept_bad_rows=True)
    rows = preview(spec, tokenizer, rows=3 * (options.count + CALIBRATION)).rendered
    rows = [
        row
        for row in rows
        if len(row.tokens) >= options.tokens // 2 and any(one.trained for one in row.tokens)
    ]
    texts = [[token.id for token in row.tokens] for row in rows]
    calibration, chats = texts[:CALIBRATION], texts[CALIBRATION:][: options.count]
    # Of answers alone: what a template's own tokens and a person's first words cost says nothing of a model that chats.
    said = [np.array([one.trained for one in row.tokens[1:]]) for row in rows[CALIBRATION:][: options.count]]
    print(f"{len(chats)} conversations, {sum(one.sum() for one in said):,} tokens of answers")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    with torch.inference_mode():
        exact = [score_logits(model(torch.tensor([ids])).logits[0].double().numpy(), ids) for ids in chats]
    base = perplexity(exact, said)
    lines = [("transformers fp32", "", 0, base, 0.0, 0.0, "", "")]
    print(f"{'transformers, fp32':26} perplexity {base:.4f}", flush=True)
    library, good = open_library(), True
    plan = plan_file(options.model, get_mix("F16"), "measured", "measured.gguf")
    counts = measure_importance(
        model, plan.tensors, calibration, frozenset(one.inner for one in plan.tensors)
    )
    del model
    with tempfile.TemporaryDirectory() as work:
        for form in FORMS:
            found = {}
            for packer in ("ours", "llama.cpp") if form != "F16" else ("ours",):
                file = Path(work) / f"{packer}.gguf"
                plan = plan_file(options.model, get_mix(form), "measured", file.name)
                weights = counts if form.endswith(("K", "M")) else {}
                begun_s = time.monotonic()
                if packer == "ours":
                    write_file(plan, file, weights or None)
                else:
                    write_by_llama_cpp(library, plan, file, weights)
                took_s = time.monotonic() - begun_s
                vocabulary = plan.config["vocab_size"]
                opened = LlamaModel(
                    library, file, tokens=options.tokens, threads=threads, vocabulary=vocabulary
                )
                found[packer] = perplexity([opened.score(ids) for ids in chats], said)
                opened.close()
                share = found[packer] / base - 1
                told = ask_server(file, tokenizer) if packer == "ours" else ("", "")
                good &= told[0] != "differ" and (not told[1] or RIGHT in told[1])
                lines.append((form, packer, file.stat().st_size, found[packer], share, took_s, *told))
                print(
                    f"{form:8} {packer:17} perplexity {found[packer]:.4f} ({share:+.3%}), "
                    f"{file.stat().st_size / 1e6:.1f} MB, written in {took_s:.0f} s {' '.join(told)}", flush=True,
                )  # fmt: skip
            good &= abs(found["ours"] / base - 1) <= EXACT_SHARE if form == "F16" else True
            good &= found["ours"] <= found.get("llama.cpp", found["ours"]) * (1 + NEAR_SHARE)
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            columns = (
                "form",
                "packed by",
                "bytes",
                "perplexity",
                "beside fp32",
                "written_s",
                "tokens",
                "answer",
            )
            writer.writerow(columns)
            writer.writerows(lines)
    print("as it should be" if good else "WORSE than it may be")
    return 0 if good else 1


def perplexity(scores: list[np.ndarray], said: list[np.ndarray]) -> float:
    """Return e to the mean of minus the log-probabilities of the tokens that were said."""
    every = np.concatenate([one[mask] for one, mask in zip(scores, said, strict=True)])
    return math.exp(-every.mean())


def ask_server(file: Path, tokenizer) -> tuple[str, str]:
    """Return whether llama.cpp reads texts and renders a chat as `tokenizer` does (equal, differ), and its answer."""
    rendered = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    texts = [*TEXTS, rendered]
    asked = {"texts": texts, "chats": [QUESTION], "answers": [(prompt, ANSWER_TOKENS)]}
    told = ask(file, asked)
    read = [tokenizer(one, add_special_tokens=False)["input_ids"] for one in texts]
    same = told["tokens"] == read and told["rendered"] == [rendered]
    return "equal" if same else "differ", told["answers"][0]["text"].strip()


def write_by_llama_cpp(library, plan: FilePlan, path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write the same file with the tensors as llama.cpp packs them."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        read = open_folder(plan.folder, stack)
        file = stack.enter_context(GgufWriter(path, plan.metadata, plan.table))
        for values in plan.factors.values():
            file.write(values.tobytes())
        for tensor in plan.tensors:
            weight = build_stored(plan.family, tensor, plan.config, read)
            form = plan.types[tensor.name]
            if form.values == 1:
                kinds = {"F32": torch.float32, "F16": torch.float16}
                file.write(weight.to(kinds[form.name]).contiguous().numpy().tobytes())
                continue
            rows = weight.reshape(-1, weight.shape[-1]).float().numpy()
            row_bytes = rows.shape[1] // form.values * form.size_bytes
            own = weights.get(tensor.name)
            packed = pack_by_llama_cpp(
                library, rows, form.name, own.numpy() if own is not None else None, row_bytes
            )
            file.write(packed.tobytes())


if __name__ == "__main__":
    sys.exit(main())
