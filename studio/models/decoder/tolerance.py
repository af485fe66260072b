"""How far off is too far: our errors against fp32, beside those of the model's own code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EQUAL = 1e-4
"""Largest error of equal arithmetic in fp32, as a root mean square."""
TIMES = 1.5
"""Our errors may be so many times those of the model's own code, in the geometric mean over a layer's quantities."""
TIMES_ONE = 2.0
"""One of them so many times more. Where one value outweighs all others nothing averages out: of smollm2's 1,500
errors in bf16 the worst are 1.8 and 1.4 times the own."""
ASIDE = 64
"""One of so many values of a vector's gradient, the largest, are looked at apart: in smollm2 one channel of 576 holds
nine tenths of a norm's, and its error, a single number, was 0.15 to 3.1 times the own from layer to layer."""
ASIDE_ERROR = 0.5
"""Largest error of each of those, as a share of its value; 0.17 was seen, and what is left out is off by 1."""
TIMES_LARGEST = 2.0
"""The largest error of one value, likewise."""
TIMES_LOOSE = 2.0
"""TIMES over all layers at once, each of which was looked at by itself, and for products in 8 bits: what they are
held against rounds the same way, but other values. Also for DoRA: peft multiplies its results by c in fp32, in which
queries and keys stay, and so rounds less (ours is 0.6 to 1.6 times as far off, layer by layer, 0.85 altogether)."""
ROUNDING = {
    torch.float32: EQUAL / (TIMES * TIMES_ONE),
    torch.float16: torch.finfo(torch.float16).eps,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
}
"""An own error below this is luck: a value goes through half a dozen roundings of up to half an eps. In float32, with
products in full, only the order of sums differs: 2e-5 at most in smollm2."""
TRUSTED, TRUSTED_DEPTH = 0.1, 0.5
"""Where the model's own head, or all of it, is further from our reading of it in fp32, that reading is wrong."""
LOSS = 1e-2
"""What a loss may be off by in 16 bits whatever the model's own is: errors of many tokens cancel by chance."""
LOSS_ROUTED = 5e-2
"""Likewise where tokens pass experts: equal scores send a few of them elsewhere, in each layer others."""
FP8 = 0.5
"""Largest error of a layer with products in 8 bits, as a root mean square: 2.6 % each on random weights."""
LEAST_RATIO = 1e-30
"""Of our error to the own: a model's own code that leaves the numbers of its dtype has an infinite one."""
TIMES_FINER = 4.0
"""TIMES where both are fp32 and held against fp64: which order of a sum comes out better is luck, 5 times at most in
layers of 64 columns whose queries and keys have biases of 100."""
NUDGES = 4
"""How often the model's own fp32 is asked what the last bits of its input are worth."""
ROUNDING_LARGEST = 4
"""The largest of many roundings, in ROUNDING."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One comparison: errors as shares of the truth's size, root mean square."""

    layer: int
    part: str
    ours: float
    own: float
    """The model's own code's in the same dtype, or what equal arithmetic may be off by."""
    ok: bool


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges what is computed in `dtype`; `exact`: without products in 8 bits."""

    dtype: torch.dtype
    exact: bool
    routed: bool = False
    """Whether some layers have experts."""
    rescaled: bool = False
    """Whether lengths of weights are trained (DoRA)."""

    def compare(
        self, number: int, names: Sequence[str], ours: Sequence[Tensor], own: Sequence[Tensor],
        truth: Sequence[Tensor], dtype: torch.dtype, times: float = TIMES, *, deep: bool = False,
    ) -> Iterator[Measured]:  # fmt: skip
        """Yield what each of `ours` is off by. `deep`: of all layers, whose rounding in 8 bits adds up."""
        floor, least = ROUNDING[dtype], ROUNDING_LARGEST * ROUNDING[dtype]
        ours, own, truth = list(ours), list(own), list(truth)
        for place, exact in enumerate(truth):
            if exact.dim() == 1 and exact.numel() >= ASIDE and dtype != torch.float32:
                apart, error, rest = set_aside(ours[place], exact)
                may = max(ASIDE_ERROR, TIMES_ONE * times * set_aside(own[place], exact)[1])
                yield Measured(number, f"{names[place]}[{apart}]", error, may, error <= may)
                same = own[place] is exact
                ours[place], truth[place] = ours[place][rest], exact[rest]
                own[place] = truth[place] if same else own[place][rest]
        eight = not self.exact and own is not truth
        bound, times = (FP8, TIMES_LOOSE) if eight else (math.inf, times)
        if self.rescaled and dtype != torch.float32:
            times = max(times, TIMES_LOOSE)
        bound = math.inf if deep else bound
        ratios = []
        found = zip(names, errors_of(ours, truth), errors_of(own, truth), strict=True)
        for name, (error, largest), (their, their_largest) in found:
            near = error <= min(bound, TIMES_ONE * times * max(their, floor))
            ok = near and largest <= TIMES_ONE * TIMES_LARGEST * max(their_largest, least)
            shown = (error, their) if not near or ok else (largest, their_largest)
            ratios.append(max(max(error, floor) / max(their, floor), LEAST_RATIO))
            yield Measured(number, name, *shown, ok)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        yield Measured(number, ", ".join(names[:3]), mean, 1.0, mean <= times)

    def deep(self, number: int, name: str, ours: Tensor, own: Tensor, truth: Tensor) -> Iterator[Measured]:
        """Yield what all layers together are off by, each of which was looked at by itself.

        Where tokens pass experts chance decides which equal scores send elsewhere, in the own code as in ours.
        """
        if not self.routed:
            yield from self.compare(
                number, [name], [ours], [own], [truth], self.dtype, TIMES_LOOSE, deep=True
            )
            return
        (error, _), (their, _) = errors_of([ours, own], [truth, truth])
        floor = EQUAL if self.dtype == torch.float32 else TRUSTED_DEPTH
        yield Measured(number, name, error, their, error <= max(TIMES_LOOSE * their, floor))

    @property
    def _least_loss(self) -> float:
        return LOSS_ROUTED if self.routed else LOSS

    def loss(self, number: int, ours: Tensor, own: Tensor, truth: Tensor) -> Measured:
        error, their = (abs(one.item() / truth.item() - 1) for one in (ours, own))
        floor = EQUAL if self.dtype == torch.float32 else self._least_loss if self.exact else FP8
        return Measured(number, "loss", error, their, error <= max(TIMES * their, floor))


def judge_equal(number: int, part: str, ours: Tensor, theirs: Tensor) -> Measured:
    if ours.shape != theirs.shape:
        return Measured(number, part, float("nan"), 0.0, False)
    error = errors_of([ours], [theirs])[0][0]
    return Measured(number, part, error, 0.0, error <= EQUAL)


def set_aside(ours: Tensor, truth: Tensor) -> tuple[int, float, Tensor]:
    """Return which of the largest values of `truth` (n,) is most off, by which share of it, and the others' places."""
    largest = truth.abs().topk(truth.numel() // ASIDE).indices
    exact = truth[largest].float()
    shares = (ours[largest].float() - exact).abs() / exact.abs().clamp_min(torch.finfo(torch.float32).tiny)
    shares = shares.nan_to_num(float("inf"))
    rest = torch.ones_like(truth, dtype=torch.bool)
    rest[largest] = False
    worst = shares.argmax()
    return int(largest[worst]), float(shares[worst]), rest


def further(one: Sequence[Tensor], other: Sequence[Tensor], truth: Sequence[Tensor]) -> list[Tensor]:
    """Return of each pair what is further from its truth: products in 8 bits cost what they cost, beside 16 bits.

    The adapter of layer 0's k_proj in qwen2.5-coder-0.5b: off by 0.05 with products in 8 bits and all else in fp32, by
    0.13 by the model's own code in bf16, and by 0.15 to 0.22 as the decoder computes it in both.
    """
    pairs = zip(one, other, errors_of(one, truth), errors_of(other, truth), strict=True)
    return [a if errors[0] >= others[0] else b for a, b, errors, others in pairs]


def nudge(x: Tensor) -> Iterator[Tensor]:
    """Yield `x` with other last bits, NUDGES times: what these change in a result is no fault of who computes it.

    The gradient of a delta rule's decay in a tiny Qwen3.5 is 8,000 times smaller than those beside it, a sum in which
    nearly all cancels: 1e-4 off in fp32, and 5e-4 to 8e-6 where the layer's input is another by one bit.
    """
    generator = torch.Generator().manual_seed(0)
    for _ in range(NUDGES):
        step = torch.randint(-1, 2, x.shape, generator=generator).to(x.device)
        yield x * (1 + torch.finfo(x.dtype).eps * step)


def errors_of(found: Sequence[Tensor], truth: Sequence[Tensor]) -> list[tuple[float, float]]:
    """Return each one's difference from its truth, as shares: root mean squares and largest values. Waits once."""
    tiny = torch.finfo(torch.float32).tiny
    errors = []
    for one, exact in zip(found, truth, strict=True):
        exact = exact.float()
        difference = one.float() - exact
        norm, largest = exact.norm().clamp_min(tiny), exact.abs().max().clamp_min(tiny)
        errors.append(torch.stack((difference.norm() / norm, difference.abs().max() / largest)))
    return [tuple(pair) for pair in torch.stack(errors).tolist()]
