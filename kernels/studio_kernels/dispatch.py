"""Binds each op to one implementation, once per run: the result holds plain callables, nothing is chosen per call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from studio_kernels._triton import ERRORS, importable
from studio_kernels.adamw import ADAMW
from studio_kernels.decode_attention import DECODE_ATTENTION
from studio_kernels.dropout import DROPOUT
from studio_kernels.few_rows import FEW_ROWS
from studio_kernels.flash import FLASH_ATTENTION
from studio_kernels.fp8 import FP8
from studio_kernels.gated_delta import GATED_DELTA
from studio_kernels.glu import GLU
from studio_kernels.grouped_matmul import GROUPED_MATMUL
from studio_kernels.layer_norm import LAYER_NORM
from studio_kernels.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from studio_kernels.lora import LORA
from studio_kernels.magnitudes import MAGNITUDES
from studio_kernels.nf4 import NF4
from studio_kernels.nf4_few_rows import NF4_FEW_ROWS
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.rms_norm import RMS_NORM
from studio_kernels.rope import ROPE
from studio_kernels.token_sampler import TOKEN_SAMPLER
from studio_kernels.write_pages import WRITE_PAGES

__all__ = ["ERRORS", "IMPLEMENTATIONS", "OPS", "Kernels", "Support", "bind", "importable", "op_named"]

OPS: tuple[Op, ...] = (
    RMS_NORM,
    GLU,
    LAYER_NORM,
    ROPE,
    DROPOUT,
    NF4,
    MAGNITUDES,
    ADAMW,
    LINEAR_CROSS_ENTROPY,
    LORA,
    FP8,
    FLASH_ATTENTION,
    GROUPED_MATMUL,
    GATED_DELTA,
    DECODE_ATTENTION,
    WRITE_PAGES,
    TOKEN_SAMPLER,
    FEW_ROWS,
    NF4_FEW_ROWS,
)
IMPLEMENTATIONS = ("reference", "triton")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The ops of one run, each under its name: `kernels.glu(gate, up)`, `kernels.glu.backward(...)`."""

    ops: Mapping[str, Implementation]
    """Op name -> what computes it, for every op."""
    implementations: Mapping[str, str]
    """Op name -> "reference" or "triton", for every op."""

    def __getattr__(self, name: str) -> Implementation:
        """The implementation of the op of that name."""
        if name not in OP_NAMES:
            raise AttributeError(f"There is no op {name!r}; there are {', '.join(OP_NAMES)}.")
        return self.ops[name]


OP_NAMES = tuple(op.name for op in OPS)


def op_named(name: str) -> Op:
    """The op of that name.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    for op in OPS:
        if op.name == name:
            return op
    raise ValueError(f"There is no op {name!r}; there are {', '.join(OP_NAMES)}.")


def bind(choices: Mapping[str, str]) -> Kernels:
    """The implementations that `choices` (op name -> implementation) name; ops left out take the reference.

    Raises:
        ValueError: an op or an implementation is unknown, or "triton" is chosen where Triton cannot be imported.
    """
    implementations = {op.name: "reference" for op in OPS}
    for name, implementation in choices.items():
        op_named(name)
        if implementation not in IMPLEMENTATIONS:
            known = " and ".join(IMPLEMENTATIONS)
            raise ValueError(f"{name} has no implementation {implementation!r}; it has {known}.")
        if implementation == "triton" and not importable().ok:
            raise ValueError(f"{name} cannot use Triton. {importable().reason}")
        implementations[name] = implementation
    ops = {op.name: getattr(op, implementations[op.name]) for op in OPS}
    return Kernels(ops=ops, implementations=implementations)
