"""Which installed package, model or program a file of code belongs to, by its path."""

from __future__ import annotations

import re
import sys

from studio.machine.failures.package_names import LIBRARIES

PLACE = re.compile(r"[\\/](?:site|dist)-packages[\\/](?P<package>\w+)")
CHECKOUT = re.compile(r"[\\/](?:src[\\/]|(?P<same>\w+)[\\/](?=(?P=same)[\\/]))(?P<package>\w+)[\\/]")
"""As in /w/xformers/xformers/ops and /w/LLaMA-Factory/src/llamafactory/train."""
MODEL_CODE = "transformers_modules"
STANDARD = re.compile(
    r"[\\/](?:lib[\\/])?[Pp]ython(?:3[\d.]*)?[\\/](?:lib[\\/])?[\w\\/]+\.py$|<frozen|^<string>", re.IGNORECASE
)
LIBRARY_FOLDER = re.compile(r"[\\/][Ll]ib[\\/](?P<module>\w+)(?:[\\/]\w+)*\.py$")
"""Where Windows keeps Python's own modules."""
SHORT_PATHS = re.compile(
    r"^(?:\.{2,3}|~|\u2026)?/?(?P<package>transformers|torch|trl|peft|datasets|accelerate|bitsandbytes|gradio|"
    r"gradio_client|triton|unsloth|"
    r"unsloth_zoo|huggingface_hub|deepspeed|vllm|axolotl|llamafactory)[\\/]"
)


def package_of(path: str) -> str:
    """Return the package that owns the file `path`; "" for a program's own, "python" for Python's."""
    if MODEL_CODE in path:
        return MODEL_CODE
    place = PLACE.search(path) or SHORT_PATHS.match(path) or _checkout(path)
    if place:
        return place["package"]
    inside = LIBRARY_FOLDER.search(path)
    standard = STANDARD.search(path) or (inside and inside["module"] in sys.stdlib_module_names)
    return "python" if standard else ""


def _checkout(path: str) -> re.Match[str] | None:
    """Return where a package's own source folder stands in `path`, of one that was installed from there."""
    found = CHECKOUT.search(path)
    return found if found and found["package"] in LIBRARIES else None
