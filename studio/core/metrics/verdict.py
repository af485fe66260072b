"""What a judge, another model, is asked, and the score in what it says."""

from __future__ import annotations

import re

from studio.core.metrics.metric import AnsweredRow

MOST_SCORE = 10
VERDICT_TOKENS = 512
SCORE = re.compile(r"score\W{0,6}(\d+(?:\.\d+)?)(?:\s*/\s*10)?", re.I)
INSTRUCTION = """You judge how good an answer is. Judge by this rubric alone:

{rubric}

Say in a sentence or two why. Then end with a line "Score: N", where N is a whole number from 0 (worst) to 10 (best)."""
CASE = """Question:
{prompt}
{expected}
Answer to judge:
{given}"""


def write_case(row: AnsweredRow, rubric: str) -> list[dict[str, str]]:
    """Return the messages that ask for a verdict."""
    expected = f"\nAnswer that is right:\n{row.expected}\n" if row.expected else ""
    case = CASE.format(prompt=row.prompt, expected=expected, given=row.given)
    return [{"role": "user", "content": INSTRUCTION.format(rubric=rubric) + "\n\n" + case}]


def read_score(words: str) -> float | None:
    """Return the last score in a judge's words as 0..1, None where there is none."""
    found = SCORE.findall(words)
    score = float(found[-1]) / MOST_SCORE if found else None
    return score if score is not None and 0 <= score <= 1 else None
