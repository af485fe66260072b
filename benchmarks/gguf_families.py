"""Opens GGUF files that llama.cpp's own converter wrote of tiny models: weights and logits against the originals'.

`python benchmarks/gguf_families.py --llama-cpp FOLDER --work FOLDER [--only KIND ...]`; FOLDER: llama.cpp's source (it
lies in the source package llama-cpp-python). Its converter knows tokenizers by a fingerprint; the made-up one of the
tiny models is given out as Llama 3's. Says a line a kind and exits 1 where a file is opened wrongly.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import torch  # noqa: E402
import transformers  # noqa: E402
from tiny_models import Family, build_model, list_families  # noqa: E402

from studio.core.errors import StudioError  # noqa: E402
from studio.core.i18n import load_catalogue  # noqa: E402
from studio.models.gguf.facts import read_gguf  # noqa: E402
from studio.models.gguf.opened import open_model  # noqa: E402

CONVERT = """
import importlib, pkgutil, sys
root, folder, out = sys.argv[1:4]
sys.path[:0] = [root + "/gguf-py", root]
import convert_hf_to_gguf as converter
import conversion
from conversion import base
for module in pkgutil.iter_modules(conversion.__path__):
    importlib.import_module("conversion." + module.name)
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
waiting = [base.TextModel]
while waiting:
    kind = waiting.pop()
    waiting += kind.__subclasses__()
    kind.set_vocab = lambda self: self._set_vocab_gpt2()
sys.argv = ["convert", folder, "--outfile", out, "--outtype", "f32", *sys.argv[4:]]
converter.main()
"""
SIX = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
AS_PUBLISHED = {
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": SIX | {"query_pre_attn_scalar": 16},
    "gemma3_text": SIX | {"query_pre_attn_scalar": 16},
    "gemma4": {"vocab_size_per_layer_input": 261},
    "qwen3_moe": {"norm_topk_prob": True},
    "mixtral": {"sliding_window": None},
    "starcoder2": {"sliding_window": None},
    "ministral3": {"sliding_window": None},
    "mistral3": {"sliding_window": None},
}
"""What all published models of a family have, and a file therefore does not say."""
TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4")
IDS = torch.randint(10, 250, (2, 90), generator=torch.Generator().manual_seed(1))


def main() -> int:
    """Open every kind that the converter writes; return 1 where one is opened wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-cpp", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args()
    os.environ["HF_HOME"] = str(options.work / "hub")
    transformers.logging.set_verbosity_error()
    counts = {"equal": 0, "refused": 0, "not written": 0, "WRONG": 0}
    for number, family in enumerate(list_families()):
        if options.only and family.model_type not in options.only:
            continue
        answer, detail = examine(family, options.work / f"{number:03}-{family.model_type}", options.llama_cpp)
        counts[answer] += 1
        print(f"{family.model_type:24} {family.architecture:40} {answer}: {detail}", flush=True)
    print(counts)
    return 1 if counts["WRONG"] else 0


def examine(family: Family, folder: Path, llama_cpp: str) -> tuple[str, str]:
    """Return what became of a kind, and why."""
    file = folder.with_suffix(".gguf")
    try:
        build_model(dataclasses.replace(family, over=publish(family)), folder)
    except Exception as error:  # a shape that this family does not take
        return "not written", f"{type(error).__name__}: {str(error)[:80]}"
    more = ["--no-mtp"] if family.model_type.startswith(("qwen3_5", "qwen3_next")) else []
    command = [sys.executable, "-c", CONVERT, llama_cpp, str(folder), str(file), *more]
    said = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if not file.is_file():
        return "not written", (said.stderr.strip().splitlines() or [""])[-1][:80]
    try:
        opened = open_model(read_gguf(file))
    except StudioError as error:
        return "refused", load_catalogue("en").say(error.why)
    pictures = family.reads == "pictures"
    loader = transformers.AutoModelForImageTextToText if pictures else transformers.AutoModelForCausalLM
    original = loader.from_pretrained(folder, dtype=torch.float32).eval()
    ours, loading = transformers.AutoModelForCausalLM.from_pretrained(
        opened, dtype=torch.float32, output_loading_info=True
    )
    if loading["missing_keys"] or loading["unexpected_keys"]:
        return "WRONG", f"{loading['missing_keys']} missing, {loading['unexpected_keys']} unexpected"
    with torch.no_grad():
        off = (ours.eval()(IDS).logits - original(IDS).logits).abs().max().item()
    return ("equal" if off == 0 else "WRONG"), f"{type(ours).__name__}, logits off by {off:.2g}"


def publish(family: Family) -> dict:
    """Return what the tiny model has beside its sizes: what all published ones of its family have."""
    over, more = dict(family.over), dict(AS_PUBLISHED.get(family.model_type, {}))
    if family.model_type in TIED:
        more |= {"tie_word_embeddings": True, "vocab_size": 261}
    if not more:
        return over
    if family.reads == "pictures":
        over["text_config"] = dict(over.get("text_config") or {}) | more
        return over | ({"tie_word_embeddings": True} if family.model_type in TIED else {})
    return over | more


if __name__ == "__main__":
    sys.exit(main())
