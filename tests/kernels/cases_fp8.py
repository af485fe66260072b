"""Cases of quantising rows to 8-bit floating point, whose bytes must be the twin's own, and of joining products."""

DTYPES = ("float32", "float16", "bfloat16")


def _make_cases():
    for dtype in DTYPES:
        for rows, width in ((1, 1), (7, 100), (33, 128), (3, 4100)):
            yield {"rows": rows, "width": width, "dtype": dtype}
        for layout in ("sliced", "transposed"):
            yield {"rows": 7, "width": 100, "dtype": dtype, "layout": layout}
        yield {"rows": 3, "width": 100, "dtype": dtype, "scale": 0.0}
    # Beside 1e4 most values are below the smallest normal number of e4m3, some below its smallest at all.
    yield {"rows": 7, "width": 100, "dtype": "float16", "scale": 1e4}
    yield {"rows": 7, "width": 100, "dtype": "float32", "scale": 1e-30}
    yield {"rows": 257, "width": 128, "dtype": "float32"}
    yield {"rows": 0, "width": 64, "dtype": "float32"}
    for rows, rank, join in (
        (1, 64, "place"),
        (130, 64, "add"),
        (33, 128, "back"),
        (0, 64, "place"),
        (5, 80, "add"),
    ):
        yield {"rows": rows, "width": 144, "dtype": "bfloat16", "join": join, "rank": rank}
    yield {"rows": 7, "width": 144, "dtype": "float16", "join": "back"}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype}
    for rows, width in ((4096, 4096), (2048, 14336), (257, 28672))
    for dtype in DTYPES
) + tuple(
    {"rows": rows, "width": width, "dtype": "bfloat16", "join": join, "rank": rank}
    for rows, width, rank in ((4096, 4096, 64), (4096, 28672, 64), (257, 14336, 192))
    for join in ("place", "add", "back")
)
COMPILE = (
    {"width": 4096},
    {"width": 128, "layout": "sliced"},
    *({"width": 4096, "join": join} for join in ("place", "add", "back")),
)
EDGES = ({"width": 32768}, {"width": 33}, {"width": 100, "join": "add", "rank": 48})
