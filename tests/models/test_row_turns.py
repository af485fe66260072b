"""Rows in turn: a streamed model's weights are read once for all of them, and the numbers are those of each alone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch

from studio.models import row_turns
from studio.models.gguf.importance import measure_inputs
from studio.models.row_turns import RowTurns, compute_rows
from studio.models.streamed_model import draw_streamed, read_folder, stream

ROWS = [list(range(2, 2 + length)) for length in (40, 3, 17, 64, 1)]


def draw(folder, read=None, go_on=lambda: None):
    model = draw_streamed(folder)
    stream(model, read or read_folder(model, folder), go_on)
    return model


def test_each_waits_until_the_others_have_come_as_far():
    turns, said = RowTurns(), []

    def make(name: str, parts: int):
        def call() -> str:
            for part in range(parts):
                turns.pass_on()
                said.append((part, name))
            return name

        return call

    assert turns.compute([make("a", 3), make("b", 1), make("c", 3)]) == ["a", "b", "c"]
    assert said == [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "c"), (2, "a"), (2, "c")]
    assert turns.compute([]) == []
    turns.pass_on()  # nobody else: it returns


def test_the_first_that_fails_ends_the_others_at_their_next_turn():
    turns, said, before = RowTurns(), [], threading.active_count()

    def good() -> None:
        for part in range(5):
            turns.pass_on()
            said.append(part)

    def bad() -> None:
        turns.pass_on()
        raise ValueError("row 2")

    with pytest.raises(ValueError, match="row 2"):
        turns.compute([good, bad, good])
    assert said == [0] and threading.active_count() == before
    assert turns.compute([lambda: 1]) == [1], "it can be used again"


SHORT = """
import resource
from studio.models.row_turns import RowTurns
held_bytes = next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (held_bytes + 2**26, resource.RLIM_INFINITY))
turns, called = RowTurns(), []
try:
    turns.compute([lambda: called.append(1)] * 500)
except (RuntimeError, MemoryError) as error:
    print("refused:", error)
print(called, turns.compute([lambda: turns.pass_on() or 2, lambda: 3]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space as Linux does")
def test_where_the_system_gives_no_more_threads_it_ends_and_calls_nothing():
    root = Path(__file__).resolve().parents[2]
    settings = {"cwd": root, "text": True, "capture_output": True, "timeout": 30}
    done = subprocess.run([sys.executable, "-c", SHORT], **settings)
    refused, rest = done.stdout.splitlines()
    assert refused == "refused: can't start new thread" and rest == "[] [2, 3]"


def test_all_rows_teams_have_a_limit(tiny_models, monkeypatch):
    folder, reads = tiny_models("llama"), Counter()
    give = read_folder(draw_streamed(folder), folder)

    def read(name: str) -> torch.Tensor:
        reads[name] += 1
        return give(name)

    model = draw(folder, read)
    compute_rows(model, ROWS, len)
    once = Counter(reads)
    for limit, blocks in ((2 * torch.get_num_threads(), 3), (1, 5)):
        monkeypatch.setattr(row_turns, "TEAM_THREADS", limit)
        reads.clear()
        compute_rows(model, ROWS, len)
        assert reads == Counter({name: blocks * count for name, count in once.items()})


@pytest.mark.parametrize("family", ["llama", "gemma3", "glm4"])
def test_together_they_give_what_each_gives_alone_and_read_all_weights_once(family, tiny_models):
    folder, reads = tiny_models(family), Counter()
    give = read_folder(draw_streamed(folder), folder)

    def read(name: str) -> torch.Tensor:
        reads[name] += 1
        return give(name)

    model = draw(folder, read)
    with torch.inference_mode():
        alone = [model(torch.tensor([row])).logits.clone() for row in ROWS]
    once = Counter({name: count // len(ROWS) for name, count in reads.items()})
    reads.clear()
    together = compute_rows(model, ROWS, lambda output: output.logits.clone())
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    assert reads == once and once
    reads.clear()
    compute_rows(model, ROWS, lambda output: None, most_bytes=0)
    assert reads == Counter({name: count * len(ROWS) for name, count in once.items()}), "a block a row"
    assert {one.untyped_storage().nbytes() for one in model.parameters()} == {4}, "weights are left in memory"


def test_what_columns_count_is_the_same_to_the_bit(tiny_models):
    model = draw(tiny_models("llama"))
    linears = {name: name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    whole = type(model).from_pretrained(tiny_models("llama"), dtype=torch.float32).eval()
    one, other = measure_inputs(model, linears, ROWS), measure_inputs(whole, linears, ROWS)
    assert one.keys() == other.keys() == linears.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_end_can_be_asked_for_before_every_part(tiny_models):
    asked = []

    def go_on() -> None:
        asked.append(1)
        if len(asked) > 2:
            raise InterruptedError

    model = draw(tiny_models("llama"), go_on=go_on)
    for call in (
        lambda: compute_rows(model, ROWS, lambda output: None),
        lambda: model(torch.tensor([ROWS[0]])),
    ):
        asked.clear()
        with pytest.raises(InterruptedError):
            call()
        assert len(asked) == 3
        assert {one.untyped_storage().nbytes() for one in model.parameters()} == {4}
