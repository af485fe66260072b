"""Causal attention within packed documents, forward and backward as plain functions, from PyTorch's kernels or ours.

    s_ij = scale q_i . k_j (capped: c tanh(s / c))        p_i = softmax_j s_ij        o_i = sum_j p_ij v_j

    delta_i = do_i . o_i        ds_ij = p_ij (do_i . v_j - delta_i) (1 - (s_ij / c)^2)
    dq_i = scale sum_j ds_ij k_j        dk_j = scale sum_i ds_ij q_i        dv_j = sum_i p_ij do_i

over the j of i's own document with j <= i and, with a sliding window w, j > i - w (as transformers counts it).
T tokens of all documents one after another; q, out (T, query heads, d); k, v (T, key heads, d), any strides but 1 in
the last; query head h reads key head h // (query heads / key heads). What a backward pass needs besides q, k, v and out
is `saved`: the log of the softmax's denominator in float32 (float64 for float64), 4 bytes a token and query head, and
tensors of a few bytes. Source: Dao 2023, arXiv:2307.08691; softcap: Gemma Team 2024, arXiv:2408.00118.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from studio_kernels import attention_sinks, shared_beginnings
from studio_kernels._triton import ERRORS
from studio_kernels.attention_backends import (
    CPU,
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    TRITON,
    AttentionBackend,
    Saved,
)
from studio_kernels.flash import supports_heads
from studio_kernels.op import Support
from studio_kernels.varlen import Documents, Heads

__all__ = ["Attention", "Documents", "Heads", "choose_attention", "supports", "try_out"]

EQUAL_STEP_TOKENS = 128
"""cuDNN takes 150 ms to plan for a length it has not met: only documents of such multiples go there."""
LIMITS = {torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float32: 5e-3, torch.float64: 1e-9}
"""Largest difference of a trial from the composed form, as a share of the largest value; float32 may run as TF32."""
TRIAL_LENGTHS = (100, 1, 155)
TRIAL_WINDOW_TOKENS = 37


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The backends chosen for one kind of layer on one device."""

    heads: Heads
    packed: AttentionBackend
    """For documents of any lengths."""
    equal: AttentionBackend | None
    """For equal documents of a multiple of `EQUAL_STEP_TOKENS` where no window is felt; None: `packed` has these."""
    reason: str
    """Why these, in plain English."""
    saved_bytes_a_token: int
    """Of `saved`; the few bytes that do not grow with T left out."""

    @property
    def name(self) -> str:
        """The names of the backends, the one for equal documents first."""
        return self.packed.name if self.equal is None else f"{self.equal.name}+{self.packed.name}"

    def backend(self, documents: Documents) -> AttentionBackend:
        """The one that computes such documents."""
        if self.equal is None or documents.uniform is None or self.heads.window_of(documents):
            return self.packed
        return self.packed if documents.uniform % EQUAL_STEP_TOKENS else self.equal

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, documents: Documents, sinks: Tensor | None = None
    ) -> tuple[Tensor, Saved]:
        """(out (T, query heads, d), saved). `sinks` (query heads,): see attention_sinks.

        Of rows of `documents.beside` nothing is saved.
        """
        if documents.beside is not None:
            first = slice(0, documents.rows)
            out, saved = self._forward(q[first], k[first], v[first], documents, sinks)
            return torch.cat((out, self._forward(q, k, v, documents.beside, sinks)[0])), saved
        return self._forward(q, k, v, documents, sinks)

    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, documents: Documents, sinks: Tensor | None
    ) -> tuple[Tensor, Saved]:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Saved]:
            return attention_sinks.forward(self.backend(documents), q, k, v, documents, self.heads, sinks)

        if documents.shared is None:
            return attend(q, k, v)
        return shared_beginnings.forward(attend, documents.shared, q, k, v)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, saved: Saved, documents: Documents,
        sinks: Tensor | None = None, dsinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv) in the shapes of q, k, v, from what `forward` gave for the same documents."""

        def go_back(
            dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            backend = self.backend(documents)
            return attention_sinks.backward(
                backend, dout, q, k, v, out, saved, documents, self.heads, sinks, dsinks
            )

        if documents.shared is None:
            return go_back(dout, q, k, v, out)
        return shared_beginnings.backward(go_back, documents.shared, dout, q, k, v, out)

    def without_triton(self) -> Attention:
        """The same with the composed form in the place of our kernels; itself where they are not used."""
        if self.packed is not TRITON:
            return self
        return replace(self, packed=MATH, reason="The composed form computes attention instead of triton.")


def choose_attention(
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    head_dim: int,
    query_heads: int,
    key_heads: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    capability: tuple[int, int] | None = None,
    triton: bool = False,
    sinks: bool = False,
) -> Attention:
    """The fastest backends that give right numbers here: each is tried on `device`, forward and backward.

    Takes up to a second on a GPU and waits for it: choose once for each kind of layer, before the first step.
    `capability` is read from the device when not given. `triton`: our own kernels may be used, where no library's can.
    `sinks`: heads have some, so a backend's log-sums must be right, too.

    Raises:
        ValueError: the query heads cannot be shared out evenly.
    """
    if query_heads % key_heads:
        raise ValueError(f"{query_heads} query heads do not share {key_heads} key heads evenly.")
    device = torch.device(device)
    if device.type == "cuda" and capability is None:
        capability = torch.cuda.get_device_capability(device)
    heads = Heads(
        head_dim=head_dim,
        query_heads=query_heads,
        key_heads=key_heads,
        scale=scale,
        window=window,
        softcap=softcap,
    )
    reasons: list[str] = []

    def first(
        candidates: Sequence[AttentionBackend], lengths: tuple[int, ...], heads: Heads
    ) -> AttentionBackend | None:
        for backend in candidates:
            support = supports(backend, device.type, capability, dtype, heads)
            support = try_out(backend, device, dtype, heads, lengths, sinks) if support.ok else support
            reasons.append(support.reason)
            if support.ok:
                return backend
        return None

    candidates = (FLASH, EFFICIENT) if device.type == "cuda" else (CPU,)
    if triton and device.type == "cuda":
        candidates = (*candidates, TRITON)
    packed = first(candidates, TRIAL_LENGTHS, heads) or MATH
    equal = None
    # Flash is as fast below Hopper and above it on GeForce, and needs no plans; elsewhere cuDNN was twice as fast.
    if device.type == "cuda" and (packed is not FLASH or capability[0] in (9, 10)):
        equal = first((CUDNN,), (EQUAL_STEP_TOKENS,) * 2, replace(heads, window=0))
    if packed is MATH:
        reasons.append("The composed form computes attention.")
    sum_bytes = 8 if dtype is torch.float64 else 4
    return Attention(
        heads=heads,
        packed=packed,
        equal=equal,
        reason=" ".join(reasons),
        saved_bytes_a_token=sum_bytes * query_heads,
    )


def supports(
    backend: AttentionBackend,
    device_type: str,
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    heads: Heads,
) -> Support:
    """Whether `backend` can be expected to compute this: what is known without running it."""
    name = backend.name
    if backend is MATH:
        return Support(True, "The composed form computes everything.")
    if backend is TRITON:
        return supports_heads(device_type, capability, dtype, heads)
    if heads.softcap:
        return Support(False, f"{name} cannot bound the scores.")
    for operator, positional, keywords in backend.operators:
        packet = getattr(torch.ops.aten, operator, None)
        if packet is None:
            return Support(False, f"This PyTorch has no {operator}.")
        arguments = packet.default._schema.arguments
        takes = {argument.name for argument in arguments}
        required = [a.name for a in arguments if not a.kwarg_only and not a.has_default_value()]
        places = sum(not argument.kwarg_only for argument in arguments)
        if not len(required) <= positional <= places or not takes.issuperset(keywords):
            return Support(False, f"This PyTorch's {operator} takes other arguments.")
    if backend is CPU:
        if heads.window:
            return Support(False, "cpu has no sliding window.")
        return Support(device_type == "cpu", f"cpu computes on the processor, not on {device_type}.")
    if device_type != "cuda":
        return Support(False, f"{name} needs a GPU, not {device_type}.")
    if backend is EFFICIENT:
        known = dtype in (torch.float16, torch.float32) or (dtype is torch.bfloat16 and capability >= (8, 0))
        return Support(known, f"{name} computes {dtype} from compute capability 5.0 on (bfloat16: 8.0).")
    if dtype not in (torch.float16, torch.bfloat16) or capability < (8, 0):
        return Support(
            False, f"{name} needs 16-bit numbers and compute capability 8.0, not {dtype} on {capability}."
        )
    if heads.head_dim % 8 or heads.head_dim > 256:
        return Support(False, f"{name} takes heads of 8 to 256 numbers in steps of 8, not {heads.head_dim}.")
    return Support(True, f"{name} is known to compute this.")


@torch.no_grad()
def try_out(
    backend: AttentionBackend,
    device: torch.device,
    dtype: torch.dtype,
    heads: Heads,
    lengths: tuple[int, ...],
    sinks: bool = False,
) -> Support:
    """Run forward and backward on a few tokens, laid out as the decoder has them, against the composed form."""
    heads = replace(heads, window=min(heads.window, TRIAL_WINDOW_TOKENS))
    documents = Documents.of(lengths, device)
    columns = (heads.query_heads + 2 * heads.key_heads) * heads.head_dim
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(documents.tokens, columns + heads.query_heads * heads.head_dim, generator=generator)
    qkv, dout = drawn.to(device, dtype).split((columns, drawn.shape[1] - columns), 1)
    sizes = (heads.query_heads, heads.key_heads, heads.key_heads)
    q, k, v = qkv.unflatten(1, (-1, heads.head_dim)).split(sizes, 1)
    dout = dout.unflatten(1, (heads.query_heads, heads.head_dim))
    drawn_sinks = torch.randn(heads.query_heads, generator=generator).to(device) if sinks else None
    results = []
    try:
        for each in (backend, MATH):
            out, saved = attention_sinks.forward(each, q, k, v, documents, heads, drawn_sinks)
            given = (dout, q, k, v, out, saved, documents, heads, drawn_sinks)
            results.append((out, *attention_sinks.backward(each, *given)))
        for ours, exact in zip(*results, strict=True):
            error = ((ours.double() - exact.double()).abs().max() / exact.double().abs().max()).item()
            if not error < LIMITS[dtype]:  # true for NaN, too
                return Support(False, f"{backend.name} gave wrong numbers (relative error {error:.2g}).")
    # What the operators raise for a device, dtype or build that they were not made for, and a compiler for a card.
    except ERRORS as failure:
        return Support(
            False,
            f"{backend.name} failed here: {(str(failure) or type(failure).__name__).splitlines()[0][:200]}",
        )
    return Support(True, f"{backend.name} gives right numbers here.")
