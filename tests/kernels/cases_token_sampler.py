"""Cases of drawing tokens: less than a span, several, odd vocabularies."""

DTYPES = ("float32", "float16", "bfloat16")
CASES = tuple(
    {"rows": rows, "width": width, "dtype": dtype}
    for dtype in DTYPES
    for rows, width in ((5, 3000), (4, 1), (3, 100), (2, 6145))
)
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype}
    for dtype in DTYPES
    for rows, width in ((1, 128256), (64, 151936), (7, 262144), (3, 49153))
)
COMPILE = ({"width": 4096},)
EDGES = ({"width": 1}, {"width": 262144})
