"""Cases of layer normalisation: widths of one and of two spans, with and without bias, large means, adds."""

DTYPES = ("float32", "float16", "bfloat16")
EVERYTHING = {"residual": True, "stream": True, "padding": 64}


def _make_cases():
    for dtype in DTYPES:
        for rows, width in ((1, 64), (7, 100), (7, 2560)):
            yield {"rows": rows, "width": width, "dtype": dtype}
            yield {"rows": rows, "width": width, "dtype": dtype, "trained": False, **EVERYTHING}
        yield {"rows": 7, "width": 100, "dtype": dtype, "bias": False, "layout": "sliced"}
        # What is left after such a mean is 1/100 of it: a variance by the mean of squares would cancel.
        yield {"rows": 7, "width": 128, "dtype": dtype, "mean": 100.0}
    yield {"rows": 257, "width": 64, "dtype": "float32"}
    yield {"rows": 7, "width": 128, "dtype": "float16", "scale": 1.5e4}
    yield {"rows": 0, "width": 64, "dtype": "float32"}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, **more}
    for rows, width in ((4096, 2560), (4096, 8192))
    for dtype in DTYPES
    for more in ({}, {"trained": False, **EVERYTHING})
)
COMPILE = ({"width": 4096}, {"width": 2560, "trained": False, "bias": False, **EVERYTHING})
EDGES = ({"width": 16384, **EVERYTHING}, {"width": 12288, "trained": False}, {"width": 64})
