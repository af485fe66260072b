"""What kernels.py times: each op on shapes of real models, its least bytes or products, and who else computes it.

Every case yields workloads: one direction of one op on one shape with a call for each contestant. `reference` is the
op's PyTorch twin, `compiled` that twin under torch.compile, `triton` ours; `torch` is what PyTorch itself offers, the
rest are other projects, left out where they are not installed. The bytes of a floor are those that any implementation
must read and write when everything else stays on the chip; 2 bytes an element of bfloat16.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from studio_kernels.dispatch import ERRORS, op_named
from studio_kernels.grouped_matmul import Groups
from studio_kernels.lora_tiling import Diagonal
from studio_kernels.nf4 import Nf4
from studio_kernels.op import Implementation
from studio_kernels.varlen import Documents, Heads
from torch import Tensor
from torch.nn import functional

BYTES = 2
"""Of one bfloat16 element."""
Call = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One direction of one op on one shape."""

    op: str
    direction: str
    shape: str
    calls: Mapping[str, Call]
    """Contestant -> one run, returning what is compared with the reference's."""
    floor_bytes: int = 0
    """Least traffic; 0 where products decide."""
    flops: int = 0
    prepare: Callable[[], object] = lambda: None
    """Done before each run, untimed: puts back what a call writes over."""


def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal values on the device of the `with torch.device(...)` around it."""
    return torch.randn(shape).mul_(scale).to(dtype)


def ours(name: str, compiled: bool = True) -> dict[str, Implementation]:
    """The implementations of an op: its twin, the twin compiled, and our kernels."""
    op = op_named(name)
    found = {"reference": op.reference, "triton": op.triton}
    if compiled:
        twin = op.reference
        backward = twin.backward and torch.compile(twin.backward, dynamic=False)
        found["compiled"] = Implementation(
            forward=torch.compile(twin.forward, dynamic=False), backward=backward
        )
    return found


def each(implementations: Mapping[str, Any], call: Callable[[Any], Sequence[Tensor]]) -> dict[str, Call]:
    """`call` for each of the implementations."""
    return {name: partial(call, implementation) for name, implementation in implementations.items()}


def peer(module: str, name: str) -> Any:
    """Another project's function, or None where it is not installed or does not load here."""
    try:
        return getattr(importlib.import_module(module), name)
    except (*ERRORS, NotImplementedError):
        return None


def backward_of(outputs: Sequence[Tensor], inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Call:
    """A run of autograd's backward pass."""
    return partial(torch.autograd.grad, outputs, inputs, gradients, retain_graph=True)


class FreshGraph:
    """A backward run whose graph is built anew before each run, untimed, from inputs put back to their values."""

    def __init__(self, build: Callable[[], Call], *restored: tuple[Tensor, Tensor]) -> None:
        self.build, self.restored = build, restored

    def prepare(self) -> None:
        """Put back the inputs and run forward."""
        with torch.no_grad():
            for target, source in self.restored:
                target.copy_(source)
        self.run = self.build()

    def __call__(self) -> Sequence[Tensor]:
        """Run backward."""
        return self.run()


def leaf(x: Tensor) -> Tensor:
    """A copy that wants a gradient."""
    return x.detach().clone().requires_grad_()


def norms(rows: int, width: int) -> Iterator[Workload]:
    """RMS norm with the residual's add. Forward x, residual -> s, y; backward dy, s, ds -> dx: four accesses each."""
    x, residual, dy, ds, weight = *(draw(rows, width) for _ in range(4)), draw(width)
    _, s, r = op_named("rms_norm").reference.forward(x, weight, 1e-6, residual=residual)
    forward = each(ours("rms_norm"), lambda i: i.forward(x, weight, 1e-6, residual=residual)[:2])
    backward = each(ours("rms_norm"), lambda i: (i.backward(dy, s, weight, r, ds=ds),))

    def add(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        s = x + residual
        return functional.rms_norm(s, (width,), weight, 1e-6), s

    others = {"torch": add}
    if function := peer("liger_kernel.ops.fused_add_rms_norm", "LigerFusedAddRMSNormFunction"):
        others["liger"] = lambda x, residual: function.apply(x, residual, weight, 1e-6, 0.0, "llama", False)
    for name, run in others.items():
        one, other = leaf(x), leaf(residual)
        forward[name] = partial(run, x, residual)
        backward[name] = backward_of(run(one, other), [one], [dy, ds])
    shape, floor = f"{rows}x{width}", 4 * rows * width * BYTES
    yield Workload(op="rms_norm", direction="add and norm", shape=shape, calls=forward, floor_bytes=floor)
    yield Workload(op="rms_norm", direction="backward", shape=shape, calls=backward, floor_bytes=floor)


def plain_norms(rows: int, width: int, trained: bool = False) -> Iterator[Workload]:
    """RMS norm alone, as queries and keys have it: forward x -> y, backward dy, x -> dx."""
    x, dy, weight = draw(rows, width), draw(rows, width), draw(width)
    _, s, r = op_named("rms_norm").reference.forward(x, weight, 1e-6)
    dw = torch.zeros(width) if trained else None
    forward = each(ours("rms_norm"), lambda i: i.forward(x, weight, 1e-6)[:1])
    backward = each(ours("rms_norm"), lambda i: (i.backward(dy, s, weight, r, weight_gradient=dw),))
    others = {"torch": lambda x, weight: functional.rms_norm(x, (width,), weight, 1e-6)}
    if function := peer("liger_kernel.ops.rms_norm", "LigerRMSNormFunction"):
        others["liger"] = lambda x, weight: function.apply(x, weight, 1e-6, 0.0, "llama", False)
    for name, run in others.items():
        one, scale = leaf(x), leaf(weight).requires_grad_(trained)
        forward[name] = lambda run=run: (run(x, weight),)
        backward[name] = backward_of([run(one, scale)], [one, scale][: 1 + trained], [dy])
    shape, floor = f"{rows}x{width}", rows * width * BYTES
    yield Workload(op="rms_norm", direction="norm", shape=shape, calls=forward, floor_bytes=2 * floor)
    direction = "backward with weight" if trained else "backward"
    yield Workload(op="rms_norm", direction=direction, shape=shape, calls=backward, floor_bytes=3 * floor)


def layer_norms(rows: int, width: int) -> Iterator[Workload]:
    """Layer norm with the residual's add: four accesses each way, as RMS norm."""
    x, residual, dy, ds = (draw(rows, width) for _ in range(4))
    weight, bias = draw(width), draw(width)
    _, s, mean, r = op_named("layer_norm").reference.forward(x, weight, bias, 1e-5, residual=residual)
    forward = each(ours("layer_norm"), lambda i: i.forward(x, weight, bias, 1e-5, residual=residual)[:2])
    backward = each(ours("layer_norm"), lambda i: (i.backward(dy, s, weight, mean, r, ds=ds),))
    others = {"torch": lambda s: functional.layer_norm(s, (width,), weight, bias, 1e-5)}
    if function := peer("liger_kernel.ops.layer_norm", "LigerLayerNormFunction"):
        others["liger"] = lambda s: function.apply(s, weight, bias, 1e-5)

    def add(norm: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        s = x + residual
        return norm(s), s

    for name, norm in others.items():
        one = leaf(x)
        forward[name], backward[name] = partial(add, norm, x), backward_of(add(norm, one), [one], [dy, ds])
    shape, floor = f"{rows}x{width}", 4 * rows * width * BYTES
    yield Workload(op="layer_norm", direction="add and norm", shape=shape, calls=forward, floor_bytes=floor)
    yield Workload(op="layer_norm", direction="backward", shape=shape, calls=backward, floor_bytes=floor)


def gates(rows: int, width: int, kind: str) -> Iterator[Workload]:
    """Forward gate, up -> h; backward dh, gate, up -> dgate, dup and, with recomputation, h."""
    both, gradients, dh = draw(rows, 2 * width), draw(rows, 2 * width), draw(rows, width)
    gate, up = both.chunk(2, 1)
    dgate, dup = gradients.chunk(2, 1)
    h = torch.empty_like(dh)
    forward = each(ours("glu"), lambda i: (i.forward(gate, up, kind, out=h),))
    plain = each(ours("glu"), lambda i: i.backward(dh, gate, up, kind, dgate=dgate, dup=dup)[:2])
    again = each(ours("glu"), lambda i: i.backward(dh, gate, up, kind, dgate=dgate, dup=dup, h=h))
    activate = functional.silu if kind == "silu" else partial(functional.gelu, approximate="tanh")
    others: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"torch": lambda a, b: activate(a) * b}
    known = {"silu": ("swiglu", "LigerSiLUMulFunction"), "gelu_tanh": ("geglu", "LigerGELUMulFunction")}
    if function := peer(f"liger_kernel.ops.{known[kind][0]}", known[kind][1]):
        others["liger"] = function.apply
    plain_gate, plain_up = gate.contiguous(), up.contiguous()
    for name, function in others.items():
        forward[name] = lambda function=function: (function(plain_gate, plain_up),)
        one, other = leaf(gate), leaf(up)

        def build(function: Callable = function, one: Tensor = one, other: Tensor = other) -> Call:
            return backward_of([function(one, other)], [one, other], [dh])

        # Liger writes the gradients over gate and up: a second run would read them.
        plain[name] = FreshGraph(build, (one, gate), (other, up)) if name == "liger" else build()
    shape, floor = f"{rows}x{width}", rows * width * BYTES
    yield Workload(op="glu", direction=kind, shape=shape, calls=forward, floor_bytes=3 * floor)
    yield Workload(op="glu", direction=f"{kind} backward", shape=shape, calls=plain, floor_bytes=5 * floor)
    yield Workload(
        op="glu", direction=f"{kind} backward with h", shape=shape, calls=again, floor_bytes=6 * floor
    )


def ropes(rows: int, query_heads: int, key_heads: int, width: int, norms: bool = False) -> Iterator[Workload]:
    """Forward reads and writes queries and keys; backward packs dv, too, and with norms reads both again."""
    heads = query_heads + key_heads
    raw = draw(rows, (heads + key_heads) * width)
    qkv, packed = raw.clone(), torch.empty_like(raw)
    angles = torch.arange(rows)[:, None] * 5e5 ** (-torch.arange(0, width, 2).repeat(2) / width)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.arange(rows, dtype=torch.int32)
    sizes = (cos, sin, positions, query_heads, key_heads, width)
    dq, dk, dv = draw(rows, query_heads, width), draw(rows, key_heads, width), draw(rows, key_heads, width)
    options: dict[str, Any] = {}
    if norms:
        options = {"query_norm": draw(width), "key_norm": draw(width), "eps": 1e-6}
        out = torch.empty(rows, heads * width, dtype=torch.bfloat16)
    target = {"out": out} if norms else {}
    back = options | ({"qkv": raw} if norms else {})

    def split(result: Tensor) -> Sequence[Tensor]:
        return result[:, : heads * width].unflatten(1, (heads, width)).split([query_heads, key_heads], 1)

    forward = each(ours("rope"), lambda i: split(i.forward(qkv, *sizes, **options, **target)))
    backward = each(ours("rope"), lambda i: (i.backward(dq, dk, dv, *sizes, out=packed, **back),))
    function = None if norms else peer("liger_kernel.ops.rope", "LigerRopeFunction")
    if function:
        tables = cos[None], sin[None]

        def rotate(q: Tensor, k: Tensor) -> Sequence[Tensor]:
            rotated = function.apply(q, k, *tables)
            return [each.transpose(1, 2)[0] for each in rotated]

        q, k = (each.transpose(0, 1)[None] for each in split(qkv))
        one, other = leaf(q), leaf(k)
        rotated = rotate(one, other)

        def pack() -> Sequence[Tensor]:
            gradients = torch.autograd.grad(rotated, [one, other], [dq, dk], retain_graph=True)
            parts = [each[0].transpose(0, 1).flatten(1) for each in gradients]
            return (torch.cat([*parts, dv.flatten(1)], 1),)

        forward["liger"], backward["liger"] = partial(rotate, q, k), pack
    shape = f"{rows}x({query_heads}+{key_heads})x{width}" + (" norms" if norms else "")
    rotated_bytes, value_bytes = rows * heads * width * BYTES, rows * key_heads * width * BYTES
    yield Workload(
        op="rope", direction="forward", shape=shape, calls=forward, floor_bytes=2 * rotated_bytes,
        prepare=lambda: qkv.copy_(raw),
    )  # fmt: skip
    floor = (3 if norms else 2) * rotated_bytes + 2 * value_bytes
    yield Workload(op="rope", direction="backward", shape=shape, calls=backward, floor_bytes=floor)


def dropouts(rows: int, width: int) -> Iterator[Workload]:
    """x -> y; no mask is kept. PyTorch's own draws others, so that nothing can be compared with it."""
    x, seed = draw(rows, width), torch.full((), 77, dtype=torch.int64)
    calls = each(ours("dropout"), lambda i: (i.forward(x, 0.1, seed, 3),))
    calls["torch"] = lambda: (functional.dropout(x, 0.1),)[:0]
    floor = 2 * rows * width * BYTES
    yield Workload(op="dropout", direction="forward", shape=f"{rows}x{width}", calls=calls, floor_bytes=floor)


def dequantisations(rows: int, width: int) -> Iterator[Workload]:
    """Half a byte and a 64th of a scale byte an element -> 2 bytes."""
    bitsandbytes = peer("bitsandbytes", "functional")
    if bitsandbytes is None:
        return
    packed, state = bitsandbytes.quantize_4bit(draw(rows, width), quant_type="nf4", compress_statistics=True)
    weight, out = Nf4.of(state, packed), torch.empty(rows, width, dtype=torch.bfloat16)
    calls = each(ours("nf4"), lambda i: (i.forward(weight, out),))
    calls["bitsandbytes"] = lambda: (bitsandbytes.dequantize_4bit(packed, state),)
    elements = rows * width
    floor = elements * BYTES + elements // 2 + elements // 64
    yield Workload(op="nf4", direction="forward", shape=f"{rows}x{width}", calls=calls, floor_bytes=floor)


def lengths(rows: int, outputs: int, inputs: int) -> Iterator[Workload]:
    """DoRA: rows of a weight times their factors into a wider matrix; the lengths' gradient of dY and Y, both wide."""
    weight, times = draw(outputs, inputs), draw(outputs, dtype=torch.float32)
    place = torch.empty(outputs, inputs + 64, dtype=torch.bfloat16)[:, :inputs]
    kinds = ours("magnitudes", compiled=False)
    calls = each(kinds, lambda i: (i.scale_rows(weight, times, out=place),))
    yield Workload(
        op="magnitudes", direction="W'", shape=f"{outputs}x{inputs}", calls=calls,
        floor_bytes=2 * outputs * inputs * BYTES,
    )  # fmt: skip
    dy, y = (draw(rows, outputs + 64)[:, :outputs] for _ in range(2))
    m, dm = times.abs().add_(1.0), torch.zeros(outputs)
    calls = each(kinds, lambda i: (i.add_dots(dy, y, None, m, out=dm),))
    yield Workload(
        op="magnitudes", direction="dm", shape=f"{rows}x{outputs}", calls=calls,
        floor_bytes=2 * rows * outputs * BYTES, prepare=dm.zero_,
    )  # fmt: skip


def updates(elements: int) -> Iterator[Workload]:
    """Squares read g; the step reads p, g, m, v and writes p, m, v, all float32."""
    starts = [draw(elements, scale=scale, dtype=torch.float32) for scale in (0.02, 1e-3, 1e-6)]
    starts[2].abs_()
    gradient = draw(elements, dtype=torch.float32)
    parameters, first, second = (start.clone() for start in starts)
    settings = torch.tensor([1e-3, 1.0, 1.0])
    state = torch.zeros(3)

    def restore() -> None:
        for target, source in zip((parameters, first, second), starts, strict=True):
            target.copy_(source)
        state.zero_()

    def step(implementation: Implementation) -> Sequence[Tensor]:
        implementation.forward(parameters, gradient, first, second, settings=settings, state=state)
        return (parameters,)

    calls = each(ours("adamw"), step)
    plain = torch.nn.Parameter(starts[0].clone())
    plain.grad = gradient.clone()
    optimizer = torch.optim.AdamW([plain], lr=1e-3, weight_decay=0.0, fused=True)

    def stock() -> Sequence[Tensor]:
        torch.nn.utils.clip_grad_norm_([plain], 1.0)
        optimizer.step()
        return ()

    calls["torch"] = stock
    floor = elements * (4 + 4 * 4 + 3 * 4)
    yield Workload(
        op="adamw", direction="step", shape=f"{elements}", calls=calls, floor_bytes=floor, prepare=restore
    )


def heads(rows: int, width: int, vocabulary: int) -> Iterator[Workload]:
    """The frozen head: the logits' product once and their gradient's; a loss of about 1 nat, as of a trained model."""
    weight, targets = draw(vocabulary, width), torch.randint(vocabulary, (rows,))
    hidden = draw(rows, width, scale=width**-0.5).add_(weight[targets], alpha=12 / width)
    one = hidden.detach().requires_grad_()

    def ask(implementation: Implementation) -> Sequence[Tensor]:
        return implementation.forward(hidden, weight, targets, scale=1 / rows)

    def differentiate(loss: Tensor) -> Sequence[Tensor]:
        return loss.detach(), *torch.autograd.grad(loss, one)

    calls = each(ours("linear_cross_entropy", compiled=False), ask)
    calls["torch"] = lambda: differentiate(functional.cross_entropy((one @ weight.T).float(), targets))
    if function := peer("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy"):
        calls["liger"] = lambda: differentiate(function(one, weight, targets))
    if cce := peer("cut_cross_entropy", "linear_cross_entropy"):
        calls["cce"] = lambda: differentiate(cce(one, weight, targets))
    yield Workload(
        op="linear_cross_entropy", direction="loss and gradient", shape=f"{rows}x{width}x{vocabulary}", calls=calls,
        flops=4 * rows * width * vocabulary,
    )  # fmt: skip


def adapters(rows: int, inputs: int, outputs: tuple[int, ...], rank: int = 16) -> Iterator[Workload]:
    """The low-rank products of one group: what is read is X, dY or both, the rest is thin. Twins call cuBLAS."""
    tail, out = 64, sum(outputs)
    x, dy, u = draw(rows, inputs + tail), draw(rows, out + tail), draw(rows, tail)
    matrix = draw(out + tail, inputs + tail, scale=inputs**-0.5)
    blocks, row = [], 0
    for place, size in enumerate(outputs):
        blocks.append((row, row + size, place * rank, (place + 1) * rank))
        row += size
    b = matrix[:out, inputs:]
    keep = torch.zeros_like(b)
    for top, bottom, left, right in blocks:
        keep[top:bottom, left:right] = 1
    b.mul_(keep)
    sums = torch.zeros(sum(outputs), rank).split(list(outputs))
    diagonal = Diagonal.of(blocks, sums, [1.0] * len(outputs), b)
    da = torch.zeros(len(outputs) * rank, inputs)
    clear = lambda: [each.zero_() for each in (*sums, da)]  # noqa: E731
    used = len(outputs) * rank
    g = dy[:, out : out + used]
    kinds = ours("lora", compiled=False)
    project = each(kinds, lambda i: (i.forward(x[:, :inputs], matrix[out:, :inputs], out=x[:, inputs:]),))
    gradients = each(kinds, lambda i: (i.backward(dy[:, :out], b, u, diagonal, g=dy[:, out:]), *sums))
    last = each(kinds, lambda i: (i.gradient_a(g, x[:, :inputs], out=da),))
    parts = {
        "U": (project, rows * (inputs + tail) * BYTES),
        "G and dB": (gradients, rows * (out + 2 * tail) * BYTES),
        "dA": (last, rows * (inputs + used) * BYTES),
    }
    for direction, (calls, floor) in parts.items():
        shape = f"{rows}x{inputs}->{'+'.join(map(str, outputs))} r{rank}"
        yield Workload(
            op="lora", direction=direction, shape=shape, calls=calls, floor_bytes=floor, prepare=clear
        )


def experts(
    tokens: int, picked: int, count: int, width: int, inner: int, rank: int = 16
) -> Iterator[Workload]:
    """Rows of tokens that go to `picked` of `count` experts each, chosen evenly: a product with adapters, and dA."""
    rows = tokens * picked
    groups = Groups.of(torch.randint(count, (rows,)).sort()[0], count)
    x, weight = draw(rows, width), draw(count, inner, width, scale=width**-0.5)
    u, b = draw(rows, rank), draw(count, inner, rank, scale=rank**-0.5)
    da = torch.zeros(count, rank, width)
    kinds = ours("grouped_matmul", compiled=False)
    calls = each(kinds, lambda i: (i.product(x, weight, groups, tail=(u, b)),))
    shape = f"{tokens}x{picked} of {count}, {width}->{inner} r{rank}"
    yield Workload(
        op="grouped_matmul", direction="Y", shape=shape, calls=calls, flops=2 * rows * inner * (width + rank)
    )
    last = each(kinds, lambda i: (i.gradient(u, x, groups, out=da),))
    yield Workload(
        op="grouped_matmul", direction="dA", shape=shape, calls=last, prepare=da.zero_,
        floor_bytes=rows * (width + rank) * BYTES,
    )  # fmt: skip


def quantisations(rows: int, width: int) -> Iterator[Workload]:
    """2 bytes an element -> 1, and a scale a row."""
    x = draw(rows, width)
    calls = each(ours("fp8"), lambda i: i.forward(x)[1:])
    floor = rows * width * (BYTES + 1)
    yield Workload(op="fp8", direction="rows", shape=f"{rows}x{width}", calls=calls, floor_bytes=floor)


def capped_attentions(
    lengths: Sequence[int], query_heads: int, key_heads: int, width: int, window: int = 0
) -> Iterator[Workload]:
    """Causal attention with capped scores within documents: the twin is composed, PyTorch has no kernel for it."""
    documents = Documents.of(lengths, torch.get_default_device())
    heads = Heads(
        head_dim=width,
        query_heads=query_heads,
        key_heads=key_heads,
        scale=width**-0.5,
        window=window,
        softcap=50.0,
    )
    drawn = draw(documents.tokens, 2 * (query_heads + key_heads), width)
    q, k, v, dout = drawn.split((query_heads, key_heads, key_heads, query_heads), 1)
    kinds = ours("flash", compiled=False)
    forward = each(kinds, lambda i: i.forward(q, k, v, documents, heads)[:1])

    kept: dict[str, tuple[Tensor, Any]] = {}

    def back(name: str) -> Sequence[Tensor]:
        if name not in kept:
            kept[name] = kinds[name].forward(q, k, v, documents, heads)
        return kinds[name].backward(dout, q, k, v, *kept[name], documents, heads)

    pairs = sum(sum(min(place + 1, window or length) for place in range(length)) for length in lengths)
    flops = 4 * pairs * query_heads * width
    shape = f"{'+'.join(map(str, lengths))} ({query_heads}+{key_heads})x{width}"
    shape += f" window {window}" if window else ""
    yield Workload(op="flash", direction="forward", shape=shape, calls=forward, flops=flops)
    backward = {name: partial(back, name) for name in kinds}
    yield Workload(op="flash", direction="backward", shape=shape, calls=backward, flops=flops * 5 // 2)
