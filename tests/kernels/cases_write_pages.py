"""Cases of writing new tokens into pages: one head and several, widths to be padded."""

DTYPES = ("float32", "float16", "bfloat16")
CASES = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "heads": heads}
    for dtype in DTYPES
    for rows, width, heads in ((7, 48, 3), (1, 16, 1))
)
LARGE = tuple(
    {"rows": 64, "width": heads * head_dim, "dtype": dtype, "heads": heads}
    for dtype in DTYPES
    for heads, head_dim in ((8, 128), (2, 64), (4, 256), (32, 96), (1, 80))
)
COMPILE = ({"width": 1024, "heads": 8},)
EDGES = ({"width": 80, "heads": 1}, {"width": 1024, "heads": 4})
