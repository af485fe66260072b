"""Micro-steps played from a graph against the same steps launched one after another; on a processor, a stand-in plays.

The stand-in does what a graph does as far as numbers go: it computes again from the buffers that the recording read.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from studio_kernels.attention import Documents
from studio_kernels.dispatch import bind

from studio.core.policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder import graph
from studio.models.decoder.decoder import Decoder, take_over
from tests.models.decoder.models import make_model

BATCHES = [(11, 1, 20), (40, 7), (32, 32, 32), (5,) * 20, (300,), (17, 19, 3), (128, 128), (11, 1, 20)]
"""Documents of each batch: three numbers of rows after padding, equal ones and others, more than one graph takes."""
TRITON = ("rms_norm", "glu", "rope", "dropout", "nf4", "linear_cross_entropy", "lora")


class PlayedGraph:
    """Stands for torch.cuda.CUDAGraph."""

    def replay(self) -> None:
        """Compute the recorded step again, from what its buffers hold now, into the loss that it returned."""
        self.loss.copy_(self.step())


@dataclass
class ReadDocuments:
    """Documents whose lengths are read from `starts` when they are asked for: attention on a processor goes by them."""

    starts: torch.Tensor
    positions: torch.Tensor
    uniform: int | None
    longest: int
    bounds: tuple[int, ...]

    @classmethod
    def of_bounds(cls, *, lengths: tuple[int, ...], **facts) -> ReadDocuments:
        """Take the place of Documents(...)."""
        return cls(**facts, bounds=lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """As they are now."""
        return tuple(length for length in self.starts.diff().tolist() if length)

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return self.positions.shape[0]


def play_graphs(monkeypatch) -> None:
    """Have steps recorded on a processor, where they are played by computing them again."""

    @contextmanager
    def record(played: PlayedGraph, pool: object):
        yield
        # The recorder's frame: what it computed inside is `prepared`, and it returned `loss`.
        caller = sys._getframe(2).f_locals
        played.step, played.loss = caller["prepared"].launch, caller["loss"]

    stand_ins = {
        "empty_cache": lambda: None,
        "CUDAGraph": PlayedGraph,
        "graph": record,
        "graph_pool_handle": object,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(graph, "Documents", ReadDocuments.of_bounds)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


@dataclass(frozen=True)
class Place:
    """Where is computed, and how far two ways to compute the same may differ."""

    device: torch.device
    dtype: torch.dtype

    @property
    def most(self) -> float:
        """As a share; with 16 bits the library multiplies other numbers of rows in other orders."""
        return 1e-3 if self.dtype is torch.float32 else 6e-2


@pytest.fixture(
    params=[
        ("cpu", torch.float32),
        pytest.param(("cuda", torch.float32), marks=pytest.mark.gpu),
        pytest.param(("cuda", torch.bfloat16), marks=pytest.mark.gpu),
    ],
    ids=str,
)
def place(request, monkeypatch) -> Place:
    """A processor with played graphs, and a GPU with real ones."""
    device, dtype = request.param
    if device == "cpu":
        play_graphs(monkeypatch)
    return Place(torch.device(device), dtype)


def take(place: Place, family: str = "llama", dropout: float = 0.0, keep: str = "all") -> Decoder:
    """Return a decoder, by Triton's kernels where there is a GPU."""
    model = make_model(family, dropout=dropout, dtype=place.dtype).to(place.device)
    names = TRITON if place.dtype is torch.bfloat16 else TRITON[:-1]
    kernels = bind(dict.fromkeys(names, "triton") if place.device.type == "cuda" else {})
    policy = MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 3)
    decoder = take_over(unwrap(model), kernels, dtype=place.dtype, policy=policy)
    assert isinstance(decoder, Decoder), decoder
    return decoder


def draw(lengths: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, the places whose next token is trained, and those tokens."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, 97, size=sum(lengths))
    ends = set(np.cumsum(lengths) - 1)
    picks = np.array([i for i in range(len(ids)) if i not in ends and rng.random() < 0.6] or [0])
    return ids, picks, ids[np.minimum(picks + 1, len(ids) - 1)]


def launch(decoder: Decoder, batch: tuple, lengths: tuple[int, ...], scale: float, seed: int = 0) -> tuple:
    """Return loss and gradients of a step launched one op after another, without padding."""
    device = decoder.device
    ids, picks, targets = (torch.from_numpy(part).to(device) for part in batch)
    decoder.store.clear_gradients()
    decoder.note_change()
    rows = decoder.make_rows(Documents.of(lengths, device), torch.tensor(seed, device=device))
    loss = decoder.add_gradients(ids, rows, picks, targets, torch.tensor(scale, device=device))
    return loss.item(), decoder.store.gradients.clone()


def play(
    graphed: graph.GraphedDecoder, batch: tuple, lengths: tuple[int, ...], scale: float, seed: int = 0
) -> tuple:
    """Return loss and gradients of a step that is recorded, or played where it was."""
    decoder = graphed.decoder
    decoder.store.clear_gradients()
    ids, picks, targets = batch
    factor = torch.tensor(scale, device=decoder.device)
    loss = graphed.add_gradients(ids, lengths, picks, targets, scale=factor, seed=seed)
    return loss.item(), decoder.store.gradients.clone()


class Recorder(graph.GraphedDecoder):
    """Launches each shape once, and adds the gradients of the recorded step alone."""

    def add_gradients(self, *arguments, **options):
        kept, before = self.decoder.store.gradients.clone(), len(self._met)
        loss = super().add_gradients(*arguments, **options)
        if len(self._met) == before:
            return loss
        self.decoder.store.gradients.copy_(kept)
        return super().add_gradients(*arguments, **options)


def test_a_shape_is_launched_first_and_recorded_when_it_comes_again(place):
    decoder = take(place)
    graphed, batch = graph.GraphedDecoder(decoder), draw((40, 25), 3)
    first = play(graphed, batch, (40, 25), 1.0)
    assert not graphed._graphs
    second = play(graphed, batch, (40, 25), 1.0)
    assert len(graphed._graphs) == 1
    assert first[0] == second[0] and torch.equal(first[1], second[1])


def assert_close(one: tuple, other: tuple, most: float) -> None:
    assert one[0] == pytest.approx(other[0], rel=most)
    assert (one[1] - other[1]).norm() < most * other[1].norm()


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("keep", ["all", "input"])
def test_played_steps_are_launched_ones(place, family, keep):
    """Other rows, documents, picks and scales each time; the weights change between them, as training changes them."""
    decoder = take(place, family, keep=keep)
    graphed = Recorder(decoder)
    for number, lengths in enumerate(BATCHES):
        batch, scale = draw(lengths, number), 0.1 + number
        assert_close(play(graphed, batch, lengths, scale), launch(decoder, batch, lengths, scale), place.most)
        decoder.store.weights.mul_(0.9)
    assert 3 < len(graphed._graphs) < len(BATCHES)


def test_what_was_played_before_leaves_no_trace(place):
    """To the last bit: a graph that has played other batches gives what a fresh one gives."""
    decoder = take(place)
    used, first, second = Recorder(decoder), draw((30, 9, 50), 1), draw((70, 3, 40, 2), 2)
    play(used, first, (30, 9, 50), 2.0)
    mine = play(used, second, (70, 3, 40, 2), 3.0)
    assert len(used._graphs) == 1
    fresh = play(Recorder(decoder), second, (70, 3, 40, 2), 3.0)
    assert mine[0] == fresh[0] and torch.equal(mine[1], fresh[1])


def test_gradients_are_added_up(place):
    """A recording in the middle of a window leaves what the first micro-batches have added."""
    decoder = take(place)
    graphed, batch = Recorder(decoder), draw((30, 9), 1)
    _, once = play(graphed, batch, (30, 9), 1.0)
    decoder.store.gradients.copy_(once)
    scale = torch.ones((), device=place.device)
    graphed.add_gradients(*[batch[0], (30, 9), *batch[1:]], scale=scale)
    other = draw((300, 100), 2)
    graphed.add_gradients(other[0], (300, 100), *other[1:], scale=scale)  # recorded here
    _, alone = play(graphed, other, (300, 100), 1.0)
    expected = 2 * once + alone
    decoder.store.gradients.copy_(once)
    graphed.add_gradients(*[batch[0], (30, 9), *batch[1:]], scale=scale)
    graphed.add_gradients(other[0], (300, 100), *other[1:], scale=scale)
    assert (decoder.store.gradients - expected).norm() < place.most / 10 * expected.norm()


@pytest.mark.parametrize("by_graph", [True, False])
def test_dropout_is_drawn_from_the_seed_alone(place, by_graph):
    decoder = take(place, dropout=0.4)
    graphed, lengths = Recorder(decoder), (40, 25)
    batch = draw(lengths, 3)

    def go(seed: int) -> tuple:
        if by_graph:
            return play(graphed, batch, lengths, 1.0, seed)
        return launch(decoder, batch, lengths, 1.0, seed)

    first, other, again = go(2**40 + 7), go(2**40 + 8), go(2**40 + 7)
    assert first[0] == again[0] and torch.equal(first[1], again[1])
    assert (first[1] - other[1]).norm() > 0.05 * first[1].norm()


def test_graphs_and_launches_drop_the_same(place):
    decoder = take(place, dropout=0.4)
    graphed = Recorder(decoder)
    for seed, lengths in enumerate([(40, 25), (11, 12, 13), (40, 25)], start=2**33):
        batch = draw(lengths, seed)
        assert_close(
            play(graphed, batch, lengths, 1.0, seed), launch(decoder, batch, lengths, 1.0, seed), place.most
        )


def test_only_so_many_graphs_are_kept(place, monkeypatch):
    monkeypatch.setattr(graph, "MOST_GRAPHS", 2)
    decoder = take(place)
    graphed = Recorder(decoder)
    for tokens in (100, 400, 700, 100, 700):
        batch = draw((tokens,), tokens)
        assert_close(play(graphed, batch, (tokens,), 1.0), launch(decoder, batch, (tokens,), 1.0), place.most)
        assert len(graphed._graphs) <= 2
