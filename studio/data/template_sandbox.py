"""A template that came with a model or in a file is first tried in a child process with little time and memory.

Run as `python -P -m studio.data.template_sandbox`: standard input holds the template, standard output gets the verdict.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.json_file import parse_json, read_json

TIME_S = 10.0
"""Of the processor's time: where others keep it busy, a good template waits as long."""
WAIT_S = 6 * TIME_S
MEMORY_BYTES = 512 * 2**20
OUTPUT_CHARACTERS = 16 * 2**20
"""No probe holds more than 200,000 characters; what makes so much of them grows without end."""
SOURCE_CHARACTERS = 2**20
TICK_S = 0.02
FORMAT_REACH = re.compile(r"\{[^{}]*[.\[]_[^{}]*\}")
"""A blank of str.format that reaches for a hidden name: "{0.__class__}"."""
VERSION = 1
"""Part of the verdict's name in the cache; raised when the trial changes."""


@dataclass(frozen=True, slots=True)
class TemplateVerdict:
    """What the trial of a template showed."""

    fault: str = ""
    """"" when it may be used; `broken`: no template at all; `endless`, `large`, `escape`: it must not be used."""
    detail: str = ""


def require_safe(source: str, cache: Path | None = None) -> None:
    """Return when the template `source` may be used in this process; raises StudioError when not."""
    verdict = judge(source, cache)
    if verdict.fault:
        values = {"detail": verdict.detail, "seconds": round(TIME_S), "megabytes": MEMORY_BYTES // 2**20}
        raise StudioError(
            *(text(f"data.template.{verdict.fault}{part}", **values) for part in ("", ".why", ".fix"))
        )


def judge(source: str, cache: Path | None = None) -> TemplateVerdict:
    """Return the verdict on `source`: from the folder `cache` when it was tried before, else from a child process."""
    if len(source) > SOURCE_CHARACTERS:
        return TemplateVerdict("large")
    if cache is None:
        return _judge_once(source)
    digest = hashlib.sha256(f"{VERSION}\0{source}".encode("utf-8", "surrogatepass")).hexdigest()
    place = cache / "templates" / f"{digest}.json"
    try:
        return TemplateVerdict(**read_json(place))
    except (StudioError, TypeError):
        verdict = _judge_once(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, asdict(verdict))
    return verdict


@lru_cache(maxsize=64)
def _judge_once(source: str) -> TemplateVerdict:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
        given.write(source.encode("utf-8", "surrogatepass"))
        given.seek(0)
        child = _start(given, answer)
        ends_s = time.monotonic() + WAIT_S
        try:
            while child.poll() is None:
                used_s, used_bytes = _measure(child.pid)
                if used_s > TIME_S or time.monotonic() > ends_s:
                    return TemplateVerdict("endless")
                # Windows has no limit that the child could set itself.
                if used_bytes > MEMORY_BYTES:
                    return TemplateVerdict("large")
                time.sleep(TICK_S)
        finally:
            child.kill()
            child.wait()
        answer.seek(0)
        lines = answer.read().decode("utf-8", errors="replace").splitlines()
    try:
        return TemplateVerdict(**parse_json(lines[-1]))
    except (IndexError, ValueError, TypeError):
        return TemplateVerdict(
            "large"
        )  # It died before it could say: of its memory, or of too deep a recursion.


def _measure(pid: int) -> tuple[float, int]:
    """Return the processor's time and the memory that a process has taken, in seconds and bytes."""
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss
    except psutil.Error:
        return 0.0, 0  # It ended between two looks.


def _start(given: IO[bytes], answer: IO[bytes]) -> subprocess.Popen:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "studio.data.template_sandbox"],
        stdin=given,
        stdout=answer,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ) | {"PYTHONPATH": path},
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


# In the child --------------------------------------------------------------------------------------------------------


def try_out(source: str) -> TemplateVerdict:
    """Return the verdict on `source` by looking at it and rendering probes with it; may never return."""
    from jinja2 import TemplateSyntaxError
    from jinja2.exceptions import SecurityError

    from studio.data.template import PROBES, REFERENCE_DATE, TEMPLATE_ERRORS, TooLarge, make_environment

    environment = make_environment(REFERENCE_DATE)
    try:
        hidden = find_hidden_name(environment.parse(source))
        if hidden:
            return TemplateVerdict("escape", hidden)
        compiled = environment.from_string(source)
    except TemplateSyntaxError as error:
        return TemplateVerdict("broken", f"{error.lineno}: {error.message}"[:160])
    except (*TEMPLATE_ERRORS, SyntaxError) as error:
        return TemplateVerdict("broken", str(error)[:160])
    for turns in (*PROBES, LONG_PROBE, TOOL_PROBE):
        for generation_prompt in (False, True):
            characters = 0
            try:
                for part in compiled.generate(
                    messages=turns,
                    tools=TOOLS if turns is TOOL_PROBE else None,
                    documents=None,
                    add_generation_prompt=generation_prompt,
                    bos_token="<s>",
                    eos_token="</s>",
                ):
                    characters += len(part)
                    if characters > OUTPUT_CHARACTERS:
                        return TemplateVerdict("large")
            except SecurityError as error:
                return TemplateVerdict("escape", str(error)[:160])
            except (MemoryError, TooLarge):
                return TemplateVerdict("large")
            except TEMPLATE_ERRORS:
                continue  # It may refuse a conversation.
    return TemplateVerdict()


def find_hidden_name(tree: Any) -> str:
    """Return the first name with leading underscores that a parsed template reaches for; "" where there is none."""
    from jinja2 import nodes

    for node in tree.find_all((nodes.Getattr, nodes.Const)):
        name = node.attr if isinstance(node, nodes.Getattr) else node.value
        mark = "_" if isinstance(node, nodes.Getattr) else "__"
        # A line of underscores is drawing, no name.
        if isinstance(name, str) and name.startswith(mark) and name.strip("_").isidentifier():
            return name[:80]
        if isinstance(name, str) and (found := FORMAT_REACH.search(name)):
            return found[0][:80]
    return ""


LONG_PROBE = tuple(
    {"role": role, "content": f"{role} {number} " + "some words in a line\n" * 50}
    for number in range(32)
    for role in ("user", "assistant")
)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "find_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name"}},
                "required": ["city"],
            },
        },
    },
)
TOOL_PROBE = (
    {"role": "user", "content": "ask 1"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "type": "function",
                "id": "abcdef123",
                "function": {"name": "find_weather", "arguments": {"city": "Paris"}},
            }
        ],
    },
    {"role": "tool", "name": "find_weather", "tool_call_id": "abcdef123", "content": "rain 7"},
    {"role": "assistant", "content": "say 1"},
)


def limit_memory() -> None:
    """Let this process have no more than MEMORY_BYTES, where the system can do that."""
    if os.name == "nt":
        return  # The parent looks.
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ValueError, OSError):
        return  # macOS refuses it; the parent looks.


def main() -> None:
    """Read a template, write its Verdict."""
    source = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    limit_memory()
    try:
        verdict = try_out(source)
    except MemoryError:
        verdict = TemplateVerdict("large")
    sys.stdout.write(json.dumps(asdict(verdict)) + "\n")


if __name__ == "__main__":
    main()
