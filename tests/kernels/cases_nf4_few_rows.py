"""Cases of few rows by 4-bit weights: parts, blocks that share a word or not, tails, nested scales or not."""

CASES = (
    {"rows": 70, "width": 512, "dtype": "float16"},
    {"rows": 33, "width": 192, "dtype": "bfloat16", "few": 1, "rank": 0},
    {"rows": 40, "width": 128, "dtype": "bfloat16", "few": 17, "nested": False, "layout": "contiguous"},
    {"rows": 5, "width": 2048, "dtype": "float16", "few": 1, "rank": 64},
)
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "few": few, **more}
    for rows, width, dtype in (
        (2048, 4096, "bfloat16"), (512, 14336, "float16"), (896, 896, "bfloat16"), (151, 2560, "float16"),
    )
    for few in (1, 16, 33, 64)
    for more in ({}, {"rank": 0, "nested": False})
)  # fmt: skip
COMPILE = ({"width": 4096}, {"width": 896, "few": 20, "nested": False, "rank": 0})
EDGES = ({"width": 64, "few": 64, "rank": 64}, {"width": 14336, "few": 1})
