"""Cases of DoRA's lengths: whole blocks and not, more rows than parts, ranks that do not fill a tile, biases."""

DTYPES = ("float32", "float16", "bfloat16")
CASES = (
    {"rows": 70, "width": 100, "dtype": "bfloat16", "bias": True},
    {"rows": 1, "width": 64, "dtype": "float32"},
    {"rows": 0, "width": 64, "dtype": "float16"},
    {"rows": 530, "width": 272, "dtype": "float16", "rank": 20},
    {"rows": 33, "width": 1100, "dtype": "bfloat16", "layout": "contiguous", "rank": 8},
    {"rows": 1100, "width": 48, "dtype": "float32", "bias": True, "rank": 64},
)
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "bias": bias}
    for rows, width, bias in ((4096, 4096, False), (257, 14336, True), (5000, 2300, True))
    for dtype in DTYPES
)
COMPILE = ({"width": 4096}, {"width": 4096, "bias": True, "rank": 64})
EDGES = ({"width": 100, "rank": 5},)
