"""The ways in which a run on a GPU takes its steps, and data whose rows have many lengths."""

from __future__ import annotations

from pathlib import Path

from studio.models.decoder.cuda_graphs import GraphedDecoder
from studio.planning import memory_estimate
from studio.planning import run_plan as planning
from tests.conftest import chat_rows, write_jsonl

STEPS = ("recorded", "launched", "own code")


def step_by(monkeypatch, way: str) -> None:
    """Have steps played from graphs (as small ones are), launched one by one, or taken by the model's own code."""
    if way == "own code":
        monkeypatch.setattr(planning, "decoder_pays", lambda gpu: False)
    elif way == "launched":
        monkeypatch.setattr(memory_estimate, "GRAPH_OPERATIONS", 0)


def note_replays(monkeypatch) -> list[int]:
    """Return a list that takes the size of every micro-step that was recorded as a graph or played from one."""
    played, real = [], GraphedDecoder.add_gradients

    def note(self, *arguments, size, **options):
        played.append(size)
        return real(self, *arguments, size=size, **options)

    monkeypatch.setattr(GraphedDecoder, "add_gradients", note)
    return played


def write_lengths(path: Path) -> Path:
    """Write rows of 20 to 150 tokens."""
    rows = chat_rows(29)
    for number, row in enumerate(rows):
        row["messages"][1]["content"] += " and so on" * (number % 13)
    return write_jsonl(path, rows)
