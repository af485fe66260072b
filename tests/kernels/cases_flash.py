"""Cases of attention: documents that end inside tiles, windows, caps that bite, shared heads, widths to be padded."""

CASES = (
    {"rows": 150, "width": 64, "dtype": "float16", "head_dim": 32, "lengths": (70, 1, 2, 40), "softcap": 5.0},
    {"rows": 150, "width": 32, "dtype": "bfloat16", "head_dim": 16, "lengths": (9,), "window": 20},
    {"rows": 1, "width": 32, "dtype": "bfloat16", "head_dim": 16},
    {"rows": 67, "width": 80, "dtype": "float16", "head_dim": 40, "softcap": 0.0, "shared": 1},
    {"rows": 90, "width": 24, "dtype": "bfloat16", "head_dim": 8, "shared": 3, "lengths": (90,), "window": 1},
    {"rows": 70, "width": 256, "dtype": "float16", "head_dim": 256, "shared": 1, "softcap": 8.0, "empty": 3},
    {"rows": 7, "width": 512, "dtype": "bfloat16", "head_dim": 128, "spread": 20.0, "shared": 4},
    {"rows": 7, "width": 512, "dtype": "float16", "head_dim": 128, "spread": 20.0, "shared": 4},
    {"rows": 40, "width": 1024, "dtype": "bfloat16", "head_dim": 512, "softcap": 0.0},
    {
        "rows": 200,
        "width": 16,
        "dtype": "float16",
        "head_dim": 16,
        "shared": 1,
        "lengths": (1,),
        "repeats": 150,
        "empty": 9,
    },
)
GEMMA2 = {"width": 1024, "head_dim": 256}
LARGE = tuple(
    {"rows": rows, "width": 4 * head_dim, "dtype": dtype, "head_dim": head_dim, **options}
    for dtype in ("bfloat16", "float16")
    for rows in (1, 7, 257, 4096)
    for head_dim in (64, 128, 256, 512)
    for options in (
        {},
        {"lengths": (rows,), "window": 100},
        {"softcap": 0.0, "lengths": (rows // 2, rows // 7), "window": 1000, "empty": 14},
        {"spread": 20.0, "shared": 4},
    )
) + (
    {"rows": 300, "width": 384, "dtype": "bfloat16", "head_dim": 96},
    {"rows": 300, "width": 320, "dtype": "float16", "head_dim": 80, "shared": 1},
    {"rows": 300, "width": 32, "dtype": "bfloat16", "head_dim": 16},
    {"rows": 2000, "width": 256, "dtype": "bfloat16", "head_dim": 64, "lengths": (3,), "repeats": 600},
)
COMPILE = ({**GEMMA2, "window": 4}, {"width": 256, "head_dim": 128, "softcap": 0.0})
EDGES = (
    {"width": 32, "head_dim": 16},
    {"width": 160, "head_dim": 80, "shared": 1},
    {"width": 128, "head_dim": 64},
)
