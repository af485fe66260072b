"""The code of the answer passes the row's tests. It is the model's code that runs: in a child for each answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from studio.core.json_file import parse_json
from studio.core.knob import knob
from studio.data.formats.column_names import simplify
from studio.engine.guarded_code.pool import CodeLimits, CodePool, Failed, Program
from studio.engine.guarded_code.programs import run_tests
from studio.engine.rewards.given_answer import take_part
from studio.engine.rewards.reward import Answered, Reward, RowReward

COLUMNS = ("test_list", "tests", "test_cases", "test", "unit_tests", "input_output", "verification_info")
"""What mbpp, HumanEval, APPS and their kin call them."""
SOLUTIONS = ("code", "solution", "answer")
OURS = ("raised", "timeout", "memory", "exited", "wrong_type")
"""Ends that the model's code comes to: 0, and no fault of the reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tests(RowReward):
    """The share of tests that pass."""

    name: ClassVar[str] = "tests"
    needs_expected: ClassVar[bool] = True
    runs_code: ClassVar[bool] = True

    column: str = knob("")
    row_s: float = knob(5.0, minimum=0.1, maximum=600)
    memory_gib: float = knob(1.0, minimum=0.1, maximum=1024)

    def find_given(self, columns: Mapping[str, object]) -> str | None:
        """See RowReward: code that passes."""
        by_name = {simplify(name): value for name, value in columns.items()}
        found = (by_name.get(name) for name in SOLUTIONS)
        return next((code for code in found if isinstance(code, str) and code.strip()), None)

    @contextmanager
    def opened(self, folder: Path, seed: int) -> Iterator[Reward]:
        """See RowReward."""
        limits = CodeLimits(row_s=self.row_s, memory_bytes=round(self.memory_gib * 2**30), fresh=True)
        program = Program(path=Path(run_tests.__file__), function=run_tests.judge.__name__, form="text")
        with CodePool(program, limits, seed=seed) as pool:
            yield OpenTests(self, pool)


class OpenTests:
    """Tests whose children stand."""

    def __init__(self, reward: Tests, pool: CodePool) -> None:
        self.name, self._reward, self._pool = reward.name, reward, pool

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """See Reward."""
        tests = [find_tests(answered.columns, self._reward.column) for answered in answers]
        rows = [
            {
                "answer": take_part(answered.answer), "prompt": [], "expected": None, "length_tokens": 0, "ended": True,
                "columns": {"tests": given, "entry_points": str(answered.columns.get("entry_point") or "")},
            }
            for answered, given in zip(answers, tests, strict=True) if given is not None
        ]  # fmt: skip
        found = iter(self._pool.judge(rows) if rows else ())
        scores = [next(found) if given is not None else None for given in tests]
        return [0.0 if isinstance(one, Failed) and one.kind in OURS else one for one in scores]


def find_tests(columns: Mapping[str, object], column: str = "") -> object | None:
    """Return a row's tests: Python's own words, a list of them, or {"inputs": [..], "outputs": [..]}; None without."""
    by_name = {simplify(name): value for name, value in columns.items()}
    names = (column,) if column else COLUMNS
    found = next((by_name[simplify(name)] for name in names if by_name.get(simplify(name))), None)
    if isinstance(found, str) and found.lstrip().startswith(("{", "[")):
        try:
            found = parse_json(found)
        except ValueError:
            return found
    if isinstance(found, Mapping):
        return dict(found) if "inputs" in found else None
    return found
