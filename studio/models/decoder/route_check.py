"""Proves a layer's experts one by one, and tells rounding from a fault where tokens went to other experts.

Of real text few tokens reach an expert, and some experts none: each is held against the model's own on rows of its own.
Where two scores are equal but for rounding, a token goes to either expert, in the model's own code as in ours. Such
rows are left out of what a layer is judged by; there must be few of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from studio_kernels.dispatch import Kernels
from torch import Tensor, nn

from studio.models.decoder.blocks.routed_mlp import RoutedMLP
from studio.models.decoder.blocks.router import Routes
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.fp32_reference import Wide, without_tf32
from studio.models.decoder.layer import Layer
from studio.models.decoder.probe_states import Stream
from studio.models.decoder.tolerance import Judge, Measured


class Probe(Protocol):
    """What is asked of the probe that compares whole layers."""

    decoder: Decoder
    dtype: torch.dtype
    judge: Judge
    wide_kernels: Kernels

    def autocasting(self) -> torch.autocast:
        """Lower inside what the run's autocast lowers."""

    def widen(self, layer: Layer) -> Layer:
        """Return our layer in fp32."""


ROWS_EACH = 2
"""Rows that every expert is held against its model on."""
FEW_EQUAL, FEW, TIMES_OWN = 0.03, 0.1, 2.0
"""Largest share of rows that may go elsewhere: in fp32, and in 16 bits, or so many times what the model's own code does
there. A bf16 score has 8 bits: of 128 scores the 8th and the 9th are often one number."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Which rows (T,) go to the same experts as by the model's own code in fp32."""

    equal: Tensor
    """By ours in fp32."""
    own: Tensor
    """By the model's own in the run's dtype."""
    ours: Tensor

    @property
    def all_ways(self) -> Tensor:
        """Those that do by all of them."""
        return self.equal & self.own & self.ours


def find_agreed(
    probe: Probe, layer: Layer, wide: Wide, stream: Stream, x: Tensor, given: tuple[Any, Any], rows: Any
) -> Agreed:
    """Return which rows of x (D, S, H) agree."""
    router, cut = layer.spec.experts.module, stream.cut(x)
    with torch.no_grad(), without_tf32(), _watched(router) as truth:
        wide.forward(x.float(), given[1])
    with torch.no_grad(), probe.autocasting(), _watched(router) as own:
        layer.spec.module(x, **given[0])
    theirs = [stream.cut(one[0].reshape(*stream.ids.shape, -1)).sort(-1)[0] for one in (truth, own)]

    def ask(twin: Layer, rows_of_x: Tensor, kernels: Kernels) -> Tensor:
        with torch.no_grad():
            return twin.forward(rows_of_x, rows, kernels, "input")[1].mlp.inner.routes.chosen.sort(-1)[0]

    with without_tf32():
        equal = ask(probe.widen(layer), cut.float(), probe.wide_kernels)
    ours = ask(layer, cut, probe.decoder.kernels)
    return Agreed(*(_equal_rows(one, theirs[0]) for one in (equal, theirs[1], ours)))


def _equal_rows(one: Tensor, other: Tensor) -> Tensor:
    """Return which rows hold the same experts; none where they are of other numbers."""
    if one.shape != other.shape:
        return torch.zeros(len(other), dtype=torch.bool, device=other.device)
    return (one == other).all(-1)


@contextmanager
def _watched(router: nn.Module) -> Iterator[list[Tensor]]:
    """Collect inside which experts `router`, or a twin of it, chooses."""
    found: list[Tensor] = []

    def note(module: nn.Module, arguments: tuple, result: tuple) -> None:
        found.append(next(one for one in result if not one.is_floating_point()))

    hook = router.register_forward_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def judge_routes(number: int, agreed: Agreed, dtype: torch.dtype) -> Iterator[Measured]:
    """Give the shares of rows that go elsewhere."""
    equal, own, ours = (1 - one.float().mean().item() for one in (agreed.equal, agreed.own, agreed.ours))
    yield Measured(number, "experts chosen in fp32", equal, FEW_EQUAL, equal <= FEW_EQUAL)
    may = FEW_EQUAL if dtype == torch.float32 else max(FEW, TIMES_OWN * own)
    yield Measured(number, "experts chosen", ours, own, ours <= may)


def compare_experts(
    probe: Probe, number: int, layer: Layer, wide: Wide, x: Tensor, parameters: list[nn.Parameter],
    names: list[str],
) -> Iterator[Measured]:  # fmt: skip
    """Hold every expert of a layer against the model's own, on rows that look like those of x (T, H)."""
    spec, store = layer.spec.experts, probe.decoder.store
    count = spec.down.shape[0]
    path = next(name for name, module in layer.spec.module.named_modules() if module is spec.wrapped)
    chosen = torch.arange(count, device=x.device).repeat_interleave(ROWS_EACH)[:, None]
    rows = x.repeat(-(-len(chosen) // len(x)), 1)[: len(chosen)].float()
    rows = torch.nn.functional.rms_norm(rows, rows.shape[1:]).to(x.dtype)
    dy = torch.randn(rows.shape, generator=torch.Generator().manual_seed(number)).to(x.device)
    pairs = [
        (name, p) for name, p in zip(names[2:], parameters, strict=True) if any(p is q for q in spec.trained)
    ]
    trained = [p for _, p in pairs]
    with without_tf32():
        truth = _run_own(wide.part(path), rows.float(), dy, chosen, [wide.twin(p) for p in trained])
    with probe.autocasting():
        own = _run_own(spec.wrapped, rows, dy.to(rows.dtype), chosen, trained)
    said = ["experts y", "experts dx", *(f"experts {name}" for name, _ in pairs)]
    both = [(layer, rows, probe.decoder.kernels, probe.dtype, own)]
    if probe.dtype != torch.float32:
        both.insert(0, (probe.widen(layer), rows.float(), probe.wide_kernels, torch.float32, truth))
    for twin, given, kernels, dtype, theirs in both:
        with without_tf32() if dtype == torch.float32 else nullcontext():
            ours = _run_ours(twin.mlp, given, dy.to(given.dtype), chosen, kernels, store, trained)
        yield from probe.judge.compare(number, said, ours, theirs, truth, dtype)


def _run_own(
    experts: nn.Module, rows: Tensor, dy: Tensor, chosen: Tensor, parameters: list[nn.Parameter]
) -> list[Tensor]:
    """Return y, dx and the gradients of `parameters` where every row goes to the one expert `chosen` (R, 1)."""
    start = rows.detach().clone().requires_grad_()
    with torch.enable_grad():
        y = experts(start, chosen, torch.ones_like(chosen, dtype=rows.dtype))
        return [y.detach(), *torch.autograd.grad(y, [start, *parameters], dy.to(y.dtype))]


@torch.no_grad()
def _run_ours(
    block: RoutedMLP, rows: Tensor, dy: Tensor, chosen: Tensor, kernels: Kernels, store: FlatStore,
    parameters: list[nn.Parameter],
) -> list[Tensor]:  # fmt: skip
    """Return the same by our code."""
    for parameter in parameters:
        store.gradient(parameter).zero_()
    block.refresh()
    experts = block.experts
    logits = rows.new_zeros(rows.shape[0], experts.router.weight.shape[0])
    weights = torch.ones_like(chosen, dtype=rows.dtype)
    routes = Routes.of(logits, chosen, weights)
    given = routes.experts, routes.groups, kernels
    spread = routes.spread(rows)
    kept = experts.routed.open(spread, *given)
    y = routes.gather(experts.routed.close(kept, *given), weights)
    dx, _ = experts.routed.backward(routes.spread(dy), spread, kept, weights, *given)
    return [y, routes.gather(dx), *(store.gradient(p).clone() for p in parameters)]
