"""What `ollama create NAME -f Modelfile` reads: the file, the template in Go, where answers end, how to sample."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation
from studio.data.template import compile_like
from studio.data.templates.ollama import find_family, find_losses, write_template

OLLAMA = "0.30.0"
"""From this version on Ollama takes the file's own template where a Modelfile has none."""
USUAL_TOKENS = 4096
"""Ollama's own context: an answer may need more room than the training's rows."""
SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
            "repetition_penalty": "repeat_penalty"}  # fmt: skip
"""transformers' names, and Ollama's."""
QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Modelfile:
    """What is written, and what a person should know of it."""

    words: str
    template: str
    """The catalogue's name of the template in it; "": Ollama takes the one that the GGUF file holds."""
    notes: tuple[Text, ...]


def make_modelfile(
    file: str,
    folder: Path,
    spec: DatasetSpec,
    chats: Sequence[Conversation],
    *,
    adds_begin: bool,
    context: int,
) -> Modelfile:
    """Return the Modelfile of the GGUF file `file`, made of the model in `folder` that learned from data as `spec`.

    chats: some of what it learned from: whether Ollama would lay them out alike is told. adds_begin: whether the file's
    tokenizer puts the first token itself; context: tokens that the model can read.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    generation = (
        read_json(folder / "generation_config.json") if (folder / "generation_config.json").is_file() else {}
    )
    lines = [f"FROM ./{file}", f"REQUIRES {OLLAMA}"]
    name, system, words, notes = "", spec.system_prompt, "", []
    if tokenizer.chat_template:
        tokens = tokenizer.special_tokens_map
        own = compile_like(tokenizer, tokenizer.chat_template)
        found = find_family(own, tokens)
        if found is None:
            notes.append(text("export.ollama.own_template"))
        else:
            name, said = found
            system = system or said
            words = write_template(name, tokens, adds_begin=adds_begin)
            notes += _list_losses(own, name, chats)
    if words and QUOTES not in words:
        lines.append(f"TEMPLATE {QUOTES}{words}{QUOTES}")
    if system and QUOTES not in system:
        lines.append(f"SYSTEM {QUOTES}{system}{QUOTES}")
    lines += _list_parameters(tokenizer, generation, min(context, max(spec.max_length, USUAL_TOKENS)))
    return Modelfile("\n".join(lines) + "\n", name, tuple(notes))


def _list_parameters(tokenizer: Any, generation: dict[str, Any], tokens: int) -> list[str]:
    ends = generation.get("eos_token_id")
    ids = [one for one in (ends if isinstance(ends, list) else [ends]) if isinstance(one, int)]
    stops = [json.dumps(tokenizer.convert_ids_to_tokens(one), ensure_ascii=False) for one in ids]
    sampled = [
        (name, generation[key])
        for key, name in SAMPLING.items()
        if isinstance(generation.get(key), (int, float))
    ]
    values = [("num_ctx", tokens), *sampled, *(("stop", one) for one in stops)]
    return [f"PARAMETER {name} {value}" for name, value in values]


def _list_losses(own: Any, name: str, chats: Sequence[Conversation]) -> list[Text]:
    """Return for each reason how many of the chats Ollama would lay out otherwise."""
    counted: Counter[str] = Counter()
    reasons: dict[str, Text] = {}
    for chat in chats:
        turns = [message.to_dict() for message in chat.messages]
        for reason in find_losses(own, name, turns, chat.tools) if turns else ():
            counted[reason.id] += 1
            reasons.setdefault(reason.id, reason)
    return [
        text("export.ollama.loses", count=count, total=len(chats), reason=reasons[id])
        for id, count in counted.items()
    ]
