"""Which chat templates can be chosen, which family a template belongs to, and where it departs from it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.template import PROBES, ChatTemplate

FOLDER = Path(__file__).resolve().parent
FILE_BYTES = 2**20
REFUSED = "(refused)"
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "phi4": ("<|im_sep|>",),
    "qwen3": ("<|im_start|>", "</think>"),
    "qwen2": ("<|im_start|>", "Qwen"),
    "chatml": ("<|im_start|>",),
    "llama3.1": ("<|start_header_id|>", "Cutting Knowledge Date"),
    "llama3": ("<|start_header_id|>",),
    "llama2": ("[INST]", "<<SYS>>"),
    "mistral": ("[INST]",),
    "gemma2": ("<start_of_turn>", REFUSED),
    "gemma3": ("<start_of_turn>",),
    "deepseek": ("<｜User｜>",),
    "command-r": ("<|START_OF_TURN_TOKEN|>",),
    "phi4-mini": ("<|end|>", "<|tool|>"),
    "phi3": ("<|end|>", "<|user|>"),
    "zephyr": ("<|user|>", "<eos>"),
    "vicuna": ("USER:", "ASSISTANT:"),
    "alpaca": ("### Instruction:", "### Response:"),
}
"""What stands in every template of a family or in what it writes, from the particular to the general."""


def list_names() -> tuple[str, ...]:
    """Return the names of the catalogue in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))


def read_family(name: str) -> str:
    """Return the template of the family `name`, one of list_names()."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def read_choice(choice: str) -> str:
    """Return the template that `choice` names: of the catalogue, or the path of a .jinja file. Raises StudioError."""
    names = list_names()
    if choice in names:
        return read_family(choice)
    path = Path(os.path.expanduser(choice))
    try:
        if path.suffix.lower() == ".jinja" and path.stat().st_size <= FILE_BYTES:
            return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise _refuse(choice, names) from error
    raise _refuse(choice, names)


def is_ours(source: str) -> bool:
    """Return whether `source` is a template of the catalogue, which needs no trial."""
    return any(read_family(name) == source for name in list_names())


def recognise(source: str) -> str:
    """Return the family that a template belongs to, by the signs in it and in its text; "" when none is known.

    Raises jinja2.TemplateError when `source` is no template.
    """
    words = "\n".join((source, *_lay_out(ChatTemplate(source, TOKENS))))
    return next((name for name, signs in FAMILIES.items() if all(sign in words for sign in signs)), "")


def difference(own: str, family: str, special_tokens: Mapping[str, str] | None = None) -> list[str]:
    """Return where the text of template `own` departs from that of template `family`, as lines of a unified diff.

    Both lay out the same short conversations; line ends stand as `\\n` so that a lost one can be seen. Empty when
    they agree. Raises jinja2.TemplateError when `own` is no template. `own` must have been tried before
    (template_child.require_safe).
    """
    tokens = TOKENS | dict(special_tokens or {})
    texts = [_lay_out(ChatTemplate(source, tokens)) for source in (family, own)]
    return list(difflib.unified_diff(*texts, "family", "own", n=2, lineterm=""))


def _lay_out(template: ChatTemplate) -> list[str]:
    lines = []
    for number, turns in enumerate(PROBES, start=1):
        words = template.try_render(turns)
        asked = template.try_render(turns[:-1], generation_prompt=True)
        for name, found in (("whole", words), ("prompt", asked)):
            lines.append(f"# conversation {number}, {name}")
            lines += [REFUSED] if found is None else [repr(line)[1:-1] for line in found.splitlines(True)]
    return lines


def _refuse(choice: str, names: tuple[str, ...]) -> StudioError:
    values = {"name": choice[:200], "names": ", ".join(names)}
    return StudioError(*(text(f"data.template.unknown{part}", **values) for part in ("", ".why", ".fix")))
