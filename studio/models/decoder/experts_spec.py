"""Reads a mixture of experts by its structure: its router, its stacks of matrices, and what stands beside them.

Names of classes are never looked at. How a router scores, chooses and weighs is found by trying the forms that
blocks/router.py knows on rows of its own, and so is what stands between the two products of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from studio_kernels.glu import KINDS, activate
from torch import Tensor, nn

from studio.models.decoder.blocks.gates import ClampedGate, PlainGate, SquaredRelu, square_relu
from studio.models.decoder.blocks.router import CHOSEN_SOFTMAX, SIGMOID, SOFTMAX, Router, RouterEntry
from studio.models.decoder.structure import EXPERTS, MLPS, ROUTERS, SHARED, SHARED_GATES
from studio.models.nf4_experts import Nf4Stack, is_experts
from studio.models.norm_probe import epsilon

GATE_UP, UP, DOWN = "gate_up_proj", "up_proj", "down_proj"
"""What transformers calls the two stacks, the first of them with or without a gate."""
MASTER_BYTES = 4
"""Of a trained number: what has fewer loses small steps."""
TRIED_ROWS = 64
SAME_CHOICE = 0.9
"""Least share of tried rows that must go to the same experts: of the others two scores are equal but for rounding."""
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference of a row's weights, as a share of the largest: several roundings, far below any other form's."""
NEVER_ZERO = 1e-20
"""Keeps a sum of weights from being zero, where scores are sigmoids."""


@dataclass(frozen=True, slots=True)
class StackPart:
    """One linear of every expert: who holds its matrices, and its adapters where it has some."""

    holder: nn.Module
    name: str
    a: nn.Parameter | None
    """(E R, in)"""
    b: nn.Parameter | None
    """(out, R E): the expert is the faster index, as peft has it."""
    scale: float

    @property
    def weight(self) -> Tensor | Nf4Stack:
        """(E, out, in) of any strides, or 4-bit matrices of these shapes, (E, in, out) where `flipped`."""
        weight = getattr(self.holder, self.name)
        return weight.transpose(1, 2) if self.holder.is_transposed and not self.packed else weight

    @property
    def flipped(self) -> bool:
        """Whether 4-bit matrices are stored as the model has them, (E, in, out): they have no strides (gpt-oss)."""
        return self.packed and self.holder.is_transposed

    @property
    def packed(self) -> bool:
        """Whether the matrices are in 4 bits."""
        return isinstance(getattr(self.holder, self.name), Nf4Stack)

    @property
    def bias(self) -> Tensor | None:
        """(E, out)"""
        return getattr(self.holder, f"{self.name}_bias") if self.holder.has_bias else None

    @property
    def shape(self) -> tuple[int, int, int]:
        """E, out, in."""
        count, rows, columns = self.weight.shape
        return (count, columns, rows) if self.flipped else (count, rows, columns)

    @property
    def rank(self) -> int:
        """R, 0 without adapters."""
        return 0 if self.a is None else self.a.shape[0] // self.shape[0]


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A router, the gated MLPs that it chooses among, and the gate of the one that all tokens pass."""

    router: Router
    """With the weights of the model's own."""
    module: nn.Module
    """The model's own router."""
    wrapped: nn.Module
    """The model's own experts, with their adapters."""
    gate_up: StackPart
    """Where experts have no gate, up alone."""
    down: StackPart
    gate: PlainGate | ClampedGate | SquaredRelu
    shared_gate: nn.Module | None

    @property
    def trained(self) -> tuple[nn.Parameter, ...]:
        """The adapters of all experts."""
        return tuple(p for part in (self.gate_up, self.down) if part.rank for p in (part.a, part.b))

    @property
    def kind(self) -> tuple[Any, ...]:
        """All that experts of one kind have in common, but for the numbers in their weights."""
        router = self.router
        entry = router.entry and replace(router.entry, scale=None)
        bare = replace(router, weight=None, bias=None, correction=None, expert_scale=None, entry=entry)
        stacks = tuple((part.shape, part.rank, part.scale, part.packed) for part in (self.gate_up, self.down))
        has = router.bias is not None, router.correction is not None, self.shared_gate is not None
        return repr(bare), self.gate, stacks, has


def find_mixture(owners: list[nn.Module]) -> nn.Module | None:
    """Return which of a layer's modules holds experts, or None."""
    return next((one for one in owners if _unwrap(getattr(one, EXPERTS, None))[0] is not None), None)


def find_shared(mixture: nn.Module, owners: list[nn.Module]) -> nn.Module | None:
    """Return the MLP inside `mixture`, or beside it among `owners`, that all tokens pass; None without one."""
    inside = [child for name, child in mixture.named_children() if name in SHARED]
    return next(iter([*inside, *(one for one in owners if one is not mixture)]), None)


def find_mlp(mixture: nn.Module) -> nn.Module | None:
    """Return the MLP that stands in the module of the experts itself, as in a layer of Gemma 4."""
    return next((child for name, child in mixture.named_children() if name in MLPS), None)


def read_experts(mixture: nn.Module, hidden: int) -> ExpertsSpec | str:
    """Return the ExpertsSpec of a module that holds experts for rows of H columns, or the name of what is not known."""
    children, beside = dict(mixture.named_children()), find_mlp(mixture) is not None
    # Of a layer whose experts stand beside its MLP, spec.py looks at the other parts.
    strangers = set() if beside else set(children) - {EXPERTS, *ROUTERS, *SHARED, *SHARED_GATES}
    # Nemotron-H has such in the place of maps around its experts, which only some of its models have.
    strangers -= {name for name in strangers if type(children[name]) is nn.Identity}
    own = [name for name, _ in mixture.named_parameters(recurse=False)]
    noisy = [
        name for part in mixture.modules() for name, value in vars(part).items() if "jitter" in name and value
    ]
    if strangers or own or noisy:
        return ", ".join(sorted({*strangers, *own, *noisy}))
    experts, adapters = _unwrap(mixture.get_submodule(EXPERTS))
    if adapters is None or getattr(experts, "has_post_expert_norm", False):
        return EXPERTS
    first = GATE_UP if experts.has_gate else UP
    if set(adapters) - {first, DOWN}:
        return ", ".join(sorted(adapters))
    found = [name for name in ROUTERS if name in children]
    if len(found) != 1:
        return ROUTERS[0]
    parts = {name: StackPart(experts, name, *adapters.get(name, (None, None, 0.0))) for name in (first, DOWN)}
    device = next(children[found[0]].parameters()).device
    gate = _find_gate(experts, device)
    if gate is None:
        return f"{EXPERTS}.act_fn"
    dtype = getattr(experts, DOWN).dtype
    router = find_routing(children[found[0]], hidden, dtype)
    if router is None:
        return found[0]
    shared_gate = next((children[name] for name in SHARED_GATES if name in children), None)
    if shared_gate is not None and (type(shared_gate) is not nn.Linear or shared_gate.bias is not None):
        return "shared_expert_gate"
    return ExpertsSpec(
        router, children[found[0]], children[EXPERTS], parts[first], parts[DOWN], gate, shared_gate
    )


Adapters = dict[str, tuple[nn.Parameter, nn.Parameter, float]]


def _unwrap(module: nn.Module | None) -> tuple[nn.Module | None, Adapters | None]:
    """Return experts without what peft wrapped around them, and by stack A, B and scale of its adapter.

    No module where these are no experts; no adapters where one of them is not known.
    """
    adapters: Adapters | None = {}
    while hasattr(module, "base_layer") and hasattr(module, "parameter_name"):
        names = [name for name in module.active_adapters if name in module.lora_A]
        plain = len(names) == 1 and not (module.disable_adapters or module.merged)
        if plain and adapters is not None:
            a, b = module.lora_A[names[0]].weight, module.lora_B[names[0]].weight
            adapters[module.parameter_name] = a, b, float(module.scaling[names[0]])
        if not plain or a.dtype.itemsize < MASTER_BYTES:
            adapters = None
        module = module.base_layer
    if module is None or not is_experts(module) or not hasattr(module, DOWN):
        return None, None
    return module, adapters


@torch.no_grad()
def _find_gate(experts: nn.Module, device: torch.device) -> PlainGate | ClampedGate | SquaredRelu | None:
    """Return what `experts` do between their products, or None."""
    values = torch.linspace(-12, 12, 97, device=device)
    if not experts.has_gate:
        alike = torch.allclose(experts.act_fn(values), square_relu(values), rtol=1e-4, atol=1e-4)
        return SquaredRelu() if alike else None
    rows = torch.stack([values, values.flip(0) * 0.7, values.roll(31), values.roll(11)], 1)
    found = experts._apply_gate(rows)
    gate, up = rows.chunk(2, 1)
    for kind in KINDS:
        if torch.allclose(found, activate(gate, kind) * up, rtol=1e-4, atol=1e-4):
            return PlainGate(kind)
    alpha, limit = getattr(experts, "alpha", None), getattr(experts, "limit", None)
    if alpha and limit:
        clamped = ClampedGate(float(alpha), float(limit))
        if torch.allclose(found, clamped.forward(rows, None), rtol=1e-4, atol=1e-4):
            return clamped
    return None


@torch.no_grad()
def find_routing(router: nn.Module, hidden: int, dtype: torch.dtype) -> Router | None:
    """Return a Router that does what `router` does with rows (T, H) of `dtype`, with its weights, or None."""
    matrices = [p for p in router.parameters() if p.dim() == 2 and p.shape[1] == hidden]
    if len(matrices) != 1:
        return None
    (weight,) = matrices
    experts = weight.shape[0]
    entry, expert_scale = _read_entry(router), getattr(router, "per_expert_scale", None)
    apart = (weight, expert_scale, entry and router.scale)
    rest = [p for p in (*router.parameters(), *router.buffers()) if not any(p is one for one in apart)]
    if any(p.numel() != experts for p in rest) or len(rest) > 2:
        return None
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(TRIED_ROWS, hidden, generator=generator).to(weight.device, dtype)
    training, router.training = router.training, False
    try:
        found = router(rows.clone())
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None  # it wants more than rows: LFM2's is given its bias
    finally:
        router.training = training
    tensors = [one for one in found if isinstance(one, Tensor)] if isinstance(found, tuple) else []
    chosen = next((one for one in tensors if not one.is_floating_point()), None)
    weights = next(
        (one for one in tensors if chosen is not None and one.shape == chosen.shape and one is not chosen),
        None,
    )
    if weights is None or chosen.shape[0] != TRIED_ROWS:
        return None
    errors = []
    for form in _forms(router, weight, rest, chosen.shape[1]):
        form.entry = entry
        form.expert_scale = None if expert_scale is None else expert_scale.detach()
        routes = form.forward(rows)
        same = (routes.chosen.sort(1)[0] == chosen.sort(1)[0]).all(1)
        difference = _spread(routes.chosen, routes.weights, experts) - _spread(chosen, weights, experts)
        errors.append(
            (same.float().mean(), difference[same].abs().max() if same.any() else same.sum() + 1.0, form)
        )
    largest = weights.abs().max().item()
    fit = [(error.item(), form) for share, error, form in errors if share.item() >= SAME_CHOICE]
    error, form = min(fit, key=lambda one: one[0], default=(float("inf"), None))
    return form if error <= TOLERANCE[dtype] * largest else None


def _read_entry(router: nn.Module) -> RouterEntry | None:
    """Return how `router` normalises its rows before it scores them, None where it has no norm (Gemma 4's has one)."""
    norm, scale = getattr(router, "norm", None), getattr(router, "scale", None)
    eps = None if norm is None else epsilon(norm)
    if not isinstance(eps, float) or any(True for _ in norm.parameters()) or scale is None:
        return None
    return RouterEntry(eps, scale.detach(), float(getattr(router, "scalar_root_size", 1.0)))


def _spread(chosen: Tensor, weights: Tensor, experts: int) -> Tensor:
    """Return the weight of every expert, (T, E)."""
    out = torch.zeros(chosen.shape[0], experts, device=weights.device)
    return out.scatter_(1, chosen.long(), weights.float())


def _forms(router: nn.Module, weight: Tensor, rest: list[Tensor], top_k: int) -> Iterator[Router]:
    """Give the routers that `router` may be; what it holds is used before it is left out."""
    bias = next((p for p in rest if p is getattr(router, "bias", None)), None)
    correction = next((p.detach().reshape(-1) for p in rest if p is not bias), None)
    groups = [(1, 1)]
    count = next(
        (int(getattr(router, name)) for name in ("num_group", "n_group") if hasattr(router, name)), 1
    )
    if count > 1:
        groups.insert(0, (count, int(router.topk_group)))
    scalings = {float(getattr(router, "routed_scaling_factor", None) or 1.0), 1.0}
    choices = product(
        (SOFTMAX, SIGMOID, CHOSEN_SOFTMAX), (True, False), sorted(scalings, reverse=True), groups,
        (False, True), (True, False), (correction, None) if correction is not None else (None,),
    )  # fmt: skip
    for scores, normalised, scaling, (group_count, groups_chosen), wide, rounded, corrected in choices:
        if scores == CHOSEN_SOFTMAX and (
            normalised or scaling != 1.0 or group_count > 1 or corrected is not None
        ):
            continue  # none of them has a place there
        yield Router(
            weight=weight.detach(),
            top_k=top_k,
            bias=None if bias is None else bias.detach(),
            scores=scores,
            normalised=normalised,
            epsilon=NEVER_ZERO if scores == SIGMOID else 0.0,
            scaling=scaling,
            correction=corrected,
            group_count=group_count,
            groups_chosen=groups_chosen,
            wide=wide,
            rounded=rounded,
        )
