"""Makes one loaded model fast: by the studio's own decoder where its structure is known, else by swapped parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from studio_kernels.dispatch import ERRORS, OPS, bind, importable, op_named
from torch import nn

from studio.core.policy import MemoryPolicy
from studio.core.text import Text, literal, text
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.probe import find_difference
from studio.models.fuse import Fused, fuse


@dataclass(slots=True)
class Fast:
    """What was done to a model; either `decoder` computes it, or its own code with the swaps of `fused`."""

    decoder: Decoder | None
    fused: Fused | None
    refused: Text | None = None
    """Why the decoder was planned and is not used."""

    @property
    def ops(self) -> set[str]:
        """The ops that Triton computes."""
        if self.decoder is not None:
            return {op for op, name in self.decoder.kernels.implementations.items() if name == "triton"}
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
            attention = self.decoder.layers[0].attention.name
            said = text("run.decoder", layers=len(self.decoder.layers), attention=attention)
            return (said, text("run.decoder.ops", ops=", ".join(names))) if names else (said,)
        counts = Counter((swap.op, swap.implementation) for swap in self.fused.swaps)
        done = [
            text("run.swapped", op=op, implementation=name, count=count)
            for (op, name), count in counts.items()
        ]
        first = {(reason.id, repr(reason.values)): reason for _, reason in self.fused.refused}
        reasons = Counter((reason.id, repr(reason.values)) for _, reason in self.fused.refused)
        kept = [text("run.not_swapped", count=count, reason=first[key]) for key, count in reasons.items()]
        why = () if self.refused is None else (text("run.no_decoder", reason=self.refused),)
        return (*why, *done, *kept)


USED = {"rms_norm", "glu", "rope", "dropout", "nf4", "lora", "linear_cross_entropy"}
"""The ops of which the decoder consists."""


def make_fast(
    model: nn.Module,
    kernels: Mapping[str, str],
    policy: MemoryPolicy | None,
    *,
    dtype: torch.dtype,
    autocast: torch.dtype | None,
) -> Fast:
    """Take `model` (loaded, adapters attached, inside any wrapper) over by a decoder that keeps what `policy` says.

    Where there is no policy, or the decoder does not know the model or differs from it, parts of the model are
    swapped instead (see fuse). `kernels`: op -> "triton" or "reference".
    """
    refused = None
    if policy is not None:
        decoder = _take_over(model, kernels, policy, dtype, autocast)
        if isinstance(decoder, Decoder):
            return Fast(decoder, None)
        refused = decoder
    # Stock code is the reference, so only what is to be replaced is asked for.
    wanted = {op: name for op, name in kernels.items() if name != "reference" and op in SWAPPED}
    return Fast(None, fuse(model, wanted, autocast=autocast), refused)


SWAPPED = ("rms_norm", "glu")
"""The ops that fuse knows a place for."""


def _take_over(
    model: nn.Module,
    kernels: Mapping[str, str],
    policy: MemoryPolicy,
    dtype: torch.dtype,
    autocast: torch.dtype | None,
) -> Decoder | Text:
    """Return a decoder that was seen to compute what `model` does, or why there is none."""
    chosen = {op: name for op, name in kernels.items() if op in USED and _supported(op, name, model, dtype)}
    decoder = take_over(model, bind(chosen), dtype=dtype, policy=policy)
    if isinstance(decoder, Text):
        return decoder
    # A kernel can fail in any way that a compiler and a driver can; the run goes on with the stock code.
    try:
        difference = find_difference(model, decoder, autocast)
    except ERRORS as error:
        difference = text("model.fuse.failed", error=literal(f"{type(error).__name__}: {error}"))
    if difference is not None:
        decoder.release()
        return difference
    return decoder


def _supported(op: str, name: str, model: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether `op` can be computed that way on this device in this dtype."""
    if name != "triton" or not importable().ok:
        return name == "reference"
    device = next(model.parameters()).device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    width = model.config.get_text_config().hidden_size
    supports = op_named(op).supports
    return supports(device_type=device.type, capability=capability, dtype=dtype, width=width).ok
