"""Makes one loaded model fast: by the studio's own decoder where its structure is known, else by swapped parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from studio_kernels.dispatch import ERRORS, OPS, bind, importable, op_named
from torch import nn

from studio.core.i18n import Text, literal, text
from studio.core.memory_policy import MemoryPolicy
from studio.models.decoder.attention_choice import read_capability
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.fp8_weights import drop_fp8, use_fp8
from studio.models.decoder.parity_check import find_difference
from studio.models.delta_rule import has_delta_rule
from studio.models.module_swaps import Fused, fuse


@dataclass(slots=True)
class Fast:
    """What was done to a model; either `decoder` computes it, or its own code with the swaps of `fused`."""

    decoder: Decoder | None
    fused: Fused | None
    refused: Text | None = None
    """Why the decoder was planned and is not used: told as what makes the run slower (planning/slow_paths.py)."""
    fp8: bool = False
    """Whether the decoder multiplies by frozen weights in 8 bits."""
    fp8_refused: Text | None = None
    """Why that was planned and is not done."""
    twins: Mapping[str, Text] = field(default_factory=dict)
    """Ops whose Triton kernel gives other numbers with this model, and why: their PyTorch twin computes them."""

    @property
    def ops(self) -> set[str]:
        """The ops that Triton computes."""
        if self.decoder is not None:
            found = {op for op, name in self.decoder.kernels.implementations.items() if name == "triton"}
            if not self.decoder.routed:
                found.discard("grouped_matmul")
            if not any(has_delta_rule(mixer.module) for mixer in self.decoder.spec.mixers):
                found.discard("gated_delta")
            groups = (group for layer in self.decoder.layers for group in layer.groups)
            if all(group.magnitudes is None for group in groups):
                found.discard("magnitudes")
            ours = any(kernel.packed.name == "triton" for kernel in self.decoder.attentions)
            return (
                found if ours else found - {"flash"}
            )  # where libraries compute attention, it is only allowed
        return {swap.op for swap in self.fused.swaps if swap.implementation == "triton"}

    def fall_back(self, op: str) -> None:
        """Compute `op` by its PyTorch twin from here on."""
        if self.decoder is not None:
            self.decoder.rebind({op: "reference"})
        else:
            self.fused.undo(op)

    def undo(self) -> None:
        """Give the stock model back."""
        if self.decoder is not None:
            self.decoder.release()
        else:
            self.fused.undo()

    def describe(self) -> tuple[Text, ...]:
        """Return in words what was done, and what was not and why."""
        if self.decoder is not None:
            names = [op.name for op in OPS if op.name in self.ops & USED]
            kinds = list(dict.fromkeys(kernel.name for kernel in self.decoder.attentions))
            kinds += list(dict.fromkeys(type(mixer.module).__name__ for mixer in self.decoder.spec.mixers))
            said = [text("run.decoder", layers=len(self.decoder.layers), attention=", ".join(kinds))]
            if names:
                said.append(text("run.decoder.ops", ops=", ".join(names)))
            if self.fp8:
                said.append(text("run.fp8"))
            if self.fp8_refused is not None:
                said.append(text("run.no_fp8", reason=self.fp8_refused))
            return tuple(said)
        counts = Counter((swap.op, swap.implementation) for swap in self.fused.swaps)
        done = [
            text("run.swapped", op=op, implementation=name, count=count)
            for (op, name), count in counts.items()
        ]
        first = {(reason.id, repr(reason.values)): reason for _, reason in self.fused.refused}
        reasons = Counter((reason.id, repr(reason.values)) for _, reason in self.fused.refused)
        kept = [text("run.not_swapped", count=count, reason=first[key]) for key, count in reasons.items()]
        return (*done, *kept)


USED = {
    "rms_norm", "glu", "rope", "dropout", "nf4", "magnitudes", "lora", "linear_cross_entropy", "adamw", "fp8", "flash",
    "grouped_matmul", "gated_delta",
}  # fmt: skip
"""The ops of which the decoder and its optimizer consist."""


def make_fast(
    model: nn.Module,
    kernels: Mapping[str, str],
    policy: MemoryPolicy | None,
    *,
    dtype: torch.dtype,
    autocast: torch.dtype | None,
    capability: tuple[int, int] | None = None,
    fp8: bool = False,
    texts: Sequence[Sequence[int]] | None = None,
    proved: Callable[[], bool] = lambda: False,
) -> Fast:
    """Take `model` (loaded, adapters attached, inside any wrapper) over by a decoder that keeps what `policy` says.

    Where there is no policy, or the decoder does not know the model or differs from it, parts of the model are
    swapped instead (see fuse). `kernels`: op -> "triton" or "reference". `capability`: use what such a card can do;
    None: what the device says. `fp8`: multiply by frozen weights in 8 bits, where the decoder computes; not exact.
    `texts`: token ids of real text, on which the decoder is held against the model; None: drawn ones. `proved`:
    whether it was seen to be right before, with everything as it is now; then it is not held against the model.
    """
    refused = None
    if policy is not None:
        device = next(model.parameters()).device
        capability = read_capability(device) if capability is None else capability
        # Where nobody decided on them, experts are multiplied as adapters are, and so for the others.
        asked = ("grouped_matmul", "gated_delta", "magnitudes")
        kernels = {op: kernels.get("lora", "reference") for op in asked} | dict(kernels)
        if fp8:  # where nobody decided on it, rows are quantised as they are normalised
            kernels = {"fp8": kernels.get("rms_norm", "reference"), **kernels}

        def find(decoder: Decoder) -> Text | None:
            return None if proved() else find_difference(model, decoder, autocast, texts)

        decoder, wrong = _take_over(model, kernels, policy, dtype, capability, find)
        if decoder is not None:
            twins = {op: wrong for op in _give_up_kernels(decoder, find)} if wrong is not None else {}
            if wrong is None or twins:
                reason = _take_fp8(decoder, capability, find) if fp8 else None
                return Fast(decoder, None, fp8=fp8 and reason is None, fp8_refused=reason, twins=twins)
            decoder.release()
        refused = wrong
    # Stock code is the reference, so only what is to be replaced is asked for.
    wanted = {op: name for op, name in kernels.items() if name != "reference" and op in SWAPPED}
    return Fast(None, fuse(model, wanted, autocast=autocast), refused)


SWAPPED = ("rms_norm", "glu", "gated_delta")
"""The ops that fuse knows a place for."""


def _take_over(
    model: nn.Module,
    kernels: Mapping[str, str],
    policy: MemoryPolicy,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    find: Callable[[Decoder], Text | None],
) -> tuple[Decoder | None, Text | None]:
    """Return a decoder for `model` and what `find` says of it; without one, why there is none."""
    device = next(model.parameters()).device
    width = model.config.get_text_config().hidden_size
    chosen = {
        op: name
        for op, name in kernels.items()
        if op in USED and _supported(op, name, device, capability, dtype, width)
    }
    try:
        decoder = take_over(model, bind(chosen), dtype=dtype, policy=policy, capability=capability)
    except torch.OutOfMemoryError:
        raise  # smaller settings help, the model's own code does not
    except ERRORS as error:  # parts of a model are tried, and one may want to be called in another way
        decoder = text("model.fuse.failed", error=literal(f"{type(error).__name__}: {error}"))
    if isinstance(decoder, Text):
        return None, decoder
    return decoder, _attempt(lambda: find(decoder))


def _give_up_kernels(decoder: Decoder, find: Callable[[Decoder], Text | None]) -> list[str]:
    """Give up the Triton kernels with which a wrong decoder is right, and return their ops; [] where none helps.

    One probe for each kernel: it is asked for where the model's own code would compute everything else.
    """
    ours = [op for op, name in decoder.kernels.implementations.items() if name == "triton"]
    for kept in ({"flash"}, set()):  # attention goes last: once given up, it does not come back
        decoder.rebind({op: "reference" for op in ours if op not in kept})
        if ours and _attempt(lambda: find(decoder)) is None:
            break
    else:
        return []
    for op in ours:
        if op != "flash":
            decoder.rebind({op: "triton"})
            if _attempt(lambda: find(decoder)) is not None:
                decoder.rebind({op: "reference"})
    return [op for op in ours if decoder.kernels.implementations[op] != "triton"]


def _take_fp8(
    decoder: Decoder, capability: tuple[int, int] | None, find: Callable[[Decoder], Text | None]
) -> Text | None:
    """Let a decoder that was seen to be right multiply in 8 bits, if that comes near; else return why not."""
    reason = _attempt(lambda: use_fp8(decoder, capability) or find(decoder))
    if reason is not None:
        drop_fp8(decoder)
    return reason


def _attempt(act: Callable[[], Text | None]) -> Text | None:
    """Return what `act` finds to be wrong. A kernel can fail in any way that a compiler and a driver can."""
    try:
        return act()
    except ERRORS as error:
        return text("model.fuse.failed", error=literal(f"{type(error).__name__}: {error}"))


def _supported(
    op: str,
    name: str,
    device: torch.device,
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    width: int,
) -> bool:
    """Return whether `op` can be computed that way on such a device in this dtype."""
    if name != "triton" or not importable().ok:
        return name == "reference"
    supports = op_named(op).supports
    return supports(device_type=device.type, capability=capability, dtype=dtype, width=width).ok
