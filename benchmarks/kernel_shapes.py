"""On which shapes kernels.py times which op: those of real models, those of `launch.py bench`, and tiny ones to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.decode_cases import decode_attentions, few_rows, page_writes, token_draws, wide_rows
from benchmarks.delta_rule_cases import delta_rules
from benchmarks.kernel_cases import (
    Workload,
    adapters,
    capped_attentions,
    dequantisations,
    dropouts,
    experts,
    gates,
    heads,
    layer_norms,
    lengths,
    norms,
    plain_norms,
    quantisations,
    ropes,
    updates,
)

Cases = dict[str, tuple[Callable[[], Iterator[Workload]], ...]]
"""Op -> what yields its workloads, on the device of the `with torch.device(...)` around it."""

CASES: Cases = {
    "rms_norm": (
        *(partial(norms, *shape) for shape in ((4096, 4096), (16384, 2304), (16384, 4096), (16384, 5120))),
        partial(plain_norms, 524288, 128),
        partial(plain_norms, 16384, 4096, trained=True),
    ),
    "layer_norm": (partial(layer_norms, 16384, 2560), partial(layer_norms, 16384, 8192)),
    "glu": (
        partial(gates, 4096, 14336, "silu"),
        partial(gates, 16384, 14336, "silu"),
        partial(gates, 16384, 10240, "gelu_tanh"),
    ),
    "rope": (
        partial(ropes, 4096, 32, 8, 128),
        partial(ropes, 16384, 32, 8, 128),
        partial(ropes, 16384, 16, 8, 128, norms=True),
    ),
    "dropout": (partial(dropouts, 16384, 4096),),
    "nf4": (partial(dequantisations, 4096, 4096), partial(dequantisations, 28672, 4096)),
    "magnitudes": (partial(lengths, 4096, 4096, 14336), partial(lengths, 4096, 28672, 4096)),
    "adamw": (partial(updates, 41_943_040),),
    "linear_cross_entropy": (partial(heads, 4096, 4096, 128256), partial(heads, 1024, 1024, 151936)),
    "lora": (
        partial(adapters, 16384, 4096, (4096, 1024, 1024)),
        partial(adapters, 16384, 4096, (14336, 14336)),
    ),
    "grouped_matmul": (partial(experts, 4096, 8, 128, 2048, 1536), partial(experts, 4096, 8, 128, 768, 2048)),
    "gated_delta": (partial(delta_rules, (2048, 2048), 16, 32, 128),),
    "fp8": (partial(quantisations, 16384, 4096),),
    "flash": (
        partial(capped_attentions, (2048, 2048), 16, 8, 256),
        partial(capped_attentions, (8192,), 16, 8, 256, window=4096),
    ),
    "decode_attention": tuple(partial(decode_attentions, slots, 1024, 32, 8, 128) for slots in (1, 8, 64)),
    "write_pages": (partial(page_writes, 64, 8, 128),),
    "token_sampler": (partial(token_draws, 1, 128256), partial(token_draws, 64, 128256)),
    "few_rows": tuple(
        partial(wide_rows, rows, 4096, sizes)
        for rows in (1, 16)
        for sizes in ((4096, 1024, 1024), (14336, 14336))
    ),
    "nf4_few_rows": tuple(
        partial(few_rows, rows, *shape)
        for rows in (1, 8, 64)
        for shape in ((4096, 14336), (14336, 4096), (4096, 6144), (4096, 4096))
    ),
}
QUICK: Cases = {
    "rms_norm": (partial(norms, 4096, 4096),),
    "glu": (partial(gates, 2048, 14336, "silu"),),
    "rope": (partial(ropes, 4096, 32, 8, 128),),
    "dropout": (partial(dropouts, 4096, 4096),),
    "nf4": (partial(dequantisations, 4096, 4096),),
    "adamw": (partial(updates, 8_388_608),),
    "linear_cross_entropy": (partial(heads, 2048, 4096, 32768),),
    "lora": (partial(adapters, 4096, 4096, (4096, 1024, 1024)),),
}
"""The ops of a training step on shapes that a card of 4 GB has room for: what `launch.py bench` times."""
TRY: Cases = {
    "rms_norm": (partial(norms, 8, 64), partial(plain_norms, 8, 64, trained=True)),
    "layer_norm": (partial(layer_norms, 8, 64),),
    "glu": (partial(gates, 8, 64, "silu"), partial(gates, 8, 64, "gelu_tanh")),
    "rope": (partial(ropes, 8, 4, 2, 16), partial(ropes, 8, 4, 2, 16, norms=True)),
    "dropout": (partial(dropouts, 8, 64),),
    "nf4": (partial(dequantisations, 64, 64),),
    "magnitudes": (partial(lengths, 8, 64, 32),),
    "adamw": (partial(updates, 1024),),
    "linear_cross_entropy": (partial(heads, 8, 64, 128),),
    "lora": (partial(adapters, 8, 64, (64, 32)),),
    "grouped_matmul": (partial(experts, 8, 2, 4, 64, 32, 8),),
    "gated_delta": (partial(delta_rules, (70, 9), 1, 2, 16),),
    "fp8": (partial(quantisations, 8, 64),),
    "flash": (
        partial(capped_attentions, (9, 5), 4, 2, 16),
        partial(capped_attentions, (14,), 4, 2, 16, window=4),
    ),
    "decode_attention": (partial(decode_attentions, 2, 70, 4, 2, 16),),
    "write_pages": (partial(page_writes, 2, 2, 16),),
    "token_sampler": (partial(token_draws, 2, 100),),
    "few_rows": (partial(wide_rows, 2, 64, (32, 16)),),
    "nf4_few_rows": (partial(few_rows, 2, 128, 64), partial(few_rows, 1, 64, 32, rank=0)),
}
"""A try of the benchmark itself on any machine."""
