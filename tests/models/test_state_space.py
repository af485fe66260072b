"""The state space of Mamba 2 in chunks, and the norm behind it, against a loop over tokens and the models' own code."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from studio.models import gated_norm, state_space
from studio.models.gated_norm import GatedFirst, gates_first
from studio.models.state_space import SCAN, ChunkedScan, borrow_scan, has_state_space
from tests.models.decoder.models import FOREIGN, SHAPE

SHAPES = {
    "several chunks": (2, 300, 4, 2, 8, 16), "one group": (1, 128, 4, 1, 8, 16), "one token": (3, 1, 4, 4, 8, 16),
    "less than a chunk": (2, 5, 4, 2, 8, 16), "strong decay": (1, 260, 64, 8, 4, 8),
}  # fmt: skip
"""Documents, tokens, heads, groups, columns and states."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return x, raw, A, b, c, D and bias."""
    documents, tokens, heads, groups, columns, states = shape
    torch.manual_seed(0)
    rows = ((heads, columns), (heads,), (groups, states), (groups, states))
    x, raw, b, c = (torch.randn(documents, tokens, *one, dtype=dtype) for one in rows)
    rate = -torch.arange(1, heads + 1, dtype=dtype) / 2
    return [x, raw, rate, b, c, torch.randn(heads, dtype=dtype), torch.randn(heads, dtype=dtype) - 2]


def step_by_step(x, raw, rate, b, c, skip, bias, limits) -> torch.Tensor:
    """The recurrence as the paper defines it, a token at a time."""
    heads, groups = x.shape[2], b.shape[2]
    d = functional.softplus(raw + bias).clamp(*limits)
    b, c = (one.repeat_interleave(heads // groups, 2) for one in (b, c))
    state, found = 0.0, []
    for t in range(x.shape[1]):
        added = b[:, t, :, :, None] * (d[:, t, :, None] * x[:, t])[:, :, None]
        state = (rate * d[:, t]).exp()[..., None, None] * state + added
        found.append((state * c[:, t, :, :, None]).sum(2))
    return torch.stack(found, 1) + x * skip[:, None]


def differ(ours: torch.Tensor, truth: torch.Tensor) -> float:
    return ((ours.double() - truth).norm() / truth.norm().clamp(min=1e-12)).item()


@pytest.mark.parametrize("limits", [(0.0, float("inf")), (0.05, 0.4)], ids=["free", "clamped"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_result_and_all_gradients_are_those_of_the_recurrence(shape, dtype, limits):
    given = [one.requires_grad_() for one in draw(SHAPES[shape], dtype)]
    wide = [one.detach().double().requires_grad_() for one in given]
    truth = step_by_step(*wide, limits)
    dy = torch.randn(truth.shape, dtype=torch.float64)
    ours = ChunkedScan(None)(
        *given[:5], D=given[5], dt_bias=given[6], dt_softplus=True, dt_limit=limits, chunk_size=256
    )
    assert ours.dtype == dtype and differ(ours, truth) < TOLERANCE[dtype]
    ours, theirs = torch.autograd.grad(ours, given, dy.to(dtype)), torch.autograd.grad(truth, wide, dy)
    for name, one, other in zip(("x", "raw", "A", "b", "c", "D", "bias"), ours, theirs, strict=True):
        assert (one - other).abs().max() <= TOLERANCE[dtype] * other.abs().max().clamp(min=1e-12), name


def test_a_chunk_more_or_less_changes_nothing(monkeypatch):
    given = draw((2, 150, 4, 2, 8, 16), torch.float64)
    options = {"D": given[5], "dt_bias": given[6], "dt_softplus": True}
    whole = ChunkedScan(None)(*given[:5], **options)
    for chunk, portion in ((16, 2**24), (64, 1), (512, 2**12)):
        monkeypatch.setattr(state_space, "CHUNK", chunk)
        monkeypatch.setattr(state_space, "PORTION", portion)
        torch.testing.assert_close(ChunkedScan(None)(*given[:5], **options), whole)


@pytest.mark.parametrize(
    "asked", [{"return_final_states": True}, {"initial_states": torch.zeros(1)}, {"seq_idx": torch.zeros(1)}]
)
def test_what_is_not_known_is_left_to_the_models_own_function(asked):
    given = draw((1, 5, 4, 2, 8, 16), torch.float32)
    scan = ChunkedScan(lambda *arguments, **options: (len(arguments), options))
    options = {"D": given[5], "dt_bias": given[6], "dt_softplus": True, "z": None, "chunk_size": 64}
    count, passed = scan(*given[:5], **options, **asked)
    assert count == 5 and passed.keys() == {*options, *asked, "dt_limit"}
    assert scan(*given[:5], **options | {"dt_softplus": False})[0] == 5


def make_mixer(family: str) -> nn.Module:
    """The mixer of a family's first layer, its norm and biases off neutral."""
    torch.manual_seed(0)
    config_class, extra = FOREIGN[family]
    model = transformers.AutoModelForCausalLM.from_config(config_class(**copy.deepcopy(SHAPE | extra)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(("bias", ".D", "A_log")):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    layer = model.model.layers[0]
    return getattr(layer, "mamba", None) or layer.mixer


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("family", ["granite_hybrid", "nemotron_h"])
def test_the_borrowed_code_is_the_modules_own(family, training):
    mixer = make_mixer(family).train(training)
    before = [(name, id(part)) for name, part in mixer.named_modules()]
    assert has_state_space(mixer) and gates_first(mixer.norm)
    x = torch.randn(2, 150, 64)
    dy, results = torch.randn(2, 150, 64), []
    for call in (mixer, lambda rows: borrow_scan(mixer)(mixer, rows)):
        rows = x.clone().requires_grad_()
        y = call(rows)
        results.append([y, *torch.autograd.grad(y, [rows, *mixer.parameters()], dy)])
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    assert [(name, id(part)) for name, part in mixer.named_modules()] == before
    assert not hasattr(type(mixer).forward, SCAN)


def test_only_what_it_needs_is_kept():
    """Of the scan its inputs, of the norm what it reads: transformers' own code keeps more than twice as much."""
    mixer = make_mixer("nemotron_h")
    weights = {parameter.data_ptr() for parameter in mixer.parameters()}
    kept = []
    for call in (mixer, lambda rows: borrow_scan(mixer)(mixer, rows)):
        held: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in weights:
                held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()  # noqa: B023
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y = call(torch.randn(1, 256, 64, requires_grad=True))
        kept.append(sum(held.values()))
        del y
    assert 2 * kept[1] < kept[0]


@pytest.mark.parametrize("group", [64, 16])
def test_a_norm_of_gated_rows_has_the_gradients_of_autograd(group):
    torch.manual_seed(0)
    x, gate, weight = (
        torch.randn(*size, 64, dtype=torch.float64).requires_grad_() for size in ((3, 5), (3, 5), ())
    )
    g = (x * functional.silu(gate)).unflatten(-1, (-1, group))
    truth = weight * (g * torch.rsqrt(g.square().mean(-1, keepdim=True) + 1e-3)).flatten(-2)
    ours = gated_norm._Norm.apply(x, gate, weight, 1e-3, group)
    torch.testing.assert_close(ours, truth)
    dy = torch.randn_like(truth)
    for one, other in zip(
        *(torch.autograd.grad(y, [x, gate, weight], dy) for y in (ours, truth)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_norm_that_gates_behind_it_is_not_taken():
    class Behind(GatedFirst):
        def forward(self, hidden_states, gate):
            return self.norm(hidden_states, torch.full_like(gate, 30.0)) * functional.silu(gate)

    norm = make_mixer("nemotron_h").norm
    assert gates_first(norm) and not gates_first(Behind(norm)) and not gates_first(nn.RMSNorm(8))
