"""Cases of RMS normalisation: widths of one and of two spans, layouts, families' roundings, the adds around it."""

DTYPES = ("float32", "float16", "bfloat16")
GEMMA = {"offset": 1, "order": "scale_then_cast"}
EVERYTHING = {"residual": True, "stream": True, "padding": 64}


def _make_cases():
    for dtype in DTYPES:
        for rows, width in ((1, 64), (7, 100), (257, 64), (7, 2304)):
            yield {"rows": rows, "width": width, "dtype": dtype}
            yield {"rows": rows, "width": width, "dtype": dtype, "trained": False, **EVERYTHING}
        for width in (100, 2304):
            yield {"rows": 7, "width": width, "dtype": dtype, **GEMMA, "add": True}
        for layout in ("sliced", "transposed", "expanded"):
            yield {"rows": 7, "width": 100, "dtype": dtype, "layout": layout, "through_autograd": True}
        yield {"rows": 7, "width": 128, "dtype": dtype, "layout": "sliced", **EVERYTHING}
        yield {"rows": 7, "width": 100, "dtype": dtype, "trained": False, "through_autograd": True}
    # 257 rows of 2304 are more blocks than there are partial sums of dw: some programs take two.
    yield {"rows": 257, "width": 2304, "dtype": "float32"}
    # A norm kept in float32 over 16-bit activations, as peft prepares 4-bit models; and its opposite.
    for order in ("cast_then_scale", "scale_then_cast"):
        yield {"rows": 7, "width": 100, "dtype": "bfloat16", "weight_dtype": "float32", "order": order}
    yield {"rows": 7, "width": 128, "dtype": "float32", "weight_dtype": "bfloat16", "through_autograd": True}
    # float16 values near its largest (65,504): squares overflow unless they are taken in float32.
    yield {"rows": 7, "width": 128, "dtype": "float16", "scale": 1.5e4}
    yield {"rows": 0, "width": 64, "dtype": "float32"}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, **more}
    for rows, width in ((257, 14336), (4096, 2304), (4096, 3584), (4096, 5120), (70_001, 128))
    for dtype in DTYPES
    for more in ({}, {"trained": False, **EVERYTHING})
)
COMPILE = (
    {"width": 4096},
    {"width": 5120, "trained": False, **EVERYTHING},
    {"width": 2304, **GEMMA, "add": True},
    {"width": 128, "weight_dtype": "float32", "through_autograd": True},
)
EDGES = (
    {"width": 16384, **EVERYTHING},
    {"width": 12288, "trained": False, **EVERYTHING},
    {"width": 64, **GEMMA},
)
