"""Micro-steps played from a graph against the same steps launched one after another; on a processor, a stand-in plays.

The stand-in does what a graph does as far as numbers go: it computes again from the buffers that the recording read.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from studio_kernels.attention import Documents
from studio_kernels.dispatch import bind
from studio_kernels.shared_beginnings import SharedBeginnings

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder import cuda_graphs as graph
from studio.models.decoder.cuda_graphs import GraphedDecoder, Shapes, choose_sizes
from studio.models.decoder.decoder import Decoder, take_over
from tests.each_time import some
from tests.models.decoder.models import make_model, make_whole_model

BATCHES = [(11, 1, 20), (40, 7), (32, 32, 32), (5,) * 20, (300,), (17, 19, 3), (128, 128), (11, 1, 20)]
"""Documents of each batch: of several sizes, equal ones and others."""
SHAPES = Shapes(sizes=(64, 128, 320), documents=20, longest=300)
TRITON = ("rms_norm", "glu", "rope", "dropout", "nf4", "magnitudes", "linear_cross_entropy", "lora")


class PlayedGraph:
    """Stands for torch.cuda.CUDAGraph: `step` computes what was recorded again, from what its buffers hold now."""

    def replay(self) -> None:
        """Play it."""
        self.step()


@dataclass
class ReadDocuments:
    """Documents whose lengths are read from `starts` when they are asked for: attention on a processor goes by them."""

    starts: torch.Tensor
    positions: torch.Tensor
    uniform: int | None
    longest: int
    bounds: tuple[int, ...]
    shared: SharedBeginnings | None = None

    @classmethod
    def of_bounds(cls, *, lengths: tuple[int, ...], **facts) -> ReadDocuments:
        """Take the place of Documents(...)."""
        return cls(**facts, bounds=lengths)

    beside: None = None
    row_positions = Documents.row_positions
    longest_of_all = Documents.longest_of_all
    rows = Documents.rows

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
        store = sys._getframe(2).f_locals["self"].decoder.store
        gradients = store.gradients.clone()
        yield
        store.gradients.copy_(gradients)  # a recording computes nothing
        # The recorder's frame: its forward pass gave `x` and `kept`, which its backward pass has emptied.
        caller = sys._getframe(2).f_locals
        prepared, x, kept = caller["prepared"], caller["x"], caller["kept"]

        def go_forward() -> None:
            again, kept[:] = prepared.forward()
            x.copy_(again)

        played.step = go_forward if played is caller["forward"] else lambda: prepared.backward(kept)

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
    losses = decoder.add_gradients(ids, rows, picks, targets, torch.tensor(scale, device=device))
    return losses.sum().item() / scale, decoder.store.gradients.clone()


def play(
    graphed: GraphedDecoder, batch: tuple, lengths: tuple[int, ...], scale: float, seed: int = 0
) -> tuple:
    """Return loss and gradients of a step that is recorded, or played where it was."""
    decoder = graphed.decoder
    decoder.store.clear_gradients()
    loss = add(graphed, batch, lengths, scale, seed)
    return loss.item(), decoder.store.gradients.clone()


def add(graphed: GraphedDecoder, batch: tuple, lengths: tuple[int, ...], scale: float, seed: int = 0):
    """Add the gradients of a batch to what is there; returns the loss."""
    ids, picks, targets = batch
    factor = torch.tensor(scale, device=graphed.decoder.device)
    size = graphed.fit(lengths)
    assert size >= len(ids)
    losses = graphed.add_gradients(ids, lengths, picks, targets, size=size, scale=factor, seed=seed)
    return losses.sum() / scale


def record(decoder: Decoder, shapes: Shapes = SHAPES) -> GraphedDecoder:
    """Return a recorder that has recorded all of `shapes`."""
    graphed = GraphedDecoder(decoder, shapes)
    for size in shapes.sizes:
        lengths = [shapes.longest] * (size // shapes.longest)
        lengths += [size % shapes.longest] if size % shapes.longest else []
        add(graphed, draw(tuple(lengths), size), tuple(lengths), 1.0)
    assert graphed.recorded == shapes.sizes
    return graphed


def test_a_size_is_launched_first_and_recorded_for_the_next_time(place):
    decoder = take(place)
    graphed, batch = GraphedDecoder(decoder, SHAPES), draw((40, 25), 3)
    first = play(graphed, batch, (40, 25), 1.0)
    assert graphed.recorded == (128,)
    second = play(graphed, batch, (40, 25), 1.0)
    assert graphed.recorded == (128,)
    assert first[0] == second[0] and torch.equal(first[1], second[1])


def assert_close(one: tuple, other: tuple, most: float) -> None:
    assert one[0] == pytest.approx(other[0], rel=most)
    assert (one[1] - other[1]).norm() < most * other[1].norm()


@pytest.mark.parametrize(
    "family", some(["llama", "gemma3", "mistral", "gemma4", "latent", "latent_v2"], "llama", "latent")
)
@pytest.mark.parametrize("keep", ["all", "input"])
def test_played_steps_are_launched_ones(place, family, keep):
    """Other rows, documents, picks and scales each time; the weights change between them, as training changes them."""
    decoder = take(place, family, keep=keep)
    graphed = record(decoder)
    for number, lengths in enumerate(BATCHES):
        batch, scale = draw(lengths, number), 0.1 + number
        assert_close(play(graphed, batch, lengths, scale), launch(decoder, batch, lengths, scale), place.most)
        decoder.store.weights.mul_(0.9)
    assert graphed.recorded == SHAPES.sizes


@pytest.mark.parametrize("family", ["gemma4_e2b", "gemma3n"])
def test_what_runs_under_autograd_is_not_recorded(place, family):
    model = make_model(family, dtype=place.dtype).to(place.device)
    decoder = take_over(unwrap(model), bind({}), dtype=place.dtype)
    assert isinstance(decoder, Decoder), decoder
    assert not decoder.recordable and take(place).recordable


@pytest.mark.parametrize("family", some(["llama", "qwen2", "gemma3"], "llama"))
def test_all_weights_are_trained_by_the_same_graphs(place, family):
    """Weights change between the steps, and what multiplies is rounded anew outside of the graphs."""
    names = TRITON if place.dtype is torch.bfloat16 else TRITON[:-1]
    kernels = bind(dict.fromkeys(names, "triton") if place.device.type == "cuda" else {})
    model = make_whole_model(family).to(place.device)
    decoder = take_over(unwrap(model), kernels, dtype=place.dtype)
    assert isinstance(decoder, Decoder), decoder
    graphed = record(decoder)
    for number, lengths in enumerate(BATCHES):
        batch, scale = draw(lengths, number), 0.1 + number
        decoder.note_change()
        played = play(graphed, batch, lengths, scale)
        assert_close(played, launch(decoder, batch, lengths, scale), place.most)
        table = decoder.store.gradient(decoder.spec.embedding.weight)
        assert (table.norm(dim=1) > 0).sum() > 10
        if max(lengths) <= 128:  # beyond, flash attention's backward pass adds in other orders
            again = play(graphed, batch, lengths, scale)
            assert torch.equal(again[1], played[1]), "the same bits each time"
        decoder.store.weights.mul_(0.9)
    assert graphed.recorded == SHAPES.sizes


@pytest.mark.parametrize("share", some([0.05, 0.5, 1.0], 0.5))
def test_any_share_of_the_rows_is_learned_by_the_same_graphs(place, share):
    decoder = take(place)
    graphed, lengths = record(decoder), (40, 25, 130)
    ids, picks, targets = draw(lengths, 5)
    kept = max(1, round(share * len(picks)))
    batch = (ids, picks[:kept], targets[:kept])
    assert_close(play(graphed, batch, lengths, 2.0), launch(decoder, batch, lengths, 2.0), place.most)
    assert graphed.recorded == SHAPES.sizes


def test_equal_documents_are_recorded_as_such(place):
    decoder = take(place)
    graphed = GraphedDecoder(decoder, Shapes(sizes=(128, 256), documents=4, longest=64, uniform=True))
    for lengths in ((64,) * 4, (64,) * 2, (64,) * 4):
        batch = draw(lengths, len(lengths))
        assert_close(play(graphed, batch, lengths, 1.0), launch(decoder, batch, lengths, 1.0), place.most)
    assert graphed.recorded == (128, 256)
    assert not graphed.fit((64, 63)) and not graphed.fit((64,)), "these are launched"


def test_what_was_played_before_leaves_no_trace(place):
    """To the last bit: a graph that has played other batches gives what a fresh one gives."""
    decoder = take(place)
    used, first, second = record(decoder), draw((30, 9, 50), 1), draw((70, 3, 40, 2), 2)
    play(used, first, (30, 9, 50), 2.0)
    mine = play(used, second, (70, 3, 40, 2), 3.0)
    fresh = play(record(decoder), second, (70, 3, 40, 2), 3.0)
    assert mine[0] == fresh[0] and torch.equal(mine[1], fresh[1])


def test_gradients_are_added_up(place):
    """A recording in the middle of a window leaves what the first micro-batches have added."""
    decoder = take(place)
    graphed = GraphedDecoder(decoder, SHAPES)
    batch, other = draw((30, 9), 1), draw((200, 100), 2)
    _, once = play(graphed, batch, (30, 9), 1.0)
    add(graphed, batch, (30, 9), 1.0)
    add(graphed, other, (200, 100), 1.0)  # recorded here
    summed = decoder.store.gradients.clone()
    _, alone = play(graphed, other, (200, 100), 1.0)
    expected = 2 * once + alone
    assert (summed - expected).norm() < place.most / 10 * expected.norm()


@pytest.mark.parametrize("by_graph", some([True, False], True))
def test_dropout_is_drawn_from_the_seed_alone(place, by_graph):
    decoder = take(place, dropout=0.4)
    graphed, lengths = record(decoder), (40, 25)
    batch = draw(lengths, 3)

    def go(seed: int) -> tuple:
        if by_graph:
            return play(graphed, batch, lengths, 1.0, seed)
        return launch(decoder, batch, lengths, 1.0, seed)

    first, other, again = go(2**40 + 7), go(2**40 + 8), go(2**40 + 7)
    assert first[0] == again[0] and torch.equal(first[1], again[1])
    assert (first[1] - other[1]).norm() > 0.05 * first[1].norm()


@pytest.mark.computing
def test_graphs_and_launches_drop_the_same(place):
    decoder = take(place, dropout=0.4)
    graphed = record(decoder)
    for seed, lengths in enumerate([(40, 25), (11, 12, 13), (40, 25)], start=2**33):
        batch = draw(lengths, seed)
        assert_close(
            play(graphed, batch, lengths, 1.0, seed), launch(decoder, batch, lengths, 1.0, seed), place.most
        )


def test_all_is_recorded_early_or_never(place):
    """Sizes that do not come by themselves are met by filling up; later on, what is not recorded is launched."""
    decoder = take(place)
    graphed, batch = GraphedDecoder(decoder, SHAPES), draw((40, 7), 1)
    for _ in range(graph.EARLY_STEPS):
        add(graphed, batch, (40, 7), 1.0)
    assert graphed.recorded == SHAPES.sizes
    assert graphed.fit((40, 7)) == 64
    late = GraphedDecoder(decoder, SHAPES)
    late._steps = graph.EARLY_STEPS
    assert late.fit((40, 7)) == 0


def test_what_no_shape_takes_is_launched(place):
    graphed = record(take(place))
    assert graphed.fit((300, 21)) == 0, "more rows"
    assert graphed.fit((301,)) == 0, "a longer document"
    assert graphed.fit((2,) * 21) == 0, "more documents"


def test_chosen_sizes_leave_little_to_fill_up():
    counts = np.random.default_rng(0).lognormal(np.log(350), 1.0, (2000, 8)).clip(16, 1024).sum(1).astype(int)
    sizes = choose_sizes(counts, 2000)
    filled = sum(min(size for size in sizes if size >= count) - count for count in counts.tolist())
    assert len(sizes) <= 24 and sizes[-1] >= counts.max() and all(size % 64 == 0 for size in sizes)
    assert filled / counts.sum() < 0.04
    assert len(choose_sizes(counts[:100], 100)) < len(sizes) < len(choose_sizes(counts, 100_000)), (
        "they pay later"
    )


def test_equal_counts_take_one_size():
    assert choose_sizes([1000] * 50, 50) == (1024,)
    assert choose_sizes([64], 1) == (64,)


def test_few_sizes_are_the_best_there_are():
    """Against all pairs."""
    counts = np.array([64] * 9 + [128] + [640] * 5 + [704] + [1024])
    sizes = choose_sizes(counts, 170)
    most = int(counts.sum() * graph.MOST_FILLED_SHARE)

    def fill(chosen) -> int:
        return sum(min(size for size in chosen if size >= count) - count for count in counts.tolist())

    others = [
        (*pair, 1024) for pair in itertools.combinations(sorted({*counts.tolist()} - {1024}), len(sizes) - 1)
    ]
    assert fill(sizes) == min(map(fill, others)) and fill(sizes) <= most
