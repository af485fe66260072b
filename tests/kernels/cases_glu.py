"""Cases of the gate of an MLP: its three activations, layouts, and gradients written over their inputs."""

DTYPES = ("float32", "float16", "bfloat16")
KINDS = ("silu", "gelu", "gelu_tanh")


def _make_cases():
    for dtype in DTYPES:
        for kind in KINDS:
            yield {"rows": 7, "width": 100, "dtype": dtype, "kind": kind, "product": True}
            yield {"rows": 3, "width": 1100, "dtype": dtype, "kind": kind, "packed": True}
        for layout in ("sliced", "transposed", "expanded"):
            yield {"rows": 7, "width": 100, "dtype": dtype, "layout": layout, "through_autograd": True}
        yield {"rows": 7, "width": 100, "dtype": dtype, "layout": "sliced"}
        yield {"rows": 1, "width": 64, "dtype": dtype}
    for kind in KINDS:
        yield {"rows": 7, "width": 128, "dtype": "float16", "kind": kind, "scale": 60.0}
    yield {"rows": 65, "width": 64, "dtype": "bfloat16"}
    yield {"rows": 0, "width": 64, "dtype": "float32"}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "kind": kind, "packed": True}
    for rows, width in ((257, 14336), (4096, 3584))
    for dtype in DTYPES
    for kind in KINDS
)
COMPILE = (
    {"width": 4096, "product": True},
    {"width": 128, "packed": True, "kind": "gelu"},
    {"width": 4096, "kind": "gelu_tanh", "through_autograd": True},
)
EDGES = ({"width": 16384, "packed": True}, {"width": 64})
