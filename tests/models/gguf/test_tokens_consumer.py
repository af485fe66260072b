"""Real llama.cpp reads the same tokens of 50 texts, and writes the same chats, as the folder that a file is made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from studio.models.catalog import DEMO_MODEL
from studio.models.gguf.llama_cpp import ask
from studio.models.gguf.tokenizer_keys import USUAL
from studio.models.gguf.word_patterns import BYTE_PIECES, DIGITS_FIRST, IGNORES_MERGES, WORD_PATTERNS
from studio.models.gguf.written import TEXTS
from tests.models.gguf.models import MODELS, make_folder, write
from tests.trained_model import get_trained_model

pytestmark = pytest.mark.computing

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|tool|>")
OWN = "<think>"
"""An added token that is no special one."""
MORE = (
    "", " ", "  ", "\n", "\n\n\n", "\t", " \n \n", "\r\n", "a\u00a0b", "\u3000全角空格", "a", " a", "a ", "  a  ",
    "Hello", " Hello", "Hello\nWorld", "HELLO world HeLLo", "it's I'd we'll THEY'RE", "o’clock “quoted”",
    "你好", "今天天气很好，我们去公园吧。", "繁體中文與简体中文混排", "中文English混合123", "東京は333メートル",
    "안녕하세요 세계",
    "Привет, мир!", "مرحبا بالعالم", "नमस्ते दुनिया", "Ελληνικά", "😀", "👍🏽 👨‍👩‍👧‍👦 🇨🇳", "emoji😀inside", "☃ ★ ♥ → ≠",
    "0", "12", "123", "1234", "3.14", "1,000,000", "2025-11-27T03:37", "x=1;y+=2", "def f(a,b):\n\treturn a**b",
    "{\"name\": \"Ann\", \"n\": [1, 2]}", "<b>&amp;</b>", "C:\\\\Users\\\\x", "a/b//c", "...", "!!!???", "-----",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "a<|im_end|>b", "<|im_end|> <|im_end|>",
    "<think>\nso\n</think>", "<|tool|>{}<|tool|>你好", "naïve café — Zürich ½",
)  # fmt: skip
ALL = (*TEXTS, *MORE)
CHATS = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What's 1 < 2 & 3?"}],
    [
        {"role": "user", "content": "你好，世界！"},
        {"role": "assistant", "content": "你好 😀\n"},
        {"role": "user", "content": "  Again?  "},
    ],
)
PATTERNS = {
    name: patterns
    for name, patterns in WORD_PATTERNS.items()
    if name in USUAL or list(WORD_PATTERNS.values()).count(patterns) == 1
}


def train(pattern: str | None, *, prepends: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer of byte-level pairs cut by a pattern, or SentencePiece's kind for None."""
    corpus = [*ALL, *(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("*.py"))]
    if pattern is None:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        steps = [normalizers.Prepend("▁")] if prepends else []
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
        fed = " ".join(words.replace("▁", " ") for words in corpus)
        found = trainers.BpeTrainer(
            vocab_size=900, special_tokens=["<unk>", "<s>", "</s>", *[f"<0x{one:02X}>" for one in range(256)]],
            limit_alphabet=120, max_token_length=12,
        )  # fmt: skip
        tokenizer.train_from_iterator(fed.split("\n"), found)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        spec = json.loads(tokenizer.to_str())
        kept = {"<unk>", "<s>", "</s>"}  # bytes are no added tokens
        spec["added_tokens"] = [one for one in spec["added_tokens"] if one["content"] in kept]
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    else:
        tokenizer = Tokenizer(models.BPE(ignore_merges=pattern in IGNORES_MERGES))
        steps = [pre_tokenizers.Digits(individual_digits=True)] if pattern in DIGITS_FIRST else []
        steps += [pre_tokenizers.Split(Regex(one), "isolated") for one in PATTERNS[pattern]]
        steps += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern in BYTE_PIECES)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet))
        named = {"eos_token": SPECIALS[1]}
    tokenizer.add_tokens([OWN])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        extra_special_tokens=list(SPECIALS),
        clean_up_tokenization_spaces=False,
        **named,
    )


def hold(folder: Path, tokenizer, texts, chats=CHATS) -> None:
    """Write the folder as a file and hold llama.cpp's tokens and chats against those of its tokenizer."""
    path = write(folder, "F16")
    found = ask(path, {"texts": texts, "chats": list(chats)})
    for words, ids in zip(texts, found["tokens"], strict=True):
        assert ids == tokenizer.encode(words, add_special_tokens=False), words
    begin = tokenizer.bos_token or "\0"
    for chat, rendered in zip(chats, found["rendered"], strict=True):
        wanted = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert rendered.removeprefix(begin) == wanted.removeprefix(begin)


def put(folder: Path, tokenizer) -> None:
    """Give a tiny model this tokenizer."""
    template = (DEMO_MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    make_folder(folder, *MODELS["llama"])
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


def test_there_are_fifty_texts_and_more():
    assert len(set(ALL)) >= 50


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_way_of_cutting_words_gives_the_same_tokens(pattern, tmp_path):
    tokenizer = train(pattern)
    put(tmp_path, tokenizer)
    hold(tmp_path, tokenizer, list(ALL))


@pytest.mark.parametrize("prepends", [False, True], ids=["gemma", "llama2"])
def test_pieces_with_marks_for_spaces_give_the_same_tokens(prepends, tmp_path):
    tokenizer = train(None, prepends=prepends)
    put(tmp_path, tokenizer)
    # A mark behind a special token: tokenizer.json and llama.cpp differ there where one is put before each text.
    texts = [one for one in ALL if one and not (prepends and any(token in one for token in (*SPECIALS, OWN)))]
    hold(tmp_path, tokenizer, texts, chats=())


@pytest.mark.parametrize("source", ["demo", "trained"])
def test_a_real_tokenizer_gives_the_same_tokens_and_chats(source, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO_MODEL if source == "demo" else get_trained_model(), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    hold(folder, tokenizer, list(ALL))
