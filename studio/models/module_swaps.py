"""Swaps parts of one loaded model for the run's bound kernels: proved on the spot, listed, and undone at will.

A swap gives one module object a `forward` of its own. Module objects, parameters, state_dict keys, hooks and
class names stay as they are, so saving, peft and checkpoints notice nothing, and no class is ever patched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType

import torch
from studio_kernels.dispatch import ERRORS, Kernels, bind, importable, op_named
from studio_kernels.glu import KINDS, activate
from studio_kernels.op import Support
from torch import Tensor, nn

from studio.core.i18n import Text, literal, text
from studio.models.delta_rule import borrow_forward, has_delta_rule, width_of
from studio.models.norm_probe import is_rms_norm, read_norm, relative_error, takes_one_tensor

PROBE_TOKENS = 5
CHUNKED_TOKENS = 70
"""Of what goes through a text in chunks of 64."""
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest error allowed, as a share of the largest value: 5 to 10 roundings of 16-bit types; in float32 room for
TF32 products. A wrong formula is off by far more (GELU for SiLU: 0.1 to 1)."""

Forward = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Swap:
    """One module whose forward now runs a bound op; `path` is its name in the model."""

    path: str
    op: str
    implementation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fused:
    """What `fuse` did to a model."""

    swaps: tuple[Swap, ...]
    refused: tuple[tuple[str, Text], ...]
    """(path, reason) of every module that an op was planned for and that keeps its stock code."""
    _modules: Mapping[str, tuple[nn.Module, MethodType]] = field(repr=False)

    def undo(self, op: str | None = None) -> None:
        """Gives the stock code back to every swapped module, or to those of one op; safe to call again.

        Raises:
            RuntimeError: another library has wrapped a swapped module since and must let go of it first.
        """
        for swap in self.swaps:
            module, forward = self._modules[swap.path]
            if op not in (None, swap.op) or "forward" not in vars(module):
                continue
            if vars(module)["forward"] is not forward:
                raise RuntimeError(f"{swap.path} was wrapped after it was fused")
            del module.forward


@dataclass(frozen=True, kw_only=True, slots=True)
class Swapper:
    """How one op finds its modules by structure and what it puts in the place of their forward."""

    op: str
    matches: Callable[[nn.Module], bool]
    widths: Callable[[nn.Module], tuple[int, int]]
    """Row lengths of the module's input and of the op's input, in elements."""
    build: Callable[[nn.Module, Kernels], Forward | Text]
    """The new forward, or the reason why there is none."""
    tokens: int = PROBE_TOKENS
    """Of the probe."""


def fuse(
    model: nn.Module,
    plan_kernels: Mapping[str, str],
    *,
    autocast: torch.dtype | None = None,
    kernels: Kernels | None = None,
) -> Fused:
    """Swaps what `plan_kernels` (op name -> "reference" or "triton") asks for, on this model instance.

    Each kind of module (class, shapes, dtypes, trained or not) is first run stock and swapped on a few random
    tokens, forward and backward; where they disagree the stock code stays. Random state, gradients and training
    mode are left as found. "reference" leaves the stock code in place: it is the same arithmetic.

    Args:
        model: loaded and adapted (LoRA attached), on its device, not yet wrapped for several GPUs.
        plan_kernels: the plan's choice for each op.
        autocast: the dtype to which the run's autocast lowers; None when it uses none.
        kernels: callables to use as they are, on any device, in place of those that the plan names.

    Raises:
        ValueError: the plan names an op or an implementation that does not exist.
    """
    if kernels is None:
        # Without Triton each module is refused below, with the reason; the callables are then never used.
        bound = bind({op: choice if importable().ok else "reference" for op, choice in plan_kernels.items()})
    else:
        bound = kernels
    probe = _Probe(
        dtype=_activation_dtype(model), autocast=autocast, kernels=bound, forced=kernels is not None
    )
    verdicts: dict[tuple, Forward | Text] = {}
    swaps: list[Swap] = []
    refused: list[tuple[str, Text]] = []
    modules: dict[str, tuple[nn.Module, MethodType]] = {}
    for path, module in model.named_modules():
        swapper = next((s for s in SWAPPERS if s.op in plan_kernels and s.matches(module)), None)
        if swapper is None:
            continue
        kind = (swapper.op, *_kind(module))
        if "forward" in vars(module):
            verdict = text("model.fuse.foreign")
        elif plan_kernels[swapper.op] == "reference" and not probe.forced:
            verdict = text("model.fuse.reference")
        elif kind in verdicts:
            verdict = verdicts[kind]
        else:
            verdict = verdicts[kind] = probe.judge(module, swapper)
        if isinstance(verdict, Text):
            refused.append((path, verdict))
            continue
        module.forward = MethodType(verdict, module)
        modules[path] = (module, module.forward)
        swaps.append(Swap(path=path, op=swapper.op, implementation=bound.implementations[swapper.op]))
    return Fused(swaps=tuple(swaps), refused=tuple(refused), _modules=modules)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Probe:
    """Runs a module stock and swapped on the same tokens and compares results and gradients."""

    dtype: torch.dtype
    autocast: torch.dtype | None
    kernels: Kernels
    forced: bool

    def judge(self, module: nn.Module, swapper: Swapper) -> Forward | Text:
        """The proven new forward for modules of this kind, or the reason to keep the stock one."""
        device = next(module.parameters()).device
        if device.type == "meta":
            return text("model.fuse.no_weights")
        input_width, op_width = swapper.widths(module)
        if not self.forced:
            support = self._support(swapper.op, device, op_width)
            if not support.ok:
                return text("model.fuse.unsupported", reason=literal(support.reason))
        # A kernel can fail in any way that a compiler and a driver can; the run goes on with the stock code.
        try:
            with _undisturbed(module, device):
                forward = swapper.build(module, self.kernels)
                if isinstance(forward, Text):
                    return forward
                stock = self._run(module, type(module).forward, input_width, device, swapper.tokens)
                swapped = self._run(module, forward, input_width, device, swapper.tokens)
        except ERRORS as error:
            return text("model.fuse.failed", error=literal(f"{type(error).__name__}: {error}"))
        return _disagreement(stock, swapped, self.autocast) or forward

    def _support(self, op: str, device: torch.device, width: int) -> Support:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        supports = op_named(op).supports
        answers = [
            supports(device_type=device.type, capability=capability, dtype=dtype, width=width)
            for dtype in (self.dtype, self.autocast or self.dtype)
        ]
        return next((answer for answer in answers if not answer.ok), answers[0])

    def _run(
        self, module: nn.Module, forward: Forward, width: int, device: torch.device, tokens: int
    ) -> list[Tensor]:
        """Output, input gradient and the gradients of all trained parameters, from a fixed random state."""
        torch.manual_seed(0)
        x = torch.randn(1, tokens, width).to(device, self.dtype).requires_grad_()
        wanted = [x, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
        with torch.autocast(device.type, dtype=self.autocast, enabled=self.autocast is not None):
            y = forward(module, x)
        dy = torch.randn(y.shape).to(y.device, y.dtype)
        return [y.detach(), *torch.autograd.grad(y, wanted, dy, materialize_grads=True)]


@contextmanager
def _undisturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Training mode and gradients on inside; random state and every part's mode as found afterwards."""
    modes = {part: part.training for part in module.modules()}
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        module.train()
        try:
            yield
        finally:
            for part, training in modes.items():
                part.training = training


def _disagreement(stock: list[Tensor], swapped: list[Tensor], autocast: torch.dtype | None) -> Text | None:
    """What is wrong with the swapped results, or None."""
    for ours, theirs in zip(swapped, stock, strict=True):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return text("model.fuse.type", stock=str(theirs.dtype), fused=str(ours.dtype))
        limit = TOLERANCE.get(autocast or theirs.dtype, TOLERANCE[torch.float32])
        error = relative_error(ours, theirs)
        if not error <= limit:
            return text("model.fuse.mismatch", error=error, limit=limit)
    return None


def _activation_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of the token embeddings, which is that of the residual stream."""
    source = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else model
    return next((p.dtype for p in source.parameters() if p.is_floating_point()), torch.float32)


def _kind(module: nn.Module) -> tuple:
    """What modules must share for one probe to speak for all of them."""
    settings = [
        (k, v) for k, v in vars(module).items() if isinstance(v, int | float | str) and k != "training"
    ]
    parts = [(name, type(part)) for name, part in module.named_modules()]
    weights = [(n, p.shape, p.dtype, p.device, p.requires_grad) for n, p in module.named_parameters()]
    return (*settings, *parts, *weights)


def _build_rms_norm(module: nn.Module, kernels: Kernels) -> Forward | Text:
    norm, rms_norm = read_norm(module), kernels.rms_norm
    if isinstance(norm, Text):
        return norm

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, *norm.options)

    return forward


def _activation(mlp: nn.Module) -> object:
    return getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None))


def name_activation(activation: Callable[[Tensor], Tensor], device: torch.device) -> str | None:
    """Which of the kinds that `glu` knows these values are; None for any other function.

    The two forms of GELU are 5e-4 apart near 2.3, and transformers has several classes for each.
    """
    values = torch.linspace(-8, 8, 65, device=device)
    with torch.no_grad():
        found = activation(values)
        alike = (
            kind for kind in KINDS if torch.allclose(found, activate(values, kind), rtol=1e-4, atol=1e-5)
        )
        return next(alike, None)


def _is_gated_mlp(module: nn.Module) -> bool:
    children = {name for name, _ in module.named_children()} - {"act_fn", "activation_fn"}
    return (
        children in ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"})
        and callable(_activation(module))
        and all(isinstance(getattr(getattr(module, name), "in_features", None), int) for name in children)
        and not any(True for _ in module.parameters(recurse=False))
        and not any(True for _ in module.buffers(recurse=False))
        and takes_one_tensor(module)
    )


def _gated_mlp_widths(module: nn.Module) -> tuple[int, int]:
    first = module.gate_up_proj if hasattr(module, "gate_up_proj") else module.gate_proj
    return first.in_features, module.down_proj.in_features


def _build_gated_mlp(module: nn.Module, kernels: Kernels) -> Forward | Text:
    """Keeps the projections as they are called (LoRA, 4-bit) and fuses what lies between them."""
    glu = kernels.glu
    kind = name_activation(_activation(module), next(module.parameters()).device)
    if kind is None:
        return text("model.fuse.activation")

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        return self.down_proj(glu(self.gate_proj(hidden_states), self.up_proj(hidden_states), kind))

    def forward_packed(self: nn.Module, hidden_states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(glu(gate, up, kind))

    return forward_packed if hasattr(module, "gate_up_proj") else forward


SWAPPERS: tuple[Swapper, ...] = (
    Swapper(
        op="rms_norm",
        matches=is_rms_norm,
        widths=lambda norm: (norm.weight.shape[0], norm.weight.shape[0]),
        build=_build_rms_norm,
    ),
    Swapper(op="glu", matches=_is_gated_mlp, widths=_gated_mlp_widths, build=_build_gated_mlp),
    Swapper(
        op="gated_delta",
        matches=has_delta_rule,
        widths=lambda mixer: (width_of(mixer),) * 2,
        build=borrow_forward,
        tokens=CHUNKED_TOKENS,
    ),
)
