"""The answers that a run has drawn, a line each, in its folder: what a person reads to see what rewards praise."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from studio.core.atomic_files import write_file
from studio.core.json_file import parse_json
from studio.engine.rollouts.rollout import AnswerGroup

FILE = "completions.jsonl"


class CompletionsFile:
    """Lines of completions.jsonl: step, row, prompt, answer, scores, total, advantage, length_tokens, ended, notes."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """`names`: of the rewards, by which scores are listed."""
        self.path, self._names = folder / FILE, tuple(names)

    def forget_after(self, step: int) -> None:
        """Leave out what was drawn for steps after `step`, and a line that a kill cut: they are drawn again."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().split(b"\n"):
            found = _read(line)
            if found is not None and found["step"] <= step:
                kept.append(line + b"\n")
        write_file(self.path, b"".join(kept))

    def write(
        self, step: int, groups: Sequence[AnswerGroup], prompts: Sequence[str], advantages: np.ndarray
    ) -> None:
        """Add the answers of the rollout that begins with `step`; prompts: in words, advantages: (P, G)."""
        lines = []
        for group, prompt, gains in zip(groups, prompts, advantages, strict=True):
            for answer, said, gain in zip(group.answers, group.scores, gains, strict=True):
                line = {
                    "step": step,
                    "row": group.row,
                    "prompt": prompt,
                    "answer": answer.words,
                    "scores": dict(zip(self._names, said.per_reward, strict=True)),
                    "total": None if math.isnan(said.total) else said.total,
                    "advantage": float(gain),
                    "length_tokens": len(answer.tokens),
                    "ended": answer.ended,
                    "notes": list(said.notes),
                }
                lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        with self.path.open("ab") as file:
            file.write("".join(lines).encode("utf-8", "surrogatepass"))


def _read(line: bytes) -> dict | None:
    try:
        found = parse_json(line.decode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else None
