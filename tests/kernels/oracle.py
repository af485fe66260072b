"""The judge of every kernel: forward and all gradients against float64, allowed twice the error of the PyTorch twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

ROWS = (1, 7, 257)
WIDTHS = (64, 100, 128, 2304)
DTYPES = ("float32", "float16", "bfloat16")
LAYOUTS = ("contiguous", "sliced", "transposed", "expanded")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of one op; `layout` says how input and upstream gradient lie in memory."""

    op: str
    rows: int
    width: int
    dtype: str
    weight_dtype: str = ""
    offset: int = 0
    order: str = "cast_then_scale"
    weight_trained: bool = True
    layout: str = "contiguous"
    scale: float = 1.0

    @property
    def id(self) -> str:
        """A readable test id: the fields that differ from their defaults."""
        given = {k: v for k, v in asdict(self).items() if v != type(self).__dataclass_fields__[k].default}
        return "-".join(str(value) for value in given.values())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far the kernel is from float64 in one output or gradient, and how far it may be."""

    quantity: str
    error: float
    twin_error: float
    limit: float
    dtype: str
    expected_dtype: str

    @property
    def ok(self) -> bool:
        """False for NaN too."""
        return self.error <= self.limit and self.dtype == self.expected_dtype


def cases() -> list[Case]:
    """Every case that a CPU runs in seconds: the interpreter takes some 3 ms a program."""
    found = []
    for dtype in DTYPES:
        for rows in ROWS:
            for width in WIDTHS:
                large = rows == 257 and width == 2304
                # 257 rows of 2304 are more blocks than there are partial sums of dw: some programs take two.
                if dtype == "float32" or not large:
                    found.append(Case(op="rms_norm", rows=rows, width=width, dtype=dtype))
                if rows < 257 or (width == 64 and dtype == "bfloat16"):
                    found.append(Case(op="swiglu", rows=rows, width=width, dtype=dtype))
        gemma = {"offset": 1, "order": "scale_then_cast"}
        for width in (100, 2304):
            found.append(Case(op="rms_norm", rows=7, width=width, dtype=dtype, **gemma))
            found.append(Case(op="rms_norm", rows=7, width=width, dtype=dtype, weight_trained=False))
        for layout in LAYOUTS[1:]:
            found.append(Case(op="rms_norm", rows=7, width=100, dtype=dtype, layout=layout))
            found.append(Case(op="swiglu", rows=7, width=100, dtype=dtype, layout=layout))
    # A norm kept in float32 over 16-bit activations, as peft prepares 4-bit models; and its opposite.
    for order in ("cast_then_scale", "scale_then_cast"):
        found.append(
            Case(op="rms_norm", rows=7, width=100, dtype="bfloat16", weight_dtype="float32", order=order)
        )
    found.append(Case(op="rms_norm", rows=7, width=128, dtype="float32", weight_dtype="bfloat16"))
    # float16 values near its largest (65,504): squares overflow unless they are taken in float32.
    found.append(Case(op="rms_norm", rows=7, width=128, dtype="float16", scale=1.5e4))
    found.append(Case(op="swiglu", rows=7, width=128, dtype="float16", scale=60.0))
    return found


def measure(case: Case, ours: Callable, twin: Callable, device: str, ulps: int) -> Iterator[Comparison]:
    """Runs kernel, twin and a float64 twin on the same rounded inputs and yields one Comparison a quantity.

    The limit is twice the twin's error plus `ulps` units in the last place of the largest value: 1 on a GPU, 2 in
    Triton's interpreter, whose bfloat16 stores truncate (a unit each; the norm rounds twice).
    """
    import torch

    dtype = getattr(torch, case.dtype)
    weight_dtype = getattr(torch, case.weight_dtype or case.dtype)
    generator = torch.Generator().manual_seed(case.rows * 10_007 + case.width)

    def draw(*shape: int, scale: float = 1.0):
        return torch.randn(*shape, generator=generator, dtype=torch.float32) * scale

    a, b = draw(case.rows, case.width, scale=case.scale), draw(case.rows, case.width)
    upstream = draw(case.rows, case.width)
    weight = draw(case.width) * 0.2 + 1.0

    def results(function: Callable, wide: bool):
        def place(tensor, to, layout=case.layout):
            rounded = tensor.to(to)
            placed = lay_out(rounded.to(torch.float64) if wide else rounded.to(device), layout)
            return placed.detach().requires_grad_()

        if case.op == "rms_norm":
            # In float64 the order of rounding does not matter.
            inputs = [place(a, dtype), place(weight, weight_dtype, "contiguous")]
            inputs[1].requires_grad_(case.weight_trained)
            y = function(*inputs, 1e-6, case.offset, case.order)
            names = ["y", "dx", "dw"]
        else:
            inputs = [place(a, dtype), place(b, dtype)]
            y = function(*inputs)
            names = ["h", "dgate", "dup"]
        dy = lay_out(upstream.to(dtype).to(y.device, y.dtype), case.layout)
        if case.layout == "expanded":  # what y.sum().backward() sends: one number, every stride 0
            dy = torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape)
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        gradients = torch.autograd.grad(y, wanted, dy)
        return dict(zip(names, (y.detach(), *gradients), strict=False))

    oracle = results(twin, wide=True)
    theirs = results(twin, wide=False)
    mine = results(ours, wide=False)
    assert mine.keys() == theirs.keys() == oracle.keys()
    for name, exact in oracle.items():
        tiny = ulps * torch.finfo(theirs[name].dtype).eps * exact.abs().max().item()
        twin_error = (theirs[name].cpu().double() - exact).abs().max().item()
        error = (mine[name].cpu().double() - exact).abs().max().item()
        yield Comparison(
            quantity=name,
            error=error,
            twin_error=twin_error,
            limit=2 * twin_error + tiny,
            dtype=str(mine[name].dtype),
            expected_dtype=str(theirs[name].dtype),
        )


def lay_out(tensor, layout: str):
    """The same values, another place in memory; what lies between them is NaN, so that a stray read shows."""
    import torch

    if layout in ("contiguous", "expanded"):
        return tensor.contiguous()
    rows, width = tensor.shape
    options = {"dtype": tensor.dtype, "device": tensor.device}
    if layout == "sliced":
        view = torch.full((rows, 2 * width + 3), float("nan"), **options)[:, 3 : 3 + width]
    else:
        view = torch.full((width, rows), float("nan"), **options).t()
    with torch.no_grad():
        view.copy_(tensor)
    return view
