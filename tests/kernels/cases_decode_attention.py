"""Cases of attention over pages: one part and several, windows, caps, sinks, heads that share, widths to be padded."""

CASES = (
    {"rows": 200, "width": 128, "dtype": "float16", "head_dim": 32, "sunk": True, "shared": 4},
    {"rows": 130, "width": 64, "dtype": "bfloat16", "head_dim": 16, "window": 70, "slots": 4},
    {"rows": 1, "width": 32, "dtype": "float16", "head_dim": 16, "sunk": True},
    {"rows": 90, "width": 160, "dtype": "float16", "head_dim": 80, "shared": 1, "softcap": 8.0},
    {"rows": 65, "width": 96, "dtype": "bfloat16", "head_dim": 24, "shared": 3, "window": 1},
    {"rows": 400, "width": 64, "dtype": "float16", "head_dim": 16, "slots": 9, "softcap": 5.0, "window": 64},
)
LARGE = tuple(
    {"rows": rows, "width": shared * 4 * head_dim, "dtype": dtype, "head_dim": head_dim, "shared": shared, **more}
    for rows, dtype in ((63, "float16"), (3000, "bfloat16"))
    for head_dim, shared in ((64, 1), (80, 2), (96, 3), (128, 4), (256, 8))
    for more in (
        {"slots": 2}, {"slots": 9, "window": 300, "sunk": True}, {"slots": 65, "softcap": 20.0},
    )
)  # fmt: skip
COMPILE = (
    {"width": 1024, "head_dim": 128, "shared": 4},
    {"width": 160, "head_dim": 80, "shared": 1, "softcap": 5.0, "sunk": True, "slots": 600},
)
EDGES = (
    {"width": 512, "head_dim": 256, "window": 9, "sunk": True},
    {"width": 64, "head_dim": 64, "shared": 1},
)
