"""Tokenizers with the chat templates of several model families, written from their published formats."""

from __future__ import annotations

import json

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "<|begin|>{% for m in messages %}<|start_header|>{{ m.role }}<|end_header|>\n\n"
    "{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header|>assistant<|end_header|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MERGED_SYSTEM = (
    "{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}"
    "{% elif m.role == 'user' %}<|user|>{{ ns.system }}{{ m.content }}<|end|>{% set ns.system = '' %}"
    "{% else %}<|bot|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
THINKING = (  # Earlier answers lose their thoughts, the last gets an empty thought: not stable under prefixes.
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_PROMPT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
FINAL_EOS = (  # Phi-3 style: one more token behind the whole conversation.
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}"
)
NO_SPECIALS = (
    "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% endif %}"
)
LOSES_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LOSES_USER = LOSES_SYSTEM.replace("'system'", "'user'")
LOSES_TOOLS = (
    "{% for m in messages %}{% if m.role != 'tool' %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|end|>{% endif %}{% endfor %}"
)
LOSES_ANSWER = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content if m.role == 'user' else '' }}<|end|>{% endfor %}"
)
TWO_ENDS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DOUBLE_END = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end_text|><|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ROLES = ("<|end|>", "<|user|>", "<|assistant|>")
FAMILIES = {
    "chatml": (CHATML, ("<|im_end|>", "<|im_start|>")),
    "llama3": (LLAMA3, ("<|eot|>", "<|begin|>", "<|start_header|>", "<|end_header|>")),
    "gemma": (GEMMA, ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")),
    "merged_system": (MERGED_SYSTEM, ("<|end|>", "<|user|>", "<|bot|>")),
    "mistral": (MISTRAL, ("</s>", "<s>", "[INST]", "[/INST]")),
    "thinking": (THINKING, ("<|im_end|>", "<|im_start|>")),
    "no_prompt": (NO_PROMPT, ("<|im_end|>", "<|im_start|>")),
    "final_eos": (FINAL_EOS, ("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")),
    "no_specials": (NO_SPECIALS, ("<|endoftext|>",)),
    "loses_system": (LOSES_SYSTEM, ROLES),
    "loses_user": (LOSES_USER, ROLES),
    "loses_answer": (LOSES_ANSWER, ROLES),
    "loses_tools": (LOSES_TOOLS, ROLES),
    "two_ends": (TWO_ENDS, (*ROLES, "<|return|>")),
    "double_end": (DOUBLE_END, (*ROLES, "<|end_text|>")),
}


def make_tokenizer(family: str):
    """Return a byte-level tokenizer with the template of `family`; its first special token is the end token."""
    template, specials = FAMILIES.get(family, (None, ("<|end|>",)))
    merges = [("l", "l"), ("Ġ", "t"), ("o", "n"), ("Ċ", "Ċ")]
    bos = "<bos>" if "<bos>" in specials else None
    return build_tokenizer(template, specials, bos=bos, merges=merges)


def build_tokenizer(template, specials, *, extra=(), bos=None, merges=()):
    """Return a byte-level tokenizer; `specials` begin with the end token, `extra` are added tokens, not special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*specials, *alphabet, *("".join(pair) for pair in merges)]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in extra])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=specials[0],
        bos_token=bos,
        additional_special_tokens=list(specials[1:]),
    )
    tokenizer.chat_template = template
    return tokenizer


def build_metaspace_tokenizer(template, specials):
    """Return a tokenizer as SentencePiece makes them: a space is part of the word behind it, and put in front."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    words = "ask one two say the rain in Paris is four lines\n [INST] [/INST] ASSISTANT: USER: 0123456789"
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", *specials],
        initial_alphabet=sorted(set(words)),
        show_progress=False,
    )
    backend.train_from_iterator([words] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token=specials[0], bos_token=specials[1]
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_of():
    """A function `get(family) -> tokenizer`; "plain" has no chat template. Each is made once a session."""
    made = {}

    def get(family: str = "chatml"):
        if family not in made:
            made[family] = make_tokenizer(family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def tokenizers_of():
    """The functions build_tokenizer and build_metaspace_tokenizer, for tests with templates of their own."""
    return build_tokenizer, build_metaspace_tokenizer


@pytest.fixture(scope="session")
def say_trained():
    """A function that returns the trained stretches of a Rendered, decoded."""

    def say(rendered, tokenizer) -> list[str]:
        parts, current = [], []
        for token, trained in zip(rendered.token_ids.tolist(), rendered.trained.tolist(), strict=True):
            if trained:
                current.append(token)
            elif current:
                parts.append(current)
                current = []
        return [tokenizer.decode(part) for part in [*parts, current] if part]

    return say


@pytest.fixture(scope="session")
def english():
    """A function that says a Text in English."""
    from studio.core.i18n import load_catalogue

    return load_catalogue("en").say


@pytest.fixture
def tell(tmp_path):
    """A function: rows, or columns -> the report of `data`."""

    def run(rows=None, file="rows.jsonl", answers=(), header=True, format="auto", **columns):
        if rows is None:
            rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
        path = tmp_path / file
        if file.endswith(".csv"):
            lines = [",".join(f'"{cell}"' for cell in row.values()) for row in rows]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return describe(DatasetSpec(source=str(path), format=format, mapping=dict(answers)), rows=2)

    return run
