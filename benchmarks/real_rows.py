"""Real conversations for a benchmark: picked from a ShareGPT file, tokenised once by the studio, kept as arrays."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.recipe import DatasetSpec
from studio.data.formats.cells import is_blank
from studio.data.prepare import prepare
from studio.data.sequence_packing import Example
from studio.models.catalog import inspect_model
from studio.models.tokenizer import load_tokenizer

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "system": "system"}
BLOCK_CHARACTERS = 2**22
FRAME_TOKENS = 4
"""What the template of make_model.py puts around a question and an answer, one token a byte."""
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def read_list(path: Path) -> Iterator[Any]:
    """Yield the elements of a JSON list that may be cut off in its middle, as the file of ShareGPT is."""
    decoder, text, place = json.JSONDecoder(), "", 0
    with path.open(encoding="utf-8", errors="replace") as file:
        ended = False
        while True:
            while place < len(text) and text[place] in "[, \r\n\t":
                place += 1
            try:
                value, place = decoder.raw_decode(text, place)
                yield value
            except ValueError:
                if ended:
                    return
                more = file.read(BLOCK_CHARACTERS)
                text, place, ended = text[place:] + more, 0, not more


def read_messages(row: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """Return a row's turns as messages; None where one is blank or they do not alternate and end with an answer."""
    turns = row.get("conversations") or []
    messages = [
        {"role": ROLES.get(turn.get("from"), ""), "content": (turn.get("value") or "").strip()}
        for turn in turns
    ]
    talk = messages[1:] if messages and messages[0]["role"] == "system" else messages
    roles = [message["role"] for message in talk]
    whole = len(roles) >= 2 and roles == ["user", "assistant"] * (len(roles) // 2)
    return messages if whole and not any(is_blank(message["content"]) for message in messages) else None


def pick_rows(
    source: Path, model: Path, folder: Path, *, train: int, held_out: int, longest: int, seed: int = 0
) -> None:
    """Write train.jsonl.gz and held_out.jsonl.gz: conversations of at most `longest` tokens, in a drawn order.

    Parts of one conversation (ids of one stem) come into the same file. Raises ValueError where there are too few.
    """
    tokenizer = load_tokenizer(inspect_model(str(model)))
    stems: dict[str, list[list[dict[str, str]]]] = {}
    for row in read_list(source):
        messages = read_messages(row)
        if messages is not None:
            stems.setdefault(str(row.get("id")).rpartition("_")[0], []).append(messages)
    order = sorted(stems)
    random.Random(seed).shuffle(order)
    wanted = {"held_out": held_out, "train": train}
    picked: dict[str, list[Any]] = {name: [] for name in wanted}
    for stem in order:
        name = next((name for name, count in wanted.items() if len(picked[name]) < count), None)
        if name is None:
            break
        for messages in stems[stem]:
            if sum(len(message["content"]) for message in messages) <= 12 * longest:  # else not tried
                ids = tokenizer.apply_chat_template(messages, return_dict=False)
                if len(ids) <= longest and len(picked[name]) < wanted[name]:
                    picked[name].append({"messages": messages})
    for name, rows in picked.items():
        if len(rows) < wanted[name]:
            raise ValueError(f"{len(rows)} conversations for {name}, {wanted[name]} were asked for")
        write_rows(folder / f"{name}.jsonl.gz", rows)


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write rows as compressed JSON lines, the same bytes for the same rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(words.encode("utf-8"), mtime=0))


def shape_rows(examples: Path, folder: Path, *, train: int, held_out: int, seed: int = 0) -> None:
    """Write conversations for a model with a token a byte, as long as those of `examples`, whose words are random.

    Each has as many trained tokens as its original, in one answer.
    """
    draw = random.Random(seed)
    kept = read_examples(examples)
    for name, count in (("train", train), ("held_out", held_out)):
        rows = []
        for example in kept[name][:count]:
            answer = max(1, int(example.trained.sum()) - 1)
            question = max(1, len(example.token_ids) - answer - FRAME_TOKENS)
            rows.append(
                {
                    "messages": [
                        {"role": "user", "content": draw_words(draw, question)},
                        {"role": "assistant", "content": draw_words(draw, answer)},
                    ]
                }
            )
        write_rows(folder / f"{name}.jsonl.gz", rows)


def draw_words(draw: random.Random, count: int) -> str:
    """Return `count` characters with a letter at both ends, so that nothing is stripped."""
    words = "".join(draw.choices(LETTERS, k=count))
    return "x" + words[1:-1] + "x" if count > 1 else "x"


def write_examples(folder: Path, model: Path, longest: int, seed: int) -> Path:
    """Tokenise folder/train and held_out as a run of the studio does, and return the file that keeps them."""
    tokenizer = load_tokenizer(inspect_model(str(model)))
    arrays: dict[str, np.ndarray] = {}
    for name in ("train", "held_out"):
        source = str(folder / f"{name}.jsonl.gz")
        spec = DatasetSpec(source=source, max_length=longest, validation_share=0.0)
        rows = list(prepare(spec, "auto", tokenizer, seed=seed).train)
        arrays[f"{name}_ids"] = np.concatenate([row.token_ids for row in rows]).astype(np.int32)
        arrays[f"{name}_trained"] = np.concatenate([row.trained for row in rows])
        arrays[f"{name}_lengths"] = np.array([len(row.token_ids) for row in rows], dtype=np.int32)
    path = folder / "examples.npz"
    np.savez(path, **arrays)
    return path


def read_examples(path: Path) -> dict[str, list[Example]]:
    """Return the examples that write_examples() kept: `train` and `held_out`, in the studio's order."""
    with np.load(path) as arrays:
        found = {}
        for name in ("train", "held_out"):
            ends = np.cumsum(arrays[f"{name}_lengths"])[:-1]
            parts = zip(
                np.split(arrays[f"{name}_ids"], ends),
                np.split(arrays[f"{name}_trained"], ends),
                strict=True,
            )
            found[name] = [Example(ids, trained, (len(ids),)) for ids, trained in parts]
    return found
