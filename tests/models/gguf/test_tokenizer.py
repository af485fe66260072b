"""Tokenizers out of GGUF files cut text as their models were trained to."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from studio.core.errors import StudioError
from studio.models.gguf.header import read_header
from studio.models.gguf.tokenizer import STRINGS, order_merges, write_tokenizer
from studio.models.gguf.word_patterns import WORD_PATTERNS
from tests.models.gguf.files import write_file

BYTES = [f"<0x{number:02X}>" for number in range(256)]
PIECES = {
    "▁": -1.0,
    "h": -2.0,
    "e": -3.0,
    "l": -4.0,
    "o": -5.0,
    "he": -0.5,
    "ll": -0.4,
    "llo": -0.3,
    "hello": -0.2,
}
SPM = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, "▁hello", "<turn>", "  "]
"""SentencePiece's kind: `▁hello` likeliest; a control token and one of the person's own at the end."""


def spm(tmp_path, **more):
    scores = [0.0] * 259 + [*PIECES.values(), -0.1, 0.0, 0.0]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) + 1) + [3, 4]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SPM,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }
    return load(tmp_path, metadata)


def load(tmp_path, metadata):
    header = read_header(write_file(tmp_path / "m.gguf", metadata), STRINGS)
    write_tokenizer(header, tmp_path, 512)
    return AutoTokenizer.from_pretrained(tmp_path)


def words(tokenizer, text: str, **more) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text, **more)["input_ids"])


def test_sentencepiece_joins_the_likeliest_pair_first_and_says_the_rest_in_bytes(tmp_path):
    tokenizer = spm(tmp_path)
    assert words(tokenizer, "hello") == ["<s>", "▁hello"]
    assert words(tokenizer, "helo", add_special_tokens=False) == ["▁", "he", "l", "o"]
    assert words(tokenizer, "é", add_special_tokens=False) == ["▁", "<0xC3>", "<0xA9>"]
    assert words(tokenizer, "hello<turn>hello", add_special_tokens=False)[:2] == ["▁hello", "<turn>"]
    assert "  " in words(tokenizer, "hello  hello", add_special_tokens=False)
    assert tokenizer.decode(tokenizer("hello é", add_special_tokens=False)["input_ids"]) == "hello é"
    assert "<turn>" in tokenizer.all_special_tokens or tokenizer.added_tokens_decoder[269].special


def test_without_a_space_in_front_and_without_a_begin_token(tmp_path):
    more = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    assert words(spm(tmp_path, **more), "hello") == ["hello"]


def test_an_end_token_is_added_where_the_file_says_so(tmp_path):
    assert words(spm(tmp_path, **{"tokenizer.ggml.add_eos_token": True}), "hello") == [
        "<s>",
        "▁hello",
        "</s>",
    ]


def test_the_order_of_merges():
    tokens, scores = ["a", "b", "c", "ab", "bc", "abc"], [-1.0, -2.0, -3.0, -0.5, -0.4, -0.1]
    assert order_merges(tokens, scores, [1] * 6) == [("a", "bc"), ("ab", "c"), ("b", "c"), ("a", "b")]


def bytelevel(tmp_path, pattern, **more):
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "ab", "Ġa", "12", "abab", "<|end|>"]
    return load(
        tmp_path,
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pattern,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
            "tokenizer.ggml.merges": ["a b", "Ġ a", "1 2"],
            "tokenizer.ggml.eos_token_id": len(tokens) - 1,
            **more,
        },
    )


def test_byte_pairs_are_cut_by_the_pattern_of_their_name(tmp_path):
    assert words(bytelevel(tmp_path, "gpt-2"), "ab 12") == ["ab", "Ġ", "12"]
    assert words(bytelevel(tmp_path, "smollm"), "ab 12") == ["ab", "Ġ", "1", "2"]  # each digit a word
    assert words(bytelevel(tmp_path, "qwen2"), "ab12") == ["ab", "1", "2"]
    assert words(bytelevel(tmp_path, "llama-bpe"), "ab12") == ["ab", "12"]
    # A word that is a token is that token, though no merge makes it.
    assert words(bytelevel(tmp_path, "llama-bpe"), "abab") == ["abab"]
    assert words(bytelevel(tmp_path, "qwen2"), "abab") == ["ab", "ab"]


@pytest.mark.parametrize("pattern", sorted(WORD_PATTERNS))
def test_no_pattern_loses_a_character(tmp_path, pattern):
    tokenizer, text = bytelevel(tmp_path, pattern), "I'm “fine” — 1,234.5\n\n\tЯ 你好 ​e\u0301 <|x|>  end\r\n "
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize(
    "change, refusal",
    [
        ({"tokenizer.ggml.pre": "never-heard-of"}, "gguf.word_pattern"),
        ({"tokenizer.ggml.model": "bert"}, "gguf.tokenizer"),
    ],
)
def test_an_unknown_tokenizer_is_refused(tmp_path, change, refusal):
    with pytest.raises(StudioError) as caught:
        bytelevel(tmp_path, "gpt-2", **change)
    assert caught.value.what.id == refusal


def test_pieces_without_scores_are_refused(tmp_path):
    with pytest.raises(StudioError) as caught:
        spm(tmp_path, **{"tokenizer.ggml.scores": [0.0]})
    assert caught.value.what.id == "gguf.tokenizer"
