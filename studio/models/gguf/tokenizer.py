"""The tokenizer inside a GGUF file, as the files that transformers reads: tokenizer.json and what stands beside it.

How text is cut before it is joined to tokens a file tells by a name alone (`tokenizer.ggml.pre`). The names and their
patterns are those of llama.cpp (src/llama-vocab.cpp, MIT licence, copyright the ggml authors), written for Oniguruma.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.models.gguf.header import GgufHeader, refuse
from studio.models.gguf.word_patterns import (
    BYTE_PIECES,
    DIGITS_FIRST,
    IGNORES_MERGES,
    SPACE_MARKED,
    WORD_PATTERNS,
)

STRINGS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
"""Arrays of text that a header is to be read with."""
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
"""Types of tokens that are not plain pieces of text (llama.cpp's llama_token_type; 1 is plain, 5 unused)."""
SPACE = "\u2581"
"""SentencePiece's mark for a space."""
OTHER_TEMPLATES = "tokenizer.chat_template."


def write_tokenizer(header: GgufHeader, folder: Path, longest: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template, if any, into `folder`.

    `header` is read with STRINGS. `longest`: positions of the model, in tokens. Raises StudioError for a tokenizer that
    is not understood.
    """
    metadata = header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise refuse("no_tokenizer", header.files[0].name)
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _build_byte_level(header, tokens)
    elif kind in ("llama", "gemma4"):
        backend = _build_sentencepiece(header, tokens)
    else:
        raise refuse("tokenizer", header.files[0].name, kind=str(kind))
    _add_specials(backend, metadata, tokens)
    backend.save(str(folder / "tokenizer.json"))
    settings = _describe(metadata, tokens, longest)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, ensure_ascii=False, indent=2), encoding="utf-8"
    )
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template.strip():
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _describe(metadata: Mapping[str, Any], tokens: Sequence[str], longest: int) -> dict[str, Any]:
    """Return tokenizer_config.json's values."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            settings[f"{name}_token"] = tokens[number]
    return settings


def _build_byte_level(header: GgufHeader, tokens: Sequence[str]) -> Any:
    """Return the tokenizer of byte pairs, GPT-2's way."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    metadata = header.metadata
    name = metadata.get("tokenizer.ggml.pre") or "default"
    if name in SPACE_MARKED:
        return _build_sentencepiece(header, tokens)
    if name not in WORD_PATTERNS:
        raise refuse("word_pattern", header.files[0].name, pattern=name)
    vocabulary = _number_tokens(tokens)
    merges = _split_merges(metadata.get("tokenizer.ggml.merges") or [])
    model = models.BPE(
        vocab=vocabulary,
        # Files of tokenizers without any have one that cannot occur, since llama.cpp opens none without.
        merges=[pair for pair in merges if "".join(pair) in vocabulary],
        ignore_merges=name in IGNORES_MERGES,
    )
    backend = Tokenizer(model)
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in WORD_PATTERNS[name]]
    if name in DIGITS_FIRST:
        steps = [pre_tokenizers.Digits(individual_digits=True)]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in BYTE_PIECES)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, whole]) if steps else whole
    backend.decoder = decoders.ByteLevel()
    _add_bounds(backend, metadata, tokens, begins=bool(metadata.get("tokenizer.ggml.add_bos_token", False)))
    return backend


def _build_sentencepiece(header: GgufHeader, tokens: Sequence[str]) -> Any:
    """Return SentencePiece's tokenizer of pairs: what is not in the vocabulary is said in bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    metadata = header.metadata
    vocabulary = _number_tokens(tokens)
    merges = _split_merges(metadata.get("tokenizer.ggml.merges") or [])
    if not merges:
        scores = metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, list) or len(scores) != len(tokens):
            raise refuse("tokenizer", header.files[0].name, kind="llama")
        kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
        merges = order_merges(tokens, scores, kinds)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=tokens[unknown] if unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(
        metadata.get("tokenizer.ggml.add_space_prefix", metadata.get("tokenizer.ggml.model") == "llama")
    )
    marks = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", SPACE)])
    backs = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *backs]
    )
    _add_bounds(backend, metadata, tokens, begins=bool(metadata.get("tokenizer.ggml.add_bos_token", True)))
    return backend


def order_merges(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """Return which pairs are joined, first to last: SentencePiece joins the pair whose token has the highest score.

    Of a token's ways to be made of two others, that of the likelier parts goes first, as in transformers'
    `SentencePieceExtractor`.
    """
    plain = {
        token: number for number, token in enumerate(tokens) if kinds[number] not in (CONTROL, UNKNOWN, BYTE)
    }
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, number in plain.items():
        for cut in range(1, len(token)):
            left, right = plain.get(token[:cut]), plain.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[number], left, right, (token[:cut], token[cut:])))
    found.sort(key=lambda entry: entry[:3])
    return [pair for *_, pair in found]


def _number_tokens(tokens: Sequence[str]) -> dict[str, int]:
    """Return token -> number; of two that are alike the first counts."""
    numbered: dict[str, int] = {}
    for number, token in enumerate(tokens):
        numbered.setdefault(token, number)
    return numbered


def _split_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs; a file has `left right`, where either may begin with a space that is part of it."""
    pairs = []
    for merge in merges:
        cut = merge.index(" ", 1)
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _add_specials(backend: Any, metadata: Mapping[str, Any], tokens: Sequence[str]) -> None:
    """Make control tokens special, and those that people added whole pieces of text."""
    from tokenizers import AddedToken

    kinds = metadata.get("tokenizer.ggml.token_type") or []
    named = {
        metadata.get(f"tokenizer.ggml.{key}_token_id")
        for key in ("bos", "eos", "eot", "eom", "unknown", "padding")
    }
    special, added = [], []
    for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):
        if kind in (CONTROL, UNKNOWN) or (number in named and kind == USER_DEFINED):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == USER_DEFINED:
            added.append(AddedToken(token, special=False, normalized=False))
    backend.add_tokens(added)
    backend.add_special_tokens(special)


def _add_bounds(backend: Any, metadata: Mapping[str, Any], tokens: Sequence[str], *, begins: bool) -> None:
    """Put the begin token before a text, and the end token after it, where the file says so."""
    from tokenizers import processors

    first, last = metadata.get("tokenizer.ggml.bos_token_id"), metadata.get("tokenizer.ggml.eos_token_id")
    starts = [tokens[first]] if begins and isinstance(first, int) and first < len(tokens) else []
    adds_end = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    ends = [tokens[last]] if adds_end and isinstance(last, int) and last < len(tokens) else []
    if not starts and not ends:
        return
    single = [*(f"{token}:0" for token in starts), "$A:0", *(f"{token}:0" for token in ends)]
    pair = [*single, *(f"{token}:1" for token in starts), "$B:1", *(f"{token}:1" for token in ends)]
    numbers = {tokens[number]: number for number in (first, last) if isinstance(number, int)}
    named = [(token, numbers[token]) for token in dict.fromkeys((*starts, *ends))]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=named)
