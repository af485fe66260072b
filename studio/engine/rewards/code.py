"""A person's own code as a reward, in either habit of the field, in children with limits (engine/guarded_code).

def my_reward(completions, **columns) -> list[float | None]                                     as trl calls it
def compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float            as verl calls it
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.i18n import Text, literal, text
from studio.core.knob import knob
from studio.engine.guarded_code.pool import CodeLimits, CodePool, Failed, Program
from studio.engine.rewards.given_answer import find_expected
from studio.engine.rewards.reward import Answered, Reward, RowReward

PREFIX = "file:"
MOST_BYTES = 2**20
ARGUMENTS = ("completions", "solution_str")
"""By which of these arguments a function is known as a reward, of trl's habit and of verl's."""
KEPT = "rewards"
"""The folder of a run where the code stands that judged it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code(RowReward):
    """One function of a file."""

    name: ClassVar[str] = "file"
    runs_code: ClassVar[bool] = True

    path: str
    function: str = knob("")
    completions: str = knob("auto", choices=("auto", "text", "messages"))
    batch_s: float = knob(10.0, minimum=0.1, maximum=3600)
    row_s: float = knob(5.0, minimum=0.1, maximum=3600)
    memory_gib: float = knob(4.0, minimum=0.1, maximum=1024)
    network: bool = knob(False)
    processes: bool = knob(False)

    @contextmanager
    def opened(self, folder: Path, seed: int) -> Iterator[Reward]:
        """See RowReward. Raises StudioError for a file that cannot be read, holds no reward or fails to load."""
        code = read_code(Path(self.path))
        function = choose_function(code, self.function, self.path)
        kept = keep_code(code, Path(self.path).stem, folder)
        program = Program(path=kept, function=function, form=self.form)
        with CodePool(program, self.limits, seed=seed) as pool:
            if (failed := pool.load()) is not None:
                why = text(f"reward.failed.{failed.kind}", detail=failed.detail)
                raise refuse_code(self.path, why, text("reward.code.load.fix"))
            yield OpenCode(function, pool)

    @property
    def form(self) -> str:
        """How answers are handed over; "" for finding out."""
        return "" if self.completions == "auto" else self.completions

    @property
    def limits(self) -> CodeLimits:
        """What the code may take."""
        return CodeLimits(
            batch_s=self.batch_s,
            row_s=self.row_s,
            memory_bytes=round(self.memory_gib * 2**30),
            network=self.network,
            processes=self.processes,
        )


class OpenCode:
    """A function whose children stand."""

    def __init__(self, name: str, pool: CodePool) -> None:
        self.name, self._pool = name, pool

    @property
    def said(self) -> str:
        """The end of what it printed last."""
        return self._pool.said

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """See Reward."""
        return self._pool.judge([write_row(answered) for answered in answers])


def write_row(answered: Answered) -> dict[str, Any]:
    """Return an answer as children are told of it."""
    return {
        "prompt": [dict(turn) for turn in answered.prompt],
        "answer": answered.answer,
        "columns": dict(answered.columns),
        "expected": find_expected(answered.columns),
        "length_tokens": answered.length_tokens,
        "ended": answered.ended,
    }


def read_code(path: Path) -> str:
    """Return the words of a file of Python code. Raises StudioError."""
    try:
        content = path.read_bytes()[: MOST_BYTES + 1]
        if len(content) > MOST_BYTES:
            raise refuse_code(
                str(path), text("reward.code.long", most=MOST_BYTES // 1024), text("reward.code.fix")
            )
        return content.decode("utf-8-sig")
    except OSError as error:
        why = literal(error.strerror or str(error))
        raise refuse_code(str(path), why, text("reward.code.fix")) from error
    except UnicodeDecodeError as error:
        raise refuse_code(str(path), text("reward.code.encoding"), text("reward.code.fix")) from error


def list_functions(code: str, path: str = "") -> tuple[str, ...]:
    """Return the names of the functions in `code` that judge answers, without running it. Raises StudioError."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 0
        why = text("reward.code.syntax", line=line, words=getattr(error, "msg", None) or str(error))
        raise refuse_code(path, why, text("reward.code.load.fix")) from error
    found = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return tuple(node.name for node in found if not node.name.startswith("_") and _judges(node.args))


def _judges(arguments: ast.arguments) -> bool:
    return any(
        one.arg in ARGUMENTS for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    )


def choose_function(code: str, wanted: str, path: str) -> str:
    """Return the function of `code` to call: `wanted`, or the only one that judges answers. Raises StudioError."""
    found = list_functions(code, path)
    if wanted in found:
        return wanted
    if not found:
        raise refuse_code(path, text("reward.code.none"), text("reward.code.none.fix"))
    if wanted:
        why = text("reward.code.unknown", name=wanted, names=", ".join(found))
        raise refuse_code(path, why, text("reward.code.several.fix"))
    if len(found) > 1:
        raise refuse_code(
            path, text("reward.code.several", names=", ".join(found)), text("reward.code.several.fix")
        )
    return found[0]


def keep_code(code: str, name: str, folder: Path) -> Path:
    """Return where `code` stands in a run's folder: what judged a run can be read there, whatever becomes of the file.

    Raises OSError.
    """
    content = code.encode()
    path = folder / KEPT / f"{name}-{hashlib.sha256(content).hexdigest()[:8]}.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    return path


def refuse_code(path: str, why: Text, fix: Text) -> StudioError:
    """Return the refusal of a file of code."""
    return StudioError(text("reward.code", name=Path(path).name or path), why, fix)
