"""Cases of decoding 4-bit weights: whole words or not, blocks that straddle rows, nested scales or not."""

DTYPES = ("float32", "float16", "bfloat16")


def _make_cases():
    for dtype in DTYPES:
        for nested in (True, False):
            for rows, width in ((1, 1), (3, 5), (7, 100), (33, 104), (5, 896), (3, 4096)):
                yield {"rows": rows, "width": width, "dtype": dtype, "nested": nested}
        yield {"rows": 33, "width": 192, "dtype": dtype, "layout": "sliced"}
        yield {"rows": 33, "width": 99, "dtype": dtype, "layout": "sliced"}
        for width in (104, 99, 896):
            yield {"rows": 7, "width": width, "dtype": dtype, "scaled": True}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "layout": layout}
    for rows, width in ((14336, 4096), (3072, 17920), (4096, 14336), (257, 2300))
    for dtype in DTYPES
    for layout in ("contiguous", "sliced")
) + tuple({"rows": 4096, "width": 14336, "dtype": dtype, "scaled": True} for dtype in DTYPES)
COMPILE = (
    {"width": 4096},
    {"width": 128, "nested": False, "layout": "sliced"},
    {"width": 100},
    {"width": 4096, "layout": "sliced", "scaled": True},
)
EDGES = ({"width": 28672}, {"width": 8}, {"width": 33}, {"width": 100, "scaled": True})
