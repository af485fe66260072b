"""Cases of the skinny products of adapters: one to three linears, ranks that do not fill a tile, gaps, pieces."""

QKV = {"outputs": (256, 64, 64), "ranks": (8, 8, 8)}
CASES = (
    {"rows": 70, "width": 100, "dtype": "bfloat16"},
    {"rows": 1, "width": 64, "dtype": "float16"},
    {"rows": 66, "width": 144, "dtype": "float16", "outputs": (270,), "ranks": (8,)},
    {"rows": 70, "width": 144, "dtype": "bfloat16", **QKV},
    {"rows": 65, "width": 80, "dtype": "float16", "outputs": (80, 48), "ranks": (4, 32), "gap": 16},
    {"rows": 33, "width": 80, "dtype": "float16", "outputs": (80, 48), "ranks": (64, 64), "tail": 128},
    {"rows": 33, "width": 80, "dtype": "bfloat16", "outputs": (130,), "ranks": (192,), "tail": 192},
    {"rows": 0, "width": 64, "dtype": "float16"},
)
LARGE = tuple(
    {
        "rows": rows,
        "width": width,
        "dtype": dtype,
        "outputs": outputs,
        "ranks": (rank,) * len(outputs),
        "tail": tail,
    }
    for dtype in ("bfloat16", "float16")
    for rows in (1, 257, 4096)
    for width, outputs in ((4096, (4096, 1024, 1024)), (3584, (18944, 18944)), (2304, (2304,)))
    for rank, tail in ((8, 64), (16, 64), (32, 128), (64, 192))
    if rank * len(outputs) <= tail
)
COMPILE = (
    {"width": 4096, "outputs": (4096, 1024, 1024), "ranks": (16, 16, 16)},
    {"width": 512, "outputs": (1024, 1024), "ranks": (32, 32)},
)
EDGES = (
    {"width": 100, "outputs": (100, 70), "ranks": (8, 4)},
    {"width": 256, "outputs": (256,), "ranks": (256,), "tail": 256},
)
