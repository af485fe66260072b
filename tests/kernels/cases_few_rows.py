"""Cases of few rows by 16-bit weights: one to three linears, with adapters, biases and a stream, or without."""

CASES = (
    {"rows": 70, "width": 512, "dtype": "float16"},
    {"rows": 33, "width": 192, "dtype": "bfloat16", "few": 1, "rank": 0, "parts": 1},
    {"rows": 40, "width": 120, "dtype": "bfloat16", "few": 17, "parts": 2, "bias": False, "spare": 64},
    {"rows": 5, "width": 600, "dtype": "float16", "few": 1, "rank": 64, "added": False},
)
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "few": few, **more}
    for rows, width, dtype in (
        (2048, 4096, "bfloat16"), (512, 14336, "float16"), (896, 896, "bfloat16"), (151, 2560, "float16"),
        (14336, 4096, "bfloat16"),
    )
    for few in (1, 16, 33, 64)
    for more in (
        {"rank": 16}, {"rank": 0, "parts": 1, "bias": False}, {"parts": 2, "added": False, "rank": 24, "spare": 64},
    )
)  # fmt: skip
COMPILE = ({"width": 4096}, {"width": 896, "few": 20, "rank": 0, "parts": 1})
EDGES = ({"width": 64, "few": 64, "rank": 64}, {"width": 14336, "few": 1, "parts": 2})
