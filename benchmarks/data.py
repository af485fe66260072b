"""Measures how fast data sets are read, and in how much memory: `data.py --out FILE.csv`.

The files are generated and removed again. A scan is reading, parsing, checking and hashing on one core; the command is
`launch.py data`, all of its processes together.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from studio.core.recipe import DatasetSpec  # noqa: E402 (the folder above must be on the path first)

POLL_S = 0.1
SCANS = 3
WORDS = 20_000
VOCABULARY = 16_000
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_words(seed: int) -> list[str]:
    """Return made-up words, long and short ones."""
    chance = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgk"
    return ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(WORDS)]


def make_chats(seed: int, words: int) -> Iterator[bytes]:
    """Yield chats of one question and one answer with so many words together, a line each, without end."""
    import orjson

    chance, known = random.Random(seed), make_words(seed)
    while True:
        asked = " ".join(chance.choices(known, k=words // 3))
        answer = " ".join(chance.choices(known, k=words - words // 3))
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        yield orjson.dumps({"messages": turns}) + b"\n"


def write_large(path: Path, megabytes: int) -> int:
    """Write a file of rows of some 700 bytes with one broken line near its end; return that line's number."""
    size, lines = 0, []
    for line in make_chats(1, 96):
        size += len(line)
        lines.append(line)
        if size >= megabytes * 10**6:
            break
    broken = len(lines) * 9 // 10
    lines[broken - 1] = b'{"messages": [{"role": "user"\n'
    path.write_bytes(b"".join(lines))
    return broken


def make_model(folder: Path) -> Path:
    """Make a folder with a tiny model and a byte-level tokenizer of VOCABULARY tokens, trained on our words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(make_words(2))], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return folder


def run_command(*words: str, workspace: Path) -> tuple[dict[str, Any], float, float]:
    """Return the answer of `launch.py data`, how long it took in seconds, and the peak of all processes in MB."""
    import psutil

    environment = os.environ | {"FINETUNE_STUDIO_WORKSPACE": str(workspace)}
    begin, peak_bytes = time.perf_counter(), 0
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, str(ROOT / "launch.py"), "--here", "data", *words, "--json"]
        child = subprocess.Popen(command, stdout=said, env=environment)
        while child.poll() is None:
            try:
                own = psutil.Process(child.pid)
                family = [own, *own.children(recursive=True)]
                peak_bytes = max(peak_bytes, sum(one.memory_info().rss for one in family))
            except psutil.NoSuchProcess:
                continue  # it ended between two questions
            time.sleep(POLL_S)
        took_s = time.perf_counter() - begin
        said.seek(0)
        return json.loads(said.read()), took_s, peak_bytes / 10**6


def measure_scan(path: Path) -> float:
    """Return megabytes a second of one core for reading, parsing, checking and hashing (xxh3 of each line).

    The best of SCANS: other programs only ever make it slower.
    """
    from xxhash import xxh3_128_digest

    from studio.data.convert import understand_source
    from studio.data.source import open_source

    spec = DatasetSpec(source=str(path))
    source = open_source(spec)
    understanding = understand_source(source, spec)
    read, mapping = understanding.format.read, understanding.mapping
    took_s = []
    for _ in range(SCANS):
        begin = time.perf_counter()
        for file in source.splits["train"]:
            for row in file.rows():
                xxh3_128_digest(row.raw)
                if row.problem is None:
                    read(row.values, mapping)
        took_s.append(time.perf_counter() - begin)
    return path.stat().st_size / 10**6 / min(took_s)


def measure_preview(path: Path) -> float:
    """Return the seconds to the first rows."""
    from studio.data.preview import preview

    begin = time.perf_counter()
    preview(DatasetSpec(source=str(path)), None)
    return time.perf_counter() - begin


def measure_large(folder: Path, megabytes: int, report: Callable[..., None]) -> None:
    """Report on one large file."""
    path = folder / "large.jsonl"
    broken = write_large(path, megabytes)
    report("first preview", measure_preview(path), "s", 1.0)
    small = folder / "small.jsonl"
    write_large(small, min(megabytes, 100))
    report("scan, one core", measure_scan(small), "MB/s", -100.0)
    for name in ("whole command", "whole command, second time"):
        answer, took_s, peak_mb = run_command(str(path), workspace=folder / "large")
        lines = [one["line"] for one in answer["problems"] if one["code"] == "E101"]
        if lines != [broken] or answer["rows_quarantined"] != 1:
            raise SystemExit(f"the broken line is {broken}, said were {lines}")
        report(name, took_s, "s", 0.0)
        report(f"{name}, speed", path.stat().st_size / 10**6 / took_s, "MB/s", -30.0)
        report(f"{name}, peak of all processes", peak_mb, "MB", 500.0)
    path.unlink()


def measure_chats(folder: Path, chats: int, report: Callable[..., None]) -> None:
    """Report on many short chats with a tokenizer."""
    model = make_model(folder / "model")
    path = folder / "chats.jsonl"
    with path.open("wb") as file:
        for _, line in zip(range(chats), make_chats(3, 40), strict=False):
            file.write(line)
    words = (str(path), "--model", str(model))
    for name, limit_s in ((f"{chats} chats with tokens", 60.0), (f"{chats} chats, second time", 3.0)):
        answer, took_s, peak_mb = run_command(*words, workspace=folder / "chats")
        if answer["rows_used"] != chats:
            raise SystemExit(f"{answer['rows_used']} of {chats} rows were used")
        report(name, took_s, "s", limit_s)
        report(f"{name}, peak of all processes", peak_mb, "MB", 0.0)
    report("tokens a chat", answer["stats"]["tokens"]["mean"], "tokens", 0.0)


def _describe_machine() -> tuple[str, str, str, str]:
    from importlib.metadata import version

    names = ("orjson", "pyarrow", "tokenizers")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    versions = " ".join(f"{name} {version(name)}" for name in names)
    words = " ".join(("python", "benchmarks/data.py", *sys.argv[1:]))
    return machine, versions, time.strftime("%Y-%m-%d"), words


def main() -> int:
    """Measure, print and write; returns 1 when something is slower or larger than it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--chats", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to measure on")
    options = parser.parse_args()
    rows: list[tuple[str, float, str, float, bool]] = []

    def report(name: str, value: float, unit: str, limit: float) -> None:
        """limit: at most so much; negative: at least so much; 0: only told."""
        ok = not limit or (value <= limit if limit > 0 else value >= -limit)
        rows.append((name, round(value, 3), unit, limit, ok))
        print(
            f"{name:45} {value:12,.2f} {unit:7} {'' if not limit else 'ok' if ok else 'MISSED'}", flush=True
        )

    folder = Path(tempfile.mkdtemp(prefix="studio-bench-", dir=options.scratch))
    try:
        if options.megabytes:
            measure_large(folder, options.megabytes, report)
        if options.chats:
            measure_chats(folder, options.chats, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.out:
        with options.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("what", "value", "unit", "limit", "ok", "machine", "versions", "date", "command")
            )
            writer.writerows((*row, *_describe_machine()) for row in rows)
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
