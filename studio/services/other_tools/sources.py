"""Data sets and adapters as other tools name them, in the recipe's words."""

from __future__ import annotations

import re
from dataclasses import replace

from studio.data.templates.catalogue import FAMILIES
from studio.services.other_tools.translation import Translation
from studio.services.other_tools.written import Setting, Unresolved, number, truth, words

SLICE = re.compile(r"(\w[\w.-]*)\[(?::(\d+)|:?(\d+)%?:?(?:\d+%?)?)\]")
"""`train[:1000]`; with per cent or from a row on there is no counterpart."""
TARGETS_ALL = ("all", "all-linear", "all_linear", "auto")
TEMPLATES = {
    "llama-3": "llama3",
    "llama3": "llama3",
    "llama-3.1": "llama3.1",
    "llama31": "llama3.1",
    "llama-31": "llama3.1",
    "mistral": "mistral",
    "chatml": "chatml",
    "gemma": "gemma2",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma-3": "gemma3",
    "phi3": "phi3",
    "phi-3": "phi3",
    "phi_3": "phi3",
    "phi4": "phi4",
    "phi-4": "phi4",
    "qwen": "qwen2",
    "qwen2": "qwen2",
    "qwen25": "qwen2",
    "qwen2.5": "qwen2",
    "qwen-2.5": "qwen2",
    "qwen3": "qwen3",
    "qwen-3": "qwen3",
    "zephyr": "zephyr",
    "vicuna": "vicuna",
    "alpaca": "alpaca",
    "llama2": "llama2",
    "deepseek": "deepseek",
    "cohere": "command-r",
    "command_r": "command-r",
}
"""Another tool's name of a chat template -> ours of the same family."""
MODELS_OWN = ("default", "tokenizer_default", "auto", "jinja", "")


def place_file(t: Translation, name: str) -> str:
    """Return a file's or folder's name as a path where it lies beside the config, else as it is written."""
    return str((t.written.folder / name).absolute()) if name and t.written.is_file(name) else name


def take_model(t: Translation, *keys: str) -> None:
    """Set the model; a copy that is stored in 4 bits says so."""
    found = t.find(*keys)
    if found is None:
        return
    if isinstance(found.value, Unresolved):
        t.differ(found, "unresolved", words=words(found.value))
        return
    t.take(found, "model.source", place_file(t, str(found.value)))


def take_quantization(t: Translation, four: str, eight: str) -> None:
    """Set how the frozen weights are held, from two switches."""
    bits4, bits8 = t.find(four), t.find(eight)
    if bits4 is not None:
        if truth(bits4.value):
            t.take(bits4, "model.quantization", "nf4")
        else:
            t.leave(bits4, "off")
    if bits8 is not None:
        if truth(bits8.value) and t.get("model.quantization") is None:
            t.take(bits8, "model.quantization", "int8")
        else:
            t.leave(bits8, "off")


def take_targets(t: Translation, setting: Setting) -> None:
    """Set where the adapter sits."""
    value = setting.value
    listed = [
        str(one).strip() for one in (value if isinstance(value, (list, tuple)) else str(value).split(","))
    ]
    listed = [one for one in listed if one]
    if isinstance(value, Unresolved):
        t.differ(setting, "unresolved", words=words(value))
    elif len(listed) == 1 and listed[0].lower() in TARGETS_ALL:
        t.take(setting, "adapter.target_modules", "all-linear")
    elif any(one.lower() in TARGETS_ALL for one in listed):
        t.change(setting, "adapter.target_modules", "all-linear", "targets.more")
    elif any(re.search(r"[*\\^$|()\[\]]", one) for one in listed):
        t.differ(setting, "targets.pattern")
    else:
        t.take(setting, "adapter.target_modules", ",".join(listed))


def take_template(t: Translation, setting: Setting) -> None:
    """Set the chat template where ours has one of that family; else the model's own is used."""
    said = str(setting.value).strip()
    if isinstance(setting.value, Unresolved):
        t.differ(setting, "unresolved", words=words(setting.value))
    elif said.lower() in MODELS_OWN:
        t.leave(setting, "template.own")
    elif "{" in said:
        t.differ(setting, "template.words")
    elif said.endswith(".jinja"):
        t.take(setting, "data.template", place_file(t, said))
    else:
        near = TEMPLATES.get(said.lower()) or TEMPLATES.get(said.lower().split("_")[0])
        if near is not None and near in FAMILIES:
            t.leave(setting, "template.near", near=near)
        else:
            t.differ(setting, "template.none")


def take_split(t: Translation, setting: Setting) -> None:
    """Set the split, and of `train[:1000]` the rows to take."""
    said = str(setting.value)
    if isinstance(setting.value, Unresolved):
        t.differ(setting, "unresolved", words=words(setting.value))
        return
    part = SLICE.fullmatch(said)
    if part is None and "[" not in said:
        t.take(setting, "data.split", said)
    elif part is not None and part.group(2) and "%" not in said:
        t.take(setting, "data.split", part.group(1))
        t.take(replace(setting, key=f"{setting.key}[:]"), "data.max_rows", int(part.group(2)))
    else:
        t.change(setting, "data.split", said.partition("[")[0], "split.share")


def take_share(t: Translation, setting: Setting, path: str = "data.validation_share") -> None:
    """Set the share of rows that is held out; a count of rows has no counterpart."""
    count = number(setting.value)
    if count is not None and count > 1:
        t.differ(setting, "validation.count")
    elif count is not None and count > 0.5:
        t.change(setting, path, 0.5, "validation.most")
    else:
        t.take(setting, path)


def take_sources(t: Translation, listed: list[tuple[Setting, str, float]]) -> None:
    """Set the data: the first source, and the others beside it with their weights."""
    for place, (setting, name, weight) in enumerate(listed):
        if place == 0:
            t.take(setting, "data.source", place_file(t, name))
            if weight != 1:
                t.differ(replace(setting, key=f"{setting.key} (weight)", value=weight), "mix.first")
        else:
            mix = dict(t.get("data.mix") or {})
            mix[place_file(t, name)] = f"{weight:g}"
            t.change(setting, "data.mix", mix, "mix")
