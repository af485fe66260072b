"""Cases of rotary positions: whole and partial rotation, heads' norms of Qwen3 and Gemma 3, what attention returns."""

DTYPES = ("float32", "float16", "bfloat16")
NORMS = {"norms": True}
PAIRS = {"interleaved": True}
GEMMA = {"norms": True, "offset": 1, "order": "scale_then_cast"}


def _make_cases():
    for dtype in DTYPES:
        for rows, width in ((1, 64), (7, 100), (7, 640)):
            yield {"rows": rows, "width": width, "dtype": dtype}
            yield {"rows": rows, "width": width, "dtype": dtype, **NORMS}
        yield {"rows": 7, "width": 256, "dtype": dtype, "heads_first": True, **GEMMA}
        # Phi-4's share of a head, and heads of 96.
        yield {"rows": 7, "width": 256, "dtype": dtype, "rotary_dim": 96, "heads_first": True}
        yield {"rows": 7, "width": 192, "dtype": dtype, "rotary_dim": 24, **NORMS}
        # GLM-4's half of a head, and neighbours that turn after norms.
        yield {"rows": 7, "width": 256, "dtype": dtype, "rotary_dim": 64, "heads_first": True, **PAIRS}
        yield {"rows": 7, "width": 192, "dtype": dtype, "rotary_dim": 24, **NORMS, **PAIRS}
    # More tokens than programs that share the norms' gradients: some take two.
    yield {"rows": 129, "width": 64, "dtype": "float32", **NORMS}
    yield {"rows": 0, "width": 64, "dtype": "float32", **NORMS}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, **more}
    for rows, width in ((257, 3584), (4096, 4096))
    for dtype in DTYPES
    for more in (
        {}, NORMS, GEMMA, PAIRS, {"rotary_dim": 32}, {"rotary_dim": 32, "heads_first": True, **NORMS},
        {"rotary_dim": 32, **NORMS, **PAIRS},
    )
)  # fmt: skip
COMPILE = (
    {"width": 4096},
    {"width": 2048, **NORMS},
    {"width": 3072, "rotary_dim": 96, "heads_first": True},
    {"width": 896, "rotary_dim": 32, **GEMMA},
    {"width": 4096, "rotary_dim": 64, **PAIRS},
    {"width": 2048, **NORMS, **PAIRS},
)
EDGES = ({"width": 64}, {"width": 96, **NORMS}, {"width": 16384, "rotary_dim": 64, **GEMMA})
