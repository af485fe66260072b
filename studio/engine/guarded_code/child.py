"""The child: loads one function of a person's code, and judges rows by it until its standard input closes.

Lines of JSON in and out. What the code prints is kept from the line and its end handed over with the answer. A C
thread of faulthandler ends the process where a row takes longer than its limit, also while the code holds Python's
lock and the parent is gone: nothing outlives the studio by more than a limit.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import faulthandler
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import random
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from studio.core.json_file import parse_json
from studio.engine.guarded_code.confine import confine

SAID_CHARACTERS = 2000
WORDS_CHARACTERS = 500
MARGIN_S = 1.0
MODULE = "reward"
"""The name under which a person's code runs."""
TEXT, MESSAGES = "text", "messages"
"""How an answer is handed over: as words, or as trl does for conversations, as [{"role": .., "content": ..}]."""


class Printed(io.TextIOBase):
    """Keeps the end of what is printed."""

    def __init__(self) -> None:
        self.tail = ""

    def write(self, words: str) -> int:
        """Take `words`."""
        self.tail = (self.tail + words)[-SAID_CHARACTERS:]
        return len(words)

    def writable(self) -> bool:
        """It is."""
        return True


class Function:
    """A person's function in one of the two habits of the field."""

    def __init__(self, call: Callable[..., Any], options: Mapping[str, Any], forms: Sequence[str]) -> None:
        self._call, self._options, self._forms = call, options, tuple(forms)
        try:
            parameters = inspect.signature(call).parameters
        except (TypeError, ValueError):
            parameters = {}
        self._row_by_row = "solution_str" in parameters
        self._any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        self._known = frozenset(parameters)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return what the code says of `rows`. Raises what it raises."""
        if self._row_by_row:
            return [self._judge(row) for row in rows]
        try:
            return self._judge_together(rows, self._forms[0])
        except (TypeError, AttributeError) as first:  # maybe it is written for the other form
            if len(self._forms) == 1:
                raise
            try:
                scores = self._judge_together(rows, self._forms[1])
            except Exception:
                raise first from None
        self._forms = self._forms[1:]
        return scores

    def _judge(self, row: Mapping[str, Any]) -> Any:
        columns = row["columns"]
        given = {
            "data_source": columns.get("data_source", ""), "solution_str": row["answer"],
            "ground_truth": row["expected"], "extra_info": columns.get("extra_info") or {},
        }  # fmt: skip
        said = self._call(
            **{name: value for name, value in given.items() if self._any or name in self._known}
        )
        return said.get("score") if isinstance(said, dict) else said

    def _judge_together(self, rows: Sequence[Mapping[str, Any]], form: str) -> list[Any]:
        names = dict.fromkeys(name for row in rows for name in row["columns"])
        given = {name: [row["columns"].get(name) for row in rows] for name in names} | dict(self._options)
        given |= {
            "completions": [_form_answer(row["answer"], form) for row in rows],
            "prompts": [_form_prompt(row["prompt"], form) for row in rows],
            "lengths": [row["length_tokens"] for row in rows], "ended": [row["ended"] for row in rows],
        }  # fmt: skip
        said = self._call(
            **{name: value for name, value in given.items() if self._any or name in self._known}
        )
        if inspect.isawaitable(said):
            said = asyncio.run(_wait_for(said))
        said = said.tolist() if hasattr(said, "tolist") else said
        if isinstance(said, (str, bytes)) or not hasattr(said, "__iter__"):
            raise WrongType(type(said).__name__)
        return list(said)


class WrongType(Exception):
    """What a function gave is no list of numbers."""


async def _wait_for(said: Any) -> Any:
    return await said


def _form_answer(answer: str, form: str) -> Any:
    return [{"role": "assistant", "content": answer}] if form == MESSAGES else answer


def _form_prompt(prompt: Sequence[Mapping[str, Any]], form: str) -> Any:
    return list(prompt) if form == MESSAGES else (prompt[-1].get("content", "") if prompt else "")


def choose_forms(code: ast.Module) -> tuple[str, ...]:
    """Return the forms in which answers are tried: as messages first where the code reads a "content"."""
    reads = any(isinstance(node, ast.Constant) and node.value == "content" for node in ast.walk(code))
    return (MESSAGES, TEXT) if reads else (TEXT, MESSAGES)


def load(wish: Mapping[str, Any]) -> Function:
    """Return the function of a wish to load. Raises what the code raises."""
    path = wish["path"]
    with open(path, encoding="utf-8-sig") as file:
        code = ast.parse(file.read(), filename=path)
    forms = (wish["form"],) if wish["form"] else choose_forms(code)
    loader = importlib.machinery.SourceFileLoader(MODULE, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(MODULE, loader))
    sys.modules[MODULE] = module  # a dataclass looks its own module up there
    loader.exec_module(module)
    return Function(getattr(module, wish["function"]), wish["options"], forms)


def judge(function: Function, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return {"scores"} of `rows`, or what went wrong as {"failed", "detail"}."""
    said = function(rows)
    if len(said) != len(rows):
        return {"failed": "wrong_length", "detail": f"{len(said)} / {len(rows)}"}
    for one in said:
        if one is not None and not hasattr(one, "__float__"):
            return {"failed": "wrong_type", "detail": type(one).__name__}
    return {"scores": [None if one is None else float(one) for one in said]}


def describe(error: BaseException, path: str) -> dict[str, str]:
    """Return an error of a person's code as {"failed", "detail"}, with its line."""
    if isinstance(error, WrongType):
        return {"failed": "wrong_type", "detail": str(error)}
    if isinstance(error, MemoryError):
        return {"failed": "memory", "detail": ""}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f" (line {lines[-1]})" if lines else ""
    return {"failed": "raised", "detail": f"{type(error).__name__}: {str(error)[:WORDS_CHARACTERS]}{where}"}


def attempt(work: Callable[[], dict[str, Any]], path: str, limit_s: float, ends: IO[str]) -> dict[str, Any]:
    """Return what `work` answers, with what it printed; what goes wrong in it is an answer, too."""
    printed = Printed()
    faulthandler.dump_traceback_later(limit_s + MARGIN_S, exit=True, file=ends)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            answer = work()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        answer = describe(error, path)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return answer | {"said": printed.tail}


def seed_by(words: bytes, seed: int) -> None:
    """Seed what draws random numbers by what is judged: a run that goes on scores the same answers the same."""
    drawn = zlib.crc32(words, seed % 2**32)
    random.seed(drawn)
    if isinstance(numpy := sys.modules.get("numpy"), types.ModuleType):
        numpy.random.seed(drawn)


def main() -> None:
    """Serve the parent."""
    line_out = os.fdopen(os.dup(1), "wb")
    line_in = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "r+", encoding="utf-8") as nothing:
        for number in (0, 1, 2):  # what code of C prints goes nowhere, and what it reads is empty
            os.dup2(nothing.fileno(), number)
        wish = parse_json(line_in.readline())
        path, loaded = wish["path"], []
        confine(memory_bytes=wish["memory_bytes"], network=wish["network"], processes=wish["processes"])

        def start() -> dict[str, Any]:
            loaded.append(load(wish))
            return {"loaded": True}

        answer = attempt(start, path, wish["load_s"], nothing)
        while True:
            line_out.write(json.dumps(answer).encode() + b"\n")
            line_out.flush()
            line = line_in.readline()
            if not line or not loaded:
                return
            ask = parse_json(line)
            seed_by(line, wish["seed"])
            answer = attempt(lambda rows=ask["rows"]: judge(loaded[0], rows), path, ask["limit_s"], nothing)


if __name__ == "__main__":
    main()
