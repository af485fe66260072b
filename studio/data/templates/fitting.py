"""Which templates of the catalogue a tokenizer can write, and whether a template's end mark is one of its tokens.

Only what needs no new token is offered: a token that the model never saw would have to be learned with its rows of the
embedding and of the head, which an adapter does not train.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import jinja2

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.open_question import Question
from studio.data.template import PROBES, ChatTemplate

MARKS: Mapping[str, tuple[str, ...]] = {
    "gemma3": ("<start_of_turn>", "<end_of_turn>"),
    "gemma2": ("<start_of_turn>", "<end_of_turn>"),
    "llama3.1": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "phi4": ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<think>"),
    "qwen2": ("<|im_start|>", "<|im_end|>", "<|object_ref_start|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "phi4-mini": ("<|user|>", "<|assistant|>", "<|end|>", "<|tool|>"),
    "phi3": ("<|user|>", "<|assistant|>", "<|end|>"),
    "zephyr": ("<|user|>", "<|assistant|>", "<|system|>"),
    "deepseek": ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "command-r": ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    "mistral": ("[INST]", "[/INST]"),
}
"""Tokens that the tokenizers of a template's family have, from the particular to the general."""
LATER: Mapping[str, str] = {"qwen2": "qwen3", "phi3": "phi4-mini", "chatml": "phi4"}
"""Left out where the tokenizer is known to be of the other, later family."""
WORDED = ("vicuna", "alpaca")
"""Their marks are plain words, and the tokenizer's end token ends an answer: every tokenizer can write them."""


def find_fitting(added: Collection[str]) -> tuple[str, ...]:
    """Return the names of the templates that need no new token, the fitting one first; `added`: the added tokens."""
    known = set(added)
    fitting = [name for name, marks in MARKS.items() if known.issuperset(marks)]
    return (*(name for name in fitting if LATER.get(name) not in fitting), *WORDED)


def refuse_missing(added: Collection[str]) -> StudioError:
    """Return the refusal of conversations for a tokenizer without a template of its own, with what would fit."""
    first, *others = find_fitting(added)
    fix = text("data.render.no_template.fix", first=first, others=", ".join(others))
    return StudioError(text("data.render.no_template"), text("data.render.no_template.why"), fix)


def ask_template(added: Collection[str]) -> Question:
    """Return the question which template is to be used, for a tokenizer without one of its own."""
    choices = find_fitting(added)
    return Question(id="template", question=text("data.template.ask"), choices=choices, field="data.template")


def find_split_end(source: str, added: Collection[str]) -> str:
    """Return the mark that ends an answer in the template `source`, where it is none of the `added` tokens; else "".

    "" too where the tokenizer's own end token ends it. `source` must have been tried before, or be of the catalogue.
    """
    try:
        words = ChatTemplate(source, {"bos_token": "", "eos_token": ""}).try_render(PROBES[0]) or ""
    except jinja2.TemplateError:
        return ""
    mark = next(iter(words.rpartition("say 1")[2].split()), "")
    return "" if any(mark.startswith(token) for token in added if token) else mark
