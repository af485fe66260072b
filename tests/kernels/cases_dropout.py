"""Cases of dropout: spans of 512 columns, less and more, in parts of the rows."""

DTYPES = ("float32", "float16", "bfloat16")
CASES = (
    *(
        {"rows": rows, "width": width, "dtype": dtype}
        for dtype in DTYPES
        for rows, width in ((1, 64), (7, 100), (33, 640))
    ),
    {"rows": 9, "width": 1100, "dtype": "bfloat16", "p": 0.9},
    {"rows": 9, "width": 512, "dtype": "bfloat16", "p": 0.0},
    {"rows": 0, "width": 64, "dtype": "float32"},
)
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "p": 0.1}
    for rows, width in ((257, 14336), (4096, 2304), (4096, 4096))
    for dtype in DTYPES
)
COMPILE = ({"width": 4096, "layout": "contiguous"}, {"width": 2304})
EDGES = ({"width": 100},)
