"""The tokenizer of a folder as the keys of a GGUF file: what tokenizer.py opens, written.

How a text is cut into words a file says by a name (`tokenizer.ggml.pre`): the one whose pattern is the tokenizer's own.
Whether the same tokens come out is not decided here: the written file is read again and compared (written.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.core.json_file import read_json
from studio.models.gguf.header import refuse
from studio.models.gguf.tokenizer import BYTE, CONTROL, SPACE, UNKNOWN, USER_DEFINED
from studio.models.gguf.word_patterns import BYTE_PIECES, DIGITS_FIRST, IGNORES_MERGES, WORD_PATTERNS

PLAIN, UNUSED = 1, 5
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
NEVER = "ÿ ÿ"
"""A merge that cannot occur: llama.cpp does not load a file without one, and some tokenizers have none."""
USUAL = (
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "tekken",
    "gpt-4o",
    "deepseek-v3",
    "smollm",
    "deepseek-coder",
)
"""Of names with the same pattern, the one that is written; then any."""
GGUF_GEMMA_4 = "gemma4"
Keys = dict[str, Any]


def list_tokenizer_keys(folder: Path, rows: int, architecture: str, file: str) -> Keys:
    """Return the `tokenizer.*` keys for the tokenizer in `folder`.

    `rows`: of the embedding, which the list of tokens is filled up to. Raises StudioError for a tokenizer that a GGUF
    file cannot hold.
    """
    spec = read_json(folder / "tokenizer.json")
    settings = read_json(folder / "tokenizer_config.json")
    model = spec.get("model") or {}
    if model.get("type") != "BPE":
        raise refuse("tokenizer_kind", file, kind=str(model.get("type")))
    added = {one["id"]: one for one in spec.get("added_tokens") or ()}
    vocabulary = {number: token for token, number in model["vocab"].items()} | {
        number: one["content"] for number, one in added.items()
    }
    if max(vocabulary) >= rows:
        raise refuse("tokenizer_long", file, tokens=max(vocabulary) + 1, rows=rows)
    tokens = [vocabulary.get(number, f"[PAD{number}]") for number in range(rows)]
    merges = [one if isinstance(one, str) else " ".join(one) for one in model.get("merges") or ()]
    marked = bool(model.get("byte_fallback"))
    kinds = [
        _judge_token(number, vocabulary, added, model.get("unk_token"), marked) for number in range(rows)
    ]
    keys: Keys = {"tokens": tokens, "token_type": kinds}
    if not marked:
        keys |= {"model": "gpt2", "pre": _name_pattern(spec, model, file), "merges": merges or [NEVER]}
    elif architecture == GGUF_GEMMA_4:
        keys |= {"model": GGUF_GEMMA_4, "merges": merges}
    else:
        keys |= {"model": "llama", "pre": "default", "scores": _score(tokens, kinds, merges)}
        keys["add_space_prefix"] = _prepends_space(spec)
    keys |= _list_specials(folder, spec, settings, tokens)
    named = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    template = folder / "chat_template.jinja"
    words = template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template")
    if isinstance(words, str) and words.strip():
        named["tokenizer.chat_template"] = words
    return named


def _judge_token(
    number: int,
    vocabulary: Mapping[int, str],
    added: Mapping[int, Mapping[str, Any]],
    unknown: str | None,
    marked: bool,
) -> int:
    if number not in vocabulary:
        return UNUSED
    if marked and vocabulary[number] == unknown:
        return UNKNOWN
    if number in added:
        return CONTROL if added[number].get("special") else USER_DEFINED
    return BYTE if marked and BYTE_TOKEN.fullmatch(vocabulary[number]) else PLAIN


def _name_pattern(spec: Mapping[str, Any], model: Mapping[str, Any], file: str) -> str:
    """Return the name of how the tokenizer cuts a text. Raises StudioError where there is none."""
    patterns, digits, own = _list_cuts(spec, file)
    ignores = bool(model.get("ignore_merges"))
    fitting = [
        name
        for name, known in WORD_PATTERNS.items()
        if known == patterns
        and (name in DIGITS_FIRST) == digits
        and (name in BYTE_PIECES) == own
        and (name in IGNORES_MERGES) == ignores
    ]
    if not fitting:
        raise refuse("no_pattern", file, pattern=" + ".join(patterns)[:80] or "-")
    return next((name for name in USUAL if name in fitting), fitting[0])


def _list_cuts(spec: Mapping[str, Any], file: str) -> tuple[tuple[str, ...], bool, bool]:
    """Return the patterns that cut a text, whether each digit is a word, and whether GPT-2's own pattern follows."""
    step = spec.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step]) if step.get("type") == "Sequence" else [step]
    patterns: list[str] = []
    digits = own = False
    for one in steps:
        kind = one.get("type")
        if kind == "Split" and "Regex" in one["pattern"] and not one.get("invert"):
            patterns.append(one["pattern"]["Regex"])
        elif kind == "Digits" and one.get("individual_digits"):
            digits = True
        elif kind == "ByteLevel" and not one.get("add_prefix_space"):
            own = one.get("use_regex", True)
        else:
            raise refuse("no_pattern", file, pattern=str(kind))
    kind = (spec.get("normalizer") or {}).get("type", "NFC")
    if kind != "NFC":  # llama.cpp takes texts as they are: most are in NFC already
        raise refuse("no_pattern", file, pattern=str(kind))
    return tuple(patterns), digits, own


def _score(tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[str]) -> list[float]:
    """Return SentencePiece's scores: a token that is made by an earlier merge is likelier; others are never made."""
    first: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", "", 1), rank)
    never = float(-len(merges) - 1)
    return [
        float(-first[token]) if token in first else (never if kind == PLAIN else 0.0)
        for token, kind in zip(tokens, kinds, strict=True)
    ]


def _prepends_space(spec: Mapping[str, Any]) -> bool:
    """Return whether a text is read as if a space stood before it."""
    step = spec.get("normalizer") or {}
    steps = step.get("normalizers", [step]) if step.get("type") == "Sequence" else [step]
    if any(one.get("type") == "Prepend" and one.get("prepend") == SPACE for one in steps):
        return True
    before = spec.get("pre_tokenizer") or {}
    return before.get("type") == "Metaspace" and before.get("prepend_scheme", "always") != "never"


def _list_specials(
    folder: Path, spec: Mapping[str, Any], settings: Mapping[str, Any], tokens: Sequence[str]
) -> Keys:
    from tokenizers import Tokenizer

    numbers = {token: number for number, token in reversed([*enumerate(tokens)])}
    keys: Keys = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = settings.get(f"{name}_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        if token in numbers:
            keys[f"{key}_token_id"] = numbers[token]
    ends = _read_ends(folder)
    if ends and "eos_token_id" not in keys:
        keys["eos_token_id"] = ends[0]
    turn = [one for one in ends if one != keys.get("eos_token_id")]
    if turn:
        keys["eot_token_id"] = turn[0]
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bare, whole = (backend.encode("a", add_special_tokens=one).ids for one in (False, True))
    keys["add_bos_token"] = bool(whole) and whole[0] == keys.get("bos_token_id") and whole[0] not in bare
    keys["add_eos_token"] = bool(whole) and whole[-1] == keys.get("eos_token_id") and whole[-1] not in bare
    return keys


def _read_ends(folder: Path) -> list[int]:
    """Return the ids at which an answer ends."""
    path = folder / "generation_config.json"
    found = read_json(path).get("eos_token_id") if path.is_file() else None
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, int)]
