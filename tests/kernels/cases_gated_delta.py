"""Cases of the gated delta rule: chunks that are full and not, documents of all lengths, grouped and odd heads."""

CASES = (
    {"rows": 70, "width": 32, "dtype": "bfloat16", "key_dim": 16, "lengths": (66, 4)},
    {"rows": 150, "width": 64, "dtype": "bfloat16", "key_dim": 32, "lengths": (1, 64, 80, 5)},
    {"rows": 130, "width": 128, "dtype": "float16", "key_dim": 64, "group": 1},
    {"rows": 70, "width": 48, "dtype": "float16", "key_dim": 24, "group": 2, "fading": 9.0},
    {"rows": 1, "width": 32, "dtype": "bfloat16", "key_dim": 16},
    {"rows": 40, "width": 96, "dtype": "bfloat16", "key_dim": 16, "group": 3, "fading": 0.01},
)
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "group": group, "fading": fading}
    for dtype in ("bfloat16", "float16")
    for rows in (257, 4096)
    for width, group, fading in ((2048, 2, 0.1), (1536, 3, 0.003), (1024, 1, 20.0))
)
COMPILE = ({"width": 512}, {"width": 256, "key_dim": 64, "group": 1})
EDGES = ({"width": 200, "key_dim": 100, "group": 2},)
