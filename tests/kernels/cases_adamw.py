"""Cases of AdamW: odd lengths, with and without clipping and shadow, and a step that overflows."""

DTYPES = ("float32", "float16", "bfloat16")


def _make_cases():
    for dtype in DTYPES:
        for rows, width in ((1, 1), (7, 100), (33, 100)):
            yield {"rows": rows, "width": width, "dtype": dtype}
        yield {"rows": 7, "width": 100, "dtype": dtype, "limit": 0.0, "steps": 3}
        yield {"rows": 7, "width": 100, "dtype": dtype, "overflow": True}
    yield {"rows": 0, "width": 64, "dtype": "float32"}


CASES = tuple(_make_cases())
# More blocks than there are partial sums of squares: some programs take several.
LARGE = tuple({"rows": rows, "width": 4099, "dtype": dtype} for rows in (257, 5000) for dtype in DTYPES)
COMPILE = ({"width": 4096}, {"width": 128, "steps": 1})
EDGES = ({"width": 33}, {"width": 64})
